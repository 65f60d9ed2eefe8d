# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion.jax on a GPU: bits of kf.ops over PyTorch tensors, dropout masks, replays."""

import os

import cases
import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()
# XLA would take most of the memory that PyTorch's tensors need.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax")

import jaxops  # noqa: E402
from torchops import ids  # noqa: E402


def has_gpu():
    try:
        return torch.cuda.is_available() and bool(jax.devices("cuda"))
    except RuntimeError:
        return False


pytestmark = pytest.mark.skipif(not has_gpu(), reason="no GPU for both PyTorch and JAX")


@pytest.fixture(scope="module")
def kf():
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


@pytest.mark.parametrize(
    "f", cases.by_level(jaxops.of_each_family(jaxops.BOTH), jaxops.FORWARD), ids=ids
)
def test_results_and_gradients(kf, f):
    jaxops.equals_pytorch(kf, f, device="cuda")


def test_dropout(kf):
    """A key drops the same elements on both devices."""
    x = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    call = jax.jit(lambda x, key: kf.jax.gelu_dropout(x, p=0.4, rng=key))
    kept = []
    for device in ("cpu", "cuda"):
        with jax.default_device(jax.devices(device)[0]):
            kept.append(np.asarray(call(x, jax.random.key(5))) != 0)
    assert np.array_equal(*kept) and 0.5 < kept[0].mean() < 0.7


def test_a_chain_that_is_recorded(kf):
    """Replays of a program of five calls and XLA's own kernels between them see new inputs."""
    kj = kf.jax
    rng = np.random.default_rng(0)
    weight, bias = (rng.normal(size=512).astype(np.float32) for _ in range(2))

    @jax.jit
    def chain(x):
        x = kj.bias_gelu(kj.layer_norm(x, weight, bias), bias) * 2
        return kj.softmax(kj.rms_norm(kj.add(x, x), weight))

    def eager(x):
        ops = kf.ops
        w, b = (torch.from_numpy(a).cuda() for a in (weight, bias))
        x = ops.bias_gelu(ops.layer_norm(x, w, b), b) * 2
        return ops.softmax(ops.rms_norm(ops.add(x, x), w))

    with jax.default_device(jax.devices("cuda")[0]):
        for _ in range(4):
            x = rng.normal(size=(256, 512)).astype(np.float32)
            jaxops.same(chain(x), eager(torch.from_numpy(x).cuda()))
