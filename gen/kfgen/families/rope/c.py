# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in C: blocks of a head's pairs, in loops that compilers vectorise."""

import functools

from kfgen.language.emit import emit
from kfgen.model.schedule import C


class RopeC(C):
    @functools.cached_property
    def code(self):
        """(lines, texts of the two results)."""
        env = {p: f"{p}_j" for s in self.k.paired for p in s.parts} | {
            s.name: f"{s.name}_j" for s in self.k.read_angles
        }
        env[self.k.number.name] = "kfi_position"
        return emit(self.k.graph, self.k.roots, self.target(self.k.acts[0]), env, fixed={})

    @property
    def results(self):
        return list(zip(self.k.outputs[0].parts, self.code[1]))

    @property
    def run_parameters(self):
        found = [f"{a.ctype}{a.name}" for a in self.k.tensor_arguments] + [
            f"int64_t {s}" for s in self.k.sizes
        ]
        return ", ".join([*found, "const void *kfi_scalars"])

    def run_arguments(self, launcher):
        found = [a.name for a in self.k.tensor_arguments] + self.k.sizes
        return ", ".join([*found, "kfi_scalars" if launcher.scalar_values else "NULL"])

    def listing(self, act):
        """The computation in order, for readers."""
        return [*self.code[0], *(f"{part}[j] = {text};" for part, text in self.results)]
