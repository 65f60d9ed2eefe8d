# SPDX-License-Identifier: Apache-2.0
"""The family `row` in CUDA: a row in the registers of a few threads, of a block or of a cluster, or read again in each pass."""

import functools
from dataclasses import replace

from kfgen import chosen
from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.passes import copy, picks, stored
from kfgen.schedule import STATIC_SHARED, Instance
from kfgen.words import COLUMN, COUNT, KEEP, KEEP_SCALE, QUERIES, QUERY, TRANSCENDENTAL

EARLY = 128  # bytes of row operands that a thread loads at once


class RowsCuda(OverRowsCuda):
    @property
    def early(self):
        """Bytes of row operands at once: beside dropout's words of eight elements half as many, measured 4 to 8 % faster than spilling."""
        return EARLY // 2 if self.k.keeps and self.vec == 8 else EARLY

    @property
    def vec(self):
        return 1 << 20 if self.k.gathers else super().vec

    @functools.cached_property
    def program(self):
        return self._program(
            "" if self.forgets else "in_registers ? name_h[in_registers ? s : 0][e] : {}",
            "kfi_near<in_registers>",
        )

    @functools.cached_property
    def staged_program(self):
        """The same where nothing is kept in registers from pass to pass."""
        return self._program("", "kfi_near<0>")

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
        again = {
            name: i for i, name in stored(graph).items()
        }  # as others read it: once more rounded it is the same
        whole = {s.name: f"{s.name}_i[0]" for s in self.k.values} | {s: s for s in self.k.integers}
        whole |= {COLUMN: "column", QUERY: "query", COUNT: "g.cols", QUERIES: "(kf_i64)g.queries.d"}
        target = replace(self.rows_target, whole=whole, place="e", near=near)
        return self.k.program(
            graph,
            {s.name: again.get(s.name, r) for s, r in zip(self.k.outputs, roots)},
            target,
            env,
            [s.name for s in self.k.sums],
            keep=keep,
            split=chosen.split if self.k.chosen else None,
        )

    @property
    def in_registers(self):
        """The ways to hold a row in registers, for ever longer rows: (vectors of a thread, threads of a block that a row may have,
        threads at most where blocks are as many as a cluster may have, threads at most where there are no clusters: 0, not this
        way). The last one is that of blocks that loop over the rows, a cluster of them at each where a block is not enough."""
        if self.k.gathers:
            return [(1, 32, 32, 32), (1, 32, 32, 0)]
        size, loads = 16 // self.vec, len(self.k.loads)
        if self.k.sums:  # 16 values of each tensor, and as many sums
            vectors = 2 if size == 2 or loads > 2 else 4
            return [
                (vectors, 512, 512, min(256, STATIC_SHARED // self._ring(vectors) // 32 * 32))
            ]  # without clusters: of every device
        vectors = (
            4
            if loads > 2
            else 16
            if size > 2 and loads == 1 and not self.k.row_loads + self.k.group_loads
            else 8
        )
        most = min(512, (208 << 10) // self._ring(vectors) // 64 * 64)  # of shared memory
        persistent = (vectors, min(256, most), most, 0)
        if self.k.group_sums:  # beside the row's values those of its channels, and sums
            return [(4, 256, 256, 256), persistent]
        if loads > 2 and self.transcendental:  # values and what is computed of them: 128 registers
            return [(4, 256, 256, 256), persistent]
        if loads > 1:
            most = (
                384 if size == 2 else 512
            )  # two blocks an SM, whose threads have 80 or 64 registers
            return [(4, most, most, most), persistent]
        if self.transcendental:  # what is computed of a value is in registers as well: 32 of them
            few = (
                512 if self.last_pass else 32
            )  # what stores no elements keeps nothing: one warp as far as eight vectors go
            return (
                [(4, 256, 256, 1024), persistent]
                if size == 2
                else [(4, few, few, few), (8, 512, 512, 1024), persistent]
            )
        full = 256 if size == 2 else 512
        # Few threads, few shuffles; with weights so few vectors that theirs find room beside them.
        few = full if self.k.row_loads else 32
        return [(4, few, few, few), (8, full, full, 1024), persistent]

    def _kept_vectors(self, vectors):
        """16-byte parts of row operands that a thread of a persistent block keeps in shared memory."""
        return 0 if self.k.sums else sum(vectors * self.parts(s) for s in self.k.row_loads)

    def parts(self, stream):
        """16-byte parts of a vector."""
        return self.vec * stream.dtype.size // 16

    def kept_at(self, stream):
        """The first such part of a row operand."""
        return sum(
            self.in_registers[-1][0] * self.parts(s)
            for s in self.k.row_loads[: self.k.row_loads.index(stream)]
        )

    @property
    def forgets(self):
        """Whether 2-byte values are converted again in each pass, since the registers would not hold twice as many bytes."""
        return not self.k.sums and not self.transcendental and not stored(self.k.graph)

    @property
    def divides_once(self):
        """Whether a row's values are hidden from the compiler once they are computed: beside a stored sum it divides again for each vector."""
        return bool(stored(self.k.graph)) and not self.k.sums

    def _depth(self, vectors):
        return max(1, 8 // (len(self.k.loads) * vectors)) if self.k.loads else 1

    @property
    def depth(self):
        """Rows on their way in shared memory, where blocks are persistent down the rows."""
        return self._depth(self.in_registers[-1][0])

    @property
    def fetched(self):
        """Values of a row that travel with it: those of a size that such a copy may have, the larger ones first."""
        there = [s for s in self.k.values if s.kind != "channel" and not self.k.gathers]
        return sorted((s for s in there if s.dtype.size >= 4), key=lambda s: -s.dtype.size)

    def fetched_at(self, stream):
        """Its byte among those of a row."""
        return sum(s.dtype.size for s in self.fetched[: self.fetched.index(stream)])

    @property
    def fetched_bytes(self):
        """Bytes of a row's values."""
        largest = max((s.dtype.size for s in self.fetched), default=1)
        return -(-sum(s.dtype.size for s in self.fetched) // largest) * largest

    def _fetched_from(self, vectors):
        return 16 * (
            self._depth(vectors) * len(self.k.loads) * vectors + self._kept_vectors(vectors)
        )

    @property
    def fetched_from(self):
        """The first of them, in bytes of a thread's shared memory: behind the rows on their way and the row operands."""
        return self._fetched_from(self.in_registers[-1][0])

    def _ring(self, vectors):
        places = -(-(self._fetched_from(vectors) + self._depth(vectors) * self.fetched_bytes) // 16)
        return max(
            (places | 1) * 16, vectors * self.vec * self.k.dtype.acc.size if self.k.sums else 0
        )

    @property
    def ring(self):
        """Bytes of shared memory a thread; at the end the sums of a gradient. Few: the L1 cache, through which rows come, has the rest."""
        return self._ring(self.in_registers[-1][0])

    @property
    def fixed(self):
        """Bytes of shared memory a block: for each reduction a place for each warp and for each block of a cluster (8), for
        each pass an mbarrier, all that twice, since the next row comes before all have read them."""
        size = 2 * (self.slots * (32 + 8) * self.k.dtype.acc.size + len(self.program.passes) * 8)
        return -(-size // 16) * 16

    @property
    def shifts(self):
        """Whether rows in registers may begin at any address and be read by vectors (core/rows/shift.cuh). Of 4-byte elements that was slower."""
        return self.vec == 8 and not self.k.segments and not self.k.gathers

    @property
    def asks_ringed(self):
        """Whether there is what lies in shared memory in aligned rows alone."""
        return (
            not self.shifts
            or any(s.dtype.size != 2 for s in self.k.loads)
            or not self.k.loads
            or bool(self.k.row_loads and not self.k.sums)
        )

    @property
    def skips(self):
        """Whether a warp skips vectors that hold nothing of an odd row: norms of one tensor gain by it, others spill, or wait longer."""
        return (
            self.shifts
            and len(self.k.loads) == 1
            and bool(self.k.row_loads)
            and not self.transcendental
        )

    @property
    def late_sums(self):
        """{gradient that is summed over the rows and needs every pass: its text}."""
        return {
            s.name: self.program.texts[s.name] for s in self.k.sums if s.name in self.program.texts
        }

    @property
    def strips(self):
        """Whether gradients that are summed over few rows may be summed in the same launch, by blocks that have columns: where an element's terms
        need no reduction of its row. Of two at most, for which there is shared memory."""
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
    def warps(self):
        """Blocks an SM of a kernel more, for rows of which a warp has three vectors a thread (768 columns are usual), where there are row
        operands, which are loaded with the row. 0: there is no such kernel."""
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
    def thirds(self):
        """Whether odd rows of a warp or less, of which a thread has no fourth vector, have a kernel of their own."""
        return self.shifts and not self.k.sums and self.in_registers[0][0] == 4

    @property
    def staged(self):
        """Whether long rows of an odd number of elements have a kernel that goes over them in shared memory (core/rows/stage.cuh): where a row is one
        tensor's, and no reduction asks for an element's column."""
        k = self.k
        plain = k.form == "rows" and not (
            k.sums or k.row_loads or k.shared or k.keeps or k.chosen or k.segments or k.has_channel
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
        """Whether a row's elements are gone over once more when all is reduced."""
        return bool(self.k.stores or self.late_sums)

    @property
    def transcendental(self):
        return any(
            self.k.graph.nodes[i].op in TRANSCENDENTAL for i in self.k.graph.reachable(self.k.roots)
        )

    @property
    def instances(self):
        """The kernels a launcher chooses from, in the order that core/rows/host.cuh expects."""
        in_registers = [vectors for vectors, *_ in self.in_registers]
        found = [(v, 0) for v in in_registers[:-1]] + (
            [] if self.k.gathers else [(in_registers[-1], 1), (0, int(bool(self.k.sums)))]
        )
        state = ("from_state",) if self.k.keeps else ()
        ways = [(vectors, 2 * stay + whole) for vectors, stay in found for whole in (1, 0)]
        ways += (
            [(in_registers[0], 1)] * self.strips
            + [(3, 1)] * bool(self.warps)
            + [(3, 0)] * self.thirds
        )
        found = [
            Instance(f"kfk_{self.k.name}", ("act", vectors, way, *state)) for vectors, way in ways
        ]
        return found + [Instance(f"kfk_{self.k.name}_staged", ("act",))] * self.staged

    @property
    def bounds(self):
        """Threads of a block at most: of a row, or of several rows' blocks."""
        if self.strips:
            return str(max(self.in_registers[-1][2], 512))
        least = 256 if self.k.sums else 128
        warps = f"in_registers == 3 ? {least} : " if self.warps or self.thirds else ""
        found = [
            f"in_registers == {vectors} ? {max(alone, least)} : "
            for vectors, _, _, alone in self.in_registers[:-1]
        ]
        # Two tensors, or weights all at once: a few registers too many would leave room for one block of 512 threads alone.
        most = (
            2
            if len(self.k.loads) > 1
            else 1024 // self.in_registers[0][3]
            if self.k.row_loads
            else 0
        )
        asked = most and not self.k.sums and self.k.dtype.size < 8
        blocks = (
            f", way < 2 && in_registers{' == 4' if len(self.k.loads) == 1 else ''} ? {most} : 1"
            if asked
            else ""
        )
        if self.warps:
            blocks = f", in_registers == 3 && way ? {self.warps} : " + (
                blocks.removeprefix(", ") or "1"
            )
        return (
            f"way > 1 ? {max(self.in_registers[-1][2], 512)} : "
            + warps
            + "".join(found)
            + ("512" if self.k.group_sums else "1024")
            + blocks
        )

    @property
    def register_table(self):
        """In a word each, as core/rows/host.cuh has it: such a table is compiled for every launcher there is."""
        return ", ".join(
            "0x" + "".join(f"{n:02x}" for n in (v, *(t // 32 for t in threads)))
            for v, *threads in self.in_registers
        )

    @property
    def workspace_bytes(self):
        k, acc = self.k, self.k.dtype.acc.size
        if k.sums:
            return f"kfi_row_workspace(rows, cols, {self.vec}, {self.register_table}, {len(k.sums)}, {acc})"
        if k.group_sums:
            return (
                f"kfi_group_workspace({', '.join(k.sizes)}, {self.vec}, {len(k.group_sums)}, {acc})"
            )
        return f"kfi_plane_workspace({', '.join(k.sizes)}, {len(k.plane_sums)}, {acc})"

    @property
    def sum_kernels(self):
        return self.second_stage("kfk_sum_partials")

    def place(self, stream, row):
        """The element that a row of a tensor begins with."""
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
