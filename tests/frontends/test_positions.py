# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings without positions: each sequence of a batch counts from 0."""

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()
kfpython.use()

BATCH, SEQUENCE, DIM = 2, 6, 8
ANGLE = torch.arange(SEQUENCE)[:, None] / 100 ** (torch.arange(0, DIM, 2) / DIM)
TABLES = ANGLE.cos(), ANGLE.sin()


def rows(*lead, seed=0):
    return torch.randn(*lead, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("lead", [(BATCH, SEQUENCE), (3, BATCH, SEQUENCE), (1, SEQUENCE)])
def test_a_batch_of_sequences(kf, lead):
    q, k = rows(*lead, 4).requires_grad_(), rows(*lead, 2, seed=1)
    number = torch.arange(SEQUENCE).expand(lead).contiguous()
    found, want = kf.ops.rope_qk(q, k, *TABLES), kf.ops.rope_qk(q, k, *TABLES, number)
    up = rows(*lead, 4, seed=2)
    for got, expected in zip(found, want):
        assert torch.equal(got, expected) and not got.isnan().any()
    [got], [expected] = (torch.autograd.grad(y[0], [q], up) for y in (found, want))
    assert torch.equal(got, expected)
    arrays = [t.detach().numpy() for t in (q, k, *TABLES)]
    for got, expected in zip(kf.ops.rope_qk(*arrays), want):
        assert np.array_equal(got, expected.detach().numpy())


def test_one_sequence_is_numbered_by_the_kernel(kf):
    q, k = rows(SEQUENCE, 4), rows(SEQUENCE, 2)
    found = kf.ops.rope_qk(q, k, *TABLES)
    want = kf.ops.rope_qk(q, k, *TABLES, torch.arange(SEQUENCE))
    assert all(map(torch.equal, found, want))
    # torch.compile traces it for any number of sequences.
    call = torch.compile(kf.ops.rope_qk, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3):
        given = rows(batch, SEQUENCE, 4), rows(batch, SEQUENCE, 2), *TABLES
        assert all(map(torch.equal, call(*given), kf.ops.rope_qk(*given)))


def test_documentation(kf):
    assert "None stands for the index along the dimension of q before its last 2" in (
        kf.ops.rope_qk.__doc__
    )
