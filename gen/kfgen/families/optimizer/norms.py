# SPDX-License-Identifier: Apache-2.0
"""Kernels of optimizers that read sums over the elements of each tensor, such as norms.

Two launches per table of tensors: the first one updates the lists that do not depend on the sums
and adds up each tensor's slots, the second one updates the others.
"""

import functools

from kfgen.families.optimizer import once
from kfgen.families.optimizer.c import OptimizerC
from kfgen.families.optimizer.cuda import SIZES, OptimizerCuda, emitted
from kfgen.families.optimizer.kernel import MASTER, VALUE, OptimizerKernel
from kfgen.language.expr import ExprError, parse
from kfgen.model import contract, derive, steps
from kfgen.model.entries import updated
from kfgen.model.steps import PARTIALS, Instance, Launch, Step


class Pass:
    """A pass over the elements of each tensor, as a backend writes it.

    Args:
        k: the kernel.
        target: how the backend writes expressions.
        element: text of an element of a list.
        last: False: the lists that do not depend on sums, then the sums; True: the other lists.
    """

    def __init__(self, k, target, element, last):
        self.k, self.last = k, last
        streams = [s for s in k.updated if s is not k.master and (s.name in k.applied) == last]
        graph, roots = k.after[int(last)] if last else (k.graph, [s.exprs[0] for s in streams])
        lines, texts = emitted(k, target, element, graph, roots)
        self.code, self.results = lines, [*zip(streams, texts)]
        sums = ([], []) if last else emitted(k, target, element, *k.after[0])
        self.sum_code, self.sums = sums
        read = graph.variables(roots) | (set() if last else k.after[0][0].variables(k.after[0][1]))
        # Lists that the pass reads, each with the list that stands for it if it is not NULL.
        self.read_lists = [
            (s, m) for s, m in k.read_lists if {s.name, s.next_name} & read or s in streams
        ]
        self.values = [n for n in k.elementwise_names if n in read]
        own = k.once_graph.variables([k.once[n] for n in self.values])
        # Numbers in device memory that the pass reads.
        self.numbers = [s for s in k.device_numbers if s.name in own or s is k.skip]
        self.master = k.master if last == (k.master_of in k.applied) else None

    @property
    def call_values(self):
        """Values of a call that the pass reads."""
        return [n for n in self.values if n in self.k.call_values]

    @property
    def lists(self):
        """Lists that the pass reads or writes."""
        found = [s for s, _ in self.read_lists]
        return found + [m for _, m in self.read_lists if m]

    @property
    def written(self):
        """Lists that the pass writes."""
        return [s for s, _ in self.results] + ([self.master] if self.master else [])

    @property
    def narrow(self):
        """Updated lists whose next values the sums read as they are stored, rounded."""
        own = self.k.dtype.compute
        return [s for s, _ in self.results if self.sums and s.dtype.word != own]


class NormsCuda(OptimizerCuda):
    template, run_template = "norms", "run_norms"

    @property
    def instances(self):
        """The kernels of the first pass for a small and a large table, then of the second one."""
        names = (f"kfk_{self.k.name}", f"kfk_apply_{self.k.name}")
        return [Instance(name, ("act", size)) for name in names for size in SIZES]

    @functools.cached_property
    def passes(self):
        """The passes over the elements."""
        target = self.target(frozenset())
        return [Pass(self.k, target, "{}_f[e]", last) for last in (False, True)]

    def values_of(self, one):
        """[(value, its text)] of the values that each block of a pass computes."""
        texts = dict(self.value_texts)
        return [(n, texts[n]) for n in one.values if n in texts]

    @property
    def value_texts(self):
        """[(value, its text)] of the values that blocks compute."""
        k = self.k
        read = {n: f"{n}_d" for n in (*k.device_scalars, *steps.names(k.device_numbers))}
        read |= {name: f"kfi_total[{i}]" for i, name in enumerate(k.sums_of)}
        return [(n, once.in_c(k.once_graph, k.once[n], read)) for n in k.device_values]

    @property
    def buffers(self):
        """Parts of the workspace: {name: what it holds}."""
        return {PARTIALS: "the sums of each slot, in float64"}

    @property
    def workspace_bytes(self):
        """Bytes of the workspace."""
        return f"KFI_TENSOR_SLOTS_ALL * {8 * len(self.k.sums_of)}"

    @functools.cached_property
    def steps(self):
        first, last = self.passes
        numbers, per = steps.names(self.k.device_numbers), ("for each table of tensors",)
        grid = "up to 512 blocks per tensor, one per 8,192 elements or more"
        launches = [Launch(tuple(self.instances[i : i + 2]), grid, "256") for i in (0, 2)]
        return [
            Step(
                "updates what depends on no sum, and adds up the elements of each slot",
                launches[:1],
                (*steps.names(first.lists), *numbers),
                (*steps.names(first.written), PARTIALS),
                per=per,
            ),
            Step(
                "adds up the slots of each tensor and updates the others",
                launches[1:],
                (PARTIALS, *steps.names(last.lists), *numbers),
                steps.names(last.written),
                per=per,
            ),
        ]

    def listing(self):
        first, last = self.passes
        texts = [text for one in (first, last) for _, text in one.results]
        return [*first.code, *first.sum_code, *first.sums, *last.code, *texts]


class NormsC(OptimizerC):
    @functools.cached_property
    def passes(self):
        """The passes over the elements."""
        target = self.target(self.k.acts[0])
        return [Pass(self.k, target, "{}_f[j]", last) for last in (False, True)]

    def index(self, value):
        """Place of a value of a call among the arguments of a pass."""
        return self.k.call_values.index(value)

    @property
    def tensor_texts(self):
        """[(value of a tensor, its text)]."""
        k = self.k
        read = {name: f"kfi_given->numbers[{i}]" for i, name in enumerate(k.tensor_reads)}
        read |= {name: f"kfi_total[{i}]" for i, name in enumerate(k.sums_of)}
        return [(n, once.in_c(k.once_graph, k.once[n], read)) for n in k.tensor_values]

    @property
    def number_texts(self):
        """Texts of the numbers that values of tensors read."""
        numbers = steps.names(self.k.device_numbers)
        return [f"kfi_number_{n}" if n in numbers else n for n in self.k.tensor_reads]

    @property
    def value_texts(self):
        """[(value, its text)] of the values that a call computes once."""
        k = self.k
        read = {s.name: f"kfi_number_{s.name}" for s in k.device_numbers}
        read |= {name: f"(double){name}" for name in k.integers}
        return [(n, once.in_c(k.once_graph, k.once[n], read)) for n in k.call_values]

    @property
    def workspace_bytes(self):
        """Bytes of the workspace."""
        return self.k.cuda.workspace_bytes

    @property
    def run_parameters(self):
        return super().run_parameters + ", void *workspace, size_t workspace_bytes"

    def run_arguments(self, launcher):
        return super().run_arguments(launcher) + ", workspace, workspace_bytes"

    def listing(self, act):
        first, last = self.passes
        texts = [text for one in (first, last) for _, text in one.results]
        return [*first.code, *first.sum_code, *first.sums, *last.code, *texts]


class NormsKernel(OptimizerKernel):
    name_fields = (*OptimizerKernel.name_fields, "sums_of", "applied")
    scratch = has_workspace = True
    size_parameters = size_types = "void"
    order_note = ", sums in float64 in a fixed order"

    @functools.cached_property
    def cuda(self):
        return NormsCuda(self)

    @functools.cached_property
    def c(self):
        return NormsC(self)

    def _build(self):
        super()._build()
        own = self.op.own
        self.sums_of = list(own["tensor_sums"])
        of_tensors = {*own["tensor_sums"], *own["tensor_once"]}
        # Lists whose next values depend on sums over their tensors.
        self.applied = [
            s.name
            for s in self.inputs
            if s.role == "inout" and s.kind != MASTER and self.graph.variables(s.exprs) & of_tensors
        ]
        kept = [name for name in self.op.updates if name not in self.applied]
        texts = {updated(n): t for n, t in self.op.updates.items() if n in self.applied}
        # [(graph, nodes)] of the sums and of the lists that depend on them, which read the next
        # values of the others from memory.
        self.after = [
            self._graph_after(kept, own["tensor_sums"], "tensor_sums"),
            self._graph_after(kept, texts, "updates"),
        ]
        lists = {n for s in self.lists for n in (s.name, s.next_name)}
        read = set().union(*(graph.variables(roots) for graph, roots in self.after))
        read |= self.graph.variables(self.roots)
        self.elementwise_names = sorted(read - lists)

    def _graph_after(self, kept, texts, field):
        """Returns (graph, [node of each text])."""
        graph, env = self.family.graph_after(self.op, kept)
        found = {}
        for name in derive.in_order(texts):
            try:
                found[name] = env[name] = parse(graph, texts[name], env)
            except ExprError as e:
                e.field = field
                raise
        return graph, [found[name] for name in texts]

    def _of_tensors(self, name):
        return bool(self.once_graph.variables([self.once[name]]) & {*self.sums_of})

    def on_device(self, name):
        """True if a value depends on numbers in device memory or on sums of a tensor."""
        return super().on_device(name) or self._of_tensors(name)

    @property
    def tensor_values(self):
        """Values that expressions read and that depend on sums of a tensor."""
        return [n for n in self.elementwise_names if self._of_tensors(n)]

    @property
    def call_values(self):
        """Values that expressions read and a call computes once."""
        return [n for n in self.elementwise_names if not self._of_tensors(n)]

    @property
    def tensor_reads(self):
        """Scalars and numbers that the values of tensors read."""
        read = self.once_graph.variables([self.once[n] for n in self.tensor_values])
        return [n for n in (*self.integers, *self.scalars, *self.number_names) if n in read]

    @property
    def number_names(self):
        """Names of the tensors of one number."""
        return [s.name for s in self.inputs if s.kind == VALUE]

    @property
    def passes(self):
        """[(graph, {result: node})]: what is computed before the results of the next graph."""
        kept = [s for s in self.updated if s.kind != MASTER and s.name not in self.applied]
        applied = [s for s in self.updated if s.name in self.applied]
        (sums, nodes), (last, roots) = self.after
        return [
            (self.graph, {s.next_name: s.exprs[0] for s in kept}),
            (sums, dict(zip(self.sums_of, nodes))),
            (last, {s.next_name: root for s, root in zip(applied, roots)}),
        ]

    def formulas(self, by):
        """Formulas of a call: its values, those of each tensor, then the updates."""
        own = self.op.own
        found = [
            f"{contract.assigned(*of)}, summed over a tensor" for of in own["tensor_sums"].items()
        ]
        found += [contract.assigned(*of) for of in own["tensor_once"].items()]
        values = len(own["once"]) > 0
        every = super().formulas(by)
        return [*every[:values], "; ".join(found), *every[values:]]
