# SPDX-License-Identifier: Apache-2.0
"""kf.warmup: compiles GPU kernels before a call needs them.

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

from kernel_fusion import _arguments, _files, _gpu, _nvrtc, _table

Pair = tuple[_table.Op, str]
# (function, kernel, architecture) -> file of the kernel
Place = Callable[[str, str, str], pathlib.Path]


class Warmed(NamedTuple):
    """Number of kernels compiled, number of kernels already present, and seconds taken."""

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

    def functions(
        self, there: Callable[[str], bool], lacks: Callable[[str], Exception]
    ) -> list[str]:
        """Returns the available functions of both directions.

        Args:
            there: True if a function is available.
            lacks: makes the error for a named op without functions.
        """
        words = (
            None
            if self.dtypes is None
            else [_arguments.dtype_word(f"kf.{self.what}", d) for d in _several(self.dtypes)]
        )
        found: list[str] = []
        for op, activation in self.pairs():
            every = [
                (d[0], f)
                for d in sorted(op.dtypes)
                for bwd in ((False, True) if op.backward else (False,))
                if there(f := op.function(activation, d, bwd))
            ]
            own = [f for d, f in every if words is None or d in words]
            if self.ops is not None and not every:
                raise lacks(op.function(activation, min(op.dtypes), False))
            if self.ops is not None and not own:
                has = ", ".join(
                    long for long, word in _arguments.LONG.items() if word in {d for d, _ in every}
                )
                raise ValueError(
                    f"kf.{self.what}: {op.word(activation)} has no function for "
                    f"dtypes={self.dtypes!r}, only for {has}"
                )
            found += own
        return found


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
    what: str, functions: Sequence[str], architecture: str, place: Place, jobs: int
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
        # Another process has compiled it in the meantime.
        if _gpu.read(path) is not None:
            return 0
        try:
            _gpu.write(path, _nvrtc.compile_kernel(text, kernel, architecture))
        except OSError as e:
            raise OSError(
                e.errno, f"kf.{what}: a kernel cannot be written ({e.strerror})", str(path)
            ) from None
        return 1

    count = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running: set[concurrent.futures.Future[int]] = set()
        try:
            for path, (function, kernel) in missing.items():
                running.add(pool.submit(compiled, path, _gpu.text(function), kernel))
                if len(running) > 2 * jobs:
                    done, running = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    count += sum(one.result() for one in done)
            count += sum(one.result() for one in concurrent.futures.as_completed(running))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Warmed(count, len(asked) - count, time.monotonic() - begin)


def total(parts: Iterable[Warmed]) -> Warmed:
    return Warmed(*map(sum, zip(*parts)))


def warmup(
    ops: str | Iterable[str] | None = None,
    activations: str | Iterable[str] | None = None,
    dtypes: Any = None,
    *,
    arch: str | Iterable[str] | None = None,
    jobs: int | None = None,
) -> Warmed:
    """Compiles all GPU kernels that calls of some functions may use, into KF_CACHE_DIR.

    Later calls, also of other processes, load them from there. The call may be interrupted and run
    concurrently. Ops of kf.fuse are not supported.

        kf.warmup(["layer_norm_gelu", "softmax"], dtypes=["bfloat16"], arch="sm_90")

    Args:
        ops: names of kf.ops, each with its gradient; None selects all of the package's library,
            which takes hours
        activations: activations to combine with each op; None keeps those in the names
        dtypes: dtypes of the elements; None selects all
        arch: GPU architectures, which need not be present; None selects the current device's
        jobs: number of threads; None uses one per core

    Returns:
        A named tuple: number of kernels compiled, number of kernels already there, seconds.

    Raises:
        TypeError, ValueError: an op, activation, dtype or architecture does not exist.
        NotImplementedError: the installed library lacks the function.
        ImportError: the package has no launchers; or, with arch=None, no CUDA driver was found.
        RuntimeError: NVRTC was not found, KF_OFFLINE is set and a kernel is missing, or a kernel
            failed to compile.
        OSError: a kernel cannot be written.
    """
    number = threads("warmup", jobs)
    library = _gpu.library() if arch is None or _gpu.opened() else _gpu.Launchers()
    functions = Chosen("warmup", ops, activations, dtypes).functions(
        lambda f: library.find(f) >= 0, library.lacks
    )
    return total(
        [
            compile_kernels("warmup", functions, a, _gpu.file, number)
            for a in architectures("warmup", arch)
        ]
    )
