# SPDX-License-Identifier: Apache-2.0
"""What the ops do with tensors on a GPU: kf's kernels on the current stream, workspaces from PyTorch's allocator."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _gpu, _plan
from kernel_fusion._info import cuda_available
from kernel_fusion.torch._kernels import Result, plan, through
from kernel_fusion.torch._schema import Schema


def why_not() -> str | None:
    """Why there are no kernels for tensors on a GPU; None: there are."""
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    if not cuda_available():
        return "no CUDA device answers: is the driver (libcuda.so.1) installed, and a GPU visible?"
    try:
        _gpu.library()
    except (ImportError, OSError) as e:
        return str(e)
    return None


def kernel(s: Schema) -> Callable[..., Result]:
    def run(*args: Any) -> Result:
        first = next(x for x in args if isinstance(x, Tensor))
        if s.op.own:
            raise NotImplementedError(f"{s.op.said(s.sort(args).activation)}: no kernel for tensors on cuda: ops that a program makes have C kernels "
                                      "alone. Tensors on the CPU are taken: x.cpu()")
        device = first.device.index or 0
        stream = torch.cuda.current_stream(first.device).cuda_stream

        def space(size: int) -> tuple[Tensor, int]:
            held = torch.empty(size, dtype=torch.uint8, device=first.device)
            return held, held.data_ptr()

        def launch(made: _plan.Plan, addresses: list[int | None], sizes: list[int], strides: list[int] | None, scalars: Sequence[float],
                   rng: Tensor | None) -> None:
            at = None if rng is None else rng.data_ptr()
            _gpu.library().call(made.function, addresses, sizes, strides, scalars, at, space if s.call.workspace else None, device, stream)

        return through(s, launch)(*args)

    def checked(*args: Any) -> Result:
        why = why_not() if not _gpu.opened() else None
        if why:
            given = s.sort(args)
            plan(s, given, symbolic=False)  # what is wrong with the call is said first
            raise NotImplementedError(f"{s.op.said(given.activation)}: no kernel for tensors on cuda: {why}. Tensors on the CPU are taken: x.cpu()")
        return run(*args)

    return checked
