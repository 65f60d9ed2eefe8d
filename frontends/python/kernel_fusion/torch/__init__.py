# SPDX-License-Identifier: Apache-2.0
"""kf's ops for PyTorch: `torch.ops.kf.<op>` and, with a gradient, what kf.ops calls for tensors. Imported by kf.ops where torch is; import it
yourself before loading an exported program that has kf's ops."""

import ctypes
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, register_fake

from kernel_fusion import _library, _table
from kernel_fusion.torch import _kernels, _public
from kernel_fusion.torch._schema import schema

LIBRARY = Library("kf", "DEF")


def _register(op: _table.Op, backward: bool) -> None:
    s = schema(op, backward)
    LIBRARY.define(s.text, tags=(torch.Tag.pt2_compliant_tag,))
    register_fake(f"kf::{s.name}", _kernels.fake(s), lib=LIBRARY)
    LIBRARY.impl(s.name, _kernels.cpu(s), "CPU")


def _share_threads() -> bool:
    """kf's pieces of work go to the threads that torch has, as many as torch.set_num_threads says: of its stable ABI, from 2.10 on."""
    try:
        loop = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so")).torch_parallel_for
        _library.library().dll.kfp_set_parallel_for(ctypes.cast(loop, ctypes.c_void_p))
    except (AttributeError, ImportError, OSError):
        return False
    return True


for _op in _table.ops().values():
    for _backward in (False, True) if _op.backward else (False,):
        _register(_op, _backward)
THREADS_SHARED = _share_threads()


@functools.cache
def functions(name: str) -> dict[str, Callable[..., Any]]:
    """Of an op: {activation: function}."""
    return _public.functions(_table.ops()[name], torch.ops.kf)
