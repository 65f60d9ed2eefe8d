# SPDX-License-Identifier: Apache-2.0
"""Ops that overwrite inputs, over tensors or lists of them: mutating ops without a gradient."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from kernel_fusion import _arguments, _caches, _library, _plan, _updates
from kernel_fusion._sizes import Layout
from kernel_fusion._table import Op
from kernel_fusion._table import Tensor as Argument
from kernel_fusion.torch import _kernels, _public
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


def _given(s: Schema, where: str, given: Given) -> list[list[Any] | None]:
    """Returns the tensors of each input. An input that may be absent is an empty list then, or
    None.
    """
    found: list[list[Any] | None] = []
    for t, own in zip(s.call.inputs, given.tensors):
        if own is None or not t.list:
            found.append(None if own is None else [own])
        else:
            found.append([*_updates.listed(where, t.name, own)])
            if t.nullable and not found[-1]:
                found[-1] = None
    return found


def _function(s: Schema, given: Given) -> str | None:
    """Checks lists and returns the function of their dtypes; None for lists without tensors."""
    where, inputs = _kernels.where(s, given), s.call.inputs
    held = _given(s, where, given)
    names = [
        [f"{t.name}[{i}]" if t.list else t.name for i in range(len(own or ()))]
        for t, own in zip(inputs, held)
    ]
    words = [
        own
        and [
            _kernels.word(s, given, n, x.dtype, _plan.known_dtypes(s.op, t))
            for n, x in zip(called, own)
        ]
        for t, own, called in zip(inputs, held, names)
    ]
    _updates.check_lists(where, inputs, [own and [x.shape for x in own] for own in held], words)
    first = held[0]
    if not first:
        return None
    device = first[0].device
    for own, called in zip(held, names):
        for name, x in zip(called, own or ()):
            if x.device != device:
                raise ValueError(f"{where}: {name} is on {x.device}, the others on {device}")
    values = [*s.call.integers, *s.call.scalars, *s.op.scalars[given.activation]]
    for value, scalar in zip(values, [*given.integers, *given.scalars]):
        _plan.check_value(where, value, scalar)
    of_first = [own[0] if own else None for own in words]
    return _updates.function_of_lists(s.op, given.activation, where, of_first)


def _held(
    s: Schema, where: str, inputs: Sequence[Argument], tensors: Sequence[Any], names: Sequence[str]
) -> list[Tensor]:
    """Returns tensors of one shape with their elements in one order: overwritten ones as they are,
    copies of others if their order differs.
    """
    written = [x for t, x in zip(inputs, tensors) if t.role == "inout"]
    first = [*written, *tensors][0]
    known = FORMATS.get(first.dim(), (torch.contiguous_format,))
    formats = known if s.call.lists or s.op.is_flat else known[:1]
    order = next((f for f in formats if first.is_contiguous(memory_format=f)), formats[0])
    for t, x, name in zip(inputs, tensors, names):
        if t.role == "inout" and not x.is_contiguous(memory_format=order):
            raise ValueError(
                f"{where}: {name} has the strides {x.stride()} and is overwritten, expected "
                f"contiguous memory, in one order for all"
            )
    return [x.contiguous(memory_format=order) for x in tensors]


def _packed(
    s: Schema, where: str, given: Given
) -> tuple[list[int | None], list[int], torch.device, Any]:
    """Returns tensors, sizes and device of a call of lists, and what keeps the memory alive."""
    inputs, held = s.call.inputs, _given(s, where, given)
    there = [t for t, own in zip(inputs, held) if t.list and own is not None]
    lists = [own for t, own in zip(inputs, held) if t.list and own is not None]
    rows = [
        _held(s, where, there, own, [f"{t.name}[{i}]" for t in there])
        for i, own in enumerate(zip(*lists))
    ]
    columns = iter(zip(*rows))
    addresses = [
        own and [x.data_ptr() for x in (next(columns) if t.list else own)]
        for t, own in zip(inputs, held)
    ]
    lengths = [own[0].numel() for own in rows]
    tensors, sizes, kept = _updates.packed(inputs, addresses, lengths)
    return tensors, sizes, rows[0][0].device, (rows, held, kept)


def kernel(s: Schema) -> Callable[..., None]:
    """Makes the kernel for CPU and CUDA tensors."""

    def run(*args: Any) -> None:
        given = s.sort(args)
        where = _kernels.where(s, given)
        held: Any  # memory that the launch reads
        if s.call.lists:
            function = _function(s, given)
            if function is None:
                return
            made = _plan.Plan(function, _NO_LAYOUT, (), (), ())
            tensors, sizes, device, held = _packed(s, where, given)
        else:
            made = _kernels.plan(s, given, symbolic=False)
            there = [(t, x) for t, x in zip(s.call.inputs, given.tensors) if x is not None]
            inputs, present = [t for t, _ in there], [x for _, x in there]
            own = _held(s, where, inputs, present, [t.name for t in inputs])
            pointers = iter([x.data_ptr() for x in own])
            tensors = [x if x is None else next(pointers) for x in given.tensors]
            sizes, device, held = [*made.sizes], own[0].device, [own]
        try:
            _kernels.LAUNCH[device.type](
                s, made, tensors, [*sizes, *given.integers], None, given.scalars, None, device
            )
        except _library.Refused as e:
            raise e.by(where) from None
        del held

    return run


_NO_LAYOUT: Layout = None  # type: ignore[assignment]


def _check_tensors(where: str, name: str, value: Any, is_list: bool) -> None:
    for x in _updates.listed(where, name, value) if is_list else [value]:
        if not isinstance(x, Tensor):
            verb = "has" if is_list else "is"
            raise TypeError(f"{where}: {name} {verb} {type(x).__name__}, expected a tensor")


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
    nullable = {t.name for t in op.forward.inputs if t.nullable}
    numbers = [v.name for v in (*op.forward.scalars, *op.scalars[activation])]
    caches = _caches.of(op.forward)
    more = [0.0] * (op.act_scalars - len(op.scalars[activation]))
    more += [op.numbers[activation]] if op.has_act else []

    def function(*args: Any, **kwargs: Any) -> None:
        given = {**defaults, **dict(zip(placed, args)), **kwargs}
        if len(args) > len(placed) or len(given) != len(parameters) or set(given) - set(parameters):
            try:
                _arguments.signature(op, activation).bind(*args, **kwargs)
            except TypeError as e:
                raise TypeError(f"{where}: {e}") from None
        for name in tensors:
            if name in nullable and given[name] is None:
                given[name] = [] if name in lists else None
                continue
            _check_tensors(where, name, given[name], name in lists)
        for name in numbers:
            if isinstance(given[name], (bool, Tensor)) or not hasattr(given[name], "__float__"):
                raise TypeError(
                    f"{where}: {name} is {type(given[name]).__name__}, expected a number"
                )
        check_gradients(s, where, [given[name] for name in tensors])
        if caches and not torch.compiler.is_compiling():
            _caches.check_values(where, op.forward, given, _public.values, {})
        forward(
            *[list(given[name]) if name in lists else given[name] for name in tensors],
            *[given[v.name] for v in op.forward.integers],
            *[given[name] for name in numbers],
            *more,
        )

    return function
