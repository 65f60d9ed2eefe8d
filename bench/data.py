# SPDX-License-Identifier: Apache-2.0
"""Tensors of the cases: drawn once, kept, and shared by all cases of equal needs."""

import math

import peers
import torch
from peers.elementwise import TORCH

DISTRIBUTION = (
    "inputs N(0, 1), drawn once in float32 and rounded to the dtype, but for labels, masks and "
    "probabilities; variances |N(0, 1)| + 0.1; what a gradient is given of its forward is kf's "
    "own; outputs filled with a NaN pattern before the check"
)

# A NaN that no arithmetic produces: its payload shows where a kernel did not write.
POISON = {
    torch.float32: (torch.int32, 0x7FABCDEF),
    torch.float16: (torch.int16, 0x7DAB),
    torch.bfloat16: (torch.int16, 0x7FAB),
}
PLAIN = ("normal", "positive", "uniform")  # drawn element by element, whatever the shape


class Pool:
    """Flat buffers by dtype, use and number; a case gets views of them."""

    def __init__(self, device):
        self.device, self.buffers = torch.device(device), {}
        self.generator = torch.Generator(device=self.device).manual_seed(1)

    def _normal(self, count):
        return torch.randn(count, generator=self.generator, device=self.device)

    def _draw(self, count, dtype, how):
        flat = torch.empty(count, dtype=dtype, device=self.device)
        for part in flat.split(1 << 26):  # so that the float32 draws of a 2-byte tensor stay small
            if how == "uniform":
                part.copy_(torch.rand(part.numel(), generator=self.generator, device=self.device))
            else:
                part.copy_(self._normal(part.numel()))
        return flat.abs_().add_(0.1) if how == "positive" else flat

    def _shaped(self, shape, dtype, how, case):
        """Draws tensors whose values depend on the shape."""
        if callable(how):
            return torch.as_tensor(how(case), dtype=dtype, device=self.device)
        if how == "words":
            return torch.randint(
                case.sizes[1], shape, generator=self.generator, device=self.device, dtype=dtype
            )
        if how in case.f["sizes"]:
            return torch.randint(
                case.sizes[case.f["sizes"].index(how)],
                shape,
                generator=self.generator,
                device=self.device,
                dtype=dtype,
            )
        if how == "labels":
            return torch.randint(
                case.sizes[-1], shape, generator=self.generator, device=self.device, dtype=dtype
            )
        if how in ("mask", "seen"):
            seen = torch.rand(shape, generator=self.generator, device=self.device) < 0.7
            seen[..., 0] = True  # no query without a key
            return (
                seen
                if how == "seen"
                else torch.where(seen, self._normal(seen.numel()).view(shape), -torch.inf).to(dtype)
            )
        values = self._normal(math.prod(shape)).view(shape)
        if how == "distribution":
            return values.softmax(-1).to(dtype)
        if how == "small":  # weights of a layer
            return (values / 64).to(dtype)
        assert how == "near_one", how
        return torch.exp(values / shape[1] ** 0.5).to(dtype)

    def take(self, key, count, dtype, how=None):
        """Returns a flat buffer; how is None for tensors that are written first."""
        flat = self.buffers.get(key)
        if flat is None or flat.numel() < count:
            self.buffers.pop(key, None)
            flat = (
                self._draw(count, dtype, how)
                if how
                else torch.zeros(count, dtype=dtype, device=self.device)
            )
            self.buffers[key] = flat
        return flat[:count]

    def tensors(self, case, index, saved=()):
        """Returns ({input: tensor}, {output: tensor}) of a set; the forward writes `saved`."""
        found, taken = ({}, {}), {}
        for part, arguments in zip(found, (case.inputs, case.outputs)):
            for a in arguments:
                shape, dtype, read = (
                    case.shape(a),
                    TORCH[a["dtype"]],
                    a["role"] == "in" and a["name"] not in saved,
                )
                how = (
                    peers.draw(case.f, a["name"]) or ("positive" if a["positive"] else "normal")
                    if read
                    else None
                )
                how = a["index"]["below"] if read and a["index"] else how  # a size
                if how and how not in PLAIN:
                    # A function may read all sizes of the case.
                    at = (case.sizes, case.skip) if callable(how) else case.sizes[-1]
                    key = ("shaped", how, dtype, shape, at, index)
                    if key not in self.buffers:
                        self.buffers[key] = self._shaped(shape, dtype, how, case)
                    part[a["name"]] = self.buffers[key]
                    continue
                use = (dtype, how, math.prod(shape) < 1 << 16, a["kind"] == "half", index)
                taken[use] = (
                    taken.get(use, -1) + 1
                )  # the first, second, ... of its kind in this call
                part[a["name"]] = self.take((*use, taken[use]), math.prod(shape), dtype, how).view(
                    shape
                )
        return found

    def scratch(self, size, *name, how=None):
        """At least `size` bytes: a workspace, or one side of the copy."""
        flat = self.take(("scratch", *name), (size + 3) // 4 + 64, torch.float32, how)
        return flat[-flat.data_ptr() % 256 // 4 :]  # aligned as a workspace has to be


def poison(tensor):
    if tensor.dtype in POISON:
        word, pattern = POISON[tensor.dtype]
        tensor.view(word).fill_(pattern)


def unwritten(tensor):
    if tensor.dtype not in POISON:
        return 0
    word, pattern = POISON[tensor.dtype]
    return int((tensor.view(word) == pattern).sum())
