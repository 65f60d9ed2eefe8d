# SPDX-License-Identifier: Apache-2.0
"""Ops that overwrite inputs, over NumPy arrays or lists of them."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_fusion import _library, _numpy, _plan
from kernel_fusion._arguments import Arguments
from kernel_fusion._table import Op, Tensor


def listed(where: str, name: str, value: Any) -> Sequence[Any]:
    """Checks that an argument is a list."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected a list of tensors")
    return value


def check_lists(
    where: str, inputs: Sequence[Tensor], shapes: Sequence[Sequence[Any]], words: Sequence[Any]
) -> None:
    """Checks that all lists have tensors of the same shapes, and each list one dtype.

    Args:
        shapes: of the tensors of each list.
        words: their dtypes.
    """
    for t, own, dtypes in zip(inputs, shapes, words):
        if len(own) != len(shapes[0]):
            raise ValueError(
                f"{where}: {t.name} has {len(own)} tensors, expected {len(shapes[0])} beside "
                f"{inputs[0].name}"
            )
        for i, (shape, first) in enumerate(zip(own, shapes[0])):
            if tuple(shape) != tuple(first):
                raise ValueError(
                    f"{where}: {t.name}[{i}] has the shape {tuple(shape)}, expected {tuple(first)} "
                    f"beside {inputs[0].name}[{i}] of that shape"
                )
        for i, dtype in enumerate(dtypes):
            if dtype != dtypes[0]:
                raise TypeError(
                    f"{where}: {t.name}[{i}] has the dtype {dtype}, expected {dtypes[0]} beside "
                    f"{t.name}[0]"
                )


def function_of_lists(op: Op, activation: str, where: str, words: Sequence[str]) -> str:
    """Returns the C function for lists of these dtypes.

    Args:
        words: kf's name of the dtype of each list.
    """
    call = op.forward
    given = [((), word) for word in words]
    variables = _plan.variables_of(op, activation, call, where, given, None)
    for t, word in zip(call.inputs, words):
        wanted = variables.get(t.var, t.var)
        if word != wanted:
            raise TypeError(
                f"{where}: {t.name} has the dtype {word}, expected {wanted} beside "
                f"{call.template.name} of {variables['T']}"
            )
    return op.function(activation, _plan.words_of(op, variables), False)


def packed(
    addresses: Sequence[Sequence[int]], lengths: Sequence[int]
) -> tuple[list[int | None], list[int], Any]:
    """Returns the tensors and sizes of a packed call of lists, and what keeps them alive."""
    count = len(lengths)
    arrays: list[Any] = [(ctypes.c_void_p * count)(*own) for own in addresses]
    arrays.append((ctypes.c_int64 * count)(*lengths))
    return [ctypes.addressof(a) for a in arrays], [count], arrays


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


def call(op: Op, activation: str, arguments: Arguments) -> None:
    """Runs the op."""
    where, forward = arguments.where, op.forward
    if forward.lists:
        held = [
            [
                _array(where, t, f"{t.name}[{i}]", x)
                for i, x in enumerate(listed(where, t.name, own))
            ]
            for t, own in zip(forward.inputs, arguments.tensors)
        ]
        words = [[_numpy.word_of(x.dtype) for x in own] for own in held]
        check_lists(where, forward.inputs, [[x.shape for x in own] for own in held], words)
        if not held[0]:
            return
        function = function_of_lists(op, activation, where, [own[0] for own in words])
        tensors, sizes, kept = packed(
            [[x.ctypes.data for x in own] for own in held], [x.size for x in held[0]]
        )
    else:
        kept = [
            _array(where, t, t.name, value) for t, value in zip(forward.inputs, arguments.tensors)
        ]
        given = tuple((x.shape, _numpy.word_of(x.dtype)) for x in kept)
        plan = _plan.cached(op, activation, False, given, arguments.axis, arguments.groups)
        function, sizes = plan.function, [*plan.sizes]
        tensors = [x.ctypes.data for x in kept]
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
