# SPDX-License-Identifier: Apache-2.0
"""C schedule of the family `rows`: a traversal of rows, and per activation its passes over a row,
made of functions over a strip.
"""

import functools
from dataclasses import replace

from kfgen.families.rows.over_rows_schedule import OverRowsC
from kfgen.families.rows.sharing import Sharing
from kfgen.language.emit import Printed, names_of
from kfgen.language.passes import Pass, copy, inlined, picks
from kfgen.language.primitives import COLUMN, COUNT, KEEP, KEEP_SCALE, QUERIES, QUERY
from kfgen.model import limits
from kfgen.model.activation import CALLS, GIVEN, bwd_reads_x
from kfgen.model.dtypes import DTYPE

STRIP = 64  # KFI_STRIP
WORDS = 1152  # sizeof(kfi_words)
REST = 512  # frame bytes for pointers; values per row take at most as many again


class RowsC(OverRowsC):
    code = "kfi_passes_{}()"

    def __init__(self, kernel):
        super().__init__(kernel)
        self._plans = {}  # per activation

    def plan(self, act):
        """The passes for one activation, or for GIVEN."""
        if act.name not in self._plans:
            self._plans[act.name] = self._program(act)
        return self._plans[act.name]

    def calls(self, names):
        """Calls of a run-time activation by a function that reads these names."""
        return [c for c in ("act", "act_bwd") if CALLS[c] in names]

    def _program(self, act):
        target = self.target(act)
        if self.k.dtype.size == 2:
            word = self.k.dtype.word
            target = replace(
                target,
                stored=lambda x: (
                    f"kfi_cpu_load_{word}(kfi_cpu_cast_{self.k.dtype.compute}_{word}({x}))"
                ),
            )
        graph, roots = self.k.graph, self.k.roots
        # The argument is not computed then: its inputs may be NULL.
        if act is not GIVEN and self.k.bwd and not bwd_reads_x(act):
            graph, roots = inlined(graph, roots, act)
        graph, roots = copy(graph, roots, picks(graph, roots))
        T = self.k.compute
        env = {s.name: Printed(f"{s.name}_j", [s.name]) for s in self.k.sources} | {
            s.name: f"{s.name}_i" for s in self.k.picks
        }
        env |= (
            self.k.value_env("{}_i")
            | {s: Printed(f"(({T}){s})", [s]) for s in self.k.integers}
            | {QUERY: Printed(f"(({T})query)", ["query"])}
        )
        whole = {s.name: f"{s.name}_i" for s in self.k.values} | {s: s for s in self.k.integers}
        target = replace(
            target,
            whole=whole
            | {COLUMN: "column", QUERY: "query", COUNT: "kfi_cols", QUERIES: "kfi_queries"},
            offset="j",
            near="kfi_cpu_near",
        )
        keep = "kfi_cpu_keep(keep[j], keep_from)"
        keep = keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})"
        env |= {
            COLUMN: Printed(f"(({T})column + ({T})j)", ["column"]),
            KEEP_SCALE: "keep_scale",
            KEEP: Printed(keep, ["keep", "keep_from"]),
        }
        # Twice the code, for the few ops without activations, which spend most of their time in
        # exp().
        hold = None if self.k.has_act else self._on_stack
        return self.k.program(
            graph, {s.name: r for s, r in zip(self.k.outputs, roots)}, target, env, keep=hold
        )

    @staticmethod
    def _on_stack(name):
        return Printed(f"kfi_on_stack ? {name}_h[j] : {{}}", ["kfi_on_stack", f"{name}_h"])

    def sharing(self, extends):
        """The functions that activations share. extends: next to those of an installed header."""
        return Sharing(self.k.name, extends)

    @property
    def workspace_bytes(self):
        k = self.k
        if k.sums:
            return f"kfi_cpu_workspace(rows, 0, cols, 0, {len(k.sums)}, {k.dtype.acc.size})"
        kind, sums = ("group", k.group_sums) if k.group_sums else ("plane", k.plane_sums)
        return f"kfi_cpu_{kind}_workspace({', '.join(k.sizes)}, {len(sums)}, {k.dtype.acc.size})"

    @property
    def frame_sources(self):
        """Operands that passes read."""
        return self.k.sources + self.k.gathered_inputs

    @property
    def frame_values(self):
        """{value per row that the traversal computes: its type}."""
        T = self.k.compute
        found = {f"{s.name}_i": self.k.value_type(s) for s in self.k.values} | {
            f"{p.name}_i": T for p in self.k.picks
        }
        return (
            found
            | ({"query": "kf_i64"} if self.k.reads_query else {})
            | {name: T for name, _, _ in self.k.counts}
        )

    @property
    def _frame_plans(self):
        """The activations to plan for: all of them, whichever are selected, so that a user's
        activation has the installed frame.
        """
        return [
            self.plan(text.act)
            for text in self.texts(
                [a for a in self.k.op.activations if a.builtin or not self.k.op.builtin]
            )
        ]

    @functools.cached_property
    def most_names(self):
        return max(len(plan.names) for plan in self._frame_plans)

    @property
    def _share(self):
        """Frame bytes for values that passes hand on, per kind: the tail tile of each tensor."""
        strips = sum(s.dtype.size for s in self.k.sources + self.k.stores)
        strips += sum(self.k.dtype.acc.size for s in self.k.added if s not in self.k.plane_sums)
        left = limits.FRAME - STRIP * strips - REST - WORDS * self.k.keeps
        return left // (bool(self.cached_names) + bool(self.k.segments and self.k.loads))

    @property
    def on_stack(self):
        """Number of columns of a row whose values are cached between passes."""
        return (
            self._share
            // (len(self.cached_names) * DTYPE[self.k.dtype.compute].size)
            // STRIP
            * STRIP
        )

    @property
    def gathered(self):
        """Bytes of a row in segments that are copied contiguously, per tensor."""
        return min(16 << 10, self._share // len(self.k.loads) // 512 * 512)

    @property
    def cached_names(self):
        return list(dict.fromkeys(n for plan in self._frame_plans for n in plan.kept))

    def assigned(self, plan, index):
        """The names that pass number `index` sets; None: the last pass."""
        found = (
            []
            if index is None
            else [r.name for r in plan.passes[index].reductions]
            + [n for n, _ in plan.passes[index].after.values]
        )
        return ([n for n, _ in plan.before.values] if index == 0 or not plan.passes else []) + found

    def tile_names(self, part, read, outputs=()):
        """Names that a function over a tile reads. part: a pass, or the program of results."""
        found = part.printed | {s.name for s in [*read, *outputs]}
        if isinstance(part, Pass):
            found |= {x for r in part.reductions for x in ("left", f"{r.name}_a")}
            found |= {x for n in part.keeps for x in ("kfi_on_stack", f"{n}_h")}
        return found

    def tile_statements(self, part):
        """The statements of a function over a tile, by which activations share it."""
        if isinstance(part, Pass):
            return part.head, part.lines, part.keeps, part.reductions
        summed = self.k.stores + self.k.sums + self.k.group_sums
        texts = [part.texts[s.name] for s in summed if s.name in part.texts]
        return part.head, part.lines, texts

    def _steps(self, plan, part):
        """The values per row that the function over a row of a part computes."""
        first = plan.passes[0] if plan.passes else plan
        before = plan.groups.before if part is plan.groups else plan.before
        found = [before] if part is plan.groups or part is first else []
        return found + ([part.after] if isinstance(part, Pass) else [])

    def _result_names(self, plan):
        """Names that the last function over a row reads to store results."""
        found = set()
        for s in self.k.results_of_rows + self.k.plane_sums:
            found |= {"row", s.name if s in self.k.results_of_rows else f"{s.name}_p", s.same_as}
            found |= names_of(plan.texts[s.name])
        for s in self.k.stores:
            found |= {s.name, f"{s.name}_t", f"{s.name}_past"}
            found |= {"m", f"{s.name}_n"} if self.k.segments else set()
        return found | {f"{s.name}_{x}" for s in self.k.sums for x in "pt"}

    def row_names(self, plan, part, read, parameters):
        """Names that the function over a row of a part reads: of the terms of channel gradients, a
        pass, or the plan itself, the last one. parameters: of its function over a tile, if any.
        """
        found = set().union(*(step.printed for step in self._steps(plan, part)))
        if part is plan.groups:
            found |= {f"{s.name}_{x}" for s in self.k.group_sums for x in "nt"}
            return found | {"m", "row", "cols"} | self.strip_arguments(parameters, "either").names
        found |= self._result_names(plan) if part is plan else set()
        if parameters is None:
            return found
        for on_stack in self.stack_ways(parameters):
            for which in ("whole", "last"):
                found |= self.strip_arguments(parameters, which, on_stack).names
        return found | {"cols"} | names_of(*map(self.tail, read))

    def row_statements(self, plan, part, read, parameters, assigned, declared):
        """The statements of a function over a row, by which activations share it."""
        results = self.k.results_of_rows + self.k.plane_sums if part is plan else []
        return (
            declared,
            parameters,
            [(step.lines, step.values) for step in self._steps(plan, part)],
            [s.name for s in read],
            [(r.name, r.word) for r in part.reductions] if isinstance(part, Pass) else part.names,
            [plan.texts[s.name] for s in results],
            [(n, plan.names.index(n)) for n in assigned],
        )

    def strip_parameters(self, plan, act, names_, read):
        """{name: declaration} of the names that a function over a tile reads. names_: the row's
        computed values.
        """
        T, acc = self.k.compute, self.k.dtype.acc.ctype
        found = {
            "left": "const int left",
            "column": "const kf_i64 column",
            "keep": "const uint16_t *keep",
        }
        found |= {s.name: f"const {s.ctype} *{s.name}" for s in self.k.sources}
        found |= {f"{r.name}_a": f"{T} *{r.name}_a" for p in plan.passes for r in p.reductions}
        found |= {s.name: f"{s.ctype} *{s.name}" for s in self.k.stores} | {
            s.name: f"{acc} *{s.name}" for s in self.k.sums + self.k.group_sums
        }
        found |= {"kfi_on_stack": "const int kfi_on_stack"} | {
            f"{n}_h": f"{T} *{n}_h" for n in plan.kept
        }
        values = self.frame_values | dict.fromkeys(
            (*names_, *(s for s, _ in self.scalars(act, plan))), T
        )
        values |= dict.fromkeys((*self.k.integers, "kfi_cols", "kfi_queries"), "kf_i64")
        values |= {"keep_from": "uint32_t", "keep_scale": T}
        found |= {n: f"const {kind} {n}" for n, kind in values.items()}
        found |= self.given_on(("act", "act_bwd"))
        return {n: text for n, text in found.items() if n in read}

    def stack_ways(self, parameters):
        """Variants of a function over a tile with cached values: for the first columns of a row,
        and for the others, which compute them again.
        """
        return [1, 0] if "kfi_on_stack" in parameters else [0]

    def strip_arguments(self, parameters, which, on_stack=0):
        """Arguments for the tile at column i. which: "whole", "last" (copied) or "either"."""
        tile = {"whole": self.tile, "last": lambda s: f"{s.name}_t", "either": self.strip}[which]
        found = {
            "left": "KFI_STRIP" if which == "whole" else "left",
            "column": "i",
            "keep": Printed("kfi_strip_words(words, row * cols + i)", ["words", "row", "cols"]),
        }
        to = "t" if which == "last" else "to"
        found |= {s.name: tile(s) for s in self.k.sources} | {
            s.name: f"{s.name}_{to}" for s in self.k.stores + self.k.sums
        }
        found |= {s.name: f"{s.name}_t" for s in self.k.group_sums}
        found |= {
            n: Printed(f"{n[:-2]}_k{' + i' if on_stack else ''}", [f"{n[:-2]}_k"])
            for n in parameters
            if n.endswith("_h")
        } | {"kfi_on_stack": str(on_stack)}
        return Printed.joined(", ", [found.get(n, n) for n in parameters])

    def frame_locals(self, plan, act, names_, read, assigned):
        """Declarations that a function over a row takes from its frame."""
        T, found = self.k.compute, self._frame_tensors
        found |= {f"{n}_k": f"{T} *{n}_k = kfi_f->{n}_k;" for n in plan.kept} | {
            "words": "kfi_words *words = &kfi_f->words;"
        }
        found |= {
            n: f"const {kind} {n} = kfi_f->{n};"
            for n, kind in (self.frame_values | {"keep_scale": T}).items()
        }
        found |= {
            "keep_from": "const uint32_t keep_from = kfi_f->keep_from;",
            "kfi_s": self.given_scalars("kfi_f->m->scalars"),
        }
        found |= {
            s: f"const {T} {s} = ((const {T} *)kfi_f->m->scalars)[{i}];"
            for s, i in self.scalars(act, plan)
        }
        found |= {
            n: f"{T} {n} = 0;" if n in assigned else f"const {T} {n} = kfi_f->kfi_names[{i}];"
            for i, n in enumerate(names_)
        }
        assert len(names_) <= self.most_names, (
            f"{self.k.name}: {act.name} computes {len(names_)} values of a row, "
            f"the others {self.most_names}"
        )
        return [text for n, text in found.items() if n in assigned or n in read]

    @property
    def _frame_tensors(self):
        """{name: declaration} of sizes, positions, tensors and tiles in the frame."""
        acc = self.k.dtype.acc.ctype
        found = {
            "m": "const kfi_cpu_map *m = kfi_f->m;",
            "cols": "const kf_i64 cols = kfi_f->m->cols;",
        }
        found |= {
            "kfi_cols": "const kf_i64 kfi_cols = kfi_f->m->cols;",
            "kfi_queries": "const kf_i64 kfi_queries = kfi_f->m->queries;",
        }
        found |= {
            s: f"const kf_i64 {s} = kfi_f->m->integers[{i}];" for i, s in enumerate(self.k.integers)
        }
        found |= {n: f"const kf_i64 {n} = kfi_f->{n};" for n in ("row", "channel", "kfi_shared")}
        found |= {
            s.name: f"const {s.ctype} *{s.name} = kfi_f->{s.name};" for s in self.frame_sources
        }
        found |= {
            s.name: f"{s.ctype} *{s.name} = kfi_f->{s.name};"
            for s in self.k.stores + self.k.results_of_rows
        }
        found |= {
            f"{s.name}_t": f"{s.ctype} *{s.name}_t = kfi_f->{s.name}_t;"
            for s in self.k.sources + self.k.stores
        }
        found |= {
            f"{s.name}_past": f"const int {s.name}_past = kfi_f->{s.name}_past;"
            for s in self.k.stores
        }
        found |= {
            f"{s.name}_n": f"const kf_i64 {s.name}_n = kfi_f->{s.name}_n;" for s in self.k.stores
        }
        found |= {
            f"{s.name}_{x}": f"{acc} *{s.name}_{x} = kfi_f->{s.name}_{x};"
            for s in self.k.added
            for x in ("p", "t")
            if x == "t" or s not in self.k.group_sums
        }
        found |= {
            f"{s.name}_n": f"kfi_channel *{s.name}_n = &kfi_f->{s.name}_n;"
            for s in self.k.sources + self.k.group_sums
        }
        found |= {
            f"{s.name}_g": f"kfi_gathered *{s.name}_g = &kfi_f->{s.name}_g;" for s in self.k.loads
        }
        return found

    def constant(self, s):
        """The default value of an absent operand, in its stored form."""
        text = f"{float(s.absent)!r}" + ("" if self.k.dtype.compute == "f64" else "f")
        return self.cast(s, text)

    def tile(self, s):
        """A whole tile of an operand, beginning at column i."""
        if self.k.segments:
            return self.segment(s, "KFI_STRIP")
        start = self.start(s)
        text = f"{s.name} + {start}"
        if s.absent is None:
            return Printed(text, [s.name, *start.names])
        return Printed(f"{s.name} ? {text} : {s.name}_t", [s.name, f"{s.name}_t", *start.names])

    def strip(self, s):
        """A tile of an operand: whole, or the row's remainder."""
        if self.k.segments:
            return self.segment(s, "left")
        start = self.start(s)
        at = f"{s.name} + {start}"
        rest = f"(const {s.ctype} *)kfi_tail({s.name}_t, {at}, left, {s.dtype.size})"
        tile = f"left == KFI_STRIP ? {at} : {rest}"
        return Printed(
            f"!{s.name} ? {s.name}_t : {tile}" if s.absent is not None else tile,
            [s.name, f"{s.name}_t", *start.names],
        )

    def segment(self, s, count):
        """A tile of a row in segments: its address or a copy."""
        call = self._segment(s, count)
        return Printed(f"(const {s.ctype} *){call}", call.names)

    def _segment(self, s, count):
        function, of, at = (
            ("kfi_channel_tile", f"{s.name}_n", "channel")
            if s.kind == "group"
            else ("kfi_segment_tile", f"{s.name}_g", "row")
        )
        return Printed(
            f"{function}(m, {of}, {s.name}_t, {s.name}, {at}, i, {count}, {s.dtype.size})",
            ["m", of, f"{s.name}_t", s.name, at],
        )

    def start(self, s):
        """The element in column i of a row, relative to the frame's pointer."""
        if s.kind == "shared":
            return Printed("kfi_shared * cols + i", ["kfi_shared", "cols"])
        return Printed("i")

    def tail(self, s):
        """The statement that copies a row's remainder."""
        if self.k.segments:
            call = self._segment(s, "left")
            return Printed(f"(void){call};", call.names)
        start = self.start(s)
        copy = f"kfi_tail({s.name}_t, {s.name} + {start}, left, {s.dtype.size});"
        return Printed(
            f"if ({s.name}) {{ {copy} }}" if s.absent is not None else copy,
            [s.name, f"{s.name}_t", *start.names],
        )

    def pick_value(self, pick):
        """A row's element in a given column (pick); NaN if the column is out of range."""
        s, at = pick.source, f"{pick.column.name}[row]"
        text = f"{'kfi_f.' if s.kind == 'elem' else ''}{s.name}[{at}]"
        text = (
            f"kfi_cpu_load_{s.dtype.word}({text})"
            if s.dtype.size == 2
            else f"({self.k.compute}){text}"
        )
        text = f"({s.name} ? {text} : {s.absent:g})" if s.absent is not None else text
        return f"{at} >= 0 && {at} < cols ? {text} : ({self.k.compute})NAN"

    def value(self, s):
        """A value per row; a constant if it is absent or not read."""
        of = f"{s.name}[{'channel' if s.kind == 'channel' else 'row'}]"
        text = (
            f"kfi_cpu_load_{s.dtype.word}({of})"
            if s.dtype.size == 2
            else f"({self.k.value_type(s)}){of}"
        )
        return (
            f"{s.name} ? {text} : {s.absent or 0:g}"
            if s.absent is not None or s.reads == "act"
            else text
        )
