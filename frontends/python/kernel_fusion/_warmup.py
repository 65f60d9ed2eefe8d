# SPDX-License-Identifier: Apache-2.0
"""kf.warmup: compiles CPU functions or GPU kernels before a call needs them.

Shared with kf.build_launchers: selection of functions, and concurrent compilation of their kernels
into the files where a launch looks for them.
"""

import concurrent.futures
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernel_fusion import _arguments, _files, _first_call, _gpu, _nvrtc, _progress, _table
from kernel_fusion._first_call import Unit

Pair = tuple[_table.Op, str]
# (function, kernel, architecture) -> file of the kernel
Place = Callable[[str, str, str], pathlib.Path]


class Warmed(NamedTuple):
    """Number of kernels (on the CPU: libraries of a function and its gradient) compiled, number
    already present, and seconds taken.
    """

    compiled: int
    there: int
    seconds: float


def _several(given: Any) -> list[Any]:
    return (
        list(given)
        if isinstance(given, Iterable) and not isinstance(given, (str, type))
        else [given]
    )


@dataclass(frozen=True)
class Chosen:
    """Functions selected by the arguments of kf.warmup.

    `what` is the caller's name in messages.
    """

    what: str
    ops: Any
    activations: Any
    dtypes: Any

    def pairs(self) -> list[Pair]:
        """Returns (op, activation) pairs without duplicates.

        An op with results and gradients in one call is included with its forward.
        """
        asked = (
            None
            if self.activations is None
            else [self._activation(a) for a in _several(self.activations)]
        )
        if self.ops is None:
            found = [
                (op, a)
                for op in _table.ops().values()
                for a in op.activations
                if asked is None or a in asked
            ]
        else:
            found = [pair for name in _several(self.ops) for pair in self._named(name, asked)]
        if not found:
            raise ValueError(
                f"kf.{self.what}: ops={self.ops!r} and activations={self.activations!r} select no "
                f"function"
            )
        with_grad = [(_table.ops()[op.with_grad], a) for op, a in found if op.with_grad]
        return list(dict.fromkeys([*found, *with_grad]))

    def _activation(self, name: Any) -> str:
        if name not in _table.activations():
            raise ValueError(
                f"kf.{self.what}: activations has {name!r}, expected some of "
                f"{', '.join(_table.activations())}"
            )
        return str(name)

    def _named(self, name: Any, activations: list[str] | None) -> list[Pair]:
        """Resolves a name of kf.ops in any spelling, or an op combined with activations."""
        if not isinstance(name, str):
            raise TypeError(
                f"kf.{self.what}: ops has a {type(name).__name__}, expected names of kf.ops"
            )
        alias = _table.aliases().get(name)
        op, own = (alias["op"], alias["activation"]) if alias else (name, None)
        try:
            return [_table.find(op, a) for a in ([own] if activations is None else activations)]
        except ValueError as e:
            raise ValueError(f"kf.{self.what}: {str(e).removeprefix('kf').lstrip(':. ')}") from None

    def units(self) -> list[tuple[_table.Op, Unit]]:
        """Returns the selected functions, without duplicates."""
        words = (
            None
            if self.dtypes is None
            else [_arguments.dtype_word(f"kf.{self.what}", d) for d in _several(self.dtypes)]
        )
        found: list[tuple[_table.Op, Unit]] = []
        for op, activation in self.pairs():
            every = [d for d in sorted(op.dtypes) if op.exists(activation, d, False)]
            own = [d for d in every if words is None or d[0] in words]
            if self.ops is not None and not own:
                has = ", ".join(
                    long for long, word in _arguments.LONG.items() if word in {d[0] for d in every}
                )
                raise ValueError(
                    f"kf.{self.what}: {op.word(activation)} has no function for "
                    f"dtypes={self.dtypes!r}, only for {has}"
                )
            found += [(op, Unit(activation, d)) for d in own]
        return found


def functions(units: Iterable[tuple[_table.Op, Unit]]) -> list[str]:
    """Returns the names of both directions."""
    return [
        op.function(*unit, backward)
        for op, unit in units
        for backward in (False, True)
        if op.exists(*unit, backward)
    ]


def compile_units(
    what: str, made: Sequence[tuple[Any, Unit]], jobs: int, progress: bool | None
) -> Warmed:
    """Compiles missing libraries of functions concurrently.

    Args:
        made: pairs of (_first_call.Compiled, unit).
    """
    begin, count = time.monotonic(), 0
    missing = [(functions, unit) for functions, unit in made if not functions.is_ready(unit)]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(functions.prepare, unit) for functions, unit in missing]
        try:
            with _progress.bar(f"kf.{what}", len(missing), progress) as bar:
                for one in concurrent.futures.as_completed(running):
                    count += one.result()
                    bar.advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Warmed(count, len(made) - count, time.monotonic() - begin)


def architectures(what: str, given: Any) -> list[str]:
    """Returns NVRTC architecture names; by default the current device's."""
    if given is None:
        torch = sys.modules.get("torch")
        return [
            _gpu.library().architecture(
                torch.cuda.current_device() if torch and torch.cuda.is_available() else 0
            )
        ]
    return list(dict.fromkeys(_architecture(what, one) for one in _several(given) or [None]))


def _architecture(what: str, given: Any) -> str:
    matched = re.fullmatch(r"sm_(\d+)a?", given) if isinstance(given, str) else None
    if not matched or int(matched[1]) not in _nvrtc.architectures():
        raise ValueError(
            f"kf.{what}: arch is {given!r}, expected one of "
            f"{', '.join(f'sm_{n}' for n in _nvrtc.architectures())}, which "
            f"NVRTC {_nvrtc.version()} supports"
        )
    return _gpu.architecture_word(int(matched[1]))


def threads(what: str, given: Any) -> int:
    if given is None:
        return len(os.sched_getaffinity(0))
    if isinstance(given, bool) or not hasattr(given, "__index__") or given.__index__() < 1:
        raise ValueError(f"kf.{what}: jobs is {given!r}, expected a whole number of at least 1")
    return int(given.__index__())


def compile_kernels(
    what: str,
    functions: Sequence[str],
    architecture: str,
    place: Place,
    jobs: int,
    progress: bool | None = None,
) -> Warmed:
    """Compiles all kernels that launches of the functions may use."""
    begin = time.monotonic()
    asked = {place(f, k, architecture): (f, k) for f in functions for k in _gpu.kernels(f)}
    missing = {path: of for path, of in asked.items() if _gpu.read(path) is None}
    if missing and _files.offline():
        path, (function, kernel) = next(iter(missing.items()))
        raise RuntimeError(
            f"kf.{what}: KF_OFFLINE is set, and {len(missing)} of {len(asked)} kernels for "
            f"{architecture} are not in {path.parent}, "
            f"the first {function}'s {kernel}"
        )

    def compiled(path: pathlib.Path, text: str, kernel: str) -> int:
        try:
            with _files.locked(path):
                # Another process has compiled it in the meantime.
                if _gpu.read(path) is not None:
                    return 0
                _gpu.write(path, _nvrtc.compile_kernel(text, kernel, architecture))
        except OSError as e:
            raise OSError(
                e.errno, f"kf.{what}: a kernel cannot be written ({e.strerror})", str(path)
            ) from None
        return 1

    count = 0
    with (
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
        _progress.bar(f"kf.{what} {architecture}", len(missing), progress) as bar,
    ):
        running: set[concurrent.futures.Future[int]] = set()

        def finished(done: Iterable[concurrent.futures.Future[int]]) -> None:
            nonlocal count
            for one in done:
                count += one.result()
                bar.advance()

        try:
            for path, (function, kernel) in missing.items():
                running.add(pool.submit(compiled, path, _gpu.text(function), kernel))
                if len(running) > 2 * jobs:
                    done, running = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    finished(done)
            finished(concurrent.futures.as_completed(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Warmed(count, len(asked) - count, time.monotonic() - begin)


def total(parts: Iterable[Warmed]) -> Warmed:
    return Warmed(*map(sum, zip(*parts)))


def _device(given: Any) -> str:
    word = str(given).partition(":")[0]
    if word not in ("cpu", "cuda"):
        raise ValueError(f"kf.warmup: device is {given!r}, expected 'cpu' or 'cuda'")
    return word


def warmup(
    ops: str | Iterable[str] | None = None,
    activations: str | Iterable[str] | None = None,
    dtypes: Any = None,
    *,
    device: Any = "cuda",
    arch: str | Iterable[str] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Warmed:
    """Compiles all that calls of some functions may use, into KF_CACHE_DIR.

    Later calls, also of other processes, load it from there. The call may be interrupted and run
    concurrently. Ops of kf.fuse are not supported.

        kf.warmup(["layer_norm_gelu", "softmax"], dtypes=["float32"], device="cpu")
        kf.warmup(["layer_norm_gelu", "softmax"], dtypes=["bfloat16"], arch="sm_90")

    Args:
        ops: names of kf.ops, each with its gradient; None selects all ops, which takes hours
        activations: activations to combine with each op; None keeps those in the names
        dtypes: dtypes of the elements; None selects all
        device: "cpu" compiles C functions, "cuda" GPU kernels and their launchers
        arch: GPU architectures, which need not be present; None selects the current device's
        jobs: number of threads; None uses one per core
        progress: True shows a progress bar on standard error, False none; None shows it on a
            terminal

    Returns:
        A named tuple: number of kernels compiled, number of kernels already there, seconds. On
            the CPU it counts libraries of a function and its gradient.

    Raises:
        TypeError, ValueError: an op, activation, dtype, device or architecture does not exist.
        ImportError: with arch=None, no CUDA driver was found.
        RuntimeError: NVRTC or a compiler was not found, KF_OFFLINE is set and a kernel is missing,
            or one failed to compile.
        OSError: a kernel cannot be written.
    """
    number, word = threads("warmup", jobs), _device(device)
    if word == "cpu" and arch is not None:
        raise ValueError(f"kf.warmup: arch is {arch!r} beside device='cpu', expected None")
    units = Chosen("warmup", ops, activations, dtypes).units()
    if word == "cpu":
        made = [(_first_call.functions(op), unit) for op, unit in units]
        return compile_units("warmup", made, number, progress)
    codes = architectures("warmup", arch)
    launchers = [(_first_call.functions(op).on_gpu, unit) for op, unit in units]
    compile_units("warmup", launchers, number, progress)
    return total(
        [
            compile_kernels("warmup", functions(units), code, _gpu.file, number, progress)
            for code in codes
        ]
    )
