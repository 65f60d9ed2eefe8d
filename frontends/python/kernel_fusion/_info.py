# SPDX-License-Identifier: Apache-2.0
"""Version, installed libraries, and what was loaded and copied."""

import ctypes
import importlib
import sys
from typing import Any

from kernel_fusion import _compilers, _counts, _files, _isa, _library


def version() -> str:
    from kfgen import paths

    return str(paths.version())


def cuda_available() -> bool:
    """True if a CUDA device is available."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )


def get_include() -> str:
    """The include directory of kf's headers, for C, C++ and CUDA. The first call generates them, in
    seconds."""
    from kfgen import paths
    from kfgen.entries import spec
    from kfgen.render import package, render

    folder = _files.cache() / f"include-{version()}-{paths.digest()}"
    if not (folder / "whole").exists():
        made = package.tree(render.Selection(spec.load()))
        for path, text in made.items():
            if path.startswith("include/"):
                render.write(folder / path.removeprefix("include/"), text)
        render.write(folder / "whole", "")
    return str(folder)


def _cache() -> str | None:
    try:
        return str(_files.cache())
    except OSError:
        return None


def info() -> dict[str, Any]:
    """Describes the installation and the state of this process.

    Returns:
        A dictionary: the version; the library of CPU functions compiled ahead (None: there is
            none) and its number of functions; the C compiler and the directory of functions
            compiled at their first call; the threads of a call; what computes PyTorch tensors on
            the CPU and on a GPU; and the number of inputs that were copied to be contiguous, by
            op.
    """
    library, why = None, {}
    try:
        library = _library.prebuilt()
    except (ImportError, OSError) as e:
        why = {"why no library": str(e)}
    found: dict[str, Any] = why | {
        "version": version(),
        "instruction sets": list(_isa.runnable()),
        "library": library and str(library.path),
        "functions": library.count if library else 0,
        "compiler": _compilers.c(),
        "cache": _cache(),
        "threads": _library.get_threads(),
        "copies": _counts.copies(),
    }
    if "torch" in sys.modules:
        own = importlib.import_module("kernel_fusion.torch")
        found |= {
            "torch": own.kernels(),
            "cuda": own.gpu(),
            "torch on cuda": own.kernels(own.WHY_NO_SHIM_ON_GPU),
        }
    return found
