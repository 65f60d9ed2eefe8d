# SPDX-License-Identifier: Apache-2.0
"""Gradients of an op that has no backward of its own, by another op that computes results and gradients at once, as of a layer's loss whose logits
are never whole: the backward computes them anew rather than keep them."""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _table
from kernel_fusion._table import Op
from kernel_fusion.torch._schema import schema

SUFFIX = "_with_grad"


def other(op: Op) -> Op | None:
    """The op that has the gradients of this one's inputs among its results."""
    return None if op.own or op.backward else _table.ops().get(f"{op.name}{SUFFIX}")


def make(op: Op, by: Op, forward: Any, both: Any) -> Any:
    """The Function. What is given to `both` has the names of what was given to the op, and of the gradients of its results."""
    s, names = schema(op, False), [t.name for t in op.forward.inputs]
    asked = [name for _, name in schema(by, False).arguments]
    results = {f"d{t.name}": i for i, t in enumerate(op.forward.outputs)}
    gradients = {t.name.removeprefix("d"): i for i, t in enumerate(by.forward.outputs)}
    places = [gradients.get(name) for name in names]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*args[:s.inputs])
            ctx.rest = dict(zip([name for _, name in s.arguments][s.inputs:], args[s.inputs:])) | {"save": False}
            found = forward(*args[:-1], False) if s.saves else forward(*args)
            ctx.mark_non_differentiable(*(found[i] for i, t in enumerate(op.forward.outputs) if t.use == "saved"))
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(f"kf.{op.name} has no second derivative")
            given = dict(zip(names, ctx.saved_tensors)) | ctx.rest | {name: grads[i].contiguous() for name, i in results.items()}
            found = both(*(given[name] for name in asked))
            wanted = [found[i] if i is not None and needed else None for i, needed in zip(places, ctx.needs_input_grad)]
            return *wanted, *[None] * (len(s.arguments) - len(wanted))

    Function.__name__ = f"kf_{op.name}"
    return Function
