# SPDX-License-Identifier: Apache-2.0
"""Arguments that PyTorch's functions take and kf's kernels do not: _adapted.py."""

import sys
import types

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()
kfpython.use()
from kernel_fusion import _adapted  # noqa: E402

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SCORES = draw(BATCH, HEADS, QUERIES, KEYS)
# Shapes of masks: those of PyTorch's attn_mask, and [batch, queries, keys].
MASKS = [
    (QUERIES, KEYS),
    (1, QUERIES, KEYS),
    (BATCH, QUERIES, KEYS),
    (BATCH, 1, KEYS),
    (1, 1, QUERIES, KEYS),
    (BATCH, 1, 1, KEYS),
    (1, HEADS, 1, KEYS),
    (1, HEADS, QUERIES, KEYS),
    (BATCH, HEADS, QUERIES, KEYS),
    (BATCH, HEADS, QUERIES, 1),
]


def aligned(mask):
    """A mask of [batch, queries, keys] with a dimension for the heads."""
    return mask.unsqueeze(-3) if mask.dim() == 3 else mask


@pytest.mark.parametrize("shape", MASKS)
def test_masks_broadcast(kf, shape):
    mask, up = draw(*shape, seed=1), draw(*SCORES.shape, seed=2)
    found = []
    for f in (
        lambda x: kf.ops.scale_mask_softmax(x, mask, scale=2.0),
        lambda x: (2 * x + aligned(mask)).softmax(-1),
    ):
        x = SCORES.clone().requires_grad_()
        found.append((f(x), *torch.autograd.grad(f(x), x, up)))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found))
    got = kf.ops.scale_mask_softmax(SCORES.numpy(), mask.numpy(), scale=2.0)
    assert np.array_equal(got, found[0][0].detach().numpy())
    seen = draw(*shape, seed=3) > -0.5
    want = (2 * SCORES).masked_fill(~aligned(seen), -torch.inf).softmax(-1).nan_to_num(0)
    got = kf.ops.scale_bool_mask_softmax(SCORES, seen, scale=2.0)
    assert torch.allclose(got, want, atol=1e-6)


def test_masks_that_do_not_broadcast(kf):
    for shape in ((3, KEYS), (BATCH + 1, QUERIES, KEYS), (KEYS,), (1, 1, 1, 1, KEYS)):
        with pytest.raises(ValueError, match=r"kf.scale_mask_softmax: mask has the shape"):
            kf.ops.scale_mask_softmax(SCORES, torch.zeros(shape))


def test_rows_are_grouped_without_a_copy():
    """Only a mask that two groups of rows share apart is repeated."""
    for mask in MASKS:
        rows = _adapted.rows_of((BATCH, HEADS, QUERIES, KEYS), mask)
        if rows is not None and mask != (1, HEADS, 1, KEYS):
            assert np.prod(rows.mask) == np.prod(mask[:-1])
    assert _adapted.rows_of((7, 6, 5, 4), (1, 6, 1, 4)) == (42, 5, 1, (1, 6, 1, 4), (7, 6, 1))


def test_masks_of_another_dtype(kf):
    """Finite numbers stay finite: a row of the least float32 is not one without visible keys."""
    mask = torch.zeros(QUERIES, KEYS)
    mask[0], mask[1], mask[2, 1:] = torch.finfo(torch.float32).min, -torch.inf, -torch.inf
    for dtype in (torch.float16, torch.bfloat16):
        got = kf.ops.scale_mask_softmax(SCORES.to(dtype), mask, scale=1.0)
        assert got.dtype == dtype and (got[:, :, 1] == 0).all() and (got[:, :, 2, 0] == 1).all()
        assert (got[:, :, 0] > 0).all()
    with pytest.raises(TypeError, match="mask has the dtype i32"):
        kf.ops.scale_mask_softmax(SCORES, mask.int())


@torch._dynamo.disable
def _untraceable(x):
    raise AssertionError("asked for a torch.Tensor")


def test_indices_in_int32(kf):
    x, label = draw(3, 6), torch.tensor([1, 5, 0])
    for given in ((x, label), (x.numpy(), label.numpy())):
        as_int32 = given[1].astype("int32") if isinstance(given[1], np.ndarray) else label.int()
        got, want = kf.ops.cross_entropy(given[0], as_int32), kf.ops.cross_entropy(*given)
        assert (got == want).all()
    with pytest.raises(IndexError, match="label is 9"):
        kf.ops.cross_entropy(x, torch.full((3,), 9, dtype=torch.int32))


def test_positions_of_one_sequence(kf):
    x, cosine, sine = draw(BATCH, 4, 1, 8), draw(4, 4, seed=1), draw(4, 4, seed=2)
    position = torch.tensor([1, 0, 3, 2])
    want = kf.ops.rope(x, cosine, sine, position.expand(BATCH, 4).contiguous())
    for own in (position, position[None], position.int()):
        assert torch.equal(kf.ops.rope(x, cosine, sine, own), want)
        arrays = [t.numpy() for t in (x, cosine, sine, own)]
        assert np.array_equal(kf.ops.rope(*arrays), want.numpy())
    with pytest.raises(ValueError, match=r"position has the shape \(3,\)"):
        kf.ops.rope(x, cosine, sine, position[:3])


@pytest.mark.check
def test_compiled(kf, monkeypatch):
    """Each conversion is traced into one graph, in a process with TensorFlow, too."""
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(is_tensor=_untraceable))
    mask, label, position = draw(QUERIES, KEYS), torch.tensor([1, 0]).int(), torch.arange(4).int()
    table = draw(4, 4)
    calls = [
        (kf.ops.scale_mask_softmax, (SCORES.bfloat16(), mask)),
        (kf.ops.cross_entropy, (draw(2, 6), label)),
        (kf.ops.rope, (draw(BATCH, 4, 1, 8), table, table, position)),
        (lambda x: kf.ops.sum(x, dtype=torch.float32), (SCORES.half(),)),
        (lambda x: kf.ops.softmax(x, 1, dtype=torch.float32), (SCORES.half(),)),
    ]
    for f, given in calls:
        torch._dynamo.reset()
        assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(*given), f(*given))


def test_sums_in_float32(kf):
    x = draw(4, 300).half().requires_grad_()
    got = kf.ops.sum(x, dtype=torch.float32)
    assert got.dtype == torch.float32 and torch.allclose(got, x.sum(-1, dtype=torch.float32))
    got.sum().backward()
    assert x.grad.dtype == torch.float16 and (x.grad == 1).all()
    array = kf.ops.mean(x.detach().numpy(), dtype=np.float32)
    assert array.dtype == np.float32 and np.allclose(array, x.detach().float().mean(-1))
    with pytest.raises(TypeError, match="kf.sum: dtype is int8, expected one of"):
        kf.ops.sum(x, dtype="int8")


def test_softmax_along_a_dimension(kf):
    x = draw(2, 3, 4)
    for name in ("softmax", "log_softmax"):
        mine, theirs = getattr(kf.ops, name), getattr(torch.nn.functional, name)
        for dim in (-1, 0, 1, 2, -2):
            found = []
            for f in (mine, theirs):
                t = x.clone().requires_grad_()
                found.append((f(t, dim), *torch.autograd.grad(f(t, dim).square().sum(), t)))
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found))
            assert np.allclose(mine(x.numpy(), dim), theirs(x, dim), atol=1e-6)
        assert mine(x[0, 0, 0], 0) == theirs(x[0, 0, 0], 0)
        assert mine(x.half(), 0, torch.float32).dtype == torch.float32
        for call, error, text in (
            (lambda f: f(x, 3), ValueError, "dim is 3, expected a dimension of x"),
            (lambda f: f(x, None), TypeError, "dim is NoneType, expected a whole number"),
            (lambda f: f(x.numpy(), 0, out=x.numpy()), TypeError, "out is given, expected None"),
        ):
            with pytest.raises(error, match=f"kf.{name}: {text}"):
                call(mine)


def test_a_float32_residual(kf):
    for name in ("AddRMSNorm", "AddLayerNorm"):
        module = getattr(kf.nn, name)(8)
        x, residual = draw(4, 8).bfloat16().requires_grad_(), draw(4, 8, seed=1).requires_grad_()
        out, added = module(x, residual)
        assert out.dtype == torch.bfloat16 and torch.equal(added, x.float() + residual)
        want, _ = module(x.float(), residual)
        assert torch.equal(out, want.bfloat16())
        (out.sum() + added.sum()).backward()
        assert x.grad.dtype == torch.bfloat16 and residual.grad.dtype == torch.float32


@pytest.mark.check
def test_gradients_of_several_chunks_are_rounded_once(kf):
    rows, vocabulary = 2048, 32768  # 8 chunks on the CPU
    x, weight = draw(rows, 8).bfloat16(), (draw(vocabulary, 8, seed=1) / 8).bfloat16()
    weight.requires_grad_()
    label = torch.arange(rows) % 50
    [got] = torch.autograd.grad(kf.ops.linear_cross_entropy(x, weight, label).sum(), weight)
    wide = weight.detach().double().requires_grad_()
    logits = torch.nn.functional.linear(x.double(), wide)
    loss = torch.nn.functional.cross_entropy(logits, label, reduction="sum")
    [want] = torch.autograd.grad(loss, wide)
    once = (want.bfloat16().double() - want).norm()
    assert got.dtype == torch.bfloat16 and (got.double() - want).norm() <= 1.5 * once
