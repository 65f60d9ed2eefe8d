# SPDX-License-Identifier: Apache-2.0
"""Arguments of attention in Python, in every frontend: scale, masks, offsets, lse, flash-attn's."""

import inspect

import frontend
import numpy as np
import pytest


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scaled():
    """Functions with a scalar whose default follows from a size."""
    from kernel_fusion import _table

    found = _table.functions().items()
    return {name for name, (op, _) in found if any(v.rsqrt_of for v in op.forward.scalars)}


OFFSETS = np.array([0, 2, 5])
CALLS = [
    ("attention", (draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 8))),
    ("causal_attention_varlen", (draw(5, 4, 16), draw(5, 2, 16), draw(5, 2, 8), OFFSETS, OFFSETS)),
]


@frontend.parametrize()
@pytest.mark.parametrize("name, given", CALLS, ids=[name for name, _ in CALLS])
def test_scale_is_that_of_the_dimension(kf, which, name, given):
    """Without `scale`, and with None, it is 1 / sqrt(dim)."""
    call = frontend.Frontend(which, kf)
    want = call(name, *given, scale=0.25)
    for more in ({}, {"scale": None}):
        assert np.array_equal(call(name, *given, **more), want)
    assert not np.array_equal(call(name, *given, scale=1.0), want)


def test_all_of_the_family_scale_by_the_dimension(kf, manifest):
    """The default of every such function; those of users' entries follow from their family."""
    family = {
        f["base"]
        for f in manifest["functions"]
        if {a["name"] for a in f["arguments"]} & set(f["rsqrt_defaults"])
    }
    names = scaled()
    assert names == family & set(dir(kf.ops)) and len(names) > 10
    for name in names:
        function = getattr(kf.ops, name)
        assert inspect.signature(function).parameters["scale"].default is None
        assert "default 1 / sqrt(dim)" in function.__doc__


def test_a_graph_has_the_default(kf):
    """torch.compile traces it, with dimensions that are symbols too."""
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(draw(2, 5, 4, 16))
    want = kf.ops.attention(q, q, q, scale=0.25)
    for dynamic in (False, True):
        whole = torch.compile(kf.ops.attention, backend="eager", fullgraph=True, dynamic=dynamic)
        assert torch.equal(whole(q, q, q), want)


# ---- masks and biases


MASKS = [(5, 7), (7,), (1, 5, 7), (4, 1, 7), (2, 1, 5, 7), (2, 1, 1, 7), (1, 4, 5, 7), (2, 4, 5, 1)]


@frontend.parametrize()
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_broadcast(kf, which, shape):
    """A mask or a bias as PyTorch's attn_mask, the same as one of the whole shape."""
    call = frontend.Frontend(which, kf)
    q, k, v = draw(2, 5, 4, 16), draw(2, 7, 2, 16, seed=1), draw(2, 7, 2, 8, seed=2)
    bias = draw(*shape, seed=3)
    for name, mask in (("bias_attention", bias), ("mask_attention", bias > 0)):
        whole = np.broadcast_to(mask, (2, 4, 5, 7)).copy()
        assert np.array_equal(call(name, q, k, v, mask), call(name, q, k, v, whole))


@frontend.parametrize()
def test_masks_of_packed_sequences_broadcast(kf, which):
    call = frontend.Frontend(which, kf)
    q, k, bias = draw(5, 4, 16), draw(5, 2, 16, seed=1), draw(3, 3, seed=2)
    given = q, k, k, OFFSETS, OFFSETS
    whole = np.broadcast_to(bias, (2, 4, 3, 3)).copy()
    got, want = (call("bias_attention_varlen", *given, b) for b in (bias, whole))
    assert np.array_equal(got, want)


@frontend.parametrize("numpy", "torch", "jax")
def test_a_bias_is_rounded(kf, which):
    """To the dtype of q, as PyTorch does; the least number stays finite."""
    call = frontend.Frontend(which, kf)
    q, bias = draw(1, 3, 2, 8).astype(np.float16), np.float32([[-1e30, 0.1, 0.2]])
    want = call("bias_attention", q, q, q, np.float16([[-65504, 0.1, 0.2]]))
    assert np.array_equal(call("bias_attention", q, q, q, bias), want)


@frontend.parametrize("numpy", "torch", "jax")
@pytest.mark.parametrize("shape", [(6, 7), (2, 5, 7), (2, 4, 5, 7, 1)], ids=str)
def test_masks_that_do_not_broadcast(kf, which, shape):
    q, k = draw(2, 5, 4, 16), draw(2, 7, 4, 16)
    with pytest.raises(ValueError, match=r"kf\.mask_attention: mask has the shape \(") as e:
        frontend.Frontend(which, kf)("mask_attention", q, k, k, draw(*shape) > 0)
    assert str(shape) in str(e.value)


def test_masks_are_not_copied(kf):
    """The kernel reads a broadcast mask through strides."""
    q, k = draw(2, 5, 4, 16), draw(2, 7, 4, 16)
    before = kf.info()["copies"].get("mask_attention", 0)
    for mask in (draw(5, 7) > 0, draw(2, 1, 1, 7) > 0):
        kf.ops.mask_attention(q, k, k, mask)
    assert kf.info()["copies"].get("mask_attention", 0) == before


# ---- offsets

WRONG = [
    ((0, 3, 2), "query_offsets is 2 at 2, expected at least 3, the offset before it"),
    ((0, 2, 6), "query_offsets ends with 6, expected at most 5, the rows of q"),
    ((-1, 2, 5), "query_offsets begins with -1, expected at least 0"),
]


@frontend.parametrize()
@pytest.mark.parametrize("wrong, text", WRONG, ids=range(len(WRONG)))
def test_wrong_offsets_are_refused(kf, which, wrong, text):
    """On the CPU, where the values are at hand. GPUs clamp them."""
    call = frontend.Frontend(which, kf)
    q, right, wrong = draw(5, 4, 8), np.array([1, 3, 3]), np.array(wrong)
    call("causal_attention_varlen", q, q, q, right, right)
    for dtype in (np.int64, np.int32)[: 2 if which != "tensorflow" else 1]:
        with pytest.raises(ValueError, match=f"kf.causal_attention_varlen: {text}"):
            call("causal_attention_varlen", q, q, q, wrong.astype(dtype), right)
    with pytest.raises(ValueError, match=text.replace("query", "key").replace("of q", "of k")):
        call("causal_attention_varlen", q, q, q, right, wrong)


# ---- lse


@frontend.parametrize("numpy", "torch", "jax")
@pytest.mark.parametrize("name", ["attention", "causal_attention_varlen"])
def test_lse(kf, which, name):
    """The result stays; lse is the logarithm of the sum of exponentials of each query's scores."""
    call, packed = frontend.Frontend(which, kf), name.endswith("varlen")
    q, k = draw(3, 4, 16), draw(3, 2, 16, seed=1)
    bounds = np.array([0, 3])
    given = (q, k, k, bounds, bounds) if packed else (q[None], k[None], k[None])
    out, lse = call(name, *given, return_lse=True)
    assert np.array_equal(out, call(name, *given))
    scores = np.einsum("ihd,jhd->hij", q, k.repeat(2, 1)).astype(np.float64) / 4
    scores = np.where(np.tri(3, dtype=bool) | (not packed), scores, -np.inf)
    want = np.log(np.exp(scores).sum(-1))
    assert lse.dtype == np.float32 and np.allclose(lse, want if packed else want[None], 1e-5, 1e-6)
    with pytest.raises(TypeError, match=f"kf.{name}: return_lse is int, expected True or False"):
        call(name, *given, return_lse=1)


def test_lse_in_graphs_and_transforms(kf):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(draw(2, 3, 4, 16))

    def both(q):
        return kf.ops.attention(q, q, q, return_lse=True)

    want = both(q)
    for found in (
        torch.compile(both, backend="eager", fullgraph=True)(q),
        torch.func.vmap(both)(q[:, None]),
    ):
        assert all(torch.allclose(a.reshape(b.shape), b) for a, b in zip(found, want))


def test_lse_under_jit(kf):
    jax = pytest.importorskip("jax")
    import kernel_fusion.jax as kj

    q = jax.numpy.asarray(draw(2, 3, 4, 16))
    out, lse = jax.jit(lambda q: kj.attention(q, q, q, return_lse=True))(q)
    want = kj.attention(q, q, q, return_lse=True)
    assert jax.numpy.allclose(out, want[0]) and jax.numpy.allclose(lse, want[1])


# ---- flash-attn

SLOPES = np.float32([0.5, 0.25, 0.125, 0.0625])
# (arguments of flash_attn_func, kf's function, its arguments)
FLASH = [
    ({}, "attention", {}),
    ({"softmax_scale": 0.3, "deterministic": True}, "attention", {"scale": 0.3}),
    ({"causal": True}, "causal_attention", {}),
    ({"window_size": (2, 1)}, "window_attention", {"left": 2, "right": 1}),
    ({"window_size": (2, -1), "causal": True}, "window_attention", {"left": 2, "right": 0}),
    ({"window_size": (-1, 0)}, "causal_attention", {}),
    ({"causal": True, "softcap": 20.0}, "softcap_causal_attention", {"softcap": 20.0}),
    ({"causal": True, "alibi_slopes": SLOPES}, "alibi_causal_attention", {"slope": SLOPES}),
]


@frontend.parametrize()
def test_flash_attn(kf, which):
    """flash_attn_func and flash_attn_varlen_func call kf's functions."""
    call = frontend.Frontend(which, kf)
    q, k, bounds = draw(5, 4, 16), draw(7, 2, 16, seed=1), np.array([0, 3, 5])
    keys = np.array([0, 4, 7])
    for given, name, own in FLASH[:: 1 if which != "tensorflow" else 3]:
        assert np.array_equal(
            call("flash_attn_func", q[None], k[None], k[None], **given),
            call(name, q[None], k[None], k[None], **own),
        )
        got = call("flash_attn_varlen_func", q, k, k, bounds, keys, 3, 4, 0.0, **given)
        assert np.array_equal(got, call(f"{name}_varlen", q, k, k, bounds, keys, **own))


@frontend.parametrize("numpy", "torch", "jax")
def test_flash_attn_returns_lse(kf, which):
    """return_attn_probs returns (out, lse, None), as flash-attn does without dropout."""
    call = frontend.Frontend(which, kf)
    q = call.to(draw(1, 5, 4, 16))
    *found, nothing = call.ops.flash_attn_func(q, q, q, causal=True, return_attn_probs=True)
    want = call.ops.causal_attention(q, q, q, return_lse=True)
    assert nothing is None and all(map(np.array_equal, found, want))


REFUSED = [
    ({"dropout_p": -0.1}, "dropout_p is -0.1, expected 0 to 1"),
    ({"window_size": 3}, r"window_size is 3, expected \(left, right\)"),
    ({"softcap": 20.0}, "softcap is given beside causal = False"),
    ({"alibi_slopes": SLOPES}, "alibi_slopes is given beside causal = False"),
    ({"causal": True, "window_size": (3, 0), "softcap": 2.0}, "softcap is given beside"),
    ({"causal": True, "softcap": 2.0, "alibi_slopes": SLOPES}, "softcap is 2.0 beside alibi_slo"),
    ({"block_table": np.zeros((1, 1), np.int32)}, "block_table is given, expected None"),
]


@pytest.mark.parametrize("more, text", REFUSED, ids=range(len(REFUSED)))
def test_arguments_of_flash_attn_without_kernel(kf, more, text):
    q, bounds = draw(5, 4, 16), np.array([0, 5])
    with pytest.raises(ValueError, match=f"kf.flash_attn_varlen_func: {text}"):
        kf.ops.flash_attn_varlen_func(q, q, q, bounds, bounds, 5, 5, **more)


@frontend.parametrize()
@pytest.mark.parametrize(
    "k, v, text",
    [
        ((2, 7, 2, 16), (2, 7, 2, 0), "v has no elements: dim_v is 0, expected 1 or more"),
        ((2, 7, 0, 16), (2, 7, 0, 16), "k has no elements: kv_heads is 0, expected 1 or more"),
    ],
)
def test_a_size_whose_0_stands_for_another(kf, which, k, v, text):
    """C reads `dim_v` 0 as dim: the call would write beyond the result."""
    with pytest.raises(ValueError, match=f"kf.attention: {text}"):
        frontend.Frontend(which, kf)("attention", draw(2, 5, 4, 16), draw(*k), draw(*v))
