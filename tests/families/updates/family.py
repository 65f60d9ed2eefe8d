# SPDX-License-Identifier: Apache-2.0
"""Example of a user's own family: elementwise updates in place, of lists of tensors or of single
ones. tests/gen/test_lists.py and tests/frontends/test_lists.py use it.
"""

import functools

from kfgen.families.family import FURTHER, Family, wrong
from kfgen.families.updates.c import UpdatesC
from kfgen.families.updates.cuda import UpdatesCuda
from kfgen.model import derive
from kfgen.model.entries import updated
from kfgen.model.kernel import Kernel
from kfgen.model.kinds import ELEM, Kind
from kfgen.model.types import WEIGHTS


class UpdatesKernel(Kernel):
    @functools.cached_property
    def cuda(self):
        return UpdatesCuda(self)

    @functools.cached_property
    def c(self):
        return UpdatesC(self)

    @property
    def form(self):
        return "lists" if self.inputs[0].is_list else "flat"

    def _build(self):
        self.graph, env, _ = self.family.graph(self.op)
        self.inputs, self.outputs = [self._operand(o, env) for o in self.op.operands], []
        self.roots = [node for s in self.updated for node in s.exprs]
        self.streams, self.keeps, self.scalars = self.inputs, False, list(self.op.scalars)

    def _operand(self, o, env):
        written = o.name in self.op.updates
        return self.tensor_of(
            o,
            "input",
            "inout" if written else "in",
            exprs=[env[updated(o.name)]] if written else [],
            is_list=o.kind in self.family.lists,
        )


class Updates(Family):
    kernel = UpdatesKernel
    name = "updates"
    title = "Updates in place"
    forms = {"lists": {"elem": "length", "list": "length"}, "flat": {"elem": "n"}}
    sizes = {"lists": ""}
    kinds = (Kind("list", whole=True), ELEM)
    in_place = ("list", "elem")
    lists = ("list",)
    fields = ("updates",)
    roles = (WEIGHTS,)

    def dtypes(self, kind, grad):
        return (FURTHER,)

    def check_operands(self, f, operands):
        if len({o.kind for o in operands}) > 1:
            raise f.error("operands", "mixes lists and tensors", 'make all of them "list"')

    def graph(self, op):
        return derive.update_graph(op)

    def check(self, op, graph, env, outputs):
        if outputs or op.has_act or op.dropout:
            raise wrong(op, "expr", "has a result", "write updates")


FAMILY = Updates()
