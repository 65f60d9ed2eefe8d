# SPDX-License-Identifier: Apache-2.0
"""What the ops do with tensors on a GPU: kernels that are compiled at run time will be called from here. There are none yet, and a call says so."""

from collections.abc import Callable
from typing import Any

import torch

from kernel_fusion._info import cuda_available
from kernel_fusion.torch._schema import Schema


def why_not() -> str:
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not cuda_available():
        return "no CUDA device answers: is the driver (libcuda.so.1) installed, and a GPU visible?"
    return "kf has no GPU kernels in Python yet; its CUDA headers (kf.get_include()) have them"


def kernel(s: Schema) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = s.sort(args)
        raise NotImplementedError(f"{s.op.said(given.activation)}: no kernel for tensors on cuda: {why_not()}. Tensors on the CPU are taken: x.cpu()")

    return run
