# SPDX-License-Identifier: Apache-2.0
"""Kernels that add up a value of each element over all tensors of lists, and update numbers in
device memory: norms, and whether an element is not finite.
"""

import functools

from kfgen.families.optimizer import once
from kfgen.families.optimizer.cuda import SIZES, emitted
from kfgen.model import contract, steps
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.schedule import C, Cuda
from kfgen.model.steps import PARTIALS, Instance, Launch, Step

VALUE = "value"


def number_texts(k, sums):
    """[(number, text of its next value)]. sums: text of the totals, with {} for their index."""
    read = {s.name: f"kfi_number_{s.name}" for s in k.device_numbers}
    read |= {name: f"(double){name}" for name in k.integers}
    read |= {name: sums.format(i) for i, name in enumerate(k.sums_of)}
    return [(s, once.in_c(k.once_graph, k.once[s.next_name], read)) for s in k.updated]


class SumsCuda(Cuda):
    template, run_template = "sums", "run_sums"

    @property
    def instances(self):
        """The kernels for a small and a large table, and the one that updates the numbers."""
        of_chunks = [Instance(f"kfk_{self.k.name}", ("act", size)) for size in SIZES]
        return [*of_chunks, Instance(f"kfk_last_{self.k.name}", ("act",))]

    @functools.cached_property
    def code(self):
        return emitted(self.k, self.target(frozenset()), "{}_f[e]")

    @property
    def vec(self):
        return 16 // max(s.dtype.size for s in self.k.lists)  # 16 bytes of the widest list

    @property
    def value_texts(self):
        """[(number, text of its next value)]."""
        return number_texts(self.k, "kfi_total[{}]")

    @property
    def buffers(self):
        """Parts of the workspace: {name: what it holds}."""
        return {PARTIALS: "each block's sums, in float64"}

    @property
    def workspace_bytes(self):
        """Bytes of the workspace."""
        return f"KFI_SUM_SLOTS * {8 * len(self.k.sums_of)}"

    @functools.cached_property
    def steps(self):
        lists, numbers = steps.names(self.k.lists), steps.names(self.k.device_numbers)
        return [
            Step(
                "adds up the elements of each block's chunks",
                (Launch(tuple(self.instances[:2]), "512", "256"),),
                lists,
                (PARTIALS,),
                per=("for each table of tensors",),
            ),
            Step(
                "adds up the blocks' sums and updates the numbers",
                (Launch((self.instances[2],), "1", "256"),),
                (PARTIALS, *numbers),
                steps.names(self.k.updated),
            ),
        ]

    def listing(self):
        return [*self.code[0], *self.code[1]]


class SumsC(C):
    @functools.cached_property
    def code(self):
        return emitted(self.k, self.target(self.k.acts[0]), "{}_f[j]")

    @property
    def value_texts(self):
        """[(number, text of its next value)]."""
        return number_texts(self.k, "kfi_total[{}]")

    @property
    def workspace_bytes(self):
        """Bytes of the workspace."""
        return self.k.cuda.workspace_bytes

    @property
    def run_parameters(self):
        k = self.k
        found = [f"{a.ctype}{a.name}" for a in (*k.tensor_arguments, *k.list_arguments)]
        return ", ".join(
            [*found, "const double *kfi_scalars, void *workspace", "size_t workspace_bytes"]
        )

    def run_arguments(self, launcher):
        k = self.k
        found = [a.name for a in (*k.tensor_arguments, *k.list_arguments)]
        scalars = "kfi_scalars" if launcher.scalar_values else "NULL"
        return ", ".join([*found, scalars, "workspace", "workspace_bytes"])

    def listing(self, act):
        return [*self.code[0], *self.code[1]]


class SumsKernel(Kernel):
    """Sums over all elements of lists, which update numbers."""

    name_fields = (*Kernel.name_fields, "once", "sums_of")
    form = "lists"
    scalar_ctype = "double"
    scratch = has_workspace = True
    size_parameters = size_types = "void"
    master = None
    order_note = ", sums in float64 in a fixed order"

    @functools.cached_property
    def cuda(self):
        return SumsCuda(self)

    @functools.cached_property
    def c(self):
        return SumsC(self)

    def _build(self):
        op = self.op
        self.graph, env, _ = self.family.graph(op)
        self.once_graph, self.once = self.family.once(op)
        self.sums_of = list(op.own["sums"])
        self.inputs, self.outputs = [self._operand(o) for o in op.operands], []
        self.roots = [env[name] for name in self.sums_of]
        self.streams, self.keeps = self.inputs, False
        self.scalars, self.integers = list(op.scalars), []

    def _operand(self, o):
        return Tensor(
            o.name,
            o.kind,
            self.dtype_of(o.dtype),
            "inout" if o.name in self.op.updates else "in",
            "input",
            o.dtype,
            o.values,
            is_list=o.kind in self.family.lists,
            absent=o.absent,
        )

    @property
    def is_sum(self):
        """True for kernels that add up elements."""
        return True

    @property
    def device_numbers(self):
        """Tensors of one number."""
        return [s for s in self.inputs if s.kind == VALUE]

    @property
    def unread_scalars(self):
        """Scalars that the function does not read."""
        read = self.once_graph.variables([self.once[s.next_name] for s in self.updated])
        return [s for s in self.scalars if s not in read]

    def formulas(self, by):
        """Formulas of a call: its sums, its values, then the updates."""
        sums = [f"{n} = sum over all elements of {t}" for n, t in self.op.own["sums"].items()]
        once_ = [contract.assigned(name, text) for name, text in self.op.own["once"].items()]
        return sums + once_ + contract.of_elements(self, by)
