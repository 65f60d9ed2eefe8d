# SPDX-License-Identifier: Apache-2.0
"""kf's ops over arrays on a GPU that are no PyTorch tensors: CuPy's, whose results are CuPy's, and any that have the CUDA array interface or DLPack,
whose results are arrays of kf's own (_gpu_array.py)."""

import sys
from collections.abc import Sequence
from typing import Any

from kernel_fusion import _counts, _gpu, _gpu_array, _numpy, _plan, _strides
from kernel_fusion._arguments import Arguments
from kernel_fusion._gpu_array import LEGACY, LONG, Array
from kernel_fusion._library import Refused
from kernel_fusion._table import Op, Tensor


class Place:
    """Where a call runs, by its first array: device, stream, and whose memory its results are."""

    def __init__(self, x: Any, first: Array):
        self.device, self.stream = first.device, first.stream
        self.cupy = sys.modules["cupy"] if type(x).__module__.partition(".")[0] == "cupy" else None
        if self.cupy is not None:  # whose memory is in the order of its current stream
            with self.cupy.cuda.Device(self.device):
                self.stream = self.cupy.cuda.get_current_stream().ptr or LEGACY

    def new(self, shape: tuple[int, ...], word: str, given: Sequence[Any]) -> tuple[Any, Array]:
        """(as the caller gets it, as it is launched)"""
        if self.cupy is None:
            made = _gpu_array.new(shape, LONG[word], self.device, self.stream)
            return made, made
        with self.cupy.cuda.Device(self.device):
            own = self.cupy.empty(shape, _numpy.dtype_of(word, given))
        return own, _gpu_array.read("", "", own, self.stream)

    def space(self, size: int) -> tuple[Any, int]:
        """A workspace, which is freed when the launch is made, and in the stream's order."""
        if self.cupy is None:
            memory = _gpu_array.Memory(self.device, self.stream, size, self.stream)
            return memory, memory.address
        held, made = self.new((size,), "u8", ())
        return held, made.address

    def contiguous(self, where: str, name: str, x: Any) -> Array:
        if self.cupy is None:
            raise ValueError(
                f"{where}: {name} does not lie as the launcher takes it, and kf copies on a GPU only CuPy's arrays: make it contiguous"
            )
        with self.cupy.cuda.Device(self.device):
            return _gpu_array.read(where, name, self.cupy.array(x, order="C"), self.stream)

    def seed(self, where: str, rng: Any) -> Array:
        """Seed and offset, as the launcher reads them: on the device. Those drawn here are freed as a workspace is."""
        if _gpu_array.is_one(rng):
            found = _gpu_array.read(where, "rng", rng, self.stream)
            if found.shape != (2,) or found.dtype not in ("int64", "uint64") or not found.is_dense:
                raise ValueError(
                    f"{where}: rng is {found.dtype} of the shape {found.shape}, expected two int64"
                )
            return found
        drawn = _numpy.seed_of(where, rng)
        memory = _gpu_array.Memory(self.device, self.stream, drawn.nbytes, self.stream)
        _gpu.library().upload(
            self.device, memory.address, drawn.ctypes.data, drawn.nbytes, self.stream
        )
        return Array(memory.address, (2,), "int64", self.device, self.stream, owner=memory)


def _inputs(op: Op, arguments: Arguments) -> tuple[Place, list[Array | None]]:
    """The first array says where the call runs; what others are still being made on another stream is waited for."""
    where, tensors = arguments.where, op.forward.inputs
    given: list[Array | None] = []
    place: Place | None = None
    for t, x in zip(tensors, arguments.tensors):
        if x is None:
            given.append(None)
            continue
        found = _gpu_array.read(where, t.name, x, place.stream if place else None)
        place = place or Place(x, found)
        _on(place, where, t.name, found)
        given.append(found)
    assert place is not None
    return place, given


def _on(place: Place, where: str, name: str, x: Array) -> None:
    if x.device != place.device:
        raise ValueError(
            f"{where}: {name} is on cuda:{x.device}, the others on cuda:{place.device}"
        )
    if x.stream != place.stream:
        x.read_elsewhere()
        _gpu.library().wait(x.device, x.stream)


def call(op: Op, activation: str, arguments: Arguments) -> Any:
    """Runs the op's forward; returns its results."""
    where, forward = arguments.where, op.forward
    place, given = _inputs(op, arguments)
    if arguments.flatten:
        _plan.check_flat(where, forward.inputs, [None if a is None else a.shape for a in given])
        given = [
            a and (a if a.is_dense else _copied(op, place, where, t, x)).flat()
            if t.kind == "elem"
            else a
            for t, a, x in zip(forward.inputs, given, arguments.tensors)
        ]
    plan = _plan.cached(
        op,
        activation,
        False,
        tuple(None if a is None else (a.shape, a.word) for a in given),
        arguments.axis,
        arguments.groups,
        arguments.second,
    )
    results = [
        _output(op, place, where, i, plan, given, arguments) for i in range(len(forward.outputs))
    ]
    _run(op, place, plan, given, [array for _, array in results], arguments)
    found = [results[i][0] for i in forward.results]
    return found[0] if len(found) == 1 else tuple(found)


def _output(
    op: Op,
    place: Place,
    where: str,
    i: int,
    plan: _plan.Plan,
    given: Sequence[Array | None],
    arguments: Arguments,
) -> tuple[Any, Array | None]:
    """(as the caller gets it, as it is launched): what is saved for a backward is not asked for; what goes to an input's place is that input."""
    t, forward = op.forward.outputs[i], op.forward
    if t.use == "saved":
        return None, None
    if t.place_of:
        at = [x.name for x in forward.inputs].index(t.place_of)
        _check_written(where, t.place_of, given[at])
        return arguments.tensors[at], given[at]
    out = arguments.out
    wanted = out if len(forward.results) == 1 else (out or {}).get(t.name)
    if wanted is None:
        return place.new(plan.shapes[i], plan.dtypes[i], arguments.tensors)
    found = _gpu_array.read(where, t.name, wanted, place.stream)
    _on(place, where, t.name, found)
    if found.shape != plan.shapes[i] or found.word != plan.dtypes[i]:
        raise ValueError(
            f"{where}: {t.name} is {found.dtype} of the shape {found.shape}, expected {LONG[plan.dtypes[i]]} of the shape "
            f"{plan.shapes[i]}"
        )
    _check_written(where, t.name, found)
    return wanted, found


def _check_written(where: str, name: str, x: Array | None) -> None:
    if x is not None and not (x.is_dense and x.writable):
        raise ValueError(f"{where}: {name} is written, and is not dense, writable memory")


def _copied(op: Op, place: Place, where: str, t: Tensor, x: Any) -> Array:
    made = place.contiguous(where, t.name, x)
    _counts.copied(op.name)
    return made


def _run(
    op: Op,
    place: Place,
    plan: _plan.Plan,
    given: Sequence[Array | None],
    results: Sequence[Array | None],
    arguments: Arguments,
) -> None:
    forward = op.forward
    held = [*given]
    found: dict[str, tuple[int, ...]] = {}
    for i, (t, a, x) in enumerate(zip(forward.inputs, given, arguments.tensors)):
        if a is None:
            continue
        strides = _strides.of(t, plan.layout, a.shape, a.strides)
        if strides is None:
            held[i] = _copied(op, place, arguments.where, t, x)
        elif any(strides):
            found[t.name] = strides
    rng = place.seed(arguments.where, arguments.rng) if op.dropout else None
    library = op.own.on_gpu if op.own else _gpu.library()
    try:
        library.call(
            plan.function,
            [None if a is None else a.address for a in [*held, *results]],
            [*plan.sizes, *arguments.integers],
            _strides.struct(forward, found),
            forward.values(arguments.scalars, op.dropout, arguments.beta),
            None if rng is None else rng.address,
            place.space if forward.workspace else None,
            place.device,
            place.stream,
        )
    except Refused as e:
        raise e.by(arguments.where) from None
