# SPDX-License-Identifier: Apache-2.0
"""Base of the optimizers that torch.optim lacks, with the checks of their arguments."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernel_fusion.optim._step import Stepped


class Own(Stepped):
    """Takes the arguments that all optimizers of torch.optim share, and those of the subclass."""

    def __init__(self, params: Any, given: dict[str, Any], shared: dict[str, Any]):
        self._check_values(given)
        if shared["fused"] and shared["foreach"]:
            raise ValueError(f"{self.where}: fused and foreach are True, expected one of them")
        super().__init__(params, given | shared)

    def _check_values(self, given: dict[str, Any]) -> None:
        lr, betas = given["lr"], given["betas"]
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(
                f"{self.where}: lr has the shape {tuple(lr.shape)}, expected one number"
            )
        for name in [n for n in ("lr", "eps", "weight_decay") if n in given]:
            if not given[name] >= 0:
                raise ValueError(f"{self.where}: {name} is {given[name]}, expected at least 0")
        self._check_betas(betas)

    def _check_betas(self, betas: Sequence[float]) -> None:
        for i, x in enumerate(betas):
            if not 0 <= x < 1:
                raise ValueError(
                    f"{self.where}: betas[{i}] is {x}, expected at least 0 and below 1"
                )
