# SPDX-License-Identifier: Apache-2.0
"""Attention: shapes [batch, heads, kv_heads, queries, keys, dim, dim_v], tensors and the float64
oracle of the generic tests. launcher.py has layouts and shards."""

import types

import attention_formulas
import attention_gradients
import block_cases
import block_lists
import numpy as np
import storage
from attention_gradients import SUMMED, fill
from kfgen.families import reference as elements_reference
from kfgen.families.attention import reference
from kfgen.language.primitives import COLUMN, COUNT, QUERIES, QUERY
from kfgen.model import shapes

# Whole and partial blocks of rows and keys, dimensions of FMAs and of tensor cores, groups of
# heads; no keys, empty tensors.
SHAPES = [
    [(1, 4, 1, 2, 5, 8, 4), 0],
    [(2, 4, 2, 9, 13, 8, 8), 0],
    [(1, 2, 1, 33, 70, 24, 40), 0],
    [(1, 1, 1, 70, 33, 64, 64), 0],
    [(1, 3, 3, 7, 5, 7, 3), 1],
    [(1, 2, 2, 5, 0, 8, 8), 0],
    [(0, 2, 2, 5, 4, 8, 8), 0],
    [(2, 0, 1, 5, 4, 8, 8), 0],
    [(2, 2, 1, 0, 4, 8, 8), 0],
    # dim_v 0 stands for dim; without a dim the weights are equal.
    [(1, 1, 1, 3, 5, 0, 8), 0],
    [(1, 1, 1, 3, 5, 0, 0), 0],
    # One call for each tile: rows of 16 bytes, other rows and dimensions, FMAs.
    [(1, 1, 1, 3, 5, 128, 128), 0],
    [(1, 1, 1, 3, 5, 256, 256), 0],
    [(1, 1, 1, 3, 5, 64, 64), 1],
    [(1, 1, 1, 3, 5, 128, 128), 1],
    [(1, 1, 1, 3, 5, 256, 256), 1],
    [(1, 1, 1, 3, 5, 7, 100), 0],
    [(1, 1, 1, 3, 5, 7, 200), 0],
    [(1, 1, 1, 3, 5, 264, 8), 0],
]
MORE = [
    [(b, h, 1, q, k, d, d), (q + k) % 3]
    for b, h in ((1, 3), (2, 2))
    for q, k in ((1, 1), (64, 65), (130, 17))
    for d in (16, 40, 72, 128)
]
LAUNCHES = 4  # statistics, outside of packed sequences, and by blocks of queries and of keys
RESULTS_IN_PARTS = True  # C packs keys and values in the workspace
LARGE = (2**20, 2**10, 1, 2**10, 1, 1, 1)  # needs more blocks than a grid may have
# Sizes, and the first tensor of too many elements.
OVERFLOWS = [((2**30, 2**28, 1, 1, 1, 3, 1), "q"), ((2**30, 1, 1, 1, 2**28, 3, 1), "k")]
CALLS = (
    [(1, 1, 1, 1, 1, 8, 8), (2, 2, 1, 5, 7, 16, 8), (1, 2, 2, 3, 9, 7, 5)],
    [(2, 3, 1, 70, 67, 64, 64), (1, 1, 1, 130, 65, 40, 24)],
)
# Calls under compute-sanitizer, of the smallest head dimension: whole and partial tiles, several
# tiles per block, unaligned rows, FMAs, no keys.
SANITIZED = [
    [(1, 4, 1, 33, 70, 64, 64), 0],
    [(2, 2, 2, 200, 300, 64, 64), 0],
    [(1, 40, 8, 130, 65, 40, 24), 0],
    [(1, 2, 1, 33, 70, 64, 64), 1],
    [(1, 3, 3, 7, 5, 7, 3), 1],
    [(1, 2, 2, 5, 0, 8, 8), 0],
]
TORCH = (2, 4, 2, 5, 7, 8, 8)
TORCH_INTEGERS = {"left": 2, "right": 1}  # hide keys on both sides; the defaults hide none
EXTENTS = {
    "batch": (2,),
    "heads": (4,),
    "kv_heads": (2,),
    "queries": (5,),
    "keys": (7,),
    "dim": (8,),
    "dim_v": (8,),
}
# Relative to the largest result: 2-byte probabilities and results are rounded.
TOLERANCE = {"bf16": 0.01, "f16": 0.0015, "f32": 4e-6, "f64": 1e-14}
LSE = {"bf16": 2e-5, "f16": 2e-5, "f32": 4e-6, "f64": 1e-13}


def wrong_size(sizes):
    """Returns the size that a call refuses because it does not fit the others, or None."""
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    if sizes.get("block_size", 64) not in (64, 128):
        return "block_size"
    return "kv_heads" if (heads % kv_heads if kv_heads else heads) else None


# Sizes whose rows the bounds of packed sequences count.
ROWS = {"query_offsets": "queries", "key_offsets": "keys"}


def prepare(call):
    """Sets the options of the shape struct, which statements read."""
    shape = next(a for a in call.f["arguments"] if a["role"] == "shape")
    call.scalars |= {f["name"]: 0 for f in shape["fields"] if f["role"] == "option"}


def draw(rng, call, a, values):
    """Draws a tensor. Scores of other values would overflow: they have tests of their own."""
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["role"] != "in":
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    if a["dtype"] == "u8":
        return rng.integers(0, 2, shape, np.uint8)
    if a["kind"] in block_lists.KINDS:
        return block_cases.draw(rng, call, a["kind"], values)
    if a["dtype"][0] == "i":  # sequences of any lengths, and rows of none
        rows = dict(zip(call.f["sizes"], call.sizes))[ROWS[a["kind"]]]
        return np.sort(rng.integers(0, rows + 1, shape)).astype(storage.STORAGE[a["dtype"]])
    return storage.from_float(rng.standard_normal(shape), a["dtype"])


def result(call):
    """Shape of dropout's mask."""
    names = dict(zip(call.f["sizes"], call.sizes)) | call.scalars
    return shapes.mask_extents(call.f["masked"], names)


def attend(op, scalars, given, q, k, v, mask=(), seen=True):
    """Returns {result: float64} of heads in front of rows.

    Args:
        given: further operands, which broadcast to the scores.
        mask: the weights that dropout keeps, and their scale.
        seen: the keys that lists of blocks show.
    """
    names = scalars | given
    if mask:
        names["dropout"] = lambda p: np.where(mask[0], p * mask[1], 0.0)
    names |= {
        QUERY: np.arange(q.shape[2]).reshape(1, 1, -1, 1),
        COLUMN: np.arange(k.shape[2]).reshape(1, 1, 1, -1),
        "head": np.arange(q.shape[1]).reshape(1, -1, 1, 1),
        QUERIES: q.shape[2],
        COUNT: k.shape[2],
        "dot": reference.products(q, k),
    }
    see, found = np.ones(names["dot"].shape, bool) & seen, {}
    for field, compare in (("first", np.greater_equal), ("last", np.less_equal)):
        if bound := op.own[field]:
            see &= compare(names[COLUMN], elements_reference._eval(bound.text, names))

    def softmax(scores, sink=None):
        sink = None if sink is None else np.reshape(sink, -1)
        p, most, log_sum = reference.weights(np.broadcast_to(scores, see.shape), see, sink)
        with np.errstate(invalid="ignore"):
            found.update(row_max=most, log_sum=log_sum, lse=most + log_sum)
        return p

    value = next(o.name for o in op.operands if o.kind == "value")
    names |= {value: 1.0, "softmax": softmax}
    found["out"] = reference.add(elements_reference._eval(op.refs["out"], names), v)
    return found


def wide(call):
    """Returns (operands in float64, {kind: name}); heads broadcast to the scores."""
    op = call.kernel.op
    given = {
        o.name: storage.to_float(call.data[o.name], call.tensors[o.name]["dtype"])
        for o in op.operands
        if o.dtype not in ("I", "i32")
    }
    given |= {o.name: given[o.name].reshape(1, -1, 1, 1) for o in op.operands if o.kind == "head"}
    return given, {o.kind: o.name for o in op.operands}


def expected(call):
    """Returns {result: float64}; the statistics as [batch, heads, queries]."""
    given, kinds = wide(call)
    q, k, v = (given[kinds[kind]].transpose(0, 2, 1, 3) for kind in ("query", "key", "value"))
    seen = np.ones((1, 1, 1, 1), np.int8)
    if call.f["form"] == "sparse":
        lists = (call.data[kinds[kind]] for kind in block_lists.KINDS)
        seen = block_lists.mask_of(*lists, q.shape[2], k.shape[2])
    found = attend(call.kernel.op, call.scalars, given, q, k, v, call.mask(), seen > 0)
    wrong = (seen < 0).any(3)
    found = {
        n: np.where(wrong[..., None] if n == "out" else wrong, np.nan, x) for n, x in found.items()
    }
    return found | {"out": found["out"].transpose(0, 2, 1, 3)}


def expected_packed(call):
    """The same of packed sequences, one after the other. Rows of no sequence see no key."""
    given, kinds = wide(call)
    q, k, v = (given[kinds[kind]].swapaxes(0, 1)[None] for kind in ("query", "key", "value"))
    scores = {n: given[n] for kind, n in kinds.items() if kind == "score"}
    none = given | {n: x[:1, :, :0, :0] for n, x in scores.items()}
    rows, more = np.s_[:, :, :0], {n: np.zeros((1, 1, 1, 1)) for n in scores}
    keep, *scale = call.mask() or (None,)
    mask = (keep[None, :, :, :0], *scale) if scale else ()
    found = attend(call.kernel.op, call.scalars, none | more, q, k[rows], v[rows], mask)
    at, of = (call.data[kinds[f"{word}_offsets"]] for word in ("query", "key"))
    for i in range(len(at) - 1):
        own, keys = slice(at[i], at[i + 1]), slice(of[i], of[i + 1])
        length = at[i + 1] - at[i], of[i + 1] - of[i]
        more = {n: x[i : i + 1, :, : length[0], : length[1]] for n, x in scores.items()}
        mask = (keep[None, :, own, keys], *scale) if scale else ()
        own_rows = q[:, :, own], k[:, :, keys], v[:, :, keys]
        one = attend(call.kernel.op, call.scalars, given | more, *own_rows, mask)
        for name, value in one.items():
            found[name][:, :, own] = value
    out = {n: found[n][0] for n in ("lse", "row_max", "log_sum")}
    return out | {"out": found["out"][0].swapaxes(0, 1)}


def check(call, got, weights=None):
    if call.f["bwd"]:
        return attention_gradients.check(call, got)
    packed = call.f["form"].startswith("packed")
    want, dtype = (expected_packed if packed else expected)(call), call.f["dtypes"][0]
    real = "f64" if dtype == "f64" else "f32"
    found = {
        n: storage.to_float(x, dtype if n == "out" else real)
        for n, x in got.items()
        if n not in call.drop
    }
    if {"row_max", "log_sum"} <= found.keys():  # a kernel may subtract another reference
        with np.errstate(invalid="ignore"):
            found["log_sum"], want["log_sum"] = found.pop("row_max") + found["log_sum"], want["lse"]
    else:
        found.pop("row_max", None), found.pop("log_sum", None)
    for name, value in found.items():
        wanted, finite = want[name], np.isfinite(want[name])
        where = f"{call.where}: {name}"
        assert np.array_equal(value[~finite], wanted[~finite], equal_nan=True), where
        limit = (TOLERANCE if name == "out" else LSE)[dtype]
        limit *= max(1.0, np.abs(wanted[finite]).max(initial=0))
        error = np.abs(value[finite] - wanted[finite]).max(initial=0)
        assert error <= limit, f"{where} differs by {error:.3g}, at most {limit:.3g} expected"


def of_sequence(call, index):
    """Returns {size: the slice of it that belongs to a packed sequence}, of the outputs' axes."""
    found = {"batch": slice(index, index + 1)}
    for n, a in call.tensors.items():
        if a["kind"] in ROWS:
            found[ROWS[a["kind"]]] = slice(*map(int, call.data[n][index : index + 2]))
    return found


REFERENCES = attention_formulas.REFERENCES


def work(f, size):
    """Returns the dimensions of the elementwise pass and the operations of the products Q K^T and
    P V, of a backward of five products, with all sizes equal."""
    axes = 3 if f["form"].startswith("packed") else 4
    return axes, 2 * (5 if f["bwd"] else 2) * size ** (axes + 1)


# Packed sequences, with the longest ones where a bias or a mask says so.
PACKED = {
    "LAUNCHES": LAUNCHES,
    "SHAPES": [
        [(3, 4, 1, 2, 5, 8, 4), 0],
        [(3, 4, 2, 9, 13, 8, 4), 0],
        [(1, 2, 1, 33, 70, 24, 40), 0],
        [(4, 1, 1, 70, 33, 64, 64), 0],
        [(2, 3, 3, 7, 5, 7, 3), 1],
        [(2, 2, 2, 5, 0, 8, 8), 0],
        [(0, 2, 2, 5, 4, 8, 8), 0],
        [(2, 0, 1, 5, 4, 8, 8), 0],
        [(2, 2, 1, 0, 4, 8, 8), 0],
        [(1, 1, 1, 3, 5, 0, 8), 0],
        [(2, 1, 1, 3, 5, 128, 128), 0],
        [(2, 1, 1, 3, 5, 256, 256), 0],
        [(2, 1, 1, 3, 5, 64, 64), 1],
        [(2, 1, 1, 3, 5, 128, 128), 1],
        [(2, 1, 1, 3, 5, 256, 256), 1],
        [(2, 1, 1, 3, 5, 7, 100), 0],
        [(2, 1, 1, 3, 5, 7, 200), 0],
        [(2, 1, 1, 3, 5, 264, 8), 0],
    ],
    "MORE": MORE,
    "RESULTS_IN_PARTS": RESULTS_IN_PARTS,
    "LARGE": (2**22, 2**10, 1, 2**10, 1, 1, 1),
    "OVERFLOWS": [((1, 2**28, 1, 2**30, 1, 3, 1), "q"), ((1, 1, 1, 1, 2**57, 3, 1), "k")],
    "CALLS": (
        [(1, 1, 1, 1, 1, 8, 8), (2, 2, 1, 5, 7, 16, 8), (3, 2, 2, 3, 9, 7, 5)],
        [(2, 3, 1, 70, 67, 64, 64), (3, 1, 1, 130, 65, 40, 24)],
    ),
    "TORCH": (3, 4, 2, 5, 7, 8, 6),
    "TORCH_INTEGERS": {"left": 0, "right": 1},  # sequences have two queries and two keys
    "GIVEN": {
        "query_offsets": lambda n: np.clip([0, 2, 2, 4], 0, n["queries"])[: n["batch"] + 1],
        "key_offsets": lambda n: np.clip([1, 3, 5, 7], 0, n["keys"])[: n["batch"] + 1],
    },
    "EXTENTS": EXTENTS,
    "COUNTED": [
        ("queries", "heads", "dim"),
        ("keys", "kv_heads", "dim"),
        ("keys", "kv_heads", "dim_v"),
    ],
    "SUMMED": SUMMED,
    "prepare": prepare,
    "draw": draw,
    "fill": fill,
    "wrong_size": wrong_size,
    "work": work,
    "check": check,
    "result": result,
    "of_sequence": of_sequence,
}


def _longest(sizes):
    """Sizes with those of the longest sequence: all rows."""
    return (*sizes, sizes[3], sizes[4])


SPARSE = block_cases.SIZES | {
    "EXTENTS": EXTENTS | block_cases.SIZES["EXTENTS"],
    "RESULTS_IN_PARTS": RESULTS_IN_PARTS,
    "prepare": prepare,
    "draw": draw,
    "fill": fill,
    "wrong_size": wrong_size,
    "work": work,
    "check": check,
    "result": result,
}
FORMS = {
    "sparse": types.SimpleNamespace(**SPARSE),
    "packed": types.SimpleNamespace(**PACKED),
    "packed_scores": types.SimpleNamespace(
        **PACKED
        | {name: [[_longest(n), shift] for n, shift in PACKED[name]] for name in ("SHAPES", "MORE")}
        | {
            "LARGE": _longest(PACKED["LARGE"]),
            "OVERFLOWS": [(_longest(n), word) for n, word in PACKED["OVERFLOWS"]],
            "CALLS": tuple([_longest(n) for n in found] for found in PACKED["CALLS"]),
            "TORCH": _longest(PACKED["TORCH"]),
            "EXTENTS": EXTENTS | {"max_query": (5,), "max_key": (7,)},
        }
    ),
}


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "attention": [
        """
operands.<x> = { kind = "query", grad = false }
operands.<y> = { kind = "key", grad = false }
operands.<z> = { kind = "value", grad = false }
operands.<b> = { kind = "score", grad = false }
operands.<h> = { kind = "head", dtype = "acc", grad = false }
scalars = { <s> = 2.0 }
expr = "softmax(dot * <s> + <b> - <h> * (query - column)) * <z>"
ref = "softmax(dot * <s> + <b> - <h> * (query - column)) * <z>"
"""
    ]
}
# Identifiers among those of the generated code, which are all from core or templates.
SOME_NAMES = {"attention": {"tensors", "block", "row", "part"}}
# Kinds of tensors that may be strided, with the suffix of the first stride:
# tests/gen/test_manifest.py.
STRIDED = {
    "attention": dict.fromkeys(("query", "key", "value", "elem", "block_offsets"), "_head")
    | {"score": ""}
}
# Expected functions: tests/gen/test_names.py.
OPS = (
    "attention",
    "causal_attention",
    "window_attention",
    "softcap_causal_attention",
    "alibi_causal_attention",
    "bias_attention",
    "mask_attention",
    "sink_window_attention",
)
DROPPED = ("full_attention_dropout", *(f"{op}_dropout" for op in OPS[1:]))
INDEXED = "with numbers of 32 bits too"  # tests/gen/test_names.py
FUNCTIONS = {op: (0, True, 4, True) for op in (*OPS, *DROPPED)}
FUNCTIONS |= {f"{op}_varlen": (0, True, INDEXED, of[3]) for op, of in FUNCTIONS.items()}
FUNCTIONS["block_sparse_attention"] = (0, True, 4, False)
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"attention": ("kf_attention_bf16", 80000)}


# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
OPERANDS = """operands.q = { kind = "query", grad = false }
operands.k = { kind = "key", grad = false }
operands.v = { kind = "value", grad = false }"""


def entry(expr, more="", operands=OPERANDS):
    return f"""[op.seen]
family = "attention"
brief = "b"
{operands}
scalars = {{ scale = 0.5, left = {{ kind = "int", value = 2 }} }}
expr = "{expr}"
ref = "{expr}"
{more}
"""


REFUSED = {
    "a sum that is no softmax": (
        entry("dot * scale * v"),
        "op.seen",
        "expr",
        "is 'dot * scale * v'",
        "write softmax(score) * v",
    ),
    "a score without the product": (
        entry("softmax(scale * query) * v"),
        "op.seen",
        "expr",
        "does not read `dot`",
        "read it",
    ),
    "a sink that the score reads": (
        entry("softmax(dot * scale + h, h) * v", operands=OPERANDS + '\noperands.h = "head"'),
        "op.seen",
        "expr",
        "has the sink `h` in the score",
        "give the sink an operand of its own",
    ),
    "a bound by a tensor": (
        entry("softmax(dot * scale) * v", 'last = "query + column"'),
        "op.seen",
        "last",
        "reads `column`",
        "query, queries, count, left",
    ),
    "a bound that runs backwards": (
        entry("softmax(dot * scale) * v", 'first = "left - query"'),
        "op.seen",
        "first",
        "has `query` -1 times",
        "`query` once at most",
    ),
    "an operand named as a field of the shape struct": (
        entry(
            "softmax(dot * scale + query_base) * v",
            operands=OPERANDS + '\noperands.query_base = { kind = "score", grad = false }',
        ),
        "op.seen",
        "operands",
        "the name `query_base` cannot be used",
        "choose a lower-case name",
    ),
    "two keys": (
        entry(
            "softmax(dot * scale) * v",
            operands='operands = { q = "query", k = "key", l = "key", v = "value" }',
        ),
        "op.seen",
        "operands",
        'l = { kind = "key"',
        "one of each",
    ),
}
# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "a key behind the last one is seen": (
        "kf/core/attention/bounds.h",
        r"b\.add = beyond \? keys : before \? -1 : add;",
        "b.add = beyond ? keys : before ? -1 : add + 1;",
        ("kf_causal_attention_f32", "kf_causal_attention_bf16"),
        (),
    ),
    "the first mask of the lists hides nothing": (
        "kf/core/attention/sparse.cuh",
        r"if \(mask < 0\) return;",
        "if (mask <= 0) return;",
        ("kf_block_sparse_attention_f32", "kf_block_sparse_attention_bf16"),
        (),
    ),
    "a packed sequence sees a key of the next one": (
        "kf/core/attention/packed.cuh",
        r"s->keys = keys \? count : others;",
        "s->keys = keys ? count : others + 1;",
        ("kf_attention_varlen_f32",),
        (),
    ),
}
# The Python package of level 1 has them.
PACKAGED = [
    *("attention", "causal_attention", "causal_attention_varlen", "window_attention"),
    "block_sparse_attention",
    *("bias_attention", "mask_attention", "scale_mask_softmax_dropout"),
    *("full_attention_dropout", "causal_attention_dropout", "window_attention_dropout"),
    *("bias_attention_dropout", "mask_attention_dropout"),
]
