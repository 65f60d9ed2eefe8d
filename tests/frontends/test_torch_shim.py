# SPDX-License-Identifier: Apache-2.0
"""The shim's and the ctypes kernels behave alike; fallback without a compiler."""

import os
import subprocess
import sys

import kflib
import kfpython
import pytest
import pytorch

torch = pytorch.load()

import torchops  # noqa: E402
from kfpython import python  # noqa: E402
from torchops import ids  # noqa: E402

SCRIPT = """
import torch, kernel_fusion as kf
x, bias = torch.tensor([[-1.0, 2.0]], requires_grad=True), torch.tensor([0.5, -0.25])
y = kf.ops.bias_relu(x, bias)
y.sum().backward()
print(y.tolist(), x.grad.tolist(), kf.info()["torch"])
"""
COMPUTED = "[[0.0, 1.75]] [[0.0, 1.0]]"


@pytest.fixture(scope="module")
def kernels(kf):
    """Returns {op: its ctypes kernel}."""
    import kernel_fusion.torch as own
    from kernel_fusion import _table
    from kernel_fusion.torch import _kernels
    from kernel_fusion.torch._schema import schema

    assert own.WHY_NO_SHIM is None
    found = [
        schema(op, backward)
        for op in _table.ops().values()
        for backward in ((False, True) if op.backward else (False,))
    ]
    return {f"kf::{s.name}": _kernels.kernel(s) for s in found}


def strided(t):
    """Copies x with strided rows, if it has rows."""
    if not isinstance(t, torch.Tensor) or t.dim() < 2:
        return t
    return torch.cat([t, torch.full_like(t, 1)], -1)[..., : t.shape[-1]]


def permuted(t):
    return (
        t.transpose(0, -1).contiguous().transpose(0, -1)
        if isinstance(t, torch.Tensor) and t.dim() > 1
        else t
    )


@pytest.mark.parametrize("f", [f for f in torchops.ALL if f["backward"]], ids=ids)
def test_same_bits(kf, kernels, f):
    """Both directions, all dtypes; contiguous, strided and permuted tensors; each
    gradient alone.
    """
    for dtype in sorted(
        {g["dtypes"][0] for g in torchops.FUNCTIONS if g["op"] == f["op"]} & set(torchops.TOLERANCE)
    ):
        _, calls = torchops.recorded(kf, f, dtype=dtype)
        for op, args in calls:
            masks = (
                [args]
                if op._schema.arguments[-1].name != "needs"
                else [(*args[:-1], mask) for mask in (args[-1], 0, 1, 2)]
            )
            for lie in (lambda t: t, strided, permuted):
                for given in masks:
                    given = [lie(a) for a in given]
                    mine, theirs = (
                        torchops.results(call(*given)) for call in (op, kernels[op._schema.name])
                    )
                    assert [t.shape for t in mine] == [t.shape for t in theirs]
                    assert all(
                        torch.equal(m, t) and m.dtype == t.dtype for m, t in zip(mine, theirs)
                    ), (op, dtype)


def test_both_refuse_the_same(kf, kernels):
    """The shim raises one kind of exception, which kf.ops replaces by ctypes' errors."""
    x, w = torch.randn(3, 4), torch.ones(4)
    wrong = {
        "bias": [
            (x, w[:3]),
            (x, w.double()),
            (x[0, 0], w),
            (x.int(), w.int()),
            (x.to(torch.complex64), w),
            (None, w),
        ],
        "layer_norm": [
            (x, w.half(), None, 1e-5),
            (x, None, None, -1.0),
            (x, None, None, float("nan")),
        ],
        "linear": [
            (x, w, None),
            (x, x[:, :3], None),
            (x[0, 0], x, None),
            (x[0], x[None], None),
            (x, x, w),
            (x, x.double(), None),
            (x, None, None),
        ],
        "matmul_tn": [(x[None], x), (x, x[None]), (x[0], x), (x, x[:2])],
        "sum": [(x, 2), (x, -3), (x[0, 0], 0)],
        "act_glu": [(x[:, :3],)],
        "act_dropout": [(x, 1.5), (x, 0.5, torch.zeros(3).long())],
        "cross_entropy": [
            (x, torch.zeros(3), -100, 0.0, 0.0),
            (x, torch.zeros(2).long(), -100, 0.0, 0.0),
        ],
    }
    for name, calls in wrong.items():
        op = getattr(torch.ops.kf, name).default
        for given in calls:
            values = {"activation": 7, "rng": torch.zeros(2).long(), "p": 0.5, "save": True}
            rest = [values.get(a.name, 0.0) for a in op._schema.arguments[len(given) :]]
            if name == "act_dropout":
                given, rest = (
                    (given[0], 0.0, 0.0, *given[1:]),
                    [values[a.name] for a in op._schema.arguments[2 + len(given) :]],
                )
            with pytest.raises((RuntimeError, TypeError), match="kf."):
                op(*given, *rest)
            if given[0] is not None:
                with pytest.raises((TypeError, ValueError, NotImplementedError), match="kf"):
                    kernels[f"kf::{name}"](*given, *rest)


def test_another_device_s_own_error_stays(kf):
    """For devices without kernels (meta), the caller sees PyTorch's error."""
    from kernel_fusion import _table
    from kernel_fusion.torch import _kernels
    from kernel_fusion.torch._schema import schema

    x, error = torch.empty(3, 4, device="meta"), RuntimeError("as PyTorch says it")
    assert (
        _kernels.explain(
            schema(_table.ops()["bias"], False),
            error,
            (x, x[0], 0.0, 0.0, _table.activations()["relu"]),
        )
        is error
    )


def test_nothing_leaks(kf):
    """A thousand calls of each kind leak no input, discarded result or copy."""
    x, wide = torch.randn(64, 1024, requires_grad=True), torch.randn(1024, 64).t()

    def calls(times):
        for _ in range(times):
            kf.ops.layer_norm(x, torch.ones(1024)).sum().backward()
            kf.ops.layer_norm(wide)
            with pytest.raises(ValueError, match="weight"):
                kf.ops.layer_norm(x, torch.ones(7))

    def used():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    calls(20)
    before = used()
    calls(100)  # one megabyte each
    assert used() - before < 20 << 20


def test_without_a_compiler(kf, tmp_path, monkeypatch):
    """ctypes gives the same results, and kf.info() reports the reason."""
    output = python(SCRIPT, CXX="none", PATH=str(tmp_path), KF_CACHE_DIR=str(tmp_path))
    assert output == f"{COMPUTED} ctypes: no C++ compiler was found"
    from kernel_fusion import _shim_library
    from kernel_fusion.torch import _shim

    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("KF_CACHE_DIR", str(tmp_path))
    with pytest.raises(OSError, match="c.. failed: out of order"):
        _shim_library.find()
    monkeypatch.setenv("KF_TORCH_SHIM", "0")
    with pytest.raises(OSError, match="KF_TORCH_SHIM is 0"):
        _shim.register([])


@pytest.mark.check
def test_many_processes_compile_it_at_the_same_time(tmp_path):
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    environment = {**os.environ, "PYTHONPATH": path, "KF_CACHE_DIR": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [p.communicate()[0].strip() for p in running] == [f"{COMPUTED} shim"] * 2
    assert [p.suffix for p in tmp_path.iterdir()] == [".so"]


def test_warnings(tmp_path):
    native = kfpython.SOURCE / "kernel_fusion/native"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Wconversion",
        "-Werror",
        "-fPIC",
        f"-I{native}",
        f"-I{kflib.ROOT / 'include'}",
        "-c",
    ]
    subprocess.run([*command, native / "torch_shim.cpp", "-o", tmp_path / "shim.o"], check=True)
