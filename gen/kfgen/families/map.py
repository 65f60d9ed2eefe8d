# SPDX-License-Identifier: Apache-2.0
"""The family `map`: results that are made of the elements beside them, row or channel operands broadcast, their gradients summed."""

from kfgen import derive
from kfgen.families.family import Family, one_broadcast


class Map(Family):
    name = "map"
    # row: one value per column; channel: one per channel of [outer, channels, inner]; half: [rows, 2 * cols], two names
    kinds = ("elem", "row", "channel", "half")
    fields = ("ints", "reduced")

    def dtypes(self, kind, grad):
        return () if kind in ("elem", "half") else ("acc",)

    def check_operands(self, f, operands):
        one_broadcast(f, operands)
        if any(o.kind == "half" for o in operands) and any(o.kind == "row" and o.grad for o in operands):
            fix = 'add grad = false to the "row", or take two "elem" for the "half"'
            raise f.error("operands", 'has a "half" beside a "row" with a gradient', fix)

    def graph(self, op):
        return derive.element_graph(op)
