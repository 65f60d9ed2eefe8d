# SPDX-License-Identifier: Apache-2.0
"""Functions of kernel_fusion_tensorflow: the arguments of kf.ops, for tensors of TensorFlow."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from kernel_fusion import (
    _adapted,
    _arguments,
    _axes,
    _caches,
    _dispatch,
    _docs,
    _functional,
    _norms,
    _rows,
    _spellings,
    _table,
)
from kernel_fusion._arguments import Arguments
from kernel_fusion._table import Op
from tensorflow.python.eager import record

from kernel_fusion_tensorflow import _calls, _composed

LOWEST, HIGHEST = -(2**63), 2**63 - 1


def tensor(where: str, name: str, value: Any) -> Any:
    """Converts an argument to a tensor."""
    if type(value).__module__.startswith("keras") and not hasattr(value, "value"):
        raise TypeError(
            f"{where}: {name} is Keras's symbol of a tensor, expected a tensor: call the function "
            f"in a layer (kf.layers, or a keras.layers.Layer of your own)"
        )
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as e:
        raise TypeError(
            f"{where}: {name} is {type(value).__name__}, expected a dense tensor: {e}"
        ) from None


def seed_of(where: str, rng: Any) -> Any:
    """Returns seed and offset of a dropout, two int64.

    They are drawn from TensorFlow's global generator, whose seed tf.random.set_seed sets, from a
    tf.random.Generator, or given.
    """
    if rng is None:
        return tf.random.uniform([2], LOWEST, HIGHEST, tf.int64)
    if isinstance(rng, tf.random.Generator):
        return rng.uniform_full_int([2], tf.int64)
    if tf.is_tensor(rng):
        if rng.dtype not in (tf.int64, tf.uint64) or not rng.shape.is_compatible_with([2]):
            raise TypeError(
                f"{where}: rng is {rng.dtype.name} with shape {rng.shape}, expected two int64"
            )
        return tf.bitcast(rng, tf.int64)
    try:
        given = _arguments.seeds(rng)
    except (TypeError, OverflowError):
        given = []
    if len(given) != 2:
        raise TypeError(
            f"{where}: rng is {rng!r:.60}, expected None, a tf.random.Generator, or two whole "
            f"numbers of 64 bits, seed and offset"
        )
    return tf.constant([v - 2**64 if v >= 2**63 else v for v in given], tf.int64)


def _counted(x: Any, after: int) -> Any:
    """Returns the index of each row of x in its sequence.

    Args:
        after: dimensions of x after the rows.
    """
    shape = tf.shape(x, tf.int64)[: x.shape.rank - after]
    return tf.broadcast_to(tf.range(shape[-1]), shape)


def _check_indices(op: Op, arguments: Arguments, named: Mapping[str, Any]) -> None:
    """Refuses indices out of range, wrong offsets, lists of blocks and lengths of caches, as kf.ops
    does, where their values are known.
    """
    ignore = dict(zip((v.name for v in op.forward.integers), arguments.integers))
    for name, of, dimension in _rows.bounded(op.forward):
        index, table = named[name], named[of]
        known = index is not None and hasattr(index, "numpy") and index.dtype == tf.int64
        if known and table.shape.rank >= -dimension:
            limit = table.shape[dimension]
            own = ignore.get(_rows.ignored(op.forward))
            _rows.check(arguments.where, name, index.numpy(), limit, own)
    for name, of in _rows.offsets(op.forward):
        offsets, packed = named[name], named[of]
        if hasattr(offsets, "numpy") and packed.shape.rank:
            _rows.check_offsets(arguments.where, name, offsets.numpy(), of, packed.shape[0])
    if listed := _rows.lists(op.forward):
        bounds, blocks, masks, key = (named[name] for name in listed)
        if hasattr(bounds, "numpy") and hasattr(blocks, "numpy"):
            values = bounds.numpy(), blocks.numpy()
            _rows.check_lists(arguments.where, listed, values, masks.shape, key.shape)
    defined = (x is None or x.shape.is_fully_defined() for x in named.values())
    if _caches.of(op.forward) and all(defined):
        _caches.check_values(arguments.where, op.forward, named, _values, ignore)


def _values(x: Any) -> Any:
    """Returns an array of NumPy, None if the values are not known."""
    return x.numpy() if hasattr(x, "numpy") else None


def _integers(op: Op, arguments: Arguments, named: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the integers, with rows of a table counted from its front."""
    found = dict(zip((v.name for v in op.forward.integers), arguments.integers))
    for name, of, dimension in _rows.padding(op):
        n, table = found[name], named[of]
        rows = table.shape[dimension] if table.shape.rank else None
        if n != -1 and rows is not None:
            found[name] = _rows.row(arguments.where, name, n, rows)
    return tuple(found.values())


def _variables(op: Op, arguments: Arguments) -> dict[str, Any]:
    """Returns {input: variable that receives its next value}."""
    found = {}
    for t, value in zip(op.forward.inputs, arguments.tensors):
        if value is None or not any(o.place_of == t.name for o in op.forward.outputs):
            continue
        if not hasattr(value, "assign"):
            raise TypeError(
                f"{arguments.where}: {t.name} is {type(value).__name__}, expected a variable: it "
                f"is updated in place"
            )
        found[t.name] = value
    return found


def _module_of(x: Any) -> Any:
    """Returns the functions that _adapted.py calls, or None for tensors whose shape is not known
    yet.
    """
    known = tf.is_tensor(x) and x.shape.is_fully_defined()
    return _MODULE if known else None


_MODULE = types.SimpleNamespace(
    __name__="tensorflow",
    broadcast_to=tf.broadcast_to,
    cast=tf.cast,
    clip=tf.clip_by_value,
    isinf=tf.math.is_inf,
    reshape=tf.reshape,
    where=tf.where,
)


def _adapt(op: Op, tensors: list[Any], dtype: Any) -> tuple[list[Any], Any]:
    """Returns the tensors that the kernel takes, and the results' shape if it is another one."""
    adapt = _adapted.of(op, _module_of)
    if adapt is None:
        return tensors, None
    names = [t.name for t in op.forward.inputs]
    given = dict(zip(names, tensors)) | {"dtype": dtype}
    _, found, shape = adapt((), given)
    return [found[name] for name in names], shape


def _call(op: Op, activation: str, arguments: Arguments, dtype: Any = None) -> Any:
    """Runs the op's forward and returns its results.

    Args:
        dtype: the one to which a reduction's tensors are converted first, or None.
    """
    where, inputs = arguments.where, op.forward.inputs
    variables = _variables(op, arguments)
    tensors = [
        None if x is None else tensor(where, t.name, x) for t, x in zip(inputs, arguments.tensors)
    ]
    tensors, adapted = _adapt(op, tensors, dtype)
    fold = _fold(op, arguments, tensors)
    if fold is not None:
        tensors = [x if x is None else _folded(x, fold) for x in tensors]
    named: dict[str, Any] = dict(zip((t.name for t in inputs), tensors))
    for name, of, after in _rows.counted(op):
        rank = named[of].shape.rank
        if named[name] is None and rank is not None and rank > after + 1:
            named[name] = _counted(named[of], after)
    _check_indices(op, arguments, named)
    found = _calls.forward(
        op,
        activation,
        list(named.values()),
        not tf.executing_eagerly() or record.could_possibly_record(),
        seed_of(where, arguments.rng) if op.dropout else None,
        integers=_integers(op, arguments, named),
        scalars=arguments.scalars,
        axis=fold.axis if fold else arguments.axis,
        groups=arguments.groups,
        asked=arguments.asked,
    )
    for t, x in zip(op.forward.outputs, found):
        if t.place_of in variables:
            variables[t.place_of].assign(x)
    results = [found[i] for i in op.forward.results]
    if fold is not None:
        results = [tf.reshape(x, fold.result) for x in results]
    if adapted is not None:
        results = [tf.reshape(x, adapted) for x in results]
    return results[0] if len(results) == 1 else tuple(results)


def _fold(op: Op, arguments: Arguments, tensors: Sequence[Any]) -> _axes.Fold | None:
    """Returns how several axes of a reduction become one; unknown dimensions are tensors."""
    if not _axes.applies(op):
        return None
    shapes = [None if x is None else x.shape for x in tensors]
    if any(shape is not None and shape.rank is None for shape in shapes):
        if arguments.axes is None and not arguments.keepdim:
            return None
        raise ValueError(
            f"{arguments.where}: {op.forward.inputs[0].name} has an unknown number of dimensions, "
            f"expected a known one beside dim = None, several axes or keepdim"
        )
    known = all(shape is None or shape.is_fully_defined() for shape in shapes)
    own = shapes if known else [_sizes(tensors[0])] + [None] * (len(shapes) - 1)
    return _axes.of(op, arguments, own)


def _sizes(x: Any) -> list[Any]:
    """Returns the dimensions of a tensor: numbers, or tensors if unknown."""
    every = tf.shape(x, tf.int64)
    return [every[i] if n is None else n for i, n in enumerate(x.shape)]


def _folded(x: Any, fold: _axes.Fold) -> Any:
    """Makes the axes of a reduction one axis."""
    return tf.reshape(x if fold.order is None else tf.transpose(x, fold.order), fold.shape)


def _bind(op: Op, activation: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Binds and validates arguments; a scalar may be an eager tensor of one number."""
    where, own = op.display_name(activation), _functional.signature(op, activation)
    for v in (*op.forward.scalars, *op.scalars[activation]):
        value: Any = kwargs.get(v.name)
        if tf.is_tensor(value) and not (hasattr(value, "numpy") and value.shape.rank == 0):
            raise TypeError(
                f"{where}: {v.name} is a tensor of the shape {value.shape}, expected a number: it "
                f"is a constant of a graph"
            )
    try:
        return _arguments.bind(op, activation, args, kwargs)
    except TypeError:
        try:
            own.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"{where}{own}: {e}") from None
        raise


def make(op: Op, activation: str) -> Callable[..., Any]:
    """Makes the function of an op."""
    where, spelled = op.display_name(activation), _spellings.keywords(op, activation)
    check, left_out = _spellings.refuse_positions(op, activation), _functional.left_out(op)
    reorder, widens = _norms.reader(op, activation), _arguments.widens(op)

    def function(*args: Any, **kwargs: Any) -> Any:
        if check:
            check(args)
        kwargs = _dispatch.renamed(where, spelled, kwargs)
        for name in left_out:
            if name in kwargs:
                raise TypeError(
                    f"{where}: {name} is for other frameworks; TensorFlow's results are new tensors"
                )
        if reorder:
            args, kwargs, shape = reorder(args, kwargs)
            if shape is not None:
                given = _norms.named(op, activation, args, kwargs)
                return _norms.flattened(op, where, function, given, shape)
        dtype = kwargs.pop("dtype", None) if widens else None
        return _call(op, activation, _bind(op, activation, args, kwargs), dtype)

    # AutoGraph would convert the Python code of each call.
    made = tf.autograph.experimental.do_not_convert(function)
    made.__name__ = made.__qualname__ = op.word(activation)
    made.__module__ = "kernel_fusion_tensorflow"
    made.__doc__ = _docs.of(op, activation)
    made.__signature__ = _functional.signature(op, activation)
    found: Callable[..., Any] = made
    return found


_made: dict[str, Callable[..., Any]] = {}


def plain(name: str, label: str = "") -> Callable[..., Any]:
    """Returns the function of the op alone, without other arguments of `lookup`'s.

    Args:
        label: name of the op in error messages.
    """
    key = f"_plain_{name}__{label}"
    if key not in _made:
        op, activation = _table.functions()[name]
        _made[key] = make(op.labelled(label), activation)
    return _made[key]


def lookup(name: str) -> Callable[..., Any]:
    """Returns a function by its name or an alias, with or without fused_ in front."""
    if name not in _made:
        own = name if name in _composed.FUNCTIONS else _functional.spelled(name)
        if own is None:
            lacks = _table.lacks(name) or "dir(kernel_fusion_tensorflow) lists all functions"
            raise AttributeError(f"kernel_fusion_tensorflow has no `{name}`; {lacks}")
        if own in _composed.FUNCTIONS:
            _made[name] = _composed.FUNCTIONS[own]
        elif own in _made:
            _made[name] = _made[own]
        elif _functional.has(own):
            _made[name] = make(*_table.functions()[own])
        else:
            _made[name] = _dispatch.alias_of(
                _table.aliases()[own], lookup, "kernel_fusion_tensorflow"
            )
    found: Callable[..., Any] = _made[name]
    return found
