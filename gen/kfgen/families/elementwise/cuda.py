# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops in CUDA: a few vectors per thread, or columns of a reduced gradient."""

import functools

from kfgen.language.emit import emit
from kfgen.language.primitives import KEEP, KEEP_SCALE
from kfgen.model import runtime_activation, steps
from kfgen.model.schedule import CHEAP, STATIC_SHARED, Cuda
from kfgen.model.steps import NONE, PARTIALS, Instance, Launch, Step

STAGES = 2  # pipeline stages (rows) in shared memory


class ElementwiseCuda(Cuda):
    def __init__(self, kernel):
        super().__init__(kernel)
        sizes = [s.dtype.size for s in self.k.loads + self.k.stores]
        self.vec = 16 // max(sizes)
        # Tensors that one kernel may read; the result takes the place of others.
        self.lanes = [s for s in self.k.loads if s.reads != "result"]
        # One vector per thread is as fast as any count for tensors that come from DRAM. Random bits
        # and row values cost enough set-up to share (bench/NOTES/elementwise.md).
        self.unroll = (
            4 if self.k.keeps else 1 if not self.k.grid else 2 if len(self.k.row_loads) < 3 else 4
        )

    @functools.cached_property
    def _loop(self):
        """(target, names of variables, names of nodes) of the element loop."""
        target = self.target(CHEAP | (frozenset() if self.k.sums else {"quotient"}))  # sums cancel
        env = {p: f"{p}_f[e]" for s in self.k.loads for p in s.parts} | {
            KEEP: "keep[e]",
            KEEP_SCALE: "keep_scale",
        }
        pick = "{}_f[e]" if self.k.sums else "kfi_at<mode>({}_f, e, at)"
        fixed = {node: pick.format(name) for name, node in self.k.rows}
        return target, env, fixed

    @functools.cached_property
    def split(self):
        """(calls of a run-time activation ahead of the element loop, names of nodes in it)."""
        calls, _, fixed = (
            runtime_activation.split(self.k.graph, self.loop_roots, *self._loop)
            if self.k.runtime_activation
            else ([], [], self._loop[2])
        )
        return calls, fixed

    @functools.cached_property
    def code(self):
        """(lines, texts per output part) of the element loop."""
        target, env, _ = self._loop
        return emit(self.k.graph, self.loop_roots, target, env, fixed=self.split[1])

    @functools.cached_property
    def row_code(self):
        target = self.target(CHEAP)
        derived = [(n, i) for n, i in self.k.rows if self.k.graph.nodes[i].op != "var"]
        env = {p: f"{p}_f[e]" for s in self.k.row_loads for p in s.parts}
        lines, texts = emit(self.k.graph, [i for _, i in derived], target, env, fixed={})
        return lines, [(n, t) for (n, _), t in zip(derived, texts)]

    @property
    def size(self):
        return max(s.dtype.size for s in self.k.loads + self.k.stores)

    @property
    def results(self):
        return list(
            zip(
                (p for s in self.k.outputs for p in s.parts),
                self.code[1],
                (s for s in self.k.outputs for _ in s.parts),
            )
        )

    @property
    def factors(self):
        """{sum: the row value that multiplies it after the reduction}."""
        return {s.name: self._factor(s)[1] for s in self.k.sums if self._factor(s)}

    def _factor(self, stream):
        """(term, row value's name) of a sum that is a product with a row value, else None.

        The factor is the same for every term, so it is moved out of the loop.
        """
        node = self.k.graph.nodes[stream.exprs[0]]
        names_ = {i: n for n, i in self.k.rows}
        if stream.role == "sum" and node.op == "mul":
            for term, factor in (node.args, node.args[::-1]):
                if factor in names_ and term not in names_:
                    return term, names_[factor]
        return None

    @property
    def loop_roots(self):
        """The results of the element loop; sums without their factors."""
        return [(self._factor(s) or (e,))[0] for s in self.k.outputs for e in s.exprs]

    def compute_ctype(self, stream):
        """Type of a stream's elements in expressions."""
        return (self.k if stream.dtype.word == "u8" else stream).dtype.compute_ctype

    def address(self, stream, half, source=""):
        """Arguments for one part of a stream: offset[, registers], step, elements left."""
        middle = f"{source}_v, " if source else ""
        if stream.kind != "half":
            return f"first, {middle}step, left"
        return f"half_first{' + g.cols' if half else ''}, {middle}2 * step, full ? vec : 2 * left"

    def load_values(self, stream):
        """Statement that loads the values of a row operand."""
        size = stream.dtype.size
        if self.k.sums:
            call = f"kfi_spread_values<{size}, vec, mode>({stream.name}_v, {stream.name}, span)"
            return f"if (at.rows > 0) {call}"
        return f"kfi_load_values<{size}, vec, mode>({stream.name}_v, {stream.name}, at)"

    @property
    def each_blocks(self):
        """Minimum blocks per SM, if 32 registers per thread suffice; otherwise empty."""
        parts = sum(len(s.parts) for s in self.lanes + self.k.stores)
        small = (
            self.k.dtype.compute != "f64"
            and not self.k.keeps
            and len(self.k.row_loads) < 2
            and parts < 5
        )
        return ", unroll == 1 ? KFI_BLOCKS_8 : KFI_BLOCKS_6" if small else ""

    @property
    def sum_staged(self):
        """True if row values and sums leave no registers for prefetched rows."""
        return len(self.k.rows) + len(self.k.sums) > 3

    @property
    def sum_stages(self):
        return STAGES

    @property
    def sum_ahead(self):
        """Rows prefetched in registers: two if the kernel reads one tensor."""
        if len(self.lanes) == 1:
            return "2"
        if self.k.runtime_activation:
            return "1"
        return (
            f"{'act < 0 || ' if self.k.by_result else ''}kfi_act_bwd_reads(kfi_tag<act>()) ? 1 : 2"
            if self.k.asks_reads
            else "1"
        )

    def lane(self, stream):
        """Index of a tensor in a pipeline stage. The result uses the slot of one it replaces."""
        return self.lanes.index(
            next(
                s
                for s in self.lanes
                if s is stream or (stream.reads == "result" and s.reads == "act")
            )
        )

    @property
    def sum_threads(self):
        """Threads per block of a sum kernel (kfi_make_split).

        512: two blocks per SM overlap their start and end. Up to 768: leaves registers for row
        values and sums; shared memory for the stages limits it. 1,024: expensive elements, fewest
        block starts.
        """
        if self.sum_staged:
            return min(768, STATIC_SHARED // (STAGES * 16 * max(1, len(self.lanes))) // 64 * 64)
        return 1024 if self.k.keeps and self.k.has_act else 512

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.k.loads + self.k.row_loads]
        found += [f"{s.dtype.device} *{s.name}" for s in self.k.stores]
        each = "kfi_strided each" if self.k.any_strides else "kfi_each each"
        found += (
            ["kfi_grid g", "kfi_sums sums"]
            if self.k.sums
            else [each] + (["kfi_rows g"] if self.k.grid else [])
        )
        found += [f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars]
        return ", ".join(found + (["kfi_rng rng"] if self.k.keeps else []) + self.act_parameters)

    @property
    def kernel_arguments(self):
        found = [s.name for s in self.k.loads + self.k.row_loads + self.k.stores]
        found += (
            ["kfi_g", "kfi_totals"] if self.k.sums else ["kfi_e"] + ["kfi_g"] * bool(self.k.grid)
        )
        return self.launched(*found, *self.k.used_scalars)

    @property
    def tensor_indices(self):
        """Index of each of a kernel's tensors among the launcher's."""
        k, at = self.k, self.k.tensor_names.index
        return [
            f"kfi_by ? {at(k.result)} : {at(s.name)}"
            if k.runtime_activation and s is k.result_slot
            else at(s.name)
            for s in k.loads + k.stores
        ]

    @property
    def passed_on(self):
        """Arguments that the run function passes to the one of the gradient by the result."""
        k = self.k
        found = [a.name for a in k.tensor_arguments] + k.sizes + k.scalars
        found += ["p", "kfi_seed", "kfi_offset", "seed", "offset"] if k.dropout else []
        return ", ".join(
            [*found, *(a.name for a in k.workspace_arguments), "stream", "kfi_scalars"]
        )

    @property
    def template(self):
        return "sum" if self.k.sums else "apart" if self.k.any_strides else "each"

    @property
    def shape(self):
        return "outer, channels, inner, true" if self.k.has_channel else "rows, 0, cols, false"

    @property
    def workspace_bytes(self):
        sums, acc = len(self.k.sums), self.k.dtype.acc.size
        return f"kfi_map_workspace({self.shape}, {self.size}, {self.sum_threads}, {sums}, {acc})"

    @property
    def instances(self):
        """Kernels of a launcher, in the order of core/elementwise/elementwise.cuh."""

        def kernel(*parameters):
            state = ("from_state",) if self.k.keeps else ()
            return Instance(f"kfk_{self.k.name}", ("act", *parameters, *state))

        if self.k.sums:
            modes = ["KFI_ROWS"] + (["KFI_PLANES"] if self.k.has_channel else [])
            return [kernel(vec, mode) for mode in modes for vec in (self.vec, 1)]
        if self.k.any_strides:
            return [kernel(self.vec)]
        shapes = [(self.vec, self.unroll) if self.unroll > 1 else None, (self.vec, 1), (1, 1)]
        if not self.k.grid:
            return [kernel(*s) if s else NONE for s in shapes]
        # Odd rows need vectors; without vectors they equal rows of single elements.
        modes = [("KFI_ROWS", shapes)] + (
            [] if self.k.has_half else [("KFI_ODD_ROWS", shapes[:2] + [None])]
        )
        modes += [("KFI_PLANES", shapes)] if self.k.has_channel else []
        return [kernel(*s, mode) if s else NONE for mode, of_mode in modes for s in of_mode]

    @property
    def fields(self):
        """Fields of kfi_map: (name, value, comment)."""
        k = self.k
        return [
            ("vec", self.vec, "elements per vector"),
            ("unroll", self.unroll, "vectors per thread"),
            ("size", self.size, "bytes of the widest element"),
            ("threads", self.sum_threads if k.sums else 0, "threads per block"),
            ("sums", len(k.sums), "outputs that are sums"),
            ("acc_size", k.dtype.acc.size, "bytes of an accumulator"),
            ("runs", self.several_runs and "kfi_runs", ""),
        ]

    @functools.cached_property
    def steps(self):
        k, kernels = self.k, tuple(self.instances)
        read = steps.names(s for s in k.inputs if s.reads != "never")
        stored = steps.names(k.stores)
        if not k.sums:
            size = " * ".join(k.extents)
            grid = f"{size} / elements of a block"
            return [Step("computes elements", (Launch(kernels, grid, "256"),), read, stored)]
        column = "channels" if k.has_channel else k.extents[-1]
        threads = f"up to {self.sum_threads}"
        launch = Launch(kernels, "tiles of rows and columns", threads)
        does = "computes elements and their partial sums; for few rows the sums themselves"
        written = (*stored, *steps.names(k.sums), PARTIALS)
        when = "a summed gradient is wanted, and there are more than a few rows"
        return [
            Step(does, (launch,), read, written),
            *self.sum_steps(column, "channels" if k.has_channel else "", when=when),
        ]

    def listing(self):
        """The computation in order, for readers."""
        lines = [
            *self.row_code[0],
            *(f"{n}_f[e] = {t};" for n, t in self.row_code[1]),
            *self.code[0],
        ]
        return lines + [
            f"{part}{'_s[e] +=' if s.role == 'sum' else ' ='} {text};"
            for part, text, s in self.results
        ]
