# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention with PyTorch's arguments, over kf's attention."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from kernel_fusion import _multihead

NAME = "scaled_dot_product_attention"
WHERE = f"kf.{NAME}"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    given = [_tensor(n, t) for n, t in (("query", query), ("key", key), ("value", value))]
    _check(given)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{WHERE}: dropout_p is {dropout_p}, expected 0 to 1")
    mask = None if attn_mask is None else _tensor("attn_mask", attn_mask)
    if mask is not None and is_causal:
        raise ValueError(
            f"{WHERE}: attn_mask is given beside is_causal = True, expected one of them"
        )
    if scale is None:
        if given[0].shape[-1] is None:
            raise ValueError(f"{WHERE}: query has an unknown last dimension, expected scale")
        scale = 1 / math.sqrt(max(given[0].shape[-1], 1))
    lead = _leads(given, enable_gqa)
    q, k, v = (_heads_first(t, own) for t, own in zip(given, lead))
    shape = [*lead[0], _sizes(q)[-2]]
    if mask is not None:
        mask = _mask(mask, [*shape, _sizes(k)[-2]], q.dtype)
    found = _attend((q, k, v), mask, is_causal, scale, dropout_p)
    return tf.reshape(found, [*shape, _sizes(v)[-1]])


scaled_dot_product_attention.__doc__ = _multihead.FUNCTIONS[0].__doc__


def _plain(name: str) -> Callable[..., Any]:
    from kernel_fusion_tensorflow import _functions  # which imports this module

    return _functions.plain(name, NAME)


def _tensor(name: str, x: Any) -> Any:
    from kernel_fusion_tensorflow import _functions  # which imports this module

    return _functions.tensor(WHERE, name, x)


def _sizes(x: Any) -> list[Any]:
    """Returns the dimensions of a tensor: numbers, or tensors if unknown."""
    every = tf.shape(x)
    return [every[i] if n is None else n for i, n in enumerate(x.shape)]


def _check(given: Sequence[Any]) -> None:
    query, key, value = given
    for name, t in zip(("query", "key", "value"), given):
        if t.shape.rank is None or t.shape.rank < 2:
            raise ValueError(
                f"{WHERE}: {name} has the shape {t.shape}, expected at least two dimensions"
            )
        if t.dtype != query.dtype:
            raise TypeError(
                f"{WHERE}: {name} has the dtype {t.dtype.name}, expected {query.dtype.name} as "
                f"query"
            )
    for name, t, size, at in (
        ("key", key, query.shape[-1], -1),
        ("value", value, key.shape[-2], -2),
    ):
        if None not in (t.shape[at], size) and t.shape[at] != size:
            wanted = ("...", "any", size) if at == -1 else ("...", size, "any")
            raise ValueError(f"{WHERE}: {name} has the shape {t.shape}, expected {wanted}")


def _joined(leads: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the leading dimensions to which all broadcast; unknown ones are tensors."""
    rank, found = max(map(len, leads)), []
    for d in range(-rank, 0):
        sizes = [own[d] for own in leads if len(own) >= -d]
        known = {n for n in sizes if isinstance(n, int)} - {1}
        unknown = [n for n in sizes if not isinstance(n, int)]
        if len(known) > 1:
            texts = " and ".join(str(tuple(own)) for own in leads)
            raise ValueError(
                f"{WHERE}: query, key and value have the leading dimensions {texts}, expected "
                f"shapes that broadcast"
            )
        found.append(known.pop() if known else functools.reduce(tf.maximum, unknown, 1))
    return found


def _leads(given: Sequence[Any], gqa: bool) -> list[list[Any]]:
    """Returns the leading dimensions of each tensor, after broadcasting."""
    own = [_sizes(t)[:-2] for t in given]
    if not gqa:
        return [_joined(own)] * 3
    heads = [lead[-1] if lead else 1 for lead in own]
    numbers = all(isinstance(n, int) for n in heads)
    if numbers and (heads[1] != heads[2] or heads[1] < 1 or heads[0] % heads[1]):
        raise ValueError(
            f"{WHERE}: query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads, "
            f"expected a divisor of query's, one for key and value"
        )
    batch = _joined([lead[:-1] for lead in own])
    return [[*batch, n] if any(map(len, own)) else [] for n in heads]


def _heads_first(t: Any, lead: Sequence[Any]) -> Any:
    """Returns a tensor as [batch, heads, rows, dim]."""
    rows = _sizes(t)[-2:]
    if len(lead) + 2 != t.shape.rank or [*t.shape[:-2]] != [*lead]:
        t = tf.broadcast_to(t, [*lead, *rows])
    batch = functools.reduce(lambda a, b: a * b, lead[:-1], 1)
    return tf.reshape(t, [batch, lead[-1] if lead else 1, *rows])


def _mask(mask: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Returns a mask as [batch, heads, queries, keys], of bool or of the dtype."""
    if not (mask.dtype == tf.bool or mask.dtype.is_floating):
        raise TypeError(
            f"{WHERE}: attn_mask has the dtype {mask.dtype.name}, expected bool or {dtype.name}"
        )
    known = all(isinstance(n, int) for n in shape) and mask.shape.is_fully_defined()
    own = mask.shape.as_list() if known else []
    tail = shape[len(shape) - len(own) :]
    if known and (len(own) > len(shape) or any(m not in (1, n) for m, n in zip(own, tail))):
        raise ValueError(
            f"{WHERE}: the mask has the shape {tuple(own)}, expected one that broadcasts to "
            f"{tuple(shape)}"
        )
    mask = mask if mask.dtype == tf.bool else tf.cast(mask, dtype)
    return _heads_first(tf.broadcast_to(mask, shape), shape[:-2])


def _attend(given: Sequence[Any], mask: Any, causal: bool, scale: float, p: float) -> Any:
    """Computes attention of tensors [batch, heads, rows, dim] by one kernel."""
    if causal and None in (given[0].shape[2], given[1].shape[2]):
        mask, causal = _lower(given), False
    rows = [tf.transpose(t, [0, 2, 1, 3]) for t in given]
    name, more = "full", {"scale": scale} | ({"p": p} if p else {})
    if mask is not None:
        rows.append(mask)
        name = "mask" if mask.dtype == tf.bool else "bias"
    elif causal:
        right = given[0].shape[2] - given[1].shape[2]
        name, more = ("window", more | {"right": right}) if right else ("causal", more)
    found = _plain(_multihead.kernel_name(name, p))(*rows, **more)
    return tf.transpose(found, [0, 2, 1, 3])


def _lower(given: Sequence[Any]) -> Any:
    """Returns the mask of is_causal, [batch, heads, queries, keys]."""
    batch, heads, queries, _ = _sizes(given[0])
    shape = [queries, _sizes(given[1])[2]]
    lower = tf.linalg.band_part(tf.ones(shape, tf.bool), -1, 0)
    return tf.broadcast_to(lower, [batch, heads, *shape])
