# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of `embedding_layer_norm`: some warps share a row, in registers or gathered
again in each pass. Gradients of the tables follow from the rows' gradients in the workspace, by
sorted indices.
"""

import functools
from dataclasses import replace

from kfgen.families.embedding.cuda import SORTED, sort_instances, sort_steps
from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.language.emit import emit
from kfgen.language.passes import program
from kfgen.language.primitives import COUNT, PER_COUNT
from kfgen.model import steps
from kfgen.model.schedule import CHEAP
from kfgen.model.steps import PARTIALS, Instance, Launch, Step

ROW_GRADIENTS, CUTS = "workspace.row_gradients", "workspace.cuts"
TABLE = "table"  # loop around the steps of a table's gradient


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
        """Kernels that sum the rows' gradients: of runs up to a cut, and of a table's rows."""
        number, acc = (
            f"KF_{dtype.word.upper()}" for dtype in (self.k.numbers[0].dtype, self.k.dtype.acc)
        )
        vectors = (16 // self.k.dtype.acc.size, 1)
        return [
            [Instance("kfk_gathered_runs", (acc, number, vec)) for vec in vectors],
            [
                Instance("kfk_gathered_sum", (acc, f"KF_{self.k.dtype.word.upper()}", vec))
                for vec in vectors
            ],
        ]

    @property
    def instances(self):
        """Kernels in the order of core/embedding_layer_norm/embedding_layer_norm.cuh."""
        if not self.k.bwd:
            return self.own_instances
        sort = sort_instances(self.k.numbers[0].dtype)
        return [*self.own_instances, *sort, *sum(self.table_instances, [])]

    @property
    def buffers(self):
        if not self.k.bwd:
            return {}
        return {
            ROW_GRADIENTS: "gradients of the rows' gathered values",
            CUTS: "sums of runs of equal indices, up to each cut",
            **super().buffers,
            SORTED: "a table's row indices sorted by index, and where each index begins",
        }

    @functools.cached_property
    def steps(self):
        k = self.k
        read, written = (steps.names(of) for of in self.passed)
        grid = "by rows and columns" if k.bwd else "groups of rows, or as many as fit the device"
        rows = Launch(tuple(self.own_instances), grid, "256")
        if not k.bwd:
            return [Step("gathers and normalises the rows", (rows,), read, written)]
        written += (ROW_GRADIENTS, *[PARTIALS] * bool(k.added))
        when = "a gradient of a weight is wanted"
        return [
            Step("computes the rows' gradients", (rows,), read, written),
            *self.sum_steps("cols", when=when),
            *self._table_steps(),
        ]

    def _table_steps(self):
        """Steps of each table's gradient. The table of `sort_steps` stands for all of them."""
        k, (runs, sums) = self.k, self.table_instances
        grid, numbers = "persistent: at most 16 blocks per SM", steps.names(k.numbers)
        more = {"when": "the table's gradient is wanted", "per": (TABLE,)}
        sort = sort_steps(k.numbers[0], "rows", "rows of the table", **more)

        def step(does, kernels, read, written):
            launch = Launch(tuple(kernels), grid, "128", early=False)
            return Step(does, (launch,), read, written, **more)

        return [
            *(replace(one, reads=(*numbers, *one.reads[1:])) for one in sort),
            step(
                "sums runs of equal indices up to each cut",
                runs,
                (*numbers, ROW_GRADIENTS, SORTED),
                (CUTS,),
            ),
            step(
                "sums the rows of each index",
                sums,
                (ROW_GRADIENTS, CUTS, SORTED, *steps.names(k.table_sums)),
                steps.names(k.table_sums),
            ),
        ]

    def listing(self):
        """The computed statements in order, for documentation."""
        made = [f"{name} = {text};" for name, text in zip(self.k.gathered.values(), self.gather[1])]
        return [*self.gather[0], *made, *self.program.listing()]
