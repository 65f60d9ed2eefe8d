# SPDX-License-Identifier: Apache-2.0
"""Another name of kernel_fusion.fkl.pytorch."""

from kernel_fusion.fkl.pytorch import PyTorchFKL

__all__ = ["PyTorchFKL"]
