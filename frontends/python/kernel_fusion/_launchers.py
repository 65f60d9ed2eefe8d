# SPDX-License-Identifier: Apache-2.0
"""Launchers and their kernels that are compiled ahead of time, in a folder: for machines without NVRTC, compilers and CUDA's headers, and for ops
and activations that the installed package was built without."""

import functools
import json
import os
import pathlib
from collections.abc import Collection, Iterable
from typing import Any

from kernel_fusion import _files, _gpu, _table
from kernel_fusion._warmup import Chosen, Warmed, architectures, compile_kernels, threads, total

LIBRARY = "libkf_cuda.so"
SAID = "launchers.json"  # written last: whoever finds it finds all


def build_launchers(
    path: str | os.PathLike[str],
    ops: str | Iterable[str] | None = None,
    activations: str | Iterable[str] | None = None,
    dtypes: Any = None,
    *,
    arch: str | Iterable[str] | None = None,
    jobs: int | None = None,
) -> Warmed:
    """Writes a folder that has the launchers of these functions, compiled by the C++ compiler, and every kernel that they may ask for:

        kf.build_launchers("launchers", ["layer_norm_mish"], dtypes=["bfloat16"], arch=["sm_80", "sm_90"])

    A program that says kf.use_launchers("launchers") before its first call on a GPU then needs the driver alone. It is the same host code and the
    same kernels as the package's own, and the same results. All arguments are kf.warmup's, but ops and activations may be any that kf has, and there
    need not be launchers in the package. What is in the folder is not compiled again; its launchers are those of the last call.

    Returns and raises what kf.warmup does, and RuntimeError where there is no C++ compiler or no header of CUDA's.
    """
    from kfgen import manifest, packed_cuda, spec
    from kfgen.render import Selection

    chosen, folder = Chosen("build_launchers", ops, activations, dtypes), pathlib.Path(path)
    pairs, codes, number = (
        chosen.pairs(),
        architectures("build_launchers", arch),
        threads("build_launchers", jobs),
    )
    selection = Selection(
        spec.load(),
        list(dict.fromkeys(op.pattern for op, _ in pairs)),
        list(dict.fromkeys(a for _, a in pairs)),
    )
    named = {name for name, _ in packed_cuda.functions(manifest.build(selection))}
    functions = chosen.functions(
        named.__contains__,
        lambda f: NotImplementedError(f"kf.build_launchers: {f} is not among CUDA's launchers"),
    )
    about = {"generator": _table.generator(), "functions": functions}
    if _about(folder) != about:
        _library(folder, selection, functions)
    place = functools.partial(_gpu.built_file, folder)
    done = total(
        [compile_kernels("build_launchers", functions, code, place, number) for code in codes]
    )
    _files.write(folder / SAID, (json.dumps(about, indent=1) + "\n").encode())
    return done


def _library(folder: pathlib.Path, selection: Any, functions: Collection[str]) -> None:
    """In a file beside it, which then gets its name: a process that has the one before keeps that."""
    from kernel_fusion import _build

    if _files.offline():
        raise RuntimeError(
            f"kf.build_launchers: KF_OFFLINE is set, and {folder / LIBRARY} is not there, or of other functions"
        )
    (folder / SAID).unlink(missing_ok=True)
    new = folder / f".{LIBRARY}.{os.getpid()}"
    try:
        _build.cuda_library(new, selection, names=frozenset(functions))
        os.replace(new, folder / LIBRARY)
    finally:
        new.unlink(missing_ok=True)


def _about(folder: pathlib.Path) -> dict[str, Any] | None:
    """What a folder says that it has; None: it is none, or not whole."""
    try:
        found: dict[str, Any] = json.loads((folder / SAID).read_bytes())
    except (OSError, ValueError):
        return None
    return found if (folder / LIBRARY).exists() else None


def use_launchers(path: str | os.PathLike[str]) -> None:
    """Takes launchers and kernels from a folder of kf.build_launchers in place of the package's: before the first call on a GPU. A kernel that is
    not in it, as of another GPU, is looked for and compiled as without it; a function that is not in it raises.

    ImportError: there is no such folder, it is of another version of kf, or no driver answers. RuntimeError: launchers are in use already.
    """
    folder = pathlib.Path(path).resolve()
    about = _about(folder)
    if about is None:
        raise ImportError(
            f"kf.use_launchers: {folder} has not {SAID} and {LIBRARY}, which kf.build_launchers writes"
        )
    if about["generator"] != _table.generator():
        raise ImportError(
            f"kf.use_launchers: {folder} is of another version of kf; build it again by kf.build_launchers"
        )
    _gpu.use(folder / LIBRARY, folder)
