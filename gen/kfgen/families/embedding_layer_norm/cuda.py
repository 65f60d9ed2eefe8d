# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of `embedding_layer_norm`: some warps share a row, in registers or gathered
again in each pass. Gradients of the tables follow from the rows' gradients in the workspace, by
sorted indices.
"""

import functools

from kfgen.families.embedding.cuda import SORT
from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.language.emit import emit
from kfgen.language.passes import program
from kfgen.language.primitives import COUNT, PER_COUNT
from kfgen.model.schedule import CHEAP, Instance


class EmbeddingLayerNormCuda(OverRowsCuda):
    @property
    def vec(self):
        return 16 // self.k.dtype.size

    @property
    def held(self):
        """Vectors of a row per thread in registers. A backward has as many sums per weight next to
        them.
        """
        return 3 if self.k.bwd else 4

    @property
    def blocks(self):
        """Launch bound: minimum blocks per SM of a forward."""
        return f"alone ? (held < {self.held} ? 4 : 3) : 1"

    @property
    def row_target(self):
        return self.target(frozenset() if self.k.bwd else CHEAP)  # the terms of sums cancel

    @functools.cached_property
    def gather(self):
        """(lines, text of each gathered value)."""
        return emit(
            self.k.graph,
            list(self.k.gathered),
            self.row_target,
            {s.name: f"{s.name}_f[e]" for s in self.k.tables},
            fixed={},
        )

    @functools.cached_property
    def program(self):
        graph, roots = self.k.inner
        env = {name: f"{name}_f[h][e]" for name in self.k.gathered.values()} | {
            s.name: f"{s.name}_f[e]" for s in self.k.elems + self.k.weights
        }
        env |= {s.name: f"{s.name}_i" for s in self.k.values} | {
            COUNT: "count",
            PER_COUNT: "per_count",
        }
        return program(graph, roots, self.row_target, env)

    @property
    def passed(self):
        """Tensors that the kernel takes: (read, written)."""
        return [*self.k.tables, *self.k.numbers, *self.k.weights, *self.k.values, *self.k.elems], [
            *self.k.stores,
            *self.k.results_of_rows,
        ]

    @property
    def kernel_parameters(self):
        read, written = self.passed
        found = [f"const {s.dtype.device} *{s.name}" for s in read] + [
            f"{s.dtype.device} *{s.name}" for s in written
        ]
        return ", ".join(
            [
                *found,
                "kfi_gathering g",
                *(f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars),
            ]
        )

    @property
    def kernel_arguments(self):
        return ", ".join(
            f"&{name}"
            for name in [*(s.name for s in sum(self.passed, [])), "kfi_g", *self.k.used_scalars]
        )

    @property
    def fields(self):
        """Fields of kfi_gather_op: (name, value, comment)."""
        k = self.k
        return [
            ("vec", self.vec, "elements per vector"),
            ("held", self.held, "vectors per thread in registers"),
            ("acc_size", k.dtype.acc.size, "bytes of an accumulator"),
            ("planes", len(k.planes), ""),
            ("sums", len(k.sums), "gradients summed over the rows"),
        ]

    @property
    def table_fields(self):
        """Fields of kfi_gather_tables: (name, value, comment)."""
        k, columns = self.k, {}
        columns["numbers"] = [s.name for s in k.numbers]
        columns["out"] = [s.name for s in k.table_sums]
        columns["skipped"] = k.skipped
        columns["plane"] = k.plane_numbers
        found = [
            (f"{name}[{i}]", value, "") for name in columns for i, value in enumerate(columns[name])
        ]
        return [*found, ("beta", "(double)beta", "")]

    @property
    def workspace_bytes(self):
        k = self.k
        more = f"{len(k.planes)}, {len(k.sums)}, {k.dtype.acc.size}"
        return f"kfi_gathering_workspace({', '.join(k.sizes)}, {more})"

    @property
    def own_instances(self):
        found = [(self.vec, self.held, 1), (self.vec, self.held, 0), (self.vec, 0, 0), (1, 0, 0)]
        if not self.k.bwd:  # rows of 768 columns have three vectors per thread of a warp
            found.append((self.vec, self.held - 1, 1))
        return [Instance(f"kfk_{self.k.name}", ("act", *arguments)) for arguments in found]

    @property
    def table_instances(self):
        """Kernels that sort a table's indices, then sum the rows' gradients."""
        number, acc = (
            f"KF_{dtype.word.upper()}" for dtype in (self.k.numbers[0].dtype, self.k.dtype.acc)
        )
        vectors = (16 // self.k.dtype.acc.size, 1)
        return [
            *([Instance(f"kfk_index_{word}", (number,))] for word in SORT),
            [Instance("kfk_gathered_runs", (acc, number, vec)) for vec in vectors],
            [
                Instance("kfk_gathered_sum", (acc, f"KF_{self.k.dtype.word.upper()}", vec))
                for vec in vectors
            ],
        ]

    @property
    def instances(self):
        """Kernels in the order of core/embedding_layer_norm/embedding_layer_norm.cuh."""
        return self.own_instances + (sum(self.table_instances, []) if self.k.bwd else [])

    @property
    def stage_instances(self):
        return [
            self.own_instances,
            *(self.table_instances if self.k.bwd else []),
            *([self.sum_kernels] if self.k.added else []),
        ]

    @property
    def sum_kernels(self):
        return self.second_stage("kfk_sum_partials")

    def listing(self):
        """The computed statements in order, for documentation."""
        made = [f"{name} = {text};" for name, text in zip(self.k.gathered.values(), self.gather[1])]
        return [*self.gather[0], *made, *self.program.listing()]
