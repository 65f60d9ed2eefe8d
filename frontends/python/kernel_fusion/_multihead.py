# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops with the arguments of other libraries' attention: heads in front of rows,
any leading dimensions, masks that broadcast."""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _products, ops


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
    """softmax(query @ key.mT * scale + attn_mask) @ value, with PyTorch's arguments.

    One kernel computes it without storing the scores. Gradients are kernels, too. A query that sees
    no key has the result 0.

    Args:
        query: [batch..., heads, queries, dim], float32 float16 bfloat16 float64
        key: [batch..., heads, keys, dim], query's dtype
        value: [batch..., heads, keys, value_dim], query's dtype
        attn_mask: broadcasts to [batch..., heads, queries, keys]: float, added; or bool, True where
            a key is visible; or None
        dropout_p: probability that a weight is dropped, also in evaluation
        is_causal: if True, query i sees the keys up to i; excludes attn_mask
        scale: any number; None stands for 1 / sqrt(dim)
        enable_gqa: if True, key and value may have fewer heads than query, a divisor of them

    Returns:
        out [batch..., heads, queries, value_dim]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match, or both attn_mask and is_causal are given.
    """
    where = "scaled_dot_product_attention"
    _check(where, query, key, value)
    if attn_mask is not None and is_causal:
        raise ValueError(
            f"kf.{where}: attn_mask is given beside is_causal = True, expected one of them"
        )
    _probability(where, dropout_p)
    right = query.shape[-2] - key.shape[-2] if is_causal else None
    return _attend(where, (query, key, value), attn_mask, right, scale, enable_gqa, dropout_p)


def fused_attention_score(
    q: Any, k: Any, scale: float | None = None, mask: Any = None, causal: bool = False
) -> Any:
    """softmax(q @ k.T * scale + mask) over the keys.

    kf.ops.matmul computes the product, which stores all scores; kf.ops.scale_mask_softmax,
    scale_bool_mask_softmax or scale_causal_softmax computes the rest.

    Args:
        q: [batch..., heads, queries, dim]
        k: [batch..., heads, keys, dim], q's dtype
        scale: any number; None stands for 1 / sqrt(dim)
        mask: [batch..., queries, keys], the same for all heads: q's dtype, added; or bool, True
            where a key is visible; or None
        causal: if True, the last query sees all keys, each query before it one less; excludes
            mask

    Returns:
        out [batch..., heads, queries, keys]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    _products.product("fused_attention_score", "q", q, "k", k)
    _one_of("fused_attention_score", mask, causal)
    scale = _scale(scale, q)
    scores = ops.matmul(q, k.swapaxes(-1, -2))
    lead = scores.shape
    scores = scores.reshape((1,) * (3 - len(lead)) + tuple(lead)) if len(lead) < 3 else scores
    if causal:
        return ops.scale_causal_softmax(scores, scale=scale).reshape(lead)
    if mask is None:
        return ops.scale_mask_softmax(scores, scale=scale).reshape(lead)
    mask = mask.reshape((1,) * (len(scores.shape) - 1 - len(mask.shape)) + tuple(mask.shape))
    function = ops.scale_bool_mask_softmax if _is_bool(mask) else ops.scale_mask_softmax
    return function(scores, mask, scale=scale).reshape(lead)


def fused_multihead_attention(
    q: Any,
    k: Any,
    v: Any,
    num_heads: int,
    scale: float | None = None,
    mask: Any = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Any:
    """Multi-head attention of rows whose heads are side by side, as linear layers write them.

    One kernel computes it without storing the scores; gradients are those of
    scaled_dot_product_attention.

    Args:
        q: [batch..., queries, heads * dim]
        k: [batch..., keys, heads * dim], q's dtype
        v: [batch..., keys, heads * value_dim], q's dtype
        num_heads: number of heads
        scale: as in fused_attention_score
        mask: as in fused_attention_score
        causal: as in fused_attention_score
        dropout_p: probability that a weight is dropped, also in evaluation

    Returns:
        out [batch..., queries, heads * value_dim]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    where = "fused_multihead_attention"
    if isinstance(num_heads, bool) or not hasattr(num_heads, "__index__"):
        raise TypeError(
            f"kf.{where}: num_heads is {type(num_heads).__name__}, expected a whole number"
        )
    _products.arrays(where, q=q, k=k, v=v)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if len(t.shape) < 2 or num_heads < 1 or t.shape[-1] % num_heads:
            raise ValueError(
                f"kf.{where}: {name} has the shape {tuple(t.shape)}, expected a last dimension "
                f"that num_heads = {num_heads} divides"
            )
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise ValueError(
            f"kf.{where}: v has the shape {tuple(v.shape)}, expected "
            f"{(*k.shape[:-1], 'any')} beside k of the shape {tuple(k.shape)}"
        )
    _products.product(where, "q", q, "k", k)
    _one_of(where, mask, causal)
    _probability(where, dropout_p)

    def heads(t: Any) -> Any:
        return t.reshape(*t.shape[:-1], num_heads, t.shape[-1] // num_heads).swapaxes(-2, -3)

    mask = mask if mask is None else mask[..., None, :, :]
    given, right = (heads(q), heads(k), heads(v)), 0 if causal else None
    found = _attend(where, given, mask, right, scale, dropout_p=dropout_p)
    found = found.swapaxes(-2, -3)
    return found.reshape(*found.shape[:-2], v.shape[-1])


# ---- shapes


def _one_of(where: str, mask: Any, causal: bool) -> None:
    if mask is not None and causal:
        raise ValueError(f"kf.{where}: mask is given beside causal = True, expected one of them")


def _probability(where: str, dropout_p: float) -> None:
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"kf.{where}: dropout_p is {dropout_p}, expected 0 to 1")


def _is_bool(mask: Any) -> bool:
    return "bool" in str(mask.dtype)


def _scale(scale: float | None, q: Any) -> float:
    return 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale


def _check(where: str, query: Any, key: Any, value: Any) -> None:
    _products.arrays(where, query=query, key=key, value=value)
    for name, t in (("query", query), ("key", key), ("value", value)):
        if len(t.shape) < 2:
            raise ValueError(
                f"kf.{where}: {name} has the shape {tuple(t.shape)}, expected at least two "
                "dimensions"
            )
        if t.dtype != query.dtype:
            raise TypeError(
                f"kf.{where}: {name} has the dtype {t.dtype}, expected {query.dtype} as query"
            )
    for name, t, size, of in (
        ("key", key, query.shape[-1], -1),
        ("value", value, key.shape[-2], -2),
    ):
        if t.shape[of] != size:
            wanted = ("...", "any", size) if of == -1 else ("...", size, "any")
            raise ValueError(
                f"kf.{where}: {name} has the shape {tuple(t.shape)}, expected {wanted}"
            )


def _joined(where: str, name: str, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the shape to which all shapes broadcast."""
    found: list[int] = []
    for sizes in itertools.zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        own = {n for n in sizes if n != 1}
        if len(own) > 1:
            texts = " and ".join(str(tuple(s)) for s in shapes)
            raise ValueError(f"kf.{where}: {name} {texts}, expected shapes that broadcast")
        found.append(own.pop() if own else 1)
    return tuple(reversed(found))


def _expanded(t: Any, shape: Sequence[int]) -> Any:
    if tuple(t.shape) == tuple(shape):
        return t
    library = _products.library(t)
    return library.broadcast_to(t, shape) if library else t.expand(*shape)


def _heads_first(where: str, given: Sequence[Any], gqa: bool) -> tuple[list[Any], tuple[int, ...]]:
    """Returns q, k and v as [batch, heads, rows, dim], and the leading dimensions of the result."""
    lead = [tuple(t.shape[:-2]) for t in given]
    name = "query, key and value have the leading dimensions"
    if not gqa:
        every = _joined(where, name, lead)
        leads = [every] * 3
    else:
        own = [s[-1] if s else 1 for s in lead]
        every = (*_joined(where, name, [s[:-1] for s in lead]), own[0])
        if own[1] != own[2] or own[1] < 1 or own[0] % own[1]:
            raise ValueError(
                f"kf.{where}: query, key and value have {own[0]}, {own[1]} and {own[2]} heads, "
                "expected a divisor of query's, one for key and value"
            )
        leads = [(*every[:-1], n) for n in own]
        every = every if any(lead) else ()
    found = []
    for t, own_lead in zip(given, leads):
        t = _expanded(t, (*own_lead, *t.shape[-2:]))
        size = math.prod(own_lead[:-1])
        found.append(t.reshape(size, own_lead[-1] if own_lead else 1, *t.shape[-2:]))
    return found, every


def _mask(where: str, mask: Any, q: Any, lead: Sequence[int], keys: int) -> Any:
    """Returns a mask as [batch, heads, queries, keys], without copies of what it shares."""
    if not hasattr(mask, "shape"):
        raise TypeError(f"kf.{where}: mask is {type(mask).__name__}, expected an array")
    batch, heads, queries, _ = q.shape
    try:
        if len(mask.shape) > len(lead) + 2:
            raise ValueError
        last = _expanded(mask, (*mask.shape[:-1], keys) if mask.shape else (keys,))
        last = last if last is mask else last + 0 if not _is_bool(last) else last | last
        if len(lead) > 1 and len(last.shape) <= 3:  # nothing of the batch: no copy for it
            return _expanded(last, (batch, heads, queries, keys))
        return _expanded(last, (*lead, queries, keys)).reshape(batch, heads, queries, keys)
    except (ValueError, RuntimeError):
        raise ValueError(
            f"kf.{where}: the mask has the shape {tuple(mask.shape)}, expected one that "
            f"broadcasts to {(*lead, queries, keys)}"
        ) from None


# ---- calls


def _attend(
    where: str,
    given: tuple[Any, Any, Any],
    mask: Any,
    right: int | None,
    scale: float | None,
    gqa: bool = False,
    dropout_p: float = 0.0,
) -> Any:
    """Computes attention of tensors [batch..., heads, rows, dim].

    Args:
        right: query i sees keys up to i + keys - queries + right; None: all.
    """
    scale = _scale(scale, given[0])
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given[0], torch.Tensor):
        from kernel_fusion.torch import _recomputed

        return _recomputed.call(where, given, mask, right, scale, gqa, dropout_p)
    return fused(where, given, mask, right, scale, gqa, dropout_p)


def fused(
    where: str,
    given: Sequence[Any],
    mask: Any,
    right: int | None,
    scale: float,
    gqa: bool,
    dropout_p: float = 0.0,
    rng: Any = None,
) -> Any:
    """One kernel. rng: seed and offset of dropout."""
    (q, k, v), lead = _heads_first(where, given, gqa)
    q_rows, k_rows, v_rows = (t.swapaxes(1, 2) for t in (q, k, v))
    if mask is not None:
        mask = _mask(where, mask, q, lead, k.shape[2])
        if not _is_bool(mask) and mask.dtype != q.dtype:
            mask = mask.to(q.dtype) if hasattr(mask, "to") else mask.astype(q.dtype)
        name = "mask" if _is_bool(mask) else "bias"
    else:
        name = "full" if right is None else "causal" if right == 0 else "window"
    more: dict[str, Any] = {"scale": scale}
    more |= {"right": right} if name == "window" else {}
    more |= {"p": dropout_p, "rng": rng} if dropout_p else {}
    function = getattr(ops, kernel_name(name, dropout_p))
    rows = (q_rows, k_rows, v_rows)
    found = function(*rows, **more) if mask is None else function(*rows, mask, **more)
    return found.swapaxes(1, 2).reshape(*lead, *given[0].shape[-2:-1], v.shape[-1])


def kernel_name(name: str, dropout_p: float) -> str:
    """Name of a function of attention; "full": all keys."""
    if dropout_p:
        return f"{name}_attention_dropout"
    return "attention" if name == "full" else f"{name}_attention"


def unfused(
    where: str,
    given: Sequence[Any],
    mask: Any,
    right: int | None,
    scale: float,
    gqa: bool,
    dropout_p: float,
    rng: Any = None,
) -> Any:
    """A product, softmax with dropout, a product: stores the scores. The bits are those of the one
    kernel."""
    (q, k, v), lead = _heads_first(where, given, gqa)
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    k, v = (_repeated(t, heads) for t in (k, v))
    if right is not None:
        mask = visible(q, queries, keys, right)
    if mask is not None:
        mask = _mask(where, mask, q, lead, keys).reshape(batch * heads, queries, keys)
        mask = _added(mask, q)
    scores = ops.matmul(*(t.reshape(batch * heads, *t.shape[2:]) for t in (q, k.swapaxes(2, 3))))
    if getattr(mask, "requires_grad", False):  # the softmax has no gradient by its mask
        scores, mask, scale = scores * scale + mask, None, 1.0
    softmax = ops.scale_mask_softmax_dropout
    weights = softmax(scores[:, None], mask, scale=scale, p=dropout_p, rng=rng)
    found = ops.matmul(weights[:, 0], v.reshape(batch * heads, keys, v.shape[-1]))
    return found.reshape(*lead, queries, v.shape[-1])


def _repeated(t: Any, heads: int) -> Any:
    """Repeats each key head for the query heads that share it."""
    group = heads // max(t.shape[1], 1)
    if group < 2:
        return t
    library = _products.library(t)
    return library.repeat(t, group, axis=1) if library else t.repeat_interleave(group, 1)


def visible(like: Any, queries: int, keys: int, right: int) -> Any:
    """[queries, keys]: True for the keys up to i + keys - queries + right of query i."""
    if library := _products.library(like):
        return library.arange(keys) <= library.arange(queries)[:, None] + keys - queries + right
    torch = sys.modules["torch"]
    shape = queries, keys
    return torch.ones(shape, dtype=torch.bool, device=like.device).tril(keys - queries + right)


def _added(mask: Any, q: Any) -> Any:
    """Returns a mask as numbers to add, of q's dtype."""
    if library := _products.library(mask):
        found = library.where(mask, 0.0, -math.inf) if _is_bool(mask) else mask
        return found.astype(q.dtype)
    if not _is_bool(mask):
        return mask.to(q.dtype)
    torch = sys.modules["torch"]
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    scaled_dot_product_attention,
    fused_attention_score,
    fused_multihead_attention,
)
# Type stubs of these functions for ops.pyi; A is the type of all arrays of a call.
STUBS = (
    "def scaled_dot_product_attention(query: A, key: A, value: A, attn_mask: A | None = None, "
    "dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, "
    "enable_gqa: bool = False) -> A: ...",
    "def fused_attention_score(q: A, k: A, scale: float | None = None, mask: A | None = None, "
    "causal: bool = False) -> A: ...",
    "def fused_multihead_attention(q: A, k: A, v: A, num_heads: int, scale: float | None = None, "
    "mask: A | None = None, causal: bool = False, dropout_p: float = 0.0) -> A: ...",
)
