# SPDX-License-Identifier: Apache-2.0
"""DLPack for GPU memory through ctypes: imports capsules and exports kf's arrays."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged: device types whose addresses a kernel can read
NAMES = {
    (2, 32): "float32",
    (2, 16): "float16",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (6, 8): "bool",
}
CODES = {name: code for code, name in NAMES.items()}
# Names of an unused and of a consumed capsule; they must outlive their capsules.
FRESH, USED = (b"dltensor", b"used_dltensor")


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A separate handle, since the function types of ctypes.pythonapi are shared by all modules.
_api = ctypes.PyDLL(None)
_pointer, _valid, _rename, _new = (
    _api.PyCapsule_GetPointer,
    _api.PyCapsule_IsValid,
    _api.PyCapsule_SetName,
    _api.PyCapsule_New,
)
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, DELETER]
_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_address_of_dead = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


@dataclass(frozen=True)
class Found:
    """A tensor imported from a capsule; shape and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    owner: "Owner"


class Owner:
    """Keeps the memory of an imported capsule alive."""

    def __init__(self, address: int):
        self.address = address

    def __del__(self) -> None:
        deleter = _Managed.from_address(self.address).deleter
        if deleter:
            DELETER(deleter)(self.address)


def take(capsule: Any) -> Found:
    """Imports a capsule's tensor and takes ownership of it."""
    address = _pointer(capsule, FRESH)
    _rename(capsule, USED)
    t, owner = _Managed.from_address(address).tensor, Owner(address)
    dtype = (
        NAMES.get((t.code, t.bits), f"with DLPack code {t.code} and {t.bits} bits")
        if t.lanes == 1
        else f"with {t.lanes} lanes"
    )
    strides = tuple(t.strides[: t.ndim]) if t.strides else None
    return Found((t.data or 0) + t.offset, tuple(t.shape[: t.ndim]), strides, dtype, owner)


# Objects that exported capsules keep alive, by address.
_alive: dict[int, tuple[Any, ...]] = {}


def _delete(address: int) -> None:
    _alive.pop(address, None)


def _destroyed(capsule: int) -> None:
    """Releases a capsule that no consumer imported."""
    if _valid(capsule, FRESH):
        _alive.pop(_address_of_dead(capsule, FRESH), None)


DELETE, DESTROYED = DELETER(_delete), DELETER(_destroyed)


def give(
    owner: Any, address: int, device: int, shape: Sequence[int], strides: Sequence[int], dtype: str
) -> Any:
    """Returns a capsule that keeps `owner` alive."""
    n, m = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
    code, bits = CODES[dtype]
    made = _Managed(
        _Tensor(address, CUDA[0], device, len(shape), code, bits, 1, n, m, 0),
        None,
        ctypes.cast(DELETE, ctypes.c_void_p),
    )
    at = ctypes.addressof(made)
    _alive[at] = made, n, m, owner
    return _new(at, FRESH, DESTROYED)
