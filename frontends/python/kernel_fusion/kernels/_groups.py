# SPDX-License-Identifier: Apache-2.0
"""The three groups of C launchers, made on first access."""

import ctypes
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from kernel_fusion import _dispatch, _library, _table
from kernel_fusion._table import Op


def _group(op: Op) -> str:
    if op.reduces:
        return "reduction"
    return "elementwise" if op.is_flat else "fusion"


@functools.cache
def _functions(group: str) -> dict[str, tuple[Op, str, tuple[str, ...], bool]]:
    found = {}
    for op in _table.ops().values():
        if _group(op) == group:
            for activation in op.activations:
                for dtypes in op.dtypes:
                    for backward in (False, True):
                        if not op.exists(activation, dtypes, backward):
                            continue
                        found[op.function(activation, dtypes, backward).removeprefix("kf_")] = (
                            op,
                            activation,
                            dtypes,
                            backward,
                        )
    return found


def _names(op: Op, activation: str, backward: bool) -> tuple[list[str], list[str]]:
    """Returns (tensors, other arguments) of a launcher."""
    call = op.direction(backward)
    scalars = [*(v.name for v in (*call.scalars, *op.scalars[activation])), *call.betas]
    rest = [
        *call.sizes,
        *(["strides"] if call.strides else []),
        *(v.name for v in call.integers),
        *scalars,
    ]
    return [t.name for t in (*call.inputs, *call.outputs)], rest + (
        ["p", "seed", "offset"] if op.dropout else []
    )


def _address(tensor: Any) -> int | None:
    if tensor is None or isinstance(tensor, int):
        return tensor
    at: int = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
    return at


def _make(
    name: str, op: Op, activation: str, dtypes: tuple[str, ...], backward: bool
) -> Callable[..., None]:
    function, call = op.function(activation, dtypes, backward), op.direction(backward)
    tensors, rest = _names(op, activation, backward)
    given, sizes = len(tensors), len(call.sizes)
    end = sizes + bool(call.strides) + len(call.integers)
    count, library, where = given + len(rest), _library.of(op), f"kf.kernels.{_group(op)}.{name}"

    def kernel(*args: Any) -> None:
        if len(args) != count:
            raise TypeError(
                f"{where} takes {count} arguments, {', '.join([*tensors, *rest])}; {len(args)} "
                f"are given"
            )
        more = args[given:]
        numbers, strides = more[:sizes], more[sizes] if call.strides else None
        scalars = more[end:-2] if op.dropout else more[end:]
        rng = (ctypes.c_uint64 * 2)(*more[-2:]) if op.dropout else None
        try:
            library.call(
                function,
                [_address(a) for a in args[:given]],
                [*numbers, *more[sizes + bool(call.strides) : end]],
                strides,
                scalars,
                None if rng is None else ctypes.addressof(rng),
                call.workspace,
            )
        except _library.Refused as e:
            raise e.by(where) from None

    kernel.__name__ = kernel.__qualname__ = name
    kernel.__module__ = f"kernel_fusion.kernels.{_group(op)}"
    kernel.__doc__ = (
        f"{'Gradient of ' if backward else ''}{op.brief}"
        f"{f', with act = {activation}' if op.has_act else ''}.\n\n"
        f"Calls the C launcher of {function}, without checks beyond the launcher's own.\n\n"
        f"Args:\n    {', '.join([*tensors, *rest])}"
    )
    kernel.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in (*tensors, *rest)]
    )
    return kernel


def _of_ops(name: str) -> Callable[..., Any] | None:
    """Returns the function of kf.ops; its fused_ alias, if any, has more spellings of arguments."""
    known = (f"fused_{name}", name, f"reduce_{name}")
    found = next((n for n in known if n in _table.aliases()), name)
    try:
        return _dispatch.lookup(found)
    except AttributeError:
        return None


class Group(types.ModuleType):
    """A group of launchers, made on first access."""

    def __init__(self, name: str, brief: str):
        super().__init__(f"kernel_fusion.kernels.{name}", brief)
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # copy and pickle ask for special names before _name exists.
        if name.startswith("_"):
            raise AttributeError(name)
        found = _functions(self._name).get(name)
        made = _of_ops(name) if found is None else _make(name, *found)
        if made is None:
            raise AttributeError(
                f"kf.kernels.{self._name} has no `{name}`; dir(kf.kernels.{self._name}) lists its "
                f"functions"
            )
        self.__dict__[name] = made
        return made

    def __dir__(self) -> list[str]:
        return sorted(_functions(self._name))
