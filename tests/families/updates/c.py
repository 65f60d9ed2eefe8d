# SPDX-License-Identifier: Apache-2.0
"""C schedule of the example family: a loop over the elements of a chunk."""

import functools

from kfgen.families.updates.cuda import values
from kfgen.model.schedule import C


class UpdatesC(C):
    @functools.cached_property
    def code(self):
        return values(self.k, self.target(self.k.acts[0]))

    def run_arguments(self, launcher):
        k = self.k
        found = [a.name for a in k.tensor_arguments + k.list_arguments] + k.sizes
        return ", ".join([*found, "kfi_scalars" if launcher.scalar_values else "NULL"])

    def listing(self, act):
        return [*self.code[0], *self.code[1]]
