# SPDX-License-Identifier: Apache-2.0
"""Ops that overwrite inputs, over tensors or lists of them: mutating ops without a gradient."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from kernel_fusion import _arguments, _library, _plan, _updates
from kernel_fusion._sizes import Layout
from kernel_fusion._table import Op, activations
from kernel_fusion._table import Tensor as Argument
from kernel_fusion.torch import _kernels
from kernel_fusion.torch._schema import Given, Schema, schema

# Memory formats in which a tensor is one block of memory.
FORMATS = {
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}


def _overwritten(s: Schema) -> list[int]:
    return [i for i, t in enumerate(s.call.inputs) if t.role == "inout"]


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """Returns the tensors among arguments, those of lists included."""
    found: list[Any] = []
    for value in values:
        found += value if isinstance(value, (list, tuple)) else [value]
    return [x for x in found if isinstance(x, Tensor)]


def check_gradients(s: Schema, where: str, args: Sequence[Any]) -> None:
    """Refuses tensors whose gradient would be lost."""
    if not torch.is_grad_enabled():
        return
    for t, value in zip(s.call.inputs, args):
        many = isinstance(value, (list, tuple))
        for i, x in enumerate(value if many else [value]):
            if isinstance(x, Tensor) and x.requires_grad:
                raise RuntimeError(
                    f"{where}: {t.name}{f'[{i}]' if many else ''} requires a gradient, which "
                    f"updates do not have; expected a call under torch.no_grad()"
                )


def define(library: Library, s: Schema, namespace: Any) -> Schema:
    """Defines the op: its schema, its fake kernel, and what it does to autograd."""
    library.define(s.name + s.text, tags=(torch.Tag.pt2_compliant_tag,))
    register_fake(f"kf::{s.name}", _fake(s), lib=library)
    op = getattr(namespace, s.name).default
    written = _overwritten(s)

    def autograd(keys: Any, *args: Any) -> None:
        check_gradients(s, f"kf.{s.name}", args)
        op.redispatch(keys & torch._C._after_autograd_keyset, *args)

    def in_place(keys: Any, *args: Any) -> None:
        for i in written:
            torch.autograd.graph.increment_version(tensors_of([args[i]]))
        op.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args)

    library.impl(s.name, autograd, "Autograd", with_keyset=True)
    library.impl(s.name, in_place, "ADInplaceOrView", with_keyset=True)
    return s


def _fake(s: Schema) -> Callable[..., None]:
    def run(*args: Any) -> None:
        given = s.sort(args)
        if s.call.lists:
            _function(s, given)
        else:
            _kernels.plan(s, given, symbolic=True)

    return run


def _function(s: Schema, given: Given) -> str | None:
    """Checks lists and returns the function of their dtypes; None for lists without tensors."""
    where, inputs = _kernels.where(s, given), s.call.inputs
    lists = [_updates.listed(where, t.name, own) for t, own in zip(inputs, given.tensors)]
    words = [
        [_kernels.word(s, given, f"{t.name}[{i}]", x.dtype, t.var) for i, x in enumerate(own)]
        for t, own in zip(inputs, lists)
    ]
    _updates.check_lists(where, inputs, [[x.shape for x in own] for own in lists], words)
    if not lists[0]:
        return None
    device = lists[0][0].device
    for t, own in zip(inputs, lists):
        for i, x in enumerate(own):
            if x.device != device:
                raise ValueError(f"{where}: {t.name}[{i}] is on {x.device}, the others on {device}")
    values = [*s.call.scalars, *s.op.scalars[given.activation]]
    for value, scalar in zip(values, given.scalars):
        _plan.check_value(where, value, scalar)
    return _updates.function_of_lists(s.op, given.activation, where, [own[0] for own in words])


def _held(s: Schema, where: str, tensors: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
    """Returns tensors of one shape with their elements in one order: overwritten ones as they are,
    copies of others if their order differs.
    """
    inputs: Sequence[Argument] = s.call.inputs
    written = [x for t, x in zip(inputs, tensors) if t.role == "inout"]
    known = FORMATS.get(written[0].dim(), (torch.contiguous_format,))
    formats = known if s.call.lists or s.op.is_flat else known[:1]
    order = next((f for f in formats if written[0].is_contiguous(memory_format=f)), formats[0])
    for t, x, name in zip(inputs, tensors, names):
        if t.role == "inout" and not x.is_contiguous(memory_format=order):
            raise ValueError(
                f"{where}: {name} has the strides {x.stride()} and is overwritten, expected "
                f"contiguous memory, in one order for all"
            )
    return [x.contiguous(memory_format=order) for x in tensors]


def kernel(s: Schema) -> Callable[..., None]:
    """Makes the kernel for CPU and CUDA tensors."""
    names = [t.name for t in s.call.inputs]

    def run(*args: Any) -> None:
        given = s.sort(args)
        where = _kernels.where(s, given)
        held: list[Any]  # memory that the launch reads
        if s.call.lists:
            function = _function(s, given)
            if function is None:
                return
            rows = [
                _held(s, where, own, [f"{name}[{i}]" for name in names])
                for i, own in enumerate(zip(*given.tensors))
            ]
            made = _plan.Plan(function, _NO_LAYOUT, (), (), ())
            tensors, sizes, kept = _updates.packed(
                [[x.data_ptr() for x in own] for own in zip(*rows)],
                [own[0].numel() for own in rows],
            )
            device, held = rows[0][0].device, [rows, kept]
        else:
            made = _kernels.plan(s, given, symbolic=False)
            own = _held(s, where, [x for x in given.tensors if x is not None], names)
            tensors, sizes = [x.data_ptr() for x in own], [*made.sizes]
            device, held = own[0].device, [own]
        try:
            _kernels.LAUNCH[device.type](
                s, made, tensors, [*sizes, *given.integers], None, given.scalars, None, device
            )
        except _library.Refused as e:
            raise e.by(where) from None
        del held

    return run


_NO_LAYOUT: Layout = None  # type: ignore[assignment]


def make(op: Op, activation: str, forward: Any) -> Callable[..., None]:
    """Makes the function of kf.ops."""
    s, where = schema(op, False), op.display_name(activation)
    parameters = _arguments.signature(op, activation).parameters
    placed = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    defaults = {
        n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty
    }
    tensors = [t.name for t in op.forward.inputs]
    lists = {t.name for t in op.forward.inputs if t.list}
    numbers = [v.name for v in (*op.forward.scalars, *op.scalars[activation])]
    more = [0.0] * (op.act_scalars - len(op.scalars[activation]))
    more += [activations()[activation]] if op.has_act else []

    def function(*args: Any, **kwargs: Any) -> None:
        given = {**defaults, **dict(zip(placed, args)), **kwargs}
        if len(args) > len(placed) or len(given) != len(parameters) or set(given) - set(parameters):
            try:
                _arguments.signature(op, activation).bind(*args, **kwargs)
            except TypeError as e:
                raise TypeError(f"{where}: {e}") from None
        for name in tensors:
            value = given[name]
            if name in lists:
                _updates.listed(where, name, value)
            for x in value if name in lists else [value]:
                if not isinstance(x, Tensor):
                    raise TypeError(
                        f"{where}: {name} has {type(x).__name__}, expected a tensor"
                        if name in lists
                        else f"{where}: {name} is {type(x).__name__}, expected a tensor"
                    )
        for name in numbers:
            if isinstance(given[name], (bool, Tensor)) or not hasattr(given[name], "__float__"):
                raise TypeError(
                    f"{where}: {name} is {type(given[name]).__name__}, expected a number"
                )
        check_gradients(s, where, [given[name] for name in tensors])
        forward(
            *[list(given[name]) if name in lists else given[name] for name in tensors],
            *[given[v.name] for v in op.forward.integers],
            *[given[name] for name in numbers],
            *more,
        )

    return function
