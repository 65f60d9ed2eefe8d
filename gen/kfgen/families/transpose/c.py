# SPDX-License-Identifier: Apache-2.0
"""Copies to another layout in C: blocks of a matrix through a buffer in the L1 cache."""

from kfgen.model.schedule import C


class TransposeC(C):
    @property
    def run_parameters(self):
        found = [f"{a.ctype}{a.name}" for a in self.k.tensor_arguments]
        return ", ".join(found + [f"int64_t {s}" for s in self.k.sizes])

    def run_arguments(self, launcher):
        return ", ".join([*(a.name for a in self.k.tensor_arguments), *self.k.sizes])

    def listing(self, act):
        """The computation, for readers."""
        return self.k.cuda.listing()
