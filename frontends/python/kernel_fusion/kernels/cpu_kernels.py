# SPDX-License-Identifier: Apache-2.0
"""Attention on the CPU, from products of NumPy or PyTorch and kf's softmax, and its timing.

    from kernel_fusion.kernels.cpu_kernels import optimized_cpu_attention
    out = optimized_cpu_attention(q, k, v, chunk_size=64)

Tensors are [batch, heads, rows, dim]. PyTorch tensors have gradients.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernel_fusion import benchmarks, ops


def cpu_fused_attention(
    q: Any, k: Any, v: Any, scale: float | None = None, mask: Any = None, causal: bool = False
) -> Any:
    """softmax(q @ k.T * scale + mask) @ v; stores all scores between the products.

    Args:
        q: [batch, heads, queries, dim]
        k: [batch, heads, keys, dim], q's dtype
        v: [batch, heads, keys, value_dim], q's dtype
        scale: any number; None stands for 1 / sqrt(dim)
        mask: [batch, queries, keys]: q's dtype, added; or bool, True where a key is visible
        causal: if True, the last query sees all keys, each query before it one less; excludes
            mask

    Returns:
        out [batch, heads, queries, value_dim]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    _check("cpu_fused_attention", q, k, v)
    return ops.fused_attention_score(q, k, scale, mask, causal) @ v


def optimized_cpu_attention(
    q: Any,
    k: Any,
    v: Any,
    scale: float | None = None,
    mask: Any = None,
    causal: bool = False,
    *,
    chunk_size: int = 64,
) -> Any:
    """cpu_fused_attention by chunks of queries: stores the scores of one chunk at a time.

    A causal chunk reads no key after its last query.

    Args:
        q, k, v, scale, mask, causal: as in cpu_fused_attention
        chunk_size: queries of a chunk, at least 1

    Returns:
        out [batch, heads, queries, value_dim]

    Raises:
        TypeError: the dtype has no function, or chunk_size is no whole number.
        ValueError: shapes do not match, or chunk_size is below 1.
    """
    where = "optimized_cpu_attention"
    _check(where, q, k, v)
    if isinstance(chunk_size, bool) or not hasattr(chunk_size, "__index__"):
        raise TypeError(
            f"kf.{where}: chunk_size is {type(chunk_size).__name__}, expected a whole number"
        )
    if chunk_size < 1:
        raise ValueError(f"kf.{where}: chunk_size is {chunk_size}, expected at least 1")
    if mask is not None and causal:
        raise ValueError(f"kf.{where}: mask is given beside causal = True, expected one of them")
    rows, keys = q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    found = []
    for first in range(0, rows, chunk_size) or (0,):
        end = min(first + chunk_size, rows)
        ahead = keys - rows  # the last query sees the last key
        seen = min(max(end + ahead, 1), keys) if causal else keys
        given = _causal(q, first + ahead, end + ahead, seen) if causal else mask
        part = given if given is None or causal else given[..., first:end, :]
        scores = ops.fused_attention_score(q[..., first:end, :], k[..., :seen, :], scale, part)
        found.append(scores @ v[..., :seen, :])
    if isinstance(q, np.ndarray):
        return np.concatenate(found, -2)
    return sys.modules["torch"].cat(found, -2)


def _causal(q: Any, first: int, end: int, keys: int) -> Any:
    """Returns a bool mask [batch, end - first, keys]: query i sees the keys up to first + i."""
    seen = np.arange(keys) <= np.arange(first, end)[:, None]
    seen = np.broadcast_to(seen, (*q.shape[:-3], *seen.shape)).copy()
    return seen if isinstance(q, np.ndarray) else sys.modules["torch"].from_numpy(seen)


def _check(where: str, q: Any, k: Any, v: Any) -> None:
    """Checks what the products would report under names of their own."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not hasattr(t, "shape") or not hasattr(t, "dtype"):
            raise TypeError(f"kf.{where}: {name} is {type(t).__name__}, expected an array")
        if getattr(getattr(t, "device", None), "type", "cpu") != "cpu":
            raise ValueError(f"kf.{where}: {name} is on {t.device}, expected the CPU")
    shape = tuple(q.shape)
    wanted = {"q": "[batch, heads, queries, dim]", "k": (*shape[:-2], "keys", *shape[-1:])}
    if len(shape) != 4:
        raise ValueError(f"kf.{where}: q has the shape {shape}, expected {wanted['q']}")
    if len(k.shape) != 4 or (*k.shape[:2], k.shape[-1]) != (*shape[:2], shape[-1]):
        raise ValueError(f"kf.{where}: k has the shape {tuple(k.shape)}, expected {wanted['k']}")
    if len(v.shape) != 4 or tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(
            f"kf.{where}: v has the shape {tuple(v.shape)}, expected {(*k.shape[:-1], 'any')} "
            f"beside k of the shape {tuple(k.shape)}"
        )


class CPUKernelBenchmark:
    """Timing of attention functions on the CPU."""

    @staticmethod
    def compare_implementations(
        fns: Mapping[str, Callable[..., Any]], *inputs: Any, **options: Any
    ) -> benchmarks.Comparison:
        """kf.benchmarks.compare_implementations: times {name: function} of the same inputs."""
        return benchmarks.compare_implementations(fns, *inputs, **options)
