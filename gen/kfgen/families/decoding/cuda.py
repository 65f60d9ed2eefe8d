# SPDX-License-Identifier: Apache-2.0
"""CUDA schedules of decoding: the kernels of core/decoding, in the order of a launcher's table."""

from kfgen.model import steps
from kfgen.model.schedule import Cuda
from kfgen.model.steps import Instance, Launch, Step

GOAL, CHUNKS = "workspace.goal", "workspace.chunks"


class DecodingCuda(Cuda):
    template = "kernel"

    @property
    def type(self):
        return f"KFI_OF_{self.k.dtype.word.upper()}"

    @property
    def vec(self):
        return 16 // self.k.dtype.size

    def listing(self):
        return self.k.formulas(False)


class DecodeCuda(DecodingCuda):
    @property
    def small(self):
        """True if tensor cores multiply the elements."""
        return self.k.dtype.size == 2

    @property
    def mma(self):
        """Kernels of mma.sync: padded dimensions, then rows of a tile."""
        tiles = [(dim, rows) for dim in (64, 128) for rows in (8, 16)]
        found = [Instance("kfk_decode_mma", (self.type, *tile)) for tile in tiles]
        return found if self.small else []

    @property
    def simt(self):
        return [Instance("kfk_decode_simt", (self.type,))]

    @property
    def fold(self):
        """Kernels that add chunks, behind mma.sync and behind FMAs."""
        return [
            Instance("kfk_decode_fold", (self.type, n)) for n in ((1, 0) if self.small else (0,))
        ]

    @property
    def instances(self):
        return [*self.mma, *self.simt, *self.fold]

    @property
    def fields(self):
        """Fields of kfi_decode_op: (name, value, comment)."""
        return [("type", self.type, "")]

    @property
    def buffers(self):
        return {GOAL: "keys of an item of work", CHUNKS: "sums over each chunk of keys"}

    @property
    def workspace_bytes(self):
        return f"kfi_decode_workspace(shape, {self.k.dtype.acc.size})"

    @property
    def steps(self):
        read, written = steps.names(self.k.inputs), steps.names(self.k.outputs)
        persistent = Launch(
            tuple(self.mma),
            "persistent: at most two blocks per SM",
            "128",
            shared="stages of K and V, and sums of each warp",
            early=False,
        )
        chunks = Launch(tuple(self.simt), "chunks x tiles of rows, columns / 256", "128")
        of_rows = Launch(tuple(self.fold), "ceil(batch * heads * queries / 4)", "128")
        found = [persistent, chunks] if self.small else [chunks]
        return [
            Step("computes chunks of keys", tuple(found), read, (*written, GOAL, CHUNKS)),
            Step("adds chunks", (of_rows,), (*read[-1:], GOAL, CHUNKS), written),
        ]


class AppendCuda(DecodingCuda):
    @property
    def instances(self):
        """Kernels by the elements of a copy."""
        beside = int(self.k.neighbours)
        return [Instance("kfk_append", (self.type, beside, vec)) for vec in (self.vec, 1)]

    @property
    def fields(self):
        """Fields of kfi_append_op: (name, value, comment)."""
        return [("size", self.k.dtype.size, "bytes of an element")]

    @property
    def steps(self):
        read = [s for s in self.k.inputs if s.role == "in"]
        launch = Launch(tuple(self.instances), "new rows x heads / 4", "128")
        written = steps.names(self.k.updated)
        return [Step("stores new rows", (launch,), steps.names(read), written)]


class MergeCuda(DecodingCuda):
    @property
    def instances(self):
        """Kernels by the elements of an access."""
        kernel = "kfk_merge_bwd" if self.k.bwd else "kfk_merge"
        return [Instance(kernel, (self.type, vec)) for vec in (self.vec, 1)]

    @property
    def fields(self):
        """Fields of kfi_merge_op: (name, value, comment)."""
        return [("size", self.k.dtype.size, "bytes of an element"), ("bwd", self.k.bwd, "")]

    @property
    def steps(self):
        launch = Launch(tuple(self.instances), "ceil(batch * rows * heads / 4)", "128")
        read, written = steps.names(self.k.inputs), steps.names(self.k.outputs)
        return [Step("merges rows", (launch,), read, written)]
