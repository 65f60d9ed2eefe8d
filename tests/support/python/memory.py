# SPDX-License-Identifier: Apache-2.0
"""Layouts in memory of PyTorch's results, for ops whose dimensions may have any order."""

import numpy as np
import torch
from torch._prims_common import compute_elementwise_output_strides


def whole(op, tensors):
    """Returns the operands that have the result's shape; the first half of each pair of halves."""
    found = [t for t in op.forward.inputs if t.kind in ("elem", "half") and t.name in tensors]
    return [
        tensors[t.name].detach().chunk(2, -1)[0] if t.kind == "half" else tensors[t.name].detach()
        for t in found
    ]


def like(op, tensors):
    """Returns an uninitialised tensor with the shape and the layout of PyTorch's result."""
    given = whole(op, tensors)
    layout = compute_elementwise_output_strides(*given)
    return torch.empty_strided(given[0].shape, layout, dtype=given[0].dtype)


def takes(op, tensors):
    """True if kernels compute an elementwise op, or a norm of channels, in the order of memory."""
    return op.is_flat or op.has_axis or like(op, tensors).stride(-1) == 1


def strides(t):
    """Returns the strides of dimensions with several elements, as an array."""
    return np.array([s for n, s in zip(t.shape, t.stride()) if n > 1] if t.numel() else [])
