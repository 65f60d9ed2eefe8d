# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a reference, if it is installed."""

import pytest

# MKL's vector functions that PyTorch's CPU kernels call in float32 and float64.
BY_MKL = (
    "exp",
    "expm1",
    "log",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "erf",
    "erfc",
    "sqrt",
    "rsqrt",
    "sigmoid",
)


def load():
    """Imports PyTorch, or skips the test.

    Calls each MKL function once in one thread. If two threads make a process's first call
    concurrently, one may get results accurate to only 1e-9 (exp in float64, PyTorch 2.13: 1
    process of 180).
    """
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        for name in BY_MKL:
            getattr(torch, name)(torch.ones(1, dtype=dtype))
    return torch
