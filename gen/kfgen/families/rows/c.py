# SPDX-License-Identifier: Apache-2.0
"""The family `row` in C: a traversal of rows, and for each activation its passes over one, of functions over a strip of it."""

import functools
import re
from dataclasses import replace

from kfgen import limits
from kfgen.activation import CALLS, GIVEN, bwd_reads_x
from kfgen.dtypes import DTYPE
from kfgen.families.rows.over_rows_schedule import OverRowsC
from kfgen.passes import copy, inlined, picks
from kfgen.words import COLUMN, COUNT, KEEP, KEEP_SCALE, QUERIES, QUERY

STRIP = 64  # KFI_STRIP
WORDS = 1152  # bytes of a kfi_words
REST = 512  # bytes of a frame for pointers, and at most as many for values of a row


@functools.lru_cache(4096)
def words(text):
    """The names in a function's text, found once: dozens are asked for."""
    return frozenset(re.findall(r"\w+", text))


class Sharing:
    """The functions of a kernel's passes in C. What several activations have word for word is written once, under the name of the
    kernel if the first activation has it, else of the first one that has."""

    def __init__(self, kernel, extends):
        self.kernel, self.extends, self.seen, self.name, self.passes, self.label = (
            kernel,
            extends,
            {},
            None,
            [],
            None,
        )

    def begin(self, text):
        """The passes of a Text are to come."""
        self.passes, self.label = [], text.name

    def tile(self, role, macro, *arguments):
        """The text of a function that was not there yet, else "". `name` is then its name."""
        text = macro("@", *arguments)
        if (role, text) in self.seen:
            self.name = self.seen[role, text]
            return ""
        first = not self.extends and not any(known == role for known, _ in self.seen)
        self.name = self.seen[role, text] = f"kfi_{role}_{self.kernel}" + (
            "" if first else f"_{self.label}"
        )
        return text.replace("@", self.name)

    def row(self, calls, *arguments):
        """The same of the next pass over a row. calls: of an activation that it is given."""
        text = self.tile(*arguments)
        self.passes.append((self.name, calls))
        return text


class RowsC(OverRowsC):
    code = "kfi_passes_{}()"

    def __init__(self, kernel):
        super().__init__(kernel)
        self._plans = {}  # by activation

    def plan(self, act):
        """The passes for one activation, or for GIVEN."""
        if act.name not in self._plans:
            self._plans[act.name] = self._program(act)
        return self._plans[act.name]

    def calls(self, body):
        """What the text of a function makes of an activation that it is given."""
        return [c for c in ("act", "act_bwd") if self.mentions(body, CALLS[c])]

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
        if (
            act is not GIVEN and self.k.bwd and not bwd_reads_x(act)
        ):  # the argument is not computed then: what it is made of may be NULL
            graph, roots = inlined(graph, roots, act)
        graph, roots = copy(graph, roots, picks(graph, roots))
        T = self.k.compute
        env = {s.name: f"{s.name}_j" for s in self.k.sources} | {
            s.name: f"{s.name}_i" for s in self.k.picks
        }
        env |= (
            self.k.value_env("{}_i")
            | {s: f"(({T}){s})" for s in self.k.integers}
            | {QUERY: f"(({T})query)"}
        )
        whole = {s.name: f"{s.name}_i" for s in self.k.values} | {s: s for s in self.k.integers}
        target = replace(
            target,
            whole=whole
            | {COLUMN: "column", QUERY: "query", COUNT: "kfi_cols", QUERIES: "kfi_queries"},
            place="j",
            near="kfi_cpu_near",
        )
        keep = "kfi_cpu_keep(keep[j], keep_from)"
        env |= {
            COLUMN: f"(({T})column + ({T})j)",
            KEEP_SCALE: "keep_scale",
            KEEP: keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})",
        }
        # Twice the code: for the few ops that have no activations, whose exp() is most of their time.
        hold = "" if self.k.has_act else "kfi_on_stack ? name_h[j] : {}"
        return self.k.program(
            graph, {s.name: r for s, r in zip(self.k.outputs, roots)}, target, env, keep=hold
        )

    def sharing(self, extends):
        """What finds the functions that activations have in common. extends: beside those of an installed header."""
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
        return self.k.sources + self.k.picked

    @property
    def frame_values(self):
        """{value of a row that the traversal works out: its type}."""
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
        """Of all activations, whichever are selected: a user's activation has the frame that is installed."""
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
        """Bytes of a frame for what passes leave to others, of each kind that there is: what a strip of each tensor leaves."""
        strips = sum(s.dtype.size for s in self.k.sources + self.k.stores)
        strips += sum(self.k.dtype.acc.size for s in self.k.added if s not in self.k.plane_sums)
        left = limits.FRAME - STRIP * strips - REST - WORDS * self.k.keeps
        return left // (bool(self.kept_names) + bool(self.k.segments and self.k.loads))

    @property
    def on_stack(self):
        """Columns of a row whose values are kept between passes."""
        return (
            self._share
            // (len(self.kept_names) * DTYPE[self.k.dtype.compute].size)
            // STRIP
            * STRIP
        )

    @property
    def gathered(self):
        """Bytes of a row in segments that are copied side by side, of each tensor."""
        return min(16 << 10, self._share // len(self.k.loads) // 512 * 512)

    @property
    def kept_names(self):
        return list(dict.fromkeys(n for plan in self._frame_plans for n in plan.kept))

    @staticmethod
    def mentions(text, name):
        return name in words(text)

    def assigned(self, plan, index):
        """The names that pass `index` sets, or the last one (None)."""
        found = (
            []
            if index is None
            else [r.name for r in plan.passes[index].reductions]
            + [n for n, _ in plan.passes[index].after.values]
        )
        return ([n for n, _ in plan.before.values] if index == 0 or not plan.passes else []) + found

    def strip_parameters(self, plan, act, names_, body):
        """{name: declaration} of what the text of a function over a tile mentions. names_: of the row's computed values."""
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
        return {n: text for n, text in found.items() if self.mentions(body, n)}

    def stack_ways(self, parameters):
        """Where a function over a tile keeps values: of the first columns of a row, then of the others, which it computes again."""
        return [1, 0] if "kfi_on_stack" in parameters else [0]

    def strip_arguments(self, parameters, which, on_stack=0):
        """Of the call for the tile at column i. which: "whole", the "last" one, which has been copied, or "either"."""
        tile = {"whole": self.tile, "last": lambda s: f"{s.name}_t", "either": self.strip}[which]
        found = {
            "left": "KFI_STRIP" if which == "whole" else "left",
            "column": "i",
            "keep": "kfi_strip_words(words, row * cols + i)",
        }
        to = "t" if which == "last" else "to"
        found |= {s.name: tile(s) for s in self.k.sources} | {
            s.name: f"{s.name}_{to}" for s in self.k.stores + self.k.sums
        }
        found |= {s.name: f"{s.name}_t" for s in self.k.group_sums}
        found |= {
            n: f"{n[:-2]}_k{' + i' if on_stack else ''}" for n in parameters if n.endswith("_h")
        } | {"kfi_on_stack": str(on_stack)}
        return ", ".join(found.get(n, n) for n in parameters)

    def frame_locals(self, plan, act, names_, body, assigned):
        """What the text of a function over a row mentions, taken from its frame."""
        T, acc = self.k.compute, self.k.dtype.acc.ctype
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
            f"{self.k.name}: {act.name} computes {len(names_)} values of a row, the others {self.most_names}"
        )
        return [text for n, text in found.items() if n in assigned or self.mentions(body, n)]

    def constant(self, s):
        """The value of an operand that is absent, as it is stored."""
        text = f"{float(s.absent)!r}" + ("" if self.k.dtype.compute == "f64" else "f")
        return self.cast(s, text)

    def tile(self, s):
        """A whole tile of an operand, which begins at column i."""
        if self.k.segments:
            return self.segment(s, "KFI_STRIP")
        start = self.start(s)
        return (
            f"{s.name} ? {s.name} + {start} : {s.name}_t"
            if s.absent is not None
            else f"{s.name} + {start}"
        )

    def strip(self, s):
        """A tile of an operand, whole or what is left of a row."""
        if self.k.segments:
            return self.segment(s, "left")
        at = f"{s.name} + {self.start(s)}"
        tile = f"left == KFI_STRIP ? {at} : (const {s.ctype} *)kfi_tail({s.name}_t, {at}, left, {s.dtype.size})"
        return f"!{s.name} ? {s.name}_t : {tile}" if s.absent is not None else tile

    def segment(self, s, count):
        """A tile of a row in segments: where it lies, or a copy."""
        if s.kind == "group":
            return f"(const {s.ctype} *)kfi_channel_tile(m, {s.name}_n, {s.name}_t, {s.name}, channel, i, {count}, {s.dtype.size})"
        return f"(const {s.ctype} *)kfi_segment_tile(m, {s.name}_g, {s.name}_t, {s.name}, row, i, {count}, {s.dtype.size})"

    def start(self, s):
        """Its element in column i of a row, at whose beginning a frame's pointer stands."""
        return "kfi_shared * cols + i" if s.kind == "shared" else "i"

    def tail(self, s):
        """The statement that copies what is left of a row."""
        if self.k.segments:
            return f"(void){self.segment(s, 'left').partition(')')[2]};"
        copy = f"kfi_tail({s.name}_t, {s.name} + {self.start(s)}, left, {s.dtype.size});"
        return f"if ({s.name}) {{ {copy} }}" if s.absent is not None else copy

    def pick_value(self, pick):
        """A row's value in a column: NaN where there is no such column."""
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
        """A row's value; a number in place of what is absent or not read."""
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
