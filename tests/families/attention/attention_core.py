# SPDX-License-Identifier: Apache-2.0
"""Calls the attention kernels of kf/core/attention in the emulator (emu_core.cpp), and computes the
same in float64.

Tensors are [batch, head, row, dim] in NumPy; `packed` stores them as [batch, row, head, dim]."""

import ctypes
import dataclasses
import math
import subprocess

import emulator
import kflib
import numpy as np

HERE = kflib.ROOT / "tests/families/attention"
BF16, F16, F32, F64 = range(4)  # KFI_OF_BF16 ...
WGMMA, MMA, SIMT = range(3)
PLAIN, SOFTCAP, BIAS = range(3)
UNBOUNDED = 2**63 - 1
STORED = {BF16: np.uint16, F16: np.float16, F32: np.float32, F64: np.float64}
# relative to the largest output: P and the result are rounded to the element type
TOLERANCE = {BF16: 0.01, F16: 0.0015, F32: 2e-6, F64: 1e-14}

POINTERS = "q k v bias out lse row_max log_sum ticket".split()
SIZES = (
    "batch heads kv_heads queries keys dim dim_v bias_head bias_row shift left right kernel type "
    "score blocks"
).split()


class Call(ctypes.Structure):
    """attention_call of emu_core.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("strides", ctypes.c_int64 * 12),
        *((name, ctypes.c_int64) for name in SIZES),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    ]


@dataclasses.dataclass
class Case:
    """One call. The window is [i + shift - left, i + shift + right]; shift None: bottom right."""

    kernel: int = WGMMA
    type: int = BF16
    queries: int = 64
    keys: int = 64
    dim: int = 64
    dim_v: int = 0  # 0: dim
    heads: int = 1
    kv_heads: int = 1
    batch: int = 1
    shift: int | None = None
    left: int = UNBOUNDED
    right: int = UNBOUNDED
    score: int = PLAIN
    scale: float | None = None  # None: dim ** -0.5
    packed: bool = False
    hidden_nan: bool = False  # NaN and infinities in v at keys that some queries do not see
    offset: int = 0  # elements between an aligned address and each tensor
    blocks: int = 2
    delay: int = 14  # kf_emu_delay
    seed: int = 0


def library(include, folder, variant="plain"):
    """Compiles the kernels for the emulator and returns the loaded library."""
    target = folder / f"attention_{variant}.so"
    own = [emulator.HERE / "include", emulator.HERE, HERE, *include]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *emulator.flags(variant), "-O1"]
    command += ["-DKFI_PRE_SM80=1"]  # all tiles of FMAs for 2-byte elements
    command += [*(f"-I{d}" for d in own), str(HERE / "emu_core.cpp")]
    command += [str(emulator.runtime(kflib.ROOT / "build/tests/emu", variant))]
    subprocess.run([*command, "-o", str(target)], check=True)
    return load(target)


def load(target):
    dll = ctypes.CDLL(str(target))
    dll.attention.argtypes = [ctypes.POINTER(Call)]
    dll.kf_emu_report.restype = ctypes.c_char_p
    for name, value in (("aborts", 0), ("hopper", 1)):
        ctypes.c_int.in_dll(dll, f"kf_emu_{name}").value = value
    return dll


# ---- elements


def stored(x, kind):
    """Rounds float64 to the element type; bf16 as its bits."""
    if kind != BF16:
        with np.errstate(over="ignore"):
            return x.astype(STORED[kind])
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def values(x, kind):
    if kind != BF16:
        return x.astype(np.float64)
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def tensor(shape, case, fill=None):
    """Allocates [batch, head, row, dim] with its bytes aligned to 128, plus the case's offset.
    Returns the array and its strides of batch, row and head."""
    kind = np.dtype(STORED[case.type])
    b, h, r, d = shape
    count = b * h * r * d
    raw = np.zeros(count * kind.itemsize + 256 + 64, np.uint8)
    skip = -raw.ctypes.data % 128 + case.offset * kind.itemsize
    flat = raw[skip : skip + count * kind.itemsize].view(kind)
    if case.packed:
        array = flat.reshape(b, r, h, d).transpose(0, 2, 1, 3)
        strides = r * h * d, h * d, d
    else:
        array = flat.reshape(shape)
        strides = h * r * d, d, r * d
    if fill is not None:
        array[...] = fill
    return array, strides


# ---- oracle


def visible(case):
    """[queries, keys]: whether a query sees a key."""
    shift = case.keys - case.queries if case.shift is None else case.shift
    i, j = np.arange(case.queries)[:, None], np.arange(case.keys)[None]
    left, right = min(case.left, 2**40), min(case.right, 2**40)
    return (j >= i + shift - left) & (j <= i + shift + right)


def reference(case, q, k, v, bias):
    """Returns out and lse in float64. Masked keys contribute nothing, whatever their values."""
    group = case.heads // case.kv_heads
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = case.dim**-0.5 if case.scale is None else case.scale
    s = q @ k.swapaxes(-1, -2) * scale
    if case.score == SOFTCAP:
        s = 3 * np.tanh(s / 3)
    if case.score == BIAS:
        s = s + bias
    see = visible(case)
    s = np.where(see, s, -np.inf)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    most = np.where(most == -np.inf, 0, most)
    p = np.exp(s - most)
    total = p.sum(-1, keepdims=True)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for i in range(case.queries):
        keys = np.flatnonzero(see[i])
        out[:, :, i] = (p[:, :, i][..., None, keys] @ v[:, :, keys])[:, :, 0]
    with np.errstate(divide="ignore"):
        lse = most[..., 0] + np.log(total[..., 0])
    return np.where(total > 0, out / np.where(total > 0, total, 1), 0), lse


# ---- one case


def draw(case):
    """Returns q, k, v as stored, and the bias."""
    source = np.random.default_rng(case.seed)
    dim_v = case.dim_v or case.dim
    shapes = (
        (case.batch, case.heads, case.queries, case.dim),
        (case.batch, case.kv_heads, case.keys, case.dim),
        (case.batch, case.kv_heads, case.keys, dim_v),
    )
    q, k, v = (source.standard_normal(shape) for shape in shapes)
    if case.hidden_nan:
        hidden = np.flatnonzero(~visible(case).all(0))[::3]
        v[:, :, hidden, ::5] = np.resize([np.nan, np.inf, -np.inf], v[:, :, hidden, ::5].shape)
    bias = source.standard_normal((case.heads, case.queries, case.keys)).astype(np.float32)
    return stored(q, case.type), stored(k, case.type), stored(v, case.type), bias


def run(dll, case, order=emulator.RANDOM):
    """Runs a case and returns out, lse, row_max, log_sum as float64."""
    q, k, v, bias = draw(case)
    arrays = [tensor(x.shape, case, x) for x in (q, k, v)]
    out, out_strides = tensor(
        (*q.shape[:3], v.shape[-1]), case, stored(np.array(np.nan), case.type)
    )
    real = np.float64 if case.type == F64 else np.float32
    rows = [np.full(q.shape[:3], 77, real) for _ in range(3)]
    ticket = np.full(1, 12345, np.int32)
    pointers = *(x for x, _ in arrays), bias, out, *rows, ticket
    c = Call()
    for name, x in zip(POINTERS, pointers, strict=True):
        setattr(c, name, x.ctypes.data)
    c.strides[:] = [s for _, own in [*arrays, (out, out_strides)] for s in own]
    for name in SIZES:
        setattr(c, name, getattr(case, name, 0) or 0)
    c.dim_v = case.dim_v or case.dim
    c.bias_head, c.bias_row = case.queries * case.keys, case.keys
    c.shift = case.keys - case.queries if case.shift is None else case.shift
    c.scale = case.dim**-0.5 if case.scale is None else case.scale
    c.softcap = 3
    ctypes.c_int.in_dll(dll, "kf_emu_order").value = order
    ctypes.c_int.in_dll(dll, "kf_emu_delay").value = case.delay
    ctypes.c_uint64.in_dll(dll, "kf_emu_seed").value = case.seed + 1
    result = dll.attention(ctypes.byref(c))
    assert result == 0, f"{case}: result {result}, {dll.kf_emu_report().decode()}"
    return values(out, case.type), *(x.astype(np.float64) for x in rows)


def check(dll, case, order=emulator.RANDOM):
    """Compares a case with the oracle."""
    out, lse, row_max, log_sum = run(dll, case, order)
    q, k, v, bias = draw(case)
    with np.errstate(invalid="ignore"):
        want, want_lse = reference(case, *(values(x, case.type) for x in (q, k, v)), bias)
    same = np.isnan(want) == np.isnan(out)
    same &= np.isinf(want) == np.isinf(out)
    assert same.all(), f"{case}: not finite at {np.argwhere(~same)[:4].tolist()}"
    size = 1.0
    if case.type in (F32, F64) and case.scale is not None:
        size = max(1.0, abs(case.scale) * case.dim**0.5)  # scores round relative to their size
    close(case, "out", out, want, TOLERANCE[case.type] * size)
    close(case, "lse", lse, want_lse, TOLERANCE[F64] if case.type == F64 else 1e-5)
    with np.errstate(invalid="ignore"):
        close(case, "row_max + log_sum", row_max + log_sum, want_lse, 1e-5)


def close(case, what, got, want, tolerance):
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), f"{case}: {what}"
    if not finite.any():
        return
    error = np.abs(got[finite] - want[finite]).max()
    limit = tolerance * max(1.0, np.abs(want[finite]).max())
    assert error <= limit, f"{case}: {what} differs by {error:.3g}, at most {limit:.3g} expected"
    assert math.isfinite(error)
