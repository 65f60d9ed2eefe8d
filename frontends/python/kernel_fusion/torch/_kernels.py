# SPDX-License-Identifier: Apache-2.0
"""Kernels of the torch.library ops: through ctypes on the CPU, shapes and dtypes for
fake tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _counts, _library, _plan, _strides
from kernel_fusion._arguments import PROBABILITY
from kernel_fusion.torch import _shim
from kernel_fusion.torch._schema import Given, Schema, wanted

WORDS = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "u8",
}
DTYPES = {word: dtype for dtype, word in WORDS.items() if dtype is not torch.bool}
# {type in a schema: (attribute of such values, name in messages)}
NUMBERS = {"float": ("__float__", "a number"), "int": ("__index__", "a whole number")}
Result = Tensor | tuple[Tensor, ...]


def where(s: Schema, given: Given) -> str:
    return f"{s.op.display_name(given.activation)}{' (backward)' if s.backward else ''}"


def word(s: Schema, given: Given, name: str, dtype: torch.dtype, expected: str) -> str:
    """kf's name of a tensor's dtype.

    Args:
        expected: dtypes that an error lists.
    """
    if dtype not in WORDS:
        own = str(dtype).removeprefix("torch.")
        raise TypeError(
            f"{where(s, given)}: {name} has the dtype {own}, expected one of {expected}"
        )
    return WORDS[dtype]


def check(s: Schema, given: Given) -> None:
    """Checks devices and scalars."""
    first = next(t for t in given.tensors if t is not None)
    for t, x in zip(s.call.inputs, given.tensors):
        if x is not None and x.device != first.device:
            raise ValueError(
                f"{where(s, given)}: {t.name} is on {x.device}, the others on {first.device}"
            )
    rng = given.rng
    if rng is not None and (
        rng.dtype != torch.int64 or tuple(rng.shape) != (2,) or rng.device != first.device
    ):
        raise ValueError(
            f"{where(s, given)}: rng is {rng.dtype} with shape {tuple(rng.shape)} on "
            f"{rng.device}, expected two int64 on "
            f"{first.device}"
        )
    values = [
        *s.call.scalars,
        *s.op.scalars[given.activation],
        *([PROBABILITY] if s.op.dropout else []),
    ]
    for value, scalar in zip(values, given.scalars):
        _plan.check_value(where(s, given), value, scalar)
    _plan.check_between(where(s, given), values, given.scalars)
    for value, n in zip(s.call.integers, given.integers):
        if value.least is not None or value.most is not None:  # no guards on symbols without bounds
            _plan.check_value(where(s, given), value, n)


def plan(s: Schema, given: Given, symbolic: bool) -> _plan.Plan:
    check(s, given)
    tensors = tuple(
        None
        if x is None
        else (x.shape, word(s, given, t.name, x.dtype, _plan.known_dtypes(s.op, t)))
        for t, x in zip(s.call.inputs, given.tensors)
    )
    asked = None
    if given.dtype is not None:
        results = ", ".join(sorted({types[s.op.asked] for types in s.op.types}))
        asked = word(s, given, "the result", given.dtype, results)
    make = _plan.plan if symbolic else _plan.cached
    integers = tuple(given.integers) if s.call.reads_integers else ()
    return make(
        s.op,
        given.activation,
        s.backward,
        tensors,
        given.axis,
        given.groups,
        asked,
        integers,
        given.last,
    )


def argument_error(s: Schema, where: str, args: Sequence[Any]) -> TypeError | None:
    """Returns an error for the first argument of the wrong type, or None.

    Args:
        args: the op's arguments, or its first ones.
    """
    for (kind, name), value in zip(s.arguments, args):
        if kind == "Tensor" and value is None:
            return TypeError(f"{where}: {name} is missing")
        if kind in ("Tensor", "Tensor?") and not isinstance(value, (Tensor, type(None))):
            return TypeError(f"{where}: {name} is {type(value).__name__}, expected a tensor")
        if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
            found = "nested" if value.is_nested else "sparse"
            return TypeError(f"{where}: {name} is a {found} tensor, expected a dense one")
        if kind in NUMBERS and (isinstance(value, bool) or not hasattr(value, NUMBERS[kind][0])):
            act, _, number = name.partition("_")
            name = (
                s.op.scalars[s.op.numbered[args[s.at["activation"]]]][int(number)].name
                if act == "act"
                else name
            )
            return TypeError(
                f"{where}: {name} is {type(value).__name__}, expected {NUMBERS[kind][1]}"
            )
    return None


def explain(s: Schema, error: Exception, args: Sequence[Any]) -> BaseException:
    """Returns the error Python's checks find for a call that the shim refused.

    The shim can raise only one kind of exception, besides PyTorch's out-of-memory error.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return error
    try:
        given = s.sort(args)
        if found := argument_error(s, where(s, given), args):
            return found
        made = plan(s, given, symbolic=False)
        device = next(t for t in given.tensors if t is not None).device
        # None for a device without kernels.
        reason = REASON.get(device.type)
        return reason and isinstance(error, RuntimeError) and reason(s, given, made, error) or error
    except (TypeError, ValueError) as e:
        return e


def _outputs(s: Schema, given: Given, made: _plan.Plan) -> list[Tensor]:
    """Allocates outputs; an unwanted one has no elements, since an op always returns all."""
    first = next(t for t in given.tensors if t is not None)
    return [
        torch.empty(
            shape if wanted(s.call, given, i) else (0,), dtype=DTYPES[dtype], device=first.device
        )
        for i, (shape, dtype) in enumerate(zip(made.shapes, made.dtypes))
    ]


def _result(found: Sequence[Tensor]) -> Result:
    return found[0] if len(found) == 1 else tuple(found)


def fake(s: Schema) -> Callable[..., Result]:
    """Makes the fake kernel of torch.library."""

    def run(*args: Any) -> Result:
        given = s.sort(args)
        return _result(_outputs(s, given, plan(s, given, symbolic=True)))

    return run


# Calls a launcher: schema and plan; addresses, sizes and integers, strides, scalars, rng; device.
Launch = Callable[
    [
        Schema,
        _plan.Plan,
        list[int | None],
        list[int],
        list[int] | None,
        Sequence[float],
        Tensor | None,
        torch.device,
    ],
    None,
]


def _cpu(
    s: Schema,
    made: _plan.Plan,
    addresses: list[int | None],
    sizes: list[int],
    strides: list[int] | None,
    scalars: Sequence[float],
    rng: Tensor | None,
    _: torch.device,
) -> None:
    """Calls a CPU launcher through ctypes."""
    _library.of(s.op).call(
        made.function,
        addresses,
        sizes,
        strides,
        scalars,
        None if rng is None else rng.data_ptr(),
        s.call.workspace,
    )


LAUNCH: dict[str, Launch] = {"cpu": _cpu}  # launchers by device type


def _lacks(s: Schema, given: Given, made: _plan.Plan, error: Exception) -> BaseException | None:
    known = _shim.failed.take(error)
    if known is not None:
        return known
    # The launcher refused an argument, for arrays a ValueError. Subclasses are errors of PyTorch.
    return ValueError(str(error)) if type(error) is RuntimeError else None


# Explains why the shim refused a valid call, by device type; None keeps the shim's own text.
REASON: dict[str, Callable[[Schema, Given, _plan.Plan, Exception], BaseException | None]] = {
    "cpu": _lacks
}


def kernel(s: Schema) -> Callable[..., Result]:
    def run(*args: Any) -> Result:
        given = s.sort(args)
        made = plan(s, given, symbolic=False)
        wide = _plan.summed(s.op, s.call, given.activation, s.backward, made)
        outputs = _outputs(s, given, wide)
        if any(wanted(s.call, given, i) for i in range(len(outputs))):
            call(s, given, wide, outputs)
        return _result([x.to(DTYPES[dtype]) for x, dtype in zip(outputs, made.dtypes)])

    return run


def call(
    s: Schema,
    given: Given,
    made: _plan.Plan,
    outputs: Sequence[Tensor],
    of_outputs: Mapping[str, tuple[int, ...]] | None = None,
    beta: float = 0.0,
) -> None:
    """Calls the launcher.

    Args:
        of_outputs: strides of outputs that are not contiguous.
        beta: factor of the old values in accumulated outputs.
    """
    held, strides = _inputs(s, given, made)
    strides |= of_outputs or {}
    addresses: list[int | None] = [None if x is None else x.data_ptr() for x in held]
    addresses += [x.data_ptr() if wanted(s.call, given, i) else None for i, x in enumerate(outputs)]
    device = outputs[0].device
    try:
        LAUNCH[device.type](
            s,
            made,
            addresses,
            [*made.sizes, *given.integers],
            _strides.struct(s.call, strides),
            s.call.values(given.scalars, s.op.dropout, beta),
            None if given.rng is None else given.rng.contiguous(),
            device,
        )
    except _library.Refused as e:
        raise e.by(where(s, given)) from None


def _inputs(
    s: Schema, given: Given, made: _plan.Plan
) -> tuple[list[Tensor | None], dict[str, tuple[int, ...]]]:
    """Returns the launcher's inputs, None where it reads nothing, and the non-zero strides."""
    held: list[Tensor | None] = []
    found: dict[str, tuple[int, ...]] = {}
    for t, x in zip(s.call.inputs, given.tensors):
        if x is None or given.activation in t.unread:
            held.append(None)
            continue
        strides = _strides.of(t, made.layout, x.shape, x.stride())
        if strides is None:
            _counts.copied(s.op.name)
            x = x.contiguous()
        elif any(strides):
            found[t.name] = strides
        held.append(x)
    return held, found
