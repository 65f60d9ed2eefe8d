# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings over arrays and tensors, compared with PyTorch. Several inputs determine their
sizes."""

import numpy as np
import pytest
import pytorch

torch = pytorch.load()


def draw(*shape, grad=True, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))
    ).requires_grad_(grad)


def alike(got, want, inputs):
    """Compares values and gradients in float64."""
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and torch.allclose(g, w, 1e-10, 1e-10)
    ups = [draw(*w.shape, grad=False, seed=9) for w in want]
    for m, t in zip(
        *(
            torch.autograd.grad(sum((r * u).sum() for r, u in zip(found, ups)), inputs)
            for found in (got, want)
        )
    ):
        assert torch.allclose(m, t, 1e-9, 1e-9)


def rope(x, cosine, sine, position):
    """Reference: rotates pairs of the first elements of each head."""
    pairs = cosine.shape[1]
    c, s = (t[position].unsqueeze(-2) for t in (cosine, sine))
    a, b, rest = x.split((pairs, pairs, x.shape[-1] - 2 * pairs), -1)
    return torch.cat((a * c - b * s, b * c + a * s, rest), -1)


def test_rotary_embeddings(kf):
    """q and k of [batch, length, heads, dim]; without positions, a row's position is its index in
    its sequence."""
    q, k, cosine, sine = (
        draw(2, 3, 4, 6),
        draw(2, 3, 2, 6),
        draw(8, 2, grad=False),
        draw(8, 2, grad=False, seed=1),
    )
    position = torch.tensor([[0, 1, 2], [5, 6, 7]])
    for given, of in ((position, position), (None, torch.arange(3).expand(2, 3))):
        alike(
            kf.ops.rope_qk(q, k, cosine, sine, given),
            [rope(x, cosine, sine, of) for x in (q, k)],
            [q, k],
        )
    found = kf.ops.rope_qk(*(t.detach().numpy() for t in (q, k, cosine, sine, position)))
    assert all(
        np.allclose(f, rope(x, cosine, sine, position).detach().numpy(), 1e-12, 1e-12)
        for f, x in zip(found, (q, k))
    )


def test_compiled(kf):
    """One graph with dynamic shapes."""
    torch._dynamo.reset()
    compiled = torch.compile(kf.ops.rope_qk, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5):
        given = [
            draw(rows, 4, 6),
            draw(rows, 2, 6),
            draw(8, 2, grad=False),
            draw(8, 2, grad=False, seed=1),
        ]
        alike(compiled(*given), kf.ops.rope_qk(*given), given[:2])


def test_opcheck(kf):
    q, k, table, position = (
        draw(3, 4, 6, grad=False),
        draw(3, 2, 6, grad=False),
        draw(8, 2, grad=False),
        torch.tensor([1, 6, 1]),
    )
    torch.library.opcheck(torch.ops.kf.rope_qk.default, (q, k, table, table, position))
    torch.library.opcheck(torch.ops.kf.rope_qk_bwd.default, (q, k, table, table, None, q, k, 3))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda kf: kf.ops.rope_qk(draw(3, 4, 6), None, draw(8, 2), draw(8, 2)),
            TypeError,
            "kf.rope_qk: k is missing",
        ),
        (
            lambda kf: kf.ops.rope_qk(draw(3, 4, 6), draw(2, 2, 6), draw(8, 2), draw(8, 2)),
            ValueError,
            r"kf.rope_qk: q has the shape \(3, 4, 6\), expec",
        ),
        (
            lambda kf: kf.ops.rope_qk(draw(3, 4, 6), draw(3, 2, 6), draw(8), draw(8)),
            ValueError,
            r"cosine has the shape \(8,\), expected 2 dimensions",
        ),
        (
            lambda kf: kf.ops.rope_qk(draw(3, 4, 6), draw(3, 2, 6), draw(8, 2), draw(7, 2)),
            ValueError,
            r"sine has the shape \(7, 2\), expected \(8, 2\)",
        ),
    ],
)
def test_errors(kf, call, error, text):
    with pytest.raises(error, match=text):
        call(kf)
