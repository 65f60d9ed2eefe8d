# SPDX-License-Identifier: Apache-2.0
"""kf's ops for GPU arrays other than PyTorch tensors.

CuPy arrays give CuPy results. Other arrays with the CUDA array interface or DLPack give kf's own
arrays (_gpu_array.py).
"""

import sys
from collections.abc import Sequence
from typing import Any

from kernel_fusion import _axes, _counts, _gpu, _gpu_array, _library, _numpy, _plan, _rows, _strides
from kernel_fusion._arguments import Arguments
from kernel_fusion._gpu_array import LEGACY, LONG, Array
from kernel_fusion._library import Refused
from kernel_fusion._table import Op, Tensor


class Target:
    """Target of a call, determined by its first array: device, stream and allocator."""

    def __init__(self, x: Any, first: Array):
        self.device = first.device
        self.stream = _gpu_array.running_on.get() or first.stream
        self.cupy = sys.modules["cupy"] if type(x).__module__.partition(".")[0] == "cupy" else None
        # CuPy's memory pool follows CuPy's current stream.
        if self.cupy is not None:
            with self.cupy.cuda.Device(self.device):
                self.stream = self.cupy.cuda.get_current_stream().ptr or LEGACY

    def new(self, shape: tuple[int, ...], word: str, given: Sequence[Any]) -> tuple[Any, Array]:
        """Allocates a result; returns (array for the caller, array for the launch)."""
        if self.cupy is None:
            made = _gpu_array.new(shape, LONG[word], self.device, self.stream)
            return made, made
        with self.cupy.cuda.Device(self.device):
            own = self.cupy.empty(shape, _numpy.dtype_of(word, given))
        return own, _gpu_array.read("", "", own, self.stream)

    def space(self, size: int) -> tuple[Any, int]:
        """Allocates a workspace, freed in stream order after the launch."""
        if self.cupy is None:
            memory = _gpu_array.Memory(self.device, self.stream, size, self.stream)
            return memory, memory.address
        held, made = self.new((size,), "u8", ())
        return held, made.address

    def contiguous(self, where: str, name: str, x: Any) -> Array:
        if self.cupy is None:
            raise ValueError(
                f"{where}: {name} has strides that the launcher does not support, and on a GPU kf "
                f"copies only CuPy arrays: "
                "make it contiguous"
            )
        with self.cupy.cuda.Device(self.device):
            return _gpu_array.read(where, name, self.cupy.array(x, order="C"), self.stream)

    def seed(self, where: str, rng: Any) -> Array:
        """Returns seed and offset in device memory; drawn numbers are freed in stream order."""
        if _gpu_array.is_one(rng):
            found = _gpu_array.read(where, "rng", rng, self.stream)
            if found.shape != (2,) or found.dtype not in ("int64", "uint64") or not found.is_dense:
                raise ValueError(
                    f"{where}: rng is {found.dtype} with shape {found.shape}, expected two int64"
                )
            return found
        drawn = _numpy.seed_of(where, rng)
        memory = _gpu_array.Memory(self.device, self.stream, drawn.nbytes, self.stream)
        _gpu.library().upload(
            self.device, memory.address, drawn.ctypes.data, drawn.nbytes, self.stream
        )
        return Array(memory.address, (2,), "int64", self.device, self.stream, owner=memory)


def _inputs(op: Op, arguments: Arguments) -> tuple[Target, list[Array | None]]:
    """Reads the inputs and returns (target, arrays), with waits for work of other streams."""
    where, tensors = arguments.where, op.forward.inputs
    given: list[Array | None] = []
    target: Target | None = None
    for t, x in zip(tensors, arguments.tensors):
        if x is None:
            given.append(None)
            continue
        found = _gpu_array.read(where, t.name, x, target.stream if target else None)
        target = target or Target(x, found)
        _on(target, where, t.name, found)
        given.append(found)
    assert target is not None
    return target, given


def _on(target: Target, where: str, name: str, x: Array) -> None:
    if x.device != target.device:
        raise ValueError(
            f"{where}: {name} is on cuda:{x.device}, the others on cuda:{target.device}"
        )
    if x.stream != target.stream:
        x.read_elsewhere()
        _gpu.library().wait(x.device, x.stream)


def call(op: Op, activation: str, arguments: Arguments) -> Any:
    """Runs the op's forward and returns its results."""
    where, forward = arguments.where, op.forward
    target, given = _inputs(op, arguments)
    fold = _axes.of(op, arguments, [None if a is None else a.shape for a in given])
    if fold is not None:
        given = [
            a and _folded(op, target, where, fold, t, a, x)
            for t, a, x in zip(forward.inputs, given, arguments.tensors)
        ]
    named = dict(zip((t.name for t in forward.inputs), given))
    for name, of, after in _rows.counted(op):
        x = named[of]
        if named[name] is None and x is not None and len(x.shape) > after + 1:
            raise ValueError(
                f"{where}: {name} is None, expected an index for each row of {of} of the shape "
                f"{x.shape}, which has several sequences"
            )
    plan = _plan.cached(
        op,
        activation,
        False,
        tuple(None if a is None else (a.shape, a.word) for a in given),
        fold.axis if fold else arguments.axis,
        arguments.groups,
        arguments.asked,
        tuple(arguments.integers) if forward.reads_integers else (),
    )
    plan = fold.planned(plan) if fold else plan
    results = [
        _output(op, target, where, i, plan, given, arguments) for i in range(len(forward.outputs))
    ]
    _run(op, target, plan, given, [array for _, array in results], arguments)
    found = [results[i][0] for i in forward.kept(arguments.return_lse)]
    return found[0] if len(found) == 1 else tuple(found)


def _output(
    op: Op,
    target: Target,
    where: str,
    i: int,
    plan: _plan.Plan,
    given: Sequence[Array | None],
    arguments: Arguments,
) -> tuple[Any, Array | None]:
    """Returns (array for the caller, array for the launch) of one output.

    Of the outputs saved for a backward, only the one of return_lse is computed; an input's next
    value is written into the input.
    """
    t, forward = op.forward.outputs[i], op.forward
    if t.use == "saved":
        asked = arguments.return_lse and i == forward.lse
        new = target.new(plan.shapes[i], plan.dtypes[i], arguments.tensors) if asked else None
        return new or (None, None)
    if t.place_of:
        at = [x.name for x in forward.inputs].index(t.place_of)
        _check_written(where, t.place_of, given[at])
        return arguments.tensors[at], given[at]
    out = arguments.out
    wanted = out if len(forward.results) == 1 else (out or {}).get(t.name)
    if wanted is None:
        return target.new(plan.shapes[i], plan.dtypes[i], arguments.tensors)
    found = _gpu_array.read(where, t.name, wanted, target.stream)
    _on(target, where, t.name, found)
    if found.shape != plan.shapes[i] or found.word != plan.dtypes[i]:
        raise ValueError(
            f"{where}: {t.name} is {found.dtype} with shape {found.shape}, expected "
            f"{LONG[plan.dtypes[i]]} with shape "
            f"{plan.shapes[i]}"
        )
    _check_written(where, t.name, found)
    return wanted, found


def _check_written(where: str, name: str, x: Array | None) -> None:
    if x is not None and not (x.is_dense and x.writable):
        raise ValueError(f"{where}: {name} is an output, expected contiguous, writable memory")


def _folded(
    op: Op, target: Target, where: str, fold: _axes.Fold, t: Tensor, a: Array, x: Any
) -> Array:
    """Makes the axes of a reduction one axis; copies an array that is not contiguous then."""
    moved = a if fold.order is None else a.permuted(fold.order)
    if not moved.is_dense:
        x = x if fold.order is None or target.cupy is None else x.transpose(fold.order)
        moved = _copied(op, target, where, t, x)
    return moved.reshaped(fold.shape)


def _copied(op: Op, target: Target, where: str, t: Tensor, x: Any) -> Array:
    made = target.contiguous(where, t.name, x)
    _counts.copied(op.name)
    return made


def _run(
    op: Op,
    target: Target,
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
            held[i] = _copied(op, target, arguments.where, t, x)
        elif any(strides):
            found[t.name] = strides
    rng = target.seed(arguments.where, arguments.rng) if op.dropout else None
    library = _library.of(op).on_gpu
    try:
        library.call(
            plan.function,
            [None if a is None else a.address for a in [*held, *results]],
            [*plan.sizes, *arguments.integers],
            _strides.struct(forward, found),
            forward.values(arguments.scalars, op.dropout, arguments.beta),
            None if rng is None else rng.address,
            target.space if forward.workspace else None,
            target.device,
            target.stream,
        )
    except Refused as e:
        raise e.by(arguments.where) from None
