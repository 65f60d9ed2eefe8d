# SPDX-License-Identifier: Apache-2.0
"""The JAX primitive of kf's functions: shapes, lowering to XLA's FFI, and batching.

Its tensors have one dimension per extent of the C function's arguments, so that a batch of calls is
one call with a larger size.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec
from kfgen.model import shapes as data

from kernel_fusion._gpu_array import WORDS
from kernel_fusion._library import ALIGNED
from kernel_fusion._sizes import value
from kernel_fusion._table import Call, Op, Tensor
from kernel_fusion.jax import _native

KNOWN = {jnp.dtype(name): word for name, word in WORDS.items()}
DTYPES = {word: jnp.dtype(name) for name, word in WORDS.items() if name != "bool"}


@dataclasses.dataclass(frozen=True, repr=False)
class Launch:
    """A call of a C function: the primitive's parameter."""

    op: Op
    activation: str
    backward: bool
    function: str
    sizes: tuple[int, ...]
    integers: tuple[int, ...]
    scalars: tuple[float, ...]  # the op's, the activation's, then p
    dtypes: tuple[str, ...]  # dtypes of all outputs
    given: tuple[bool, ...]  # inputs that have an operand
    wanted: tuple[bool, ...]  # outputs that are computed

    def __repr__(self) -> str:
        return f"{self.function}({', '.join(map(str, [*self.sizes, *self.scalars]))})"

    @property
    def call(self) -> Call:
        return self.op.direction(self.backward)

    @property
    def where(self) -> str:
        """Name that begins an error message."""
        name: str = self.op.display_name(self.activation)
        return f"{name}{' (backward)' if self.backward else ''}"

    @property
    def operands(self) -> list[Tensor]:
        """Inputs that have an operand. Seed and offset of a dropout follow them."""
        return [t for t, given in zip(self.call.inputs, self.given) if given]

    @property
    def results(self) -> list[tuple[Tensor, str]]:
        """Outputs that are computed, with their dtypes."""
        found = zip(self.call.outputs, self.dtypes, self.wanted)
        return [(t, dtype) for t, dtype, wanted in found if wanted]

    def shape(self, t: Tensor) -> tuple[int, ...]:
        """Returns a tensor's shape: one dimension per extent."""
        numbers = dict(zip(self.op.rules.sizes, self.sizes))
        for v, n in zip(self.call.integers, self.integers):
            numbers[v.name] = n or self.op.rules.defaults.get(v.name, 0)
        return tuple(value(extent, numbers) for extent in t.extents)


def in_words(word: str) -> bool:
    """True for 64-bit integers while JAX has none: each is then a pair of int32 in its memory."""
    return word == "i64" and not jax.config.jax_enable_x64  # type: ignore[attr-defined]


def _aval(launch: Launch, t: Tensor, dtype: str, like: Any) -> Any:
    """Returns the type of a result, on the mesh of an operand and varying over the same axes."""
    pair = (2,) if in_words(dtype) else ()
    return like.update(
        shape=(*launch.shape(t), *pair),
        dtype=jnp.dtype("int32") if pair else DTYPES[dtype],
        weak_type=False,
        sharding=NamedSharding(like.sharding.mesh, PartitionSpec()),
    )


def _axes(x: Any) -> frozenset[Any]:
    """Mesh axes over which a value varies inside jax.shard_map."""
    found: frozenset[Any] = jax.typeof(x).mat.varying
    return found


def varying(values: Sequence[Any]) -> list[Any]:
    """Makes values vary over the same mesh axes, those of all: inside jax.shard_map a weight is the
    same on every device, and its gradient the sum over the devices.
    """
    every = frozenset[Any]().union(*(_axes(x) for x in values if x is not None))
    return [
        jax.lax.pcast(x, tuple(every - _axes(x)), to="varying")
        if x is not None and every - _axes(x)
        else x
        for x in values
    ]


def bind(launch: Launch, operands: Sequence[Any]) -> list[Any]:
    """Calls the function. Tensors have the shapes of its arguments; seed and offset come last."""
    given = []
    for i, x in enumerate(varying(operands)):
        own = launch.operands[i] if i < len(launch.operands) else None
        given.append(_wide(x) if own is not None and own.var == "i64" else x)
    found = PRIMITIVE.bind(*given, launch=launch)
    return [x[..., 0] if in_words(dtype) else x for x, (_, dtype) in zip(found, launch.results)]


def _wide(x: Any) -> Any:
    """Converts indices to 64 bits: in pairs, the low word, then the sign's."""
    if not in_words("i64"):
        return x.astype(jnp.int64)
    return jnp.stack([x, x >> 31], -1)


@functools.lru_cache(4096)
def _compiled(launch: Launch) -> Any:
    return jax.jit(functools.partial(PRIMITIVE.bind, launch=launch))


PRIMITIVE = Primitive("kf")
PRIMITIVE.multiple_results = True


def _run(*operands: Any, launch: Launch) -> Any:
    return _compiled(launch)(*operands)


def _abstract(*avals: Any, launch: Launch) -> list[Any]:
    return [_aval(launch, t, dtype, avals[0]) for t, dtype in launch.results]


def _no_derivative(primals: Any, tangents: Any, *, launch: Launch) -> Any:
    # The first derivative is that of jax.custom_vjp (_autodiff.py).
    name = launch.op.display_name(launch.activation)
    raise NotImplementedError(f"{name} has no second derivative")


PRIMITIVE.def_impl(_run)
PRIMITIVE.def_abstract_eval(_abstract)
ad.primitive_jvps[PRIMITIVE] = _no_derivative


# ---- lowering


def _places(launch: Launch) -> list[int]:
    """Returns the buffer of each tensor, as native/jax_ffi.cpp numbers them."""
    operands, results = iter(range(len(launch.given))), iter(range(len(launch.wanted)))
    return [next(operands) if given else -1 for given in launch.given] + [
        -2 - next(results) if wanted else -1 for wanted in launch.wanted
    ]


def _lower(on_gpu: bool, ctx: Any, *operands: Any, launch: Launch) -> Any:
    """Emits the call. On a GPU a function's workspace is a result too, which XLA allocates."""
    call = launch.call
    sizes = [*launch.sizes, *launch.integers]
    bytes_ = _native.prepare(launch.op, launch.function, on_gpu, sizes if call.workspace else None)
    results = len(ctx.avals_out)
    if bytes_:
        # The handler aligns it.
        space = jax.core.ShapedArray((bytes_ + ALIGNED - 1,), jnp.dtype("uint8"))
        ctx = ctx.replace(avals_out=[*ctx.avals_out, space])
    rule = jax.ffi.ffi_lowering(_native.TARGET)
    found = rule(
        ctx,
        *operands,
        function=launch.function,
        where=launch.where,
        sizes=np.array(sizes, np.int64),
        scalars=np.array(call.values(launch.scalars, launch.op.dropout), np.float64),
        places=np.array(_places(launch), np.int64),
        rng=np.int64(len(launch.operands) if launch.op.dropout else -1),
        space=np.int64(results if bytes_ else -1),
    )
    return found[:results]


mlir.register_lowering(PRIMITIVE, functools.partial(_lower, False), platform="cpu")
mlir.register_lowering(PRIMITIVE, functools.partial(_lower, True), platform="cuda")


# ---- batching


def _joins(launch: Launch, size: str, batched: Sequence[bool]) -> int | None:
    """Returns the number of elements to copy if a batch may extend a size, or None if it may not.

    Every result has the size as its outermost, and no saved statistic spans it: then the function
    computes the elements of the size independently. Operands without it must not be batched.
    """
    op, sizes = launch.op, dict(zip(launch.op.rules.sizes, launch.sizes))
    if op.dropout or not data.spans(op.rules.sizes[size]):
        return None
    if any(_outermost(t, size, sizes) is None for t in op.forward.outputs):
        return None
    copied = 0
    for t, is_batched in zip(launch.operands, batched):
        at = _outermost(t, size, sizes)
        if at is None and (is_batched or any(size in data.names(e) for e in t.extents)):
            return None
        if at is not None and not is_batched:
            copied += math.prod(launch.shape(t))
    if any(_outermost(t, size, sizes) is None for t, _ in launch.results):
        return None
    return copied


def _outermost(t: Tensor, size: str, sizes: dict[str, int]) -> int | None:
    """Returns the index of a size among a tensor's extents if those before are 1, else None."""
    for i, extent in enumerate(t.extents):
        if extent == size:
            return i
        if not isinstance(extent, str) or sizes.get(extent) != 1:
            return None
    return None


def _batch(args: Sequence[Any], dims: Sequence[int | None], *, launch: Launch) -> Any:
    """Extends a size if the function allows it; otherwise calls it once per element."""
    [count] = {x.shape[d] for x, d in zip(args, dims) if d is not None}
    batched = [d is not None for d in dims]
    joins = {s: _joins(launch, s, batched) for s in launch.op.rules.sizes}
    able = [(copied, s) for s, copied in joins.items() if copied is not None]
    if able and count:
        found = _joined(launch, min(able, key=lambda one: one[0])[1], args, dims, count)
        return found, [0] * len(found)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims)]

    def one(own: Sequence[Any]) -> Any:
        left = iter(own)
        given = [next(left) if is_batched else x for x, is_batched in zip(moved, batched)]
        return PRIMITIVE.bind(*given, launch=launch)

    found = jax.lax.map(one, [x for x, is_batched in zip(moved, batched) if is_batched])
    return found, [0] * len(found)


def _joined(
    launch: Launch, size: str, args: Sequence[Any], dims: Sequence[int | None], count: int
) -> list[Any]:
    """Calls the function once, with a size times the batch."""
    sizes = dict(zip(launch.op.rules.sizes, launch.sizes))
    n = sizes[size]
    given = []
    for t, x, d in zip(launch.operands, args, dims):
        at = _outermost(t, size, sizes)
        if at is not None:
            own = jnp.broadcast_to(x, (count, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            x = own.reshape(*own.shape[1 : at + 1], count * n, *own.shape[at + 2 :])
        given.append(x)
    sizes[size] = count * n
    found = PRIMITIVE.bind(*given, launch=dataclasses.replace(launch, sizes=tuple(sizes.values())))
    results = []
    for (t, _), x in zip(launch.results, found):
        at = _outermost(t, size, dict(zip(launch.op.rules.sizes, launch.sizes)))
        assert at is not None
        results.append(x.reshape(count, *x.shape[:at], n, *x.shape[at + 1 :]))
    return results


batching.primitive_batchers[PRIMITIVE] = _batch
