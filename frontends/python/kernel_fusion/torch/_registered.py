# SPDX-License-Identifier: Apache-2.0
"""Gradients of `torch.ops.kf.<op>` for direct calls, such as those of exported programs.

PyTorch calls a Python function at each such call, even without a gradient, which costs
microseconds. kf.ops and torch.compile therefore call the overload without a gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernel_fusion.torch import _autograd, _public
from kernel_fusion.torch._schema import Schema


def _function(s: Schema, activation: str, namespace: Any, below: Any) -> Any:
    """Wraps the op, or its backward, in a Function."""
    return (
        _autograd.differentiable_backward(s.op, below)
        if s.backward
        else _autograd.around(s.op, activation, namespace, below, True)
    )


def kernel(s: Schema, namespace: Any) -> Callable[..., Any]:
    """Makes the kernel for PyTorch's dispatch key Autograd."""
    activation_at = s.at.get("activation")

    def below(*args: Any) -> Any:
        """Calls the same op below autograd, so that an exported program contains this op."""
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(namespace, s.name).default(*args)

    @functools.cache
    def made(activation: str) -> tuple[Any, Callable[[Sequence[Any], bool], Any]]:
        function = _function(s, activation, namespace, below)
        where = f"{s.op.display_name(activation)}{' (backward)' if s.backward else ''}"
        return function, _public.guarded(where, below, function)

    def run(*args: Any) -> Any:
        differentiated = torch.is_grad_enabled() and any(
            isinstance(t, Tensor) and t.requires_grad for t in args[: s.inputs]
        )
        transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        activation = "none" if activation_at is None else s.op.numbered.get(args[activation_at], "")
        # The op itself reports an unknown activation.
        if not differentiated and not transformed or not activation:
            return below(*args)
        if differentiated and s.saves:
            # Saved whatever the call requested: the program may have been exported without
            # gradients.
            args = (*args[:-1], True)
        function, guarded = made(activation)
        return guarded(args, differentiated) if transformed else function.apply(*args)

    return run
