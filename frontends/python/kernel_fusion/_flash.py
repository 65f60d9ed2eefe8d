# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops with the names and arguments of flash-attn, over kf's forward functions.

Arguments that no kernel computes raise an error that names them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _multihead, ops

UNBOUNDED = 2**63 - 1


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention with flash-attn's arguments.

    Args:
        q: [batch, queries, heads, dim], float32 float16 bfloat16 float64
        k: [batch, keys, kv_heads, dim], q's dtype
        v: [batch, keys, kv_heads, dim_v], q's dtype
        dropout_p: probability that a weight is dropped, also in evaluation
        softmax_scale: any number; None stands for 1 / sqrt(dim)
        causal: if True, the last query sees all keys, each query before it one less
        window_size: keys before and behind the query's own that it sees; -1: all
        softcap: 0, or with causal alone: scores are softcap * tanh(score / softcap)
        alibi_slopes: [heads], float32, with causal alone; or None
        deterministic: ignored; results always have the same bits
        return_attn_probs: if True, returns (out, lse [batch, heads, queries], None)

    Returns:
        out [batch, queries, heads, dim_v]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match, or an argument has a value that no kernel computes.
    """
    where = "kf.flash_attn_func"
    name, more = _kernel(where, dropout_p, causal, window_size, softcap, alibi_slopes)
    return _run(getattr(ops, name), (q, k, v), alibi_slopes, softmax_scale, more, return_attn_probs)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Attention of packed sequences with flash-attn's arguments.

    Args:
        q: [rows, heads, dim], float32 float16 bfloat16 float64
        k: [rows, kv_heads, dim], q's dtype
        v: [rows, kv_heads, dim_v], q's dtype
        cu_seqlens_q: [batch + 1], int32 or int64: the row of q at which each sequence begins, and
            the end
        cu_seqlens_k: the same for k and v
        max_seqlen_q: ignored; kernels read the lengths
        max_seqlen_k: ignored
        dropout_p: this argument and those below are as in flash_attn_func
        softmax_scale: any number; None stands for 1 / sqrt(dim)
        causal: if True, the last query of a sequence sees all of its keys
        window_size: keys before and behind the query's own that it sees; -1: all
        softcap: 0, or with causal alone a bound of the scores
        alibi_slopes: [heads], float32, with causal alone; or None
        deterministic: ignored; results always have the same bits
        return_attn_probs: if True, returns (out, lse [heads, rows], None)
        block_table: None

    Returns:
        out [rows, heads, dim_v]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match, or an argument has a value that no kernel computes.
    """
    where = "kf.flash_attn_varlen_func"
    if block_table is not None:
        raise ValueError(f"{where}: block_table is given, expected None")
    name, more = _kernel(where, dropout_p, causal, window_size, softcap, alibi_slopes)
    function, given = getattr(ops, f"{name}_varlen"), (q, k, v, cu_seqlens_q, cu_seqlens_k)
    return _run(function, given, alibi_slopes, softmax_scale, more, return_attn_probs)


def _run(
    function: Callable[..., Any],
    given: Sequence[Any],
    slope: Any,
    scale: float | None,
    more: dict[str, Any],
    return_lse: bool,
) -> Any:
    """Calls the kernel's function; returns (out, lse, None) if return_lse."""
    tensors = given if slope is None else (*given, slope)
    lse = {"return_lse": True} if return_lse else {}
    found = function(*tensors, scale=scale, **more, **lse)
    return (*found, None) if return_lse else found


def _window(where: str, causal: bool, window_size: Sequence[int]) -> tuple[int, int]:
    """Returns the keys before and behind a query's own that it sees."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise ValueError(f"{where}: window_size is {window_size!r}, expected (left, right)")
    left, right = (UNBOUNDED if n < 0 else n for n in window_size)
    return left, 0 if causal else right


def _kernel(
    where: str,
    dropout_p: float,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    slope: Any,
) -> tuple[str, dict[str, Any]]:
    """Returns the name of the kernel's function and its arguments besides scale."""
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{where}: dropout_p is {dropout_p}, expected 0 to 1")
    left, right = _window(where, causal, window_size)
    is_causal = right == 0 and left == UNBOUNDED
    for name, value in (("softcap", softcap), ("alibi_slopes", slope)):
        if (value is None or name == "softcap" and not value) or is_causal:
            continue
        raise ValueError(
            f"{where}: {name} is given beside causal = {causal} and window_size = {window_size}, "
            f"expected it with causal = True and no window"
        )
    if softcap and slope is not None:
        raise ValueError(f"{where}: softcap is {softcap} beside alibi_slopes, expected one of them")
    more: dict[str, Any] = {"p": dropout_p} if dropout_p else {}
    if softcap:
        name, more = "softcap_causal", more | {"softcap": softcap}
    elif slope is not None:
        name = "alibi_causal"
    elif is_causal:
        name = "causal"
    elif left == right == UNBOUNDED:
        name = "full"
    else:
        name, more = "window", more | {"left": left, "right": right}
    return _multihead.kernel_name(name, dropout_p), more


FUNCTIONS: tuple[Callable[..., Any], ...] = (flash_attn_func, flash_attn_varlen_func)
_SHARED = (
    "dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, "
    "window_size: Sequence[int] = (-1, -1), softcap: float = 0.0, alibi_slopes: A | None = None, "
    "deterministic: bool = False, return_attn_probs: bool = False"
)
# Type stubs of these functions for ops.pyi; A is the type of all arrays of a call.
STUBS = (
    f"def flash_attn_func(q: A, k: A, v: A, {_SHARED}) -> Any: ...",
    "def flash_attn_varlen_func(q: A, k: A, v: A, cu_seqlens_q: A, cu_seqlens_k: A, "
    "max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, "
    f"{_SHARED}, block_table: A | None = None) -> Any: ...",
)
