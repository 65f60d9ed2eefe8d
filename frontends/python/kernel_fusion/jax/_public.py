# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.jax: they check arguments and call the op."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from kernel_fusion import (
    _adapted,
    _arguments,
    _axes,
    _caches,
    _dispatch,
    _docs,
    _norms,
    _plan,
    _rows,
    _spellings,
)
from kernel_fusion._table import Op, Tensor
from kernel_fusion.jax import _autodiff
from kernel_fusion.jax._primitive import KNOWN

X64 = "jax.config.update('jax_enable_x64', True)"


def _array(op: Op, where: str, t: Tensor, value: Any) -> Any:
    """Returns a JAX array of an argument, None of None."""
    if value is None or isinstance(value, jax.Array):
        found = value
    elif hasattr(value, "__jax_array__"):
        found = jnp.asarray(value)
    elif isinstance(value, np.ndarray):
        found = _of_numpy(where, t, value)
    else:
        raise TypeError(f"{where}: {t.name} is {type(value).__name__}, expected a JAX array")
    if found is not None and found.dtype not in KNOWN:
        raise TypeError(
            f"{where}: {t.name} has the dtype {found.dtype}, expected one of "
            f"{_plan.known_dtypes(op, t)}"
        )
    return found


def _of_numpy(where: str, t: Tensor, value: Any) -> Any:
    """Converts an array, unless JAX would change its values."""
    value = np.asarray(value)
    kept = jax.dtypes.canonicalize_dtype(value.dtype)
    fits = t.var == "i64" and kept == np.int32 and (value == value.astype(np.int32)).all()
    if kept != value.dtype and not fits:
        raise TypeError(
            f"{where}: {t.name} has the dtype {value.dtype}, which JAX converts to {kept}: {X64} "
            f"at the start of the program keeps it"
        )
    return jnp.asarray(value)


def _seeds(where: str, rng: Any) -> Any:
    """Returns seed and offset, in the memory of two integers of 64 bits, from a key of JAX.

    The two words of jax.random.key(n) are the seed n, and the offset is 0; the four of an rbg key
    are seed and offset.
    """
    if rng is None:
        raise TypeError(f"{where}: rng is missing, expected a key such as jax.random.key(0)")
    if isinstance(rng, (tuple, list)):
        try:
            words = np.array(_arguments.seeds(rng), np.uint64)
        except (TypeError, OverflowError):
            words = np.zeros(0, np.uint64)
        if words.shape == (2,):
            return jnp.asarray(words.view(np.uint32))
    elif isinstance(rng, jax.Array):
        if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
            rng = jax.random.key_data(rng)
        if rng.dtype == jnp.uint32 and rng.shape in ((2,), (4,)):
            rest = rng[2:] if rng.shape == (4,) else jnp.zeros(2, jnp.uint32)
            return jnp.stack([rng[1], rng[0], rest[1], rest[0]])
    raise TypeError(
        f"{where}: rng is {rng!r:.60}, expected a key of JAX or two whole numbers of 64 bits, seed "
        f"and offset"
    )


def _prepared(op: Op, where: str, given: dict[str, Any]) -> None:
    """Checks what JAX takes otherwise than NumPy does, and replaces rows of a table."""
    for name in ("out", "grads"):
        if given.pop(name, None) is not None:
            raise TypeError(f"{where}: {name} is for other arrays; JAX's are never overwritten")
    for name in op.forward.betas:
        if given[name] != 0:
            raise TypeError(f"{where}: {name} is for NumPy arrays, which have out")
    for name, value in given.items():
        is_tensor = any(name == t.name for t in op.forward.inputs) or name == "rng"
        if isinstance(value, jax.core.Tracer) and not is_tensor:
            raise TypeError(
                f"{where}: {name} is traced, expected a number: jax.jit(..., static_argnames=...)"
            )
    for name, of, dimension in _rows.padding(op):
        table = given[of]
        if given[name] is not None and len(getattr(table, "shape", ())) >= -dimension:
            given[name] = _rows.row(where, name, given[name], table.shape[dimension])


def _tensors(op: Op, arguments: _arguments.Arguments) -> list[Any]:
    """Returns the arrays, with positions that callers leave out."""
    where, inputs = arguments.where, op.forward.inputs
    found = [_array(op, where, t, value) for t, value in zip(inputs, arguments.tensors)]
    names = [t.name for t in inputs]
    for name, of, after in _rows.counted(op):
        x, i = found[names.index(of)], names.index(name)
        if found[i] is None and x is not None and x.ndim > after:
            shape = x.shape[: x.ndim - after]
            found[i] = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    return found


def _is_at_hand(x: Any) -> bool:
    """True if the values of an array can be read: on the CPU and outside of transforms."""
    known = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return known and {d.platform for d in x.devices()} == {"cpu"}


def _values(x: Any) -> Any:
    """Returns an array of NumPy, None if the values cannot be read."""
    return np.asarray(x) if _is_at_hand(x) else None


def _check_offsets(op: Op, where: str, tensors: Sequence[Any], integers: Sequence[int]) -> None:
    """Refuses wrong offsets of packed sequences, lists of blocks and lengths of caches, where
    their values are at hand.
    """
    named = dict(zip((t.name for t in op.forward.inputs), tensors))
    for name, of in _rows.offsets(op.forward):
        found, packed = named[name], named[of]
        if _is_at_hand(found) and packed is not None and packed.ndim:
            _rows.check_offsets(where, name, np.asarray(found), of, packed.shape[0])
    if listed := _rows.lists(op.forward):
        bounds, blocks, masks, key = (named[name] for name in listed)
        if _is_at_hand(bounds) and _is_at_hand(blocks):
            values = np.asarray(bounds), np.asarray(blocks)
            _rows.check_lists(where, listed, values, masks.shape, key.shape)
    numbers = dict(zip((v.name for v in op.forward.integers), integers))
    _caches.check_values(where, op.forward, named, _values, numbers)


def _module_of(x: Any) -> Any:
    """Returns jax.numpy of a JAX array, None of other objects."""
    return jnp if isinstance(x, jax.Array) else None


def _run(op: Op, activation: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    where = op.display_name(activation)
    given = _arguments.bound(op, activation, args, kwargs)
    adapt = _adapted.of(op, _module_of)
    if adapt:
        _, given, shape = adapt((), given)
        if shape is not None:
            return _run(op, activation, (), given).reshape(shape)
    _prepared(op, where, given)
    arguments = _arguments.validated(op, activation, given)
    tensors = _tensors(op, arguments)
    _check_offsets(op, where, tensors, arguments.integers)
    fold = _axes.of(op, arguments, [None if x is None else x.shape for x in tensors])
    if fold is not None:
        tensors = [x if x is None else _folded(x, fold) for x in tensors]
    seeds = _seeds(where, arguments.rng) if op.dropout else None
    spec = _autodiff.Spec(
        op,
        activation,
        fold.axis if fold else arguments.axis,
        arguments.groups,
        arguments.asked,
        arguments.integers,
        arguments.scalars,
        arguments.return_lse,
    )
    traced = any(isinstance(x, jax.core.Tracer) for x in (*tensors, seeds))
    call = functools.partial(_autodiff.call, spec) if traced else _autodiff.compiled(spec)
    try:
        found = call(tuple(tensors), seeds)
    except TypeError as e:
        if "custom_vjp" not in str(e):
            raise
        raise NotImplementedError(
            f"{where} has no forward-mode derivative (jax.jvp, jax.jacfwd): use jax.vjp, jax.grad "
            f"or jax.jacrev"
        ) from None
    if fold is not None:
        found = tuple(x.reshape(fold.result) for x in found)
    return found[0] if len(found) == 1 else found


def _folded(x: Any, fold: _axes.Fold) -> Any:
    """Makes the axes of a reduction one axis."""
    return (x if fold.order is None else x.transpose(fold.order)).reshape(fold.shape)


def make(op: Op, activation: str) -> Callable[..., Any]:
    """Makes a function of kf.jax."""
    where = op.display_name(activation)
    spelled = _spellings.keywords(op, activation)
    check = _spellings.refuse_positions(op, activation)
    reorder = _norms.reader(op, activation)

    def function(*args: Any, **kwargs: Any) -> Any:
        if check:
            check(args)
        if spelled and kwargs:
            kwargs = _dispatch.renamed(where, spelled, kwargs)
        if reorder:
            args, kwargs, shape = reorder(args, kwargs)
            if shape is not None:
                given = _norms.named(op, activation, args, kwargs)
                return _norms.flattened(op, where, function, given, shape)
        return _run(op, activation, args, kwargs)

    function.__name__ = function.__qualname__ = op.word(activation)
    function.__module__ = "kernel_fusion.jax"
    function.__doc__ = _docs.of(op, activation, jax=True)
    own: Any = function
    own.__signature__ = _arguments.constant_signature(op, activation)
    return function
