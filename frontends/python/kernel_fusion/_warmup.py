# SPDX-License-Identifier: Apache-2.0
"""kf.warmup: kernels for GPUs that are compiled before a call asks for them. What it has in common with kf.build_launchers: which functions are
meant, and their kernels compiled by several threads, each into the file where a launch looks for it."""

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
Place = Callable[
    [str, str, str], pathlib.Path
]  # (function, kernel, architecture) -> the file that the kernel is in


class Warmed(NamedTuple):
    """Kernels that were compiled, kernels that were there, and the seconds that it took."""

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
    """The functions that a caller means, by what kf.warmup's arguments say. what: the caller, for messages."""

    what: str
    ops: Any
    activations: Any
    dtypes: Any

    def pairs(self) -> list[Pair]:
        """Ops with activations, each once; without a name all of them. An op that has results and gradients in one call comes with its forward."""
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
                f"kf.{self.what}: ops={self.ops!r} and activations={self.activations!r} choose no function"
            )
        with_grad = [(_table.ops()[op.with_grad], a) for op, a in found if op.with_grad]
        return list(dict.fromkeys([*found, *with_grad]))

    def _activation(self, name: Any) -> str:
        if name not in _table.activations():
            raise ValueError(
                f"kf.{self.what}: activations has {name!r}, expected some of {', '.join(_table.activations())}"
            )
        return str(name)

    def _named(self, name: Any, activations: list[str] | None) -> list[Pair]:
        """A name of kf.ops, in any spelling, or, with activations, an op."""
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
        """Both directions, of those that are there. An op that was named and has none is refused, as lacks says, or for its dtypes."""
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
                    f"kf.{self.what}: {op.word(activation)} has no function for dtypes={self.dtypes!r}, but for {has}"
                )
            found += own
        return found


def architectures(what: str, given: Any) -> list[str]:
    """As NVRTC takes them; of nothing that of the current device."""
    if given is None:
        torch = sys.modules.get("torch")
        return [
            _gpu.library().architecture(
                torch.cuda.current_device() if torch and torch.cuda.is_available() else 0
            )
        ]
    return list(dict.fromkeys(_architecture(what, one) for one in _several(given) or [None]))


def _architecture(what: str, given: Any) -> str:
    said = re.fullmatch(r"sm_(\d+)a?", given) if isinstance(given, str) else None
    if not said or int(said[1]) not in _nvrtc.architectures():
        raise ValueError(
            f"kf.{what}: arch is {given!r}, expected one of {', '.join(f'sm_{n}' for n in _nvrtc.architectures())}, for which this "
            f"NVRTC {_nvrtc.version()} compiles"
        )
    return _gpu.architecture_word(int(said[1]))


def threads(what: str, given: Any) -> int:
    if given is None:
        return len(os.sched_getaffinity(0))
    if isinstance(given, bool) or not hasattr(given, "__index__") or given.__index__() < 1:
        raise ValueError(f"kf.{what}: jobs is {given!r}, expected a whole number from 1 on")
    return int(given.__index__())


def compile_kernels(
    what: str, functions: Sequence[str], architecture: str, place: Place, jobs: int
) -> Warmed:
    """All that launches of the functions may ask for."""
    begin = time.monotonic()
    asked = {place(f, k, architecture): (f, k) for f in functions for k in _gpu.kernels(f)}
    missing = {path: of for path, of in asked.items() if _gpu.read(path) is None}
    if missing and _files.offline():
        path, (function, kernel) = next(iter(missing.items()))
        raise RuntimeError(
            f"kf.{what}: KF_OFFLINE is set, and {len(missing)} of {len(asked)} kernels for {architecture} are not in {path.parent}, "
            f"the first {function}'s {kernel}"
        )

    def compiled(path: pathlib.Path, text: str, kernel: str) -> int:
        if _gpu.read(path) is not None:  # another process has made it since
            return 0
        try:
            _gpu.write(path, _nvrtc.compile_kernel(text, kernel, architecture))
        except OSError as e:
            raise OSError(
                e.errno, f"kf.{what}: a kernel cannot be kept ({e.strerror})", str(path)
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
    """Compiles every kernel that calls of these functions may ask for on a GPU, by NVRTC, into KF_CACHE_DIR, where launches look for it:

        kf.warmup(["layer_norm_gelu", "softmax"], dtypes=["bfloat16"], arch="sm_90")

    ops: names of kf.ops, each with its gradient; None: all that the package's library has, which are thousands.
    activations: of each of the ops, which are named without one then; None: those that the names have.
    dtypes: of the functions' elements; None: all that they have.
    arch: for these GPUs, of which none need be there; None: the current device's.
    jobs: threads that compile; None: one a core.

    Returns how many kernels were compiled, how many were there, and the seconds. It may be interrupted, and run beside itself. Not kf.fuse's ops.

    TypeError, ValueError: there is no such op, activation, dtype or architecture. NotImplementedError: the package was installed without the
    function. ImportError: or without launchers; of arch=None: no driver answers. RuntimeError: there is no NVRTC, KF_OFFLINE is set and a kernel is
    missing, or one does not compile. OSError: a kernel cannot be kept.
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
