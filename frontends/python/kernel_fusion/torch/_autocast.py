# SPDX-License-Identifier: Apache-2.0
"""Autocast, applied before autograd so that casts are differentiated.

The manifest names each op's policy: float32 for sums and losses, autocast's dtype for products,
the widest dtype of the tensors, or no change. Weights of 2-byte tensors get their dtype or
float32.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_fusion._table import WIDE, Op
from kernel_fusion.torch._kernels import DTYPES, WORDS

# Device types with autocast on which ops can be called.
DEVICES = ("cpu", "cuda")


def cast(op: Op, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Casts the op's inputs to compatible dtypes."""
    own = [
        x.dtype
        for t, x in zip(op.forward.inputs, tensors)
        if t.var == "T" and x is not None and x.dtype in WORDS
    ]
    if not own or op.autocast == "same":
        return [*tensors]
    wide = functools.reduce(
        torch.promote_types, [*own, torch.float32] if op.autocast == "float32" else own
    )
    # Like PyTorch's own products, which leave float64 unchanged.
    if op.autocast == "low" and wide != torch.float64:
        wide = torch.get_autocast_dtype(next(x.device.type for x in tensors if x is not None))
    sums = DTYPES[WIDE[WORDS[wide]]]
    to = {"T": wide, "acc": sums}
    for v in op.further:
        given = [
            x.dtype for t, x in zip(op.forward.inputs, tensors) if t.var == v and x is not None
        ]
        to[v] = wide if all(d == wide for d in given) else sums
    return [
        x if x is None or t.var not in to or not x.is_floating_point() else x.to(to[t.var])
        for t, x in zip(op.forward.inputs, tensors)
    ]
