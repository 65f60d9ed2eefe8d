# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention over lists of blocks of keys in Python: PyTorch, in eager mode and in a
graph, and JAX."""

import frontend
import numpy as np
import pytest
from kfgen.families.attention import reference
from test_frontends_blocks import draw, drawn_mask

SHAPES = [(1, 1, 130, 200), (1, 4, 130, 200), (2, 1, 130, 200), (2, 4, 130, 200)]
SCALE = 0.3


def given(queries=130, keys=200):
    """q, k, v and dout of two batches, four heads of q and two of k."""
    sizes = ((queries, 4, 16), (keys, 2, 16), (keys, 2, 8), (queries, 4, 8))
    return [draw(2, *n, seed=i) for i, n in enumerate(sizes)]


def wanted(tensors, mask):
    """dq, dk and dv in float64: attention with the whole mask."""
    q, k, v, dout = (x.swapaxes(1, 2).astype(np.float64) for x in tensors)
    see = np.broadcast_to(mask, (2, 4, *mask.shape[-2:]))
    slope = np.full((2, 4, q.shape[2], k.shape[2]), SCALE)
    found = reference.backward(q, k, v, dout, slope, scores=lambda s: s * SCALE, see=see)
    return [x.swapaxes(1, 2) for x in found[:3]]


def near(got, want, limit=2e-5):
    for name, g, w in zip("qkv", got, want):
        error = np.abs(np.asarray(g, np.float64) - w).max(initial=0)
        assert error < limit * max(1, np.abs(w).max(initial=0)), (name, error)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pytorch(kf, shape, dtype):
    """Batches and heads may share lists; keys that nobody sees have gradients of 0."""
    torch = pytest.importorskip("torch")
    kind, limit = getattr(torch, dtype), {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3}
    tensors = [torch.from_numpy(x).to(kind) for x in given()]
    mask = drawn_mask(*shape)
    mask[..., 64:128] = False
    blocks = kf.ops.block_mask_from(torch.from_numpy(mask))
    leaves = [x.requires_grad_() for x in tensors[:3]]
    out = kf.ops.block_sparse_attention(*leaves, *blocks, scale=SCALE)
    got = torch.autograd.grad(out, leaves, tensors[3])
    want = wanted([x.detach().double().numpy() for x in tensors], mask)
    near([x.double().numpy() for x in got], want, limit.get(dtype, 3e-2))
    hidden = ~mask.any(-1)
    assert hidden.any() and not got[1][:, 64:128].any() and not got[2][:, 64:128].any()
    rows = torch.from_numpy(np.broadcast_to(hidden, (2, 4, 130)).swapaxes(1, 2).copy())
    assert not got[0][rows].any()


def test_by_differences(kf):
    """gradcheck of q, k and v: lists of each head, whole, partial and hidden blocks."""
    torch = pytest.importorskip("torch")
    sizes = ((70, 4, 3), (140, 2, 3), (140, 2, 2))
    leaves = [
        torch.from_numpy(draw(1, *n, seed=i)).double().requires_grad_() for i, n in enumerate(sizes)
    ]
    mask = torch.from_numpy(drawn_mask(1, 4, 70, 140))
    mask[:, 1, 7] = False  # a query without keys
    blocks, seen = kf.ops.block_mask_from(mask), mask.any(-1)
    assert 0 < len(blocks.block_masks) < len(blocks.key_blocks) < 16 and not seen.all()

    def function(*tensors):
        return kf.ops.block_sparse_attention(*tensors, *blocks, return_lse=True)

    assert torch.autograd.gradcheck(lambda *t: function(*t)[0], leaves, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *t: function(*t)[1][seen], leaves, fast_mode=True)


def test_blocks_of_128(kf):
    torch = pytest.importorskip("torch")
    tensors = given(260, 300)
    mask = drawn_mask(1, 4, 260, 300, block=128)
    blocks = kf.ops.block_mask_from(torch.from_numpy(mask), 128)
    leaves = [torch.from_numpy(x).requires_grad_() for x in tensors[:3]]
    out = kf.ops.block_sparse_attention(*leaves, *blocks, scale=SCALE)
    got = torch.autograd.grad(out, leaves, torch.from_numpy(tensors[3]))
    near([x.numpy() for x in got], wanted(tensors, mask))


def test_some_gradients(kf):
    """Gradients of some inputs alone have the bits of all; lists may be strided views."""
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x) for x in given(70, 90)]
    blocks = kf.ops.block_mask_from(torch.from_numpy(drawn_mask(70, 90)))
    offsets, found = blocks.block_offsets.expand(2, 4, -1), []
    for wanted_ones in ((0, 1, 2), (0,), (1,), (2,)):
        own = [x.clone().requires_grad_(i in wanted_ones) for i, x in enumerate(tensors[:3])]
        out = kf.ops.block_sparse_attention(*own, offsets, *list(blocks)[1:])
        out.backward(tensors[3])
        assert [x.grad is not None for x in own] == [i in wanted_ones for i in range(3)]
        found.append([x.grad for x in own])
    for i in range(3):
        assert torch.equal(found[1 + i][i], found[0][i]) and found[0][i].any()


def test_a_graph(kf):
    """torch.compile traces the call and its gradient."""
    torch = pytest.importorskip("torch")
    q, k, v, dout = (torch.from_numpy(x) for x in given())
    blocks = kf.ops.block_mask_from(torch.from_numpy(drawn_mask(4, 130, 200)))
    whole = torch.compile(kf.ops.block_sparse_attention, backend="aot_eager", fullgraph=True)
    found = []
    for function in (kf.ops.block_sparse_attention, whole):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        found.append(torch.autograd.grad(function(*leaves, *blocks), leaves, dout))
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("jitted", [False, True])
def test_jax(kf, jitted):
    call = frontend.Frontend("jax", kf)
    tensors, mask = given(), drawn_mask(1, 4, 130, 200)
    q, k, v, dout = map(call.to, tensors)
    blocks = [call.to(np.asarray(x)) for x in kf.ops.block_mask_from(mask)]

    def loss(q, k, v):
        return (call.ops.block_sparse_attention(q, k, v, *blocks, scale=SCALE) * dout).sum()

    gradient = call.library.grad(loss, (0, 1, 2))
    got = (call.library.jit(gradient) if jitted else gradient)(q, k, v)
    near(got, wanted(tensors, mask))
