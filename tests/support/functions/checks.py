# SPDX-License-Identifier: Apache-2.0
"""Runs one function on one shape and compares it with the float64 oracle, on the CPU or on a GPU.

All tensors of a call are in one arena, between guard bytes. Inputs and guards must come back
unchanged; outputs and workspace are poisoned before the call. The number tests of all backends use
`run`; other tests and bench/check.py also use names imported here as checks.<name>.
"""

import ctypes
import math

import cases
import numpy as np
import row_checks
from element_checks import bound_of as bound_of
from element_checks import check, mask
from element_checks import philox as philox
from element_checks import philox_words as philox_words
from element_checks import result_of as result_of
from kfgen.families import reference as elements_reference
from storage import EPS as EPS
from storage import MANTISSA as MANTISSA
from storage import STORAGE, Failure, draw, from_float, kernel_of, shape_of, spec, to_float
from storage import TINY as TINY
from storage import ulp as ulp

GUARD = 64
# Bytes of a call's tensors and workspace on a GPU; tests/gen/test_cases.py keeps all shapes below.
ARENA = 1 << 29


class CpuMemory:
    """The arena in the process's own memory. It grows for larger images: the workspace of a C
    function depends on the number of processors."""

    def __init__(self, size=1 << 26):
        self.reserve(size)

    def reserve(self, size):
        self.buffer = np.zeros(size + 256, np.uint8)
        self.base = self.buffer.ctypes.data + (-self.buffer.ctypes.data) % 256
        self.bytes = self.buffer[self.base - self.buffer.ctypes.data :]
        self.size = size

    def run(self, image, call):
        if image.size > self.size:
            self.reserve(image.size)
        self.bytes[: image.size] = image
        result = call(self.base)
        return result, self.bytes[: image.size].copy()


class CudaMemory:
    """The arena in a GPU's memory, through libcudart alone."""

    def __init__(self, size=ARENA):
        self.rt = ctypes.CDLL("libcudart.so")
        pointer = ctypes.c_void_p()
        self.check(self.rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
        self.base, self.size = pointer.value, size

    def check(self, status):
        if status != 0:
            self.rt.cudaGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(
                f"CUDA error {status}: {self.rt.cudaGetErrorString(status).decode()}"
            )

    def copy(self, to, source, count, kind):
        self.check(
            self.rt.cudaMemcpy(
                ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(count), kind
            )
        )

    def run(self, image, call):
        self.copy(self.base, image.ctypes.data, image.size, 1)
        result = call(self.base)
        self.check(self.rt.cudaDeviceSynchronize())
        back = np.empty_like(image)
        self.copy(back.ctypes.data, self.base, image.size, 2)
        return result, back


def instead_of(f):
    """Returns the inputs that the backward does not need when it gets the activation's result."""
    return tuple(a["name"] for a in f["arguments"] if a.get("null") == "result")


def spread(array, sizes, kind):
    """Broadcasts an operand to the result's shape."""
    if kind == "channel":
        return np.broadcast_to(array[None, :, None], sizes)
    return np.broadcast_to(array, sizes) if kind == "row" else array


def same_bits(a, b):
    return a.tobytes() == b.tobytes()


def same_numbers(a, b, dtype):
    """True if both arrays have the same bits; NaNs may differ in theirs."""
    if same_bits(a, b):
        return True
    nan = [np.isnan(to_float(array, dtype)) for array in (a, b)]
    bits = [
        np.where(which, array.dtype.type(0), array).tobytes() for which, array in zip(nan, (a, b))
    ]
    return bits[0] == bits[1] and np.array_equal(*nan)


def in_place_pairs(f):
    """Returns the (output, input) pairs that may share memory: equal shape and element size, or a
    value and its updated one."""
    tensors = [a for a in f["arguments"] if "kind" in a]
    return [
        (o["name"], i["name"])
        for o in tensors
        for i in tensors
        if o["role"] != "in"
        and i["role"] == "in"
        and not i["unread"]
        and (
            o["kind"] == i["kind"] == "elem"
            or o["place_of"] == i["name"]
            or cases.own(f)
            and i["name"] in o["in_place"]
        )
        and np.dtype(STORAGE[o["dtype"]]).itemsize == np.dtype(STORAGE[i["dtype"]]).itemsize
    ]


def poison(size):
    """Returns fill bytes for guards and workspace: NaN in float, f16 and bf16, huge in double.
    Neighbouring words differ: a NaN read behind one tensor and written behind another must change
    it."""
    place = np.arange(size // 2, dtype=np.uint64)
    return (0xFF81 | (place * 2654435761 >> 16) & 0x7F).astype(np.uint16).view(np.uint8)


def offsets(f, sizes, shift=0, aliases=()):
    """Returns ({tensor: byte offset in the arena}, end offset in bytes). `aliases`: tensors to
    skip, because they share another one's memory."""
    found, at = {}, GUARD
    for k, a in enumerate(a for a in f["arguments"] if "kind" in a):
        if a["name"] in aliases:
            continue
        size = np.dtype(STORAGE[a["dtype"]]).itemsize
        found[a["name"]] = -(-at // 64) * 64 + size * (
            shift[k % len(shift)] if isinstance(shift, tuple) else shift
        )
        at = found[a["name"]] + size * math.prod(shape_of(f, sizes, a)) + GUARD
    return found, at


OFFSET_ADD = 3  # `offset_add` of calls whose seed and offset are in memory.


def state_at(at):
    """Returns the arguments of a `_state` launcher: addresses of the seed (`at`) and the offset
    after it."""
    return {"seed": at, "offset": at + 8, "offset_add": OFFSET_ADD}


class Layout:
    """One call of f: draws its data and places its tensors in one arena, between guard bytes.
    Outputs are poisoned.

    shift: elements by which tensors are moved off their 16-byte alignment, one number or one per
    tensor. drop: gradients passed as NULL. inplace: (output, input) pairs that share memory.
    """

    def __init__(
        self, lib, f, sizes, values="normal", seed=0, shift=0, drop=(), inplace=(), files=(), p=0.25
    ):
        self.f, self.sizes, self.drop, self.p, self.files, self.backend = (
            f,
            tuple(map(int, sizes)),
            drop,
            p,
            files,
            lib.backend,
        )
        self.kernel = kernel_of(f["op"], tuple(f["dtypes"]), f["bwd"], files)
        self.act = spec(files).activations[f["activation"]]
        self.where = f"{f['name']} sizes={self.sizes} values={values} seed={seed} shift={shift}"
        rng = np.random.default_rng([seed, *self.sizes, len(f["name"])])
        self.tensors = {a["name"]: a for a in f["arguments"] if "kind" in a}
        self.own = cases.own(f)
        self.rows = f["family"] != "elementwise" and not self.own
        self.scalar_type = np.float64 if self.kernel.dtype.compute == "f64" else np.float32
        self.scalars = {
            k: v if isinstance(v, int) else float(self.scalar_type(v))
            for k, v in f["scalars"].items()
        }
        if self.own:
            self.own.prepare(self)
        alias = dict(inplace)
        self.offset, at = offsets(f, sizes, shift, alias)
        self.data = {}
        for name, a in self.tensors.items():
            shape = shape_of(f, sizes, a)
            if self.own:
                array = self.own.draw(rng, self, a, values)
            elif a["role"] == "in":
                mode = (
                    "normal"
                    if name.startswith("d") and f["bwd"] and name[1:] in self.kernel.op.outputs
                    else values
                )
                array = (
                    row_checks.draw(rng, self, a, mode)
                    if self.rows
                    else draw(rng, shape, a["dtype"], mode, a["positive"])
                )
            else:
                array = (
                    np.full(shape, -1, STORAGE[a["dtype"]])
                    if a["dtype"][0] == "i"
                    else from_float(np.full(shape, np.nan), a["dtype"])
                )
            self.data[name] = array
        self.philox = int(rng.integers(2**63)), int(rng.integers(2**40))
        if self.own:
            getattr(self.own, "fill", lambda call: None)(self)
        elif self.rows:
            row_checks.fill(self)
        elif self.kernel.result:
            self.fill()
        self.workspace = lib.workspace_bytes(f, list(sizes))
        self.offset[":workspace"] = -(-at // 256) * 256
        at = self.offset[":workspace"] + self.workspace + GUARD
        for name, source in alias.items():
            self.offset[name] = self.offset[source]
        self.state = -(-at // 64) * 64
        self.image = poison(self.state + 16 + GUARD)
        for name, array in self.data.items():
            if name not in alias:
                self.image[self.offset[name] : self.offset[name] + array.nbytes] = array.reshape(
                    -1
                ).view(np.uint8)
        self.set_philox(*self.philox)

    def values(self):
        """Returns {operand: its values as float64, broadcast to the result's shape}; elementwise
        only."""
        env = {}
        for s in self.kernel.operands:
            x = to_float(self.data[s.name], self.tensors[s.name]["dtype"])
            if s.kind == "half":
                env[s.parts[0]], env[s.parts[1]] = x[:, : self.sizes[1]], x[:, self.sizes[1] :]
            else:
                env[s.name] = spread(x, self.sizes, s.kind)
        return env

    def fill(self):
        """Computes the activation's result, an input of the backward, from the drawn data."""
        keep, keep_scale = self.mask() if self.f["dropout"] else (None, 1.0)
        found = elements_reference.values(
            self.kernel.op, self.act, self.values(), self.scalars, keep, keep_scale
        )[self.kernel.result]
        self.data[self.kernel.result] = from_float(
            np.ascontiguousarray(np.broadcast_to(found, self.sizes)),
            self.tensors[self.kernel.result]["dtype"],
        )

    def set_philox(self, seed, offset):
        self.philox = seed, offset
        self.image[self.state : self.state + 16] = np.array(
            [seed, (offset - OFFSET_ADD) % 2**64], np.uint64
        ).view(np.uint8)

    def mask(self):
        """Returns (kept elements, their scale) of dropout, or () for a function without dropout."""
        shape = (
            row_checks.extent(self)
            if self.rows
            else self.own.result(self)
            if hasattr(self.own, "result")
            else self.sizes
        )
        return mask(*self.philox, self.p, shape, self.scalar_type) if self.f["dropout"] else ()

    def given(self, base):
        """Returns the arguments of the call by name, for an arena at address `base`."""
        given = dict(zip(self.f["sizes"], self.sizes)) | self.scalars
        for name, a in self.tensors.items():
            given[name] = None if a["unread"] or name in self.drop else base + self.offset[name]
        given |= (
            state_at(base + self.state)
            if self.f["state"]
            else {"seed": self.philox[0], "offset": self.philox[1]}
        )
        return given | {
            "workspace": base + self.offset[":workspace"] if self.workspace else None,
            "workspace_bytes": self.workspace,
            "p": self.p,
        }

    def spans(self):
        """Returns the byte ranges that the call may read or write, for memories that protect the
        rest."""
        workspace = self.offset[":workspace"]
        tensors = [(self.span(name).start, self.span(name).stop) for name in self.data]
        return tensors + [(workspace, workspace + self.workspace), (self.state, self.state + 16)]

    def span(self, name):
        return slice(self.offset[name], self.offset[name] + self.data[name].nbytes)

    def outputs(self, back):
        """Returns {output: array} from the bytes of an arena."""
        return {
            name: back[self.span(name)].view(STORAGE[a["dtype"]]).reshape(self.data[name].shape)
            for name, a in self.tensors.items()
            if a["role"] != "in"
        }

    def untouched(self, back):
        """Fails if the call changed anything but its requested outputs and the workspace."""
        writable = np.zeros(self.image.size, bool)
        for name, a in self.tensors.items():
            if a["role"] != "in" and name not in self.drop:
                writable[self.span(name)] = True
        writable[self.offset[":workspace"] : self.offset[":workspace"] + self.workspace] = True
        changed = np.flatnonzero((back != self.image) & ~writable)
        if changed.size:
            raise Failure(
                f"{self.where}: wrote outside its outputs, at byte {changed[0]} of the arena "
                f"{self.offset}"
            )

    def check(self, got, weights=None):
        if self.own:
            return self.own.check(self, got, weights)
        if self.rows:
            return row_checks.check(self, got, weights)
        check(
            self.f,
            self.kernel,
            self.act,
            self.sizes,
            self.values(),
            self.data,
            got,
            self.scalars,
            *self.philox,
            self.p,
            self.where,
            self.drop,
            self.scalar_type,
            self.files,
            weights,
        )

    def put(self, name, array):
        """Replaces the data of an input."""
        self.data[name] = np.ascontiguousarray(array)
        self.image[self.span(name)] = self.data[name].reshape(-1).view(np.uint8)


def run(
    lib, memory, f, sizes, values="normal", seed=0, shift=0, drop=(), inplace=(), files=(), p=0.25
):
    """Calls f and checks its result, its outputs, and that nothing else changed. The arguments are
    those of Layout."""
    call = Layout(lib, f, sizes, values, seed, shift, drop, inplace, files, p)
    room = isinstance(memory, CpuMemory) or call.image.size <= memory.size
    assert room, "the arena is too small for this shape"
    memory.spans = call.spans()
    result, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    if result != 0:
        raise Failure(f"{call.where}: returned {result} ({lib.detail})")
    call.untouched(back)
    got = call.outputs(back)
    call.check(got)
    return got
