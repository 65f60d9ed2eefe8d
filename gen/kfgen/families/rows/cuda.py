# SPDX-License-Identifier: Apache-2.0
"""CUDA schedules of the family `rows`: a row in the registers of a few threads, a block or a
cluster, or read again in each pass.
"""

import functools
from dataclasses import replace

from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.families.rows.steps import PERSISTENT, REGISTERS, REREAD, WARP, RowsSteps
from kfgen.language.passes import copy, picks, stored
from kfgen.language.primitives import (
    COLUMN,
    COUNT,
    KEEP,
    KEEP_SCALE,
    QUERIES,
    QUERY,
    TRANSCENDENTAL,
)
from kfgen.model import runtime_activation
from kfgen.model.schedule import STATIC_SHARED
from kfgen.model.steps import Instance

EARLY = 128  # budget of row operands that a thread loads at once, in bytes


def aligned(schedule):
    return f"{schedule} | KFI_ROWS_ALIGNED"


class RowsCuda(RowsSteps, OverRowsCuda):
    @property
    def early(self):
        """Budget of row operands that a thread loads at once, in bytes. Halved next to eight random
        words of dropout, which measured 4 to 8 % faster than spilling.
        """
        return EARLY // 2 if self.k.keeps and self.vec == 8 else EARLY

    @property
    def vec(self):
        return 1 << 20 if self.k.gathers else super().vec

    @functools.cached_property
    def program(self):
        def held(name):
            return f"in_registers ? {name}_h[in_registers ? s : 0][e] : {{}}"

        return self._program(None if self.reconverts else held, "kfi_near<in_registers>")

    @functools.cached_property
    def staged_program(self):
        """The program of the staged kernel, which keeps nothing in registers between passes."""
        return self._program(None, "kfi_near<0>")

    def _program(self, keep, near):
        T = self.k.compute
        env = {s.name: f"{s.name}_f[e]" for s in self.k.sources} | {
            s.name: f"{s.name}_i[0]" for s in self.k.picks
        }
        env |= self.k.value_env("{}_i[0]") | {s: f"(({T}){s})" for s in self.k.integers}
        env |= {
            COLUMN: f"(({T})(column + e))",
            QUERY: f"(({T})query)",
            KEEP: "keep[e]",
            KEEP_SCALE: "keep_scale",
        }
        graph, roots = copy(self.k.graph, self.k.roots, picks(self.k.graph, self.k.roots))
        # Read by others as stored: rounding again does not change it.
        again = {name: i for i, name in stored(graph).items()}
        whole = {s.name: f"{s.name}_i[0]" for s in self.k.values} | {s: s for s in self.k.integers}
        whole |= {COLUMN: "column", QUERY: "query", COUNT: "g.cols", QUERIES: "(kf_i64)g.queries.d"}
        target = replace(self.rows_target, whole=whole, offset="e", near=near)
        return self.k.program(
            graph,
            {s.name: again.get(s.name, r) for s, r in zip(self.k.outputs, roots)},
            target,
            env,
            [s.name for s in self.k.sums],
            keep=keep,
            split=runtime_activation.split if self.k.runtime_activation else None,
        )

    @property
    def in_registers(self):
        """Limits of the schedules that hold a row in registers, by row length: (vectors per thread,
        maximum threads per row without a cluster, with a full cluster, and on devices without
        clusters; 0: not there). The last entry is KFI_ROWS_PERSISTENT, whose rows may have a
        cluster.
        """
        if self.k.gathers:
            return [(1, 32, 32, 32), (1, 32, 32, 0)]
        size, loads = 16 // self.vec, len(self.k.loads)
        if self.k.sums:  # 16 values per tensor, and as many sums
            vectors = 2 if size == 2 or loads > 2 else 4
            return [
                (vectors, 512, 512, min(256, STATIC_SHARED // self._ring(vectors) // 32 * 32))
            ]  # without clusters, for all devices
        vectors = (
            4
            if loads > 2
            else 16
            if size > 2 and loads == 1 and not self.k.row_loads + self.k.group_loads
            else 8
        )
        most = min(512, (208 << 10) // self._ring(vectors) // 64 * 64)  # shared memory
        persistent = (vectors, min(256, most), most, 0)
        if self.k.group_sums:  # next to the row: values of its channels, and sums
            return [(4, 256, 256, 256), persistent]
        if loads > 2 and self.transcendental:  # values and intermediate results take 128 registers
            return [(4, 256, 256, 256), persistent]
        if loads > 1:
            # Two blocks per SM, with 80 or 64 registers per thread.
            most = 384 if size == 2 else 512
            return [(4, most, most, most), persistent]
        if self.transcendental:  # intermediate results take 32 more registers
            # Without stores nothing is kept: one warp for up to eight vectors.
            few = 512 if self.last_pass else 32
            return (
                [(4, 256, 256, 1024), persistent]
                if size == 2
                else [(4, few, few, few), (8, 512, 512, 1024), persistent]
            )
        full = 256 if size == 2 else 512
        # Fewer threads need fewer shuffles. With weights: few vectors, so that their vectors fit
        # too.
        few = full if self.k.row_loads else 32
        return [(4, few, few, few), (8, full, full, 1024), persistent]

    def _cached_vectors(self, vectors):
        """16-byte parts of row operands that a thread of a persistent block caches in shared
        memory.
        """
        return 0 if self.k.sums else sum(vectors * self.parts(s) for s in self.k.row_loads)

    def parts(self, stream):
        """Number of 16-byte parts of a vector."""
        return self.vec * stream.dtype.size // 16

    def cached_at(self, stream):
        """Index of a row operand's first part in that cache."""
        return sum(
            self.in_registers[-1][0] * self.parts(s)
            for s in self.k.row_loads[: self.k.row_loads.index(stream)]
        )

    @property
    def reconverts(self):
        """True if each pass converts 2-byte values again: floats would take twice the registers."""
        return not self.k.sums and not self.transcendental and not stored(self.k.graph)

    @property
    def hides_row_values(self):
        """True if values per row become opaque once computed. Next to a stored sum, the compiler
        would otherwise repeat their division for each vector.
        """
        return bool(stored(self.k.graph)) and not self.k.sums

    def _depth(self, vectors):
        return max(1, 8 // (len(self.k.loads) * vectors)) if self.k.loads else 1

    @property
    def depth(self):
        """Rows in flight in shared memory (KFI_ROWS_PERSISTENT)."""
        return self._depth(self.in_registers[-1][0])

    @property
    def fetched(self):
        """Values per row that are copied ahead with it: sizes that cp.async supports, the larger
        ones first.
        """
        there = [s for s in self.k.values if s.kind != "channel" and not self.k.gathers]
        return sorted((s for s in there if s.dtype.size >= 4), key=lambda s: -s.dtype.size)

    def fetched_at(self, stream):
        """Byte offset of a value among those of a row."""
        return sum(s.dtype.size for s in self.fetched[: self.fetched.index(stream)])

    @property
    def fetched_bytes(self):
        """Bytes of a row's values, padded."""
        largest = max((s.dtype.size for s in self.fetched), default=1)
        return -(-sum(s.dtype.size for s in self.fetched) // largest) * largest

    def _fetched_from(self, vectors):
        return 16 * (
            self._depth(vectors) * len(self.k.loads) * vectors + self._cached_vectors(vectors)
        )

    @property
    def fetched_from(self):
        """Byte offset of the values in a thread's shared memory: after the rows in flight and the
        row operands.
        """
        return self._fetched_from(self.in_registers[-1][0])

    def _ring(self, vectors):
        places = -(-(self._fetched_from(vectors) + self._depth(vectors) * self.fetched_bytes) // 16)
        return max(
            (places | 1) * 16, vectors * self.vec * self.k.dtype.acc.size if self.k.sums else 0
        )

    @property
    def ring(self):
        """Bytes of shared memory per thread; reused for the sums of a gradient at the end. Kept
        small, because the L1 cache has the rest.
        """
        return self._ring(self.in_registers[-1][0])

    @property
    def fixed(self):
        """Bytes of shared memory per block: a slot per reduction for each warp and each block of a
        cluster (8), and an mbarrier per pass. Twice, because the next row may begin before all have
        read them.
        """
        size = 2 * (self.slots * (32 + 8) * self.k.dtype.acc.size + len(self.program.passes) * 8)
        return -(-size // 16) * 16

    @property
    def shifts(self):
        """True if unaligned rows in registers are accessed by vectors (core/rows/shift.cuh). For
        4-byte elements that was slower.
        """
        return self.vec == 8 and not self.k.segments and not self.k.gathers

    @property
    def asks_ringed(self):
        """True if some operand uses the shared memory of aligned rows only."""
        return (
            not self.shifts
            or any(s.dtype.size != 2 for s in self.k.loads)
            or not self.k.loads
            or bool(self.k.row_loads and not self.k.sums)
        )

    @property
    def skips(self):
        """True if a warp skips vectors past the end of an unaligned row. Faster for norms of one
        tensor; other kernels spill or wait longer.
        """
        return (
            self.shifts
            and len(self.k.loads) == 1
            and bool(self.k.row_loads)
            and not self.transcendental
        )

    @property
    def late_sums(self):
        """{gradient summed over the rows that needs all passes: its text}."""
        return {
            s.name: self.program.texts[s.name] for s in self.k.sums if s.name in self.program.texts
        }

    @property
    def strips(self):
        """True if gradients summed over few rows are summed in the same launch, by blocks of
        columns. Their terms must not need a reduction of the row. At most two, limited by shared
        memory.
        """
        k = self.k
        early = [p.sums for p in self.program.passes[:1]]
        return (
            0 < len(k.sums) < 3
            and k.form == "rows"
            and not k.shared
            and not k.gathers
            and not k.picks
            and not self.several_runs
            and early == [{s.name: early[0].get(s.name) for s in k.sums}]
        )

    @property
    def warp_blocks(self):
        """Blocks per SM of the KFI_ROWS_WARP kernel for aligned rows, with three vectors per thread
        (768 columns are common). For ops with row operands, which it loads with the row. 0: no such
        kernel.
        """
        k = self.k
        if (
            not k.row_loads
            or k.sums
            or k.keeps
            or k.form != "rows"
            or self.vec != 8
            or len(k.loads) > 2
            or self.transcendental
        ):
            return 0
        if 3 * self.vec * sum(s.dtype.size for s in k.row_loads) > EARLY:
            return 0
        return 8 if len(k.loads) == 1 else 6

    @property
    def three_vectors(self):
        """True if unaligned rows of at most a warp have a three-vector kernel."""
        return self.shifts and not self.k.sums and self.in_registers[0][0] == 4

    @property
    def staged(self):
        """True if long unaligned rows have a kernel that stages them in shared memory
        (core/rows/stage.cuh). For ops of one tensor whose reductions do not use the column.
        """
        k = self.k
        plain = k.form == "rows" and not (
            k.sums
            or k.row_loads
            or k.shared
            or k.keeps
            or k.runtime_activation
            or k.segments
            or k.has_channel
        )
        if (
            not plain
            or not self.shifts
            or len(k.loads) != 1
            or len(k.stores) > 1
            or self.late_sums
            or k.loads[0].dtype.size != 2
        ):
            return False
        passes = self.program.passes
        alike = all(s.dtype.size == 2 for s in k.stores) and not self.conditions(k.loads[0])
        return (
            bool(passes)
            and alike
            and all("column" not in p.reads and not p.calls for p in passes)
            and not self.program.calls
        )

    @property
    def core(self):
        return ("kf/core/rows/stage",) if self.staged else ()

    @property
    def last_pass(self):
        """True if a pass over the elements follows the reductions."""
        return bool(self.k.stores or self.late_sums)

    @property
    def transcendental(self):
        return any(
            self.k.graph.nodes[i].op in TRANSCENDENTAL for i in self.k.graph.reachable(self.k.roots)
        )

    @property
    def instances(self):
        """Kernels that a launcher chooses from, in the order of core/rows/host.cuh."""
        vectors = [v for v, *_ in self.in_registers]
        found = [(v, REGISTERS) for v in vectors[:-1]]
        if not self.k.gathers:
            found += [(vectors[-1], PERSISTENT), (0, REREAD)]
        found = [(v, schedule) for v, own in found for schedule in (aligned(own), own)]
        found += [(vectors[0], aligned(REGISTERS))] * self.strips
        found += [(3, aligned(WARP))] * bool(self.warp_blocks) + [(3, WARP)] * self.three_vectors
        state = ("from_state",) if self.k.keeps else ()
        kernel = f"kfk_{self.k.name}"
        return [Instance(kernel, ("act", v, schedule, *state)) for v, schedule in found] + [
            Instance(f"{kernel}_staged", ("act",))
        ] * self.staged

    @property
    def bounds(self):
        """Launch bounds: maximum block size, for one or several rows, and minimum blocks per SM."""
        persistent = max(self.in_registers[-1][2], 512)
        if self.k.sums:  # all blocks are persistent, or sum strips
            return str(persistent)
        found = [
            f"in_registers == {vectors} ? {max(alone, 128)} : "
            for vectors, _, _, alone in self.in_registers[:-1]
        ]
        if self.warp_blocks or self.three_vectors:
            found.insert(0, f"kfi_rows_kind(schedule) == {WARP} ? 128 : ")
        threads = "".join(found) + ("512" if self.k.group_sums else "1024")
        return f"schedule >= {PERSISTENT} ? {persistent} : {threads}{self._blocks}"

    @property
    def _blocks(self):
        """Launch bounds: minimum blocks per SM, after a comma; empty: none."""
        # Two tensors, or all weights at once: a few more registers would leave only one block of
        # 512 threads per SM.
        most = (
            2
            if len(self.k.loads) > 1
            else 1024 // self.in_registers[0][3]
            if self.k.row_loads
            else 0
        )
        blocks = ""
        if most and self.k.dtype.size < 8:
            short = " == 4" if len(self.k.loads) == 1 else ""
            blocks = f"schedule < {PERSISTENT} && in_registers{short} ? {most} : 1"
        if self.warp_blocks:
            blocks = f"schedule == ({aligned(WARP)}) ? {self.warp_blocks} : {blocks or 1}"
        return f", {blocks}" if blocks else ""

    @property
    def register_words(self):
        """[(limits packed into a word (core/rows/host.cuh), the limits in words)]."""
        return [
            (
                "0x" + "".join(f"{n:02x}" for n in (v, *(t // 32 for t in threads))),
                "{} vectors; threads: {}, in a full cluster {}, without clusters {}".format(
                    v, *threads
                ),
            )
            for v, *threads in self.in_registers
        ]

    @property
    def register_table(self):
        """The packed limits, compiled into every launcher."""
        return ", ".join(word for word, _ in self.register_words)

    @property
    def fields(self):
        """Fields of kfi_row: (name, value, comment)."""
        k = self.k
        return [
            ("limits", "kfi_limits", ""),
            ("limit_count", len(self.in_registers), ""),
            *self.sizes,
            ("sums", len(k.sums), "gradients summed over the rows"),
            ("per_row", bool(k.results_of_rows), ""),
            ("layout", k.layout_code if k.form != "rows" else 0, ""),
            ("plane_sums", len(k.plane_sums + k.group_sums), "gradients summed over planes"),
            ("runs", self.several_runs and "kfi_runs", ""),
            ("strips", self.strips, ""),
            ("warp_aligned", bool(self.warp_blocks), ""),
            ("warp_unaligned", self.three_vectors, ""),
            ("staged", self.staged, ""),
        ]

    @property
    def sizes(self):
        """Fields of kfi_row that are sizes: (name, value, comment)."""
        return [
            ("vec", self.vec, "elements per vector"),
            ("acc_size", self.k.dtype.acc.size, "bytes of an accumulator"),
            ("fixed", self.fixed, "bytes of shared memory per block"),
            ("ring", self.ring, "bytes of shared memory per thread"),
        ]

    @property
    def workspace_bytes(self):
        k, acc = self.k, self.k.dtype.acc.size
        if k.sums:
            more = f"{self.register_table}, {len(k.sums)}, {acc}"
            return f"kfi_row_workspace(rows, cols, {self.vec}, {more})"
        if k.group_sums:
            return (
                f"kfi_group_workspace({', '.join(k.sizes)}, {self.vec}, {len(k.group_sums)}, {acc})"
            )
        return f"kfi_plane_workspace({', '.join(k.sizes)}, {len(k.plane_sums)}, {acc})"

    def place(self, stream, row):
        """Offset of a row's first element in a tensor."""
        if stream.kind != "elem":
            return f"{row} * g.cols"
        word = "segment" if self.k.segments else self.k.form.removesuffix("s")
        return f"kfi_{word}_row({row}, {stream.name}_p{'' if word == 'row' else ', g'})"

    @property
    def geometry(self):
        return "kfi_groups" if self.k.segments else "kfi_row_layout"

    @property
    def geometry_name(self):
        return "kfi_g" if self.k.segments else "g"
