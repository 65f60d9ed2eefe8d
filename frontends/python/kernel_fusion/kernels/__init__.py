# SPDX-License-Identifier: Apache-2.0
"""kf's C launchers, unchecked: no shapes, dtypes or devices are checked, nothing is copied,
allocated or recorded for autograd. Wrong arguments read and write foreign memory.

    kf.kernels.fusion.bias_gelu_f32(x, bias, out, rows, cols)
    kf.kernels.reduction.sum_f32(x, out, outer, axis, inner)

- elementwise: ops whose tensors all have one shape
- reduction: ops over an axis
- fusion: all others, with broadcast operands, over rows, losses
- cpu_kernels: attention on the CPU, from several ops

Arguments are those of the C launcher, in its order: tensors (arrays, PyTorch tensors, addresses or
None); sizes; strides, where it takes them, as a sequence of the struct's fields or None; integers,
scalars, beta; p, seed and offset. The workspace is allocated internally. dir() of a group lists
its functions, help() of a function its arguments. ValueError reports an argument that the launcher
refuses.

A name without a dtype is a function of kf.ops, checks included, in any group:
kf.kernels.elementwise.add_relu(a, b). kf.kernels.fused_<op> is kf.fused_<op>.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from kernel_fusion.kernels._groups import Group

if TYPE_CHECKING:
    from kernel_fusion.kernels import cpu_kernels as cpu_kernels

elementwise = Group("elementwise", "Launchers of ops whose tensors all have one shape.")
fusion = Group("fusion", "Launchers of all other ops.")
reduction = Group("reduction", "Launchers of ops over an axis.")
GROUPS = ("elementwise", "fusion", "reduction")
# Modules without files of their own, so that `from kernel_fusion.kernels.fusion import` works.
sys.modules.update({f"{__name__}.{group}": globals()[group] for group in GROUPS})


def __getattr__(name: str) -> Any:
    """Imports modules and makes functions on first access."""
    if name == "cpu_kernels":
        return importlib.import_module("kernel_fusion.kernels.cpu_kernels")
    if name.startswith("fused_"):
        return importlib.import_module("kernel_fusion._streams").function(name)
    raise AttributeError(f"module 'kernel_fusion.kernels' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*GROUPS, "cpu_kernels"]
