# SPDX-License-Identifier: Apache-2.0
"""The C schedule of the matmul family.

Seams are functions over some elements of a row. Those that call the activation take it as an
argument: one text per compute type, and one short function per activation, which passes it. The
product is core/matmul/matmul.h's, for all ops.
"""

import functools
from dataclasses import dataclass

from kfgen.language.emit import emit, reads
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.language.primitives import KEEP, KEEP_SCALE
from kfgen.model import names
from kfgen.model.activation import CALLS, GIVEN, bwd_reads_x, rising
from kfgen.model.schedule import C, Text


@dataclass
class Function:
    """A seam's text, ready to print."""

    name: str
    builtin: bool  # kf's own headers have it
    given: bool  # takes the activation as an argument
    ctype: str
    inputs: list  # (index among the seam's inputs, name)
    results: list  # (index among its outputs, name, expression)
    lines: list
    scalars: list  # (name, place)
    keeps: bool
    calls: list  # keys of CALLS that are arguments
    named: list  # (function, activation) of the functions that pass an activation


class MatmulC(C):
    @property
    def flavour(self):
        return self.k.flavour

    @property
    def act_flavour(self):
        """Seams compute in the accumulators' type."""
        return self.k.flavour

    def _ops(self, seam):
        graph = self.k.graph
        return {graph.nodes[i].op for i in graph.reachable([self.k.roots[r] for r in seam.roots])}

    def calls(self, seam):
        """Returns whether a seam calls the activation; it has one function per activation then."""
        return not self._ops(seam).isdisjoint(CALLS)

    def name(self, seam, act, by=False):
        return self._named(seam, act.name if self.calls(seam) else "", by)

    def _named(self, seam, word, by):
        return names.seam(seam.word, self.k.op.pattern, word, by, self.flavour)

    @functools.cached_property
    def functions(self):
        """The functions of the kernel's seams."""
        return [self._function(seam, text) for seam in self.k.seams for text in self._texts(seam)]

    def _texts(self, seam):
        """The texts of a seam, and the activations that share them."""
        acts = self.k.acts
        if not self.calls(seam):
            return [Text(acts[0], acts[:1])]
        found = {}
        for act in acts:
            for by in (False, True) if self._has_by(seam, act) else (False,):
                own = self.stand_in(act) if "act_bwd" in self._ops(seam) and not by else GIVEN
                found.setdefault((own.name, by), Text(own, [], by)).acts.append(act)
        return list(found.values())

    def _has_by(self, seam, act):
        return seam.word == "dacc" and self.k.by(act)

    def _graph(self, text):
        """The graph, with the activation's gradient inlined if it reads dy alone."""
        act = text.acts[0]
        if text.by:
            return self.k.graph_by()
        if text.given or not self.k.bwd or bwd_reads_x(act):
            return self.k.graph, self.k.roots
        graph = Graph()
        own = {s: graph.var(s) for s in act.scalars}
        return graph, substitute(
            self.k.graph,
            graph,
            self.k.roots,
            {},
            act=(lambda x: graph.add("act", x), lambda x, dy: act.build_bwd(graph, x, dy, own)),
        )

    def _function(self, seam, text):
        graph, roots = self._graph(text)
        act, target = text.acts[0], self.target(text.act)
        roots = [roots[r] for r in seam.roots]
        spelled = [getattr(v, "name", v) for v in seam.reads]
        keep = "kfi_cpu_keep(keep[j], t->keep_from)"
        env = {n: f"{n}_j" for n in spelled}
        env |= {
            KEEP: keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})",
            KEEP_SCALE: "keep_scale",
        }
        lines, texts = emit(graph, roots, target, env, fixed={})
        printed = reads(graph, roots)
        read = {graph.nodes[i].value for i in printed if graph.nodes[i].op == "var"}
        called = {graph.nodes[i].op for i in printed}
        calls, own = [c for c in CALLS if c in called], [] if text.given else list(act.scalars)
        if calls:
            read |= set(own)
        scalars = [(s, i) for i, s in enumerate([*self.k.scalars, *own]) if s in read]
        made = [getattr(v, "name", v) for v in seam.makes]
        like = f"like_{act.name}"
        return Function(
            self._named(seam, like, text.by) if text.given else self.name(seam, act, text.by),
            act.builtin or not self.calls(seam),
            text.given,
            self.k.scalar_ctype,
            [(i, n) for i, n in enumerate(spelled) if n in read],
            list(zip(range(len(made)), made, texts)),
            lines,
            scalars,
            KEEP in read,
            calls if text.given else [],
            [(self.name(seam, a, text.by), a) for a in text.acts] if text.given else [],
        )

    # ---- the run function

    @property
    def chosen(self):
        """Seams whose function a launcher passes."""
        return [seam for seam in self.k.seams if self.calls(seam)]

    def value(self, v):
        """Code of a value (core/matmul/seam.h): letters for tensors; 0, 1 for products or dacc."""
        named = {p.name: str(i) for i, p in enumerate(self.k.products)}
        name = getattr(v, "name", v)
        at = {s.name: i for i, s in enumerate(self.k.ins + self.k.outs)}
        return chr(ord("a") + at[name]) if name in at else named.get(name, "0")

    def codes(self, seam):
        return "".join(map(self.value, seam.reads)), "".join(map(self.value, seam.makes))

    @property
    def shapes(self):
        """Extents of the arguments behind the batch: r rows, c cols, w 2 * cols, d depth."""
        letters = {"rows": "r", "cols": "c", "2 * cols": "w", "depth": "d"}
        return " ".join(
            "".join(letters[extent] for extent in self.k.shape(s)[1:])
            for s in self.k.inputs + self.k.outputs
        )

    def number(self, name):
        """Index of a tensor; -1: none."""
        return next((i for i, s in enumerate(self.k.ins + self.k.outs) if s.name == name), -1)

    @property
    def factor(self):
        """Index of the left factor, or of an operand that `load` makes it of."""
        return self.number(next(s.name for s in self.k.operands if s.kind == "left"))

    @property
    def dout_is_dacc(self):
        """C expression: whether dout is dacc of the product."""
        return (
            "kfi_dout_is_dacc"
            if self.k.has_act and self.k.dout_as_dacc
            else str(int(bool(self.k.dout_as_dacc)))
        )

    @property
    def run_parameters(self):
        k = self.k
        found = ["const char *kfi_word"] * k.has_act + [
            f"kfi_seam_fn kfi_{seam.word}" for seam in self.chosen
        ]
        found += ["int kfi_reads"] * k.asks_reads + ["const char *kfi_rising"] * k.by_result
        found += (
            ["int kfi_dout_is_dacc"] if k.bwd and self.dout_is_dacc == "kfi_dout_is_dacc" else []
        )
        found += [f"{a.ctype}{a.name}" for a in k.tensor_arguments] + [
            f"int64_t {s}" for s in k.sizes
        ]
        found += (
            [f"{a.ctype}{a.name}" for a in k.stride_arguments]
            + ["const void *kfi_scalars"]
            + [f"{k.scalar_ctype} {s}" for s in k.betas]
        )
        return (
            ", ".join(found)
            + self.dropout_parameters
            + "".join(f", {a.ctype}{a.name}" for a in self.workspace_arguments)
        )

    def run_arguments(self, launcher):
        k, act = self.k, launcher.act
        by, found = k.by(act), [f'"{act.name}"'] * k.has_act
        for seam in self.chosen:
            plain = self.name(seam, act)
            found.append(
                f"{k.result} ? {self.name(seam, act, True)} : {plain}"
                if self._has_by(seam, act)
                else plain
            )
        found += [
            f"{k.result} ? 2 : {int(bwd_reads_x(act))}" if by else str(int(bwd_reads_x(act)))
        ] * k.asks_reads
        found += [f'"{rising(act)}"' if by and act.rising else "NULL"] * k.by_result
        found += (
            [str(int(bool(k.gradient_as_dacc(act))))]
            if k.bwd and self.dout_is_dacc == "kfi_dout_is_dacc"
            else []
        )
        found += [a.name for a in k.tensor_arguments] + k.sizes + ["strides"] * bool(k.strided)
        found += ["kfi_scalars" if launcher.scalar_values else "NULL", *k.betas]
        return ", ".join(
            found + launcher.cpu_dropout_arguments + [a.name for a in self.workspace_arguments]
        )

    @property
    def vectors(self):
        """The number of vectors that the seams dacc and inputs make."""
        return [sum(s.kind == kind for s in self.k.outs) for kind in ("row", "depth")]

    @property
    def workspace_bytes(self):
        k = self.k
        type_ = f"kfi_gemm_{k.dtype.word}()"
        if not k.bwd:
            return f"kfi_gemm_forward_bytes({type_}, batch, rows, cols, depth, {len(k.products)})"
        counts = ", ".join(map(str, [len(k.products), *self.vectors]))
        return f"kfi_gemm_backward_bytes({type_}, batch, rows, cols, depth, {counts})"

    def listing(self, act):
        """The computation in order, for readers."""
        found = []
        for seam in self.k.seams:
            f = self._function(seam, Text(act, [act]))
            found += [
                f"{seam.word}:",
                *(f"    {line}" for line in f.lines),
                *(f"    {name}_to[j] = {text};" for _, name, text in f.results),
            ]
        return found
