# SPDX-License-Identifier: Apache-2.0
"""Gradients accumulated into the caller's tensors by the kernel that computes them.

Accumulating a weight's gradient over several batches needs no temporary tensor, and the
accumulator may be float32 for 2-byte weights.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from kfgen.model import names
from torch import Tensor

from kernel_fusion import _strides
from kernel_fusion._backward import sources_of
from kernel_fusion._sizes import Layout
from kernel_fusion._table import Op
from kernel_fusion._table import Tensor as Argument
from kernel_fusion.torch import _kernels
from kernel_fusion.torch._schema import Given, Schema, schema, wanted


def _check(
    op: Op, where: str, operands: Mapping[str, Tensor | None], grads: Mapping[str, Tensor]
) -> None:
    """Checks `grads` before the forward."""
    for name, t in grads.items():
        of = operands.get(name)
        if name not in op.added or of is None:
            there = ", ".join(n for n in op.added if operands[n] is not None)
            raise ValueError(f"{where}: grads has {name!r}, expected some of {there}")
        allowed = (of.dtype, torch.float32) if of.dtype.itemsize == 2 else (of.dtype,)
        if not isinstance(t, Tensor):
            raise TypeError(f"{where}: grads[{name!r}] is {type(t).__name__}, expected a tensor")
        if t.dtype not in allowed or t.dtype != next(iter(grads.values())).dtype:
            raise TypeError(
                f"{where}: grads[{name!r}] has the dtype {t.dtype}, expected "
                f"{' or '.join(map(str, allowed))}, the same for all"
            )
        if t.shape != of.shape or t.device != of.device:
            raise ValueError(
                f"{where}: grads[{name!r}] has the shape {tuple(t.shape)} on {t.device}, expected "
                f"{tuple(of.shape)} on {of.device}"
            )
        if t.requires_grad:
            raise ValueError(
                f"{where}: grads[{name!r}] requires a gradient, expected a tensor without"
            )


def _output_strides(where: str, t: Argument, layout: Layout, x: Tensor) -> tuple[int, ...]:
    found = _strides.of(t, layout, x.shape, x.stride())
    if found is None or _strides.BROADCAST in found:
        raise ValueError(
            f"{where}: grads[{t.of!r}] has the strides {x.stride()}, expected contiguous or "
            f"strided rows"
        )
    return found


def _run(s: Schema, given: Given, grads: Mapping[str, Tensor]) -> list[Tensor]:
    """Computes the gradients in given.mask; accumulated ones are the caller's own tensors."""
    where, call = _kernels.where(s, given), s.call
    made = _kernels.plan(s, given, symbolic=False)
    own = next(
        x.dtype for t, x in zip(call.inputs, given.tensors) if t.var == "T" and x is not None
    )
    second = next((t.dtype for t in grads.values()), own)
    # Accumulated gradients have the type variable of the weights' gradients.
    of = {t.var for t in call.outputs if t.accumulated}
    words = names.words({v: _kernels.WORDS[second if v in of else own] for v in s.op.variables})
    made = dataclasses.replace(made, function=s.op.function(given.activation, words, True))
    outputs, strides = [], {}
    for i, t in enumerate(call.outputs):
        if t.of in grads:
            outputs.append(grads[t.of])
            strides[t.name] = _output_strides(where, t, made.layout, grads[t.of])
        else:
            shape = made.shapes[i] if wanted(call, given, i) else (0,)
            first = next(x for x in given.tensors if x is not None)
            make = torch.zeros if t.accumulated else torch.empty
            outputs.append(make(shape, dtype=second if t.accumulated else own, device=first.device))
    _kernels.call(s, given, made, outputs, strides, beta=1.0)
    return [
        x.to(own) if t.accumulated and t.of not in grads else x
        for t, x in zip(call.outputs, outputs)
    ]


def make(op: Op, activation: str, forward: Any) -> Callable[..., Any]:
    """Makes the op's function with `grads`.

    It takes the arguments of the torch.library op and {operand: tensor}.
    """
    s, names, sources = (
        schema(op, True),
        [t.name for t in op.forward.inputs],
        sources_of(op, activation, False),
    )
    inputs = len(names)
    constant = [i for i, t in enumerate(op.forward.outputs) if t.use == "saved" or t.place_of]
    saves = schema(op, False).saves

    class Adding(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, grads: Mapping[str, Tensor], *args: Any) -> Any:
            found = forward(*args)
            outs = (found,) if isinstance(found, Tensor) else found
            saved = {"in": args, "out": outs}
            ctx.save_for_backward(*(saved[kind][i] for kind, i in sources if kind in saved))
            ctx.rest, ctx.grads = args[inputs : len(args) - saves], grads
            ctx.mark_non_differentiable(*(outs[i] for i in constant))
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            if torch.is_grad_enabled():
                raise NotImplementedError(
                    f"{op.display_name(activation)} has no second derivative where gradients are "
                    f"added to tensors (grads)"
                )
            saved = iter(ctx.saved_tensors)
            tensors = [
                next(saved) if kind in ("in", "out") else gradients[i] if kind == "grad" else None
                for kind, i in sources
            ]
            needs = dict(zip(names, ctx.needs_input_grad[1:]))
            mask = sum(
                1 << i for i, t in enumerate(s.call.outputs) if needs[t.of] or t.of in ctx.grads
            )
            found = _run(s, s.sort((*tensors, *ctx.rest, mask)), ctx.grads)
            of = {
                t.of: x
                for t, x in zip(s.call.outputs, found)
                if needs[t.of] and t.of not in ctx.grads
            }
            return (
                None,
                *(of.get(name) for name in names),
                *[None] * (len(ctx.needs_input_grad) - 1 - inputs),
            )

    Adding.__name__ = f"kf_{op.name}_adding"

    def call(args: Sequence[Any], grads: Mapping[str, Tensor]) -> Any:
        where = op.display_name(activation)
        if torch.compiler.is_compiling():
            raise NotImplementedError(f"{where}: grads is not traced by torch.compile")
        _check(op, where, dict(zip(names, args)), grads)
        try:
            return Adding.apply(grads, *args)  # type: ignore[no-untyped-call]
        except (RuntimeError, TypeError) as e:
            raise _kernels.explain(schema(op, False), e, args) from None

    return call
