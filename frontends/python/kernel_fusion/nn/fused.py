# SPDX-License-Identifier: Apache-2.0
"""Embedding, rotary embedding, and modules under the names of other fused-kernel libraries."""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import ops
from kernel_fusion.nn.activations import GELU, ReLU, only
from kernel_fusion.nn.norms import LayerNorm


class Embedding(torch.nn.Embedding):
    """scale * weight[input], a replacement of torch.nn.Embedding.

    Args:
        *args, **kwargs: as torch.nn.Embedding; max_norm, scale_grad_by_freq and sparse are refused
        scale: number that multiplies the rows
    """

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        only(
            "Embedding",
            max_norm=(self.max_norm, None),
            scale_grad_by_freq=(self.scale_grad_by_freq, False),
            sparse=(self.sparse, False),
        )
        self.scale = scale

    def forward(self, input: Tensor) -> Any:
        return ops.embedding(self.weight, input, padding_idx=self.padding_idx, scale=self.scale)


class RotaryEmbedding(torch.nn.Module):
    """Rotates the pairs of each head by the angles of the row's position.

    Angle i of position p is p * base ** (-2 i / dim). Elements after the first `dim` are copied.

    Args:
        dim: number of elements that are rotated, even
        max_positions: number of positions in the tables
        base: base of the frequencies
        interleaved: if True, a pair is elements 2 i and 2 i + 1 (GPT-J); else elements i and
            i + dim / 2 (GPT-NeoX, Llama)
        device: device of the tables
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        dim: int,
        max_positions: int = 2048,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        device: Any = None,
    ):
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"kf.nn.RotaryEmbedding: dim is {dim}, expected an even number")
        self.dim, self.max_positions, self.base = dim, max_positions, base
        self.interleaved = interleaved
        pairs = torch.arange(0, dim, 2, dtype=torch.float64, device=device)
        positions = torch.arange(max_positions, dtype=torch.float64, device=device)
        angles = positions[:, None] * base ** (-pairs / dim)
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor, position: Tensor | None = None) -> Any:
        """Rotates x [..., rows, heads, dim]; position [..., rows] defaults to the row's index."""
        function = ops.rope_interleaved if self.interleaved else ops.rope
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return function(x, self.cosine.to(wide), self.sine.to(wide), position)

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, max_positions={self.max_positions}, base={self.base}, "
            f"interleaved={self.interleaved}"
        )


class FusedGELU(GELU):
    """kf.nn.GELU."""


class FusedReLU(ReLU):
    """kf.nn.ReLU."""


class FusedSwiGLU(torch.nn.Module):
    """silu(gate) * up; of one tensor, its first half is the gate and its second half is up."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Any:
        return ops.silu_glu(gate) if up is None else ops.silu_mul(gate, up)


class FusedLayerNormActivation(LayerNorm):
    """act(layer_norm(input)): kf.nn.LayerNorm with the activation as second argument.

    Args:
        normalized_shape: as torch.nn.LayerNorm
        activation: name of an activation
        **kwargs: as torch.nn.LayerNorm
    """

    def __init__(self, normalized_shape: Any, activation: str = "relu", **kwargs: Any):
        super().__init__(normalized_shape, activation=activation, **kwargs)
