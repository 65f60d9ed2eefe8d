# SPDX-License-Identifier: Apache-2.0
"""The family `normed_pairs` in C: each pass over a head a part of it at a time, in loops that compilers vectorise."""

import functools

from kfgen.families.rope.c import RopeC
from kfgen.passes import program
from kfgen.words import COUNT, PER_COUNT


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
        return f"kfi_cpu_heads_workspace(rows, heads, kv_heads, dim, pairs, positions, {self.k.dtype.acc.size})"

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
        """What is computed, in order, for a reader."""
        turned = super().listing(act)
        return (
            [*turned, *self.program.listing()] if self.k.bwd else [*self.program.listing(), *turned]
        )
