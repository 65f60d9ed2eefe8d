# SPDX-License-Identifier: Apache-2.0
"""Kernels of optimizers: lists of tensors that are updated element by element, and the numbers of a
call that their expressions read.
"""

import functools

from kfgen.families.optimizer.c import OptimizerC
from kfgen.families.optimizer.cuda import OptimizerCuda
from kfgen.model import contract
from kfgen.model.entries import updated
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.types import ACC

MASTER, VALUE = "master", "value"
SCALE, FOUND = "grad_scale", "found_inf"
FACTOR = "grad_factor"  # value that the gradients are multiplied by


class OptimizerKernel(Kernel):
    name_fields = (*Kernel.name_fields, "once", "master_of", "elementwise_names", "advance")
    form = "lists"
    scalar_ctype = "double"  # betas near 1: float32 loses four digits of 1 - beta

    @functools.cached_property
    def cuda(self):
        return OptimizerCuda(self)

    @functools.cached_property
    def c(self):
        return OptimizerC(self)

    def _build(self):
        op = self.op
        self.graph, env, _ = self.family.graph(op)
        self.once_graph, self.once = self.family.once(op)
        self.master_of = op.own["master"]
        lists = [self._operand(o, env) for o in op.operands if o.kind != VALUE]
        numbers = [self._operand(o, env) for o in op.operands if o.kind == VALUE]
        # The list of float32 copies.
        self.master = self._copies(lists) if op.own["master"] else None
        self.inputs = [*lists, *([self.master] if self.master else []), *numbers]
        self.outputs = []
        self.roots = [node for s in self.inputs if s.role == "inout" for node in s.exprs]
        self.streams, self.keeps = self.inputs, False
        self.integers = list(op.integers)
        self.scalars = [s for s in op.scalars if s not in op.integers]
        lists = {s.name for s in self.inputs if s.is_list}
        self.elementwise_names = sorted(self.graph.variables(self.roots) - lists)
        # The number that makes a call do nothing if it is not 0.
        self.skip = next((s for s in self.inputs if s.name == FOUND), None)
        # Scalar or number that is added to the offset of random numbers; "" without them.
        self.advance = op.own["stochastic"]["advance"] if self.stochastic else ""

    def _operand(self, o, env):
        written = o.name in self.op.updates
        return Tensor(
            o.name,
            o.kind,
            self.dtype_of(o.dtype),
            "inout" if written else "in",
            "input",
            o.dtype,
            o.values,
            exprs=[env[updated(o.name)]] if written else [],
            is_list=o.kind in self.family.lists,
            absent=o.absent,
        )

    def _copies(self, lists):
        """The list of float32 copies of another one, which may be NULL."""
        of = next(s for s in lists if s.name == self.op.own["master"])
        dtype = self.dtype_of(ACC)
        more = {"exprs": list(of.exprs), "is_list": True, "required": False}
        return Tensor(MASTER, MASTER, dtype, "inout", "input", ACC, (MASTER,), **more)

    @property
    def device_numbers(self):
        """Tensors of one number."""
        return [s for s in self.inputs if s.kind == VALUE]

    @property
    def is_sum(self):
        """True for kernels that add up elements."""
        return False

    @property
    def stochastic(self):
        """True if bfloat16 results are rounded at random."""
        return isinstance(self.op.own["stochastic"], dict)

    def random_index(self, stream):
        """Index of a list among those that are rounded at random; -1 for others."""
        found = [s for s in self.updated if s.dtype.word == "bf16"] if self.stochastic else []
        return found.index(stream) if stream in found else -1

    @functools.cached_property
    def changing(self):
        """Integers of steps, which entries let device functions read from memory, and the seed."""
        given = self.op.own["device"]
        found = {name: "step" for name in (*given, self.advance) if name in self.integers}
        return found | ({"seed": "seed"} if self.stochastic else {})

    @property
    def advances_on_device(self):
        """True if the number that advances the random numbers is in device memory."""
        return any(s.name == self.advance for s in self.device_numbers)

    @property
    def read_lists(self):
        """Lists but the copies, each with the list that stands for it if it is not NULL."""
        return [
            (s, self.master if s.name == self.master_of else None)
            for s in self.lists
            if s.kind != MASTER
        ]

    def on_device(self, name):
        """True if a value depends on numbers in device memory."""
        read = self.once_graph.variables([self.once[name]])
        return bool(read & {s.name for s in self.device_numbers})

    @property
    def call_values(self):
        """Values that expressions read and a call computes once."""
        return self.elementwise_names

    tensor_values = sums_of = ()

    @property
    def passes(self):
        """[(graph, {result: node})]: what is computed before the results of the next graph."""
        return [(self.graph, {s.next_name: s.exprs[0] for s in self.updated if s.kind != MASTER})]

    @property
    def host_values(self):
        """Values that expressions read and the host computes."""
        return [n for n in self.elementwise_names if not self.on_device(n)]

    @property
    def device_values(self):
        """Values that expressions read and each block computes from numbers in device memory."""
        return [n for n in self.elementwise_names if self.on_device(n)]

    @property
    def device_scalars(self):
        """Scalars that the device values read."""
        read = self.once_graph.variables([self.once[n] for n in self.device_values])
        return [s for s in (*self.integers, *self.scalars) if s in read]

    @property
    def unread_scalars(self):
        """Scalars and integers that the function does not read."""
        read = self.once_graph.variables([self.once[n] for n in self.elementwise_names])
        random = {"seed", "offset", self.advance} if self.stochastic else set()
        return [s for s in (*self.flat_integers, *self.scalars) if s not in read | random]

    def formulas(self, by):
        """Formulas of a call: its values, then the updates."""
        once = [contract.assigned(name, text) for name, text in self.op.own["once"].items()]
        return ["; ".join(once)] * bool(once) + contract.of_elements(self, by)
