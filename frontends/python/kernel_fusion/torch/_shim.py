# SPDX-License-Identifier: Apache-2.0
"""Native kernels of the ops (native/torch_shim.cpp), which avoid Python's overhead.

The package holds the shim compiled, or the first import for PyTorch compiles it (_shim_library.py).
Without a C++ compiler, or with KF_TORCH_SHIM=0, ctypes is used instead (_kernels.py).
"""

import ctypes
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import torch
from kfgen.model import names

from kernel_fusion import _counts, _gpu, _layout, _library, _plan, _shim_library
from kernel_fusion._table import Op, Tensor, Value
from kernel_fusion.torch._schema import Schema

TYPES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8", "bool")  # order of the shim's enum
# Indices of type variables: T, one further, and that of sums.
T, FURTHER, ACC = 8, 9, 10
USES = {"saved": 1, "gradient": 2}
LIBTORCH = pathlib.Path(torch.__file__).parent / "lib"
OPEN = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_int] * 3)
# Members of kfs_library.
LIBRARY = ("kfp_run", "kfp_run_on", "kfp_space", "kfp_error", "kfp_detail", "kfp_reason")
SHAPING = 5  # SHAPING of torch_call.h
INT, LONG, DOUBLE, TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", TEXT),
        ("unread", ctypes.POINTER(ctypes.c_uint8)),
        *[(n, INT) for n in ("var", "optional", "absent", "use", "place")],
        ("layout", _layout.TensorOf),
    ]


class _Op(ctypes.Structure):
    _fields_ = [
        ("name", TEXT),
        ("tensors", ctypes.POINTER(_Tensor)),
        ("functions", ctypes.POINTER(INT) * 2),
        ("libraries", ctypes.c_void_p * 2),
        ("activations", ctypes.POINTER(LONG)),
        ("act_scalars", ctypes.POINTER(INT)),
        ("bounds", ctypes.POINTER(DOUBLE)),
        ("copies", LONG),
        ("rules", _layout.RulesOf * 2),
        *[
            (n, INT)
            for n in (
                "inputs",
                "outputs",
                "integers",
                "scalars",
                "acts",
                "dropout",
                "has_axis",
                "axis",
                "has_groups",
                "has_last",
                "has_act",
                "saves",
                "backward",
                "number_of_activations",
                "basis",
                "workspace",
                "bound_count",
                "shaping_count",
            )
        ],
        ("shaping", INT * SHAPING),
        ("betas", INT),
    ]


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * max(len(values), 1))(*values)


def _bounds(values: Sequence[Value], count: int) -> list[float]:
    found = [
        x
        for v in values
        for x in (
            -float("inf") if v.least is None else v.least,
            float("inf") if v.most is None else v.most,
        )
    ]
    return found + [0.0] * (2 * count - len(found))


def _tensor(s: Schema, t: Tensor, codes: list[int]) -> _Tensor:
    inputs = [x.name for x in s.call.inputs]
    return _Tensor(
        t.name.encode(),
        _array(ctypes.c_uint8, [a in t.unread for a in s.op.activations]),
        _variable(s.op, t.var),
        t.nullable or bool(t.unread),
        t.nullable,
        3 if t.place_of else USES.get(t.use, 0) if t.role != "in" else 0,
        inputs.index(t.place_of) if t.place_of else 0,
        _layout.tensor(
            t.extents,
            list(s.op.rules.sizes),
            [v.name for v in s.call.integers],
            codes,
            len(t.strides),
            s.call.strides.index(t.strides[0]) if t.strides else 0,
        ),
    )


def _variable(op: Op, name: str) -> int:
    """Index of a type variable, or of a dtype."""
    if name in op.further:
        return FURTHER
    return {"T": T, "acc": ACC}[name] if name in ("T", "acc") else TYPES.index(name)


def _words(op: Op, t: str, u: str) -> tuple[str, ...]:
    """Dtypes in the name of a function, from those of T and of the further variable."""
    found: tuple[str, ...] = names.words({"T": t, **dict.fromkeys(op.further, u)})
    return found


def _entry(s: Schema) -> _Op:
    op, call = s.op, s.call
    probability = [Value("p", None, 0, 1)] if op.dropout else []
    values = [[*call.scalars, *op.scalars[a], *probability] for a in op.activations]
    most = max(len(v) for v in values)
    codes: list[int] = []
    tensors = [_tensor(s, t, codes) for t in (*call.inputs, *call.outputs)]
    shaping = [call.inputs.index(t) for t in call.shaping]
    integers = [v.name for v in call.integers]
    both = (op.rules, op.channels_last or op.rules)
    rules = [_layout.rules(r, codes, integers, op.beside) for r in both]
    made = _Op(
        s.name.encode(),
        _array(_Tensor, tensors),
        *_tables(s),
        _array(LONG, [op.numbers[a] for a in op.activations]),
        _array(INT, [len(op.scalars[a]) for a in op.activations]),
        _array(DOUBLE, [x for v in values for x in _bounds(v, most)]),
        0,
        (_layout.RulesOf * 2)(*rules),
        len(call.inputs),
        len(call.outputs),
        len(call.integers),
        len(call.scalars),
        op.act_scalars,
        op.dropout,
        op.has_axis,
        -1 if op.axis is None else op.axis,
        op.has_groups,
        op.channels_last is not None,
        op.has_act,
        s.saves,
        s.backward,
        len(op.activations),
        call.inputs.index(call.template),
        call.workspace,
        most,
        len(shaping),
        (INT * SHAPING)(*shaping),
        len(call.betas),
    )
    return made


def covers(s: Schema) -> bool:
    """True unless the result's dtype is an argument, tensors have more than two dtypes, inputs are
    overwritten, or results are summed in a wider dtype than theirs (_plan.summed).
    """
    summed = not s.backward and bool(_plan.of_sums(s.op, s.call))
    return not s.op.asked and len(s.op.further) <= 1 and not s.call.updates and not summed


def _tables(s: Schema) -> tuple[Any, Any]:
    """Returns (function indices, libraries) for CPU and GPU, which first calls fill."""
    size = len(s.op.activations) * len(TYPES) ** 2
    libraries = [(ctypes.c_void_p * size)() for _ in range(2)]
    indices: list[Any] = [(INT * size)() for _ in range(2)]
    functions = (ctypes.POINTER(INT) * 2)(*indices)
    _alive.extend((libraries, functions))
    return functions, (ctypes.c_void_p * 2)(*map(ctypes.addressof, libraries))


_table: Any = None
_dll: Any = None
_schemas: list[Schema] = []  # ops of the table
# Objects that C code calls and reads.
_alive: list[Any] = []


def _functions_of(library: Any) -> Any:
    """Returns a library's functions in the order of kfs_library."""
    found = (ctypes.c_void_p * len(LIBRARY))(*[library.address(name) for name in LIBRARY])
    _alive.append((library, found))
    return found


def _refuse_missing(missing: bytes | None) -> None:
    if missing:
        raise OSError(f"this torch lacks {missing.decode()}")


def was_reported(error: BaseException | None, reported: Exception) -> bool:
    """True if the shim reported the error, whose text it may have truncated."""
    return error is not None and _gpu.describe(error)[:200] in str(reported)


class _Failed(threading.local):
    """Why this thread's last call had no function."""

    error: BaseException | None = None
    text: Any = None

    def take(self, reported: Exception) -> BaseException | None:
        """Returns and clears the error if the shim reported it; it may belong to an
        earlier call.
        """
        error, self.error = self.error, None
        return error if was_reported(error, reported) else None


failed = _Failed()


def _open(number: int, on_gpu: int, at: int) -> int | None:
    """Callback of the shim before the first call of a function.

    Args:
        at: activation and dtypes, as one index of kfs_op's arrays.

    Returns:
        None, or the address of an error text.
    """
    s = _schemas[number]
    # C code between here and the caller cannot propagate an exception, KeyboardInterrupt included.
    try:
        activation, dtypes = divmod(at, len(TYPES) ** 2)
        first, second = divmod(dtypes, len(TYPES))
        words = _words(s.op, TYPES[first], TYPES[second])
        function = s.op.function(s.op.activations[activation], words, s.backward)
        functions = _library.of(s.op)
        library = (functions.on_gpu if on_gpu else functions).library_of(function)
        entry = _table[number]
        entry.functions[on_gpu][at] = library.find(function)
        size = len(s.op.activations) * len(TYPES) ** 2
        libraries = (ctypes.c_void_p * size).from_address(entry.libraries[on_gpu])
        # Assigned last: another thread calls what it finds.
        libraries[at] = ctypes.addressof(_functions_of(library))
        return None
    except BaseException as e:
        failed.error, failed.text = e, ctypes.create_string_buffer(_gpu.describe(e).encode())
        return ctypes.addressof(failed.text)


def register(schemas: Sequence[Schema]) -> None:
    """Registers the shim's CPU kernels.

    Raises:
        OSError: the shim cannot be used.
    """
    global _table, _dll
    if os.environ.get("KF_TORCH_SHIM") == "0":
        raise OSError("KF_TORCH_SHIM is 0")
    dll = ctypes.CDLL(str(_shim_library.find()))
    pointer = ctypes.c_void_p
    dll.kfs_register.argtypes, dll.kfs_register.restype = (
        [TEXT, pointer, ctypes.c_int, OPEN],
        TEXT,
    )
    dll.kfs_implement.restype = TEXT
    dll.kfs_register_gpu.argtypes, dll.kfs_register_gpu.restype = (
        [TEXT, TEXT, TEXT, ctypes.c_int],
        TEXT,
    )
    table = (_Op * dll.kfs_room())()
    for i, s in enumerate(schemas):
        table[i] = _entry(s)
    callback = OPEN(_open)
    _alive.append(callback)
    path = str(LIBTORCH / "libtorch_cpu.so").encode()
    _refuse_missing(dll.kfs_register(path, table, len(schemas), callback))
    _schemas.extend(schemas)
    _table, _dll = table, dll
    _counts.sources.append(
        lambda: [(s.op.name, entry.copies) for s, entry in zip(_schemas, _table)]
    )


def register_own(schemas: Sequence[Schema], on_gpu: bool = False) -> None:
    """Registers kernels of user-made ops, on the CPU first, then on a GPU; requires `register`."""
    if _dll is None:
        raise OSError("the shim is not loaded")
    if len(_schemas) + len(schemas) > len(_table):
        raise OSError("the shim has no room for more ops")
    for s in schemas:
        if s not in _schemas:
            _table[len(_schemas)] = _entry(s)
            _schemas.append(s)
        _refuse_missing(_dll.kfs_implement(_schemas.index(s), on_gpu))


def register_gpu(
    schemas: Sequence[Schema],
    libtorch: pathlib.Path | None = None,
    key: str = "CUDA",
    device: str = "cuda",
) -> None:
    """Registers the shim's GPU kernels; requires `register`.

    The first call of a function opens its launchers, so that importing kf does not initialise a
    driver. The arguments other than `schemas` are for tests.
    """
    if _dll is None:
        raise OSError("the shim is not loaded")
    path = str(libtorch or LIBTORCH / "libtorch_cuda.so").encode()
    _refuse_missing(_dll.kfs_register_gpu(path, key.encode(), device.encode(), len(schemas)))
