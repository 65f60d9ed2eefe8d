# SPDX-License-Identifier: Apache-2.0
"""C schedule of optimizers: loops over parts of a chunk, which compilers vectorise."""

import functools

from kfgen.families.optimizer import once
from kfgen.families.optimizer.cuda import emitted, results
from kfgen.model.schedule import C


class OptimizerC(C):
    @functools.cached_property
    def code(self):
        return emitted(self.k, self.target(self.k.acts[0]), "{}_f[j]")

    @property
    def results(self):
        return results(self.k, self.code[1])

    @property
    def value_texts(self):
        """[(value, its text)] of the values that expressions read, computed once per call."""
        k = self.k
        read = {s.name: f"kfi_number_{s.name}" for s in k.device_numbers}
        read |= {name: f"(double){name}" for name in k.integers}
        return [(n, once.in_c(k.once_graph, k.once[n], read)) for n in k.elementwise_names]

    @property
    def host_texts(self):
        """The same of the values that the host computes for CUDA."""
        return [(n, text) for n, text in self.value_texts if n in self.k.host_values]

    @property
    def run_parameters(self):
        k = self.k
        found = [f"{a.ctype}{a.name}" for a in (*k.tensor_arguments, *k.list_arguments)]
        return ", ".join([*found, "const kf_i64 *kfi_integers", "const double *kfi_scalars"])

    def run_arguments(self, launcher):
        k = self.k
        found = [a.name for a in (*k.tensor_arguments, *k.list_arguments)]
        integers = "kfi_integers" if k.flat_integers else "NULL"
        return ", ".join([*found, integers, "kfi_scalars" if launcher.scalar_values else "NULL"])

    def listing(self, act):
        return [*self.code[0], *self.code[1]]
