# SPDX-License-Identifier: Apache-2.0
"""Launchers and kernels compiled ahead of time into a folder.

The folder serves machines without NVRTC, compilers and CUDA headers. It may contain ops and
activations that the installed package lacks.
"""

import functools
import json
import os
import pathlib
from collections.abc import Collection, Iterable
from typing import Any

from kernel_fusion import _files, _gpu, _table, _warmup
from kernel_fusion._warmup import Chosen, Warmed, architectures, compile_kernels, threads, total

LIBRARY = "libkf_cuda.so"
DESCRIPTION = "launchers.json"  # written last, so a folder that has it is complete


def build_launchers(
    path: str | os.PathLike[str],
    ops: str | Iterable[str] | None = None,
    activations: str | Iterable[str] | None = None,
    dtypes: Any = None,
    *,
    arch: str | Iterable[str] | None = None,
    jobs: int | None = None,
) -> Warmed:
    """Compiles the launchers and all GPU kernels of some functions into a folder for other
    machines.

        kf.build_launchers("launchers", ["layer_norm_mish"], dtypes=["bfloat16"],
                           arch=["sm_80", "sm_90"])

    A program that calls kf.use_launchers("launchers") before its first GPU call then needs only
    the CUDA driver. Host code, kernels and results are those of the package. Ops and activations
    may be any that kf has, whichever the package was built with. Existing kernels are not compiled
    again; the launchers are those of the last call.

    Args:
        path: the folder
        ops: as in kf.warmup
        activations: as in kf.warmup
        dtypes: as in kf.warmup
        arch: as in kf.warmup
        jobs: as in kf.warmup

    Returns:
        A named tuple as from kf.warmup.

    Raises:
        RuntimeError: no C++ compiler or CUDA headers were found.
        Other errors as in kf.warmup.
    """
    from kfgen.entries import spec
    from kfgen.render.render import Selection

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
    functions = _warmup.functions(chosen.units())
    about = {"generator": _table.generator(), "functions": functions}
    if _about(folder) != about:
        _library(folder, selection, functions)
    place = functools.partial(_gpu.built_file, folder)
    done = total(
        [compile_kernels("build_launchers", functions, code, place, number) for code in codes]
    )
    _files.write(folder / DESCRIPTION, (json.dumps(about, indent=1) + "\n").encode())
    return done


def _library(folder: pathlib.Path, selection: Any, functions: Collection[str]) -> None:
    """Compiles a temporary library, then renames it; processes that loaded the old one keep it."""
    from kernel_fusion import _build

    if _files.offline():
        raise RuntimeError(
            f"kf.build_launchers: KF_OFFLINE is set, and {folder / LIBRARY} is missing or has "
            f"other functions"
        )
    (folder / DESCRIPTION).unlink(missing_ok=True)
    new = folder / f".{LIBRARY}.{os.getpid()}"
    try:
        _build.cuda_library(new, selection, names=frozenset(functions))
        os.replace(new, folder / LIBRARY)
    finally:
        new.unlink(missing_ok=True)


def _about(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns a folder's description, or None if the folder is missing or incomplete."""
    try:
        found: dict[str, Any] = json.loads((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return None
    return found if (folder / LIBRARY).exists() else None


def use_launchers(path: str | os.PathLike[str]) -> None:
    """Uses launchers and kernels of a kf.build_launchers folder instead of the package's.

    Call it before the first GPU call. Kernels that the folder lacks, such as those of another
    architecture, are searched and compiled as usual; calls of functions that it lacks raise.

    Args:
        path: the folder

    Raises:
        ImportError: the folder does not exist or belongs to another version of kf, or no CUDA
            driver was found.
        RuntimeError: launchers are already in use.
    """
    folder = pathlib.Path(path).resolve()
    about = _about(folder)
    if about is None:
        raise ImportError(
            f"kf.use_launchers: {folder} lacks {DESCRIPTION} or {LIBRARY}, which "
            f"kf.build_launchers writes"
        )
    if about["generator"] != _table.generator():
        raise ImportError(
            f"kf.use_launchers: {folder} belongs to another version of kf; run kf.build_launchers "
            f"again"
        )
    _gpu.use(folder / LIBRARY, folder)
