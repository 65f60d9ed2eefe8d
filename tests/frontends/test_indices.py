# SPDX-License-Identifier: Apache-2.0
"""Labels and indices out of range raise on the CPU and give NaN where values are unknown."""

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()
kfpython.use()

X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
WRONG = (4, -1, 2**40, -(2**40))


@pytest.mark.parametrize("wrong", WRONG)
def test_labels(kf, wrong):
    label = torch.zeros(3, 5, dtype=torch.int64)
    label[1, 2], label[0, 0] = wrong, -100
    text = f"kf.cross_entropy: label is {wrong} at .1, 2., expected at least 0 and less than 4, or "
    for given in ((X, label), (X.numpy(), label.numpy()), (X.clone().requires_grad_(), label)):
        with pytest.raises(IndexError, match=text + "ignore_index = -100"):
            kf.ops.cross_entropy(*given)
    with pytest.raises(IndexError, match=text):
        kf.nn.CrossEntropyLoss()(X.movedim(-1, 1), label)
    call = torch.compile(kf.ops.cross_entropy, fullgraph=True, backend="aot_eager")
    found = call(X, label)
    assert found[1, 2].isnan() and found.isnan().sum() == 1 and found[0, 0] == 0


def test_documentation(kf):
    assert "out of range: IndexError on the CPU, else NaN" in kf.ops.cross_entropy.__doc__


@pytest.mark.parametrize("wrong", WRONG)
def test_rows_of_a_table(kf, wrong):
    table, index = X[0, :4], torch.tensor([[0, 3], [wrong, 1]])
    text = f"kf.embedding: index is {wrong} at .1, 0., expected at least 0 and less than 4$"
    for given in ((table, index), (table.numpy(), index.numpy())):
        with pytest.raises(IndexError, match=text):
            kf.ops.embedding(*given)
    angle = np.zeros((4, 2), np.float32)
    q, position = np.ones((2, 1, 4), np.float32), np.array([0, wrong])
    with pytest.raises(IndexError, match=f"kf.rope_qk: position is {wrong} at .1,., expected"):
        kf.ops.rope_qk(q, q, angle, angle, position)


def test_swapped_arguments(kf):
    table, index = X[0, :4], torch.tensor([1])
    text = (
        "kf.embedding: weight has the dtype i64, expected one of bf16, .*; the order of arguments"
    )
    for given in ((index, table), (index.numpy(), table.numpy())):
        with pytest.raises(TypeError, match=f"{text} is weight, index$"):
            kf.ops.embedding(*given)


def test_the_row_without_gradient_is_pytorch_s(kf):
    table, index = X[0, :4].clone().requires_grad_(), torch.tensor([0, 3, 3, 1])
    for padding in (None, 0, 3, -1, -4):
        want = torch.nn.functional.embedding(index, table, padding_idx=padding)
        got = kf.ops.embedding(table, index, padding_idx=padding)
        both = [torch.autograd.grad(y.sum(), table)[0] for y in (got, want)]
        assert torch.equal(*both), padding
        assert kf.ops.embedding(table.detach().numpy(), index.numpy(), padding_idx=padding).any()
    for wrong in (4, -5):
        text = f"kf.embedding: padding_idx is {wrong}, expected a row of 4, or None"
        with pytest.raises(ValueError, match=text):
            kf.ops.embedding(table, index, padding_idx=wrong)
    assert "padding_idx: row of weight without gradient" in kf.ops.embedding.__doc__


def test_where_values_are_unknown(kf):
    """Fake tensors, torch.export and vmap; empty tensors have no index out of range."""
    label = torch.full((3, 5), 9)
    found = torch.func.vmap(kf.ops.cross_entropy)(X, label)
    assert found.isnan().all()
    mode = torch._subclasses.FakeTensorMode()
    given = [mode.from_tensor(t) for t in (X, label)]
    with mode:
        assert kf.ops.cross_entropy(*given).shape == (3, 5)
    assert kf.ops.cross_entropy(X[:0], label[:0]).shape == (0, 5)
