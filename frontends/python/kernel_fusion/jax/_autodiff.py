# SPDX-License-Identifier: Apache-2.0
"""Calls of an op in JAX, with the gradient that kf derives: one jax.custom_vjp for all ops."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from kfgen.model.names import gradient_of

from kernel_fusion import _backward, _plan, _table
from kernel_fusion._table import Op
from kernel_fusion.jax._primitive import KNOWN, Launch, bind, varying


@dataclasses.dataclass(frozen=True)
class Spec:
    """A call without its arrays."""

    op: Op
    activation: str
    axis: int
    groups: int
    asked: str | None
    integers: tuple[int, ...]
    scalars: tuple[float, ...]
    return_lse: bool = False

    @property
    def where(self) -> str:
        name: str = self.op.display_name(self.activation)
        return name


def word_of(x: Any, var: str) -> str:
    """Returns kf's name of an array's dtype; int32 stands for indices of 64 bits too."""
    word = KNOWN[x.dtype]
    return "i64" if var == "i64" and word == "i32" else word


def _invoke(
    spec: Spec, backward: bool, tensors: Sequence[Any], seeds: Any, wanted: Sequence[bool]
) -> list[Any]:
    """Calls one direction; returns its outputs, None for unwanted ones.

    Args:
        tensors: one per input: an array, None, or a ShapeDtypeStruct if only the shape is read.
    """
    op, call = spec.op, spec.op.direction(backward)
    for t, x in zip(call.inputs, tensors):
        if x is not None and not all(isinstance(n, int) for n in x.shape):
            raise NotImplementedError(
                f"{spec.where}: {t.name} has the symbolic shape {x.shape}, expected numbers"
            )
    plan = _plan.cached(
        op,
        spec.activation,
        backward,
        tuple(
            None if x is None else (tuple(x.shape), word_of(x, t.var))
            for t, x in zip(call.inputs, tensors)
        ),
        spec.axis,
        spec.groups,
        spec.asked,
        spec.integers if call.reads_integers else (),
    )
    given = tuple(
        x is not None
        and not isinstance(x, jax.ShapeDtypeStruct)
        and spec.activation not in t.unread
        for t, x in zip(call.inputs, tensors)
    )
    launch = Launch(
        op,
        spec.activation,
        backward,
        plan.function,
        plan.sizes,
        spec.integers,
        spec.scalars,
        plan.dtypes,
        given,
        tuple(wanted),
    )
    operands = [
        x.reshape(plan.layout.flat(t)) for t, x, has in zip(call.inputs, tensors, given) if has
    ]
    found = iter(bind(launch, [*operands, *([seeds] if op.dropout else [])]))
    return [
        next(found).reshape(shape) if is_wanted else None
        for is_wanted, shape in zip(wanted, plan.shapes)
    ]


def _results(spec: Spec, outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs that callers receive: the results, then statistics that other frameworks update."""
    placed = [i for i, t in enumerate(spec.op.forward.outputs) if t.place_of]
    results = spec.op.forward.kept(spec.return_lse)
    return tuple(outputs[i] for i in [*results, *placed] if outputs[i] is not None)


def _wanted(spec: Spec, tensors: Sequence[Any], saved: bool) -> list[bool]:
    given = {t.name for t, x in zip(spec.op.forward.inputs, tensors) if x is not None}
    lse = spec.op.forward.lse if spec.return_lse else None
    return [
        saved or i == lse if t.use == "saved" else not t.place_of or t.place_of in given
        for i, t in enumerate(spec.op.forward.outputs)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(spec: Spec, tensors: tuple[Any, ...], seeds: Any) -> tuple[Any, ...]:
    found = _invoke(spec, False, tensors, seeds, _wanted(spec, tensors, False))
    return _results(spec, found)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Kept:
    """Inputs of a backward besides arrays."""

    perturbed: tuple[bool, ...]  # inputs whose gradient is wanted
    shapes: tuple[Any, ...]  # inputs of the backward of which only the shape is read
    outputs: tuple[Any, ...]  # shapes and dtypes of the forward's outputs


def _sources(spec: Spec) -> list[_backward.Source]:
    """Sources of the backward's inputs. Scalars are constants, so the choice is made once."""
    op = spec.op
    by_result = _backward.may_use_result(op, spec.activation)
    values = spec.scalars[len(op.forward.scalars) :]
    by_result = by_result and all(values[i] >= 0 for i in op.rising[spec.activation])
    return _backward.sources_of(op, spec.activation, by_result)


def _struct(x: Any) -> Any:
    return None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype)


def _forward(spec: Spec, tensors: Any, seeds: Any) -> Any:
    op = spec.op
    perturbed = tuple(x is not None and x.perturbed for x in tensors)
    values = [None if x is None else x.value for x in tensors]
    seeds = None if seeds is None else seeds.value
    sources: list[Any] = _sources(spec) if op.backward else []
    outs = [i for kind, i in sources if kind == "out"]
    saved = any(op.forward.outputs[i].use == "saved" for i in outs) or bool(op.with_grad)
    found = _invoke(spec, False, values, seeds, _wanted(spec, values, saved))
    kept = {"in": values, "out": found}
    # Without a backward of its own, the op that computes the gradients takes all inputs.
    arrays = [kept[kind][i] if kind in kept else None for kind, i in sources] or values
    arrays = arrays if op.backward or op.with_grad else []
    shapes = tuple(_struct(values[i]) if kind == "shape" else None for kind, i in sources)
    static = _Kept(perturbed, shapes, tuple(map(_struct, found)))
    return _results(spec, found), (arrays, seeds, static)


def _gradient(grads: dict[int, Any], i: int, kept: _Kept, spec: Spec) -> Any:
    """Returns the incoming gradient of a result, in memory."""
    given, of = grads.get(i), kept.outputs[i]
    if given is None or isinstance(given, SymbolicZero):
        return jnp.zeros(of.shape, of.dtype)
    return given


def _of_lse(spec: Spec, cotangent: Any) -> dict[int, Any]:
    """Returns {index of lse: its gradient}, if the backward takes it."""
    lse, backward = spec.op.forward.lse, spec.op.backward
    assert lse is not None
    if backward is not None and spec.op.forward.outputs[lse].name in backward.given:
        return {lse: cotangent}
    if not isinstance(cotangent, SymbolicZero):
        raise NotImplementedError(f"{spec.where}: lse has no gradient")
    return {}


def _backward_of(spec: Spec, kept: Any, cotangents: Any) -> Any:
    arrays, seeds, static = kept
    op = spec.op
    # Gradients of updated statistics are not defined, as in other frameworks.
    grads = dict(zip(op.forward.results, cotangents))
    if spec.return_lse:
        grads |= _of_lse(spec, cotangents[len(grads)])
    if all(isinstance(g, SymbolicZero) for g in grads.values()):
        return (None,) * len(op.forward.inputs), None
    if op.with_grad:
        return _by_other(spec, arrays, static, grads), None
    if op.backward is None:
        raise NotImplementedError(f"{spec.where} has no gradient")
    computed = _backward.computed(op)
    wanted = [
        any(static.perturbed[i] for i in computed.get(j, ()))
        for j in range(len(op.backward.outputs))
    ]
    tensors = [
        _gradient(grads, i, static, spec) if kind == "grad" else x if shape is None else shape
        for (kind, i), x, shape in zip(_sources(spec), arrays, static.shapes)
    ]
    found = (
        _invoke(spec, True, tensors, seeds, wanted)
        if any(wanted)
        else [None] * len(op.backward.outputs)
    )
    of_input = {i: found[j] for j, inputs in computed.items() for i in inputs}
    names = [gradient_of(t.name) for t in op.forward.outputs]
    inputs = [t.name for t in op.forward.inputs]
    for t in op.backward.outputs:
        if t.unchanged:
            i = names.index(t.unchanged)
            of_input[inputs.index(t.of)] = _gradient(grads, i, static, spec)
    given = [of_input.get(i) if wanted else None for i, wanted in enumerate(static.perturbed)]
    return tuple(given), None


def _by_other(spec: Spec, values: Any, static: _Kept, grads: dict[int, Any]) -> tuple[Any, ...]:
    """Gradients that another op computes together with the results."""
    op, other = spec.op, _table.ops()[spec.op.with_grad]
    given = {t.name: x for t, x in zip(op.forward.inputs, values)}
    given |= {
        gradient_of(op.forward.outputs[i].name): _gradient(grads, i, static, spec) for i in grads
    }
    of = [gradient_of(t.name) for t in op.forward.inputs]
    perturbed = dict(zip(of, static.perturbed))
    own = dataclasses.replace(spec, op=other)
    tensors = [given.get(t.name) for t in other.forward.inputs]
    wanted = [perturbed.get(t.name, not t.nullable) for t in other.forward.outputs]
    found = _invoke(own, False, tensors, None, wanted)
    results = {t.name: x for t, x in zip(other.forward.outputs, found)}
    return tuple(results.get(name) if perturbed[name] else None for name in of)


_call.defvjp(_forward, _backward_of, symbolic_zeros=True)


def call(spec: Spec, tensors: Sequence[Any], seeds: Any) -> tuple[Any, ...]:
    """Calls an op; returns its results."""
    *given, seeds = varying([*tensors, seeds])
    found: tuple[Any, ...] = _call(spec, tuple(given), seeds)
    return found


@functools.lru_cache(4096)
def compiled(spec: Spec) -> Any:
    """The call for arrays outside of jax.jit."""
    return jax.jit(functools.partial(call, spec))
