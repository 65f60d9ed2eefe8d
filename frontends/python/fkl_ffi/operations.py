# SPDX-License-Identifier: Apache-2.0
"""Another name of kernel_fusion.fkl.operations."""

from kernel_fusion.fkl.operations import Add, Div, Mul, Sub, TensorRead, TensorWrite

__all__ = ["Add", "Div", "Mul", "Sub", "TensorRead", "TensorWrite"]
