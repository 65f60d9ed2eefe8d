# SPDX-License-Identifier: Apache-2.0
"""Modules of kf.nn among PyTorch's tools: converters, fast paths, copies, casts, traces."""

import copy
import inspect
import io
import pickle

import kfpython
import pytest
import pytorch

torch = pytorch.load()
kfpython.use()

import kernel_fusion.nn as own  # noqa: E402
from torch import nn  # noqa: E402


def draw(*shape):
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=rng, dtype=torch.float64)


X = draw(4, 6)


def same(got, want, tolerance=1e-10):
    assert got.shape == want.shape and ((got - want).abs() <= tolerance * (1 + want.abs())).all()


def test_tools_do_not_take_a_module_for_one_without_activation():
    """They fold, exchange or compute a module by its class and attributes."""
    norm, layer = own.BatchNorm1d(4, activation="relu"), own.Linear(4, 4, activation="gelu")
    made = [norm, layer, own.LayerNorm(4, activation="relu"), own.Dropout(activation="relu")]
    for module in made:
        base = getattr(nn, module._get_name())
        assert not isinstance(module, base) and isinstance(module, nn.Module)
        assert isinstance(getattr(own, base.__name__)(*[4] * (base is not nn.Dropout) * 2), base)
    both = nn.Sequential(norm, layer)
    assert list(nn.SyncBatchNorm.convert_sync_batchnorm(copy.copy(both))) == [norm, layer]
    both.eval()
    with pytest.raises(AttributeError, match="activation='gelu' has no `out_features`"):
        nn.utils.fuse_linear_bn_eval(layer, nn.BatchNorm1d(4).eval())
    for fuse, before in (
        (nn.utils.fuse_linear_bn_eval, nn.Linear(4, 4)),
        (nn.utils.fuse_conv_bn_eval, nn.Conv1d(4, 4, 1)),
    ):
        with pytest.raises(AttributeError, match="BatchNorm1d with activation='relu' has no `eps`"):
            fuse(before.eval(), norm)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    encoder.linear2 = own.Linear(16, 8, activation="relu").double()
    q = draw(2, 3, 8)
    with torch.no_grad():
        same(encoder.eval()(q), encoder.train()(q))


def test_a_module_with_an_activation_has_its_parameters(kf):
    """state_dict both ways, casts, copies, new parameters, modes and attributes."""
    for name, x in (("Linear", X), ("LayerNorm", X), ("BatchNorm1d", X)):
        args = (6, 6) if name == "Linear" else (6,)
        module, plain = getattr(own, name)(*args, activation="relu"), getattr(nn, name)(*args)
        plain.load_state_dict(module.state_dict())
        nn.init.uniform_(plain.weight)
        module.load_state_dict(plain.state_dict())
        for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            same(copied.double()(x), torch.relu(copy.deepcopy(plain).double()(x)))
            assert [n for n, _ in copied.named_parameters()] == ["weight", "bias"]
        module.weight = nn.Parameter(torch.zeros_like(module.weight))
        assert (module.train()(x) == torch.relu(module.bias)).all() and module.training
        assert not module.eval()._module.training
    arguments = inspect.signature(own.Linear).parameters
    assert {"activation", "fuse_wgrad_accumulation"} <= arguments.keys() and "self" not in arguments
    assert module.momentum == 0.1
    module.momentum = 0.5
    assert module._module.momentum == 0.5


@pytest.mark.level(2)  # whose package has the ops
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_class_weights_are_cast_with_a_model(dtype):
    x = draw(3, 7).log_softmax(-1).to(dtype)
    label, weight = torch.tensor([1, 2, 3]), torch.arange(1.0, 8)
    for name in ("CrossEntropyLoss", "NLLLoss"):
        want = getattr(nn, name)(weight=weight)(x.float(), label)
        for made in (
            getattr(own, name)(weight=weight),
            getattr(own, name)(weight=weight).to(dtype),
        ):
            got = made(x, label)
            assert (got.float() - want).abs() <= 2e-2 * want and made.weight is not None


def test_batch_norm_of_running_statistics():
    """Modules in eval mode, with an activation and without weights."""
    for more in ({}, {"affine": False}):
        mine, theirs = own.BatchNorm1d(6, activation="relu", **more), nn.BatchNorm1d(6, **more)
        mine, theirs = mine.double(), theirs.double()
        same(mine(X), torch.relu(theirs(X)))
        same(mine.eval()(X), torch.relu(theirs.eval()(X)))


def test_inplace_computes_out_of_place():
    x = X.clone()
    same(own.ReLU(inplace=True)(x), torch.relu(X))
    assert torch.equal(x, X) and own.Dropout(0.5, inplace=True).eval()(x) is not x


def test_a_traced_module_can_be_saved():
    """torch.jit.trace with gradients enabled records kf's ops."""
    x = X.float()
    for module in (own.LayerNorm(6), own.Linear(6, 3, activation="gelu"), own.BatchNorm1d(6)):
        traced = torch.jit.trace(module.train(), x, check_trace=False)
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file)
        same(loaded(x), module(x), 1e-6)
        assert "kf::" in str(loaded.inlined_graph) and loaded(x).requires_grad
