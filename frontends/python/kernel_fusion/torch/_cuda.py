# SPDX-License-Identifier: Apache-2.0
"""Kernels for CUDA tensors: launched on the current stream, with workspaces of PyTorch's
allocator.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _gpu, _library, _plan
from kernel_fusion._info import cuda_available
from kernel_fusion.torch import _kernels, _shim
from kernel_fusion.torch._kernels import LAUNCH, REASON, Result, plan
from kernel_fusion.torch._schema import Given, Schema


def _without_a_device() -> str | None:
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA"
    return (
        None
        if cuda_available()
        else "no CUDA device was found: is the driver (libcuda.so.1) installed, and a GPU visible?"
    )


def why_not() -> str | None:
    """Returns why there are no kernels for CUDA tensors, or None if there are."""
    why = _without_a_device()
    if why is None:
        try:
            _gpu.library()
        except (ImportError, OSError) as e:
            why = str(e)
    return why


def _refusal(s: Schema, activation: str, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"{s.op.display_name(activation)}: no kernel for tensors on cuda: {why}. CPU tensors are "
        f"supported: x.cpu()"
    )


def _missing(s: Schema) -> str | None:
    """Returns why a direction of an op has no function for GPUs, or None if it has one."""
    if "cuda" in s.call.backends:
        return None
    return "the gradient has C functions only" if s.backward else "the op has C functions only"


def launch(
    s: Schema,
    made: _plan.Plan,
    addresses: list[int | None],
    sizes: list[int],
    strides: list[int] | None,
    scalars: Sequence[float],
    rng: Tensor | None,
    device: torch.device,
) -> None:
    def space(size: int) -> tuple[Tensor, int]:
        held = torch.empty(size, dtype=torch.uint8, device=device)
        return held, held.data_ptr()

    stream = torch.cuda.current_stream(device).cuda_stream
    _library.of(s.op).on_gpu.call(
        made.function,
        addresses,
        sizes,
        strides,
        scalars,
        None if rng is None else rng.data_ptr(),
        space if s.call.workspace else None,
        device.index or 0,
        stream,
    )


def reason(s: Schema, given: Given, made: _plan.Plan, error: Exception) -> BaseException | None:
    """Returns the error behind a failed call of the shim, or None.

    An error stored by the loader may belong to an earlier call; it counts only if the shim
    reported it.
    """
    why = _missing(s) or (None if s.op.own else why_not())
    if why:
        return _refusal(s, given.activation, why)
    if failed := _shim.failed.take(error):
        return failed
    stored = _library.of(s.op).on_gpu.library_of(made.function).failed()
    return stored if _shim.was_reported(stored, error) else None


LAUNCH["cuda"], REASON["cuda"] = launch, reason


def kernel(s: Schema) -> Callable[..., Result]:
    run = _kernels.kernel(s)

    def checked(*args: Any) -> Result:
        known = s.op.own.on_gpu.made if s.op.own else _gpu.opened()
        why = None if known else _without_a_device() if s.op.own else why_not()
        why = _missing(s) or why
        if why:
            given = s.sort(args)
            # Errors of the call itself take precedence.
            plan(s, given, symbolic=False)
            raise _refusal(s, given.activation, why)
        return run(*args)

    return checked
