# SPDX-License-Identifier: Apache-2.0
"""The kernel of an attention function: its tensors, its score and the keys that queries see."""

import functools
from dataclasses import replace

from kfgen.families.attention.bwd_cuda import AttentionBwdCuda
from kfgen.families.attention.c import AttentionC
from kfgen.families.attention.cuda import AttentionCuda
from kfgen.families.attention.ranges import FIELDS
from kfgen.families.attention.scores import DOT, DSCORE, PRODUCTS
from kfgen.language.gradient import gradient
from kfgen.language.primitives import COUNT, KEEP, QUERIES
from kfgen.model import contract
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.names import gradient_of
from kfgen.model.types import ACC, FIRST

SCORES = ("", "_head", "_batch")  # strides of tensors of the scores' shape
# Letter of each kind for core/attention/check.h.
LETTERS = {"query": "q", "key": "k", "value": "v", "elem": "o", "score": "x", "head": "h"}
LETTERS |= {"query_offsets": "u", "key_offsets": "w"}
LISTS = {"block_offsets": "b", "key_blocks": "c", "block_masks": "d"}
LETTERS |= LISTS
OF_LISTS = ("_head", "_batch")  # strides of the lists' bounds
OF_PACKED = ("head_base", "heads_total")  # options of packed sequences
SAVED = {"lse": "l", "row_max": "m", "log_sum": "s"}
# The same of gradients: those of tensors have the tensor's letter as a capital.
LETTERS |= {"per_query": "l"}
# Sizes over which gradients are summed.
SUMMED = {"query": ("keys",), "key": ("queries", "heads"), "value": ("queries", "heads")}
SUMMED |= {"head": ("batch", "queries", "keys")}


class AttentionKernel(Kernel):
    has_workspace = True
    scratch = True
    name_fields = (*Kernel.name_fields, "derivatives")

    @property
    def order_note(self):
        if self.bwd:
            return ", with scores computed again; sums in a fixed order"
        return ", with an online softmax over blocks of keys"

    @functools.cached_property
    def packed(self):
        """True if sequences are packed along one axis."""
        return any(o.kind == "query_offsets" for o in self.op.operands)

    @functools.cached_property
    def sparse(self):
        """True if lists name the blocks of keys."""
        return any(o.kind in LISTS for o in self.op.operands)

    @property
    def suffix(self):
        """Suffix of the names of kernels and functions in core/attention."""
        return "_packed" if self.packed else "_sparse" if self.sparse else ""

    @property
    def form(self):
        if self.sparse:
            return "sparse"
        scores = any(o.kind == "score" for o in self.op.operands)
        return ("packed_scores" if scores else "packed") if self.packed else "dense"

    @property
    def masked(self):
        """The scores of the whole tensors; of packed sequences, those of all rows."""
        if not self.dropout:
            return []
        heads, *sizes = (
            [size, f"{base}_base", f"{size}_total"]
            for size, base in (("heads", "head"), ("queries", "query"), ("keys", "key"))
        )
        rows = [[size, "", ""] for size in ("queries", "keys")]
        return [heads, *rows] if self.packed else [["batch", "", ""], heads, *sizes]

    @property
    def work(self):
        batch = "" if self.packed else "batch * "
        products = "(3 * dim + 2 * dim_v)" if self.bwd else "(dim + dim_v)"
        return f"2 * {batch}heads * queries * keys * {products}"

    @property
    def options(self):
        return list(OF_PACKED) if self.packed else self.family.shape.options

    @functools.cached_property
    def cuda(self):
        return (AttentionBwdCuda if self.bwd else AttentionCuda)(self)

    @functools.cached_property
    def c(self):
        return AttentionC(self)

    def _build(self):
        self.graph, env, outs = self.family.graph(self.op)
        score, *sink = self.family.weight(self.op, self.graph, outs).args
        self.roots, self.keeps = [score], KEEP in self.graph.variables(outs.values())
        self.operands = [
            self.tensor_of(o, "weight" if o.kind == "head" else "input", absent=o.absent)
            for o in self.op.operands
        ]
        sinks = [self.graph.nodes[i].value for i in sink]
        self.sink = next((s for s in self.operands if s.name in sinks), None)
        out = Tensor("out", "elem", self.dtype, "out", "output", FIRST, ("out",))
        saved = [
            Tensor(n, "per_query", self.dtype.acc, "out", "saved", ACC, (n,), required=False)
            for n in SAVED
        ]
        self.derivatives = {}  # {DOT or an operand: the node of its gradient by DSCORE}
        if self.bwd:
            self._differentiate(score, env, out, saved)
        else:
            self.inputs, self.outputs = self.operands, [out, *saved]
        self.streams = self.inputs + self.outputs
        self.strided = self._strided()
        self.integers = [*self.options, *self.op.integers]
        self.scalars = [s for s in self.op.scalars if s not in self.op.integers]

    def _differentiate(self, score, env, out, saved):
        """Sets inputs, outputs and roots of the gradients."""
        differentiable = [o.name for o in self.op.operands if o.grad]
        scores = [s.name for s in self.score_inputs if s.name in differentiable]
        wanted = {DOT: env[DOT]} | {name: env[name] for name in scores}
        found = gradient(self.graph, {score: self.graph.var(DSCORE)}, list(wanted.values()))
        zero = self.graph.const(0)
        self.derivatives = {
            name: zero if found[node] is None else found[node] for name, node in wanted.items()
        }
        self.roots = [score, *self.derivatives.values()]
        if self.sink and self.sink.name not in differentiable:
            self.sink.reads = "never"  # row_max and log_sum, or lse, include it
        for s in (out, *saved):
            s.role = "in"
        for s in saved[1:]:
            s.absent = f"{saved[0].name} in place of {saved[1].name} + {saved[2].name}"
        self.inputs = [*self.operands, out, *saved, self._given(out), self._given(saved[0])]
        self.inputs[-1].absent = 0.0
        self.outputs = [
            self.tensor_of(o, "gradient", "out", of=o.name, required=False)
            for o in self.op.operands
            if o.grad
        ]
        for s in self.outputs:
            s.name = gradient_of(s.name)
            s.parts = (s.name,)

    def _given(self, result):
        """The incoming gradient of a result."""
        name = gradient_of(result.name)
        return replace(result, name=name, use="gradient", of=result.name, parts=(name,))

    def _strided(self):
        """Names of the tensors with strides, of either direction: the forward's first."""
        contiguous = ("head", "query_offsets", "key_offsets", "key_blocks", "block_masks")
        operands = [o for o in self.op.operands if o.kind not in contiguous]
        gradients = [gradient_of(o.name) for o in operands if o.grad]
        dout = [gradient_of("out")] if gradients else []
        return [*(o.name for o in operands), "out", *dout, *gradients]

    def of_kind(self, kind):
        return next(s for s in self.inputs if s.kind == kind)

    @property
    def shaped_by(self):
        kinds = ["query", *["query_offsets"] * self.packed, "key", "value"]
        kinds += ["key_blocks", "block_masks"] * self.sparse
        scores = [s.name for s in self.inputs if s.kind == "score" and self.packed]
        return [*(self.of_kind(kind).name for kind in kinds), *scores[:1]]

    @property
    def bounds_of_sequences(self):
        """Names of the operands with the bounds of packed sequences, in q and in k."""
        return [s.name for s in self.inputs if s.kind in ("query_offsets", "key_offsets")]

    @property
    def names_of_lists(self):
        """Names of the operands of lists of blocks: their bounds, the blocks, masks."""
        return [s.name for s in self.inputs if s.kind in LISTS]

    def levels_of(self, name):
        if name in self.names_of_lists:
            return OF_LISTS
        scores = [s.name for s in self.operands if s.kind == "score"]
        return SCORES if name in (*scores, *map(gradient_of, scores)) else self.levels

    @property
    def score_inputs(self):
        """Operands that the score reads, in the order of kfi_score_args::tensors."""
        return [s for s in self.operands if s.kind in ("score", "head") and s is not self.sink]

    @property
    def tensor_gradients(self):
        """(index in score_inputs, gradient) of what the score reads, in the order of the roots."""
        names = [s.name for s in self.score_inputs]
        return [(names.index(s.of), s) for s in self.outputs if s.of in self.derivatives]

    @property
    def score_gradients(self):
        """tensor_gradients of the scores' shape."""
        return [(i, s) for i, s in self.tensor_gradients if s.kind == "score"]

    @property
    def head_gradients(self):
        """tensor_gradients with one number per head."""
        return [(i, s) for i, s in self.tensor_gradients if s.kind == "head"]

    @property
    def sink_gradient(self):
        """The sink's gradient, or None."""
        return next((s for s in self.outputs if self.sink and s.of == self.sink.name), None)

    @property
    def plain(self):
        """True if the score is `dot`, times a scalar or not: kernels have it without code."""
        nodes = [self.graph.nodes[a] for a in self.graph.nodes[self.roots[0]].args]
        score = self.graph.nodes[self.roots[0]]
        return (self.bwd or not self.sink) and (
            score.op == "var"
            or score.op == "mul"
            and {n.op for n in nodes} == {"var"}
            and len({n.value for n in nodes} & {*self.scalars, "dot"}) == 2
        )

    @property
    def factor(self):
        """The scalar that a plain score multiplies `dot` by, or ""."""
        return next(iter(self.used_scalars), "") if self.plain else ""

    @property
    def shapes(self):
        """Letter of each tensor's shape for core/attention/check.h."""
        return "".join(map(self._letter, self.inputs + self.outputs))

    def _letter(self, stream):
        if stream is self.sink:
            return "i"
        if stream is self.sink_gradient:
            return "I"
        found = SAVED.get(stream.name) or LETTERS[stream.kind]
        return found.upper() if stream.use == "gradient" else found

    def bounds_of(self, names):
        """Returns [(field of the plan, slope, C expression of the addend)]; of packed sequences the
        slope, and how often the addend has the sequence's queries and keys.

        Args:
            names: {integer: its text}.
        """
        found = [(field, self.op.own[field]) for field in FIELDS]
        if self.packed:  # sequences add their own sizes
            names = names | {QUERIES: "0", COUNT: "0"}
            return [
                (f, f"{b.slope}, {b.queries}, {b.count}", b.addend(names)) for f, b in found if b
            ]
        return [(field, b.slope, b.addend(names)) for field, b in found if b]

    @property
    def unread_scalars(self):
        read = {n for field in FIELDS if (b := self.op.own[field]) for n in b.names}
        return [s for s in super().unread_scalars if s not in read]

    def touched(self, stream):
        return self.shape(stream)

    def per_element(self, stream):
        return 1 if stream.kind in ("query", "elem") else 0

    def summed_extents(self, stream):
        return list(SUMMED.get(stream.kind, ()))

    def formulas(self, by):
        if self.bwd:
            return self._gradients()
        out = contract.one_line(self.op.outputs["out"])
        first, last = (b.text if (b := self.op.own[field]) else "" for field in FIELDS)
        keys = f"keys {first or 0} to {last}" if last else f"keys from {first} on"
        keys = keys if first or last else "all keys"
        keys += " of its sequence" if self.packed else " in its list" if self.sparse else ""
        product = f"{self.of_kind('query').name} . {self.of_kind('key').name}"
        return [f"out = sum over {keys} of {out}; dot = {product}"]

    def _kept(self, text):
        return f"dropout({text})" if self.keeps else text

    def _gradients(self):
        """Formulas of the gradients."""
        q, k, v = (self.of_kind(kind).name for kind in PRODUCTS)
        defined, [score, ddot, *others] = contract.write(self.graph, self.roots)
        lines = [
            *defined,
            f"p = exp(({score}) - lse)",
            f"{DSCORE} = p * ({self._kept(f'dout . {v}')} - dout . out + dlse)",
        ]
        by_head = "sum over batch, queries and keys of"
        texts = {
            q: f"sum over keys of ({ddot}) * {k}",
            k: f"sum over queries of ({ddot}) * {q}",
            v: f"sum over queries of {self._kept('p')} * dout",
        }
        for (_, s), text in zip(self.tensor_gradients, others):
            texts[s.of] = f"{by_head} {text}" if s.kind == "head" else text
        if self.sink:
            given = f"exp({self.sink.name} - lse) * (dlse - dout . out)"
            texts[self.sink.name] = f"sum over batch and queries of {given}"
        return lines + [f"{s.name} = {texts[s.of]}" for s in self.outputs]
