# SPDX-License-Identifier: Apache-2.0
"""Functions that store new keys and values in caches."""

import functools

from kfgen.families.decoding.c import RowsC
from kfgen.families.decoding.cuda import AppendCuda
from kfgen.families.decoding.decode import NO_TABLE
from kfgen.model.entries import updated
from kfgen.model.kernel import Kernel

CACHES = ("key_cache", "value_cache")
ROTATIONS = ("rotate_halves", "rotate_neighbours")


class AppendKernel(Kernel):
    form = "append"
    header = "kf/core/decoding/append"
    example = "kv_append"
    numbers = ()
    shape_per_name = True

    @staticmethod
    def results(op):
        return [updated(o.name) for o in op.operands if o.kind in CACHES]

    @staticmethod
    def known(op, graph, env):
        """Lists the roots that an entry may have."""
        keys, values, *angles = (env[o.name] for o in op.operands[:4])
        return [[graph.add(word, keys, *angles), values] for word in ROTATIONS]

    @functools.cached_property
    def cuda(self):
        return AppendCuda(self)

    @functools.cached_property
    def c(self):
        return RowsC(self)

    def _build(self):
        self.graph, env, _ = self.family.graph(self.op)
        self.roots, self.keeps, self.scalars = [env[n] for n in self.results(self.op)], False, []
        table = next(o.name for o in self.op.operands if o.kind == "table")
        absent = {"table": NO_TABLE, "position": f"{self.op.operands[6].name} + i"}
        angles = " and ".join(o.name for o in self.op.operands if o.kind == "angle")
        absent["angle"] = f"keys as they are; {angles}: both or neither"
        self.inputs = self.operands = [
            self.tensor_of(
                o,
                role="inout" if o.kind in CACHES else "in",
                absent=absent.get(o.kind, o.absent),
                pages=table if o.kind in CACHES else "",
                exprs=[env[updated(o.name)]] if o.kind in CACHES else [],
            )
            for o in self.op.operands
        ]
        self.outputs, self.streams = [], self.inputs
        self.strided = [s.name for s in self.streams if self.family.kind(s.kind).vectors]

    @property
    def shaped_by(self):
        """The new rows come last: they say the sizes that other tensors have too."""
        names = [s.name for s in self.inputs]
        return [names[7], names[5], names[2], names[1], names[0]]

    def levels_of(self, name):
        kind = next((s.kind for s in self.streams if s.name == name), "")
        return ("_head", "", "_block") if kind in CACHES else self.levels

    def below(self, stream):
        return "positions" if stream.kind == "position" else None

    def change(self, stream):
        return "only new rows are written"

    @property
    def neighbours(self):
        return self.graph.nodes[self.roots[0]].op == ROTATIONS[1]

    @property
    def copied(self):
        """New keys and values, and the caches."""
        return [s for s in self.inputs if s.kind in ("new_keys", "new_values", *CACHES)]

    @property
    def flops(self):
        return 3

    def touched(self, stream):
        """Rows that a call reads or writes."""
        new = {"key_cache": "new_keys", "value_cache": "new_values"}.get(stream.kind, stream.kind)
        extents = self.family.forms[self.form][new].split(", ")
        return ["batch", "queries", "pairs"] if stream.kind == "angle" else extents

    def per_element(self, stream):
        return int(stream.kind in ("new_keys", "key_cache"))

    def formulas(self, by):
        position, _, count, *caches = (s.name for s in self.inputs[4:])
        stored = ", ".join(f"{cache} = {self.op.updates[cache]}" for cache in caches)
        row = f"row {count}[s] + i of sequence s"
        return [f"new row i is {row}: {stored}; angles of row {position}[s][i]"]
