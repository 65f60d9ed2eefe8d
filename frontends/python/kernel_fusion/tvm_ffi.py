# SPDX-License-Identifier: Apache-2.0
"""kf's functions as global functions of tvm_ffi (the package apache-tvm-ffi).

    from kernel_fusion import tvm_ffi as fused
    fused.register(["layer_norm_gelu"], dtypes=["float32"])
    norm = tvm_ffi.get_global_func("kf.layer_norm_gelu_f32")
    norm(x, weight, bias, out, None, None, 1e-5)

Any library with DLPack calls them, in any language that tvm_ffi has; nothing of a call is Python.
A function runs on the CPU, or on tvm_ffi's current stream of the tensors' GPU. It is compiled at
its first call.
"""

import ctypes
import functools
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kernel_fusion import _arguments, _cxx_library, _described, _plan, _resolver, _table
from kernel_fusion._described import Call
from kernel_fusion._table import Op

try:
    import tvm_ffi as _tvm_ffi
    from tvm_ffi import libinfo
except ImportError as e:
    raise ImportError("kernel_fusion.tvm_ffi needs tvm_ffi: pip install apache-tvm-ffi") from e

__all__ = ["arguments", "get", "register"]
PREFIX = "kf."
FILE = pathlib.Path(__file__).resolve().parent / "native/tvm_ffi.cpp"
FLOATS = ("float32", "float16", "bfloat16", "float64")
_lock = threading.Lock()
_registered: dict[str, list[str]] = {}  # {name without PREFIX: its arguments}


@functools.cache
def _library() -> Any:
    """The library that registers functions, compiled at its first use."""
    found = _cxx_library.find(
        _cxx_library.Source(
            "tvm_ffi",
            FILE,
            _tvm_ffi.__version__,
            ["-std=c++17", *(f"-I{folder}" for folder in libinfo.include_paths())],
            [libinfo.find_libtvm_ffi()],
        )
    )
    dll = ctypes.CDLL(str(found))
    dll.kf_tvm_set_resolver(_resolver.CALLBACK)
    dll.kf_tvm_register.argtypes = [ctypes.c_char_p] * 3
    return dll


def _call(op: Op, activation: str, backward: bool) -> Call:
    """A call of which each tensor, integer and scalar is an argument."""
    direction = op.direction(backward)
    values = [*direction.scalars, *op.scalars[activation]]
    return Call(
        op.name,
        activation,
        backward,
        (True,) * len(direction.inputs),
        (True,) * len(direction.outputs),
        tuple(0 for _ in direction.integers),
        tuple(0.0 for _ in values) + (0.0,) * op.dropout,
        -1 if op.axis is None else op.axis,
    )


def _names(op: Op, activation: str, backward: bool) -> tuple[list[str], list[str]]:
    """Returns the names of integers and of scalars, in the order of arguments."""
    direction = op.direction(backward)
    scalars = [v.name for v in (*direction.scalars, *op.scalars[activation])]
    return ([v.name for v in direction.integers], [*scalars, *direction.betas, *["p"] * op.dropout])


def _describe(op: Op, activation: str, backward: bool) -> list[str]:
    """Returns the names of a function's arguments."""
    direction = op.direction(backward)
    integers, scalars = _names(op, activation, backward)
    return [
        *(t.name for t in (*direction.inputs, *direction.outputs)),
        *integers,
        *["dim"] * op.has_axis,
        *["groups"] * op.has_groups,
        *scalars,
        *(["seed", "offset"] if op.dropout else []),
    ]


def _variables(op: Op, types: Mapping[str, str]) -> dict[str, str]:
    """Returns the dtype of each type variable, of which a forward may lack its backward's."""
    own = types["T"]
    return {"acc": _table.WIDE[own]} | {v: types.get(v, own) for v in op.variables}


def _add(op: Op, activation: str, variables: Mapping[str, str], backward: bool) -> str:
    """Registers a function and returns its name."""
    call = _call(op, activation, backward)
    function = _described.function_of(call, variables)
    name = function.removeprefix("kf_")
    if name not in _registered:
        _described.add(op)
        integers, scalars = _names(op, activation, backward)
        words = [int(op.has_axis), int(op.has_groups), len(integers), *integers]
        words += [len(scalars), *scalars]
        text = _described.text_of(call, variables).encode()
        status = _library().kf_tvm_register(
            f"{PREFIX}{name}".encode(), text, " ".join(map(str, words)).encode()
        )
        if status:
            raise RuntimeError(f"kf.tvm_ffi: tvm_ffi refuses the name {PREFIX}{name}")
        _registered[name] = _describe(op, activation, backward)
    return f"{PREFIX}{name}"


def register(names: Sequence[str] | None = None, dtypes: Sequence[Any] = FLOATS) -> list[str]:
    """Registers functions, in both directions, as global functions of tvm_ffi.

    Args:
        names: functions of kf.ops; None registers all
        dtypes: dtypes of the tensors; weights have the same or float32

    Returns:
        Names of the global functions, such as kf.layer_norm_gelu_bwd_f32.

    Raises:
        ValueError: there is no such function.
        TypeError: a dtype is none of kf's.
        RuntimeError: there is no C++ compiler, or it failed.
    """
    words = [_arguments.dtype_word("kf.tvm_ffi.register", dtype) for dtype in dtypes]
    found = []
    with _lock:
        for op, activation in (
            _table.functions().values() if names is None else map(_table.find, names)
        ):
            if op.forward.updates:
                continue
            for variables in (_variables(op, types) for types in op.types):
                for backward in (False, True):
                    named = _plan.words_of(op, variables)
                    if variables["T"] in words and op.exists(activation, named, backward):
                        found.append(_add(op, activation, variables, backward))
    return found


def get(name: str) -> Any:
    """Returns a registered function; `name` is that of the C function without kf_.

    Raises:
        ValueError: it is not registered.
    """
    return _tvm_ffi.get_global_func(f"{PREFIX}{_known(name)}")


def arguments(name: str) -> list[str]:
    """Returns the names of a registered function's arguments: tensors (None: absent, or a result
    that is not computed), integers, dim, groups, scalars, seed and offset.

    Raises:
        ValueError: it is not registered.
    """
    return list(_registered[_known(name)])


def _known(name: str) -> str:
    own = name.removeprefix(PREFIX)
    if own not in _registered:
        raise ValueError(f"kf.tvm_ffi: {own} is not registered: call kf.tvm_ffi.register first")
    return own
