# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of attention: the kernels of core/attention, in the order of a launcher's table."""

from kfgen.families.attention.scores import CudaScore
from kfgen.model import steps
from kfgen.model.schedule import Cuda
from kfgen.model.steps import Instance, Launch, Step

TICKET = "workspace.ticket"
WITH_DROPOUT = ("from_state",)  # last argument of kernels with dropout
PLAIN = "KFI_SCORE_PLAIN"
WGMMA, WIDTHS = ("64", "128", "192_128", "256"), ("64", "128", "256")  # tiles


class Tile(Instance):
    """An instance that KF_SCHEDULES or KF_HEAD_DIMS may leave out. Its last argument is the word of
    the macro that decides (core/attention/op.cuh).
    """

    def __str__(self):
        state = "STATE_" if "from_state" in self.arguments else ""
        return f"KFI_{self.arguments[-1]}_{state}ADDRESS({self.name(steps.OWN)})"

    def name(self, values=None):
        return Instance(self.kernel, self.arguments[:-1]).name(values)


ZERO = Tile("kfk_attention_ticket", ("0", "HOPPER"))


class AttentionCuda(Cuda):
    @property
    def type(self):
        return f"KFI_OF_{self.k.dtype.word.upper()}"

    @property
    def code(self):
        """The score's code; None if it has none of its own."""
        return None if self.k.plain else CudaScore(self.k)

    @property
    def score(self):
        """Tag of the score."""
        return self.code.tag if self.code else PLAIN

    @property
    def drop(self):
        """Arguments of the portable kernels with dropout."""
        return WITH_DROPOUT * self.k.keeps

    @property
    def wgmma(self):
        """Kernels for sm_90a: none with dropout, whose random numbers would spill registers, and
        none for lists of blocks.
        """
        if self.k.keeps or self.k.sparse:
            return [steps.NONE] * len(WGMMA)
        return [
            Tile(
                f"kfk_attention_hopper{self.k.suffix}",
                (self.type, f"KFI_ATTENTION_WGMMA_{tile}", self.score, f"WGMMA_{tile}"),
            )
            for tile in WGMMA
        ]

    @property
    def mma(self):
        """Kernels for sm_80 and later: rows at multiples of 16 bytes, then any rows."""
        return [
            Tile(
                f"kfk_attention_mma{self.k.suffix}",
                (
                    *(self.type, f"KFI_ATTENTION_MMA_{tile}", self.score, whole, *self.drop),
                    f"{word}_{tile}",
                ),
            )
            for whole, word in (("1", "MMA"), ("0", "ANY"))
            for tile in WIDTHS
        ]

    @property
    def simt(self):
        """Kernels for any device. From sm_80 on 2-byte elements need the largest alone."""
        small = self.k.dtype.size == 2
        words = [
            f"{'PRE_SM80' if small and tile != WIDTHS[-1] else 'ANY'}_{tile}" for tile in WIDTHS
        ]
        return [
            Tile(
                f"kfk_attention_simt{self.k.suffix}",
                (self.type, str(i), self.score, *self.drop, word),
            )
            for i, word in enumerate(words)
        ]

    @property
    def instances(self):
        small = self.k.dtype.size == 2
        ticket = steps.NONE if self.k.keeps or self.k.sparse else ZERO
        return [*self.wgmma, *self.mma, *self.simt, ticket] if small else self.simt

    @property
    def fields(self):
        """Fields of kfi_attention_op: (name, value, comment)."""
        return [("type", self.type, ""), ("drops", self.k.keeps, "")]

    @property
    def scale(self):
        """Factor of the products."""
        return f"(double){self.k.factor}" if self.k.factor else "1.0"

    @property
    def bounds(self):
        """[(field of the plan, slope, C expression of the addend)]."""
        return self.k.bounds_of({})

    @property
    def buffers(self):
        return {TICKET: "the next tile of work"}

    @property
    def workspace_bytes(self):
        return f"kfi_attention{'_packed' if self.k.packed else ''}_workspace(shape)"

    @property
    def steps(self):
        k = self.k
        read, written = steps.names(k.inputs), steps.names(k.outputs)
        rows = "blocks of rows x heads" + ("" if k.packed else " x batch")
        found = [Launch(tuple(self.simt), rows, "128", shared="slices of Q, K and V")]
        if k.dtype.size > 2:
            return [Step("computes the results", tuple(found), read, written)]
        mma = Launch(tuple(self.mma), rows, "128", shared="Q, K and V")
        if k.keeps or k.sparse:
            return [Step("computes the results", (mma, *found), read, written)]
        persistent = Launch(
            tuple(self.wgmma),
            "persistent: at most one block per SM",
            "384 or 512",
            shared="Q, and stages of K and V",
            maps=tuple(k.of_kind(kind).name for kind in ("query", "key", "value")),
            early=False,
        )
        found = [persistent, mma, *found]
        zero = Launch((ZERO,), "1", "1", early=False)
        return [
            Step("zeroes the ticket", (zero,), (), (TICKET,), "the kernel uses wgmma"),
            Step("computes the results", tuple(found), (*read, TICKET), (*written, TICKET)),
        ]

    def listing(self):
        return self.k.formulas(False)
