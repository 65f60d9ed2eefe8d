# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops with the names and arguments of flash-attn, over kf's forward functions.

Arguments that no kernel computes raise an error that names them.
"""

import re
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


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention to cached keys and values with flash-attn's arguments, after storing new ones.

    Args:
        q: [batch, queries, heads, dim], float32 float16 bfloat16 float64
        k_cache: [sequences, rows, kv_heads, dim], or with block_table [blocks, page_size, kv_heads,
            dim], q's dtype; overwritten if k is given
        v_cache: the same of the values
        k: new keys [batch, new rows, kv_heads, dim], stored behind the cached ones; or None. JAX
            and TensorFlow cannot overwrite arrays
        v: new values, if k is given
        rotary_cos: [positions, pairs]: cosines of the angles by which q and k are rotated, or None
        rotary_sin: the same of the sines
        cache_seqlens: rows of each sequence before the new ones, [batch] of int32, or one number;
            None: all rows, without k
        cache_batch_idx: sequences of the cache, [batch] of int32; None: all in order
        cache_leftpad: None
        block_table: blocks of each sequence, [batch, pages] of int32; None: the cache is contiguous
        softmax_scale: any number; None stands for 1 / sqrt(dim)
        causal: if True, the last query sees all keys, each query before it one less
        window_size: keys before and behind the query's own that it sees; -1: all
        softcap: 0
        rotary_interleaved: True rotates elements 2i and 2i + 1, False i and i + pairs
        alibi_slopes: None
        num_splits: ignored; a sequence's length decides
        return_softmax_lse: if True, returns (out, lse [batch, heads, queries])

    Returns:
        out [batch, queries, heads, dim_v]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match, or an argument has a value that no kernel computes.
        IndexError: a length or a block is out of range, on the CPU.
    """
    where = "kf.flash_attn_with_kvcache"
    left, right = _window(where, causal, window_size)
    for name, value in (
        ("cache_leftpad", cache_leftpad),
        ("softcap", softcap or None),
        ("alibi_slopes", alibi_slopes),
    ):
        if value is not None:
            expected = 0 if name == "softcap" else None
            raise ValueError(f"{where}: {name} is given, expected {expected}")
    _check_cache(where, q, k_cache, k, v, rotary_cos, rotary_sin, cache_seqlens)
    table, lengths = _tables(where, q, k_cache, block_table, cache_batch_idx, cache_seqlens)
    rotary = None if rotary_cos is None else (rotary_cos, rotary_sin, rotary_interleaved)
    steps = causal or min(left, right) < UNBOUNDED
    more: dict[str, Any] = {"left": left, "right": right, "scale": softmax_scale}
    more |= {"return_lse": True} if return_softmax_lse else {}
    try:
        if rotary is not None:
            q = _rotated(q, lengths, steps, rotary)
        if k is not None:
            _append(k, v, lengths, k_cache, v_cache, table, rotary)
            lengths = lengths + k.shape[1]
        return ops.attention_decode(q, k_cache, v_cache, lengths, page_table=table, **more)
    except (IndexError, TypeError, ValueError) as e:
        raise _under_own_names(where, e, cache_batch_idx is not None) from None


def _rotated(q: Any, lengths: Any, steps: bool, rotary: Sequence[Any]) -> Any:
    """Rotates queries by the rows of their tokens, or all by that of the first one."""
    cosine, sine, interleaved = rotary
    rows = _counted(q, q.shape[1])
    rows = rows if steps else rows * 0
    rotate = ops.rope_interleaved if interleaved else ops.rope
    return rotate(q, _wide(cosine, q), _wide(sine, q), lengths[:, None] + rows)


def _append(
    k: Any, v: Any, lengths: Any, k_cache: Any, v_cache: Any, table: Any, rotary: Any
) -> None:
    """Stores new rows, with rotated keys if there are angles."""
    cosine, sine, interleaved = rotary or (None, None, True)
    angles = {} if rotary is None else {"cosine": _wide(cosine, k), "sine": _wide(sine, k)}
    append = ops.kv_append_interleaved if interleaved else ops.kv_append
    append(k, v, lengths, k_cache, v_cache, page_table=table, **angles)


def _under_own_names(where: str, error: Exception, by_index: bool) -> Exception:
    """Returns an error of a function that was called, with this one's name and its arguments.

    Args:
        by_index: True if cache_batch_idx has the blocks.
    """
    own = {
        "key_length": "cache_seqlens",
        "page_table": "cache_batch_idx" if by_index else "block_table",
        "position": "cache_seqlens + i",
        "cosine": "rotary_cos",
        "sine": "rotary_sin",
        "x": "q",
    }
    # Frameworks' own subclasses have other constructors.
    if type(error) not in (IndexError, TypeError, ValueError):
        return error
    text = re.sub(rf"\b({'|'.join(own)})\b", lambda found: own[found[0]], str(error))
    return type(error)(re.sub(r"^kf\.\w+", where, text))


def _check_cache(
    where: str,
    q: Any,
    k_cache: Any,
    k: Any,
    v: Any,
    rotary_cos: Any,
    rotary_sin: Any,
    cache_seqlens: Any,
) -> None:
    """Checks which arguments are given together."""
    if (k is None) != (v is None):
        raise ValueError(f"{where}: {'k' if v is None else 'v'} is given alone, expected k and v")
    if (rotary_cos is None) != (rotary_sin is None):
        alone = "rotary_cos" if rotary_sin is None else "rotary_sin"
        raise ValueError(f"{where}: {alone} is given alone, expected rotary_cos and rotary_sin")
    if rotary_cos is not None and k is None:
        raise ValueError(f"{where}: rotary_cos is given without k, expected new keys")
    if k is not None and cache_seqlens is None:
        raise ValueError(f"{where}: cache_seqlens is None, expected the rows before those of k")
    if k is not None and not hasattr(ops, "kv_append"):
        raise ValueError(f"{where}: k is given, expected None: these arrays are never overwritten")


def _tables(
    where: str, q: Any, k_cache: Any, block_table: Any, cache_batch_idx: Any, cache_seqlens: Any
) -> tuple[Any, Any]:
    """Returns (table of blocks or None, rows of each sequence)."""
    batch, rows = q.shape[0], k_cache.shape[1]
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError(f"{where}: cache_batch_idx is given beside block_table, expected one")
    for name, x, shape in (
        ("block_table", block_table, (batch, None)),
        ("cache_batch_idx", cache_batch_idx, (batch,)),
        ("cache_seqlens", cache_seqlens, (batch,)),
    ):
        if x is not None and not isinstance(x, int):
            _check_integers(where, name, x, shape)
    table = block_table
    if cache_batch_idx is not None:
        table = cache_batch_idx[:, None]
    elif block_table is None and k_cache.shape[0] != batch:
        raise ValueError(
            f"{where}: k_cache has {k_cache.shape[0]} sequences, expected the {batch} of q, or "
            f"cache_batch_idx"
        )
    if cache_seqlens is None:
        cache_seqlens = rows if block_table is None else rows * block_table.shape[1]
    if isinstance(cache_seqlens, int):
        cache_seqlens = _counted(q, batch) * 0 + cache_seqlens
    return table, cache_seqlens


def _check_integers(where: str, name: str, x: Any, shape: Sequence[int | None]) -> None:
    """Checks dtype and shape of int32 numbers. None stands for any dimension."""
    if not hasattr(x, "dtype"):
        raise TypeError(f"{where}: {name} is {type(x).__name__}, expected an array of int32")
    word = str(x.dtype).removeprefix("torch.").removeprefix("<dtype: '").removesuffix("'>")
    if word != "int32":
        raise TypeError(f"{where}: {name} has the dtype {word}, expected int32")
    own = tuple(x.shape)
    if len(own) != len(shape) or any(None not in (n, m) and n != m for n, m in zip(own, shape)):
        expected = ", ".join("pages" if n is None else str(n) for n in shape)
        raise ValueError(f"{where}: {name} has the shape {own}, expected [{expected}] beside q")


def _counted(like: Any, n: int) -> Any:
    """Returns 0, 1, ..., n - 1 of int32: a tensor of PyTorch on the device of `like`, or an array
    of NumPy, which other frameworks take.
    """
    if hasattr(like, "new_zeros"):
        one = like.new_zeros(n).int() + 1
        return one.cumsum(0, dtype=one.dtype) - 1
    import numpy as np  # the package's build, which imports this module, has no NumPy

    return np.arange(n, dtype=np.int32)


def _wide(x: Any, like: Any) -> Any:
    """Converts angles to float32, or to float64 beside float64."""
    word = "float64" if str(like.dtype).endswith("float64") else "float32"
    if str(x.dtype).endswith(word):
        return x
    return ops.cast(x, word)


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


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
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
    "def flash_attn_with_kvcache(q: A, k_cache: A, v_cache: A, k: A | None = None, "
    "v: A | None = None, rotary_cos: A | None = None, rotary_sin: A | None = None, "
    "cache_seqlens: A | int | None = None, cache_batch_idx: A | None = None, "
    "cache_leftpad: A | None = None, block_table: A | None = None, "
    "softmax_scale: float | None = None, causal: bool = False, "
    "window_size: Sequence[int] = (-1, -1), softcap: float = 0.0, "
    "rotary_interleaved: bool = True, alibi_slopes: A | None = None, num_splits: int = 0, "
    "return_softmax_lse: bool = False) -> Any: ...",
)
