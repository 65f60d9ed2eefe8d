# SPDX-License-Identifier: Apache-2.0
"""An op over rows of the sum of three embeddings, as in BERT."""

import copy
import functools
from dataclasses import replace

from kfgen.families.embedding.family import SKIPPED
from kfgen.families.embedding_layer_norm.c import EmbeddingLayerNormC
from kfgen.families.embedding_layer_norm.cuda import EmbeddingLayerNormCuda
from kfgen.families.family import describe, wrong
from kfgen.families.rows.over_rows import OverRows, OverRowsKernel
from kfgen.language import formulas, passes
from kfgen.language.formulas import LIBRARIES
from kfgen.language.primitives import ELEM, REDUCTIONS
from kfgen.model import contract
from kfgen.model.kinds import ELEM as ELEMENTS
from kfgen.model.kinds import PER_ROW, ROW, Kind
from kfgen.model.shapes import ONE, REST

# Kinds of tables: the size that is their number of rows.
TABLES = {"table": "vocab", "positions": "positions", "types": "types"}


def gathered(graph, roots, tables):
    """{node: its name} of the values that are computed from tables only and read by other nodes."""
    own, uses = {}, set(roots)
    for i in graph.reachable(roots):
        node = graph.nodes[i]
        if node.op == "var":
            own[i] = node.value in tables
        elif (
            node.args and node.op not in REDUCTIONS.values() and all(own.get(a) for a in node.args)
        ):
            own[i] = True
        uses |= {a for a in node.args if own.get(a) and not own.get(i)}
    return {
        i: f"gathered{n}"
        for n, i in enumerate(i for i in graph.reachable(roots) if own.get(i) and i in uses)
    }


class EmbeddingLayerNormKernel(OverRowsKernel):
    form = "gathered"
    summed_over = "rows"
    accumulates = property(lambda self: self.bwd)

    @functools.cached_property
    def cuda(self):
        return EmbeddingLayerNormCuda(self)

    @functools.cached_property
    def c(self):
        return EmbeddingLayerNormC(self)

    def _build(self):
        super()._build()
        self.strided, self.layout = [], ""
        for s in self.outputs:
            if s.kind in TABLES:
                s.role = "sum"
        for s in self.operands:
            if s.kind == "number":
                s.reads = "always"
            elif s.kind in TABLES:
                s.use = "weight"

    def _sort(self):
        def read(*kinds):
            return [s for s in self.inputs if s.kind in kinds and s.reads != "never"]

        self.tables = [s for s in self.operands if s.kind in TABLES]
        self.numbers = read("number")
        self.elems, self.weights, self.values = read("elem"), read("row"), read("per_row")
        self.table_sums = [s for s in self.outputs if s.kind in TABLES]
        self.sums = [s for s in self.outputs if s.kind == "row"]
        self.stores = [s for s in self.outputs if s.kind == "elem"]
        self.results_of_rows = [s for s in self.outputs if s.kind == "per_row"]
        # Distinct row gradients: tables with the same gradient share one.
        self.planes = list(dict.fromkeys(s.exprs[0] for s in self.table_sums))
        self.gathered = gathered(self.graph, self.roots, {s.name for s in self.tables})
        self.segments, self.group_sums, self.plane_sums, self.gathered_inputs = False, [], [], []

    @property
    def plane_numbers(self):
        """Index, among the row gradients, of each table's."""
        return [self.planes.index(s.exprs[0]) for s in self.table_sums]

    @property
    def inner(self):
        """(graph, {name: node}) computed from a row's gathered values: outputs, row gradients and
        terms of weights.
        """
        roots = {s.name: s.exprs[0] for s in [*self.stores, *self.results_of_rows, *self.sums]}
        roots |= {f"row_grad{i}": node for i, node in enumerate(self.planes)}
        graph, found = passes.copy(self.graph, list(roots.values()), self.gathered)
        return graph, dict(zip(roots, found))

    @property
    def shaped_by(self):
        return [s.name for s in (*self.numbers[:1], *self.tables)]

    @property
    def scratch(self):
        return self.bwd

    @property
    def workspace_note(self):
        return "; for the rows' gradients and the sorted numbers"

    @property
    def unread_scalars(self):
        return [s for s in super().unread_scalars if s != SKIPPED or not self.bwd]

    @property
    def skipped(self):
        """The index without gradient (padding) of each table."""
        return [SKIPPED, *["-1"] * (len(self.tables) - 1)]

    def accumulated(self, stream):
        return stream.kind in TABLES

    def below(self, stream):
        return (
            TABLES[self.tables[self.numbers.index(stream)].kind]
            if stream.kind == "number"
            else None
        )

    def touched(self, stream):
        return self.extents if stream.kind in TABLES and stream.role == "in" else self.shape(stream)

    def per_element(self, stream):
        return 0 if stream.kind == "number" else super().per_element(stream)

    def formulas(self, by):
        if not self.bwd:
            return contract.of_elements(self, by)
        lines, texts = contract.write(self.graph, [root for s in self.outputs for root in s.exprs])
        for s, text in zip(self.outputs, texts):
            over = "the rows that have its number" if s.kind in TABLES else self.summed_over
            lines.append(
                f"{s.name} = sum over {over} of {text}"
                + (f" + beta * {s.name}" if s.kind in TABLES else "")
            )
        return lines

    element_note = "elements: 0 to 2 that table, r rows, c cols, e rows x cols"

    @property
    def element_codes(self):
        """Sizes of the tensors, one code each (core/embedding_layer_norm/gather_check.h)."""
        codes = {"number": "r", "per_row": "r", "row": "c", "elem": "e"} | dict(zip(TABLES, "012"))
        return "".join(codes[s.kind] for s in self.inputs + self.outputs)


class EmbeddingLayerNorm(OverRows):
    kernel = EmbeddingLayerNormKernel
    name = "embedding_layer_norm"
    title = "Rows of several tables, normalised"
    forms = {
        "gathered": {
            "elem": "rows, cols",
            **{kind: f"{size}, cols" for kind, size in TABLES.items()},
            "number": "rows",
            "row": "cols",
            "per_row": "rows",
        }
    }
    sizes = {"gathered": ", ".join(["rows, cols", *TABLES.values()])}
    axes = {
        "gathered": (
            None,
            {"rows": REST} | dict.fromkeys(("cols", "vocab", "positions", "types"), ONE),
        )
    }
    kinds = (
        *map(Kind, TABLES),
        Kind("number", vectors=False, index=True),
        ROW,
        *(kind.but(operand=False) for kind in (ELEMENTS, PER_ROW)),
    )
    in_rows = {"number": "per_row"} | dict.fromkeys(TABLES, "elem")
    integers, fields, names, dropout = True, ("saved",), ("beta", "types"), False

    def dtypes(self, kind, grad):
        return ("I",) if kind == "number" else ()

    def absent(self, kind):
        return kind == "row"

    def check_operands(self, f, operands):
        kinds = [o.kind for o in operands if o.kind != "row"]
        odd = [
            o
            for o in operands
            if o.kind != "row"
            and (o.dtype, o.grad) != (("I", False) if o.kind == "number" else ("T", True))
        ]
        if kinds != [*TABLES, *["number"] * len(TABLES)] or odd:
            fix = (
                'give it word = "table", position_table = "positions", type_table = "types", '
                "then index, position and type, each "
                '{ kind = "number", dtype = "I", grad = false }, then what is a "row"'
            )
            raise f.error("operands", f"are {describe(operands)}", fix)

    def check(self, op, graph, env, outputs):
        super().check(op, graph, env, outputs)
        if set(outputs) != {"out"} or op.has_act:
            raise wrong(
                op,
                "expr",
                "is more than one result, without {act}",
                "write the rest as an op of its own",
            )
        if op.integers != (SKIPPED,):
            fix = (
                f'add {SKIPPED} = {{ kind = "int", value = 2, default = -1 }}, '
                "the row of the first table that has no gradient"
            )
            raise wrong(op, "scalars", f"have the whole numbers {list(op.integers)}", fix)
        words = {n.op for n in graph.nodes} & (set(REDUCTIONS.values()) | {"pick"})
        if words != {"sum"} or graph.level(outputs["out"]) != ELEM:
            raise wrong(
                op,
                "expr",
                f"calls {', '.join(sorted(words))}, or has no element for a result",
                "write it with sum() and mean()",
            )

    def statements(self, k, act, library, by=False):
        lib = LIBRARIES[library]
        sizes = [TABLES[s.kind] for s in k.tables]
        where = " & ".join(
            f"({n.name} >= 0) & ({n.name} < {size})" for n, size in zip(k.numbers, sizes)
        )
        lines = [f"there_ = ({where}).reshape(rows, 1)"]
        lines += [
            f"place{i}_ = {lib.bounded.format(n.name, 0, f'max({size}, 1) - 1')}"
            for i, (n, size) in enumerate(zip(k.numbers, sizes))
        ]
        outside = "0.0" if k.bwd else "float('nan')"
        lines += [
            f"{s.name} = {lib.name}.where(there_, {s.name}[place{i}_], {outside})"
            for i, s in enumerate(k.tables)
        ]
        # Rows with an index out of range have no gradient: zeros replace their inputs.
        if k.bwd:
            lines += [
                f"{s.name} = {lib.name}.where(there_, {s.name}.reshape(rows, "
                f"{'cols' if s.kind == 'elem' else '1'}), 0.0)"
                + (".reshape(rows)" if s.kind == "per_row" else "")
                for s in k.elems + k.values
            ]
        plain = copy.copy(k)  # the op over rows of the gathered values
        plain.inputs = [replace(s, kind="elem") if s.kind in TABLES else s for s in k.inputs]
        plain.outputs = [
            replace(s, kind="elem", role="out", name=f"{s.name}_terms_") if s.kind in TABLES else s
            for s in k.outputs
        ]
        lines += formulas.statements(plain, act, library, by)
        for i, s in enumerate(k.tables if k.bwd else ()):
            name = next(t.name for t in k.table_sums if t.of == s.name)
            terms = f"{name}_terms_"
            if k.skipped[i] == SKIPPED:
                wanted = f"({k.numbers[i].name} != {SKIPPED}).reshape(rows, 1)"
                terms = f"{lib.name}.where({wanted}, {terms}, 0.0)"
            if library == "numpy":
                lines += [
                    f"sums_ = np.zeros(({sizes[i]}, cols), {name}_terms_.dtype)",
                    f"np.add.at(sums_, place{i}_, {terms})",
                ]
            else:
                like = f"dtype={name}_terms_.dtype, device={name}_terms_.device"
                made = f"torch.zeros(({sizes[i]}, cols), {like})"
                lines += [f"sums_ = {made}.index_add(0, place{i}_, {terms})"]
            lines.append(f"{name} = sums_ + beta * {name} if beta else sums_")
        return lines


FAMILY = EmbeddingLayerNorm()
