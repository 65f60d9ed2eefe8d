# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of the example family: one thread per element of a result."""

from kfgen.model.schedule import Cuda, Instance


class Conv1dCuda(Cuda):
    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act",))]

    def listing(self):
        return self.k.formulas(False)
