# SPDX-License-Identifier: Apache-2.0
"""Embeddings in C: parts of a row, in loops that compilers vectorise."""

import functools

from kfgen.language.emit import emit
from kfgen.model.schedule import C


class ByNumberC(C):
    """Parameters and arguments of a run function with integer scalars."""

    @property
    def run_parameters(self):
        found = [f"{a.ctype}{a.name}" for a in self.k.tensor_arguments] + [
            f"int64_t {s}" for s in self.k.sizes
        ]
        found += ["const kf_i64 *kfi_integers", "const void *kfi_scalars"]
        return ", ".join(found + [f"{a.ctype}{a.name}" for a in self.workspace_arguments])

    def run_arguments(self, launcher):
        found = [a.name for a in self.k.tensor_arguments] + self.k.sizes
        found += ["kfi_integers", "kfi_scalars" if launcher.scalar_values else "NULL"]
        return ", ".join(found + [a.name for a in self.workspace_arguments])


class EmbeddingC(ByNumberC):
    @functools.cached_property
    def code(self):
        """(lines, text of the result)."""
        lines, [text] = emit(
            self.k.graph,
            self.k.roots,
            self.target(self.k.acts[0]),
            {s.name: f"{s.name}_j" for s in self.k.inputs},
            fixed={},
        )
        return lines, text

    @property
    def read(self):
        """Tensors that the expression reads (at most two); the one with the result's rows first."""
        return sorted(
            (s for s in self.k.inputs if s.reads != "never" and s is not self.k.number),
            key=lambda s: s.kind == "table",
        )

    @property
    def workspace_bytes(self):
        return "kfi_cpu_embedding_workspace(rows, cols, vocab)"

    def listing(self, act):
        """The computation in order, for readers."""
        result = self.k.outputs[0].name
        return [
            *self.code[0],
            f"{result}_s[j] += {self.code[1]};" if self.k.bwd else f"{result}[j] = {self.code[1]};",
        ]
