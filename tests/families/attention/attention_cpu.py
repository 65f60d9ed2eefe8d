# SPDX-License-Identifier: Apache-2.0
"""Calls the C driver kf/core/attention/attention.h (cpu_core.c), and computes the same in float64.

Tensors are [batch, head, row, dim] in NumPy; `packed` stores them as [batch, row, head, dim]."""

import ctypes
import dataclasses
import mmap
import subprocess

import element_checks
import guarded
import kflib
import numpy as np
import pytest
from attention_core import BF16, stored, values
from attention_core import F16 as EMULATED_F16
from attention_core import F32 as EMULATED_F32
from attention_core import F64 as EMULATED_F64
from kfgen.families.attention import reference

SOURCE = kflib.ROOT / "tests/families/attention/cpu_core.c"
TYPES = {"f32": EMULATED_F32, "f64": EMULATED_F64, "f16": EMULATED_F16, "bf16": BF16}
NUMBERS = {"f32": 0, "f64": 1, "f16": 2, "bf16": 3}
SCORES = ("plain", "softcap", "bias", "mask", "alibi")
UNBOUNDED = 2**63 - 1
# one rounding, relative to what is summed
ROUNDING = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-24, "bf16": 2.0**-24}
STORED = {"f32": 0.0, "f64": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
SOFTCAP = 3.0

POINTERS = "q k v tensor sink out lse row_max log_sum".split()
SIZES = "batch heads kv_heads queries keys dim dim_v shift left right type score seed".split()


class Call(ctypes.Structure):
    """attention_call of cpu_core.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("strides", ctypes.c_int64 * 12),
        ("tensor_strides", ctypes.c_int64 * 4),
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "p")),
    ]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call. Visible keys: [i + shift - left, i + shift + right]; shift None: bottom right."""

    type: str = "f32"
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 64
    keys: int = 64
    dim: int = 64
    dim_v: int = 0  # 0: dim
    shift: int | None = None
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    score: str = "plain"
    shared: bool = False  # the score's tensor is one for all batches and heads
    scale: float | None = None  # None: dim ** -0.5
    sink: bool = False
    p: float = 0.0
    packed: bool = False
    gap: int = 0  # elements between rows
    hidden_nan: bool = False  # NaN and infinities in k and v at keys that no query sees
    size: float = 1.0  # standard deviation of q
    seed: int = 0


def library(include, folder, *flags):
    """Compiles cpu_core.c and returns the loaded library."""
    target = folder / "attention_cpu.so"
    command = [*flags, "-shared", "-fPIC", *(f"-I{d}" for d in include), str(SOURCE)]
    subprocess.run([*command, "-o", str(target), "-lm"], check=True)
    dll = ctypes.CDLL(str(target))
    dll.attention_bytes.restype = ctypes.c_size_t
    return dll


def scale(case):
    return (case.dim or 1) ** -0.5 if case.scale is None else case.scale


def visible(case):
    shift = case.keys - case.queries if case.shift is None else case.shift
    left, right = (None if x == UNBOUNDED else x for x in (case.left, case.right))
    return reference.window(case.queries, case.keys, shift, left, right)


# ---- inputs


def draw(case):
    """Returns {name: stored array}."""
    source = np.random.default_rng(case.seed)
    dim_v = case.dim_v or case.dim
    heads, kv_heads, kind = case.heads, case.kv_heads, TYPES[case.type]
    q = source.standard_normal((case.batch, heads, case.queries, case.dim)) * case.size
    k = source.standard_normal((case.batch, kv_heads, case.keys, case.dim))
    v = source.standard_normal((case.batch, kv_heads, case.keys, dim_v))
    if case.hidden_nan:
        bad = np.resize([np.nan, np.inf, -np.inf], case.keys * dim_v).reshape(case.keys, dim_v)
        hidden = np.flatnonzero(~visible(case).all(0))[::3]
        v[:, :, hidden, ::5] = bad[hidden, ::5]
        k[:, :, np.flatnonzero(~visible(case).any(0)), ::3] = np.nan
    found = {n: stored(x, kind) for n, x in zip("qkv", (q, k, v))}
    shape = (1, 1) if case.shared else (case.batch, heads)
    if case.score == "bias":
        bias = source.standard_normal((*shape, case.queries, case.keys))
        bias[source.random(bias.shape) < 0.05] = -np.inf
        found["tensor"] = stored(bias, kind)
    if case.score == "mask":
        mask = source.random((*shape, case.queries, case.keys)) < 0.7
        mask[:, :, ::7] = False
        found["tensor"] = mask.astype(np.uint8) * 255
    if case.score == "alibi":
        found["tensor"] = stored(-source.random((1, heads, 1, 1)), kind)
    if case.sink:
        found["sink"] = stored(source.standard_normal(heads), kind)
    return found


def plain(count, kind):
    return np.zeros(count, kind)


def fenced(at_end):
    """Returns an allocator of arrays that end, or begin, at an inaccessible page."""

    def allocate(count, kind):
        size = count * np.dtype(kind).itemsize
        room = -(-size // guarded.PAGE) * guarded.PAGE
        memory = mmap.mmap(-1, room + 2 * guarded.PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (start, start + guarded.PAGE + room):
            guarded.protect(page, guarded.PAGE, guarded.NONE)
        begin = start + guarded.PAGE + (room - size if at_end else 0)
        found = (ctypes.c_uint8 * size).from_address(begin)
        found.memory = memory  # lives as long as the array
        return np.frombuffer(found, kind)

    return allocate


def placed(x, case, allocate=plain):
    """Copies to memory with the case's layout; the last element ends the allocation. Returns
    (array, strides of batch, row and head)."""
    b, h, r, d = x.shape
    pitch = d + case.gap
    if case.packed:
        strides = r * h * pitch, h * pitch, pitch
    else:
        strides = h * r * pitch, pitch, r * pitch
    count = sum(max(n - 1, 0) * s for n, s in zip((b, r, h), strides)) + d
    flat = allocate(count if x.size else 0, x.dtype)
    view = np.lib.stride_tricks.as_strided(
        flat, x.shape, [s * x.itemsize for s in (strides[0], strides[2], strides[1], 1)]
    )
    view[...] = x
    return view, strides


def tensor_strides(case, x):
    """Strides of batch, row, head and key."""
    b, h, r, c = x.shape
    return [0 if n == 1 else s for n, s in zip((b, r, h, c), (h * r * c, c, r * c, 1))]


# ---- one case


def scores(case, inputs):
    """The function of the products that the case's score is, in float64."""
    factor = scale(case)
    if case.score == "softcap":
        return lambda dots: SOFTCAP * np.tanh(dots * factor / SOFTCAP)
    if case.score == "plain":
        return lambda dots: dots * factor
    x = inputs["tensor"]
    if case.score == "mask":
        return lambda dots: np.where(x != 0, dots * factor, -np.inf)
    x = values(x, TYPES[case.type])
    if case.score == "alibi":
        i, j = np.arange(case.queries)[:, None], np.arange(case.keys)[None]
        x = x * (j - i)
    return lambda dots: dots * factor + x


def keep(case):
    """Which weights dropout keeps, and their factor."""
    if case.p == 0:
        return {}
    shape = (case.batch, case.heads, case.queries, case.keys)
    words = element_checks.philox(case.seed, 3, int(np.prod(shape)))
    kept = (words >= round(65536 * case.p)).reshape(shape)
    return {"keep": kept, "keep_scale": 1 / (1 - case.p) if case.p < 1 else 0.0}


def expected(case, inputs):
    """(out, lse, row_max, log_sum), and the size of what each element of out sums."""
    q, k, v = (values(inputs[n], TYPES[case.type]) for n in "qkv")
    sink = values(inputs["sink"], TYPES[case.type]) if case.sink else None
    options = dict(see=visible(case), sink=sink, **keep(case))
    with np.errstate(invalid="ignore"):
        found = reference.forward(q, k, v, scores(case, inputs), **options)
        sizes = reference.forward(q, k, np.abs(v), scores(case, inputs), **options)[0]
        most = reference.products(np.abs(q), np.nan_to_num(np.abs(k), posinf=0)) * abs(scale(case))
    return found, sizes, 4 + most.max(initial=0)


def run(dll, case, inputs=None, allocate=plain):
    """Returns out, lse, row_max, log_sum as stored."""
    inputs = inputs or draw(case)
    real = np.float64 if case.type == "f64" else np.float32
    arrays = [placed(inputs[n], case, allocate) for n in "qkv"]
    shape = (case.batch, case.heads, case.queries, case.dim_v or case.dim)
    poison = np.broadcast_to(stored(np.array(np.nan), TYPES[case.type]), shape)
    arrays.append(placed(poison, case, allocate))
    rows = [allocate(int(np.prod(shape[:3])), real).reshape(shape[:3]) for _ in range(3)]
    c = Call()
    names = dict(zip("q k v out lse row_max log_sum".split(), [*(x for x, _ in arrays), *rows]))
    for n in {"tensor", "sink"} & inputs.keys():
        names[n] = allocate(inputs[n].size, inputs[n].dtype).reshape(inputs[n].shape)
        names[n][...] = inputs[n]
    for name, x in names.items():
        setattr(c, name, x.ctypes.data)
    c.strides[:] = [s for _, own in arrays for s in own]
    if "tensor" in inputs:
        c.tensor_strides[:] = tensor_strides(case, inputs["tensor"])
    for name in SIZES:
        setattr(c, name, getattr(case, name, 0) if name not in ("type", "score", "shift") else 0)
    c.dim_v, c.type, c.score = shape[3], NUMBERS[case.type], SCORES.index(case.score)
    c.shift = case.keys - case.queries if case.shift is None else case.shift
    c.scale, c.softcap, c.p = scale(case), SOFTCAP, case.p
    room = allocate(dll.attention_bytes(ctypes.byref(c)), np.uint8)
    room[:] = 0xFF  # NaN
    dll.attention(ctypes.byref(c), ctypes.c_void_p(room.ctypes.data))
    return names["out"], *rows


def check(dll, case):
    """Compares a case with the oracle."""
    inputs = draw(case)
    got = run(dll, case, inputs)
    found, sizes, score = expected(case, inputs)
    unit = ROUNDING[case.type]
    out = values(got[0], TYPES[case.type])
    # An exponential has the error of its score; sums of products add a few roundings.
    with np.errstate(invalid="ignore"):
        bound = sizes * (unit * (8 * score + 16)) + STORED[case.type] * np.abs(found[0]) + 1e-38
    if case.type == "f16":
        bound += 2.0**-25
    compare(case, "out", out, found[0], bound)
    for name, x, want in zip(("lse", "row_max", "log_sum"), got[1:], found[1:]):
        compare(case, name, x.astype(np.float64), want, unit * 16 * (score + np.abs(want)))


def compare(case, what, got, want, bound):
    with np.errstate(invalid="ignore"):
        same = np.abs(got - want) <= bound
    same |= (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return
    at = tuple(np.argwhere(~same)[0])
    limit = np.broadcast_to(bound, want.shape)[at]
    pytest.fail(
        f"{case}: {what} at {at} is {got[at]}, expected {want[at]} +- {limit:.3g}; "
        f"{np.sum(~same)} of {same.size} differ"
    )
