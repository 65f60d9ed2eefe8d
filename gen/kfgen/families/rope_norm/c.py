# SPDX-License-Identifier: Apache-2.0
"""C schedule of the family `rope_norm`: each pass processes parts of a head in vectorisable
loops.
"""

import functools

from kfgen.families.rope.c import RopeC
from kfgen.language.passes import program
from kfgen.language.primitives import COUNT, PER_COUNT


class RopeNormC(RopeC):
    @functools.cached_property
    def program(self):
        env = {name: f"{name}_f[j]" for name in ("head", "weight", "dy")} | {
            COUNT: "kfi_count",
            PER_COUNT: "kfi_per_count",
        }
        return program(self.k.norm, dict(self.k.normed), self.target(self.k.acts[0]), env)

    @property
    def workspace_bytes(self):
        sizes = "rows, heads, kv_heads, dim, pairs, positions"
        return f"kfi_cpu_heads_workspace({sizes}, {self.k.dtype.acc.size})"

    @property
    def run_parameters(self):
        return ", ".join(
            [super().run_parameters, *(f"{a.ctype}{a.name}" for a in self.workspace_arguments)]
        )

    def run_arguments(self, launcher):
        return ", ".join(
            [super().run_arguments(launcher), *(a.name for a in self.workspace_arguments)]
        )

    def listing(self, act):
        """The computed statements in order, for documentation."""
        turned = super().listing(act)
        return (
            [*turned, *self.program.listing()] if self.k.bwd else [*self.program.listing(), *turned]
        )
