# SPDX-License-Identifier: Apache-2.0
"""Loads libraries of kf's C functions and calls them through ctypes."""

import ctypes
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _compilers, _compressed, _first_call, _isa, _table

FOLDER = pathlib.Path(__file__).resolve().parent / "lib"
KINDS: Any = [
    ctypes.c_int,
    *[ctypes.c_void_p] * 6,
    ctypes.c_size_t,
]  # parameters of kfp_run (native/packed.h)
ALIGNED = 256
MAX_THREADS = 256  # the same in native/pool.c
AMX = os.environ.get("KF_AMX") != "0"  # bf16 products use AMX where the processor has it


class Refused(ValueError):
    """Error returned by a launcher, whose text begins with the launcher's C name.

    `by` replaces that name by the one the caller used.
    """

    def __init__(self, kind: type[Exception], error: bytes, detail: bytes):
        launcher, _, why = detail.decode().partition(": ")
        self.kind, self.why = kind, ": ".join(filter(None, (error.decode(), why)))
        super().__init__(f"{launcher}: {self.why}")

    def by(self, where: str) -> Exception:
        return self.kind(f"{where}: {self.why}")


def address(dll: ctypes.CDLL, symbol: str) -> int | None:
    """Returns the address of an exported function, or None."""
    found = getattr(dll, symbol, None)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


class Library:
    """A shared library of packed functions (native/packed.h)."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.dll = ctypes.CDLL(str(path))
        self.dll.kfp_run.argtypes = KINDS
        self.dll.kfp_space.argtypes, self.dll.kfp_space.restype = (
            [ctypes.c_int, ctypes.c_void_p],
            ctypes.c_size_t,
        )
        self.dll.kfp_find.argtypes = [ctypes.c_char_p]
        for taken in ("kfp_set_parallel_for", "kfp_share_pool"):
            getattr(self.dll, taken).argtypes = [ctypes.c_void_p]
        for text in ("kfp_error", "kfp_detail"):
            getattr(self.dll, text).restype = ctypes.c_char_p
        abi = ctypes.c_int.in_dll(self.dll, "kfp_abi").value
        if abi != _table.abi():
            raise ImportError(
                f"{path} has ABI version {abi}, expected {_table.abi()}: install the package again"
            )
        if AMX:
            self.dll.kfp_enable_amx()  # fails where the machine has none, and changes nothing
        self.find = functools.cache(self._find)
        _every.append(self)
        _adopt(self)

    def address(self, symbol: str) -> int | None:
        return address(self.dll, symbol)

    def _find(self, function: str) -> int:
        found: int = self.dll.kfp_find(function.encode())
        return found

    def lacks(self, function: str) -> NotImplementedError:
        return NotImplementedError(f"{function} is not in {self.path}")

    @property
    def count(self) -> int:
        return ctypes.c_int.in_dll(self.dll, "kfp_count").value

    def call(
        self,
        function: str,
        tensors: Sequence[int | None],
        sizes: Sequence[int],
        strides: Sequence[int] | None,
        scalars: Sequence[float],
        rng: int | None = None,
        workspace: bool = False,
    ) -> None:
        """Calls a function.

        Args:
            tensors: addresses, None for absent tensors.
            sizes: sizes, then integer arguments.
            rng: address of seed and offset.
            workspace: True if the function takes a workspace.
        """
        found = self.find(function)
        if found < 0:
            raise self.lacks(function)
        n = (ctypes.c_int64 * len(sizes))(*sizes)
        size = self.dll.kfp_space(found, n) if workspace else 0
        space, at = scratch(size)
        d = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        s = (ctypes.c_double * len(scalars))(*scalars)
        code = self.dll.kfp_run(
            found, (ctypes.c_void_p * len(tensors))(*tensors), n, d, s, rng, at, size
        )
        del space
        if code:
            raise Refused(ValueError, self.dll.kfp_error(code), self.dll.kfp_detail())


def scratch(size: int) -> tuple[ctypes.Array[ctypes.c_char] | None, int | None]:
    """Allocates memory; returns (owner, aligned address)."""
    if not size:
        return None, None
    held = (ctypes.c_char * (size + ALIGNED))()
    return held, -(-ctypes.addressof(held) // ALIGNED) * ALIGNED


_lock = threading.Lock()
_loaded: list[Library | None] = []
_every: list[Library] = []  # all libraries; the threads are those of the first
_threads, _loop = 0, None  # settings of all libraries
_count: Callable[[], int] | None = None  # number of threads of the host's loop


def _adopt(library: Library) -> None:
    library.dll.kfp_set_threads(_threads)
    if _loop is not None:
        library.dll.kfp_set_parallel_for(_loop)
    if library is not _every[0]:
        library.dll.kfp_share_pool(_every[0].address("kfp_parallel_for"))


def of(op: _table.Op) -> Any:
    """Returns the CPU functions of an op: compiled ahead, or at their first calls."""
    return op.own or _first_call.functions(op)


def share_threads(loop: ctypes.c_void_p, count: Callable[[], int]) -> None:
    """Runs all chunks of work in the host's parallel loop from now on.

    Args:
        loop: address of a function like torch_parallel_for.
        count: returns the loop's number of threads.
    """
    global _loop, _count
    _loop, _count = loop, count
    for found in _every:
        _adopt(found)
    os.register_at_fork(after_in_child=_forget_loop)


def _forget_loop() -> None:
    """Resets the loop in a forked child, where the host's threads do not exist (native/pool.c)."""
    global _threads, _loop, _count
    if _loop is not None:
        _threads, _loop, _count = 1, None, None


def prebuilt() -> Library | None:
    """Returns the package's library for this processor, loaded at the first call, or None."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(_load())
    return _loaded[0]


def _load() -> Library | None:
    for isa in _isa.runnable():
        path = FOLDER / f"libkf_cpu_{isa}.so"
        if _compressed.exists(path):
            return Library(_compressed.find(path))
    return None


def available() -> bool:
    """True if CPU functions run as compiled code: there is a library or a compiler."""
    try:
        return prebuilt() is not None or _compilers.c() is not None
    except (ImportError, OSError):
        return False


def set_threads(threads: int) -> None:
    """Sets the number of threads of a call on the CPU.

    When PyTorch is imported, its threads are used, and torch.set_num_threads sets their number.

    Args:
        threads: number of threads; 0 uses all processors available to the process

    Raises:
        ValueError: threads is no integer or is negative.
    """
    global _threads
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or threads < 0:
        raise ValueError(
            f"kf.set_threads: threads is {threads!r}, expected a whole number, 0 or more"
        )
    _threads = min(threads.__index__(), 2**31 - 1)
    for found in _every:
        _adopt(found)


def get_threads() -> int:
    """Returns the number of threads of a call on the CPU."""
    if _count is not None:
        return _count()
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(_threads or able or 1, MAX_THREADS)
