# SPDX-License-Identifier: Apache-2.0
"""Autocast, in front of the gradient, so that casts have their own: tensors of one dtype are all cast to the widest among them, weights beside 2-byte
ones are theirs or float32. kf's sums are float32 in any case. One rule for all ops: the manifest has no class of autocast yet."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_fusion._table import WIDE, Op
from kernel_fusion.torch._kernels import DTYPES, WORDS

DEVICES = ("cpu", "cuda")  # that torch has autocast for, of those that an op may be called on


def cast(op: Op, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The op's inputs, cast to dtypes that go together."""
    own = [x.dtype for t, x in zip(op.forward.inputs, tensors) if t.var == "T" and x is not None and x.dtype in WORDS]
    if not own:
        return [*tensors]
    wide = functools.reduce(torch.promote_types, own)
    sums = DTYPES[WIDE[WORDS[wide]]]
    weights = [x.dtype for t, x in zip(op.forward.inputs, tensors) if t.var == "U" and x is not None]
    second = wide if all(d == wide for d in weights) else sums
    to = {"T": wide, "U": second, "acc": sums}
    return [x if x is None or t.var not in to or not x.is_floating_point() else x.to(to[t.var]) for t, x in zip(op.forward.inputs, tensors)]
