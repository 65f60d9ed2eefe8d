# SPDX-License-Identifier: Apache-2.0
"""Gradients of ops: a torch.autograd.Function per op and activation.

Functions use the older form whose forward receives ctx, which has the least overhead.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from kfgen.model.names import gradient_of
from torch import Tensor

from kernel_fusion._backward import computed, may_use_result, sources_of
from kernel_fusion._table import Op, formulas, ops
from kernel_fusion.torch import _formula
from kernel_fusion.torch._schema import schema


def make(op: Op, activation: str, namespace: Any) -> tuple[Any, Any, Any, Any]:
    """Returns (forward, and the Functions for torch.compile, for eager calls, for torch.func).

    Eager calls skip the overload's Python code, which torch.compile must see.
    """
    forward = getattr(namespace, op.name).kernel
    return (
        forward,
        around(op, activation, namespace, forward, False),
        around(op, activation, namespace, getattr(forward, "_op", forward), True),
        around(op, activation, namespace, forward, False, True),
    )


def around(
    op: Op, activation: str, namespace: Any, forward: Any, eager: bool, separate: bool = False
) -> Any:
    """Makes the Function around a callable that computes the op.

    Args:
        eager: True if torch.compile does not trace the Function.
        separate: True for the form that transforms of torch.func take.
    """
    if op.with_grad:
        other = ops()[op.with_grad]
        return _by_other(op, forward, other, getattr(namespace, other.name).kernel, separate)
    if op.backward is None:
        return _without(op, forward, separate)
    may = may_use_result(op, activation)
    spread = _formula.spreads(op, activation)
    backward = (
        _formula.make(op, activation)[1] if spread else getattr(namespace, f"{op.name}_bwd").kernel
    )
    return _with_backward(op, activation, forward, backward, may, eager, separate)


def _function(name: str, forward: Any, keep: Any, backward: Any, separate: bool) -> Any:
    """Makes a Function.

    Args:
        keep: takes ctx, the arguments and the results.
        separate: True for the form that transforms of torch.func take, whose forward has no ctx.
    """

    def whole(ctx: Any, *args: Any) -> Any:
        found = forward(*args)
        keep(ctx, args, found)
        return found

    members = {"forward": staticmethod(forward if separate else whole)}
    members |= {"setup_context": staticmethod(keep)} if separate else {}
    members["backward"] = staticmethod(backward)
    return type(name, (torch.autograd.Function,), members | {"generate_vmap_rule": separate})


def _without(op: Op, forward: Any, separate: bool = False) -> Any:
    def keep(ctx: Any, args: Any, found: Any) -> None: ...

    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(f"kf.{op.label or op.name} has no gradient")

    return _function(f"kf_{op.name}", forward, keep, backward, separate)


def _by_other(op: Op, forward: Any, other: Op, with_grad: Any, separate: bool) -> Any:
    """Makes a Function whose gradient another op computes together with the results."""
    own, its = ([name for _, name in schema(o, False).arguments] for o in (op, other))
    inputs, count = [t.name for t in op.forward.inputs], len(op.forward.inputs)
    of_results = {gradient_of(t.name): i for i, t in enumerate(op.forward.outputs)}
    constant = [i for i, t in enumerate(op.forward.outputs) if t.use == "saved"]
    found_at = {t.name: i for i, t in enumerate(other.forward.outputs)}
    again = _without(other, with_grad, separate).apply

    def keep(ctx: Any, args: Any, found: Any) -> None:
        ctx.save_for_backward(*args[:count])
        ctx.rest = args[count:]
        ctx.mark_non_differentiable(*(found[i] for i in constant))

    def backward(ctx: Any, *grads: Tensor) -> Any:
        given = dict(zip(own, (*ctx.saved_tensors, *ctx.rest))) | {
            name: grads[i] for name, i in of_results.items()
        }
        found = (again if torch.is_grad_enabled() else with_grad)(*[given[name] for name in its])
        results = [
            found[found_at[gradient_of(name)]] if needed else None
            for name, needed in zip(inputs, ctx.needs_input_grad)
        ]
        return *results, *[None] * len(ctx.rest)

    return _function(f"kf_{op.name}", forward, keep, backward, separate)


def decomposed(op: Op, activation: str) -> tuple[Any, Any]:
    """Returns make's forward and Function in PyTorch's own functions, which torch.compile reads.

    The gradient is kf's formula. Autograd of the forward would differ at ties and where a chain of
    factors overflows.
    """
    forward, backward, _ = _formula.make(op, activation)
    return forward, _with_backward(op, activation, forward, backward, False, False)


@functools.cache
def differentiable_backward(op: Op, backward: Any, separate: bool = False) -> Any:
    """Makes a differentiable backward, whose gradient PyTorch computes from its formula.

    It raises NotImplementedError if the formula is not differentiable.
    """
    s = schema(op, True)
    outputs = [t.name for t in op.forward.outputs]
    # Results that may replace inputs.
    results = {i: t.by_result for i, t in enumerate(s.call.inputs) if t.name in outputs}

    def keep(ctx: Any, args: Any, found: Any) -> None:
        ctx.activation = op.numbered[args[s.at["activation"]]] if op.has_act else "none"
        ctx.save_for_backward(*args[: s.inputs])
        ctx.rest = args[s.inputs :]

    def again(ctx: Any, *grads: Tensor) -> Any:
        if formulas(op, ctx.activation) is None:
            raise NotImplementedError(f"kf.{op.label or op.name} has no second derivative")
        # The formula may reject an empty reduction.
        if not ctx.saved_tensors[s.call.inputs.index(s.call.template)].numel():
            zeros = [
                torch.zeros_like(t) if needed else None
                for t, needed in zip(ctx.saved_tensors, ctx.needs_input_grad)
            ]
            return *zeros, *[None] * len(ctx.rest)
        # Views of its own: here a result is no function of the input.
        with torch.enable_grad():
            given = [t if t is None else t.view_as(t) for t in ctx.saved_tensors]
            by_result = any(
                t is not None for i, t in enumerate(given) if ctx.activation in results.get(i, ())
            )
            formula: Any = _formula.make(op, ctx.activation)[2 if by_result else 1]
            found = formula(*given, *ctx.rest)
        found = (found,) if isinstance(found, Tensor) else found
        wanted: list[Any] = [t for t, needed in zip(given, ctx.needs_input_grad) if needed]
        pairs = [
            (f, g)
            for f, g in zip(found, grads)
            if f.requires_grad and g is not None and g.shape == f.shape
        ]
        got = iter(
            torch.autograd.grad(
                [f for f, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
                materialize_grads=True,
            )
            if pairs
            else [torch.zeros_like(t) for t in wanted]
        )
        result = [next(got) if needed else None for needed in ctx.needs_input_grad[: s.inputs]]
        return *result, *[None] * len(ctx.rest)

    return _function(f"kf_{op.name}_bwd", backward, keep, again, separate)


def _keeps(op: Op, arguments: Sequence[str], sources: Sequence[tuple[str, int]]) -> list[str]:
    """Lines that save what the backward reads. Names with an underscore never clash
    with the op's.
    """
    saved = [
        arguments[i] if kind == "in" else f"_out{i}" for kind, i in sources if kind in ("in", "out")
    ] + (["rng"] if op.dropout else [])
    shapes = [(i, arguments[i]) for kind, i in sources if kind == "shape"]
    return [
        f"_ctx.save_for_backward({', '.join(saved)})",
        *(f"_ctx.shape{i}, _ctx.dtype{i} = {name}.shape, {name}.dtype" for i, name in shapes),
    ]


def _saves(
    op: Op, by: Sequence[tuple[str, int]], plain: Sequence[tuple[str, int]], signs: str
) -> str:
    """Expression that is True if the forward must compute the outputs saved for a backward.

    It need not where the activation's result replaces all of them.
    """
    of_both = [
        any(kind == "out" and op.forward.outputs[i].use == "saved" for kind, i in sources)
        for sources in (by, plain)
    ]
    return "save" if of_both[0] else f"not ({signs})" if of_both[1] else "False"


def _takes(op: Op, sources: Sequence[tuple[str, int]]) -> list[str]:
    """Lines that build the backward's tensors from the saved ones."""
    saved = [f"_kept{i}" for i, (kind, _) in enumerate(sources) if kind in ("in", "out")] + (
        ["rng"] if op.dropout else []
    )
    given = {
        "grad": "_grad{1}",
        "shape": "_grad0.new_empty((), dtype=_ctx.dtype{1}).expand(_ctx.shape{1})",
        "none": "None",
        "in": "_kept{0}",
        "out": "_kept{0}",
    }
    tensors = ", ".join(given[kind].format(i, number) for i, (kind, number) in enumerate(sources))
    return [
        *([f"{', '.join(saved)}, = _ctx.saved_tensors"] if saved else []),
        f"_tensors = {tensors},",
    ]


def _either(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Chooses between lines by ctx.by_result, unless both are equal."""
    if first == second:
        return [f"    {line}" for line in first]
    return [
        "    if _ctx.by_result:",
        *(f"        {line}" for line in first),
        "    else:",
        *(f"        {line}" for line in second),
    ]


def _text(op: Op, activation: str, may: bool, eager: bool, separate: bool) -> str:
    """Source text of forward and backward."""
    assert op.backward is not None
    s, names = schema(op, False), [t.name for t in op.forward.inputs]
    arguments, outs = (
        [name for _, name in s.arguments],
        [f"_out{i}" for i in range(len(op.forward.outputs))],
    )
    by = sources_of(op, activation, may)
    plain = sources_of(op, activation, False) if may and op.rising[activation] else by
    rest = arguments[len(names) : len(arguments) - s.saves]
    asked = [name for name in rest if name != "rng"]
    # These outputs have no gradient.
    constant = [
        out
        for out, t in zip(outs, op.forward.outputs)
        if (t.use == "saved" and t.name not in op.backward.given) or t.place_of
    ]
    # Conditions on scalars under which a result determines its input.
    signs = " and ".join(f"act_{i} >= 0" for i in op.rising[activation])
    given = [*arguments[:-1], _saves(op, by, plain, signs)] if s.saves else arguments
    results = ", ".join(outs)
    call = f"_forward({', '.join(given)})"
    lines = (
        [
            f"def forward({', '.join(arguments)}):",
            f"    return {call}",
            f"def setup_context(_ctx, _given, {'_outs' if len(outs) > 1 else results}):",
            f"    {', '.join(arguments)}, = _given",
            *([f"    {results} = _outs"] if len(outs) > 1 else []),
        ]
        if separate
        else [f"def forward(_ctx, {', '.join(arguments)}):", f"    {results} = {call}"]
    )
    lines += [
        *([f"    _ctx.by_result = {signs}"] if by != plain else []),
        *_either(_keeps(op, arguments, by), _keeps(op, arguments, plain)),
        f"    _ctx.rest = ({''.join(f'{name}, ' for name in asked)})",
        *([f"    _ctx.mark_non_differentiable({', '.join(constant)})"] if constant else []),
    ]
    [given_up, *more] = [f"_grad{i}" for i, out in enumerate(outs) if out not in constant]
    # The other outputs' gradients, which are never read, need not be filled with zeros.
    alone = eager and bool(constant) and not more
    lines += [
        *(["    _ctx.set_materialize_grads(False)"] if alone else []),
        *([] if separate else [f"    return {results}"]),
    ]
    lines += [
        f"def backward(_ctx, {', '.join(f'_grad{i}' for i in range(len(outs)))}):",
        *(
            [
                f"    if {given_up} is None:",
                f"        return {', '.join(['None'] * len(arguments))}",
            ]
            if alone
            else []
        ),
        *_either(_takes(op, by), _takes(op, plain)),
        *([f"    {', '.join(asked)}, = _ctx.rest"] if asked else []),
        "    _needs = _ctx.needs_input_grad",
        *_gradients(op, f"(*_tensors, {''.join(f'{name}, ' for name in rest)}_mask)"),
    ]
    return "\n".join(
        [
            *lines,
            f"    return {', '.join([*_given_back(op), *['None'] * len(arguments[len(names) :])])}",
            "",
        ]
    )


def _gradients(op: Op, arguments: str) -> list[str]:
    """Lines that call the backward if any gradient is needed."""
    assert op.backward is not None
    every = computed(op)
    mask = [
        f"({' or '.join(f'_needs[{i}]' for i in numbers)}) << {j}" for j, numbers in every.items()
    ]
    call = f"(_again if _grad_on() else _backward){arguments}"
    unasked = any(t.unchanged for t in op.backward.outputs)
    return (
        [
            f"    _mask = {' | '.join(mask)}",
            f"    _found = {call}{' if _mask else None' if unasked else ''}",
        ]
        if every
        else []
    )


def _given_back(op: Op) -> list[str]:
    """Expressions of each input's gradient."""
    assert op.backward is not None
    at, outputs = (
        {i: j for j, numbers in computed(op).items() for i in numbers},
        op.backward.outputs,
    )
    incoming = {
        t.of: [gradient_of(r.name) for r in op.forward.outputs].index(t.unchanged)
        for t in outputs
        if t.unchanged
    }
    found = []
    for i, t in enumerate(op.forward.inputs):
        one = (
            f"_grad{incoming[t.name]}"
            if t.name in incoming
            else f"_found[{at.get(i)}]"
            if len(outputs) > 1
            else "_found"
        )
        found.append(f"{one} if _needs[{i}] else None" if t.name in incoming or i in at else "None")
    return found


def _with_backward(
    op: Op,
    activation: str,
    forward: Any,
    backward: Any,
    may: bool,
    eager: bool,
    separate: bool = False,
) -> Any:
    """Makes a specialised Function for one op and activation.

    Args:
        may: True if the gradient may use the activation's result.
        eager: True if nothing traces the Function.
        separate: True for the form that transforms of torch.func take.
    """
    names: dict[str, Any] = {
        "_forward": forward,
        "_backward": backward,
        "_again": differentiable_backward(op, backward, separate).apply,
        "_grad_on": torch.is_grad_enabled,
    }
    exec(
        compile(
            _text(op, activation, may, eager, separate),
            f"<{op.display_name(activation)}, gradient>",
            "exec",
        ),
        names,
    )
    methods = ("forward", "setup_context", "backward") if separate else ("forward", "backward")
    members = {n: staticmethod(names[n]) for n in methods} | {"generate_vmap_rule": separate}
    return type(f"kf_{op.name}", (torch.autograd.Function,), members)
