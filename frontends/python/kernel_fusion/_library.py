# SPDX-License-Identifier: Apache-2.0
"""Loads kf's C library for this processor and calls its functions, by ctypes alone."""

import ctypes
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _compressed, _isa, _table

FOLDER = pathlib.Path(__file__).resolve().parent / "lib"
KINDS: Any = [ctypes.c_int, *[ctypes.c_void_p] * 6, ctypes.c_size_t]  # of kfp_run: native/packed.h
ALIGNED = 256


class Refused(ValueError):
    """A launcher's own refusal, which begins with its name in C. Who called it says what its caller has called: `by`."""

    def __init__(self, kind: type[Exception], error: bytes, detail: bytes):
        launcher, _, why = detail.decode().partition(": ")
        self.kind, self.why = kind, ": ".join(filter(None, (error.decode(), why)))
        super().__init__(f"{launcher}: {self.why}")

    def by(self, where: str) -> Exception:
        return self.kind(f"{where}: {self.why}")


class Library:
    """A library of packed functions."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.dll = ctypes.CDLL(str(path))
        self.dll.kfp_run.argtypes = KINDS
        self.dll.kfp_space.argtypes, self.dll.kfp_space.restype = (
            [ctypes.c_int, ctypes.c_void_p],
            ctypes.c_size_t,
        )
        self.dll.kfp_find.argtypes = [ctypes.c_char_p]
        self.dll.kfp_set_parallel_for.argtypes = [ctypes.c_void_p]
        for text in ("kfp_error", "kfp_detail"):
            getattr(self.dll, text).restype = ctypes.c_char_p
        abi = ctypes.c_int.in_dll(self.dll, "kfp_abi").value
        if abi != _table.abi():
            raise ImportError(
                f"{path} is of ABI version {abi}, this package of {_table.abi()}: install it again"
            )
        self.find = functools.cache(self._find)
        _every.append(self)
        _adopt(self)

    def _find(self, function: str) -> int:
        found: int = self.dll.kfp_find(function.encode())
        return found

    def lacks(self, function: str) -> NotImplementedError:
        fewer = "which was built for fewer ops or activations (KF_WHEEL_OPS, KF_WHEEL_ACTIVATIONS)"
        return NotImplementedError(
            f"{_table.said_of(function)}: {function} is not in {self.path.name}, {fewer}"
        )

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
        """tensors: their addresses; sizes: integers behind them; rng: the address of seed and offset."""
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
    """Memory, and the address in it that is aligned."""
    if not size:
        return None, None
    held = (ctypes.c_char * (size + ALIGNED))()
    return held, -(-ctypes.addressof(held) // ALIGNED) * ALIGNED


_lock = threading.Lock()
_loaded: list[Library] = []
_every: list[Library] = []  # that, and those of ops that the program has made
_threads, _loop = 0, None  # what all of them are told
_count: Callable[[], int] | None = None  # of the host's loop: its threads


def _adopt(library: Library) -> None:
    library.dll.kfp_set_threads(_threads)
    if _loop is not None:
        library.dll.kfp_set_parallel_for(_loop)


def of(op: _table.Op) -> Any:
    """The library that has an op's functions."""
    return op.own or library()


def share_threads(loop: ctypes.c_void_p, count: Callable[[], int]) -> None:
    """All chunks of work go to the host's loop from now on: as torch_parallel_for. count: how many threads that has."""
    global _loop, _count
    _loop, _count = loop, count
    for found in _every:
        _adopt(found)
    os.register_at_fork(after_in_child=_forget_loop)


def _forget_loop() -> None:
    """As the libraries themselves do (native/pool.c): the host's threads do not exist in a child."""
    global _threads, _loop, _count
    if _loop is not None:
        _threads, _loop, _count = 1, None, None


def library() -> Library:
    """That of this processor, loaded at the first call."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(_load())
    return _loaded[0]


def _load() -> Library:
    able = _isa.runnable()
    for isa in able:
        path = FOLDER / f"libkf_cpu_{isa}.so"
        if _compressed.exists(path):
            return Library(_compressed.find(path))
    there = ", ".join(sorted(p.name for p in FOLDER.glob("*.so*"))) or "none"
    raise ImportError(
        f"kf has no library of CPU kernels for this processor ({', '.join(able) or 'less than x86-64-v2'}); in {FOLDER}: {there}. "
        "Install the package where a C compiler is: apt install gcc libc6-dev; pip install --force-reinstall ."
    )


def available() -> bool:
    try:
        return bool(library())
    except (ImportError, OSError):
        return False


def set_threads(threads: int) -> None:
    """How many threads a call uses; 0: as many as the process has processors. Where PyTorch is, torch.set_num_threads says it in place of this."""
    global _threads
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or threads < 0:
        raise ValueError(
            f"kf.set_threads: threads is {threads!r}, expected a whole number, 0 or more"
        )
    library()
    _threads = min(threads.__index__(), 2**31 - 1)
    for found in _every:
        _adopt(found)


def get_threads() -> int:
    threads: int = library().dll.kfp_threads()
    return threads if _count is None else _count()
