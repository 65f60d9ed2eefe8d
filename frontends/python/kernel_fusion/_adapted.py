# SPDX-License-Identifier: Apache-2.0
"""Arguments that PyTorch's functions take and kf's kernels do not, converted before a call.

- indices in int32: converted to int64
- positions of one sequence, or [1, rows]: repeated for every sequence of the batch
- masks that broadcast: rows of the scores are grouped by the row of the mask that they share
- masks, biases and lists of attention that broadcast: views with a distance of 0
- masks of another floating-point dtype than the scores: rounded to theirs
- dtype of a reduction: its tensors are converted first, as PyTorch does
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kfgen.model.types import FIRST

from kernel_fusion import _arguments, _rows
from kernel_fusion._table import Op, Tensor

JAX = "jax.numpy"
SCORE = "score"  # kind of a mask or bias with a number per score that a kernel computes
SPREAD = (SCORE, "block_offsets")  # kinds of tensors that batches and heads may share
SHARED = "shared"  # kind of a mask [batch, queries, keys] beside scores [batch, heads, ...]
# Largest finite number of the dtypes to which a mask may be rounded.
LARGEST = {"float16": 65504.0, "bfloat16": 255 * 2.0**120}
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Rows(NamedTuple):
    """The leading dimensions of scores and mask, joined: [outer, shared, inner]."""

    outer: Any
    shared: Any  # rows with the same row of the mask
    inner: Any
    aligned: tuple[Any, ...]  # shape of the mask with a dimension for each one of the scores
    mask: tuple[Any, ...]  # shape of its rows to which it is broadcast first


def of(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Makes the function that converts the arguments of an op; None if it takes none of these.

    It takes positional and keyword arguments, and returns them with the shape of the results, which
    is None if it is that of the call.

    Args:
        xp: returns the module whose functions take an array, or None if there is none.
    """
    order = [t.name for t in sorted(op.forward.inputs, key=lambda t: t.nullable)]
    made = (f(op, xp) for f in (_indices, _positions, _masks, _scores, _widened))
    steps = [s for s in made if s]
    if not steps:
        return None

    def adapt(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = {**dict(zip(order, args)), **kwargs}
        changed: dict[str, Any] = {}
        shape = None
        for step in steps:
            found, of_results = step(given | changed)
            changed |= found
            shape = of_results or shape
        if changed:
            args = (*(changed.get(n, x) for n, x in zip(order, args)), *args[len(order) :])
            kwargs = {n: changed.get(n, x) for n, x in kwargs.items()}
        return args, kwargs, shape

    return adapt


def word(x: Any) -> str:
    """Long name of an array's dtype; empty for other objects."""
    dtype = getattr(x, "dtype", "")
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


def converted(x: Any, long: str, module: Any) -> Any:
    """Returns an array in the dtype of that name.

    Args:
        module: the module whose functions take the array.
    """
    if hasattr(module, "cast"):  # TensorFlow's
        return module.cast(x, long)
    return x.astype(long) if hasattr(x, "astype") else x.to(getattr(module, long))


# ---- indices


def _indices(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    names = [t.name for t in op.forward.inputs if t.var == "i64"]

    def convert(given: Mapping[str, Any]) -> Any:
        found = {}
        for name in names:
            x = given.get(name)
            module = xp(x) if word(x) == "int32" else None
            if module is not None and module.__name__ != JAX:  # its calls convert int32
                found[name] = converted(x, "int64", module)
        return found, None

    return convert if names else None


# ---- positions


def _positions(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    counted = _rows.counted(op)

    def convert(given: Mapping[str, Any]) -> Any:
        found = {}
        for name, of, after in counted:
            position, x = given.get(name), given.get(of)
            shape = tuple(getattr(x, "shape", ()))[:-after]
            own = tuple(getattr(position, "shape", ()))
            if position is None or own == shape or not _spreads(own, shape):
                continue
            if (module := xp(position)) is not None:
                found[name] = module.broadcast_to(position, shape)
        return found, None

    return convert if counted else None


def _spreads(own: Sequence[Any], shape: Sequence[Any]) -> bool:
    """True if a tensor broadcasts to a shape."""
    lead = len(shape) - len(own)
    return 0 <= lead and len(own) > 0 and all(n in (1, m) for n, m in zip(own, shape[lead:]))


# ---- masks


def _masks(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    masks = [t for t in op.forward.inputs if t.kind == SHARED]
    first = op.forward.inputs[0].name

    def convert(given: Mapping[str, Any]) -> Any:
        [mask] = masks
        x, m = given.get(first), given.get(mask.name)
        if x is None or m is None or not hasattr(m, "shape"):
            return {}, None
        module = xp(x)
        if module is None or xp(m) is not module:
            return {}, None
        found: dict[str, Any] = {}
        shape = None
        if mask.var == FIRST and word(m) != word(x) and not _is_autocast(module, x):
            found[mask.name] = m = _rounded(module, m, x)
        rows = rows_of(tuple(x.shape), tuple(m.shape))
        if rows is not None and given.get("out") is None:
            keys, shape = x.shape[-1], tuple(x.shape)
            aligned = module.reshape(m, rows.aligned)
            whole = module.broadcast_to(aligned, (*rows.mask, keys))
            found |= {
                first: module.reshape(x, (rows.outer, rows.shared, rows.inner, keys)),
                mask.name: module.reshape(whole, (rows.outer, rows.inner, keys)),
            }
        return found, shape

    return convert if len(masks) == 1 else None


def _is_autocast(module: Any, x: Any) -> bool:
    """True if PyTorch's autocast chooses the dtypes of the call."""
    enabled = getattr(module, "is_autocast_enabled", None)
    return enabled is not None and bool(enabled(x.device.type))


def _rounded(module: Any, mask: Any, x: Any) -> Any:
    """Rounds a mask to the dtype of the scores. Finite numbers stay finite: a row whose keys all
    have the least number of float32 is not one without visible keys.
    """
    if word(mask) not in FLOATS or word(x) not in FLOATS:
        return mask
    most = LARGEST.get(word(x))
    if most is not None:
        mask = module.where(module.isinf(mask), mask, module.clip(mask, -most, most))
    return converted(mask, word(x), module)


def rows_of(x: tuple[Any, ...], mask: tuple[Any, ...]) -> Rows | None:
    """Groups the rows of scores [..., heads, queries, keys] by the rows of a mask.

    A mask has as many dimensions as the scores, or lacks some of the first ones and broadcasts; one
    with a dimension less has none for the heads. Returns None if the kernel takes the mask as it
    is, or if it does not broadcast.
    """
    rank = len(x)
    if rank < 3 or len(mask) < 2 or mask == (*x[:-3], *x[-2:]):
        return None
    if len(mask) == rank - 1:
        mask = (*mask[:-2], 1, *mask[-2:])
    mask = (1,) * (rank - len(mask)) + mask
    if len(mask) != rank or not all(m in (1, n) for n, m in zip(x, mask)):
        return None
    lead, own = x[:-1], mask[:-1]
    apart = [m != n for n, m in zip(lead, own)]  # dimensions along which rows share a mask
    end = len(apart)
    while end and not apart[end - 1]:
        end -= 1
    start = end
    while start and (apart[start - 1] or lead[start - 1] == 1):
        start -= 1
    spread = (*lead[:start], *own[start:])
    outer, shared, inner = map(math.prod, (lead[:start], lead[start:end], lead[end:]))
    return Rows(outer, shared, inner, mask, spread)


# ---- masks and biases of attention


def _scores(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    scores = [t for t in op.forward.inputs if t.kind in SPREAD]
    first = op.forward.inputs[0].name

    def convert(given: Mapping[str, Any]) -> Any:
        found: dict[str, Any] = {}
        x = given.get(first)
        module = xp(x)
        for t in scores:
            m = given.get(t.name)
            if module is None or m is None or xp(m) is not module:
                continue
            if t.var == FIRST and word(m) != word(x) and not _is_autocast(module, x):
                found[t.name] = m = _rounded(module, m, x)
            shapes = {n: tuple(y.shape) for n, y in given.items() if hasattr(y, "shape")}
            if (shape := spread(op, t, shapes)) is not None:
                found[t.name] = module.broadcast_to(m, shape)
        return found, None

    return convert if scores else None


def spread(op: Op, t: Tensor, shapes: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Returns the shape to which a tensor broadcasts, by the sizes of the other tensors.

    Sizes that no other tensor has are the tensor's own. Returns None if the kernel takes it as it
    is, if it does not broadcast, or if a size is not known.
    """
    own = shapes[t.name]
    found: list[Any] = []
    for at, size in enumerate(t.extents, -len(t.extents)):
        others = [
            shapes[o.name][i] - line[2]
            for o in op.forward.inputs
            if o is not t and len(shapes.get(o.name, ())) == len(o.extents)
            for i, line in enumerate(o.lines)
            if line and line[:2] == (1, size) and shapes[o.name][i] is not None
        ]
        if not others and len(own) < -at:
            return None
        found.append(others[0] if others else own[at])
    shape = tuple(found)
    return shape if own != shape and None not in shape and _spreads(own, shape) else None


# ---- dtype of a reduction


def _widened(op: Op, xp: Callable[[Any], Any]) -> Callable[..., Any] | None:
    names = [t.name for t in op.forward.inputs if t.var == FIRST]
    where = op.display_name("none")

    def convert(given: Mapping[str, Any]) -> Any:
        dtype = given.get("dtype")
        if dtype is None:
            return {}, None
        long = _arguments.long_word(where, dtype)
        found: dict[str, Any] = {"dtype": None}
        for name in names:
            x = given.get(name)
            module = None if x is None else xp(x)
            if module is not None and word(x) != long:
                found[name] = converted(x, long, module)
        return found, None

    return convert if _arguments.widens(op) else None
