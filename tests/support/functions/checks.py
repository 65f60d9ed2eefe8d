# SPDX-License-Identifier: Apache-2.0
"""Runs one function on one shape and compares it with the float64 oracle, on the CPU or on a GPU.

Every tensor of a call lies in one arena, between guard words; inputs and guards must come back unchanged, outputs and
workspace are poisoned before the call.
"""

import ctypes
import functools
import math

import cases
import numpy as np
import row_checks
from kfgen.families import reference as elements_reference
from storage import (
    EPS,
    MANTISSA,
    STORAGE,
    TINY,
    Failure,
    compare,
    draw,
    from_float,
    kernel_of,
    shape_of,
    spec,
    to_float,
)
from storage import ulp as ulp  # for tests

GUARD = 64
ARENA = (
    1 << 29
    # Bytes of a call's tensors and workspace on a GPU; tests/gen/test_cases.py keeps all shapes below.
)


def philox_words(seed, offset, groups):
    """Returns [groups, 8]: the 16-bit random words of groups of eight elements. Written from the
    Philox paper, independently of kf."""
    mask = np.uint64(0xFFFFFFFF)
    c = [
        groups & mask,
        groups >> np.uint64(32),
        np.full_like(groups, offset & 0xFFFFFFFF),
        np.full_like(groups, offset >> 32),
    ]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            p1 & mask,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            p0 & mask,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = np.stack(c, axis=1)
    return np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=2).reshape(-1, 8)


def philox(seed, offset, count):
    """Returns the random words of elements 0 .. count - 1."""
    return philox_words(seed, offset, np.arange((count + 7) // 8, dtype=np.uint64)).reshape(-1)[
        :count
    ]


def mask(seed, offset, p, shape, scalar_type):
    """Returns (boolean array of the elements dropout keeps, the scale of kept elements)."""
    keep = (philox(seed, offset, int(np.prod(shape))) >= round(65536 * p)).reshape(shape)
    with np.errstate(all="ignore"):
        return keep, float(scalar_type(np.float64(1.0) / (1.0 - np.float64(scalar_type(p)))))


class CpuMemory:
    """The arena in the process's own memory."""

    def __init__(self, size=1 << 26):
        self.buffer = np.zeros(size + 256, np.uint8)
        self.base = self.buffer.ctypes.data + (-self.buffer.ctypes.data) % 256
        self.bytes = self.buffer[self.base - self.buffer.ctypes.data :]
        self.size = size

    def run(self, image, call):
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


@functools.cache
def bound_of(pattern, dtypes, bwd, act, files=(), by=False):
    return elements_reference.Bound(
        kernel_of(pattern, dtypes, bwd, files), spec(files).activations[act], by
    )


def result_of(f):
    """Returns the name of the activation's result, if this backward can compute its gradient from
    it."""
    return next((a["name"] for a in f["arguments"] if a.get("null") == "inputs"), None)


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
                f"{self.where}: wrote outside its outputs, at byte {changed[0]} of the arena {self.offset}"
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
    assert call.image.size <= memory.size, "the arena is too small for this shape"
    memory.spans = call.spans()
    result, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    if result != 0:
        raise Failure(f"{call.where}: returned {result} ({lib.detail})")
    call.untouched(back)
    got = call.outputs(back)
    call.check(got)
    return got


def check(
    f,
    kernel,
    act,
    sizes,
    env,
    data,
    got,
    scalars,
    philox_seed,
    offset,
    p,
    where,
    drop,
    scalar_type,
    files=(),
    weights=None,
):
    """Compares all outputs of an elementwise call with the oracle.

    env: values of the operands. weights: multiplicity of each row (or batch) in a sum.
    """
    shape = tuple(sizes)
    tensors = {a["name"]: a for a in f["arguments"] if "kind" in a}
    if f["op"] == "cast":
        return check_cast(f, data["x"], got["out"], where)
    if f["integer"]:
        return check_integer(f, kernel, act, data, got, where)
    keep, keep_scale = None, 1.0
    if f["dropout"]:
        keep, keep_scale = mask(philox_seed, offset, p, shape, scalar_type)
    act_scalars = {s: scalars[s] for s in act.scalars}
    result = result_of(f)
    result = (
        None
        if result is None or result in drop or result not in data
        else to_float(data[result], tensors[result]["dtype"])
    )
    duals = elements_reference.reference(
        kernel.op, act, env, scalars | act_scalars, keep, keep_scale, result
    )
    bound_env = dict(env) | scalars | {"keep": keep, "keep_scale": keep_scale}
    if f["bwd"]:
        bound_env |= {} if result is None else {kernel.result: result}
        bound_env |= {
            f"d{n}": to_float(data[f"d{n}"], tensors[f"d{n}"]["dtype"]) for n in kernel.op.outputs
        }
    bound = bound_of(
        f["op"], tuple(f["dtypes"]), f["bwd"], f["activation"], files, result is not None
    )
    compute = "f64" if kernel.dtype.compute == "f64" else "f32"
    bounds = iter(bound.evaluate(bound_env, EPS[compute], TINY[compute]))
    k = f["tolerance"]["factor"] + (
        4.0 if compute == "f64" else 0.0
        # The oracle is in float64 too.
    )
    near = np.broadcast_to(
        bound.undecided(bound_env, EPS[compute], TINY[compute], MANTISSA[compute][2] / 4), shape
    )
    alone = f["op"] == "{act}" and not f["bwd"] and act.rounding == "result"
    for stream in kernel.outputs:
        for part, name in enumerate(stream.parts):
            s, slope, top = (np.broadcast_to(v, shape) for v in next(bounds))
            if f["bwd"]:
                operand = name[1:]
                with np.errstate(all="ignore"):
                    want = sum(
                        bound_env[f"d{n}"]
                        * np.broadcast_to(duals[n].tangents.get(operand, 0.0), shape)
                        for n in kernel.op.outputs
                    )
            else:
                want = np.broadcast_to(duals[name].value, shape)
            if stream.name in drop:
                continue
            raw = got[stream.name]
            if stream.kind == "half":
                raw = raw[:, part * sizes[1] : (part + 1) * sizes[1]]
            k_sum = k
            doubles = [
                v for v in bound_env.values() if isinstance(v, np.ndarray) and v.dtype == np.float64
            ]
            loose = (
                f["bwd"] and stream.role != "sum" and not all(np.isfinite(v).all() for v in doubles)
            )
            skip = near
            if stream.role == "sum":
                axis = (0, 2) if stream.kind == "channel" else 0
                times = np.ones(shape[0]) if weights is None else weights
                terms = int(np.prod(shape)) // max(1, sizes[1]) * times.sum() / max(1, shape[0])
                times = times.reshape(-1, *[1] * (len(shape) - 1))
                skip = near.any(axis=axis)
                with np.errstate(all="ignore"):
                    want, s, slope, top = (
                        (v * times).sum(axis=axis) for v in (want, s, slope, top)
                    )
                k_sum = k + np.sqrt(
                    terms
                    # Rounding of the accumulation: errors of random signs.
                )
            found = to_float(raw, stream.dtype.word)
            compare(
                found,
                np.where(skip, found, want),
                stream.dtype.word,
                compute,
                k_sum,
                s,
                slope,
                top,
                alone,
                f"{where}: {stream.name}",
                loose,
            )


def check_cast(f, x, out, where):
    src, dst = f["dtypes"]
    if dst in ("i32", "i64"):
        info = np.iinfo(STORAGE[dst])
        if src in ("i32", "i64"):
            want = (
                np.clip(x.astype(object), info.min, info.max).astype(STORAGE[dst])
                if x.size
                else x.astype(STORAGE[dst])
            )
        else:
            v = to_float(x, src)
            whole = np.trunc(np.nan_to_num(v, nan=0.0, posinf=np.inf, neginf=-np.inf))
            want = np.array(
                [
                    info.max
                    if w >= float(info.max)
                    else info.min
                    if w <= float(info.min)
                    else int(w)
                    for w in whole.reshape(-1)
                ],
                STORAGE[dst],
            ).reshape(x.shape)
        bad = np.flatnonzero(out != want)
    else:
        # One rounding from the exact integer, through a float64 rounded to odd.
        if src == "i64":
            v = (
                np.array([odd_float(int(i)) for i in x.reshape(-1)]).reshape(x.shape)
                if dst != "f64"
                else x.astype(np.float64)
            )
        else:
            v = to_float(x, src)
        want = from_float(v, dst)
        same = (out == want) | (np.isnan(to_float(out, dst)) & np.isnan(to_float(want, dst)))
        bad = np.flatnonzero(~same)
    if bad.size:
        i = bad[0]
        raise Failure(
            f"{where}: {bad.size} of {out.size} wrong, first at {i}: {x.flat[i]!r} gave {out.flat[i]!r}, expected {want.flat[i]!r}"
        )


def odd_float(i):
    v = float(i)
    if int(v) == i:
        return v
    low = np.nextafter(v, 0.0) if abs(int(v)) > abs(i) else v
    bits = np.array([low]).view(np.uint64)
    return float((bits | np.uint64(1)).view(np.float64)[0])


def check_integer(f, kernel, act, data, got, where):
    kind = STORAGE[f["dtypes"][0]]
    with np.errstate(all="ignore"):
        inputs = {n: data[n] for n in (s.name for s in kernel.operands)}
        want = elements_reference._eval(
            kernel.op.refs["out"],
            {**inputs, "act": lambda z: np.maximum(z, 0) if act.name == "relu" else z},
        ).astype(kind)
    bad = np.flatnonzero(got["out"] != want)
    if bad.size:
        i = bad[0]
        raise Failure(
            f"{where}: {bad.size} wrong, first at {i}: got {got['out'].flat[i]}, expected {want.flat[i]}"
        )
