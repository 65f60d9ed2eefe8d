# SPDX-License-Identifier: Apache-2.0
"""kf's ops for PyTorch.

`torch.ops.kf.<op>` has a gradient; `torch.ops.kf.<op>.kernel` has none, and kf.ops wraps it in its
own gradient. kf.ops imports this module when torch is imported. Import it yourself before loading
an exported program that uses kf's ops.
"""

import ctypes
import functools
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, register_fake

from kernel_fusion import _gpu, _library, _table
from kernel_fusion.torch import _autograd, _cuda, _kernels, _public, _registered, _shim, _updates
from kernel_fusion.torch._schema import Schema, schema

LIBRARY = Library("kf", "DEF")


def _define(op: _table.Op) -> list[Schema]:
    """Defines both directions of an op, without kernels."""
    if op.forward.updates:
        return [_updates.define(LIBRARY, schema(op, False), torch.ops.kf)]
    schemas = [schema(op, backward) for backward in ((False, True) if op.backward else (False,))]
    for s in schemas:
        fake = _kernels.fake(s)
        for name in s.overloads:
            LIBRARY.define(name + s.text, tags=(torch.Tag.pt2_compliant_tag,))
            register_fake(f"kf::{name}", fake, lib=LIBRARY)
        LIBRARY.impl(s.name, _registered.kernel(s, torch.ops.kf), "Autograd")
    return schemas


def _implement(
    schemas: list[Schema],
    make: Callable[[Schema], Any],
    key: str,
    register: Callable[[list[Schema]], None] | None,
) -> str | None:
    """Registers the kernels of the ops: the shim's, or ctypes' for the reason that is returned."""
    covered = [s for s in schemas if register and _shim.covers(s)]
    why = None
    try:
        if register:
            register(covered)
    except (ImportError, OSError) as e:
        covered, why = [], str(e)
    for s in schemas:
        if s not in covered:
            computes = _updates.kernel(s) if s.call.updates else make(s)
            for name in s.overloads:
                LIBRARY.impl(name, computes, key)
    return why


def _share_threads() -> bool:
    """Runs kf's work on PyTorch's threads, through the stable ABI (PyTorch 2.10 and newer)."""
    try:
        loop = ctypes.CDLL(
            str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so")
        ).torch_parallel_for
    except (AttributeError, OSError):
        return False
    _library.share_threads(ctypes.cast(loop, ctypes.c_void_p), torch.get_num_threads)
    return True


_ALL = [s for op in _table.ops().values() for s in _define(op)]
WHY_NO_SHIM = _implement(_ALL, _kernels.kernel, "CPU", _shim.register)
WHY_NO_SHIM_ON_GPU = _implement(_ALL, _cuda.kernel, "CUDA", _shim.register_gpu)
THREADS_SHARED = _share_threads()


def _on_gpu(schemas: list[Schema]) -> None:
    _shim.register_own(schemas, on_gpu=True)


_registering = threading.Lock()


def function(op: _table.Op, activation: str) -> Callable[..., Any]:
    """Returns the function that kf.ops calls for tensors."""
    # functools.cache may call twice for concurrent requests, but an op can be registered only
    # once.
    with _registering:
        return _function(op, activation)


@functools.cache
def _register(op: _table.Op) -> None:
    """Registers a user-made op, whose activations are numbers in its calls."""
    schemas = _define(op)
    _implement(schemas, _kernels.kernel, "CPU", _shim.register_own if WHY_NO_SHIM is None else None)
    _implement(schemas, _cuda.kernel, "CUDA", _on_gpu if WHY_NO_SHIM_ON_GPU is None else None)


@functools.cache
def _function(op: _table.Op, activation: str) -> Callable[..., Any]:
    """Makes the function."""
    if op.own:
        _register(op)
    if op.forward.updates:
        return _updates.make(op, activation, getattr(torch.ops.kf, op.name).default)
    return _public.make(
        op,
        activation,
        getattr(torch.ops.kf, op.name).default,
        *_autograd.make(op, activation, torch.ops.kf),
    )


def gpu() -> str:
    """Describes what computes tensors on a GPU, for kf.info()."""
    return _cuda.why_not() or str(_gpu.library().path)


def kernels(why_no_shim: str | None = WHY_NO_SHIM) -> str:
    """Describes how the ops are called, for kf.info()."""
    return f"ctypes: {why_no_shim}" if why_no_shim else "shim"
