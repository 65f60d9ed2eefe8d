# SPDX-License-Identifier: Apache-2.0
"""The tensors of a case: drawn once, kept, and lent to every case that needs as many."""

import math

import torch
from peers import TORCH

# N(0, 1); a variance is |N(0, 1)| + 0.1.
DISTRIBUTION = ("inputs N(0, 1), drawn once in float32 and rounded to the dtype; variances |N(0, 1)| + 0.1; "
                "outputs filled with a NaN pattern before the check")

# A NaN that no arithmetic produces: its payload shows where a kernel did not write.
POISON = {torch.float32: (torch.int32, 0x7FABCDEF), torch.float16: (torch.int16, 0x7DAB), torch.bfloat16: (torch.int16, 0x7FAB)}


class Pool:
    """Flat buffers by dtype, use and number; a case gets views of them."""

    def __init__(self, device):
        self.device, self.buffers = torch.device(device), {}
        self.generator = torch.Generator(device=self.device).manual_seed(1)

    def _draw(self, count, dtype, positive):
        flat = torch.empty(count, dtype=dtype, device=self.device)
        for part in flat.split(1 << 26):  # so that the float32 draws of a 2-byte tensor stay small
            part.copy_(torch.randn(part.numel(), generator=self.generator, device=self.device))
        return flat.abs_().add_(0.1) if positive else flat

    def take(self, key, count, dtype, random, positive=False):
        flat = self.buffers.get(key)
        if flat is None or flat.numel() < count:
            self.buffers.pop(key, None)
            flat = self._draw(count, dtype, positive) if random else torch.zeros(count, dtype=dtype, device=self.device)
            self.buffers[key] = flat
        return flat[:count]

    def tensors(self, case, index):
        """({input name: tensor}, {output name: tensor}) of set number `index`."""
        found, taken = ({}, {}), {}
        for part, arguments in zip(found, (case.inputs, case.outputs)):
            for a in arguments:
                shape, dtype = case.shape(a), TORCH[a["dtype"]]
                small = a["kind"] in ("row", "channel")
                use = (dtype, a["role"] == "in", a["positive"], small, a["kind"] == "half", index)
                taken[use] = taken.get(use, -1) + 1  # the first, second, ... of its kind in this call
                flat = self.take((*use, taken[use]), math.prod(shape), dtype, a["role"] == "in", a["positive"])
                part[a["name"]] = flat.view(shape)
        return found

    def scratch(self, size, *name, random=False):
        """At least `size` bytes: a workspace, or one side of the copy."""
        return self.take(("scratch", *name), (size + 3) // 4, torch.float32, random)


def poison(tensor):
    word, pattern = POISON[tensor.dtype]
    tensor.view(word).fill_(pattern)


def unwritten(tensor):
    word, pattern = POISON[tensor.dtype]
    return int((tensor.view(word) == pattern).sum())
