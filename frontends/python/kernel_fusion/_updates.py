# SPDX-License-Identifier: Apache-2.0
"""Ops that overwrite inputs, over NumPy arrays or lists of them."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_fusion import _caches, _library, _numpy, _plan
from kernel_fusion._arguments import Arguments
from kernel_fusion._table import Op, Tensor


def listed(where: str, name: str, value: Any) -> Sequence[Any]:
    """Checks that an argument is a list."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected a list of tensors")
    return value


def check_lists(
    where: str,
    inputs: Sequence[Tensor],
    shapes: Sequence[Sequence[Any] | None],
    words: Sequence[Sequence[Any] | None],
) -> None:
    """Checks that all lists have tensors of the same shapes, each list one dtype, and that other
    tensors have one element.

    Args:
        shapes: of the tensors of each input; None for absent ones.
        words: their dtypes.
    """
    first = inputs[0].name
    of_first = shapes[0] or ()
    for t, own, dtypes in zip(inputs, shapes, words):
        if own is None or dtypes is None:
            continue
        if not t.list:
            if math.prod(own[0]) != 1:
                raise ValueError(
                    f"{where}: {t.name} has the shape {tuple(own[0])}, expected one element"
                )
            continue
        if len(own) != len(of_first):
            raise ValueError(
                f"{where}: {t.name} has {len(own)} tensors, expected {len(of_first)} beside {first}"
            )
        for i, (shape, other) in enumerate(zip(own, of_first)):
            if tuple(shape) != tuple(other):
                raise ValueError(
                    f"{where}: {t.name}[{i}] has the shape {tuple(shape)}, expected {tuple(other)} "
                    f"beside {first}[{i}] of that shape"
                )
        for i, dtype in enumerate(dtypes):
            if dtype != dtypes[0]:
                raise TypeError(
                    f"{where}: {t.name}[{i}] has the dtype {dtype}, expected {dtypes[0]} beside "
                    f"{t.name}[0]"
                )


def function_of_lists(op: Op, activation: str, where: str, words: Sequence[str | None]) -> str:
    """Returns the C function for inputs of these dtypes.

    Args:
        words: kf's name of the dtype of each input; None for absent ones.
    """
    call = op.forward
    given = [None if word is None else ((), word) for word in words]
    variables = _plan.variables_of(op, activation, call, where, given, None)
    for t, word in zip(call.inputs, words):
        wanted = variables.get(t.var, t.var)
        if word not in (None, wanted):
            raise TypeError(
                f"{where}: {t.name} has the dtype {word}, expected {wanted} beside "
                f"{call.template.name} of {variables['T']}"
            )
    return op.function(activation, _plan.words_of(op, variables), False)


def packed(
    inputs: Sequence[Tensor], addresses: Sequence[Sequence[int] | None], lengths: Sequence[int]
) -> tuple[list[int | None], list[int], Any]:
    """Returns the tensors and sizes of a packed call of lists, and what keeps them alive.

    Args:
        addresses: of the tensors of each input; None for absent ones.
    """
    count, held, found = len(lengths), (ctypes.c_int64 * len(lengths))(*lengths), []
    arrays: list[Any] = [held]
    for t, own in zip(inputs, addresses):
        if own is None or not t.list:
            found.append(None if own is None else own[0])
            continue
        arrays.append((ctypes.c_void_p * count)(*own))
        found.append(ctypes.addressof(arrays[-1]))
    return [*found, ctypes.addressof(held)], [count], arrays


def _array(where: str, t: Tensor, name: str, value: Any) -> Any:
    """Returns a contiguous array: the caller's own if it is overwritten."""
    x = _numpy.array(where, name, value)
    flags = x.flags
    if t.role == "inout" and not (flags.c_contiguous and flags.writeable and flags.aligned):
        raise ValueError(
            f"{where}: {name} is overwritten, expected contiguous, writable memory: "
            f"{_numpy.of_memory(x)}"
        )
    if t.role == "inout" or (flags.c_contiguous and flags.aligned):
        return x
    return np.array(x, order="C")


def _of_lists(
    op: Op, activation: str, arguments: Arguments
) -> tuple[str, list[int | None], list[int], Any]:
    """Returns the function of a call of lists, its tensors and sizes, and what keeps them alive."""
    where, inputs = arguments.where, op.forward.inputs
    held: list[list[Any] | None] = []
    for t, own in zip(inputs, arguments.tensors):
        if own is None and t.nullable:
            held.append(None)
        elif not t.list:
            held.append([_array(where, t, t.name, own)])
        else:
            given = enumerate(listed(where, t.name, own))
            held.append([_array(where, t, f"{t.name}[{i}]", x) for i, x in given])
    words = [own and [_numpy.word_of(x.dtype) for x in own] for own in held]
    check_lists(where, inputs, [own and [x.shape for x in own] for own in held], words)
    if not held[0]:
        return "", [], [0], None
    first = [own[0] if own else None for own in words]
    function = function_of_lists(op, activation, where, first)
    tensors, sizes, kept = packed(
        inputs, [own and [x.ctypes.data for x in own] for own in held], [x.size for x in held[0]]
    )
    return function, tensors, sizes, (held, kept)


def call(op: Op, activation: str, arguments: Arguments) -> None:
    """Runs the op."""
    where, forward = arguments.where, op.forward
    if forward.lists:
        function, tensors, sizes, kept = _of_lists(op, activation, arguments)
        if not sizes[0]:
            return
    else:
        kept = [
            None if value is None and t.nullable else _array(where, t, t.name, value)
            for t, value in zip(forward.inputs, arguments.tensors)
        ]
        given = tuple(x if x is None else (x.shape, _numpy.word_of(x.dtype)) for x in kept)
        plan = _plan.cached(op, activation, False, given, arguments.axis, arguments.groups)
        named = dict(zip((t.name for t in forward.inputs), kept))
        _caches.check_values(where, forward, named, lambda x: x, {})
        function, sizes = plan.function, [*plan.sizes]
        tensors = [x if x is None else x.ctypes.data for x in kept]
    try:
        _library.of(op).call(
            function,
            tensors,
            [*sizes, *arguments.integers],
            None,
            arguments.scalars,
            None,
            forward.workspace,
        )
    except _library.Refused as e:
        raise e.by(where) from None
    del kept
