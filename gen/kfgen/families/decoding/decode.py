# SPDX-License-Identifier: Apache-2.0
"""Functions of attention to cached keys and values."""

import functools

from kfgen.families.decoding.c import DecodeC
from kfgen.families.decoding.cuda import DecodeCuda
from kfgen.model import contract
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.types import ACC, FIRST

NO_TABLE = "block s for sequence s"  # meaning of a table of NULL


class DecodeKernel(Kernel):
    form = "decode"
    header = "kf/core/decoding/decode"
    example = "attention_decode"
    numbers = ("left", "right", "scale")
    has_workspace = scratch = True
    work = "2 * blocks * page_size * heads * queries * (dim + dim_v)"

    @staticmethod
    def results(op):
        return ["out"]

    @staticmethod
    def known(op, graph, env):
        """Lists the roots that an entry may have."""
        value = next(env[o.name] for o in op.operands if o.kind == "values")
        score = graph.add("mul", env["dot"], env["scale"]) if "scale" in env else None
        return [[graph.add("mul", graph.add("softmax", score), value)]]

    @functools.cached_property
    def cuda(self):
        return DecodeCuda(self)

    @functools.cached_property
    def c(self):
        return DecodeC(self)

    def _build(self):
        self.graph, _, outs = self.family.graph(self.op)
        self.roots, self.keeps = list(outs.values()), False
        table = next(o.name for o in self.op.operands if o.kind == "table")
        self.inputs = self.operands = [
            self.tensor_of(
                o,
                absent=NO_TABLE if o.kind == "table" else None,
                pages=table if o.kind in ("keys", "values") else "",
            )
            for o in self.op.operands
        ]
        self.outputs = [
            Tensor("out", "elem", self.dtype, "out", "output", FIRST, ("out",)),
            Tensor(
                "lse", "per_query", self.dtype.acc, "out", "saved", ACC, ("lse",), required=False
            ),
        ]
        self.streams = self.inputs + self.outputs
        self.strided = [s.name for s in self.streams if self.family.kind(s.kind).vectors]
        self.integers, self.scalars = list(self.op.integers), ["scale"]

    @property
    def shaped_by(self):
        """The queries come last: they say the sizes that other tensors have too."""
        q, key, value, table = (s.name for s in self.inputs[:4])
        return [key, value, table, q]

    def levels_of(self, name):
        kind = next((s.kind for s in self.streams if s.name == name), "")
        return ("_head", "", "_block") if kind in ("keys", "values") else self.levels

    def of_kind(self, kind):
        return next(s for s in self.streams if s.kind == kind)

    @property
    def unread_scalars(self):
        return []

    def per_element(self, stream):
        return 1 if stream.kind in ("query", "elem") else 0

    def formulas(self, by):
        out = contract.one_line(self.op.outputs["out"])
        keys = "keys i + n - queries - left to i + n - queries + right of its sequence's n"
        product = f"{self.of_kind('query').name} . {self.of_kind('keys').name}"
        return [f"out = sum over {keys} of {out}; dot = {product}; n = {self.counts.name}"]

    @property
    def counts(self):
        """The operand of numbers of keys."""
        return self.of_kind("count")
