# SPDX-License-Identifier: Apache-2.0
"""Functions of kf's libraries for C++ code that has a described call (native/call.h)."""

import ctypes
import threading
from typing import Any

from kernel_fusion import _described, _gpu

CPU, GPU = 0, 1
# Members of Function, in order.
NAMES = ("run", "space", "error", "detail", "run_on", "reason", "allocate", "free", "upload")


class Function(ctypes.Structure):
    """Function of native/call.h."""

    _fields_ = [("id", ctypes.c_int32), *[(name, ctypes.c_void_p) for name in NAMES]]


KIND = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(Function)
)
_failed = threading.local()  # keeps the text of a thread's last error alive


def _resolve(described: bytes, name: bytes, backend: int, found: Any) -> int | None:
    """Finds a function, compiled at its first call; returns None, or the address of an error text.

    Args:
        described: the first line of the call's text.
        backend: CPU or GPU.
    """
    # C++ code between here and the caller cannot propagate an exception.
    try:
        library = _described.library_of(described.decode(), name.decode(), backend == GPU)
        function = found.contents
        function.id = library.find(name.decode())
        for member in NAMES:
            setattr(function, member, library.address(f"kfp_{member}"))
        return None
    except BaseException as e:
        _failed.text = ctypes.create_string_buffer(_gpu.describe(e).encode())
        return ctypes.addressof(_failed.text)


CALLBACK = KIND(_resolve)
