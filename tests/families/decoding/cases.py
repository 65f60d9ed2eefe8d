# SPDX-License-Identifier: Apache-2.0
"""Decoding: shapes and data of the generic tests. decoding_numbers.py draws, and compares."""

import types

from decoding_numbers import (
    check_append,
    check_decode,
    check_merge,
    draw,
    fill_decode,
    fill_merge,
    of_row,
    of_sequence,
    prepare,
)
from kfgen.families.decoding import reference

# [batch, heads, kv_heads, queries, blocks, page_size, pages, dim, dim_v]
DECODE = [
    [(2, 4, 2, 1, 4, 4, 2, 8, 8), 0],
    [(3, 4, 1, 3, 12, 5, 4, 8, 4), 0],
    [(2, 8, 1, 2, 8, 160, 4, 64, 64), 0],
    [(1, 2, 2, 1, 40, 32, 40, 128, 128), 0],
    [(1, 3, 3, 5, 4, 7, 3, 7, 3), 1],
    [(2, 4, 2, 1, 7, 16, 3, 64, 64), 1],
    [(2, 2, 1, 1, 7, 1, 3, 24, 40), 0],
    [(0, 2, 2, 1, 3, 4, 2, 8, 8), 0],
    [(2, 0, 1, 1, 3, 4, 2, 8, 8), 0],
    [(2, 2, 1, 0, 3, 4, 2, 8, 8), 0],
    [(2, 2, 1, 2, 0, 4, 2, 8, 8), 0],
    [(2, 2, 1, 2, 3, 0, 2, 8, 8), 0],
    [(2, 2, 1, 2, 3, 4, 0, 8, 8), 0],
    # dim_v 0 stands for dim; without a dim the weights are equal.
    [(1, 1, 1, 1, 2, 4, 2, 0, 8), 0],
    [(1, 1, 1, 1, 2, 4, 2, 0, 0), 0],
    [(1, 4, 1, 16, 3, 64, 3, 128, 128), 0],
    [(1, 1, 1, 1, 5, 48, 5, 264, 300), 0],
]
MORE_DECODE = [
    [(b, 2 * g, 2, q, b * 9, size, 8, d, d), (q + size) % 2]
    for b, g in ((1, 1), (3, 4))
    for q in (1, 2, 9)
    for size in (3, 16, 100)
    for d in (16, 64, 128)
]
# Integers of a valid call: tests/support/functions/refusals.py.
VALID = {"table": 0, "count": 1, "position": 0}

# Integers of the program that calls every function: tests/support/builds/cprogram.py.
INTEGERS = {"table": (0, 1), "count": (7, 120), "position": (0, 1)}

# [batch, kv_heads, queries, blocks, page_size, pages, dim, dim_v, positions, pairs]
APPEND = [
    [(2, 2, 3, 7, 4, 3, 8, 8, 9, 4), 0],
    [(3, 1, 2, 12, 5, 4, 8, 4, 9, 3), 0],
    [(1, 3, 1, 4, 7, 3, 7, 3, 30, 3), 1],
    [(2, 2, 17, 8, 16, 4, 64, 128, 70, 32), 0],
    [(2, 2, 1, 8, 16, 4, 64, 64, 70, 16), 1],
    [(1, 2, 2, 3, 8, 2, 300, 8, 20, 150), 0],
    [(0, 2, 1, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 0, 1, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 0, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 0, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 3, 0, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 3, 4, 0, 8, 8, 5, 4), 0],
    [(2, 2, 1, 4, 4, 2, 8, 8, 0, 4), 0],
    [(2, 2, 1, 4, 4, 2, 8, 8, 5, 0), 0],
    [(2, 2, 1, 4, 4, 2, 0, 8, 5, 0), 0],
]
MORE_APPEND = [
    [(b, 2, q, b * 9, size, 8, d, d, 100, d // 2), (q + size) % 2]
    for b in (1, 3)
    for q in (1, 2, 9)
    for size in (3, 16)
    for d in (16, 72, 128)
]


# [batch, rows, heads, dim]
MERGE = [
    [(2, 3, 2, 8), 0],
    [(1, 5, 3, 64), 0],
    [(2, 2, 1, 300), 1],
    [(1, 7, 2, 7), 1],
    [(0, 3, 2, 8), 0],
    [(2, 0, 2, 8), 0],
    [(2, 3, 0, 8), 0],
    [(2, 3, 2, 0), 0],
    [(1, 1, 1, 1), 0],
    [(3, 40, 4, 128), 0],
]
MORE_MERGE = [[(2, r, h, d), (r + d) % 2] for r in (1, 33) for h in (1, 3) for d in (5, 72, 520)]


def wrong_heads(sizes):
    """Returns the size that a call refuses because it does not fit the others, or None."""
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    return "kv_heads" if (heads % kv_heads if kv_heads else heads) else None


def wrong_pairs(sizes):
    """The same for rotations."""
    some = all(sizes[name] for name in ("batch", "kv_heads", "queries", "dim"))
    return "pairs" if some and sizes["pairs"] > sizes["dim"] // 2 else None


NULL_POINTER, INVALID_SIZE = 1, 2  # codes: tests/support/functions/refusals.py


def wrong_blocks(values, sizes):
    """Returns (code, argument) of a contiguous cache that lacks sequences, or None."""
    few = not values["page_table"] and sizes["blocks"] < sizes["batch"]
    return (INVALID_SIZE, "blocks") if few else None


def wrong_append(values, sizes):
    """The same of a table of angles without the other one, too."""
    lacks = [name for name in ANGLES if not values[name]]
    return (NULL_POINTER, *lacks) if len(lacks) == 1 else wrong_blocks(values, sizes)


ANGLES = ("cosine", "sine")


def blocks_of(sizes):
    """Returns the blocks of up to two sequences of three pages, of seven (TORCH)."""
    return (0, 4, 2, 6, 1, 3)[: sizes["batch"] * sizes["pages"]]


def merged(t, s):
    """attention_merge in PyTorch's plain operations (tests/support/python/torchops.py)."""
    import torch

    lse = torch.logaddexp(t["lse_a"], t["lse_b"])
    wa, wb = ((t[f"lse_{part}"] - lse).exp().transpose(1, 2)[..., None] for part in "ab")
    return [t["out_a"] * wa + t["out_b"] * wb, lse]


def decoded(t, s):
    """The same of attention_decode."""
    import torch

    q, k, v = (t[name].double().numpy() for name in ("q", "k_cache", "v_cache"))
    more = t["page_table"].numpy(), t["key_length"].numpy(), s["left"], s["right"], s["scale"]
    return [torch.from_numpy(reference.decode(q, k, v, *more)[0]).to(t["q"].dtype)]


REFERENCES = {"attention_merge": merged, "attention_decode": decoded}


def work(f, size):
    """Returns the dimensions of the elementwise pass and the operations of products, with all sizes
    equal.
    """
    return 4, 4 * size**5 if f["form"] == "decode" else 0


FORMS = {
    "decode": types.SimpleNamespace(
        SHAPES=DECODE,
        MORE=MORE_DECODE,
        RESULTS_IN_PARTS=True,  # sums of chunks
        BITS_BY_ALIGNMENT=True,  # other rows take FMAs: tests/support/functions/strided.py
        LAUNCHES=3,
        LARGE=(2**30, 2**10, 1, 1, 1, 1, 1, 1, 1),
        OVERFLOWS=[
            ((2**30, 2**28, 1, 1, 1, 1, 1, 3, 1), "q"),
            ((1, 1, 1, 1, 2**30, 2**28, 1, 3, 1), "k_cache"),
            ((2**30, 1, 1, 1, 1, 1, 2**30, 1, 1), "page_table"),
        ],
        CALLS=(
            [(1, 1, 1, 1, 2, 4, 2, 8, 8), (2, 2, 1, 3, 9, 7, 3, 16, 8)],
            [(2, 8, 2, 1, 9, 64, 4, 64, 64), (1, 4, 1, 2, 30, 16, 30, 128, 128)],
        ),
        SANITIZED=[
            [(2, 8, 2, 1, 9, 64, 4, 64, 64), 0],
            [(3, 4, 1, 3, 12, 5, 4, 8, 4), 0],
            [(2, 4, 2, 1, 7, 16, 3, 64, 64), 1],
        ],
        TORCH=(2, 4, 2, 3, 7, 4, 3, 8, 8),
        GIVEN={"table": blocks_of, "count": lambda n: (12, 5)[: n["batch"]]},
        EXTENTS={
            "batch": (2,),
            "heads": (4,),
            "kv_heads": (2,),
            "queries": (2,),
            "blocks": (7,),
            "page_size": (4,),
            "pages": (3,),
            "dim": (8,),
            "dim_v": (8,),
        },
        COUNTED=[
            ("batch", "queries", "heads", "dim"),
            ("blocks", "page_size", "kv_heads", "dim_v"),
        ],
        READS_SOME_ROWS=True,
        VALID=VALID,
        INTEGERS=INTEGERS,
        prepare=prepare,
        draw=draw,
        fill=fill_decode,
        check=check_decode,
        wrong_size=wrong_heads,
        wrong_tensors=wrong_blocks,
        work=work,
        of_sequence=of_sequence,
    ),
    "append": types.SimpleNamespace(
        SHAPES=APPEND,
        MORE=MORE_APPEND,
        LARGE=(2**30, 2**10, 4, 1, 1, 1, 1, 1, 1, 0),
        OVERFLOWS=[
            ((2**30, 2**28, 1, 1, 1, 1, 3, 1, 1, 1), "k"),
            ((1, 1, 1, 2**30, 2**28, 1, 3, 1, 1, 1), "k_cache"),
            ((1, 1, 1, 1, 1, 1, 2**32, 1, 2**30, 2**30), "cosine"),
        ],
        CALLS=(
            [(1, 1, 1, 2, 4, 2, 8, 8, 9, 4), (2, 1, 3, 9, 7, 3, 16, 8, 20, 8)],
            [(2, 2, 5, 9, 64, 4, 64, 64, 300, 32)],
        ),
        TORCH=(2, 2, 3, 7, 4, 3, 8, 8, 20, 3),
        GIVEN={
            "table": blocks_of,
            "count": lambda n: (9, 5)[: n["batch"]],
            "position": lambda n: range(n["batch"] * n["queries"]),
        },
        EXTENTS={
            "batch": (2,),
            "kv_heads": (2,),
            "queries": (2,),
            "blocks": (7,),
            "page_size": (4,),
            "pages": (3,),
            "dim": (8,),
            "dim_v": (8,),
            "positions": (9,),
            "pairs": (3,),
        },
        COUNTED=[
            ("batch", "queries", "kv_heads", "dim"),
            ("blocks", "page_size", "kv_heads", "dim_v"),
        ],
        READS_SOME_ROWS=True,
        VALID=VALID,
        INTEGERS=INTEGERS,
        IDLE=("batch", "queries"),  # sizes without which a call stores nothing
        prepare=prepare,
        draw=draw,
        check=check_append,
        of_row=of_row,
        wrong_size=wrong_pairs,
        wrong_tensors=wrong_append,
        TOGETHER=(ANGLES,),
        work=work,
    ),
    "merge": types.SimpleNamespace(
        SUMMED={"per_query": ["dim"]},
        SHAPES=MERGE,
        MORE=MORE_MERGE,
        LARGE=(2**20, 2**10, 2**5, 1),
        OVERFLOWS=[
            ((2**30, 2**20, 2**10, 1), "heads"),
            ((2**32, 2**32, 1, 1), "rows"),
            ((2, 1, 2**62, 1), "heads"),
        ],
        CALLS=([(1, 1, 1, 1), (2, 3, 2, 8)], [(2, 9, 3, 130)]),
        TORCH=(2, 3, 2, 8),
        EXTENTS={"batch": (2,), "rows": (3,), "heads": (2,), "dim": (8,)},
        prepare=prepare,
        draw=draw,
        fill=fill_merge,
        check=check_merge,
        wrong_size=lambda sizes: None,
        work=work,
    ),
}
# Kinds of tensors that may be strided, with the suffix of the first stride:
# tests/gen/test_manifest.py.
STRIDED = {
    "decoding": dict.fromkeys(
        ("query", "keys", "values", "elem", "new_keys", "new_values", "key_cache", "value_cache"),
        "_head",
    )
    | {"part": "_head"}
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = {
    "attention_decode": (0, True, 4, False),
    "kv_append": (0, True, 4, False),
    "kv_append_interleaved": (0, True, 4, False),
    "attention_merge": (0, True, 4, True),
}
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"decoding": ("kf_attention_decode_bf16", 80000)}
# The Python package of level 1 has them.
PACKAGED = ["attention_decode", "kv_append", "kv_append_interleaved", "attention_merge"]


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "decoding": [
        """
operands.<x> = { kind = "part", grad = true }
operands.<y> = { kind = "per_query", dtype = "acc" }
operands.<z> = "part"
operands.<b> = { kind = "per_query", dtype = "acc" }
outputs = { out = "weighted(<x>, <y>, <z>, <b>)", lse = "log_add(<y>, <b>)" }
refs = { out = "<x>", lse = "<y>" }
"""
    ]
}
FEW_NAMES = {"decoding": 20}  # its code has few names that do not begin with kfi_
SOME_NAMES = {"decoding": {"tensors", "fields", "element"}}


# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
def entry(expr="softmax(dot * scale) * v_cache", more="", drop=""):
    operands = "\n".join(
        line
        for line in (
            'operands.q = { kind = "query", grad = false }',
            'operands.k_cache = { kind = "keys", grad = false }',
            'operands.v_cache = { kind = "values", grad = false }',
            'operands.page_table = { kind = "table", dtype = "i32", grad = false }',
            'operands.key_length = { kind = "count", dtype = "i32", grad = false }',
        )
        if not drop or drop not in line
    )
    return f"""[op.seen]
family = "decoding"
brief = "b"
{operands}
expr = "{expr}"
ref = "{expr}"
[op.seen.scalars]
left = {{ kind = "int", value = 20 }}
right = {{ kind = "int", value = 0 }}
scale = 0.125
{more}
"""


REFUSED = {
    "another score": (
        entry("softmax(dot * scale * 2) * v_cache"),
        "op.seen",
        "expr",
        "is `softmax(dot * scale * 2) * v_cache`",
        "write it as attention_decode has it",
    ),
    "a further scalar": (
        entry(more="softcap = 2"),
        "op.seen",
        "scalars",
        "are left, right, scale, softcap",
        "name left, right, scale",
    ),
    "a cache without a table": (
        entry(drop="table"),
        "op.seen",
        "operands",
        'has 0 operands of kind "table" beside a "keys"',
        "add one",
    ),
    "no numbers of keys": (entry(drop="count"), "op.seen", "operands", "are q =", "in order"),
    "three arguments of softmax": (
        entry("softmax(dot, scale) * v_cache"),
        "op.seen",
        "expr",
        "calls `softmax` with 2 arguments, it takes 1",
        "see the expression language",
    ),
}
