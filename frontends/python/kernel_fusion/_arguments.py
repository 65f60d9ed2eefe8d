# SPDX-License-Identifier: Apache-2.0
"""Arguments of an op: its Python signature, derived from the op's entry, and their validation."""

import functools
import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from kfgen.model.types import RESULTS

from kernel_fusion import _axes, _rows, _spellings
from kernel_fusion._plan import check_between, check_value
from kernel_fusion._table import Call, Op, Value

WORDS = ("f32", "f16", "bf16", "f64", "i32", "i64")
LONG = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
}
PROBABILITY = Value("p", 0.5, 0, 1)
BETA = Value("beta", 0.0, None, None)


@dataclass(frozen=True)
class Arguments:
    """Validated arguments of one call."""

    where: str
    tensors: tuple[Any, ...]  # one per input, None if absent
    scalars: tuple[float, ...]  # the op's, the activation's, then p
    integers: tuple[int, ...]
    axis: int = -1
    axes: tuple[int, ...] | None = None  # several axes, none for all; None: `axis` alone
    keepdim: bool = False
    groups: int = 1
    asked: str | None = None  # dtype of the results
    rng: Any = None
    out: Any = None
    beta: float = 0.0
    return_lse: bool = False


def widens(op: Op) -> bool:
    """True for reductions whose kernels may return a wider dtype than that of their tensors."""
    return RESULTS in op.variables.values() and not op.asked


def parameters(op: Op, activation: str) -> list[Parameter]:
    """Parameters in the order of the C function's arguments, required ones first.

    Inputs, rows of a table, dim, integers and scalars may be given by position, except where
    aliases order the inputs differently: then only the first may.
    """
    inputs = sorted(op.forward.inputs, key=lambda t: t.nullable)
    found = [
        Parameter(
            t.name, Parameter.POSITIONAL_OR_KEYWORD, default=None if t.nullable else Parameter.empty
        )
        for t in inputs
    ]
    if op.asked:
        found.append(Parameter("dtype", Parameter.POSITIONAL_OR_KEYWORD))
    rows: dict[str, Any] = dict.fromkeys((name for name, *_ in _rows.padding(op)), None)
    placed = rows | ({"dim": op.axis} if op.has_axis else {})
    placed |= {
        v.name: None if v.rsqrt_of else v.default
        for v in (*op.forward.integers, *op.forward.scalars, *op.scalars[activation])
        if v.name not in rows
    }
    placed |= {"p": PROBABILITY.default, "training": True} if op.dropout else {}
    placed |= {"keepdim": False} if _axes.applies(op) else {}
    found += [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in placed.items()
    ]
    if _spellings.orders(op, activation):
        found = [found[0], *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in found[1:])]
    more: dict[str, Any] = {"groups": Parameter.empty} if op.has_groups else {}
    more |= dict.fromkeys(op.forward.betas, 0.0)
    more |= {"rng": None} if op.dropout else {}
    more |= {"grads": None} if op.added else {}
    more |= {"dtype": None} if widens(op) else {}
    more |= {"return_lse": False} if op.forward.lse is not None else {}
    more |= {} if op.forward.updates else {"out": None}
    return found + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, default in more.items()
    ]


@functools.cache
def signature(op: Op, activation: str) -> inspect.Signature:
    return inspect.Signature(parameters(op, activation))


@functools.cache
def constant_signature(op: Op, activation: str) -> inspect.Signature:
    """Signature for arrays that are never overwritten, JAX's: without arguments of results."""
    left_out = {"out", "grads", *op.forward.betas}
    found = [p for p in parameters(op, activation) if p.name not in left_out]
    return inspect.Signature(found)


def dtype_word(where: str, dtype: Any) -> str:
    """Returns kf's name of a dtype given in any framework's spelling."""
    text = (
        getattr(dtype, "__name__", None)
        or getattr(dtype, "name", None)
        or str(dtype).removeprefix("torch.")
    )
    word = LONG.get(text, text)
    if word not in WORDS:
        raise TypeError(f"{where}: dtype is {dtype}, expected one of {', '.join(WORDS)}")
    return word


def long_word(where: str, dtype: Any) -> str:
    """Returns the name of a dtype, such as float32, given in any framework's spelling."""
    word = dtype_word(where, dtype)
    return next(long for long, short in LONG.items() if short == word)


def scalars(where: str, values: Sequence[Value], given: Mapping[str, Any]) -> tuple[float, ...]:
    found = []
    for v in values:
        value = given[v.name]
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise TypeError(f"{where}: {v.name} is {type(value).__name__}, expected a number")
        check_value(where, v, value)
        found.append(float(value))
    check_between(where, values, found)
    return tuple(found)


def flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected True or False")
    return value


def rsqrts(op: Op) -> list[tuple[str, str, int]]:
    """[(scalar with default 1 / sqrt(n), tensor with a dimension n, its index from the end)]."""
    found = []
    for v in op.forward.scalars:
        for t in op.forward.inputs if v.rsqrt_of else ():
            if v.rsqrt_of in t.extents:
                at = t.extents.index(v.rsqrt_of) - len(t.extents)
                found.append((v.name, t.name, at))
                break
    return found


def rsqrt(where: str, name: str, x: Any, dimension: int) -> float:
    """The default 1 / sqrt(n) of a scalar; 1 for n = 0 and for tensors without the dimension, which
    the plan refuses.
    """
    shape = tuple(getattr(x, "shape", ()))
    n = shape[dimension] if len(shape) >= -dimension else 1
    if n is None:
        raise ValueError(f"{where}: {name} is None, expected a number: the shape is {shape}")
    return float(max(n, 1) ** -0.5)


def whole(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected a whole number")
    return operator.index(value)


def integers(where: str, call: Call, given: Mapping[str, Any]) -> tuple[int, ...]:
    found = tuple(whole(where, v.name, given[v.name]) for v in call.integers)
    for v, n in zip(call.integers, found):
        check_value(where, v, n)
    return found


def seeds(rng: Any) -> list[int]:
    """Converts integers to unsigned 64-bit values (two's complement), the same for every
    framework.

    Raises:
        TypeError, OverflowError: a value is no integer or exceeds 64 bits.
    """
    found = [operator.index(v) for v in rng]
    if any(not -(2**63) <= v < 2**64 for v in found):
        raise OverflowError
    return [v % 2**64 for v in found]


def _check_out(where: str, op: Op, out: Any) -> None:
    """Checks the names in `out` if the op has several results."""
    names = [op.forward.outputs[i].name for i in op.forward.results]
    if out is None or len(names) == 1:
        return
    if not isinstance(out, Mapping):
        raise TypeError(
            f"{where}: out is {type(out).__name__}, expected a dictionary of arrays with the keys "
            f"{', '.join(names)}"
        )
    for name in out:
        if name not in names:
            raise ValueError(f"{where}: out has {name!r}, expected some of {', '.join(names)}")


@functools.cache
def _plain(
    op: Op, activation: str
) -> tuple[tuple[str, ...], dict[str, Any], frozenset[str], frozenset[str]]:
    """Returns (positional names, defaults, all names, required names)."""
    found = signature(op, activation).parameters
    placed = tuple(n for n, p in found.items() if p.kind is not Parameter.KEYWORD_ONLY)
    defaults = {n: p.default for n, p in found.items() if p.default is not Parameter.empty}
    return placed, defaults, frozenset(found), frozenset(found) - frozenset(defaults)


def bound(
    op: Op, activation: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Binds arguments in a fifth of the time of inspect.Signature.bind, which reports errors."""
    where = op.display_name(activation)
    placed, defaults, known, needed = _plain(op, activation)
    given = dict(zip(placed, args))
    if (
        len(args) <= len(placed)
        and kwargs.keys() <= known
        and not given.keys() & kwargs.keys()
        and needed <= given.keys() | kwargs.keys()
    ):
        return {**defaults, **given, **kwargs}
    try:
        signature(op, activation).bind(*args, **kwargs)
    except TypeError as e:
        raise TypeError(f"{where}{signature(op, activation)}: {e}") from None
    raise AssertionError("inspect accepts what is wrong")


def bind(op: Op, activation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    return validated(op, activation, bound(op, activation, args, kwargs))


def validated(op: Op, activation: str, a: dict[str, Any]) -> Arguments:
    """Checks the values of all arguments by name, which it may replace."""
    where = op.display_name(activation)
    values = [*op.forward.scalars, *op.scalars[activation]]
    if op.dropout:
        values.append(PROBABILITY)
        if not a["training"]:
            a["p"] = 0.0
            # Without dropout no random numbers are drawn from a generator.
            a["rng"] = (0, 0) if a["rng"] is None or hasattr(a["rng"], "integers") else a["rng"]
    for name, of, dimension in rsqrts(op):
        if a[name] is None:
            a[name] = rsqrt(where, name, a[of], dimension)
    for name, *_ in _rows.padding(op):  # arrays have no gradient, and no row is left out
        a[name] = -1 if a[name] is None else a[name]
    axis, axes = a.get("dim", op.axis), None
    keepdim = a.get("keepdim", False)
    _axes.check_keepdim(where, keepdim)
    if _axes.applies(op) and (axis is None or isinstance(axis, (tuple, list))):
        axes = _axes.numbers(where, op, axis)
    out = a.get("out")
    _check_out(where, op, out)
    # The beta of axpby is a scalar of the op, not this one.
    [beta] = scalars(where, [BETA], {"beta": a["beta"] if op.forward.betas else 0.0})
    if beta and out is None:
        raise ValueError(
            f"{where}: beta is {beta:g}, expected 0 without out, to which the result is added"
        )
    if a.get("grads") is not None:
        raise TypeError(f"{where}: grads is for PyTorch tensors; NumPy arrays have no gradients")
    return Arguments(
        where,
        tuple(a[t.name] for t in op.forward.inputs),
        scalars(where, values, a),
        integers(where, op.forward, a),
        axis=whole(where, "dim", axis) if op.has_axis and axes is None else -1,
        axes=axes,
        keepdim=keepdim,
        groups=whole(where, "groups", a.get("groups", 1)),
        asked=dtype_word(where, a["dtype"]) if op.asked else None,
        rng=a.get("rng"),
        out=out,
        beta=beta,
        return_lse=flag(where, "return_lse", a.get("return_lse", False)),
    )
