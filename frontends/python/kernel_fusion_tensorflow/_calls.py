# SPDX-License-Identifier: Apache-2.0
"""Calls of the op KernelFusionCall, and its gradient."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from kernel_fusion import _described, _plan
from kernel_fusion._backward import computed, may_use_result, sources_of
from kernel_fusion._described import Call
from kernel_fusion._table import Op
from kfgen.model.names import gradient_of

from kernel_fusion_tensorflow import _library, _on_gpu

WORDS = {
    tf.float32: "f32",
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.float64: "f64",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.uint8: "u8",
    tf.bool: "u8",
}
DTYPES = {word: dtype for dtype, word in WORDS.items() if dtype != tf.bool}
OP = "KernelFusionCall"


def word(where: str, name: str, dtype: Any) -> str:
    """Returns kf's name of a dtype."""
    if dtype not in WORDS:
        raise TypeError(
            f"{where}: {name} has the dtype {dtype.name}, expected one of "
            f"{', '.join(dict.fromkeys(WORDS.values()))}"
        )
    return WORDS[dtype]


def run(call: Call, tensors: Sequence[Any], rng: Any = None) -> list[Any]:
    """Calls the op.

    Args:
        tensors: tensors of the inputs that have one.
        rng: seed and offset of a dropout, two int64.

    Returns:
        One tensor per output, None for those that are not computed.
    """
    words = tuple(
        word(call.where, t.name, x.dtype) for t, x in zip(call.present, tensors, strict=True)
    )
    if any(map(_on_gpu.holds, tensors)):

        def gradient(given: Any, results: Any, grads: Any) -> list[Any]:
            return gradients(call, given, results, grads, rng)

        found = iter(_on_gpu.run(call, tensors, words, rng, gradient))
    else:
        _check_shapes(call, tensors, words)
        found = iter(_run(call, tensors, words, rng))
    return [next(found) if wanted else None for wanted in call.wanted]


def _run(call: Call, tensors: Sequence[Any], words: tuple[str, ...], rng: Any) -> list[Any]:
    """Calls the op and returns the results that are wanted."""
    text, results = _described.described(call, words)
    inputs = [*tensors] if rng is None else [*tensors, rng]
    # Eagerly TensorFlow would choose the GPU for tensors on the CPU.
    on_cpu = tf.executing_eagerly() and _on_gpu.is_there()
    with tf.device("CPU:0") if on_cpu else contextlib.nullcontext():
        return list(
            _library.op()(
                inputs=inputs, call=text, Tout=[DTYPES[w] for w in results], name=f"kf_{call.op}"
            )
        )


def _check_shapes(call: Call, tensors: Sequence[Any], words: Sequence[str]) -> None:
    """Checks shapes, where all are known: errors then name the caller's line."""
    shapes = [x.shape for x in tensors]
    if not all(shape.is_fully_defined() for shape in shapes):
        return
    own = iter(zip(map(tuple, shapes), words))
    _plan.cached(
        call.of,
        call.activation,
        call.backward,
        tuple(next(own) if given else None for given in call.given),
        call.axis,
        call.groups,
        call.asked,
        call.integers if call.direction.reads_integers else (),
    )


# ---- gradients


@tf.RegisterGradient(OP)  # type: ignore[untyped-decorator]
def _gradient(node: Any, *grads: Any) -> list[Any]:
    """The gradient of the op in graphs, and eagerly on the CPU."""
    call = _described.parse(node.get_attr("call").decode().partition("\n")[0])
    count, has_rng = sum(call.given), call.of.dropout
    skipped = frozenset(getattr(node, "skip_input_indices", None) or ())
    rng = node.inputs[count] if has_rng else None
    found = gradients(call, node.inputs[:count], node.outputs, grads, rng, skipped)
    return [*found, *[None] * has_rng]


def gradients(
    call: Call,
    tensors: Sequence[Any],
    results: Sequence[Any],
    grads: Sequence[Any],
    rng: Any,
    skipped: Collection[int] = (),
) -> list[Any]:
    """Computes the gradients of a call's tensors.

    Args:
        results: results of the call, whose gradients are `grads`.
        skipped: indices of tensors whose gradient is not asked for.
    """
    op, name = call.of, call.of.label or call.op
    if call.backward:
        raise NotImplementedError(f"kf.{name} has no second derivative")
    if not op.with_grad and op.backward is None:
        raise NotImplementedError(f"kf.{name} has no gradient")
    asked = [i not in skipped and x.dtype.is_floating for i, x in enumerate(tensors)]
    own, made = iter(zip(tensors, asked)), iter(zip(results, grads))
    pairs = [next(own) if given else (None, False) for given in call.given]
    inputs, needed = [x for x, _ in pairs], [n for _, n in pairs]
    outputs = [next(made) if wanted else (None, None) for wanted in call.wanted]
    if op.with_grad:
        found = _by_other(call, inputs, outputs, needed)
    else:
        found = _by_backward(call, inputs, outputs, rng, needed)
    return [g for g, given in zip(found, call.given) if given]


def _by_backward(
    call: Call, inputs: Sequence[Any], outputs: Sequence[Any], rng: Any, needed: Sequence[bool]
) -> list[Any]:
    """Returns one gradient per input, computed by the op's backward."""
    op, count = call.of, len(call.direction.scalars)
    assert op.backward is not None
    by_result = may_use_result(op, call.activation) and all(
        call.scalars[count + i] >= 0 for i in op.rising[call.activation]
    )
    given: list[Any] = []
    for kind, i in sources_of(op, call.activation, by_result):
        if kind == "none":
            given.append(None)
        elif kind in ("in", "shape"):
            given.append(inputs[i])
        else:
            given.append(outputs[i][kind == "grad"])
    at = computed(op)
    wanted = [any(needed[i] for i in at.get(j, ())) for j in range(len(op.backward.outputs))]
    found: list[Any] = [None] * len(inputs)
    if any(wanted):
        backward = Call(
            call.op,
            call.activation,
            True,
            tuple(x is not None for x in given),
            tuple(wanted),
            _values(call, op.backward.integers),
            call.scalars,
            call.axis,
            call.groups,
            label=call.label,
        )
        results = run(backward, [x for x in given if x is not None], rng)
        for j, numbers in at.items():
            for i in numbers:
                found[i] = results[j] if needed[i] else None
    incoming = [gradient_of(t.name) for t in op.forward.outputs]
    for t in op.backward.outputs:
        if t.unchanged:
            i = [x.name for x in op.forward.inputs].index(t.of)
            found[i] = outputs[incoming.index(t.unchanged)][1] if needed[i] else None
    return found


def _values(call: Call, wanted: Sequence[Any]) -> tuple[int, ...]:
    """Returns the integers of another function, from those of a call by name."""
    given = dict(zip((v.name for v in call.direction.integers), call.integers))
    return tuple(given[v.name] for v in wanted)


def _by_other(
    call: Call, inputs: Sequence[Any], outputs: Sequence[Any], needed: Sequence[bool]
) -> list[Any]:
    """Returns one gradient per input, of an op that computes them together with the results."""
    op = call.of
    other = _described.find(op.with_grad)
    named = dict(zip((t.name for t in op.forward.inputs), inputs))
    named |= {gradient_of(t.name): g for t, (_, g) in zip(op.forward.outputs, outputs)}
    given = [named.get(t.name) for t in other.forward.inputs]
    results = {t.name: i for i, t in enumerate(other.forward.outputs)}
    at = [results.get(gradient_of(t.name)) for t in op.forward.inputs]
    asked = {i for i, has in zip(at, needed) if has}
    if not asked - {None}:
        return [None] * len(inputs)
    with_grad = Call(
        other.name,
        call.activation,
        False,
        tuple(x is not None for x in given),
        tuple(i in asked for i in range(len(results))),
        _values(call, other.forward.integers),
        call.scalars,
        call.axis,
        call.groups,
        label=call.label,
    )
    found = run(with_grad, [x for x in given if x is not None])
    return [found[i] if has and i is not None else None for i, has in zip(at, needed)]


def forward(
    op: Op, activation: str, tensors: Sequence[Any], saves: bool, rng: Any = None, **options: Any
) -> list[Any]:
    """Calls an op's forward; returns one tensor per output.

    Args:
        tensors: one per input, or None.
        saves: True if the outputs that are saved for a backward are computed.
        options: further fields of the call.
    """
    _described.add(op)
    names = [t.name for t in op.forward.inputs]
    wanted = tuple(
        saves
        if t.use == "saved"
        else tensors[names.index(t.place_of)] is not None
        if t.place_of
        else True
        for t in op.forward.outputs
    )
    given = tuple(x is not None for x in tensors)
    call = Call(op.name, activation, False, given, wanted, label=op.label, **options)
    return run(call, [x for x in tensors if x is not None], rng)
