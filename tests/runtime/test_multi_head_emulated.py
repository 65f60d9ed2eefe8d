# SPDX-License-Identifier: Apache-2.0
"""kf_fused_multi_head_attention on a GPU's tensors: the kernels' source on the emulation."""

import cases
import multi_head
import numpy as np
import pytest
import runtime_ops
import toolkit
from multi_head import Sizes

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
DTYPES = cases.by_level(("f32", "bf16"), ("f32", "f64", "f16", "bf16"))
# Rows of heads at multiples of 16 bytes, and others.
CALLS = {
    "packed": Sizes(queries=19, keys=19, embed=24, heads=2, kv_heads=1, dim=8, dim_v=8),
    "cross": Sizes(1, 3, 21, packed=False, kv_heads=2, dim_v=6, key_embed=9, value_embed=5),
}


@pytest.fixture(scope="module")
def heads(once):
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    made = runtime_ops.choose(multi_head.OPS, DTYPES, ["none"])
    library = once(
        "multi-head attention, emulated",
        lambda folder: runtime_ops.compile_emulated(folder, made, "-DKF_HEAD_DIMS=1"),
    )
    return multi_head.Heads(library)


@pytest.fixture
def ctx(heads):
    found = heads.context(0)
    yield found
    assert heads.context_destroy(found) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_formula(heads, ctx, name, dtype):
    """All kinds of scores, on a stream of its own; rows before the batch in memory, too."""
    s, rng = CALLS[name], np.random.default_rng(9)
    stream = heads.stream_create(ctx, None)
    masks = (
        ({}, {}),
        ({}, {"is_causal": 1}),
        ({"mask": rng.integers(0, 2, (s.batch, 1, 1, s.keys)).astype(np.uint8)}, {}),
        ({"mask": rng.standard_normal((s.queries, s.keys))}, {}),
    )
    for mask, numbers in masks:
        x = multi_head.inputs(rng, s)
        x = {"query": x["query"]} if s.packed else x
        arrays = multi_head.stored(x | multi_head.weights(rng, s) | mask, dtype)
        given = multi_head.exact(arrays, dtype)
        wanted = multi_head.expected(given, s, **numbers)
        arrays["query"] = np.ascontiguousarray(arrays["query"].swapaxes(0, 1)).swapaxes(0, 1)
        room = multi_head.stored({"out": np.full((s.queries, s.batch, 10), np.nan)}, dtype)
        arrays["out"] = room["out"].swapaxes(0, 1)
        numbers = numbers | {"heads": s.heads, "kv_heads": s.kv_heads}
        assert heads.attend(ctx, arrays, dtype, stream, **numbers) == 0, heads.detail
        assert heads.context_synchronize(ctx) == 0
        multi_head.close(multi_head.exact(arrays, dtype)["out"], wanted, dtype)
    heads.destroy(("stream", stream))


def test_the_cpu_beside_it(heads):
    """One library has the function for both devices; empty sizes on a GPU."""
    s, rng = CALLS["packed"], np.random.default_rng(10)
    for device in (-1, 0):
        ctx = heads.context(device)
        for change in ({}, {"batch": 0}, {"queries": 0, "keys": 4}):
            s = Sizes(**change)
            arrays = multi_head.stored(
                multi_head.inputs(rng, s) | multi_head.weights(rng, s), "f32"
            )
            arrays["out"] = np.full((s.batch, s.queries, s.out_embed), np.nan, np.float32)
            assert heads.attend(ctx, arrays, "f32", heads=s.heads) == 0, heads.detail
            wanted = multi_head.expected(multi_head.exact(arrays, "f32"), s)
            multi_head.close(arrays["out"], wanted, "f32")
        heads.destroy(("context", ctx))
