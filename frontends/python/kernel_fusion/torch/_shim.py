# SPDX-License-Identifier: Apache-2.0
"""The ops' kernels without Python: native/torch_shim.cpp, compiled where it is used, at the first import, and kept by what it was made of. Without
a C++ compiler, or with KF_TORCH_SHIM=0, ctypes does the same (_kernels.py)."""

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

from kernel_fusion import _counts, _library
from kernel_fusion._info import cache
from kernel_fusion._table import Layout, Op, Tensor, Value, activations
from kernel_fusion.torch._schema import Schema

NATIVE = pathlib.Path(__file__).resolve().parents[1] / "native"
SOURCES = ("torch_shim.cpp", "torch_layout.h", "packed.h")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
TYPES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8", "bool")  # in the order of the shim's
VARS = {**{word: i for i, word in enumerate(TYPES)}, "T": 8, "U": 9, "acc": 10}
PARTS = {word: i for i, word in enumerate(("all", "before", "axis", "after", "all but three", "one", "groups", "between"))}
USES = {"saved": 1, "gradient": 2}
INT, LONG, DOUBLE, TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p


class _Tensor(ctypes.Structure):
    _fields_ = [("name", TEXT), ("unread", ctypes.POINTER(ctypes.c_uint8)), ("extents", INT), ("size", INT * 4), ("factor", INT * 4), ("var", INT),
                *[(n, INT) for n in ("optional", "absent", "levels", "field", "use", "place")]]


class _Op(ctypes.Structure):
    _fields_ = [("name", TEXT), ("tensors", ctypes.POINTER(_Tensor)), ("functions", ctypes.POINTER(INT)), ("activations", ctypes.POINTER(LONG)),
                ("act_scalars", ctypes.POINTER(INT)), ("bounds", ctypes.POINTER(DOUBLE)), ("copies", LONG),
                *[(n, INT) for n in ("inputs", "outputs", "integers", "scalars", "acts", "dropout", "has_axis", "axis", "has_groups", "has_act",
                                     "saves", "backward")],
                ("parts", INT * 8), ("sizes", INT), ("order", INT * 8),
                *[(n, INT) for n in ("number_of_activations", "basis", "half", "fields", "workspace", "least_dims", "bound_count")],
                ("shaped", INT * 2), ("betas", INT)]


def compiled() -> pathlib.Path:
    """The shim's library, of the cache or new. It looks libtorch's functions up by name, so it is of no version of torch."""
    digest = hashlib.sha256(repr(FLAGS).encode() + b"".join((NATIVE / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    path = cache() / f"torch_shim-{digest}.so"
    if not path.exists():
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
        if not compiler:
            raise OSError("there is no C++ compiler")
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may make it at the same time
        done = subprocess.run([compiler, *FLAGS, str(NATIVE / SOURCES[0]), "-o", str(made), "-ldl"], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr[-1000:]}")
        os.replace(made, path)
    return path


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * max(len(values), 1))(*values)


def _bounds(values: Sequence[Value], count: int) -> list[float]:
    found = [x for v in values for x in (-float("inf") if v.least is None else v.least, float("inf") if v.most is None else v.most)]
    return found + [0.0] * (2 * count - len(found))


def _tensor(s: Schema, t: Tensor, sizes: Sequence[str]) -> _Tensor:
    parts = [extent.rpartition(" * ") for extent in t.shape]
    inputs = [x.name for x in s.call.inputs]
    return _Tensor(
        t.name.encode(), _array(ctypes.c_uint8, [a in t.unread for a in s.op.activations]), len(parts),
        (INT * 4)(*[sizes.index(name) for *_, name in parts]), (INT * 4)(*[int(factor or 1) for factor, *_ in parts]), VARS[t.var],
        t.nullable or bool(t.unread), t.nullable, len(t.strides), s.call.strides.index(t.strides[0]) if t.strides else 0,
        3 if t.place_of else USES.get(t.use, 0) if t.role != "in" else 0, inputs.index(t.place_of) if t.place_of else 0)


def _functions(op: Op, backward: bool) -> list[int]:
    """[activation][T][U]"""
    library = _library.library()

    def find(act: str, t: str, u: str) -> int:
        dtypes = (t, u) if op.second and u != t else (t,)
        return library.find(op.function(act, dtypes, backward)) if dtypes in op.dtypes else -1

    return [find(act, t, u) for act in op.activations for t in TYPES for u in TYPES]


def _entry(s: Schema) -> _Op:
    op, call, sizes = s.op, s.call, list(s.op.parts)
    probability = [Value("p", None, 0, 1)] if op.dropout else []
    values = [[*call.scalars, *op.scalars[a], *probability] for a in op.activations]
    most = max(len(v) for v in values)
    tensors = [_tensor(s, t, sizes) for t in (*call.inputs, *call.outputs)]
    order = [sizes.index(n) for n in call.sizes]
    made = _Op(
        s.name.encode(), _array(_Tensor, tensors), _array(INT, _functions(op, s.backward)), _array(LONG, [activations()[a] for a in op.activations]),
        _array(INT, [len(op.scalars[a]) for a in op.activations]), _array(DOUBLE, [x for v in values for x in _bounds(v, most)]), 0,
        len(call.inputs), len(call.outputs), len(call.integers), len(call.scalars), op.act_scalars, op.dropout, op.has_axis, op.axis or 0,
        op.has_groups, op.has_act, s.saves, s.backward, (INT * 8)(*[what if isinstance(what, int) else PARTS[what] for what in op.parts.values()]),
        len(sizes), (INT * 8)(*order, *[-1] * (8 - len(order))), len(op.activations), call.inputs.index(call.template), call.template.kind == "half",
        len(call.strides), call.workspace, Layout.least(op), most,
        (INT * 2)(*[[t.name for t in call.inputs].index(name) for name in call.shaped_by] or [-1, -1]), len(call.betas))
    return made


def covers(s: Schema) -> bool:
    """Not an op whose result's dtype is an argument."""
    return s.op.second != "results"


_table: Any = None


def register(schemas: Sequence[Schema]) -> None:
    """Makes the shim's kernels those of the ops that it covers; OSError says why it cannot."""
    global _table
    if os.environ.get("KF_TORCH_SHIM") == "0":
        raise OSError("KF_TORCH_SHIM is 0")
    dll = ctypes.CDLL(str(compiled()))
    dll.kfs_register.argtypes, dll.kfs_register.restype = [TEXT, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p], TEXT
    native = _library.library().dll
    _table = (_Op * len(schemas))(*[_entry(s) for s in schemas])
    torch_library = pathlib.Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    missing = dll.kfs_register(str(torch_library).encode(), _table, len(schemas), ctypes.cast(native.kfp_run, ctypes.c_void_p),
                               ctypes.cast(native.kfp_space, ctypes.c_void_p))
    if missing:
        raise OSError(f"this torch lacks {missing.decode()}")
    _counts.sources.append(lambda: [(s.op.name, entry.copies) for s, entry in zip(schemas, _table)])
