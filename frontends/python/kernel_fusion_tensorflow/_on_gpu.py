# SPDX-License-Identifier: Apache-2.0
"""Eager calls on a GPU: TensorFlow's tensors reach kf's launchers through DLPack.

TensorFlow tells no other library its stream, so a call waits for the device before and after the
launch.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from kernel_fusion import _gpu, _gpu_array, _gpu_calls, _library, _plan
from kernel_fusion._described import Call
from kernel_fusion._gpu_array import LEGACY


@functools.cache
def is_there() -> bool:
    """True if TensorFlow has a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


def holds(x: Any) -> bool:
    """True if an eager tensor is on a GPU."""
    return is_there() and tf.executing_eagerly() and "GPU" in x.device


class _Exported:
    """An eager tensor for a library that names its stream, which TensorFlow itself refuses."""

    def __init__(self, x: Any):
        self.x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, device = self.x.__dlpack_device__()
        return int(kind), int(device)

    def __dlpack__(self, stream: int | None = None) -> Any:
        return tf.experimental.dlpack.to_dlpack(self.x)


def _run(call: Call, tensors: Sequence[Any], words: Sequence[str], rng: Any) -> list[Any]:
    """Launches a call and returns the results that are wanted."""
    op, direction, own = call.of, call.direction, iter(zip(tensors, words))
    given = [next(own) if has else None for has in call.given]
    integers = call.integers if direction.reads_integers else ()
    plan = _plan.cached(
        op,
        call.activation,
        call.backward,
        tuple(None if g is None else (tuple(g[0].shape), g[1]) for g in given),
        call.axis,
        call.groups,
        call.asked,
        integers,
    )
    tf.test.experimental.sync_devices()
    arrays = []
    for t, g in zip(direction.inputs, given):
        x = None if g is None else _Exported(g[0]) if holds(g[0]) else g[0]
        arrays.append(None if x is None else _gpu_array.read(call.where, t.name, x, LEGACY))
    first = next(x for x in arrays if x is not None)
    target = _gpu_calls.Target(first, first)
    for t, x in zip(direction.inputs, arrays):
        if x is not None and x.device != first.device:
            raise ValueError(
                f"{call.where}: {t.name} is on GPU:{x.device}, the others on GPU:{first.device}"
            )
    made = [
        target.new(shape, dtype, ())[1] if wanted else None
        for shape, dtype, wanted in zip(plan.shapes, plan.dtypes, call.wanted)
    ]
    read = [
        None if x is None or call.activation in t.unread else x.address
        for t, x in zip(direction.inputs, arrays)
    ]
    seed = None if rng is None else target.seed(call.where, [int(n) for n in rng.numpy()])
    try:
        _library.of(op).on_gpu.call(
            plan.function,
            [*read, *(None if x is None else x.address for x in made)],
            [*plan.sizes, *call.integers],
            None,
            direction.values(call.scalars, op.dropout),
            None if seed is None else seed.address,
            target.space if direction.workspace else None,
            target.device,
            target.stream,
        )
    except _library.Refused as e:
        raise e.by(call.where) from None
    _gpu.library().wait(target.device, target.stream)
    return [
        tf.experimental.dlpack.from_dlpack(x.__dlpack__(stream=-1)) for x in made if x is not None
    ]


def run(
    call: Call,
    tensors: Sequence[Any],
    words: Sequence[str],
    rng: Any,
    gradient: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Runs a call and records its gradient.

    Args:
        words: dtypes of the tensors.
        gradient: returns the inputs' gradients, from the inputs, the results and their gradients.

    Returns:
        The results that are wanted.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(*given: Any) -> Any:
        results = _run(call, given, words, rng)
        return results, lambda *grads: gradient(given, results, grads)

    return list(recorded(*tensors))
