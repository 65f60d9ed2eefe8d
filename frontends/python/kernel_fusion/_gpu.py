# SPDX-License-Identifier: Apache-2.0
"""Runs kf's kernels on a GPU.

lib/libkf_cuda.so of the package holds the launchers and depends on the CUDA driver only. NVRTC
compiles a kernel when a launch first needs it; the cubin is kept in the user's cache directory,
from which later processes load it.

KF_CACHE_DIR   the directory; default: the user's cache directory
KF_OFFLINE=1   nothing is compiled; a missing kernel is an error
"""

import contextlib
import ctypes
import functools
import hashlib
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _compressed, _files, _nvrtc, _table
from kernel_fusion._library import Refused, address

PATH = pathlib.Path(__file__).resolve().parent / "lib" / "libkf_cuda.so"
# Parameters of kfp_run_on (native/loader.cpp).
ARGUMENTS: Any = [*[ctypes.c_int] * 2, *[ctypes.c_void_p] * 6, ctypes.c_size_t, ctypes.c_void_p]
_AT: Any = ctypes.c_void_p
# Functions of native/memory.cpp.
MEMORY = {
    "kfp_allocate": [ctypes.c_int, ctypes.c_size_t, _AT, _AT],
    "kfp_free": [ctypes.c_int, _AT, _AT],
    "kfp_wait": [ctypes.c_int, _AT],
    "kfp_upload": [ctypes.c_int, _AT, _AT, ctypes.c_size_t, _AT],
    "kfp_device_of": [_AT, _AT],
}
NO_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MAKER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_char_p),
)
# Codes of kf_result_t that do not concern arguments: no image, CUDA error, out of memory.
DEVICE_CODES = (7, 8, 9)
# Allocates bytes; returns (owner, address).
Space = Callable[[int], tuple[Any, int]]


@functools.cache
def _selection() -> Any:
    from kfgen.entries import spec
    from kfgen.render.render import Selection

    return Selection(spec.load())


@functools.lru_cache(16)
def text(function: str) -> str:
    """All that a function's kernels are compiled from."""
    from kfgen.render import source

    return str(source.source(_selection(), function))


@functools.cache
def kernels(function: str) -> tuple[str, ...]:
    """Names of the kernels that a function's launches choose from. A dropout's read seed and offset
    from device memory, as in kfgen's packed_cuda.functions."""
    from kfgen.render import source

    named, _ = source.find(_selection(), function)
    launcher = next(
        (other for other in named.kernel.launchers if other.act is named.act and other.state), named
    )
    return tuple(source.kernel_names(launcher))


def architecture_word(number: int) -> str:
    """Returns NVRTC's name of an architecture; from 9.0 on with architecture-specific features."""
    return f"sm_{number}{'a' if number >= 90 else ''}"


def describe(error: BaseException) -> str:
    """Describes an exception; one without a text, such as KeyboardInterrupt, by its type."""
    return str(error) or type(error).__name__


class Thread(threading.local):
    error: BaseException | None = None  # why the thread's last launch had no kernel


class Launchers:
    """A library of launchers, opened without a CUDA driver."""

    def __init__(self, path: pathlib.Path = PATH):
        if not _compressed.exists(path):
            raise ImportError(f"{path} does not exist")
        self.path = _compressed.find(path)
        self.dll = ctypes.CDLL(str(self.path))
        self.dll.kfp_find.argtypes = [ctypes.c_char_p]
        abi = ctypes.c_int.in_dll(self.dll, "kfp_abi").value
        if abi != _table.abi():
            raise ImportError(
                f"{path} has ABI version {abi}, expected {_table.abi()}: install the package again"
            )
        self.find = functools.cache(self._find)

    def address(self, symbol: str) -> int | None:
        return address(self.dll, symbol)

    def _find(self, function: str) -> int:
        found: int = self.dll.kfp_find(function.encode())
        return found

    def lacks(self, function: str) -> NotImplementedError:
        return NotImplementedError(
            f"{_table.display_name_of(function)}: {function} is not in {self.path.name}, which was "
            f"built for fewer functions; kf.build_launchers can compile it"
        )


class Gpu(Launchers):
    """A library of launchers with a driver: like _library.Library, for GPU addresses.

    Args:
        built: folder of kernels compiled ahead of time.
    """

    def __init__(
        self,
        path: pathlib.Path = PATH,
        driver: str | None = None,
        text: Callable[[str], str] = text,
        built: pathlib.Path | None = None,
    ):
        super().__init__(path)
        self.text, self.built, self.now, self.lock = text, built, Thread(), threading.Lock()
        self.driver = driver
        self.dll.kfp_run_on.argtypes = ARGUMENTS
        self.dll.kfp_space.argtypes, self.dll.kfp_space.restype = (
            [ctypes.c_int, ctypes.c_void_p],
            ctypes.c_size_t,
        )
        for name, kinds in MEMORY.items():
            getattr(self.dll, name).argtypes = kinds
        self.dll.kfp_capturing.argtypes = [ctypes.c_void_p]
        self.dll.kfp_give_reason.argtypes = [ctypes.c_char_p]
        for name in ("kfp_error", "kfp_detail"):
            getattr(self.dll, name).restype = ctypes.c_char_p
        status = self.dll.kfp_open(driver.encode() if driver else None)
        if status:
            raise ImportError(
                "no CUDA driver was found (libcuda.so.1)"
                if status < 0
                else f"the CUDA driver failed to initialise: error {status}"
            )
        # Images and names must outlive the loader's reads of the maker's answers.
        self.cubins: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self.maker = MAKER(self._make)
        self.dll.kfp_set_maker(self.maker)
        self.architecture = functools.cache(self._architecture)

    def _architecture(self, device: int) -> str:
        number: int = self.dll.kfp_architecture(device)
        if number < 0:
            raise RuntimeError(
                f"the CUDA driver does not report the architecture of device {device}: error "
                f"{-number}"
            )
        return architecture_word(number)

    def call(
        self,
        function: str,
        tensors: Sequence[int | None],
        sizes: Sequence[int],
        strides: Sequence[int] | None,
        scalars: Sequence[float],
        rng: int | None,
        space: Space | None,
        device: int,
        stream: int,
    ) -> None:
        """Launches a function as _library.Library.call does.

        Args:
            rng: device address of seed and offset.
            space: allocates the workspace of a function that has one.
        """
        found = self.find(function)
        if found < 0:
            raise self.lacks(function)
        n = (ctypes.c_int64 * len(sizes))(*sizes)
        size = self.dll.kfp_space(found, n) if space else 0
        held, at = space(size) if space and size else (None, 0)
        d = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        s = (ctypes.c_double * len(scalars))(*scalars)
        self.now.error = None
        code = self.dll.kfp_run_on(
            device,
            found,
            (ctypes.c_void_p * len(tensors))(*tensors),
            n,
            d,
            s,
            rng,
            at,
            size,
            stream,
        )
        del held
        error = self.failed() if code else None
        if error is not None:
            raise error
        if code < 0:
            raise RuntimeError(f"{function}: the CUDA driver has no context for device {device}")
        if code:
            raise Refused(
                RuntimeError if code in DEVICE_CODES else ValueError,
                self.dll.kfp_error(code),
                self.dll.kfp_detail(),
            )

    # ---- memory of a device, stream-ordered

    def allocate(self, device: int, size: int, stream: int) -> int:
        found = ctypes.c_void_p()
        code = self.dll.kfp_allocate(device, size, stream, ctypes.byref(found))
        if code == NO_MEMORY:
            raise MemoryError(f"out of memory on cuda:{device}: {size} bytes were requested")
        self._check(code, "failed to allocate memory")
        return found.value or 0

    def free(self, device: int, memory: int, stream: int | None) -> None:
        self._check(self.dll.kfp_free(device, memory, stream), "failed to free memory")

    def upload(self, device: int, to: int, address: int, size: int, stream: int) -> None:
        self._check(
            self.dll.kfp_upload(device, to, address, size, stream), "failed to copy to the device"
        )

    def wait(self, device: int, stream: int) -> None:
        self._check(self.dll.kfp_wait(device, stream), "failed to synchronise a stream")

    def device_of(self, memory: int) -> int:
        found = ctypes.c_int()
        self._check(
            self.dll.kfp_device_of(memory, ctypes.byref(found)),
            f"has no device for the address {memory:#x}",
        )
        return found.value

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver {what}: error {code}")

    # ---- kernels

    def _make(
        self,
        function: bytes,
        device: int,
        stream: int | None,
        kernel: bytes,
        cubin: Any,
        lowered: Any,
    ) -> int:
        """Callback of the loader during a launch: returns a kernel's cubin and lowered name.

        An exception is stored for the call to raise.
        """
        # C code between here and the caller cannot propagate an exception, KeyboardInterrupt
        # included.
        try:
            image, name = self.made(
                function.decode(), kernel.decode(), self.architecture(device), stream
            )
            cubin[0], lowered[0] = ctypes.cast(ctypes.c_char_p(image), ctypes.c_void_p), name
            return 0
        except BaseException as e:
            self.now.error = e
            self.dll.kfp_give_reason(describe(e).encode())
            return 1

    def failed(self) -> BaseException | None:
        """Returns why this thread's last launch had no kernel, and clears it."""
        error, self.now.error = self.now.error, None
        return error

    def made(
        self, function: str, kernel: str, architecture: str, stream: int | None = None
    ) -> tuple[bytes, bytes]:
        """Returns (cubin, lowered name) from memory, from disk, or from NVRTC."""
        with self.lock:
            key = kernel, architecture
            if key not in self.cubins:
                found = (
                    read(built_file(self.built, function, kernel, architecture))
                    if self.built
                    else None
                )
                self.cubins[key] = found or self._from_disk(function, kernel, architecture, stream)
            return self.cubins[key]

    def _from_disk(
        self, function: str, kernel: str, architecture: str, stream: int | None
    ) -> tuple[bytes, bytes]:
        path = file(function, kernel, architecture)
        return read(path) or self._compile(function, kernel, architecture, path, stream)

    def _compile(
        self, function: str, kernel: str, architecture: str, path: pathlib.Path, stream: int | None
    ) -> tuple[bytes, bytes]:
        if _files.offline():
            how = "call it or kf.warmup once" if self.text is text else "call it once"
            raise RuntimeError(
                f"{function}: its kernel {kernel} for {architecture} is not in {path.parent}, and "
                f"KF_OFFLINE is set: {how} without "
                "KF_OFFLINE and with the same KF_CACHE_DIR"
            )
        if self.dll.kfp_capturing(stream):
            raise RuntimeError(
                f"{function}: its kernel {kernel} is not compiled yet, and the stream is being "
                f"captured into a graph: call it once "
                "with these sizes before"
            )
        with contextlib.ExitStack() as held:
            # Without a writable directory the kernel stays in memory only.
            with contextlib.suppress(OSError):
                held.enter_context(_files.locked(path))
            found = read(path)  # another process may have compiled it
            if found is None:
                found = _nvrtc.compile_kernel(self.text(function), kernel, architecture)
                with contextlib.suppress(OSError):
                    write(path, found)
        return found


def _named(
    folder: pathlib.Path, kernel: str, architecture: str, told: Sequence[str]
) -> pathlib.Path:
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:24]
    return folder / f"{kernel.partition('<')[0]}-{architecture}-{digest}.cubin"


def file(function: str, kernel: str, architecture: str) -> pathlib.Path:
    """Returns the cache file of a kernel compiled by this NVRTC."""
    return _named(
        _files.cache(),
        kernel,
        architecture,
        (function, kernel, architecture, _nvrtc.which(), _table.generator()),
    )


def built_file(folder: pathlib.Path, function: str, kernel: str, architecture: str) -> pathlib.Path:
    """Returns the file of a kernel in a folder of kf.build_launchers, independent of the NVRTC."""
    return _named(
        folder, kernel, architecture, (function, kernel, architecture, _table.generator())
    )


def read(path: pathlib.Path) -> tuple[bytes, bytes] | None:
    """Reads a cubin file, whose first line is the lowered name; returns (cubin, name)."""
    try:
        name, _, image = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return (image, name) if image.startswith(b"\x7fELF") else None


def write(path: pathlib.Path, found: tuple[bytes, bytes]) -> None:
    _files.write(path, found[1] + b"\n" + found[0])


_lock = threading.Lock()
_opened: list[Gpu] = []


def library() -> Gpu:
    """Returns the launchers, opened at the first call."""
    if not _opened:
        with _lock:
            if not _opened:
                _opened.append(_open())
    return _opened[0]


def _open() -> Gpu:
    """Opens the package's launchers, or the loader alone if the package has none."""
    if _compressed.exists(PATH):
        return Gpu()
    from kernel_fusion import _compiled

    loader = _compiled.Loader()
    found: Gpu = loader.library(loader.UNIT)
    return found


def ahead() -> Launchers | None:
    """Returns the launchers that were compiled ahead, without a driver if none are open yet."""
    if _opened:
        return _opened[0]
    return Launchers() if _compressed.exists(PATH) else None


def use(path: pathlib.Path, built: pathlib.Path) -> None:
    """Opens other launchers instead of the package's, before any function was called."""
    with _lock:
        if _opened:
            raise RuntimeError(f"kf.use_launchers: launchers are already in use: {_opened[0].path}")
        _opened.append(Gpu(path, built=built))


def opened() -> bool:
    return bool(_opened)
