# SPDX-License-Identifier: Apache-2.0
"""C schedule of the example family: one element of a result after the other."""

from kfgen.model.schedule import C


class Conv1dC(C):
    def run_arguments(self, launcher):
        return ", ".join([a.name for a in self.k.tensor_arguments] + self.k.size_names)

    def listing(self, act):
        return self.k.formulas(False)
