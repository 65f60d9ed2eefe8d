# SPDX-License-Identifier: Apache-2.0
"""C schedule of `embedding_layer_norm`: each pass processes parts of a row, gathered anew, in
vectorisable loops.
"""

import functools

from kfgen.families.embedding.c import ByNumberC
from kfgen.language.emit import emit
from kfgen.language.passes import program
from kfgen.language.primitives import COUNT, PER_COUNT


class EmbeddingLayerNormC(ByNumberC):
    @functools.cached_property
    def gather(self):
        """(lines, text of each gathered value)."""
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
        more = f"{len(k.planes)}, {len(k.sums)}, {k.dtype.acc.size}"
        return f"kfi_cpu_gathering_workspace({', '.join(k.sizes)}, {more})"

    def listing(self, act):
        """The computed statements in order, for documentation."""
        made = [f"{name} = {text};" for name, text in zip(self.k.gathered.values(), self.gather[1])]
        return [*self.gather[0], *made, *self.program.listing()]
