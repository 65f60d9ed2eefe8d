# SPDX-License-Identifier: Apache-2.0
"""The family `decoding`: attention of a few queries to cached keys and values, the cache's growth,
and the merging of results for parts of the keys.

A cache has blocks of rows; a table has the blocks of each sequence. Without a table block s is that
of sequence s: the cache is contiguous. An entry's operands decide which of the three its functions
are, and its expressions say so in the terms below.
"""

from kfgen.families.decoding.append import AppendKernel
from kfgen.families.decoding.decode import DecodeKernel
from kfgen.families.decoding.merge import MergeKernel
from kfgen.families.decoding.text import statements
from kfgen.families.family import Family, describe, wrong
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.model import kinds, shapes
from kfgen.model.entries import updated
from kfgen.model.kinds import ELEM, Kind
from kfgen.model.shape_structs import Field, ShapeStruct, size

SHAPE = ShapeStruct(
    "decoding",
    (
        size("batch", "sequences"),
        size("heads", "heads of q"),
        Field("kv_heads", "heads of k and v, a divisor of heads", default="heads"),
        size("queries", "queries, or new rows, of a sequence"),
        size("blocks", "blocks of a cache; without a table: sequences"),
        size("page_size", "rows of a block; without a table: of a sequence"),
        size("pages", "blocks of a sequence in the table"),
        size("dim", "elements of a head of q and k"),
        Field("dim_v", "elements of a head of v", default="dim"),
        size("positions", "rows of cosine and sine"),
        size("pairs", "pairs of elements that are rotated, at most dim / 2"),
    ),
)
# Kinds of the operands of each sort of entry, in order.
DECODE = ("query", "keys", "values", "table", "count")
APPEND = (
    *("new_keys", "new_values", "angle", "angle", "position", "table", "count"),
    *("key_cache", "value_cache"),
)
MERGE = ("part", "per_query", "part", "per_query")
KERNELS = {DECODE: DecodeKernel, APPEND: AppendKernel, MERGE: MergeKernel}
# Functions of expressions, and how many arguments each has.
FUNCTIONS = {"softmax": 1, "rotate_halves": 3, "rotate_neighbours": 3, "weighted": 4, "log_add": 2}
DOT = "dot"
CACHES = {
    "table": "batch, pages",
    "count": "batch",
    "keys": "blocks, page_size, kv_heads, dim",
    "values": "blocks, page_size, kv_heads, dim_v",
}
NUMBERS = ("table", "count", "position")  # kinds of integers


def called(name, count):
    """Returns a function of expressions that adds a node of its name."""

    def function(graph, nodes):
        if len(nodes) != count:
            raise ExprError(f"calls `{name}` with {len(nodes)} arguments, it takes {count}")
        return graph.add(name, *nodes)

    return function


class Decoding(Family):
    kernel = DecodeKernel
    name = "decoding"
    title = "Decoding with caches"
    shape = SHAPE
    autocast = "low"
    integers = True
    rsqrt_defaults = {"scale": "dim"}
    names = (DOT, "shape")
    forms = {
        "decode": CACHES
        | {
            "elem": "batch, queries, heads, dim_v",
            "query": "batch, queries, heads, dim",
            "per_query": "batch, heads, queries",
        },
        "append": {
            **{kind: CACHES[kind] for kind in ("table", "count")},
            "elem": "batch, queries, kv_heads, dim",
            "new_keys": "batch, queries, kv_heads, dim",
            "new_values": "batch, queries, kv_heads, dim_v",
            "angle": "positions, pairs",
            "position": "batch, queries",
            "key_cache": CACHES["keys"],
            "value_cache": CACHES["values"],
        },
        "merge": {
            "elem": "batch, rows, heads, dim",
            "part": "batch, rows, heads, dim",
            "per_query": "batch, heads, rows",
        },
    }
    sizes = {
        "decode": "batch, heads, kv_heads, queries, blocks, page_size, pages, dim, dim_v",
        "append": "batch, kv_heads, queries, blocks, page_size, pages, dim, dim_v, positions, "
        "pairs",
        "merge": "batch, rows, heads, dim",
    }
    axes = {
        form: (None, dict.fromkeys(names.split(", "), shapes.ONE)) for form, names in sizes.items()
    }
    levels = dict.fromkeys(forms, ("_head", "", "_batch"))
    kinds = (
        *(Kind(kind, kinds.ELEMENTS, index=True) for kind in ("query", "keys")),
        *(Kind(kind, kinds.ELEMENTS) for kind in ("values", "new_keys", "new_values")),
        *(Kind(kind, kinds.ELEMENTS, index=True) for kind in ("key_cache", "value_cache")),
        *(Kind(kind, vectors=False, small=True, index=True) for kind in NUMBERS),
        Kind("angle", vectors=False, small=True),
        Kind("part", kinds.ELEMENTS, "e"),
        Kind("per_query", vectors=False, small=True, per_row=True),
        ELEM.but(overlap="e", operand=False, whole=False),
    )
    in_place = ("key_cache", "value_cache")
    paged = {"keys": "table", "values": "table", "key_cache": "table", "value_cache": "table"}
    fields = ("updates",)

    def dtypes(self, kind, grad):
        return ("i32",) if kind in NUMBERS else ("acc",) if kind in ("angle", "per_query") else ()

    def absent(self, kind):
        return kind == "angle"

    def check_operands(self, f, operands):
        found = tuple(o.kind for o in operands)
        fixed = all(o.dtype == "i32" for o in operands if o.kind in NUMBERS)
        fixed &= all(o.dtype == "acc" for o in operands if o.kind in ("angle", "per_query"))
        fixed &= all(o.grad == (found == MERGE) for o in operands)
        if found not in KERNELS or not fixed:
            fix = "give it the operands of attention_decode, kv_append or attention_merge, in order"
            raise f.error("operands", f"are {describe(operands)}", fix)

    def graph(self, op):
        graph = Graph()
        graph.extra = {name: called(name, count) for name, count in FUNCTIONS.items()}
        env = {o.name: graph.var(o.name) for o in op.operands}
        env |= {name: graph.var(name) for name in (DOT, *op.scalars)}
        outs = {name: parse(graph, text, env) for name, text in op.outputs.items()}
        known = dict(env)
        for name, text in op.updates.items():
            env[updated(name)] = parse(graph, text, known)
        return graph, env, outs

    def check(self, op, graph, env, outputs):
        field = "updates" if op.updates else "expr"
        kernel = KERNELS[tuple(o.kind for o in op.operands)]
        known = kernel.known(op, graph, env)
        found = {updated(name): env[updated(name)] for name in op.updates} | outputs
        if list(found.values()) not in known or list(found) != kernel.results(op):
            texts = " and ".join(
                f"`{text}`" for text in (*op.updates.values(), *op.outputs.values())
            )
            fix = f"write it as {kernel.example} has it"
            raise wrong(op, field, f"is {texts or 'empty'}", fix)
        if list(op.scalars) != list(kernel.numbers):
            given = ", ".join(op.scalars) or "none"
            fix = f"name {', '.join(kernel.numbers) or 'none'}"
            raise wrong(op, "scalars", f"are {given}", fix)

    def forward(self, op, types, variant=()):
        return KERNELS[tuple(o.kind for o in op.operands)](self, op, types, False, variant)

    def backward(self, op, types, variant=()):
        return KERNELS[tuple(o.kind for o in op.operands)](self, op, types, True, variant)

    def reference(self, op, act):
        from kfgen.families.decoding import reference

        return reference.of(self, op, act)

    def statements(self, kernel, act, library, by=False):
        return statements(kernel, library)


FAMILY = Decoding()
