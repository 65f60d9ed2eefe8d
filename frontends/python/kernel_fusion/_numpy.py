# SPDX-License-Identifier: Apache-2.0
"""kf's ops for NumPy arrays and for objects with DLPack or the array interface."""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_fusion import _axes, _caches, _counts, _gpu_array, _library, _plan, _rows, _strides
from kernel_fusion._arguments import Arguments, seeds
from kernel_fusion._gpu_array import WORDS
from kernel_fusion._table import Op, Tensor

PLAIN = {word: np.dtype(long) for long, word in WORDS.items() if long not in ("bfloat16", "bool")}
KNOWN = ", ".join(dict.fromkeys(WORDS.values()))
Array = np.ndarray[Any, Any]
# Frontends of libraries that trace their functions.
OWN = {
    "jax": "kernel_fusion.jax",
    "jaxlib": "kernel_fusion.jax",
    "keras": "kernel_fusion_tensorflow",
    "tensorflow": "kernel_fusion_tensorflow",
}


@functools.cache
def word_of(dtype: np.dtype[Any]) -> str:
    """Returns kf's name of a dtype, or an empty string; cached, since dtype.name is slow."""
    return WORDS.get(dtype.name, "")


def dtype_of(word: str, given: Sequence[Array | None]) -> np.dtype[Any]:
    """Returns the NumPy dtype; for bfloat16, which NumPy lacks, that of the given arrays or
    ml_dtypes.
    """
    plain: np.dtype[Any] | None = PLAIN.get(word)
    if plain is not None:
        return plain
    own: np.dtype[Any] | None = next(
        (a.dtype for a in given if a is not None and word_of(a.dtype) == word), None
    )
    if own is not None:
        return own
    try:
        own = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise TypeError("NumPy has no bfloat16: pip install ml_dtypes") from None
    return own


def array(where: str, name: str, value: Any, expected: str = KNOWN) -> Array:
    """Returns an argument as an array.

    Args:
        expected: dtypes that an error lists.
    """
    if isinstance(value, np.ndarray):
        if getattr(value, "mask", None) is not None:
            raise TypeError(f"{where}: {name} has a mask, which kf does not read")
        found = value
    elif _gpu_array.is_one(value):
        raise ValueError(f"{where}: {name} is on a GPU, the first array is not")
    elif hasattr(value, "__dlpack__"):
        found = _of_dlpack(where, name, value)
    elif hasattr(value, "__array_interface__"):
        found = np.asarray(value)
    else:
        raise _traced(where, name, value) or TypeError(
            f"{where}: {name} is {type(value).__name__}, expected an array"
        )
    if not word_of(found.dtype):
        raise TypeError(f"{where}: {name} has the dtype {found.dtype}, expected one of {expected}")
    if not found.dtype.isnative:
        raise TypeError(
            f"{where}: {name} has the dtype {found.dtype.str}, expected this machine's byte order"
        )
    return found


def _of_dlpack(where: str, name: str, value: Any) -> Array:
    # NumPy lacks the dtype, or the tensor requires a gradient.
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise _traced(where, name, value) or TypeError(
            f"{where}: {name} is {type(value).__name__}, which NumPy cannot convert: {e}"
        ) from None


def _traced(where: str, name: str, value: Any) -> TypeError | None:
    """Returns the error of an array without values, which JAX or TensorFlow traces."""
    library, kind = type(value).__module__.partition(".")[0], type(value).__name__
    if library not in OWN or not ("Tracer" in kind or kind in ("SymbolicTensor", "KerasTensor")):
        return None
    own = f"{OWN[library]}.{where.removeprefix('kf.')}"
    return TypeError(
        f"{where}: {name} is {kind}, which has no values while its function is "
        f"traced, expected an array: call {own} there"
    )


def _result(
    where: str, t: Tensor, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Returns an output: the caller's array after checks, or a new one."""
    if given is None:
        return np.empty(shape, dtype)
    out = array(where, t.name, given)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{where}: {t.name} is {out.dtype} with shape {out.shape}, expected {dtype} with "
            f"shape {shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable or not out.flags.aligned:
        raise ValueError(
            f"{where}: {t.name} is an output, expected contiguous, writable memory: "
            f"{of_memory(out)}"
        )
    return out


def of_memory(x: Array) -> str:
    flags = x.flags
    lies = (
        "read-only"
        if not flags.writeable
        else f"strided by {x.strides} bytes"
        if not flags.c_contiguous
        else "not aligned to its elements"
    )
    return f"it is {lies}"


def seed_of(where: str, rng: Any) -> Array:
    """Returns seed and offset of a dropout: two given integers, or drawn from a generator."""
    if rng is None or isinstance(rng, np.random.Generator):
        return (rng or np.random.default_rng()).integers(0, 2**63, 2, np.uint64)
    try:
        found = np.array(seeds(rng), dtype=np.uint64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"{where}: rng is {rng!r:.60}, expected None, a numpy.random.Generator or two whole "
            f"numbers, seed and offset"
        ) from None
    if found.shape != (2,):
        raise ValueError(
            f"{where}: rng has the shape {found.shape}, expected (2,): seed and offset"
        )
    return found


def _inputs(op: Op, where: str, arguments: Arguments) -> list[Array | None]:
    given = [
        None if value is None else array(where, t.name, value, _plan.known_dtypes(op, t))
        for t, value in zip(op.forward.inputs, arguments.tensors)
    ]
    # Subclasses such as np.matrix do not reshape freely.
    return [a if a is None or type(a) is np.ndarray else a.view(np.ndarray) for a in given]


def _folded(op: Op, fold: _axes.Fold | None, given: list[Array | None]) -> list[Array | None]:
    """Makes the axes of a reduction one axis."""
    if fold is None:
        return given
    found: list[Array | None] = []
    for a in given:
        moved = a if a is None or fold.order is None else a.transpose(fold.order)
        made = moved if moved is None else moved.reshape(fold.shape)
        if moved is not None and made is not None and not np.may_share_memory(moved, made):
            _counts.copied(op.name)
        found.append(made)
    return found


def call(op: Op, activation: str, arguments: Arguments) -> Any:
    """Runs the op's forward and returns its results."""
    where, forward = arguments.where, op.forward
    given = _inputs(op, where, arguments)
    fold = _axes.of(op, arguments, [None if a is None else a.shape for a in given])
    given = _folded(op, fold, given)
    names = [t.name for t in forward.inputs]
    for name, of, after in _rows.counted(op):
        x, i = given[names.index(of)], names.index(name)
        if given[i] is None and x is not None and x.ndim > after + 1:
            shape = x.shape[: x.ndim - after]
            given[i] = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape).copy()
    plan = _plan.cached(
        op,
        activation,
        False,
        tuple(None if a is None else (a.shape, word_of(a.dtype)) for a in given),
        fold.axis if fold else arguments.axis,
        arguments.groups,
        arguments.asked,
        tuple(arguments.integers) if forward.reads_integers else (),
    )
    ignore = dict(zip((v.name for v in forward.integers), arguments.integers))
    for name, of, dimension in _rows.bounded(forward):
        x, index = (given[names.index(n)] for n in (of, name))
        if x is not None and index is not None:
            limit = x.shape[dimension]
            _rows.check(where, name, index, limit, ignore.get(_rows.ignored(forward)))
    for name, of in _rows.offsets(forward):
        bounds, packed = (given[names.index(n)] for n in (name, of))
        if bounds is not None and packed is not None:
            _rows.check_offsets(where, name, bounds, of, packed.shape[0])
    if listed := _rows.lists(forward):
        lists: list[Any] = [given[names.index(n)] for n in listed]
        if all(x is not None for x in lists):
            _rows.check_lists(where, listed, lists[:2], lists[2].shape, lists[3].shape)
    _caches.check_values(where, forward, dict(zip(names, given)), lambda x: x, ignore)
    plan = fold.planned(plan) if fold else plan
    # The caller's own arrays are summed in their dtype.
    wide = plan if arguments.out is not None else _plan.summed(op, forward, activation, False, plan)
    results = [_output(op, where, i, wide, given, arguments) for i in range(len(forward.outputs))]
    run(op, wide, given, results, arguments)
    kept = forward.kept(arguments.return_lse)
    found: list[Any] = [results[i] for i in kept]
    if wide is not plan:
        dtypes = [dtype_of(plan.dtypes[i], given) for i in kept]
        found = [x.astype(dtype, copy=False) for x, dtype in zip(found, dtypes)]
    return found[0] if len(found) == 1 else tuple(found)


def _output(
    op: Op,
    where: str,
    i: int,
    plan: _plan.Plan,
    given: Sequence[Array | None],
    arguments: Arguments,
) -> Array | None:
    """Returns one output: None if it is saved for a backward, an input that is updated in place,
    or an array.
    """
    t, forward, out = op.forward.outputs[i], op.forward, arguments.out
    if t.use == "saved":
        asked = arguments.return_lse and i == forward.lse
        return np.empty(plan.shapes[i], dtype_of(plan.dtypes[i], given)) if asked else None
    if t.place_of:
        place = given[[x.name for x in forward.inputs].index(t.place_of)]
        if place is not None and not (place.flags.c_contiguous and place.flags.writeable):
            raise ValueError(
                f"{where}: {t.place_of} is updated in place, expected contiguous, writable "
                f"memory: {of_memory(place)}"
            )
        return place
    wanted = out if len(forward.results) == 1 else (out or {}).get(t.name)
    return _result(where, t, wanted, plan.shapes[i], dtype_of(plan.dtypes[i], given))


def run(
    op: Op,
    plan: _plan.Plan,
    given: Sequence[Array | None],
    results: Sequence[Array | None],
    arguments: Arguments,
) -> None:
    forward = op.forward
    held = [*given]  # keeps copies alive
    found: dict[str, tuple[int, ...]] = {}
    for i, (t, a) in enumerate(zip(forward.inputs, given)):
        if a is None:
            continue
        strides = (
            _strides.of(t, plan.layout, a.shape, [s // a.itemsize for s in a.strides])
            if a.flags.aligned
            else None
        )
        if strides is None:
            held[i] = np.ascontiguousarray(a)
            if held[i] is a or not held[i].flags.aligned:  # type: ignore[union-attr]
                held[i] = a.copy()
            _counts.copied(op.name)
        elif any(strides):
            found[t.name] = strides
    addresses = [None if a is None else a.ctypes.data for a in [*held, *results]]
    rng = seed_of(arguments.where, arguments.rng) if op.dropout else None
    try:
        _library.of(op).call(
            plan.function,
            addresses,
            [*plan.sizes, *arguments.integers],
            _strides.struct(forward, found),
            forward.values(arguments.scalars, op.dropout, arguments.beta),
            None if rng is None else rng.ctypes.data,
            forward.workspace,
        )
    except _library.Refused as e:
        raise e.by(arguments.where) from None
