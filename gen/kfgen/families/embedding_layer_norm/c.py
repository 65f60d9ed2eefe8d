# SPDX-License-Identifier: Apache-2.0
"""The family `normed_lookup` in C: each pass over a row a part of it at a time, gathered anew, in loops that compilers vectorise."""

import functools

from kfgen.emit import emit
from kfgen.families.embedding.c import ByNumberC
from kfgen.passes import program
from kfgen.words import COUNT, PER_COUNT


class EmbeddingLayerNormC(ByNumberC):
    @functools.cached_property
    def gather(self):
        """(lines, a text for each value that is gathered)."""
        return emit(
            self.k.graph,
            list(self.k.gathered),
            self.target(self.k.acts[0]),
            {s.name: f"{s.name}_f[j]" for s in self.k.tables},
            fixed={},
        )

    @functools.cached_property
    def program(self):
        graph, roots = self.k.inner
        env = {name: f"{name}_f[j]" for name in self.k.gathered.values()} | {
            s.name: f"{s.name}_f[j]" for s in self.k.elems + self.k.weights
        }
        env |= {s.name: f"{s.name}_i" for s in self.k.values} | {
            COUNT: "kfi_count",
            PER_COUNT: "kfi_per_count",
        }
        return program(graph, roots, self.target(self.k.acts[0]), env)

    @property
    def workspace_bytes(self):
        k = self.k
        return f"kfi_cpu_gathering_workspace({', '.join(k.sizes)}, {len(k.planes)}, {len(k.sums)}, {k.dtype.acc.size})"

    def listing(self, act):
        """What is computed, in order, for a reader."""
        made = [f"{name} = {text};" for name, text in zip(self.k.gathered.values(), self.gather[1])]
        return [*self.gather[0], *made, *self.program.listing()]
