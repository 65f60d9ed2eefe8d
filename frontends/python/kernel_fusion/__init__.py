# SPDX-License-Identifier: Apache-2.0
"""kf: fused deep-learning kernels for Python. Usually imported as `import kernel_fusion as kf`.

Importing the package requires no framework, compiler or GPU.

- kf.ops: every op, for NumPy arrays, PyTorch tensors and GPU arrays such as CuPy's
- kf.jax: the same ops for JAX
- kf.nn: PyTorch modules over the ops
- kf.optim: PyTorch optimizers over the ops
- kf.fuse, kf.fuse_row: make an op from a formula
- kf.load: adds the ops of a program's own spec files and families to kf.ops
- kf.fused_<op>: an op with a `stream` argument (kf.Context, kf.Stream), as in the C runtime
- kf.kernels: the unchecked C launchers, and attention on the CPU
- kf.fkl: chains of operations as one kernel
- kf.config: what torch.compile sees of an op
- kf.benchmarks: timing of functions on the CPU and on GPUs
- kf.info: which libraries are loaded, and which inputs were copied
- kf.warmup: compiles CPU functions or GPU kernels before the first call
- kf.build_launchers, kf.use_launchers: GPU kernels compiled ahead of time for other machines
"""

import importlib
from typing import TYPE_CHECKING, Any

from kernel_fusion._info import cuda_available, get_include, info, version
from kernel_fusion._library import get_threads, set_threads

if TYPE_CHECKING:
    from kernel_fusion import benchmarks as benchmarks
    from kernel_fusion import config as config
    from kernel_fusion import fkl as fkl
    from kernel_fusion import jax as jax
    from kernel_fusion import kernels as kernels
    from kernel_fusion import nn as nn
    from kernel_fusion import ops as ops
    from kernel_fusion import optim as optim
    from kernel_fusion._fuse import fuse as fuse
    from kernel_fusion._fuse import fuse_row as fuse_row
    from kernel_fusion._launchers import build_launchers as build_launchers
    from kernel_fusion._launchers import use_launchers as use_launchers
    from kernel_fusion._loaded import load as load
    from kernel_fusion._streams import Context as Context
    from kernel_fusion._streams import Stream as Stream
    from kernel_fusion._warmup import warmup as warmup

    CUDA_AVAILABLE: bool
    EXTENSION_LOADED: bool

__all__ = [
    "CUDA_AVAILABLE",
    "Context",
    "EXTENSION_LOADED",
    "Stream",
    "benchmarks",
    "build_launchers",
    "config",
    "fkl",
    "fuse",
    "fuse_row",
    "get_include",
    "get_threads",
    "info",
    "kernels",
    "load",
    "nn",
    "ops",
    "optim",
    "set_threads",
    "use_launchers",
    "warmup",
]
__version__ = version()


def __getattr__(name: str) -> Any:
    """Imports submodules and lazy names on first access."""
    if name in ("benchmarks", "config", "fkl", "jax", "kernels", "nn", "ops", "optim"):
        return importlib.import_module(f"kernel_fusion.{name}")
    lazy = {
        "fuse": "_fuse",
        "fuse_row": "_fuse",
        "load": "_loaded",
        "Context": "_streams",
        "Stream": "_streams",
        "warmup": "_warmup",
        "build_launchers": "_launchers",
        "use_launchers": "_launchers",
    }
    if name in lazy:
        found = getattr(importlib.import_module(f"kernel_fusion.{lazy[name]}"), name)
        globals()[name] = found
        return found
    if name.startswith("fused_") and name.endswith("_jax"):
        return getattr(importlib.import_module("kernel_fusion.jax"), name)
    if name.startswith("fused_"):
        return importlib.import_module("kernel_fusion._streams").function(name)
    if name == "EXTENSION_LOADED":
        from kernel_fusion import _library

        found = _library.available()
    elif name == "CUDA_AVAILABLE":
        found = cuda_available()
    else:
        raise AttributeError(f"module 'kernel_fusion' has no attribute '{name}'")
    globals()[name] = found
    return found
