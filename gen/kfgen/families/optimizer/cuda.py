# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of optimizers: one block per chunk of a tensor, vectors of 16 bytes."""

import functools

from kfgen.families.optimizer import once
from kfgen.language.emit import emit
from kfgen.model import steps
from kfgen.model.schedule import Cuda
from kfgen.model.steps import Instance, Launch, Step

SIZES = ("KFI_LIST_SMALL", "KFI_LIST_LARGE")  # tables of tensors


def results(k, texts):
    """Returns [(list, text of its next value)] of the lists that are updated, without copies."""
    return [x for x in zip(k.updated, texts) if x[0] is not k.master]


def emitted(k, target, element, graph=None, roots=None):
    """Returns (lines, [text of each root]), by default of the kernel's. element: text of an element
    of a list.
    """
    names = {n: element.format(s.name) for s in k.lists for n in (s.name, s.next_name)}
    if graph is None:
        graph, roots = k.graph, k.roots
    return emit(graph, roots, target, names)


class OptimizerCuda(Cuda):
    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act", size)) for size in SIZES]

    @functools.cached_property
    def code(self):
        return emitted(self.k, self.target(frozenset()), "{}_f[e]")

    @property
    def results(self):
        return results(self.k, self.code[1])

    @property
    def vec(self):
        return 16 // max(s.dtype.size for s in self.k.lists)  # 16 bytes of the widest list

    @property
    def parameters(self):
        """Parameters of the kernel after the table."""
        k = self.k
        found = [f"const {s.dtype.device} *{s.name}_at" for s in k.device_numbers]
        found += [f"double {name}_d" for name in k.device_scalars]
        found += [f"{k.dtype.compute_ctype} {name}" for name in k.host_values]
        found += ["kfi_rng kfi_random"] * k.stochastic
        return "".join(f", {text}" for text in found)

    @property
    def value_texts(self):
        """[(value, its text)] of the values that each block computes."""
        k = self.k
        read = {
            name: f"{name}_d" for name in (*k.device_scalars, *(s.name for s in k.device_numbers))
        }
        return [(n, once.in_c(k.once_graph, k.once[n], read)) for n in k.device_values]

    @functools.cached_property
    def steps(self):
        launch = Launch(tuple(self.instances), "one block per 8,192 elements of a tensor", "256")
        return [
            Step(
                "updates the elements",
                (launch,),
                steps.names(self.k.inputs),
                steps.names(self.k.updated),
                per=("for each table of tensors",),
            )
        ]

    def listing(self):
        return [*self.code[0], *self.code[1]]
