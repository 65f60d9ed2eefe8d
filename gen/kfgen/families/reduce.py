# SPDX-License-Identifier: Apache-2.0
"""The family `reduce`: results that are one per row, where a row is what lies along any axis, of the tensors' dtype."""

from kfgen.expr import COUNT, ELEM
from kfgen.families.family import wrong
from kfgen.families.over_rows import OverRows


class Reduce(OverRows):
    name = "reduce"
    kinds = ("elem",)
    fields = ("grads", "empty")
    reads = (COUNT,)
    dropout = False
    own_names = ("all", "block", "c", "codes", "context", "counts", "memcpy", "op", "stage", "stop", "unit", "walk", "whole")

    def check_result(self, op, name, level):
        if level == ELEM:
            raise wrong(op, "expr", f"`{name}` differs along the axis", 'reduce it, or write family = "row" for a result of elements')
