# SPDX-License-Identifier: Apache-2.0
"""PyTorch, where it is installed, ready to be a reference."""

import pytest

# MKL's vector functions, which PyTorch's CPU kernels call in float32 and float64.
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
    """Skips where there is none. Each of MKL's functions is called once by one thread: where two threads make a process's first call at
    once, one of them can get results that are good to 1e-9 only (exp in float64, PyTorch 2.13: 1 process of 180)."""
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        for name in BY_MKL:
            getattr(torch, name)(torch.ones(1, dtype=dtype))
    return torch
