# SPDX-License-Identifier: Apache-2.0
"""kf_fused_multi_head_attention with wrong arguments, and in programs with a part of its ops."""

import ctypes
import subprocess

import kflib
import multi_head
import numpy as np
import pytest
import runtime_api
import runtime_ops
from kfgen import cli
from kfgen.entries import compositions
from kfgen.interfaces import runtime
from multi_head import Arguments, Sizes

NAME = "kf_fused_multi_head_attention: "
SIZES = Sizes(packed=False, kv_heads=2, key_embed=9, value_embed=7)
# Changes of a correct call with three weights (packed: with one): shapes of tensors (None: absent;
# a dtype: of that dtype), other arguments; the error.
SHAPES = [
    ({"query": None}, {}, "NULL_POINTER", "query is NULL, expected a tensor"),
    ({"k_proj_weight": None}, {}, "NULL_POINTER", "k_proj_weight is NULL, expected a tensor"),
    ({"out_proj_weight": None}, {}, "NULL_POINTER", "out_proj_weight is NULL, expected a tensor"),
    ({"out": None}, {}, "NULL_POINTER", "out is NULL, expected a tensor"),
    ({"query": (5, 12)}, {}, "SHAPE", "query is [5, 12], expected [any, any, any]"),
    ({"key": (3, 5, 9)}, {}, "SHAPE", "key is [3, 5, 9], expected [2, any, any]"),
    ({"value": (2, 4, 7)}, {}, "SHAPE", "value is [2, 4, 7], expected [2, 5, any]"),
    ({"q_proj_weight": (16, 9)}, {}, "SHAPE", "q_proj_weight is [16, 9], expected [any, 12]"),
    ({"q_proj_weight": (18, 12)}, {}, "SHAPE", "[18, 12], expected rows for 4 heads"),
    ({"k_proj_weight": (10, 9)}, {}, "SHAPE", "k_proj_weight is [10, 9], expected [8, 9] beside"),
    ({"k_proj_weight": (8, 8)}, {}, "SHAPE", "k_proj_weight is [8, 8], expected [any, 9]"),
    ({"v_proj_weight": (7, 7)}, {}, "SHAPE", "v_proj_weight is [7, 7], expected rows for 2 heads"),
    ({"in_proj_bias": (31,)}, {}, "SHAPE", "in_proj_bias is [31], expected [32]"),
    ({"out_proj_weight": (10, 8)}, {}, "SHAPE", "out_proj_weight is [10, 8], expected [any, 16]"),
    ({"out_proj_bias": (9,)}, {}, "SHAPE", "out_proj_bias is [9], expected [10]"),
    ({"out": (2, 5, 12)}, {}, "SHAPE", "out is [2, 5, 12], expected [2, 5, 10]"),
    ({"mask": (2, 5, 5)}, {}, "SHAPE", "mask is [2, 5, 5], expected a shape that broadcasts to"),
    ({"mask": (5, 1)}, {}, "UNSUPPORTED", "mask is [2, 4, 5, 5] with strides [0, 0, 1, 0], which"),
    ({"key": "f32"}, {}, "DTYPE", "key is f32, expected f64 as query"),
    ({"out": "f32"}, {}, "DTYPE", "out is f32, expected f64 as query"),
    ({"mask": "f32"}, {}, "DTYPE", "mask is f32, expected u8, or f64 as query"),
    ({}, {"heads": 0}, "INVALID_SIZE", "heads is 0, expected 1 or more"),
    ({}, {"kv_heads": 3}, "INVALID_SIZE", "kv_heads is 3, expected a divisor of heads, 4"),
    ({}, {"kv_heads": -1}, "INVALID_SIZE", "kv_heads is -1, expected a divisor of heads, 4"),
    ({}, {"scale": np.inf}, "INVALID_VALUE", "scale is inf, expected a finite number"),
    ({}, {"is_causal": 2}, "INVALID_VALUE", "is_causal is 2, expected 0 or 1"),
    ({"mask": (5, 5)}, {"is_causal": 1}, "INVALID_VALUE", "is_causal is 1 beside a mask, expected"),
]
PACKED = [
    ({"in_proj_weight": None}, {}, "NULL_POINTER", "in_proj_weight is NULL, expected a tensor"),
    ({"q_proj_weight": (16, 12)}, {}, "INVALID_VALUE", "is given beside in_proj_weight, expected"),
    ({"in_proj_weight": (33, 12)}, {}, "SHAPE", "[33, 12], expected rows for 8 heads"),
    ({"in_proj_weight": (32, 11)}, {}, "SHAPE", "in_proj_weight is [32, 11], expected [any, 12]"),
    ({"key": (2, 5, 9)}, {}, "SHAPE", "key is [2, 5, 9], expected [2, any, 12] beside in_proj_w"),
    ({"value": (2, 5, 9)}, {}, "SHAPE", "value is [2, 5, 9], expected [2, 5, 12] beside in_proj"),
]


ROWS = [*((False, *row) for row in SHAPES), *((True, *row) for row in PACKED)]


@pytest.mark.parametrize(
    ("packed", "change", "numbers", "code", "words"),
    [pytest.param(*row, id=row[-1][:40]) for row in ROWS],
)
def test_a_wrong_call(heads, ctx, packed, change, numbers, code, words):
    """An error names the function, the argument, what it got and what it expected; nothing is
    written, and no memory is taken."""
    s, rng = Sizes(kv_heads=2) if packed else SIZES, np.random.default_rng(1)
    arrays = multi_head.inputs(rng, s) | multi_head.weights(rng, s)
    arrays["out"] = np.full((s.batch, s.queries, s.out_embed), 77.0)
    for name, value in change.items():
        if value is None:
            del arrays[name]
        elif value == "f32":
            arrays[name] = np.ones(arrays[name].shape if name in arrays else (5, 5), np.float32)
        else:
            arrays[name] = np.full(value, 77.0)
    stats = runtime_api.Stats()
    assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
    before = stats.peak
    found = heads.attend(ctx, arrays, "f64", **({"heads": 4, "kv_heads": 2} | numbers))
    assert heads.fails(found, f"ERROR_{code}", NAME, words)
    assert "out" not in arrays or (arrays["out"] == arrays["out"].flat[0]).all()
    assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0 and stats.peak == before


def test_wrong_handles(heads, ctx):
    """Contexts, streams and tensors that are absent, of another kind or of another context."""
    s, rng = Sizes(), np.random.default_rng(2)
    given = {"query": multi_head.inputs(rng, s)["query"]} | multi_head.weights(rng, s)
    given["out"] = np.full((s.batch, s.queries, s.out_embed), 77.0)
    other = heads.context()
    made = {n: heads.over(ctx, x, runtime_api.F64) for n, x in given.items()}
    foreign = heads.over(other, given["query"], runtime_api.F64)
    stream = heads.stream_create(other, None)

    def call(context, stream=None, **change):
        arguments = Arguments(**(made | {"heads": s.heads} | change))
        return heads.function_on_heads(context, ctypes.addressof(arguments), stream)

    for made_call, code, words in (
        (lambda: call(None), "NULL_POINTER", "ctx is NULL, expected a context"),
        (lambda: call(made["query"]), "HANDLE", "ctx is a tensor, expected a context"),
        (lambda: call(ctx, stream), "DEVICE", "stream is of another context"),
        (lambda: call(ctx, query=ctx), "HANDLE", "query is a context, expected a tensor"),
        (lambda: call(ctx, key=foreign), "DEVICE", "key is of another context, expected one of"),
        (
            lambda: heads.function_on_heads(ctx, None, None),
            *("NULL_POINTER", "arguments is NULL, expected those of a call"),
        ),
    ):
        assert heads.fails(made_call(), f"ERROR_{code}", NAME + words)
    assert (given["out"] == 77).all()
    heads.destroy(*(("tensor", t) for t in (*made.values(), foreign)), ("stream", stream))
    heads.destroy(("context", other))


def test_results_that_cannot_be_written(heads, ctx):
    """The last product reads its weight and bias while it writes the result."""
    s, rng = Sizes(out_embed=16, batch=1), np.random.default_rng(3)
    given = {"query": multi_head.inputs(rng, s)["query"]} | multi_head.weights(rng, s)
    room = np.full((s.out_embed, s.heads * s.dim_v), 77.0)
    for name, x in (("weight", room), ("bias", room[2])):
        arrays = given | {f"out_proj_{name}": x, "out": room[None, : s.queries]}
        found = heads.attend(ctx, arrays, "f64", heads=s.heads)
        assert heads.fails(found, "ERROR_OVERLAP", NAME + "out at 0x", f"overlaps out_proj_{name}")
    out = np.broadcast_to(room[:1], (1, s.queries, s.out_embed))
    found = heads.attend(ctx, given | {"out": out}, "f64", heads=s.heads)
    assert heads.fails(
        found,
        "ERROR_OVERLAP",
        NAME + "out is [1, 5, 16] with strides [0, 0, 1], expected elements that lie apart",
    )
    assert (room == 77).all()


def test_tensors_that_take_a_copy(heads, ctx):
    """Large tensors whose last dimension is not contiguous."""
    s = Sizes(batch=1, queries=2048, keys=2048, embed=520, heads=1, kv_heads=1)
    rng = np.random.default_rng(4)
    given = {"query": multi_head.inputs(rng, s)["query"]} | multi_head.weights(rng, s)
    given["out"] = np.full((s.batch, s.queries, s.out_embed), 77.0)
    given["query"] = np.asfortranarray(given["query"])
    found = heads.attend(ctx, given, "f64", heads=s.heads)
    words = "query is [1, 2048, 520] with strides [1, 1, 2048], which takes a copy"
    assert heads.fails(found, "ERROR_UNSUPPORTED", NAME + words)
    assert (given["out"] == 77).all()


# ---- programs with a part of the ops


def test_a_program_with_a_part_of_its_ops(tmp_path):
    """Without the op for a mask, and without a dtype."""
    made = runtime_ops.choose(["linear", "causal_attention"], ["f32"], ["none"])
    heads = multi_head.Heads(runtime_ops.compile_library(tmp_path, made))
    ctx, s, rng = heads.context(), Sizes(), np.random.default_rng(5)
    given = {"query": multi_head.inputs(rng, s)["query"]} | multi_head.weights(rng, s)
    given["out"] = np.full((s.batch, s.queries, s.out_embed), np.nan)
    arrays = multi_head.stored(given, "f32")
    assert heads.attend(ctx, arrays, "f32", heads=s.heads, is_causal=1) == 0, heads.detail
    wanted = multi_head.expected(multi_head.exact(arrays, "f32"), s, is_causal=1)
    multi_head.close(arrays["out"], wanted, "f32")
    mask = {"mask": np.ones((5, 5), np.float32)}
    for more, words in (
        ({}, "is_causal is 0, which calls attention, which this program does not have"),
        (mask, "mask is f32, which calls bias_attention, which this program does not have"),
        ({"mask": np.ones((5, 5), np.uint8)}, "mask is u8, which calls mask_attention, which this"),
    ):
        found = heads.attend(ctx, arrays | more, "f32", heads=s.heads)
        assert heads.fails(found, "ERROR_UNSUPPORTED", NAME + words)
    found = heads.attend(ctx, given, "f64", heads=s.heads, is_causal=1)
    words = "query has f64 with activation none, which this program does not have (kfgen runtime"
    assert heads.fails(found, "ERROR_DTYPE", NAME + words)
    heads.destroy(("context", ctx))


def test_which_programs_have_it():
    """A program has the function beside the product and one of the others; an op of the same name
    hides it."""
    for ops, has in (
        (multi_head.OPS, True),
        (["linear", "mask_attention"], True),
        (["linear"], False),
        (["attention", "causal_attention"], False),
    ):
        found = runtime.functions(runtime_ops.choose(ops, ["f32"], ["none"]))
        assert [c.name for c in compositions.of(found)] == ["multi_head_attention"] * has
        found[0].op = "multi_head_attention"
        assert compositions.of(found) == []


CALLER = """#include <kf/runtime/multi_head_attention.h>
#include <stdio.h>
int main(void)
{
    kf_multi_head_attention_t call = {0};
    kf_context_t *const ctx = kf_context_create(-1);
    const int missing = kf_fused_multi_head_attention(ctx, &call, NULL) == KF_ERROR_NULL_POINTER;
    puts(kf_runtime_error_detail());
    (void)kf_fused_linear(ctx, NULL, NULL, NULL, NULL, NULL, NULL);
    return !missing || kf_context_destroy(ctx) != KF_SUCCESS;
}
"""


@pytest.mark.parametrize(
    ("first", "second"), [("gcc -std=c11", "gcc -std=c11"), ("g++ -std=c++17 -xc++",) * 2]
)
def test_its_own_header(tmp_path, first, second):
    """`kfgen runtime --each` writes a header of the function and of the ops that it calls, which
    declares it twice and defines it once."""
    assert (
        cli.main(
            ["runtime", "--each", "--ops", "linear,causal_attention", "--dtypes", "f32"]
            + ["--activations", "none", "-o", str(tmp_path)]
        )
        == 0
    )
    written = {p.name for p in (tmp_path / "kf/runtime").iterdir()}
    assert written == {"all.h", "linear.h", "causal_attention.h", "multi_head_attention.h"}
    definitions = "#define KF_RUNTIME_IMPLEMENTATION\n" + 2 * "#include <kf/runtime/all.h>\n"
    headers = kflib.render(kflib.ROOT / "build/tests")
    include = [f"-I{tmp_path}", *(word for d in headers for word in ("-isystem", str(d)))]
    objects = []
    for name, compiler, text in (("one", first, definitions), ("two", second, CALLER)):
        (tmp_path / f"{name}.c").write_text(text)
        flags = [*runtime_api.WARNINGS, "-Wno-missing-field-initializers", *include]
        objects.append(tmp_path / f"{name}.o")
        source = ["-c", tmp_path / f"{name}.c", "-o", objects[-1]]
        subprocess.run([*compiler.split(), "-O1", *flags, *source], check=True)
    linked = [first.split()[0], *objects, "-lm", "-o", tmp_path / "program"]
    subprocess.run(linked, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    assert done.stdout == NAME + "query is NULL, expected a tensor\n"
