# SPDX-License-Identifier: Apache-2.0
"""Kernels of ops over rows."""

import functools
import re
from collections import Counter
from dataclasses import dataclass, replace

from kfgen import families, model
from kfgen.activation import bwd_reads_x
from kfgen.derive import gradients, has_queries
from kfgen.dtypes import DTYPE
from kfgen.emit import Target
from kfgen.entries import SpecError, updated
from kfgen.expr import COLUMN, COUNT, ELEM, KEEP, KEEP_SCALE, PER_COUNT, QUERIES, QUERY, TRANSCENDENTAL, stages
from kfgen.model import CHEAP, Kernel, Stream
from kfgen.passes import copy, inlined, picks, program, stored

PER_ROW = ("per_row", "per_plane", "per_query", "per_group", "per_channel")  # kinds of what is one per row
# How rows lie, in the order of core/check.h, and the sizes of a call: planes are a channel's of a batch; a row of heads is a query's;
# one of groups is a group's, in `length` pieces of channels * inner elements; one of channels a channel's of all batches, in `outer` pieces.
SIZES = {"rows": ["rows", "cols"], "planes": ["outer", "channels", "inner"], "heads": ["batch", "heads", "queries", "keys"],
         "groups": ["outer", "length", "groups", "channels", "inner"], "channels": ["outer", "channels", "inner"]}
EACH = dict(zip(SIZES, PER_ROW))  # the kind of what is one per row
LAYOUT_OF = {"channel": "planes", "group": "groups"}  # that an operand's kind asks for
SUMMED = ("row", "channel", "group")  # kinds whose gradients are added up
MAX_REDUCTIONS = 16  # of a pass: kfi_line_reduce is given an int, 2 bits each


@dataclass
class Pick:
    """A row's value in the column that an operand names."""

    source: Stream
    column: Stream

    @property
    def name(self):
        return f"{self.source.name}_at_{self.column.name}"


@functools.lru_cache(4096)
def words(text):
    """The names in a function's text, found once: dozens are asked for."""
    return frozenset(re.findall(r"\w+", text))


class Sharing:
    """The functions of a kernel's passes in C. What several activations have word for word is written once, under the name of the
    kernel if the first activation has it, else of the first one that has."""

    def __init__(self, kernel, extends):
        self.kernel, self.extends, self.seen, self.name, self.passes = kernel, extends, {}, None, []

    def tile(self, role, act, macro, *arguments):
        """The text of a function that was not there yet, else "". `name` is then its name."""
        text = macro("@", *arguments)
        if (role, text) in self.seen:
            self.name = self.seen[role, text]
            return ""
        first = not self.extends and not any(known == role for known, _ in self.seen)
        self.name = self.seen[role, text] = f"kfi_{role}_{self.kernel}" + ("" if first else f"_{act.name}")
        return text.replace("@", self.name)

    def row(self, *arguments):
        """The same of an activation's next pass over a row."""
        text = self.tile(*arguments)
        self.passes.append(self.name)
        return text


class RowKernel(Kernel):
    family = "row"
    pieces = False  # whether a row is not all in one place

    # How a launch cuts its rows, a parameter of its kernels.
    @property
    def geometry(self):
        return "kfi_groups" if self.pieces else "kfi_line"

    @property
    def geometry_name(self):
        return "kfi_g" if self.pieces else "g"


    def _build(self):
        self._cpu = {}  # its passes in C, by activation
        op = self.op
        graph, env, outs = families.of(op).graph(op)
        dtype_of = {"T": self.dtype, "U": DTYPE[self.dtypes[-1]], "acc": self.dtype.acc, "i64": DTYPE["i64"], "u8": DTYPE["u8"]}
        saved = {name: env[name] for name in op.saved}
        asked = [op.layout] if op.layout else [LAYOUT_OF[o.kind] for o in op.operands if o.kind in LAYOUT_OF]
        self.layout = next(iter(asked), "heads" if has_queries(op, graph, env, outs) else "rows")
        per_row = EACH[self.layout]
        self.operands = [Stream(o.name, per_row if o.kind == "per_row" else o.kind, dtype_of[o.dtype], "in", o.values, absent=o.absent)
                         for o in op.operands]

        def result(name, node, kind="", dtype=None, **more):
            kind = kind or ("elem" if graph.level(node) == ELEM else per_row)
            return Stream(name, kind, dtype or (self.dtype if kind == "elem" else self.dtype.acc), "out", (name,), exprs=[node], **more)

        if not self.bwd:
            self.inputs = self.operands
            self.outputs = [result(n, node) for n, node in outs.items()]
            self.outputs += [result(n, node, per_row, required=False) for n, node in saved.items()]
            self.outputs += [result(updated(n), env[updated(n)], per_row, required=False, place_of=n) for n in op.updates]
            replaced = {}
        else:
            grads = gradients(op, graph, env, outs)
            self.outputs = []
            for o, stream in zip(op.operands, self.operands):
                if o.grad:
                    node = grads[o.name] if grads[o.name] is not None else graph.const(0)
                    twin = next((s.name for s in self.outputs if s.exprs == [node] and s.kind == stream.kind), "")
                    self.outputs.append(Stream(f"d{o.name}", stream.kind, stream.dtype, "sum" if o.kind in SUMMED else "out",
                                               (f"d{o.name}",), same_as=twin, exprs=[node], required=False))
            replaced = {node: name for name, node in saved.items()} | stored(graph)
        self.graph, self.roots = copy(graph, [s.exprs[0] for s in self.outputs], replaced)
        for s, root in zip(self.outputs, self.roots):
            s.exprs = [root]
        read = self.graph.variables(self.roots)
        if self.bwd:
            again = [replace(result(n, node), role="in", exprs=[]) for n, node in outs.items() if n in read]
            kept = [Stream(n, per_row, self.dtype.acc, "in", (n,)) for n in saved]
            seeds = [replace(result(f"d{n}", node), role="in", exprs=[]) for n, node in outs.items()]
            self.inputs = self.operands + again + kept + seeds
        linear, roots = copy(self.graph, self.roots, {}, act=(lambda g, x: x, lambda g, x, dy: dy))
        anyway = linear.variables(roots) if self.bwd else read
        for s in self.inputs:
            s.reads = "always" if s.name in anyway else "act" if s.name in read else "never"
        self.streams = self.inputs + self.outputs
        self.scalars = [s for s in op.scalars if s in read or not self.bwd]
        self.keeps = KEEP in read
        named = {s.name: s for s in self.inputs}
        picked = picks(self.graph, self.roots)
        self.picks = [Pick(*(named[self.graph.nodes[a].value] for a in self.graph.nodes[i].args)) for i in picked]
        self.along = {graph.nodes[i].value for graph, roots in [copy(self.graph, self.roots, picked)] for i in graph.reachable(roots)}

    def _schedule(self):
        self.loads = [s for s in self.inputs if s.kind in ("elem", "shared") and s.name in self.along]
        self.shared = [s for s in self.loads if s.kind == "shared"]
        self.row_loads = [s for s in self.inputs if s.kind == "row" and s.name in self.along]
        self.group_loads = [s for s in self.inputs if s.kind == "group" and s.name in self.along]
        self.pieces = self.layout in ("groups", "channels")
        self.picked = [s for s in self.inputs if s.kind in ("elem", "row") and s.reads != "never" and s.name not in self.along]
        self.values = [s for s in self.inputs if s.kind in (*PER_ROW, "channel") and s.reads != "never"]
        # A gradient that is the same for a plane and added up over the batches: a value of each plane, and the second stage.
        self.plane_sums = [s for s in self.sums if s.kind == "channel"]
        # One that is added up within a row, over a channel's elements: a value of each channel and slice of it, and the second stage.
        self.group_sums = [s for s in self.sums if s.kind == "group"]
        self.sums = [s for s in self.sums if s.kind == "row"]
        self.stores = [s for s in self.outputs if s.kind == "elem"]
        self.results_of_rows = [s for s in self.outputs if s.kind in PER_ROW]
        self.vec = 16 // max((s.dtype.size for s in self.loads + self.stores), default=self.dtype.size)
        reductions = stages(self.graph, self.roots)
        self.gathers = not reductions and not self.loads + self.row_loads + self.stores  # nothing goes along a row: a thread has it
        if self.gathers:
            self.vec = 1 << 20
        if not reductions and self.stores and any(p.source.kind == "elem" for p in self.picks):
            problem = "stores elements and picks one of a tensor that they may overwrite, with no reduction between"
            raise SpecError(self.op.file, f"op.{self.op.pattern}", "expr", problem, "make two ops of it")
        if self.group_sums and not reductions:  # which all threads of a row wait for: results may be stored in place of what others still read
            problem = "has a gradient for a \"group\" and a backward that reduces nothing over the row"
            raise SpecError(self.op.file, f"op.{self.op.pattern}", "expr", problem, "add grad = false to it, or make its kind elem")
        for s in self.group_sums:
            if stages(self.graph, s.exprs):
                problem = f"the gradient for `{s.name[1:]}` needs a sum over the row, for which it would wait"
                raise SpecError(self.op.file, f"op.{self.op.pattern}", "expr", problem, "save that sum in the forward")
        for count in Counter(reductions.values()).values():
            if count > MAX_REDUCTIONS:
                problem = f"makes {count} reductions in one pass over the row of {'the backward' if self.bwd else 'the forward'}"
                fix = f"at most {MAX_REDUCTIONS} are possible: make two ops of it"
                raise SpecError(self.op.file, f"op.{self.op.pattern}", "expr", problem, fix)

    @property
    def sizes(self):
        return SIZES[self.layout]

    @property
    def layout_code(self):
        """KFI_LAYOUT_… of core/check.h."""
        return list(SIZES).index(self.layout)

    @property
    def added(self):
        return self.sums + self.plane_sums + self.group_sums

    @property
    def sum_kernels(self):
        return f"KFI_ADDRESS(kfk_sum_partials<KF_{self.dtype.acc.word.upper()}, KF_{self.added[0].dtype.word.upper()}>)"

    @property
    def tensors(self):
        index, found = {}, []
        for s in self.inputs + self.outputs:
            use = {"act": "act", "never": "unread"}.get(s.reads, "in") if s.role == "in" else "out" if s.required else "optional"
            if s.absent is not None and use in ("in", "act"):
                use = {"in": "absent", "act": "act_absent"}[use]
            twin = s.same_as or s.place_of
            found.append((s.name, s.dtype.size, s.kind, use, index[twin] + 1 if twin else 0))
            index[s.name] = len(index)
        return found + self.state_tensors

    # ---- CUDA --------------------------------------------------------------------------------------------------------

    @property
    def cuda_target(self):
        act = "kfi_tag<act>()"
        return Target("kfi_", self.flavour, False, cheap=CHEAP | {"exp"} if self.dtype.flavour == "lp" else frozenset(),
                      act=lambda x: f"kfi_act_{self.act_flavour}({act}, {x}, scalars)",
                      act_bwd=lambda x, dy: f"kfi_act_bwd_{self.act_flavour}({act}, {x}, {dy}, scalars)",
                      stored=(lambda x: f"kfi_stored_{self.dtype.word}({x})") if self.dtype.size == 2 else None)

    @property
    def sources(self):
        """Inputs that have a value for each element of a row."""
        return self.loads + self.row_loads + self.group_loads

    @functools.cached_property
    def cuda(self):
        env = {s.name: f"{s.name}_f[e]" for s in self.sources} | {s.name: f"{s.name}_i[0]" for s in self.values + self.picks}
        env |= {COLUMN: "(column + e)", KEEP: "keep[e]", KEEP_SCALE: "keep_scale"}
        graph, roots = copy(self.graph, self.roots, picks(self.graph, self.roots))
        again = {name: i for i, name in stored(graph).items()}  # as others read it: once more rounded it is the same
        return self.program(graph, {s.name: again.get(s.name, r) for s, r in zip(self.outputs, roots)}, self.cuda_target, env,
                            [s.name for s in self.sums], keep="" if self.forgets else "held ? name_h[held ? s : 0][e] : {}")

    def program(self, graph, roots, target, env, *more, **options):
        """What is added up over a channel's elements of a row is a program of its own."""
        apart = {s.name: roots.pop(s.name) for s in self.group_sums}
        found = program(graph, roots, target, env, *more, **options)
        found.groups = program(graph, apart, target, env) if apart else None
        return found

    def of_pass(self, streams, names):
        return [s for s in streams if s.name in names]

    def conditions(self, stream):
        """Under which the stream is there to be read."""
        found = ["kfi_act_bwd_reads(kfi_tag<act>())"] if stream.reads == "act" else []
        return found + ([stream.name] if stream.absent is not None else [])

    def guard(self, stream):
        found = self.conditions(stream)
        return f"if ({' && '.join(found)}) " if found else ""

    @property
    def counts(self):
        """What the expressions read of a call's sizes: [(name, what comes before the size as a T, the size)]."""
        read = self.graph.variables(self.roots)
        return [(name, form, of) for name, form, of in ((COUNT, "", "cols"), (PER_COUNT, "1 / ", "cols"), (QUERIES, "", "queries")) if name in read]

    @property
    def reads_query(self):
        return QUERY in self.graph.variables(self.roots)

    @property
    def slots(self):
        """Reductions of a row: each has its own places in shared memory."""
        return sum(len(p.reductions) for p in self.cuda.passes)

    @property
    def held(self):
        """The ways to hold a row in registers, for ever longer rows: (vectors of a thread, threads of a block that a row may have,
        threads at most where blocks are as many as a cluster may have, threads at most where there are no clusters: 0, not this
        way). The last one is that of blocks that walk down the rows, a cluster of them at each where a block is not enough."""
        if self.gathers:
            return [(1, 32, 32, 32), (1, 32, 32, 0)]
        size, loads = 16 // self.vec, len(self.loads)
        if self.sums:  # 16 values of each tensor, and as many sums
            return [(2 if size == 2 or loads > 2 else 4, 512, 512, 256)]
        vectors = 4 if loads > 2 else 16 if size > 2 and loads == 1 and not self.row_loads + self.group_loads else 8
        most = min(512, (208 << 10) // self._ring(vectors) // 64 * 64)  # of shared memory
        walk = (vectors, min(256, most), most, 0)
        if self.group_sums:  # beside the row's values those of its channels, and sums
            return [(4, 256, 256, 256), walk]
        if loads > 2 and self.transcendental:  # values and what is computed of them: 128 registers
            return [(4, 256, 256, 256), walk]
        if loads > 1:
            most = 384 if size == 2 else 512  # two blocks an SM, whose threads have 80 or 64 registers
            return [(4, most, most, most), walk]
        if self.transcendental:  # what is computed of a value is held as well: 32 of them
            return [(4, 256, 256, 1024), walk] if size == 2 else [(4, 512, 512, 512), (8, 512, 512, 1024), walk]
        full = 256 if size == 2 else 512
        # Few threads, few shuffles; with weights so few vectors that theirs find room beside them.
        few = full if self.row_loads else 32
        return [(4, few, few, few), (8, full, full, 1024), walk]

    def _kept_vectors(self, vectors):
        """16-byte parts of row operands that a thread of a block that walks keeps in shared memory."""
        return 0 if self.sums else sum(vectors * self.parts(s) for s in self.row_loads)

    def parts(self, stream):
        """16-byte parts of a vector."""
        return self.vec * stream.dtype.size // 16

    def kept_at(self, stream):
        """The first such part of a row operand."""
        return sum(self.held[-1][0] * self.parts(s) for s in self.row_loads[:self.row_loads.index(stream)])

    @property
    def forgets(self):
        """Whether 2-byte values are converted again in each pass, since the registers would not hold twice as many bytes."""
        return not self.sums and not self.transcendental and not stored(self.graph)

    def _depth(self, vectors):
        return max(1, 8 // (len(self.loads) * vectors)) if self.loads else 1

    @property
    def depth(self):
        """Rows on their way in shared memory, where blocks walk down the rows."""
        return self._depth(self.held[-1][0])

    @property
    def posted(self):
        """Values of a row that travel with it: those of a size that such a copy may have, the larger ones first."""
        there = [s for s in self.values if s.kind != "channel" and not self.gathers]
        return sorted((s for s in there if s.dtype.size >= 4), key=lambda s: -s.dtype.size)

    def posted_at(self, stream):
        """Its byte among those of a row."""
        return sum(s.dtype.size for s in self.posted[:self.posted.index(stream)])

    @property
    def post(self):
        """Bytes of a row's values."""
        largest = max((s.dtype.size for s in self.posted), default=1)
        return -(-sum(s.dtype.size for s in self.posted) // largest) * largest

    def _posts_at(self, vectors):
        return 16 * (self._depth(vectors) * len(self.loads) * vectors + self._kept_vectors(vectors))

    @property
    def posts_at(self):
        """The first of them, in bytes of a thread's shared memory: behind the rows on their way and the row operands."""
        return self._posts_at(self.held[-1][0])

    def _ring(self, vectors):
        places = -(-(self._posts_at(vectors) + self._depth(vectors) * self.post) // 16)
        return max((places | 1) * 16, vectors * self.vec * self.dtype.acc.size if self.sums else 0)

    @property
    def ring(self):
        """Bytes of shared memory a thread; at the end the sums of a gradient. Few: the L1 cache, through which rows come, has the rest."""
        return self._ring(self.held[-1][0])

    @property
    def fixed(self):
        """Bytes of shared memory a block: for each reduction a place for each warp and for each block of a cluster (8), for
        each pass a post, all that twice, since the next row comes before all have read them."""
        size = 2 * (self.slots * (32 + 8) * self.dtype.acc.size + len(self.cuda.passes) * 8)
        return -(-size // 16) * 16

    @property
    def late_sums(self):
        """{gradient that is summed over the rows and needs every pass: its text}."""
        return {s.name: self.cuda.texts[s.name] for s in self.sums if s.name in self.cuda.texts}

    @property
    def last_pass(self):
        """Whether a row's elements are gone over once more when all is reduced."""
        return bool(self.stores or self.late_sums)

    @property
    def transcendental(self):
        return any(self.graph.nodes[i].op in TRANSCENDENTAL for i in self.graph.reachable(self.roots))

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.sources + self.values + self.picked]
        found += [f"{s.dtype.device} *{s.name}" for s in self.stores + self.results_of_rows]
        found += [f"{self.geometry} {self.geometry_name}"] + (["kfi_sums sums"] if self.added else [])
        found += [f"{self.scalar_ctype} {s}" for s in self.used_scalars]
        return ", ".join(found + (["kfi_rng rng"] if self.keeps else []) + ([f"{self.scalar_struct} scalars"] if self.has_act else []))

    @property
    def kernel_arguments(self):
        found = [s.name for s in self.sources + self.values + self.picked + self.stores + self.results_of_rows]
        found += [self.geometry_name] + (["sums"] if self.added else []) + self.used_scalars
        return ", ".join("&" + f for f in found + (["rng"] if self.keeps else []) + (["scalars"] if self.has_act else []))

    @property
    def instances(self):
        """The kernels a launcher chooses from, in the order that core/row.cuh expects."""
        held = [vectors for vectors, *_ in self.held]
        found = [(v, 0) for v in held[:-1]] + ([] if self.gathers else [(held[-1], 1), (0, int(bool(self.sums)))])
        state = ", from_state" if self.keeps else ""
        return [f"KFI_ADDRESS(kfk_{self.name}<act, {held}, {2 * walk + whole}{state}>)" for held, walk in found for whole in (1, 0)]

    @property
    def bounds(self):
        """Threads of a block at most: of a row, or of several rows' blocks."""
        least = 256 if self.sums else 128
        found = [f"held == {vectors} ? {max(alone, least)} : " for vectors, _, _, alone in self.held[:-1]]
        # Two tensors, or weights all at once: a few registers too many would leave room for one block of 512 threads alone.
        most = 2 if len(self.loads) > 1 else 1024 // self.held[0][3] if self.row_loads else 0
        blocks = f", way == 1 && held{' == 4' if len(self.loads) == 1 else ''} ? {most} : 1" if most and not self.sums and self.dtype.size < 8 else ""
        return f"way > 1 ? {max(self.held[-1][2], 512)} : " + "".join(found) + ("512" if self.group_sums else "1024") + blocks

    @property
    def held_table(self):
        """In a word each, as core/row.cuh has it: such a table is compiled for every launcher there is."""
        return ", ".join("0x" + "".join(f"{n:02x}" for n in (v, *(t // 32 for t in threads))) for v, *threads in self.held)

    # ---- C -----------------------------------------------------------------------------------------------------------

    def cpu(self, act):
        """The passes for one activation."""
        if act.name not in self._cpu:
            self._cpu[act.name] = self._cpu_program(act)
        return self._cpu[act.name]

    def _cpu_program(self, act):
        target = self.cpu_target(act)
        if self.dtype.size == 2:
            target = replace(target, stored=lambda x: f"kfi_cpu_load_{self.dtype.word}(kfi_cpu_cast_{self.dtype.compute}_{self.dtype.word}({x}))")
        graph, roots = self.graph, self.roots
        if self.bwd and not bwd_reads_x(act):  # the argument is not computed then: what it is made of may be NULL
            graph, roots = inlined(graph, roots, act)
        graph, roots = copy(graph, roots, picks(graph, roots))
        env = {s.name: f"{s.name}_j" for s in self.sources} | {s.name: f"{s.name}_i" for s in self.values + self.picks}
        keep = "kfi_cpu_keep(keep[j], keep_from)"
        env |= {COLUMN: f"(column + ({self.compute})j)", KEEP_SCALE: "keep_scale",
                KEEP: keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})"}
        # Twice the code: for the few ops that have no activations, whose exp() is most of their time.
        hold = "" if self.has_act else "kfi_held ? name_h[j] : {}"
        return self.program(graph, {s.name: r for s, r in zip(self.outputs, roots)}, target, env, keep=hold)

    def sharing(self, extends):
        """What finds the functions that activations have in common. extends: beside those of an installed header."""
        return Sharing(self.name, extends)

    @property
    def frame_sources(self):
        """Operands that passes read."""
        return self.sources + self.picked

    @property
    def frame_values(self):
        """Values of a row that the walk works out."""
        found = [f"{s.name}_i" for s in self.values + self.picks] + (["query"] if self.reads_query else [])
        return found + [name for name, _, _ in self.counts]

    @property
    def _frame_plans(self):
        """Of all activations, whichever are selected: a user's activation has the frame that is installed."""
        return [self.cpu(a) for a in self.op.activations if a.builtin or not self.op.builtin]

    @functools.cached_property
    def most_names(self):
        return max(len(plan.names) for plan in self._frame_plans)

    @property
    def kept_names(self):
        return list(dict.fromkeys(n for plan in self._frame_plans for n in plan.kept))

    @staticmethod
    def mentions(text, name):
        return name in words(text)

    def assigned(self, plan, index):
        """The names that pass `index` sets, or the last one (None)."""
        found = [] if index is None else [r.name for r in plan.passes[index].reductions] + [n for n, _ in plan.passes[index].after.values]
        return ([n for n, _ in plan.before.values] if index == 0 or not plan.passes else []) + found

    def strip_parameters(self, plan, act, names_, body):
        """{name: declaration} of what the text of a function over a tile mentions. names_: of the row's computed values."""
        T, acc = self.compute, self.dtype.acc.ctype
        found = {"left": "const int left", "column": f"const {T} column", "keep": "const uint16_t *keep"}
        found |= {s.name: f"const {s.ctype} *{s.name}" for s in self.sources}
        found |= {f"{r.name}_a": f"{T} *{r.name}_a" for p in plan.passes for r in p.reductions}
        found |= {s.name: f"{s.ctype} *{s.name}" for s in self.stores} | {s.name: f"{acc} *{s.name}" for s in self.sums + self.group_sums}
        found |= {"kfi_held": "const int kfi_held"} | {f"{n}_h": f"{T} *{n}_h" for n in plan.kept}
        values = [*self.frame_values, *names_, *(s for s, _ in self.cpu_scalars(act, plan))]
        found |= {n: f"const {T} {n}" for n in values} | {"keep_from": "const uint32_t keep_from", "keep_scale": f"const {T} keep_scale"}
        return {n: text for n, text in found.items() if self.mentions(body, n)}

    def strip_arguments(self, parameters, which):
        """Of the call for the tile at column i. which: "whole", the "last" one, which has been copied, or "either"."""
        tile = {"whole": self.cpu_tile, "last": lambda s: f"{s.name}_t", "either": self.cpu_strip}[which]
        found = {"left": "KFI_STRIP" if which == "whole" else "left", "column": f"({self.compute})i",
                 "keep": "kfi_strip_words(words, row * cols + i)"}
        to = "t" if which == "last" else "to"
        found |= {s.name: tile(s) for s in self.sources} | {s.name: f"{s.name}_{to}" for s in self.stores + self.sums}
        found |= {s.name: f"{s.name}_t" for s in self.group_sums}
        found |= {n: f"{n[:-2]}_k + (kfi_held ? i : 0)" for n in parameters if n.endswith("_h")}
        return ", ".join(found.get(n, n) for n in parameters)

    def frame_locals(self, plan, act, names_, body, assigned):
        """What the text of a function over a row mentions, taken from its frame."""
        T, acc = self.compute, self.dtype.acc.ctype
        found = {"m": "const kfi_cpu_map *m = kfi_f->m;", "cols": "const kf_i64 cols = kfi_f->m->cols;"}
        found |= {n: f"const kf_i64 {n} = kfi_f->{n};" for n in ("row", "channel", "kfi_start", "kfi_shared")}
        found |= {s.name: f"const {s.ctype} *{s.name} = kfi_f->{s.name};" for s in self.frame_sources}
        found |= {s.name: f"{s.ctype} *{s.name} = kfi_f->{s.name};" for s in self.stores + self.results_of_rows}
        found |= {f"{s.name}_t": f"{s.ctype} *{s.name}_t = kfi_f->{s.name}_t;" for s in self.sources + self.stores}
        found |= {f"{s.name}_past": f"const int {s.name}_past = kfi_f->{s.name}_past;" for s in self.stores}
        found |= {f"{s.name}_{x}": f"{acc} *{s.name}_{x} = kfi_f->{s.name}_{x};" for s in self.added for x in ("p", "t")
                  if x == "t" or s not in self.group_sums}
        found |= {f"{s.name}_n": f"kfi_channel *{s.name}_n = &kfi_f->{s.name}_n;" for s in self.sources + self.group_sums}
        found |= {f"{s.name}_g": f"kfi_gathered *{s.name}_g = &kfi_f->{s.name}_g;" for s in self.loads}
        found |= {f"{n}_k": f"{T} *{n}_k = kfi_f->{n}_k;" for n in plan.kept} | {"words": "kfi_words *words = &kfi_f->words;"}
        found |= {n: f"const {T} {n} = kfi_f->{n};" for n in [*self.frame_values, "keep_scale"]}
        found |= {"keep_from": "const uint32_t keep_from = kfi_f->keep_from;"}
        found |= {s: f"const {T} {s} = ((const {T} *)kfi_f->m->scalars)[{i}];" for s, i in self.cpu_scalars(act, plan)}
        found |= {n: f"{T} {n} = 0;" if n in assigned else f"const {T} {n} = kfi_f->kfi_names[{i}];" for i, n in enumerate(names_)}
        assert len(names_) <= self.most_names, f"{self.name}: {act.name} computes {len(names_)} values of a row, the others {self.most_names}"
        return [text for n, text in found.items() if n in assigned or self.mentions(body, n)]

    def cpu_reads(self, found):
        return set().union(found.reads, *(p.reads for p in found.passes), found.groups.reads if found.groups else ())

    def index(self, stream):
        return self.streams.index(stream)

    def cpu_scalars(self, act, found):
        """(name, index) of the scalars that a program reads."""
        names_ = self.cpu_reads(found)
        everywhere = self.graph.variables(self.roots)
        own = [s for s in self.scalars if s in everywhere]
        acts = list(act.scalars) if "act" in names_ or self.bwd else []
        return [(s, i) for i, s in enumerate(self.scalars + list(act.scalars)) if s in own or s in acts]

    def load(self, s):
        """An element of a tile of the C backend."""
        if s.dtype.word == "f16":
            return f"{s.name}_f[j]"
        if s.dtype.word == "u8":
            # 0 or 1: gcc -O2 does not vectorise a comparison of bytes among floats.
            return f"({self.compute})(int)(({s.name}[j] + 255u) >> 8)"
        return f"kfi_cpu_load_bf16({s.name}[j])" if s.dtype.word == "bf16" else f"{s.name}[j]"

    def cpu_cast(self, s, text):
        compute = self.dtype.compute
        return text if s.dtype.word == compute else f"kfi_cpu_cast_{compute}_{s.dtype.word}({text})"

    @property
    def compute(self):
        return self.dtype.compute_ctype

    def reads_x(self, act):
        return bwd_reads_x(act)

    def cpu_constant(self, s):
        """The value of an operand that is absent, as it is stored."""
        text = f"{float(s.absent)!r}" + ("" if self.dtype.compute == "f64" else "f")
        return self.cpu_cast(s, text)

    def cpu_tile(self, s):
        """A whole tile of an operand, which begins at column i."""
        if self.pieces:
            return self.cpu_piece(s, "KFI_STRIP")
        start = self.cpu_start(s)
        return f"{s.name} ? {s.name} + {start} : {s.name}_t" if s.absent is not None else f"{s.name} + {start}"

    def cpu_strip(self, s):
        """A tile of an operand, whole or what is left of a row."""
        if self.pieces:
            return self.cpu_piece(s, "left")
        at = f"{s.name} + {self.cpu_start(s)}"
        tile = f"left == KFI_STRIP ? {at} : (const {s.ctype} *)kfi_tail({s.name}_t, {at}, left, {s.dtype.size})"
        return f"!{s.name} ? {s.name}_t : {tile}" if s.absent is not None else tile

    def cpu_piece(self, s, count):
        """A tile of a row in pieces: where it lies, or a copy."""
        if s.kind == "group":
            return f"(const {s.ctype} *)kfi_channel_tile(m, {s.name}_n, {s.name}_t, {s.name}, channel, i, {count}, {s.dtype.size})"
        return f"(const {s.ctype} *)kfi_piece_tile(m, {s.name}_g, {s.name}_t, {s.name}, kfi_start, i, {count}, {s.dtype.size})"

    def cpu_start(self, s):
        """Its element in column i of a row."""
        return {"row": "i", "shared": "kfi_shared * cols + i"}.get(s.kind, "row * cols + i")

    def cpu_tail(self, s):
        """The statement that copies what is left of a row."""
        if self.pieces:
            return f"(void){self.cpu_piece(s, 'left').partition(')')[2]};"
        copy = f"kfi_tail({s.name}_t, {s.name} + {self.cpu_start(s)}, left, {s.dtype.size});"
        return f"if ({s.name}) {{ {copy} }}" if s.absent is not None else copy

    def cpu_picked(self, pick):
        """A row's value in a column: 0 where there is no such column."""
        s, at = pick.source, f"{pick.column.name}[row]"
        start = "row * cols + " if s.kind == "elem" else ""
        text = f"{s.name}[{start}{at}]"
        text = f"kfi_cpu_load_{s.dtype.word}({text})" if s.dtype.size == 2 else f"({self.compute}){text}"
        text = f"({s.name} ? {text} : {s.absent:g})" if s.absent is not None else text
        return f"{at} >= 0 && {at} < cols ? {text} : 0"

    def cpu_value(self, s):
        """A row's value; a number in place of what is absent or not read."""
        of = f"{s.name}[{'channel' if s.kind == 'channel' else 'row'}]"
        text = f"kfi_cpu_load_{s.dtype.word}({of})" if s.dtype.size == 2 else f"({self.compute}){of}"
        return f"{s.name} ? {text} : {s.absent or 0:g}" if s.absent is not None or s.reads == "act" else text


model.FAMILIES["row"] = RowKernel
