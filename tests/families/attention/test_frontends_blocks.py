# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks of keys in Python: patterns of boolean masks, every frontend, lists that are
wrong, gradients."""

import frontend
import numpy as np
import pytest
from block_lists import lists_of, mask_of
from kfgen.families.attention import reference


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def drawn_mask(*shape, block=64, seed=0):
    """A mask of full, partial and empty blocks."""
    rng = np.random.default_rng(seed)
    *lead, queries, keys = shape
    kind = rng.random((*lead, -(-queries // block), -(-keys // block)))
    large = np.repeat(np.repeat(kind, block, -2), block, -1)[..., :queries, :keys]
    return (large < 0.3) | ((large < 0.6) & (rng.random(shape) < 0.4))


SHAPES = [
    (130, 200),
    (64, 128),
    (3, 70, 300),
    (2, 3, 129, 65),
    (1, 1, 5, 0),
    (0, 5),
    (2, 1, 64, 64),
]


@pytest.mark.parametrize("block_size", [64, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_patterns(kf, shape, block_size):
    """The lists, their masks and the share, of NumPy's and PyTorch's arrays."""
    mask = drawn_mask(*shape, block=block_size)
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    wanted = lists_of(whole, block_size)
    libraries = [lambda x: x]
    try:
        import torch

        libraries.append(torch.from_numpy)
    except ImportError:
        pass
    for library in libraries:
        found = kf.ops.block_mask_from(library(mask), block_size)
        for got, want in zip(found, wanted):
            assert type(got) is type(library(want))
            assert str(got.dtype).endswith("int32") and np.array_equal(np.asarray(got), want)
        rows, columns = (-(-n // block_size) for n in shape[-2:])
        blocks = rows * columns * whole.shape[0] * whole.shape[1]
        assert found.share == (len(wanted[1]) / blocks if blocks else 0)
        assert found.block_size == block_size and found.shape == whole.shape
        assert np.array_equal(mask_of(*map(np.asarray, found), *shape[-2:]), whole)


def test_a_pattern_is_described(kf):
    mask = np.tri(130, 130, dtype=bool)
    text = "BlockMask([1, 1, 130, 130], block_size=64, share=0.667, partial_blocks=3)"
    assert repr(kf.ops.block_mask_from(mask)) == text


@pytest.mark.parametrize(
    ("mask", "block_size", "error", "text"),
    [
        (np.ones((4, 4)), 64, TypeError, "mask has the dtype float64, expected bool"),
        (np.ones(4, bool), 64, ValueError, "mask has the shape (4,), expected [queries, keys], "),
        (np.ones((4, 4), bool), 32, ValueError, "block_size is 32, expected 64 or 128"),
    ],
)
def test_patterns_refused(kf, mask, block_size, error, text):
    with pytest.raises(error) as e:
        kf.ops.block_mask_from(mask, block_size)
    assert f"kf.block_mask_from: {text}" in str(e.value)


CALLS = [(1, 1, 130, 200), (1, 4, 130, 200), (2, 1, 130, 200), (2, 4, 130, 200)]


@frontend.parametrize()
@pytest.mark.parametrize("shape", CALLS, ids=str)
def test_numbers(kf, which, shape):
    """Batches and heads may share lists; the last ones have fewer queries and keys."""
    call = frontend.Frontend(which, kf)
    q, k, v = draw(2, 130, 4, 16), draw(2, 200, 2, 16, seed=1), draw(2, 200, 2, 8, seed=2)
    mask = drawn_mask(*shape)
    blocks = call.ops.block_mask_from(mask)
    got = call("block_sparse_attention", q, k, v, *map(np.asarray, blocks), scale=0.3)
    heads_first = (x.swapaxes(1, 2).astype(np.float64) for x in (q, k, v))
    want, *_ = reference.forward(*heads_first, lambda s: s * 0.3, see=mask)
    assert np.abs(got.swapaxes(1, 2) - want).max() < 1e-5
    hidden = ~mask.any(-1)
    assert hidden.any() and not got.swapaxes(1, 2)[np.broadcast_to(hidden, want.shape[:3])].any()


def test_shared_lists_are_not_copied(kf):
    q = draw(2, 70, 4, 16)
    blocks = kf.ops.block_mask_from(drawn_mask(70, 70))
    before = kf.info()["copies"].get("block_sparse_attention", 0)
    kf.ops.block_sparse_attention(q, q, q, *blocks)
    assert kf.info()["copies"].get("block_sparse_attention", 0) == before


def changed(which, at, value):
    """Lists of two blocks of queries that see three blocks of keys, with one other number."""
    lists = list(lists_of(np.ones((1, 1, 128, 192), bool), 64))
    lists[2] = np.zeros((1, 64, 2), np.int32)
    lists[which][at] = value
    return lists


WRONG = {
    "block_offsets is 7 at (0, 0, 2), expected 0 to 6, the rows of key_blocks": (0, (0, 0, 2), 7),
    "block_offsets is -1 at (0, 0, 0), expected 0 to 6": (0, (0, 0, 0), -1),
    "block_offsets is 2 at (0, 0, 2), expected at least 3, the bound before it": (0, (0, 0, 2), 2),
    "key_blocks is 3 at (2, 0), expected 0 to 2, the last block of k": (1, (2, 0), 3),
    "key_blocks is -1 at (0, 0), expected 0 to 2": (1, (0, 0), -1),
    "key_blocks is 1 at (4, 1), expected -1 to 0, the last of block_masks": (1, (4, 1), 1),
    "key_blocks does not ascend in the list that begins at 3, expected each": (1, (4, 0), 0),
}


@frontend.parametrize()
@pytest.mark.parametrize("text", WRONG)
def test_wrong_lists(kf, which, text):
    call = frontend.Frontend(which, kf)
    q, k = draw(2, 128, 4, 16), draw(2, 192, 4, 16)
    with pytest.raises(ValueError) as e:
        call("block_sparse_attention", q, k, k, *changed(*WRONG[text]))
    assert f"block_sparse_attention: {text}" in str(e.value)


def test_lists_in_common(kf):
    """Lists of heads may be the same rows, and begin anywhere."""
    q, k = draw(1, 64, 2, 16), draw(1, 192, 2, 16)
    entries = np.array([[2, -1], [0, -1], [1, -1]], np.int32)
    offsets = np.array([[[1, 3], [1, 2]]], np.int32)
    got = kf.ops.block_sparse_attention(q, k, k, offsets, entries, np.zeros((0, 64, 2), np.int32))
    for head, keys in enumerate((128, 64)):
        own = np.s_[:, :, head : head + 1]
        want = kf.ops.attention(q[own], k[own][:, :keys], k[own][:, :keys])
        assert np.abs(got[own] - want).max() < 1e-5


def test_no_gradient(kf):
    torch = pytest.importorskip("torch")
    blocks = kf.ops.block_mask_from(torch.ones(70, 130, dtype=torch.bool))
    q, k = (torch.from_numpy(x).requires_grad_() for x in (draw(1, 70, 2, 8), draw(1, 130, 2, 8)))
    out = kf.ops.block_sparse_attention(q, k, k, *blocks)
    with pytest.raises(NotImplementedError, match=r"kf\.block_sparse_attention has no gradient"):
        out.sum().backward()


def test_no_gradient_in_jax(kf):
    call = frontend.Frontend("jax", kf)
    q, k = map(call.to, (draw(1, 70, 2, 8), draw(1, 130, 2, 8)))
    blocks = [call.to(x) for x in kf.ops.block_mask_from(np.ones((70, 130), bool))]

    def loss(q):
        return call.ops.block_sparse_attention(q, k, k, *blocks).sum()

    with pytest.raises(NotImplementedError, match="block_sparse_attention has no gradient"):
        call.library.grad(loss)(q)


def test_a_graph(kf):
    """torch.compile traces the call."""
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(draw(2, 70, 4, 16))
    blocks = kf.ops.block_mask_from(torch.from_numpy(drawn_mask(70, 70)))
    want = kf.ops.block_sparse_attention(q, q, q, *blocks)
    whole = torch.compile(kf.ops.block_sparse_attention, backend="eager", fullgraph=True)
    assert torch.equal(whole(q, q, q, *blocks), want)
