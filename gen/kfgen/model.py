# SPDX-License-Identifier: Apache-2.0
"""Expands spec entries into kernels (one per op x dtypes x direction) and launchers (one per activation of a kernel).

Everything a template prints is an attribute here: a name, a type or a finished expression.
"""

import functools
from dataclasses import dataclass, field

from kfgen import contract, families, names
from kfgen.activation import bwd_reads_x
from kfgen.dtypes import DTYPE, DTYPES, FLOAT_DTYPES, INT_DTYPES, Dtype
from kfgen.emit import Target, counts, emit, reads
from kfgen.entries import SpecError
from kfgen.expr import KEEP, KEEP_SCALE, TRANSCENDENTAL, Graph, gradient, substitute

# CUDA words whose cheap form is as good as float32's own operations: an op may use it on 2-byte tensors even where its
# result is added to something. Everything else is exact outside activations.
CHEAP = {"div", "sqrt", "rsqrt", "rcp"}
ROWS = ("row", "channel", "per_row", "per_plane", "per_query", "per_group", "per_channel", "shared", "group")  # what is smaller than the result


@dataclass
class Stream:
    """One tensor argument of a kernel."""

    name: str
    # elem, half, row, channel, per_row, per_plane: one per plane of [outer, channels, inner], per_query: one per row of [batch, heads,
    # queries, keys], shared: [batch, queries, keys]; group: [groups, channels] of [outer, length, groups, channels, inner], per_group: one
    # per [outer, groups]; per_channel: one per row where a row is a channel's of [outer, channels, inner]
    kind: str
    dtype: Dtype
    role: str  # in, out, sum (a gradient reduced to a row or channel)
    parts: tuple  # the names expressions use, two for "half"
    reads: str = "always"  # of inputs: always, act (if the activation's gradient reads its argument), never
    same_as: str = ""  # of gradients: an earlier gradient that is proven equal; they may be one pointer
    place_of: str = ""  # of an input's next value: the input, in whose place it may be
    exprs: list = field(default_factory=list)  # of outputs: the value of each part
    required: bool = True  # forward arguments; gradients may be NULL
    absent: float | None = None  # of inputs that may be NULL: the value that stands for them

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def is_row(self):
        return self.kind in ROWS


@dataclass
class Launcher:
    kernel: "Kernel"
    act: object
    state: bool

    @property
    def name(self):
        return names.function(self.kernel.op.pattern, self.act.name, self.kernel.dtypes, self.kernel.bwd, self.state)

    @property
    def cpu_name(self):
        return names.function(self.kernel.op.pattern, self.act.name, self.kernel.dtypes, self.kernel.bwd, self.state, cpu=True)

    @property
    def arguments(self):
        """The public signature but for the stream, in order."""
        k, scalar = self.kernel, self.kernel.scalar_ctype
        found = k.tensor_arguments + [Argument("int64_t ", s, "size") for s in k.sizes]
        found += [Argument(f"{scalar} ", s, "scalar") for s in k.scalars]
        if k.dropout:
            found.append(Argument(f"{scalar} ", "p", "probability"))
            found += [Argument("const uint64_t *", "state", "state")] if self.state else [
                Argument("uint64_t ", "seed", "seed"), Argument("uint64_t ", "offset", "offset")]
        found += [Argument(f"{scalar} ", s, "act_scalar") for s in self.act.scalars]
        return found + k.workspace_arguments

    @property
    def cuda_parameters(self):
        return ", ".join([f"{a.ctype}{a.name}" for a in self.arguments] + ["cudaStream_t stream"])

    @property
    def cuda_types(self):
        """The same without names."""
        return ", ".join([a.ctype.strip() for a in self.arguments] + ["cudaStream_t"])

    @property
    def cpu_parameters(self):
        return ", ".join(f"{a.ctype}{a.name}" for a in self.arguments)

    @property
    def run_arguments(self):
        """Of the run function; an activation without scalars leaves out the last one: 2,400 launchers are parsed faster."""
        k = self.kernel
        found = [a.name for a in k.tensor_arguments] + k.sizes + k.scalars
        if k.dropout:
            found += ["p", "0", "0", "state"] if self.state else ["p", "seed", "offset", "nullptr"]
        found += [a.name for a in k.workspace_arguments] + ["stream"]
        return ", ".join(found + ([f"{{{{{', '.join(self.act.scalars)}}}}}"] if self.act.scalars else []))

    @property
    def scalar_values(self):
        return self.kernel.scalars + list(self.act.scalars)

    @property
    def cpu_dropout_arguments(self):
        return [] if not self.kernel.dropout else ["p", "0", "0", "state", "1"] if self.state else ["p", "seed", "offset", "NULL", "0"]

    @property
    def cpu_run_arguments(self):
        k = self.kernel
        found = [f"kfi_tile_{k.name}_{self.act.name}", f'"{self.act.name}"'] + ([str(int(bwd_reads_x(self.act)))] if k.asks_reads else [])
        found += [a.name for a in k.tensor_arguments] + k.sizes + ["scalars" if self.scalar_values else "NULL"]
        return ", ".join(found + self.cpu_dropout_arguments + [a.name for a in k.workspace_arguments])


@dataclass(frozen=True)
class Argument:
    ctype: str  # as it stands before the name
    name: str
    role: str  # in, out, size, scalar, act_scalar, probability, seed, offset, state, workspace


class Kernel:
    family = "map"  # the schedule: templates/cuda/map_*.j2, templates/cpu/map.h.j2
    layout = ""  # how the rows of an op over rows lie (rows.SIZES)
    picked = ()  # operands of which nothing is read but a row's value in one column

    def __init__(self, op, dtypes, bwd):
        self.op, self.dtypes, self.bwd = op, dtypes, bwd
        self.dtype = DTYPE[dtypes[0]]
        self.words = names.dtype_words(dtypes)
        self.name = names.internal("", op.pattern, dtypes, bwd).strip("_")
        self.pattern = names.function(op.pattern, "{act}", dtypes, bwd)
        self.cpu_pattern = names.function(op.pattern, "{act}", dtypes, bwd, cpu=True)
        self.state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True)
        self.cpu_state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True, cpu=True)
        self.workspace = names.workspace(op.pattern, dtypes)
        self.cpu_workspace = names.workspace(op.pattern, dtypes, cpu=True)
        self.dropout = op.dropout
        self.acts = [a for a in op.activations if dtypes[0] in FLOAT_DTYPES or a.ints]
        self.has_act = op.has_act
        self._build()
        self.kinds = {s.kind for s in self.streams}
        self.has_channel = "channel" in self.kinds
        self.has_half = "half" in self.kinds
        self.has_row = "row" in self.kinds
        self.grid = self.has_channel or self.has_half or self.has_row
        self.sums = [s for s in self.outputs if s.role == "sum"]
        self.stores = [s for s in self.outputs if s.role == "out"]
        self.loads = [s for s in self.inputs if not s.is_row and s.reads != "never"]
        self.row_loads = [s for s in self.inputs if s.is_row and s.reads != "never"]
        self._schedule()
        if len(self.tensors) > MAX_TENSORS:
            problem = f"make {len(self.tensors)} tensors of {'the backward' if bwd else 'the forward'}: {', '.join(self.tensor_names)}"
            raise SpecError(op.file, f"op.{op.pattern}", "operands", problem, f"at most {MAX_TENSORS} are possible")

    # ---- what is computed ----------------------------------------------------------------------------------------

    def _build(self):
        op = self.op
        graph, env, outs = families.of(op).graph(op)
        dtype_of = {"T": self.dtype, "U": DTYPE[self.dtypes[-1]], "acc": self.dtype.acc}
        self.operands = [Stream(o.name, o.kind, dtype_of[o.dtype], "in", o.values) for o in op.operands]
        out_dtype = DTYPE[self.dtypes[-1]]
        if not self.bwd:
            self.inputs = self.operands
            self.outputs = [Stream(name, "elem", out_dtype, "out", (name,), exprs=[node]) for name, node in outs.items()]
        else:
            douts = {name: graph.var(f"d{name}") for name in outs}
            wanted = [o for o in op.operands if o.grad]
            grads = gradient(graph, {outs[n]: douts[n] for n in outs}, [env[v] for o in wanted for v in o.values])
            self.outputs = []
            for o in wanted:
                stream = next(s for s in self.operands if s.name == o.name)
                exprs = [grads[env[v]] if grads[env[v]] is not None else graph.const(0) for v in o.values]
                twin = next((s.name for s in self.outputs if s.exprs == exprs and s.kind == o.kind), "")
                self.outputs.append(Stream(f"d{o.name}", o.kind, stream.dtype, "sum" if stream.is_row else "out",
                                           tuple(f"d{v}" for v in o.values), same_as=twin, exprs=exprs, required=False))
            seeds = [Stream(f"d{name}", "elem", out_dtype, "in", (f"d{name}",)) for name in outs]
            self.inputs = self.operands + seeds
        self.graph = graph
        self.roots = [e for s in self.outputs for e in s.exprs]
        read = graph.variables(self.roots)
        plain = Graph()
        linear = substitute(graph, plain, self.roots, {}, act=(lambda x: x, lambda x, dy: dy))
        read_anyway = plain.variables(linear) if self.bwd else read
        for s in self.inputs:
            s.reads = "always" if read_anyway & set(s.parts) else "act" if read & set(s.parts) else "never"
        self.streams = self.inputs + self.outputs
        self.scalars = [s for s in op.scalars]
        self.keeps = KEEP in read

    @functools.cached_property
    def rows(self):
        """Row values the element loop reads: [(name, node)]. A node is a row operand, or a subexpression of row operands
        and scalars alone, which is computed once per row value instead of once per element."""
        row_names = {p for s in self.row_loads for p in s.parts}
        scalars = set(self.scalars)
        row_only = {}
        for i in self.graph.reachable(self.roots):
            node = self.graph.nodes[i]
            if node.op == "var":
                row_only[i] = node.value in row_names
            else:
                used = [a for a in node.args if self.graph.nodes[a].op != "const" and self.graph.nodes[a].value not in scalars]
                row_only[i] = bool(used) and all(row_only[a] for a in used) and node.op not in ("act", "act_bwd")
        frontier = []
        for i in self.graph.reachable(self.roots):
            if not row_only.get(i):
                frontier += [a for a in self.graph.nodes[i].args if row_only.get(a) and a not in frontier]
        frontier += [r for r in self.roots if row_only.get(r) and r not in frontier]
        found = []
        for i in sorted(frontier):
            node = self.graph.nodes[i]
            found.append((node.value if node.op == "var" else f"row{len(found)}", i))
        return found

    @property
    def act_flavour(self):
        """lp only where nothing is added to the activation's result before it is rounded."""
        if self.dtype.flavour != "lp":
            return self.dtype.flavour
        g, tainted = self.graph, set()
        for i in g.reachable(self.roots):
            node = g.nodes[i]
            dirty = [a for a in node.args if a in tainted]
            if node.op in ("act", "act_bwd"):
                tainted.add(i)
            if dirty and node.op not in ("mul", "neg", "where"):
                return "f32"
            if dirty:
                tainted.add(i)
        return "lp"

    # ---- how it is scheduled -------------------------------------------------------------------------------------

    def _schedule(self):
        sizes = [s.dtype.size for s in self.loads + self.stores]
        self.vec = 16 // max(sizes)
        # One vector a thread is as fast as any for tensors that come from DRAM; random bits and row values cost enough
        # set-up to share (bench/NOTES.md).
        self.unroll = 4 if self.keeps else 1 if not self.grid else 2 if len(self.row_loads) < 3 else 4

    # ---- emission ------------------------------------------------------------------------------------------------

    def _emit(self, target, env, fixed=None, roots=None):
        return emit(self.graph, roots if roots is not None else self.roots, target, env, fixed=fixed or {})

    @property
    def flavour(self):
        return "f32" if self.dtype.flavour == "lp" else self.dtype.flavour

    @functools.cached_property
    def cuda(self):
        """(lines, texts per output part) of the element loop, and of the row values before it."""
        act = "kfi_tag<act>()"
        cheap = CHEAP | (frozenset() if self.sums else {"quotient"}) if self.dtype.flavour == "lp" else frozenset()  # sums cancel
        target = Target("kfi_", self.flavour, False, cheap=cheap,
                        act=lambda x: f"kfi_act_{self.act_flavour}({act}, {x}, scalars)",
                        act_bwd=lambda x, dy: f"kfi_act_bwd_{self.act_flavour}({act}, {x}, {dy}, scalars)")
        env = {p: f"{p}_f[e]" for s in self.loads for p in s.parts} | {KEEP: "keep[e]", KEEP_SCALE: "keep_scale"}
        pick = "{}_f[e]" if self.sums else "kfi_at<mode>({}_f, e, at)"
        fixed = {node: pick.format(name) for name, node in self.rows}
        return self._emit(target, env, fixed, self.loop_roots)

    @functools.cached_property
    def cuda_rows(self):
        target = Target("kfi_", self.flavour, False, cheap=CHEAP if self.dtype.flavour == "lp" else frozenset())
        derived = [(n, i) for n, i in self.rows if self.graph.nodes[i].op != "var"]
        env = {p: f"{p}_f[e]" for s in self.row_loads for p in s.parts}
        lines, texts = self._emit(target, env, roots=[i for _, i in derived])
        return lines, [(n, t) for (n, _), t in zip(derived, texts)]

    def cpu_target(self, act):
        # C's cheap forms are less exact than CUDA's: the terms of a sum, which may cancel, take the exact ones.
        flavour = self.flavour if self.added else self.act_flavour
        extra = "".join(f", {s}" for s in act.scalars)
        return Target("kfi_cpu_", self.flavour, True,
                      act=lambda x: f"kfi_cpu_act_{act.name}_{flavour}({x}{extra})",
                      act_bwd=lambda x, dy: f"kfi_cpu_act_{act.name}_bwd_{flavour}({x}, {dy}{extra})")

    def cpu(self, act):
        """The tile loop for one activation."""
        target = self.cpu_target(act)
        graph, roots, rows = self.graph, self.roots, dict((i, n) for n, i in self.rows)
        if self.bwd and not bwd_reads_x(act):
            # This gradient does not read its argument, so that argument must not be loaded: its pointer may be NULL.
            graph = Graph()
            scalars = {s: graph.var(s) for s in act.scalars}
            copies = substitute(self.graph, graph, self.roots + list(rows), {}, act=(
                lambda x: act.build(graph, x, scalars), lambda x, dy: act.build_bwd(graph, x, dy, scalars)))
            roots, rows = copies[:len(roots)], dict(zip(copies[len(roots):], rows.values()))
        groups = self._groups(act)
        keep = f"kfi_cpu_keep(keep{'[u]' if groups else ''}[j], keep_from)"
        keep = keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})"
        env = {p: f"{p}_j" for s in self.loads for p in s.parts} | {KEEP: keep, KEEP_SCALE: "keep_scale"}
        lines, texts = emit(graph, roots, target, env, fixed={i: f"{n}_j" for i, n in rows.items()})
        printed = reads(graph, roots, rows)
        names_ = {rows[i] if i in rows else graph.nodes[i].value for i in printed if i in rows or graph.nodes[i].op == "var"}
        if any(graph.nodes[i].op in ("act", "act_bwd") for i in printed):
            names_ |= set(act.scalars)
        scalars = [(s, i) for i, s in enumerate(self.scalars + list(act.scalars)) if s in names_]
        results = list(zip([s for s in self.slots if s.role in ("store", "sum")], texts))
        return TileCode(lines, names_, scalars, results, groups, self._streams(act))

    def _weight(self, act):
        """The arithmetic of an element, in exponentials."""
        graph = Graph()
        x, dy, scalars = graph.var("x"), graph.var("dy"), {s: graph.var(s) for s in act.scalars}
        roots = [act.build_bwd(graph, x, dy, scalars) if self.bwd else act.build(graph, x, scalars)]
        return sum(TRANSCENDENTAL.get(g.nodes[i].op, 0) for g, r in ((graph, roots), (self.graph, self.roots)) for i in g.reachable(r))

    def _groups(self, act):
        """Whether C adds up several rows at a time in registers: where a sum's load and store are much of the work, not
        where a row's arithmetic would be written out several times, or f16's conversions, which want a loop of their own."""
        return bool(self.sums) and self.dtype.word != "f16" and self._weight(act) == 0

    def _streams(self, act):
        """Whether C may write results past the caches: not where the arithmetic takes longer than memory (bench/NOTES.md), as
        float64's always does, which calls libm."""
        work = self._weight(act) * (8 if self.dtype.compute == "f64" else 1) + self.keeps
        return work <= sum(s.dtype.size * len(s.parts) for s in self.stores) / 4

    @functools.cached_property
    def slots(self):
        """What the tile function finds behind its pointers, in order: loads, row values, results."""
        index = {s.name: i for i, s in enumerate(self.inputs + self.outputs)}
        found = [Slot("load", p, s.dtype, index[s.name], h, self) for s in self.loads for h, p in enumerate(s.parts)]
        found += [Slot("row", s.name, s.dtype, index[s.name], 0, self) for s in self.row_loads]
        found += [Slot("derived", n, DTYPE[self.dtype.compute], 0, 0, self) for n, i in self.rows if self.graph.nodes[i].op != "var"]
        found += [Slot("sum" if s.role == "sum" else "store", p, self.dtype.acc if s.role == "sum" else s.dtype, index[s.name], h, self)
                  for s in self.outputs for h, p in enumerate(s.parts)]
        for i, slot in enumerate(found):
            slot.index = i
        if len(found) > MAX_SLOTS:
            problem = f"make {len(found)} values of an element"
            raise SpecError(self.op.file, f"op.{self.op.pattern}", "operands", problem, f"at most {MAX_SLOTS} are possible")
        return found

    @property
    def derive_reads(self):
        return self.graph.variables([i for n, i in self.rows if self.graph.nodes[i].op != "var"])

    @property
    def derive_scalars(self):
        return [(s, i) for i, s in enumerate(self.scalars) if s in self.derive_reads]

    @functools.cached_property
    def cpu_rows(self):
        target = self.cpu_target(self.acts[0])
        derived = [(n, i) for n, i in self.rows if self.graph.nodes[i].op != "var"]
        env = {p: f"{p}_j" for s in self.row_loads for p in s.parts}
        lines, texts = self._emit(target, env, roots=[i for _, i in derived])
        return lines, [(n, t) for (n, _), t in zip(derived, texts)]

    def reads(self, stream, act):
        """Whether the backward of this activation reads the stream at all."""
        return stream.reads == "always" or (stream.reads == "act" and bwd_reads_x(act))

    # ---- what is launched ----------------------------------------------------------------------------------------

    @property
    def launchers(self):
        return [Launcher(self, act, state) for act in self.acts for state in ((False, True) if self.dropout else (False,))]

    @property
    def sizes(self):
        return ["outer", "channels", "inner"] if self.has_channel else ["rows", "cols"] if self.grid else ["n"]

    @property
    def scalar_ctype(self):
        return "double" if self.dtype.compute == "f64" else "float"

    @property
    def scalar_struct(self):
        return "kfi_scalars_f64" if self.dtype.compute == "f64" else "kfi_scalars_f32"

    @property
    def flops(self):
        return counts(self.graph, self.roots)

    # ---- what the CUDA templates print ---------------------------------------------------------------------------

    def pattern_text(self, state):
        return f'{state} ? "{self.state_pattern}" : "{self.pattern}"' if self.dropout else f'"{self.pattern}"'

    def cpu_pattern_text(self, state):
        return f'{state} ? "{self.cpu_state_pattern}" : "{self.cpu_pattern}"' if self.dropout else f'"{self.cpu_pattern}"'

    @property
    def tensor_arguments(self):
        return [Argument(f"const {s.ctype} *", s.name, "in") for s in self.inputs] + [
            Argument(f"{s.ctype} *", s.name, "out") for s in self.outputs]

    @property
    def workspace_arguments(self):
        return [Argument("void *", "workspace", "workspace"), Argument("size_t ", "workspace_bytes", "workspace")] if self.scratch else []

    @property
    def scratch(self):
        """Whether there is a workspace."""
        return bool(self.added)

    @property
    def added(self):
        """Gradients that the second stage adds up."""
        return self.sums

    @property
    def title(self):
        return self.op.brief + (", gradients" if self.bwd else "")

    @property
    def size(self):
        return max(s.dtype.size for s in self.loads + self.stores)

    @property
    def used_scalars(self):
        """The op's scalars that this direction reads."""
        read = self.graph.variables(self.roots)
        return [s for s in self.scalars if s in read]

    @property
    def results(self):
        return list(zip((p for s in self.outputs for p in s.parts), self.cuda[1], (s for s in self.outputs for _ in s.parts)))

    @property
    def factors(self):
        """{sum: the row value it is multiplied by after adding up}."""
        return {s.name: self._factor(s)[1] for s in self.sums if self._factor(s)}

    def _factor(self, stream):
        """A sum's product with a row value: (what is added up, the row value's name) or None. The factor is the same for
        every term, so it is taken out of the loop."""
        node = self.graph.nodes[stream.exprs[0]]
        names_ = {i: n for n, i in self.rows}
        if stream.role == "sum" and node.op == "mul":
            for term, factor in (node.args, node.args[::-1]):
                if factor in names_ and term not in names_:
                    return term, names_[factor]
        return None

    @property
    def loop_roots(self):
        """What the element loop computes: the results, sums without their factors."""
        return [(self._factor(s) or (e,))[0] for s in self.outputs for e in s.exprs]

    def packs(self, stream):
        """Two results at a time are converted to 2-byte storage by one instruction."""
        return self.dtype.compute == "f32" and stream.dtype.size == 2

    @property
    def keep_scale(self):
        return "rng.scale_f64" if self.dtype.compute == "f64" else "rng.scale"

    def store_guard(self, stream):
        if stream.required:
            return ""
        return f"if ({stream.name}{f' && {stream.name} != {stream.same_as}' if stream.same_as else ''}) "

    def address(self, stream, half, source=""):
        """Of a stream's part: its offset[, the registers], its step and what is left of it."""
        middle = f"{source}_v, " if source else ""
        if stream.kind != "half":
            return f"first, {middle}step, left"
        return f"half_first{' + g.cols' if half else ''}, {middle}2 * step, full ? vec : 2 * left"

    def load_values(self, stream):
        """The statement that loads a row operand's values."""
        size = stream.dtype.size
        if self.sums:
            return f"if (at.rows > 0) kfi_spread_values<{size}, vec, mode>({stream.name}_v, {stream.name}, span)"
        return f"kfi_load_values<{size}, vec, mode>({stream.name}_v, {stream.name}, at)"

    @property
    def each_blocks(self):
        """Blocks per SM to ask for: as many threads as fit, where 32 registers are enough; nothing where they are not."""
        parts = sum(len(s.parts) for s in self.loads + self.stores)
        small = self.dtype.compute != "f64" and not self.keeps and len(self.row_loads) < 2 and parts < 5
        return ", unroll == 1 ? KFI_BLOCKS_8 : KFI_BLOCKS_6" if small else ""

    @property
    def sum_ring(self):
        """Whether row values and sums leave no registers for the row that is on its way."""
        return len(self.rows) + len(self.sums) > 3

    @property
    def sum_ahead(self):
        """Rows on their way in registers: two where only one tensor is read."""
        if len(self.loads) == 1:
            return "2"
        return "kfi_act_bwd_reads(kfi_tag<act>()) ? 1 : 2" if self.asks_reads else "1"

    @property
    def sum_threads(self):
        """Threads of a sum kernel's block. Two blocks of 512 hide each other's start and end; one of 768 leaves registers for row
        values and sums; where each element is much work, one of 1,024 starts least often (kfi_make_split)."""
        return 768 if self.sum_ring else 1024 if self.keeps and self.has_act else 512

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.loads + self.row_loads]
        found += [f"{s.dtype.device} *{s.name}" for s in self.stores]
        found += ["kfi_grid g", "kfi_sums sums"] if self.sums else ["kfi_each each"] + (["kfi_rows g"] if self.grid else [])
        found += [f"{self.scalar_ctype} {s}" for s in self.used_scalars]
        return ", ".join(found + (["kfi_rng rng"] if self.keeps else []) + ([f"{self.scalar_struct} scalars"] if self.has_act else []))

    @property
    def kernel_arguments(self):
        found = [s.name for s in self.loads + self.row_loads + self.stores]
        found += (["g", "sums"] if self.sums else ["each"] + (["g"] if self.grid else [])) + self.used_scalars
        return ", ".join("&" + f for f in found + (["rng"] if self.keeps else []) + (["scalars"] if self.has_act else []))

    @property
    def run_parameters(self):
        found = [f"{a.ctype}{a.name}" for a in self.tensor_arguments] + [f"int64_t {s}" for s in self.sizes]
        found += [f"{self.scalar_ctype} {s}" for s in self.scalars]
        if self.dropout:
            found += [f"{self.scalar_ctype} p", "uint64_t seed", "uint64_t offset", "const uint64_t *state"]
        found += [f"{a.ctype}{a.name}" for a in self.workspace_arguments] + ["cudaStream_t stream"]
        return ", ".join(found + ([f"{self.scalar_struct} scalars = {{}}"] if self.has_act else []))

    @property
    def lone(self):
        """The launcher, where a kernel can have no other: it is the run function itself."""
        return self.launchers[0] if not self.op.has_act and not self.dropout else None

    @property
    def asks_reads(self):
        """Whether some input is read by the gradients of some activations only."""
        return any(s.reads == "act" for s in self.inputs)

    @property
    def cpu_run_parameters(self):
        found = ["kfi_tile_fn tile", "const char *word"] + (["int reads"] if self.asks_reads else [])
        found += [f"{a.ctype}{a.name}" for a in self.tensor_arguments] + [f"int64_t {s}" for s in self.sizes] + ["const void *scalars"]
        return ", ".join(found) + self.cpu_dropout_parameters + "".join(f", {a.ctype}{a.name}" for a in self.workspace_arguments)

    @property
    def cpu_dropout_parameters(self):
        return f", {self.scalar_ctype} p, uint64_t seed, uint64_t offset, const uint64_t *state, int from_state" if self.dropout else ""

    @property
    def size_parameters(self):
        return ", ".join(f"int64_t {s}" for s in self.sizes)

    @property
    def kernel_template(self):
        """templates/cuda/<it>.j2"""
        return f"{self.family}_kernel" if self.family != "map" else "map_sum" if self.sums else "map_each"

    @property
    def size_types(self):
        return ", ".join("int64_t" for _ in self.sizes)

    @property
    def shape(self):
        return "outer, channels, inner, true" if self.has_channel else "rows, 0, cols, false"

    @property
    def cpu_shape(self):
        return self.shape.replace("true", "1").replace("false", "0")

    @property
    def instances(self):
        """The kernels a launcher chooses from, in the order that core/map.cuh expects."""
        def kernel(*parameters):
            state = ("from_state",) if self.keeps else ()
            return f"KFI_ADDRESS(kfk_{self.name}<act, {', '.join(map(str, parameters + state))}>)"

        if self.sums:
            modes = ["KFI_ROWS"] + (["KFI_PLANES"] if self.has_channel else [])
            return [kernel(vec, mode) for mode in modes for vec in (self.vec, 1)]
        shapes = [(self.vec, self.unroll) if self.unroll > 1 else None, (self.vec, 1), (1, 1)]
        if not self.grid:
            return [kernel(*s) if s else "nullptr" for s in shapes]
        # Odd rows need vectors; what cannot have them is the same as rows of single elements.
        modes = [("KFI_ROWS", shapes)] + ([] if self.has_half else [("KFI_ODD_ROWS", shapes[:2] + [None])])
        modes += [("KFI_PLANES", shapes)] if self.has_channel else []
        return [kernel(*s, mode) if s else "nullptr" for mode, of_mode in modes for s in of_mode]

    @property
    def sum_kernels(self):
        codes = f"KF_{self.dtype.acc.word.upper()}, KF_{self.added[0].dtype.word.upper()}"
        return ", ".join(f"KFI_ADDRESS(kfk_sum_{what}<{codes}>)" for what in ["partials"] + (["planes"] if self.has_channel else []))

    @property
    def tensors(self):
        """Every tensor argument as (name, bytes of an element, kind, use, twin). Uses: in; act, read by the gradients of some
        activations; unread; state; out; optional, an output that may be NULL. twin: the earlier tensor, counted from 1, whose place an output may
        share: an output that is proven equal, or the input that it is the next value of."""
        index, found = {}, []
        for s in self.inputs + self.outputs:
            use = {"act": "act", "never": "unread"}.get(s.reads, "in") if s.role == "in" else "out" if s.required else "optional"
            kind = s.kind if s.kind in ("elem", "half") else "row"
            found.append((s.name, s.dtype.size, kind, use, index[s.same_as] + 1 if s.same_as else 0))
            index[s.name] = len(index)
        return found + self.state_tensors

    @property
    def state_tensors(self):
        return [("state", 8, "pair", "state", 0)] if self.dropout else []

    @property
    def tensor_names(self):
        return [t[0] for t in self.tensors]

    def tensor_codes(self, reads):
        """The tensors as core/check.h reads them: a literal, chosen by what the call asks for. reads: whether the activation's
        gradient reads its input."""
        # As core/check.h has them, and the flags.
        kinds = {"elem": 0, "half": 1, "row": 2, "channel": 2, "pair": 3, "per_row": 4, "per_plane": 5, "per_query": 5, "per_group": 5,
                 "per_channel": 5, "shared": 6, "group": 7}
        out, nullable, unread = 8, 16, 32

        def codes(reads, from_state):
            uses = {"in": 0, "act": 0 if reads else nullable | unread, "unread": nullable | unread, "state": 0 if from_state else nullable,
                    "absent": nullable, "act_absent": nullable | (0 if reads else unread), "out": out, "optional": out | nullable}
            def digit(n):
                return chr(ord("0") + n)

            return '"' + "".join(f"{size}{digit(kinds[kind] | uses[use])}{digit(twin)}" for _, size, kind, use, twin in self.tensors) + '"'

        def chosen(name, asked, of):
            return f"{name} ? {of(True)} : {of(False)}" if asked else of(True)

        return chosen(reads, self.asks_reads, lambda r: chosen("from_state", self.dropout, lambda s: codes(r, s)))

    @property
    def contract(self):
        return contract.lines(self)


FAMILIES = {"map": Kernel}  # and those that register themselves: rows.py


def dtype_tuples(op, dtypes):
    if op.types == "pairs":
        return [(a, b) for a in DTYPES for b in DTYPES if a != b and a in dtypes and b in dtypes]
    found = [(d,) for d in DTYPES if d in dtypes and (d in FLOAT_DTYPES or (op.ints and d in INT_DTYPES))]
    if op.types == "weights" and "f32" in dtypes:
        found += [(d, "f32") for d in ("f16", "bf16") if d in dtypes]
    return found


def kernels(op, dtypes=DTYPES):
    """The kernels of one op. A cast, integers, and ops of which no operand has a gradient have no backward."""
    found = []
    for ds in dtype_tuples(op, dtypes):
        for bwd in (False, True):
            if bwd and (op.types == "pairs" or ds[0] in INT_DTYPES or not any(o.grad for o in op.operands)):
                continue
            kernel = FAMILIES[op.family](op, ds, bwd)
            if kernel.acts:
                found.append(kernel)
    return found


@dataclass
class TileCode:
    lines: list
    reads: set  # the names of the slots that are read
    scalars: list  # (name, index) of those that are read
    results: list  # (slot, text)
    groups: bool  # several rows at a time
    streams: bool  # results may go to memory past the caches


MAX_SLOTS = 16  # KFI_SLOTS
MAX_TENSORS = 16  # KFI_OPERANDS
SLOT_KINDS = {"load": "KFI_SLOT_LOAD", "store": "KFI_SLOT_STORE", "row": "KFI_SLOT_ROW", "derived": "KFI_SLOT_DERIVED", "sum": "KFI_SLOT_SUM"}


@dataclass
class Slot:
    """One pointer of a CPU tile function."""

    role: str
    name: str
    dtype: Dtype
    operand: int
    half: int
    kernel: Kernel
    index: int = 0

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def compute_ctype(self):
        return {"kf_i32": "int32_t", "kf_i64": "int64_t"}.get(self.dtype.compute_ctype, self.dtype.compute_ctype)

    @property
    def const(self):
        return "const " if self.role in ("load", "row", "derived") else ""

    def at(self, group):
        """The slot's element: of one tile, or of tile u of a group, in which row values and sums are those of tile 0."""
        return f"{self.name}[j + u * {self.name}_n]" if group and self.role == "load" else f"{self.name}[j]"

    @property
    def staged(self):
        """Converted a tile at a time, before and after the loop: f16 always; bf16, two instructions in, where the loop is long."""
        return self.kernel.dtype.compute == "f32" and (self.dtype.word == "f16" or (self.dtype.word == "bf16" and self.kernel.has_act))

    def load(self, group=False):
        if self.staged and not group:
            return f"{self.name}_f[j]"
        return f"kfi_cpu_load_{self.dtype.word}({self.at(group)})" if self.dtype.size == 2 else self.at(group)

    def store(self, text, group=False):
        if self.role == "sum":
            return f"{self.name}_s += {text}" if group else f"{self.at(group)} += {text}"
        if self.staged and not group:
            return f"{self.name}_f[j] = {text}"
        if self.dtype.word != self.kernel.dtype.compute:
            text = f"kfi_cpu_cast_{self.kernel.dtype.compute}_{self.dtype.word}({text})"
        target = f"{self.name}_to[j + u * {self.name}_to_n]" if group else f"{self.name}_to[j]"
        return f"{target} = {text}"

    @property
    def row(self):
        return f"{{{SLOT_KINDS[self.role]}, {self.operand}, {self.half}, {self.dtype.size}}}"


import kfgen.reduce  # noqa: E402, F401 (these register their families, and need what stands above)
import kfgen.rows  # noqa: E402, F401
