# SPDX-License-Identifier: Apache-2.0
"""The gradient of `torch.ops.kf.<op>` itself: for calls that do not go through kf.ops, those of an exported program among them. PyTorch asks a
function of Python for it at each call, gradient or none, which costs microseconds: so kf.ops and torch.compile call the overload that has none."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernel_fusion.torch import _autograd, _public
from kernel_fusion.torch._schema import Schema, words


def _function(s: Schema, activation: str, namespace: Any, below: Any) -> Any:
    """Around the op without its gradient; around its backward, whose own is that of its formula."""
    return (
        _autograd.again(s.op, below)
        if s.backward
        else _autograd.around(s.op, activation, namespace, below, True)
    )


def kernel(s: Schema, namespace: Any) -> Callable[..., Any]:
    """For PyTorch's key Autograd."""
    activation_at = s.at.get("activation")

    def below(*args: Any) -> Any:
        """The same op, so that it is this one that an exported program has."""
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(namespace, s.name).default(*args)

    @functools.cache
    def made(activation: str) -> tuple[Any, Callable[[Sequence[Any], bool], Any]]:
        function = _function(s, activation, namespace, below)
        where = f"{s.op.said(activation)}{' (backward)' if s.backward else ''}"
        return function, _public.careful(where, below, function)

    def run(*args: Any) -> Any:
        differentiated = torch.is_grad_enabled() and any(
            isinstance(t, Tensor) and t.requires_grad for t in args[: s.inputs]
        )
        transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        activation = "none" if activation_at is None else words().get(args[activation_at], "")
        if (
            not differentiated and not transformed or activation not in s.op.activations
        ):  # which the op refuses itself
            return below(*args)
        if differentiated and s.saves:
            args = (
                *args[:-1],
                True,
            )  # whatever the call said: a program may have been exported without gradients
        function, careful = made(activation)
        return careful(args, differentiated) if transformed else function.apply(*args)

    return run
