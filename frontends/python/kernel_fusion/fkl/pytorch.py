# SPDX-License-Identifier: Apache-2.0
"""Chains as differentiable functions of PyTorch tensors."""

from collections.abc import Callable
from typing import Any

import torch

from kernel_fusion.fkl import _chain


class PyTorchFKL:
    """Makes functions of tensors on a device.

    Args:
        device: a torch.device or its name, "cpu" or "cuda"
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"kf.fkl.PyTorchFKL: device is {device}, expected cpu or cuda")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"kf.fkl.PyTorchFKL: device is {device}, and PyTorch sees no GPU")

    def compose_kernel(self, *operations: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns a function of one tensor that runs the operations as one kernel.

        Its gradient is derived.

        Raises:
            TypeError: an operation is none of Mul, Add, Sub, Div.
        """
        where = "kf.fkl.PyTorchFKL"
        chain, device = _chain.compose(where, operations), self.device

        def function(x: torch.Tensor) -> torch.Tensor:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{where}: x is {type(x).__name__}, expected a tensor")
            if x.device.type != device.type or device.index not in (None, x.device.index):
                raise ValueError(f"{where}: x is on {x.device}, expected {device}")
            found: torch.Tensor = chain(x)
            return found

        return function
