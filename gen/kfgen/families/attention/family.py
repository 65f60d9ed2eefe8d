# SPDX-License-Identifier: Apache-2.0
"""The family `attention`: sums of values over keys, weighted by a softmax of scores.

An entry's `expr` is the summand of a key: `softmax(score) * v`. The score is an expression of
`dot`, the product of a query and a key; `first` and `last` are the keys that a query sees. An entry
with `varlen` also makes an op of packed sequences, whose bounds are two further operands; one with
`dropout` also makes an op of that name, which drops probabilities. Three operands of LISTS name the
blocks of keys that a block of queries sees.
"""

import ast

from kfgen.families.attention import ranges
from kfgen.families.attention.kernel import AttentionKernel
from kfgen.families.attention.scores import DOT, DSCORE, PRODUCTS
from kfgen.families.attention.text import statements
from kfgen.families.family import Family, describe, wrong
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.primitives import COLUMN, COUNT, INF, KEEP, QUERIES, QUERY
from kfgen.model import kinds, shapes
from kfgen.model.kinds import ELEM, Kind
from kfgen.model.names import gradient_of
from kfgen.model.shape_structs import Field, ShapeStruct, option, size

HEAD = "head"
# Values of saved outputs, one per query.
SAVED = ("lse", "row_max", "log_sum")
INTEGERS = {"dtype": "I", "grad": False}
SCALARS = 8  # KFI_SCORE_SCALARS
SCORE_OPERANDS = 2  # KFI_SCORE_TENSORS
POSITIONS = (QUERY, QUERIES, COLUMN, COUNT, HEAD)
# Kinds and names of operands of packed sequences: the rows at which each begins, and the end.
OFFSETS = ("query_offsets", "key_offsets")
# The same of lists: bounds of each list, pairs of a block of keys and its mask, bits of the masks.
LISTS = ("block_offsets", "key_blocks", "block_masks")
SHAPE = ShapeStruct(
    "attention",
    (
        size("batch", "sequences"),
        size("heads", "heads of q"),
        Field("kv_heads", "heads of k and v, a divisor of heads", default="heads"),
        size("queries", "queries of a sequence; packed: of all sequences"),
        size("keys", "keys of a sequence; packed: of all sequences"),
        size("dim", "elements of a head of q and k"),
        Field("dim_v", "elements of a head of v", default="dim"),
        option("query_base", "index of the first query in the whole sequence"),
        option("key_base", "index of the first key in the whole sequence"),
        option("head_base", "index of the first head among all heads"),
        option("queries_total", "queries of the whole sequence; 0: query_base + queries"),
        option("keys_total", "keys of the whole sequence; 0: key_base + keys"),
        option("heads_total", "heads in all; 0: head_base + heads"),
        size("max_query", "packed, with a bias or mask: queries of the longest sequence"),
        size("max_key", "packed, with a bias or mask: keys of the longest sequence"),
        Field(
            "block_size", "lists of blocks: queries, and keys, of a block, 64 or 128", default=64
        ),
        size("listed_blocks", "lists of blocks: blocks in all lists"),
        size("partial_blocks", "lists of blocks: masks of blocks that are seen in part"),
    ),
)
DENSE = {
    "elem": "batch, queries, heads, dim_v",
    "query": "batch, queries, heads, dim",
    "key": "batch, keys, kv_heads, dim",
    "value": "batch, keys, kv_heads, dim_v",
    "score": "batch, heads, queries, keys",
    "head": "heads",
    "per_query": "batch, heads, queries",
}
SPARSE = DENSE | {
    "block_offsets": "batch, heads, (queries + block_size - 1) / block_size + 1",
    "key_blocks": "listed_blocks, 2",
    "block_masks": "partial_blocks, block_size, block_size / 32",
}
PACKED = {
    "elem": "queries, heads, dim_v",
    "query": "queries, heads, dim",
    "key": "keys, kv_heads, dim",
    "value": "keys, kv_heads, dim_v",
    "query_offsets": "batch + 1",
    "key_offsets": "batch + 1",
    "head": "heads",
    "per_query": "heads, queries",
}


def softmax(graph, nodes):
    """The functions `softmax(score)` and `softmax(score, sink)` of expressions."""
    if len(nodes) not in (1, 2):
        raise ExprError(f"calls `softmax` with {len(nodes)} arguments, it takes 1 or 2")
    return graph.add("softmax", *nodes)


def _dropped(text):
    """Returns the text of softmax(score) * v with dropout of the softmax."""
    try:
        *names, value = ast.parse(text.strip()).body
        value = value.value
        weight, v = ast.unparse(value.left), ast.unparse(value.right)
        return "; ".join([*map(ast.unparse, names), f"dropout({weight}) * {v}"])
    except (SyntaxError, ValueError, AttributeError, MemoryError, RecursionError):
        return text  # the op itself is refused


class Attention(Family):
    kernel = AttentionKernel
    name = "attention"
    title = "Attention"
    shape = SHAPE
    autocast = "low"
    integers = True
    rsqrt_defaults = {"scale": "dim"}
    names = (DOT, DSCORE, *SAVED, gradient_of(SAVED[0]), "shape")
    forms = {
        "dense": DENSE,
        "sparse": SPARSE,
        "packed": PACKED,
        "packed_scores": PACKED | {"score": "batch, heads, max_query, max_key"},
    }
    sizes = dict.fromkeys(forms, "batch, heads, kv_heads, queries, keys, dim, dim_v")
    sizes["packed_scores"] += ", max_query, max_key"
    sizes["sparse"] += ", block_size, listed_blocks, partial_blocks"
    axes = {
        form: (None, dict.fromkeys(names.split(", "), shapes.ONE)) for form, names in sizes.items()
    }
    levels = dict.fromkeys(forms, ("_head", ""))
    levels |= dict.fromkeys(("dense", "sparse"), ("_head", "", "_batch"))
    kinds = (
        Kind("query", kinds.ELEMENTS, index=True),
        Kind("key", kinds.ELEMENTS, index=True),
        Kind("value", kinds.ELEMENTS),
        *(Kind(kind, vectors=False, index=True) for kind in (*OFFSETS, *LISTS)),
        Kind("score", kinds.ELEMENTS, vectors=False),
        Kind("head", vectors=False, small=True),
        Kind("per_query", vectors=False, small=True, per_row=True, operand=False),
        ELEM.but(overlap=kinds.NONE, operand=False, whole=False),
    )

    @property
    def header(self):
        return "kf/core/attention/op"

    def own_fields(self, f, op):
        own = {field: ranges.read(f, field, op.integers) for field in ranges.FIELDS}
        own["varlen"] = f.get("varlen", bool, False, what="true or false")
        own["dropout"] = f.get("dropout", str, "", what="the name of the op with dropout")
        if own["dropout"] and op.dropout:
            raise f.error("dropout", "is given beside dropout() in `expr`", "leave one of them out")
        return own

    def made(self, op, data):
        own = {name: value for name, value in data.items() if name not in ("dropout", "varlen")}
        return self._packed(op, own) | self._dropped(op, own)

    def _dropped(self, op, data):
        """The same op with dropout of the probabilities."""
        if not op.own["dropout"]:
            return {}
        made = {
            "varlen": op.own["varlen"],
            "brief": f"{op.brief}; dropout of the probabilities",
            "expr": _dropped(op.outputs["out"]),
            "ref": _dropped(op.refs["out"]),
        }
        return {op.own["dropout"]: data | made}

    def _packed(self, op, data):
        """Packed sequences: the same op with their bounds after q, k and v."""
        if not op.own["varlen"]:
            return {}
        operands = {}
        for o in op.operands:
            operands[o.name] = data["operands"][o.name]
            if len(operands) == len(PRODUCTS):
                operands |= {kind: {"kind": kind} | INTEGERS for kind in OFFSETS}
        made = {"operands": operands, "brief": f"{op.brief}; packed sequences"}
        return {f"{op.pattern}_varlen": data | made}

    def dtypes(self, kind, grad):
        known = {"score": ("acc",) if grad else ("acc", "u8"), "head": ("acc",)}
        known |= dict.fromkeys(LISTS, ("i32",))
        return known.get(kind, ("I",) if kind in OFFSETS else ())

    def check_operands(self, f, operands):
        kinds_ = [o.kind for o in operands]
        if any(kinds_.count(kind) != 1 for kind in PRODUCTS):
            fix = 'give it one of each: { q = "query", k = "key", v = "value" }'
            raise f.error("operands", f"are {describe(operands)}", fix)
        if {kinds_.count(kind) for kind in OFFSETS} not in ({0}, {1}):
            fix = f"give it one of each, or none: {', '.join(OFFSETS)}"
            raise f.error("operands", f"are {describe(operands)}", fix)
        self._check_lists(f, operands)
        if sum(o.kind in ("score", "head") for o in operands) > SCORE_OPERANDS:
            fix = f'at most {SCORE_OPERANDS} are "score" or "head"'
            raise f.error("operands", f"are {describe(operands)}", fix)

    def _check_lists(self, f, operands):
        """Checks the operands of lists of blocks."""
        lists = [o for o in operands if o.kind in LISTS]
        if not lists:
            return
        fixed = all(o.dtype == "i32" for o in lists)
        if tuple(o.kind for o in lists) != LISTS or not fixed:
            fix = f'give it one of each, or none, with dtype = "i32", in order: {", ".join(LISTS)}'
            raise f.error("operands", f"are {describe(operands)}", fix)
        if any(o.kind in OFFSETS for o in operands):
            fix = "packed sequences have no lists of blocks: leave `varlen` out"
            raise f.error("operands", f"are {describe(operands)}", fix)
        if wanted := [o.name for o in operands if o.grad]:
            fix = "lists of blocks have no backward: give the operands grad = false"
            raise f.error("operands", f"have a gradient: {', '.join(wanted)}", fix)

    def graph(self, op):
        graph = Graph()
        graph.extra = {"softmax": softmax}
        unread = ("query", "key", *OFFSETS, *LISTS)
        own = [o.name for o in op.operands if o.kind not in unread]
        env = {name: graph.var(name) for name in (DOT, *POSITIONS, *own, *op.scalars)}
        known = {**env, "dropout": None, INF: graph.const(float("inf"))}
        outs = {name: parse(graph, text, known) for name, text in op.outputs.items()}
        return graph, env, outs

    def weight(self, op, graph, outputs):
        """Returns the node of softmax(score) of the root softmax(score) * v, or None."""
        [root] = outputs.values()
        value = graph.var(next(o.name for o in op.operands if o.kind == "value"))
        node = graph.nodes[root]
        if node.op != "mul" or node.args[1] != value:
            return None
        weight = graph.nodes[node.args[0]]
        if weight.op == "where" and graph.nodes[weight.args[0]].value == KEEP:  # dropout
            weight = graph.nodes[graph.nodes[weight.args[1]].args[0]]
        if weight.op != "softmax" or value in graph.reachable(weight.args):
            return None
        return weight

    def check(self, op, graph, env, outputs):
        found = list(outputs) == ["out"] and self.weight(op, graph, outputs)
        if not found or any(graph.nodes[i].op == "softmax" for i in graph.reachable(found.args)):
            fix = f"write softmax(score) * v, the score being an expression of `{DOT}`"
            raise wrong(op, "expr", f"is {op.outputs.get('out', '')!r}", fix)
        score, *sink = found.args
        heads = [graph.var(o.name) for o in op.operands if o.kind == "head"]
        if not set(sink) <= set(heads):
            fix = 'name a "head" operand: softmax(score, sink)'
            raise wrong(op, "expr", "has a sink that is no operand per head", fix)
        if len(op.scalars) - len(op.integers) > SCALARS:
            raise wrong(op, "scalars", "are too many", f"at most {SCALARS} are possible")
        read = graph.variables([score])
        for name in sorted({graph.nodes[i].value for i in sink} & read):
            fix = "give the sink an operand of its own"
            raise wrong(op, "expr", f"has the sink `{name}` in the score", fix)
        if DOT not in read:
            raise wrong(op, "expr", f"has a score that does not read `{DOT}`", "read it")
        for name in sorted({KEEP} & read):
            raise wrong(op, "expr", f"has `{name}` in the score", "write dropout(softmax(score))")

    def reference(self, op, act):
        from kfgen.families.attention.reference import AttentionReference

        return AttentionReference(self, op, act)

    def statements(self, kernel, act, library, by=False):
        return statements(kernel, library)


FAMILY = Attention()
