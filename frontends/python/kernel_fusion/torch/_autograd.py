# SPDX-License-Identifier: Apache-2.0
"""The gradient of an op, outside the op: a torch.autograd.Function of its two directions, in the form whose forward has ctx, which costs least."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_fusion._table import Op, activations, formulas
from kernel_fusion.torch import _formula
from kernel_fusion.torch._schema import schema, words

NONE = activations()["none"]


def _sources(op: Op, activation: str, by_result: bool) -> list[tuple[str, int]]:
    """Where each input of the backward comes from: (in, out or grad, number); (shape, number) where nothing of it is read but how large it is;
    (none, 0). Weights are given whether or not they are read: their dtype is that of their gradients. by_result: with the activation's result in
    place of inputs."""
    assert op.backward is not None
    inputs, outputs = [t.name for t in op.forward.inputs], [t.name for t in op.forward.outputs]
    found = []
    for t in op.backward.inputs:
        if t.use == "gradient":
            found.append(("grad", outputs.index(t.of)))
        elif t.name in outputs:
            missing = activation in t.unread or (activation in t.by_result and not by_result)
            found.append(("none", 0) if missing else ("out", outputs.index(t.name)))
        elif (activation in t.unread or (activation in t.by_result and by_result)) and t.use != "weight":
            found.append(("shape", inputs.index(t.name)) if t is op.backward.template else ("none", 0))
        else:
            found.append(("in", inputs.index(t.name)))
    return found


def make(op: Op, namespace: Any) -> tuple[Any, Any]:
    """(the op's forward, the Function around it)"""
    forward = getattr(namespace, op.name).default
    return forward, (_with_backward(op, forward, getattr(namespace, f"{op.name}_bwd").default) if op.backward else _without(op, forward))


def _without(op: Op, forward: Any) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            return forward(*args)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            raise NotImplementedError(f"kf.{op.label or op.name} has no gradient")

    Function.__name__ = f"kf_{op.name}"
    return Function


def decomposed(op: Op, activation: str) -> tuple[Any, Any]:
    """What make gives, of PyTorch's own functions alone: torch.compile reads them. The gradient is kf's formula too, not what autograd would make of
    the result's: at ties, and where a chain of factors overflows, it is another."""
    forward, backward = _formula.make(op, activation)
    return forward, _with_backward(op, forward, backward)


def _again(op: Op, backward: Any) -> Any:
    """A backward that is part of a graph itself. Its own gradient is that of its formula, computed by PyTorch; or it says that there is none."""
    s = schema(op, True)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.activation = words()[args[s.at["activation"]]] if op.has_act else "none"
            ctx.save_for_backward(*args[:s.inputs])
            ctx.rest = args[s.inputs:]
            return backward(*args)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            if formulas(op, ctx.activation) is None:
                raise NotImplementedError(f"kf.{op.label or op.name} has no second derivative")
            with torch.enable_grad():  # in names of their own: a result that is read is not a function of the input here
                given = [t if t is None else t.view_as(t) for t in ctx.saved_tensors]
                found = _formula.make(op, ctx.activation)[1](*given, *ctx.rest)
            found = (found,) if isinstance(found, Tensor) else found
            wanted: list[Any] = [t for t, needed in zip(given, ctx.needs_input_grad) if needed]
            pairs = [(f, g) for f, g in zip(found, grads) if f.requires_grad and g is not None and g.shape == f.shape]
            got = iter(torch.autograd.grad([f for f, _ in pairs], wanted, [g for _, g in pairs], create_graph=torch.is_grad_enabled(),
                                           allow_unused=True, materialize_grads=True) if pairs else [torch.zeros_like(t) for t in wanted])
            result = [next(got) if needed else None for needed in ctx.needs_input_grad[:s.inputs]]
            return *result, *[None] * len(ctx.rest)

    Twice.__name__ = f"kf_{op.name}_bwd"
    return Twice


class _Ties:
    """What the two directions of an op have to do with each other: which argument is what, and what of a call is kept for its backward."""

    def __init__(self, op: Op):
        assert op.backward is not None
        s = schema(op, False)
        self.op, self.inputs, self.one = op, len(op.forward.inputs), len(op.forward.outputs) == 1
        self.gives = [[t.name for t in op.forward.inputs].index(t.of) for t in op.backward.outputs]  # the input that each gradient is of
        self.constant = [i for i, t in enumerate(op.forward.outputs) if t.use == "saved" or t.place_of]  # results that have no gradient
        self.arguments = len(s.arguments)
        self.tail = self.arguments - s.saves
        self.rng = s.at["rng"] if op.dropout else 0  # of the arguments behind the tensors one is a tensor again
        # By id and whether by the result: torch.compile reads it as it is.
        self.sources = {(activations()[act], by): _sources(op, act, by) for act in op.activations for by in (False, True)}
        by = {act for t in op.backward.inputs for act in t.by_result}
        self.rising = {activations()[act]: [s.at["act"] + i for i in op.rising[act]] if act in by else None for act in op.activations}

    def remember(self, ctx: Any, args: Sequence[Any], outs: Sequence[Tensor]) -> None:
        ctx.activation = args[self.tail - 1] if self.op.has_act else NONE
        rising, rng = self.rising[ctx.activation], self.rng
        ctx.by_result = rising is not None and all(args[i] >= 0 for i in rising)
        sources = self.sources[ctx.activation, ctx.by_result]
        kept = [(args if kind == "in" else outs)[i] for kind, i in sources if kind in ("in", "out")]
        ctx.save_for_backward(*kept, *([args[rng]] if rng else []))
        ctx.shapes = [(args[i].shape, args[i].dtype) for kind, i in sources if kind == "shape"]
        ctx.rest = args[self.inputs:rng or self.tail], args[rng + 1:self.tail] if rng else ()
        if self.constant:
            ctx.mark_non_differentiable(*[outs[i] for i in self.constant])

    def gather(self, ctx: Any, grads: Sequence[Tensor]) -> list[Any]:
        """The backward's arguments but for the mask."""
        kept, shapes = iter(ctx.saved_tensors), iter(ctx.shapes)
        found: list[Any] = []
        for kind, i in self.sources[ctx.activation, ctx.by_result]:
            if kind == "grad":
                found.append(grads[i])
            elif kind == "shape":
                shape, dtype = next(shapes)
                found.append(grads[0].new_empty((), dtype=dtype).expand(shape))
            else:
                found.append(None if kind == "none" else next(kept))
        return [*found, *ctx.rest[0], *([next(kept)] if self.rng else []), *ctx.rest[1]]

    def spread(self, mask: int, found: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """A gradient, or none, for each argument of the forward."""
        result: list[Tensor | None] = [None] * self.arguments
        for j, (i, gradient) in enumerate(zip(self.gives, found)):
            if mask >> j & 1:
                result[i] = gradient
        return tuple(result)


def _with_backward(op: Op, forward: Any, backward: Any) -> Any:
    ties, twice = _Ties(op), _again(op, backward)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outs = forward(*args)
            ties.remember(ctx, args, (outs,) if ties.one else outs)
            return outs

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            mask = 0
            for j, i in enumerate(ties.gives):
                mask |= ctx.needs_input_grad[i] << j
            args = ties.gather(ctx, grads)
            found = twice.apply(*args, mask) if torch.is_grad_enabled() else backward(*args, mask)
            return ties.spread(mask, (found,) if len(ties.gives) == 1 else found)

    Function.__name__ = f"kf_{op.name}"
    return Function
