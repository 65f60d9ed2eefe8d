# SPDX-License-Identifier: Apache-2.0
"""Autocast, in front of the gradient, so that casts have their own: what the manifest says of an op, float32 for sums and losses, autocast's own
dtype for products, the widest of the tensors' dtypes, or what is given; weights beside 2-byte tensors are of their dtype or float32."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_fusion._table import WIDE, Op
from kernel_fusion.torch._kernels import DTYPES, WORDS

DEVICES = ("cpu", "cuda")  # that torch has autocast for, of those that an op may be called on


def cast(op: Op, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The op's inputs, cast to dtypes that go together."""
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
    if (
        op.autocast == "low" and wide != torch.float64
    ):  # which PyTorch's own products leave as it is, too
        wide = torch.get_autocast_dtype(next(x.device.type for x in tensors if x is not None))
    sums = DTYPES[WIDE[WORDS[wide]]]
    weights = [
        x.dtype for t, x in zip(op.forward.inputs, tensors) if t.var == "U" and x is not None
    ]
    second = wide if all(d == wide for d in weights) else sums
    to = {"T": wide, "U": second, "acc": sums}
    return [
        x if x is None or t.var not in to or not x.is_floating_point() else x.to(to[t.var])
        for t, x in zip(op.forward.inputs, tensors)
    ]
