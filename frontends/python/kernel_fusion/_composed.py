# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops that call several ops, or a product of NumPy or PyTorch beside kf's ops."""

import math
import types
from collections.abc import Callable
from typing import Any

from kernel_fusion import _dispatch, _table, ops


def gelu(x: Any, *, approximate: str = "none", out: Any = None) -> Any:
    """x * Phi(x), where Phi is the cumulative distribution function of the normal distribution.

    Args:
        x: [...], float32 float16 bfloat16 float64
        approximate: "none", or "tanh" for the tanh approximation (kf.ops.gelu_tanh)
        out: array that receives the result; not for PyTorch tensors

    Returns:
        out [...]

    Raises:
        TypeError: the dtype has no function.
        ValueError: approximate is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"kf.gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    function = ops.gelu_tanh if approximate == "tanh" else ops._plain_gelu
    return function(x) if out is None else function(x, out=out)


def prelu_bias(
    x: Any, weight: Any = None, bias: Any = None, *, alpha: Any = None, out: Any = None
) -> Any:
    """(x if x > 0 else weight * x) + bias.

    Libraries that call the weight `alpha` add the bias first. With `alpha` the function does so,
    too, by a kernel of kf.fuse: z if z > 0 else alpha * z, where z is x + bias.

    Args:
        x: [..., cols], float32 float16 bfloat16 float64
        weight: [cols], x's dtype
        bias: [cols], x's dtype
        alpha: [cols], x's dtype; instead of weight
        out: array that receives the result; not for PyTorch tensors

    Returns:
        out [..., cols]

    Raises:
        TypeError: the dtype has no function, or both weight and alpha are given.
        ValueError: shapes do not match.
    """
    if alpha is not None and weight is not None:
        raise TypeError("kf.prelu_bias: weight is given beside alpha, expected one of them")
    given = {"x": x, "weight": weight, "alpha": alpha, "bias": bias, "out": out}
    function = ops._plain_prelu_bias if alpha is None else _fused[_prelu_of_sum()]
    return function(**{name: t for name, t in given.items() if t is not None})


_fused: dict[str, Callable[..., Any]] = {}


def _prelu_of_sum() -> str:
    """Makes the op of prelu_bias with alpha; returns its key in _fused."""
    if "prelu_bias" not in _fused:
        from kernel_fusion import _fuse

        operands = {"x": "elem", "alpha": "row", "bias": "row"}
        expr = "where(x + bias > 0, x + bias, alpha * (x + bias))"
        _fused["prelu_bias"] = _fuse.labelled("prelu_bias", expr, operands)
    return "prelu_bias"


# torch.compile calls it instead of tracing it: an op cannot be made in a trace.
setattr(_prelu_of_sum, "_dynamo_marked_constant", True)  # noqa: B010


def fused_linear_activation(x: Any, weight: Any, bias: Any = None, activation: str = "none") -> Any:
    """act(x @ weight.T + bias).

    Calls kf.ops.linear_<activation> if it exists, else kf.ops.linear and then the activation.

    Args:
        x: [..., in], float32 float16 bfloat16 float64
        weight: [out, in], x's dtype
        bias: [out], x's dtype, or None
        activation: name of an activation

    Returns:
        out [..., out]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match, or the activation does not exist.
    """
    whole = _dispatch.has("linear", activation)
    if not whole and not _dispatch.has("act", activation):
        raise ValueError(
            f"kf.fused_linear_activation: activation is {activation}, expected one of "
            f"{', '.join(_table.activations())}"
        )
    function = getattr(ops, _dispatch.word("linear" if whole else "act", activation))
    _product("fused_linear_activation", "x", x, "weight", weight)
    return function(x, weight, bias) if whole else function(ops.linear(x, weight, bias))


def matmul(a: Any, b: Any, *, alpha: float = 1.0) -> Any:
    """alpha * a @ b.

    Calls the one of kf.ops.matmul_nn, _nt, _tn and _tt that reads both factors without a copy: for
    b = weight.T it reads weight.

    Args:
        a: [batch..., rows..., depth], float32 float16 bfloat16 float64
        b: [batch..., depth, cols], a's dtype; or [depth, cols] for all batches
        alpha: any number

    Returns:
        out [batch..., rows..., cols]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    _arrays("matmul", a=a, b=b)
    if 2 != len(b.shape) != len(a.shape):
        raise ValueError(
            f"kf.matmul: b has the shape {tuple(b.shape)}, expected two dimensions or as many as "
            f"a of the shape {tuple(a.shape)}"
        )
    # matmul_nn reports shapes that do not match, for the factors as given.
    fits = (
        len(b.shape) > 1
        and a.shape[-1:] == b.shape[-2:-1]
        and (len(b.shape) == 2 or a.shape[:-2] == b.shape[:-2])
    )
    transpose_a = fits and len(a.shape) == len(b.shape) and _is_transposed(a)
    transpose_b = fits and _is_transposed(b)
    function = getattr(
        ops, f"_plain_matmul_{'t' if transpose_a else 'n'}{'t' if transpose_b else 'n'}__matmul"
    )
    return function(
        a.swapaxes(-1, -2) if transpose_a else a,
        b.swapaxes(-1, -2) if transpose_b else b,
        alpha=alpha,
    )


def _is_transposed(t: Any) -> bool:
    """True if a matrix is stored column-major."""
    if len(t.shape) < 2 or not (hasattr(t, "stride") or hasattr(t, "strides")):
        return False  # JAX arrays have no strides
    strides, one = (t.stride(), 1) if hasattr(t, "stride") else (t.strides, t.itemsize)
    return bool(strides[-2] == one and strides[-1] != one)


def fused_attention_score(
    q: Any, k: Any, scale: float | None = None, mask: Any = None, causal: bool = False
) -> Any:
    """softmax(q @ k.T * scale + mask) over the keys.

    NumPy or PyTorch computes the product, which stores all scores; kf.ops.scale_mask_softmax,
    scale_bool_mask_softmax or scale_causal_softmax computes the rest.

    Args:
        q: [batch..., heads, queries, dim]
        k: [batch..., heads, keys, dim], q's dtype
        scale: any number; None stands for 1 / sqrt(dim)
        mask: [batch..., queries, keys], the same for all heads: q's dtype, added; or bool, True
            where a key is visible; or None
        causal: if True, a query sees the keys up to its own index; excludes mask

    Returns:
        out [batch..., heads, queries, keys]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    _product("fused_attention_score", "q", q, "k", k)
    if mask is not None and causal:
        raise ValueError(
            "kf.fused_attention_score: mask is given beside causal = True, expected one of them"
        )
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores = q @ k.swapaxes(-1, -2)
    lead = scores.shape
    scores = scores.reshape((1,) * (3 - len(lead)) + tuple(lead)) if len(lead) < 3 else scores
    if causal:
        return ops.scale_causal_softmax(scores, scale=scale).reshape(lead)
    if mask is None:
        return ops.scale_mask_softmax(scores, scale=scale).reshape(lead)
    mask = mask.reshape((1,) * (len(scores.shape) - 1 - len(mask.shape)) + tuple(mask.shape))
    function = ops.scale_bool_mask_softmax if "bool" in str(mask.dtype) else ops.scale_mask_softmax
    return function(scores, mask, scale=scale).reshape(lead)


def fused_multihead_attention(
    q: Any,
    k: Any,
    v: Any,
    num_heads: int,
    scale: float | None = None,
    mask: Any = None,
    causal: bool = False,
) -> Any:
    """Multi-head attention: fused_attention_score of each head, times v.

    NumPy or PyTorch computes both products, and all scores are stored between them.

    Args:
        q: [batch..., queries, heads * dim]
        k: [batch..., keys, heads * dim], q's dtype
        v: [batch..., keys, heads * value_dim], q's dtype
        num_heads: number of heads
        scale: as in fused_attention_score
        mask: as in fused_attention_score
        causal: as in fused_attention_score

    Returns:
        out [batch..., queries, heads * value_dim]

    Raises:
        TypeError: the dtype has no function.
        ValueError: shapes do not match.
    """
    if isinstance(num_heads, bool) or not hasattr(num_heads, "__index__"):
        raise TypeError(
            f"kf.fused_multihead_attention: num_heads is {type(num_heads).__name__}, expected a "
            f"whole number"
        )
    _arrays("fused_multihead_attention", q=q, k=k, v=v)
    for name, t in (("q", q), ("k", k), ("v", v)):
        if len(t.shape) < 2 or num_heads < 1 or t.shape[-1] % num_heads:
            raise ValueError(
                f"kf.fused_multihead_attention: {name} has the shape {tuple(t.shape)}, expected a "
                f"last dimension that num_heads = "
                f"{num_heads} divides"
            )
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise ValueError(
            f"kf.fused_multihead_attention: v has the shape {tuple(v.shape)}, expected "
            f"{(*k.shape[:-1], 'any')} beside k of the shape "
            f"{tuple(k.shape)}"
        )

    def heads(t: Any) -> Any:
        return t.reshape(*t.shape[:-1], num_heads, t.shape[-1] // num_heads).swapaxes(-2, -3)

    found = (fused_attention_score(heads(q), heads(k), scale, mask, causal) @ heads(v)).swapaxes(
        -2, -3
    )
    return found.reshape(*found.shape[:-2], v.shape[-1])


def _arrays(where: str, **given: Any) -> None:
    """Checks that each argument is an array, before its shape is read."""
    for name, t in given.items():
        if not hasattr(t, "shape") or not hasattr(t, "dtype"):
            raise TypeError(f"kf.{where}: {name} is {type(t).__name__}, expected an array")


def _product(where: str, first: str, a: Any, second: str, b: Any) -> None:
    """Checks the shapes and dtypes of a @ b.T, so that NumPy and PyTorch report the same errors."""
    _arrays(where, **{first: a, second: b})
    batch = tuple(b.shape[:-2])
    if (
        len(a.shape) < 1
        or len(b.shape) < 2
        or a.shape[-1] != b.shape[-1]
        or batch
        and batch != tuple(a.shape[:-2])
    ):
        wanted = (*(a.shape[:-2] if batch else ()), "any", a.shape[-1] if a.shape else "any")
        raise ValueError(
            f"kf.{where}: {second} has the shape {tuple(b.shape)}, expected {wanted} beside "
            f"{first} of the shape {tuple(a.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(
            f"kf.{where}: {second} has the dtype {b.dtype}, expected {a.dtype} as {first}"
        )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        gelu,
        prelu_bias,
        fused_linear_activation,
        matmul,
        fused_attention_score,
        fused_multihead_attention,
    )
}


def over(namespace: Any) -> dict[str, Callable[..., Any]]:
    """Returns the functions over the ops of another module than kf.ops."""
    names = dict(globals(), ops=namespace)
    made = {
        name: types.FunctionType(f.__code__, names, name, f.__defaults__)
        for name, f in FUNCTIONS.items()
    }
    for name, function in made.items():
        of: Any = FUNCTIONS[name]
        function.__kwdefaults__, function.__doc__ = of.__kwdefaults__, of.__doc__
    names.update(made)
    return dict(made)


# Type stubs of these functions for ops.pyi; A is the type of all arrays of a call.
STUBS = (
    'def gelu(x: A, *, approximate: str = "none", out: A | None = None) -> A: ...',
    "def fused_linear_activation(x: A, weight: A, bias: A | None = None, activation: str = "
    '"none") -> A: ...',
    "def matmul(a: A, b: A, *, alpha: float = 1.0) -> A: ...",
    "def fused_attention_score(q: A, k: A, scale: float | None = None, mask: A | None = None, "
    "causal: bool = False) -> A: ...",
    "def fused_multihead_attention(q: A, k: A, v: A, num_heads: int, scale: float | None = None, "
    "mask: A | None = None, causal: bool = False) "
    "-> A: ...",
    "def prelu_bias(x: A, weight: A | None = None, bias: A | None = None, *, alpha: A | None = "
    "None, out: A | None = None) -> A: ...",
    "def _plain_gelu(x: A, *, out: A | None = None) -> A: ...",
    "def _plain_prelu_bias(x: A, weight: A, bias: A, *, out: A | None = None) -> A: ...",
)
