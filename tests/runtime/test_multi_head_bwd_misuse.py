# SPDX-License-Identifier: Apache-2.0
"""kf_fused_multi_head_attention_bwd, and `saved` of its forward, with wrong arguments."""

import ctypes

import multi_head
import numpy as np
import pytest
import runtime_api
import runtime_ops
from multi_head import GRADIENTS, Arguments, Gradients, Sizes
from multi_head_gradients import Call

NAME = "kf_fused_multi_head_attention_bwd: "
SIZES = Sizes(packed=False, kv_heads=2, key_embed=9, value_embed=7)
# Changes of a correct call of all gradients: shapes of tensors (None: absent; a dtype: of that
# dtype), other arguments; the error.
WRONG = [
    ({"dout": None}, {}, "NULL_POINTER", "dout is NULL, expected a tensor"),
    ({"saved": None}, {}, "NULL_POINTER", "saved is NULL, expected a tensor"),
    ({"query": None}, {}, "NULL_POINTER", "query is NULL, expected a tensor"),
    ({"out_proj_weight": None}, {}, "NULL_POINTER", "out_proj_weight is NULL, expected a tensor"),
    ({"dout": (2, 5, 9)}, {}, "SHAPE", "dout is [2, 5, 9], expected [2, 5, 10]"),
    ({"dquery": (2, 5, 9)}, {}, "SHAPE", "dquery is [2, 5, 9], expected [2, 5, 12]"),
    ({"dkey": (5, 9)}, {}, "SHAPE", "dkey is [5, 9], expected [2, 5, 9]"),
    ({"dvalue": (2, 5, 9)}, {}, "SHAPE", "dvalue is [2, 5, 9], expected [2, 5, 7]"),
    ({"dq_proj_weight": (16, 9)}, {}, "SHAPE", "dq_proj_weight is [16, 9], expected [16, 12]"),
    ({"dk_proj_weight": (9, 8)}, {}, "SHAPE", "dk_proj_weight is [9, 8], expected [8, 9]"),
    ({"dv_proj_weight": (8,)}, {}, "SHAPE", "dv_proj_weight is [8], expected [8, 7]"),
    ({"din_proj_bias": (31,)}, {}, "SHAPE", "din_proj_bias is [31], expected [32]"),
    ({"dout_proj_weight": (10, 8)}, {}, "SHAPE", "dout_proj_weight is [10, 8], expected [10, 16]"),
    ({"dout_proj_bias": (9,)}, {}, "SHAPE", "dout_proj_bias is [9], expected [10]"),
    ({"dmask": (4, 5, 5)}, {}, "SHAPE", "dmask is [4, 5, 5], expected [4, 1, 5]"),
    ({"dout": "f32"}, {}, "DTYPE", "dout is f32, expected f64 as query"),
    ({"dquery": "f32"}, {}, "DTYPE", "dquery is f32, expected f64 as query"),
    ({"dk_proj_weight": "f32"}, {}, "DTYPE", "dk_proj_weight is f32, expected f64 as query"),
    ({"din_proj_weight": (32, 12)}, {}, "INVALID_VALUE", "is given without in_proj_weight, expe"),
    ({"key": None, "value": None}, {}, "SHAPE", "k_proj_weight is [8, 9], expected [any, 12]"),
    ({"in_proj_bias": None}, {}, "INVALID_VALUE", "din_proj_bias is given without in_proj_bias"),
    ({"out_proj_bias": None}, {}, "INVALID_VALUE", "dout_proj_bias is given without out_proj_bias"),
    ({"mask": None}, {}, "INVALID_VALUE", "dmask is given without a mask of numbers, expected NU"),
    ({"mask": "u8"}, {}, "INVALID_VALUE", "dmask is given without a mask of numbers, expected NU"),
    ({"saved": (9,)}, {}, "DTYPE", "saved is f64, expected u8"),
    ({}, {"beta": np.nan}, "INVALID_VALUE", "beta is nan, expected a finite number"),
    ({}, {"heads": 3}, "INVALID_SIZE", "kv_heads is 2, expected a divisor of heads, 3"),
    ({}, {"is_causal": 1}, "INVALID_VALUE", "is_causal is 1 beside a mask, expected one of them"),
]


def correct(heads, ctx, s=SIZES, dtype="f64", only=None, seed=1):
    rng = np.random.default_rng(seed)
    mask = {"mask": rng.standard_normal((s.heads, 1, s.keys))}
    return Call(heads, ctx, s, dtype, rng, mask, only)


def refused(call, arrays, fields, code, words, **numbers):
    """Makes a call that fails; checks that it writes no array and takes no memory."""
    heads, ctx, stats = call.heads, call.ctx, runtime_api.Stats()
    before = {n: x.tobytes() for n, x in (arrays | fields).items()}
    assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
    taken = stats.hits, stats.reserved, stats.in_use
    found = heads.gradients(ctx, arrays, fields, call.dtype, **(call.numbers | numbers))
    assert heads.fails(found, f"ERROR_{code}", NAME, words)
    assert {n: x.tobytes() for n, x in (arrays | fields).items()} == before
    assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
    assert (stats.hits, stats.reserved, stats.in_use) == taken


@pytest.mark.parametrize(
    ("change", "numbers", "code", "words"), [pytest.param(*row, id=row[-1][:40]) for row in WRONG]
)
def test_a_wrong_call(heads, ctx, change, numbers, code, words):
    """An error names the function, the argument, what it got and what it expected."""
    call = correct(heads, ctx)
    arrays, fields = dict(call.arrays), {"dout": call.dout} | call.empty()
    for name, value in change.items():
        place = fields if name == "dout" or name in GRADIENTS else arrays
        if value is None:
            del place[name]
        elif isinstance(value, str):
            place[name] = place[name].astype({"f32": np.float32, "u8": np.uint8}[value])
        else:
            place[name] = np.full(value, 77.0)
    refused(call, arrays, fields, code, words, **numbers)


def test_gradients_of_inputs_that_are_not_given(heads, ctx):
    """dquery has the sum for a key and a value that are NULL."""
    for only, name in ((("query",), "key"), (("query", "key"), "value"), (("query",), "value")):
        call = correct(heads, ctx, Sizes(kv_heads=2), only=only)
        fields = {"dout": call.dout, f"d{name}": np.full((2, 5, 12), np.nan)}
        words = f"d{name} is given without {name}, expected NULL"
        refused(call, call.arrays, fields, "INVALID_VALUE", words)


def test_wrong_handles(heads, ctx):
    """Contexts, streams, structs and tensors that are absent, of another kind or context."""
    call, other = correct(heads, ctx), heads.context()
    made = heads.handles(ctx, call.arrays, "f64")
    gradients = heads.handles(ctx, {"dout": call.dout} | call.empty(), "f64")
    foreign = heads.over(other, call.dout, runtime_api.F64)
    stream = heads.stream_create(other, None)
    arguments = Arguments(**made, **call.numbers)

    def run(context, stream=None, given=arguments, **change):
        fields = Gradients(**(gradients | change))
        given = given and ctypes.addressof(given)
        return heads.backward(context, given, ctypes.addressof(fields), stream)

    address = ctypes.addressof(arguments)
    for found, code, words in (
        (lambda: run(None), "NULL_POINTER", "ctx is NULL, expected a context"),
        (lambda: run(made["query"]), "HANDLE", "ctx is a tensor, expected a context"),
        (lambda: run(ctx, stream), "DEVICE", "stream is of another context"),
        (lambda: run(ctx, given=None), "NULL_POINTER", "arguments is NULL, expected those of"),
        (
            lambda: heads.backward(ctx, address, None, None),
            *("NULL_POINTER", "gradients is NULL, expected the gradients to compute"),
        ),
        (lambda: run(ctx, dout=ctx), "HANDLE", "dout is a context, expected a tensor"),
        (lambda: run(ctx, dout=foreign), "DEVICE", "dout is of another context, expected one of"),
        (lambda: run(ctx, dmask=foreign), "DEVICE", "dmask is of another context, expected one"),
        (lambda: run(ctx, dquery=stream), "HANDLE", "dquery is a stream, expected a tensor"),
    ):
        assert heads.fails(found(), f"ERROR_{code}", NAME + words)
    handles = (*made.values(), *gradients.values(), foreign)
    heads.destroy(*(("tensor", t) for t in handles), ("stream", stream), ("context", other))


def test_gradients_that_overlap(heads, ctx):
    """No gradient shares memory with a tensor that is read or with another gradient, or repeats."""
    call = correct(heads, ctx, Sizes(kv_heads=2), dtype="f64")
    fields = {"dout": call.dout} | call.empty()
    for name in call.wanted:
        for other in (*call.arrays, "dout", *call.wanted):
            if other in (name, "out", "mask"):
                continue
            shared = (call.arrays | fields)[other]
            size = call.wanted[name].size * 8
            room = np.full(max(size, shared.nbytes) + 8, 0x11, np.uint8)
            own = room[:size].view(np.float64).reshape(call.wanted[name].shape)
            also = room[: shared.nbytes].view(shared.dtype).reshape(shared.shape)
            also[:] = np.nan_to_num(shared)
            arrays = call.arrays | ({other: also} if other in call.arrays else {})
            changed = fields | {name: own} | ({} if other in call.arrays else {other: also})
            refused(call, arrays, changed, "OVERLAP", "expected memory apart")
        if call.wanted[name].ndim > 1:
            repeated = np.broadcast_to(np.zeros(1), call.wanted[name].shape)
            words = f"{name} is "
            refused(call, call.arrays, fields | {name: repeated}, "OVERLAP", words)


def test_what_takes_a_copy(heads, ctx):
    """A gradient of a mask that is a sum, with strides; large gradients without contiguous rows."""
    call = correct(heads, ctx, Sizes(kv_heads=2))
    apart = np.full((*call.wanted["dmask"].shape, 2), 7.0)[..., 0]
    fields = {"dout": call.dout} | call.empty() | {"dmask": apart}
    words = "dmask is [4, 1, 5] with strides [10, 10, 2], which takes a copy: kf_tensor_copy"
    refused(call, call.arrays, fields, "UNSUPPORTED", words)
    s = Sizes(batch=1, queries=2048, keys=2048, embed=520, heads=1, kv_heads=1)
    rng = np.random.default_rng(4)
    call = Call(heads, ctx, s, "f64", rng, {}, ("query",))
    fields = {"dout": call.dout} | call.empty()
    fields["dquery"] = np.asfortranarray(fields["dquery"])
    words = "dquery is [1, 2048, 520] with strides [1, 1, 2048], which takes a copy"
    refused(call, call.arrays, fields, "UNSUPPORTED", words)


def test_dtypes_of_one_product(heads, ctx):
    """The gradients of a weight and its bias have one dtype."""
    call = correct(heads, ctx, Sizes(kv_heads=2), dtype="bf16")
    fields = {"dout": call.dout} | call.empty()
    fields["din_proj_bias"] = np.full(call.wanted["din_proj_bias"].shape, 7, np.float32)
    words = "din_proj_bias is f32, expected bf16 beside query of bf16"
    refused(call, call.arrays, fields, "DTYPE", words)
    fields = {"dout": call.dout, "dquery": np.full((2, 5, 12), 7, np.float32)}
    refused(call, call.arrays, fields, "DTYPE", "dquery is f32, expected bf16 as query")


def test_saved(heads, ctx):
    """`saved` of the forward and the backward: its size, layout, alignment and memory."""
    call = correct(heads, ctx, Sizes(kv_heads=2))
    size, rng = len(call.arrays["saved"]), np.random.default_rng(3)
    room = np.zeros(size + 16, np.uint8)
    wide = np.zeros((size, 2), np.uint8)[:, 0]
    fields = {"dout": call.dout} | call.empty()
    for saved, code, words in (
        (room[: size - 1], "SHAPE", f"saved is [{size - 1}] with strides [1], expected {size} con"),
        (wide, "SHAPE", f"saved is [{size}] with strides [2], expected {size} contiguous bytes or"),
        (room[1 : size + 1], "MISALIGNED", "saved is at 0x"),
        (np.zeros(size, np.float32), "DTYPE", "saved is f32, expected u8"),
    ):
        arrays = call.arrays | {"saved": saved}
        refused(call, arrays, fields, code, words)
        arrays["out"] = np.full(arrays["out"].shape, 77.0)
        found = heads.attend(ctx, arrays, "f64", **call.numbers)
        assert heads.fails(found, f"ERROR_{code}", "kf_fused_multi_head_attention: ", words)
        assert (arrays["out"] == 77).all() and not saved.any()
    for name in [n for n in call.arrays if n != "saved"]:
        x = call.arrays[name]
        both = rng.integers(0, 256, size + x.nbytes, np.uint8)
        arrays = call.arrays | {"saved": both[:size]}
        arrays[name] = both[: x.nbytes].view(x.dtype).reshape(x.shape)
        arrays[name][:] = x
        before = both.copy()
        found = heads.attend(ctx, arrays, "f64", **call.numbers)
        words = f"overlaps {name} at 0x"
        assert heads.fails(found, "ERROR_OVERLAP", "_attention: saved at 0x", words)
        assert (both == before).all()


def test_a_result_over_its_arguments(heads, ctx):
    """With `saved` the result overlaps no argument, since the backward reads them again."""
    call = correct(heads, ctx, Sizes(kv_heads=2))
    for name in [n for n in call.arrays if n not in ("saved", "out")]:
        x, out = call.arrays[name], call.arrays["out"]
        both = np.zeros(max(x.nbytes, out.nbytes), np.uint8)
        arrays = call.arrays | {
            key: both[: a.nbytes].view(a.dtype).reshape(a.shape)
            for key, a in (("out", out), (name, x))
        }
        arrays[name][:] = x
        before = both.copy()
        found = heads.attend(ctx, arrays, "f64", **call.numbers)
        assert heads.fails(
            found, "ERROR_OVERLAP", "_attention: out at 0x", f"overlaps {name} at 0x"
        )
        assert (both == before).all()


def test_the_size_of_saved(heads, ctx):
    """Wrong arguments have no size; `out` and `saved` are not read."""
    s, rng = Sizes(), np.random.default_rng(5)
    arrays = multi_head.inputs(rng, s) | multi_head.weights(rng, s)
    handles = heads.handles(ctx, arrays, "f64")
    name = "kf_fused_multi_head_attention_saved_bytes: "
    for context, change, words in (
        (None, {}, "ctx is NULL, expected a context"),
        (ctx, {"query": None}, "query is NULL, expected a tensor"),
        (ctx, {"heads": 5}, "in_proj_weight is [48, 12], expected a multiple of 15 rows"),
    ):
        given = Arguments(**({"heads": 4} | handles | change))
        assert heads.saved_bytes(context, ctypes.addressof(given)) == -1
        assert heads.detail.startswith(name + words), heads.detail
    assert heads.saved_bytes(ctx, None) == -1 and "arguments is NULL" in heads.detail
    given = Arguments(**({"heads": 4, "out": ctx, "saved": ctx} | handles))
    found = heads.saved_bytes(ctx, ctypes.addressof(given))
    # q, k and v side by side; attention's result; lse, row_max and log_sum.
    parts = (2 * 5 * 48, 2 * 5 * 16, *(2 * 4 * 5,) * 3)
    assert found == sum((n * 8 + 255) // 256 * 256 for n in parts)
    heads.destroy(*(("tensor", h) for h in handles.values()))


def test_a_program_with_a_part_of_its_ops(tmp_path):
    """Without float32 beside 2-byte tensors, and without the op for a mask."""
    made = runtime_ops.choose(["linear", "causal_attention"], ["bf16"], ["none"])
    heads = multi_head.Heads(runtime_ops.compile_library(tmp_path, made))
    ctx, rng = heads.context(), np.random.default_rng(6)
    call = Call(heads, ctx, Sizes(), "bf16", rng, {}, ("query",), is_causal=1)
    call.compare(call.backward())
    fields = {"dout": call.dout, "dout_proj_bias": np.full(10, 7, np.float32)}
    words = "saved has bf16, the others f32 with activation none, which this program does not have"
    refused(call, call.arrays, fields, "DTYPE", words)
    fields = {"dout": call.dout, "dquery": call.empty(["dquery"])["dquery"]}
    for change, numbers, words in (
        ({}, {"is_causal": 0}, "is_causal is 0, which calls attention_bwd, which this program"),
        (
            *({"mask": np.ones((5, 5), np.uint8)}, {"is_causal": 0}),
            "mask is u8, which calls mask_attention_bwd, which this program does not have",
        ),
    ):
        refused(call, call.arrays | change, fields, "UNSUPPORTED", words, **numbers)
    heads.destroy(("context", ctx))
