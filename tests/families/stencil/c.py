# SPDX-License-Identifier: Apache-2.0
"""C schedule of the example family: one element after the other."""

import functools

from kfgen.families.stencil.cuda import values
from kfgen.model.schedule import C


class StencilC(C):
    @functools.cached_property
    def code(self):
        return values(self.k, self.target(self.k.acts[0]))

    def run_arguments(self, launcher):
        found = [a.name for a in self.k.tensor_arguments] + self.k.sizes
        return ", ".join([*found, "kfi_scalars" if launcher.scalar_values else "NULL"])

    def listing(self, act):
        return [line for lines, text in self.code for line in (*lines, text)]
