# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops that call several ops, or a product of NumPy or PyTorch beside kf's ops."""

import sys
import types
from collections.abc import Callable
from typing import Any

from kernel_fusion import (
    _adapted,
    _arguments,
    _block_masks,
    _dispatch,
    _flash,
    _multihead,
    _products,
    _table,
    ops,
)


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


OVER_DIM = """{formula} along a dimension.

    Args:
        x: [...], float32 float16 bfloat16 float64
        dim: dimension of the sum; default -1. Any other than the last one costs a copy of x, and
            the result has x's shape, with dim as the dimension of neighbours in memory
        dtype: dtype to which x is converted first, or None
        axis: another name of dim
        out: array that receives the result, beside the last dimension; not for PyTorch tensors

    Returns:
        out [...]

    Raises:
        TypeError: the dtype has no function, dim is no whole number or given twice, or out is given
            beside another dimension than the last one.
        ValueError: x has no dimension dim.
    """


def softmax(
    x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None, out: Any = None
) -> Any:
    return _along(ops._plain_softmax, "softmax", x, dim_of("softmax", dim, axis), dtype, out)


def log_softmax(
    x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None, out: Any = None
) -> Any:
    name = "log_softmax"
    return _along(ops._plain_log_softmax, name, x, dim_of(name, dim, axis), dtype, out)


softmax.__doc__ = OVER_DIM.format(formula="exp(x) / sum(exp(x))")
log_softmax.__doc__ = OVER_DIM.format(formula="x - log(sum(exp(x)))")


def dim_of(name: str, dim: int, axis: int | None) -> int:
    """Returns dim, which NumPy and JAX call axis."""
    if axis is None:
        return dim
    if type(dim) is not int or dim != -1:
        raise TypeError(f"kf.{name}: dim is given twice, once under another name")
    return axis


def _module_of(x: Any) -> Any:
    """Returns the module whose functions take an array; None of other objects."""
    if hasattr(x, "__jax_array__") or type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy
    found = _dispatch.module_of(x)
    if found is not None:  # torch.compile cannot trace what follows
        return found
    tf = sys.modules.get("tensorflow")
    return tf if tf is not None and tf.is_tensor(x) else None


def _along(function: Callable[..., Any], name: str, x: Any, dim: int, dtype: Any, out: Any) -> Any:
    """Calls a function over the last dimension for another one."""
    where = f"kf.{name}"
    module = None if dtype is None else _module_of(x)
    if module is not None and _adapted.word(x) != (long := _arguments.long_word(where, dtype)):
        x = _adapted.converted(x, long, module)
    more = {} if out is None else {"out": out}
    rank = _rank(where, x)
    if type(dim) is not int:
        dim = _arguments.whole(where, "dim", dim)
    if dim in (-1, rank - 1) and rank:
        return function(x, **more)
    last = max(rank, 1)
    if not -last <= dim < last:
        raise ValueError(
            f"{where}: dim is {dim}, expected a dimension of x, whose shape is {tuple(x.shape)}"
        )
    if not rank:
        return _products.reshaped(function(_products.reshaped(x, (1,)), **more), ())
    if out is not None:
        raise TypeError(f"{where}: out is given, expected None beside dim = {dim}")
    return _products.swapped(function(_products.swapped(x, dim, -1)), dim, -1)


def _rank(where: str, x: Any) -> int:
    """Returns the number of dimensions, 1 of what is no array: the op's function reports it."""
    shape = getattr(x, "shape", (1,))
    if getattr(shape, "rank", 0) is None:
        raise ValueError(f"{where}: the number of dimensions of x is not known, expected a number")
    return len(shape)


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


# {function: (formula, operands)} of functions that call an op of kf.fuse.
OWN_OPS = {
    "prelu_bias": (
        "where(x + bias > 0, x + bias, alpha * (x + bias))",
        {"x": "elem", "alpha": "row", "bias": "row"},
    )
}
_fused: dict[str, Callable[..., Any]] = {}


def _prelu_of_sum() -> str:
    """Makes the op of prelu_bias with alpha; returns its key in _fused."""
    if "prelu_bias" not in _fused:
        fused = own_op("prelu_bias")
        of = getattr(ops, "of", None)  # JAX and TensorFlow have their own functions of an op
        _fused["prelu_bias"] = of(fused) if of else fused.function
    return "prelu_bias"


def own_op(name: str) -> Any:
    """Makes the op of OWN_OPS that a function calls."""
    from kernel_fusion import _fuse

    return _fuse.labelled(name, *OWN_OPS[name])


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
    _products.product("fused_linear_activation", "x", x, "weight", weight)
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
    _products.arrays("matmul", a=a, b=b)
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


_OWN: tuple[Callable[..., Any], ...] = (
    gelu,
    softmax,
    log_softmax,
    prelu_bias,
    fused_linear_activation,
    matmul,
)
_EVERY = (*_OWN, *_multihead.FUNCTIONS, *_flash.FUNCTIONS, *_block_masks.FUNCTIONS)
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _EVERY}


def over(namespace: Any) -> dict[str, Callable[..., Any]]:
    """Returns the functions over the ops of another module than kf.ops."""
    found: dict[str, Callable[..., Any]] = {}
    for module in (sys.modules[__name__], _multihead, _flash, _block_masks):
        found |= rebound(module, namespace)
    return {name: found[name] for name in FUNCTIONS}


def rebound(module: Any, namespace: Any) -> dict[str, Callable[..., Any]]:
    """Returns a module's functions, whose name `ops` is another module."""
    names = dict(vars(module), ops=namespace, _fused={})
    made = {}
    for name, f in vars(module).items():
        if isinstance(f, types.FunctionType) and f.__module__ == module.__name__:
            made[name] = types.FunctionType(f.__code__, names, name, f.__defaults__)
            made[name].__kwdefaults__, made[name].__doc__ = f.__kwdefaults__, f.__doc__
    names.update(made)
    return dict(made)


# Type stubs of these functions for ops.pyi; A is the type of all arrays of a call.
STUBS = (
    'def gelu(x: A, *, approximate: str = "none", out: A | None = None) -> A: ...',
    "def fused_linear_activation(x: A, weight: A, bias: A | None = None, activation: str = "
    '"none") -> A: ...',
    "def matmul(a: A, b: A, *, alpha: float = 1.0) -> A: ...",
    *_multihead.STUBS,
    *_flash.STUBS,
    *_block_masks.STUBS,
    "def prelu_bias(x: A, weight: A | None = None, bias: A | None = None, *, alpha: A | None = "
    "None, out: A | None = None) -> A: ...",
    *(
        f"def {name}(x: A, dim: int = -1, dtype: Any = None, *, axis: int | None = None, "
        "out: A | None = None) -> A: ..."
        for name in ("softmax", "log_softmax")
    ),
    "def _plain_softmax(x: A, *, out: A | None = None) -> A: ...",
    "def _plain_log_softmax(x: A, *, out: A | None = None) -> A: ...",
    "def _plain_gelu(x: A, *, out: A | None = None) -> A: ...",
    "def _plain_prelu_bias(x: A, weight: A, bias: A, *, out: A | None = None) -> A: ...",
)
