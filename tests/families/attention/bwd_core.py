# SPDX-License-Identifier: Apache-2.0
"""Calls the backward kernels of kf/core/attention in the emulator (emu_bwd.cpp), and computes the
same in float64. Tensors are those of attention_core.py."""

import ctypes
import dataclasses
import subprocess

import attention_core
import element_checks
import emulator
import kflib
import numpy as np
from attention_core import BF16, BIAS, F16, F32, F64, PLAIN, SOFTCAP, UNBOUNDED, stored, values

MMA, SIMT, HOPPER = range(3)
CAP = 3.0
# relative to the largest gradient: probabilities, gradients of scores and results are rounded
TOLERANCE = {BF16: 0.015, F16: 0.002, F32: 4e-6, F64: 2e-14}

POINTERS = (
    "q k v out dout bias lse row_max log_sum dlse query_offsets key_offsets dq dk dv dbias shift "
    "factor delta"
).split()
SIZES = (
    "batch heads kv_heads queries keys dim dim_v shift_keys left right last kernel type score "
    "drops seed number0 blocks cluster"
).split()


class Call(ctypes.Structure):
    """attention_call of emu_bwd.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("strides", ctypes.c_int64 * 24),
        *((name, ctypes.c_int64) for name in SIZES),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("probability", ctypes.c_double),
    ]


@dataclasses.dataclass
class Case:
    """One call. The window is [i + shift - left, i + shift + right]; shift None: bottom right."""

    kernel: int = MMA
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
    last: int = -1  # the last key of all queries
    score: int = PLAIN
    scale: float | None = None  # None: dim ** -0.5
    packed: bool = False  # layout
    hidden_nan: bool = False  # NaN where some queries or keys do not see it
    offset: int = 0  # elements between an aligned address and each tensor
    lse_alone: bool = False
    dlse: bool = False
    without: tuple = ()  # gradients that nobody wants
    query_offsets: tuple = ()  # packed sequences have them
    key_offsets: tuple = ()
    p: float | None = None  # dropout's probability
    number0: int = 0  # number of the first weight, which its random bits follow from
    seed: int = 0
    blocks: int = 1  # CTAs of the persistent kernel
    cluster: int = 1  # CTAs that run together
    low: bool = False  # all scores are below -100


def library(include, folder, variant="plain"):
    """Compiles the kernels for the emulator and returns the loaded library."""
    target = folder / f"attention_bwd_{variant}.so"
    own = [emulator.HERE / "include", emulator.HERE, attention_core.HERE, *include]
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *emulator.flags(variant), "-O1"]
    command += ["-DKFI_PRE_SM80=1"]  # all tiles of FMAs for 2-byte elements
    command += [*(f"-I{d}" for d in own), str(attention_core.HERE / "emu_bwd.cpp")]
    command += [str(emulator.runtime(kflib.ROOT / "build/tests/emu", variant))]
    subprocess.run([*command, "-o", str(target)], check=True)
    return load(target)


def load(target):
    dll = ctypes.CDLL(str(target))
    dll.attention_bwd.argtypes = [ctypes.POINTER(Call)]
    dll.kf_emu_report.restype = ctypes.c_char_p
    ctypes.c_int.in_dll(dll, "kf_emu_aborts").value = 0
    return dll


# ---- oracle


def visible(case):
    """[queries, keys]: whether a query sees a key."""
    see = attention_core.visible(case)
    return see & (np.arange(case.keys)[None] <= case.last) if case.last >= 0 else see


def drawn(case):
    """Returns q, k, v, dout, dlse and bias as stored."""
    rng = np.random.default_rng(case.seed)
    dim_v = case.dim_v or case.dim
    of_q, of_k = (case.batch, case.heads, case.queries), (case.batch, case.kv_heads, case.keys)
    shapes = (*of_q, case.dim), (*of_k, case.dim), (*of_k, dim_v), (*of_q, dim_v)
    q, k, v, dout = (rng.standard_normal(shape) for shape in shapes)
    if case.low:
        q[..., :16], k[..., :16] = -9, 9
    if case.hidden_nan:
        see = visible(case)
        bad = np.array([np.nan, np.inf, -np.inf])
        keys, queries = (
            ~see.all(axis) & (np.arange(n) % 5 == 0)
            for axis, n in ((0, case.keys), (1, case.queries))
        )
        k[:, :, keys, ::7] = np.nan
        v[:, :, keys, ::5] = np.resize(bad, v[:, :, keys, ::5].shape)
        q[:, :, queries & (np.arange(case.queries) % 2 == 0), ::7] = np.nan
        dout[:, :, queries, ::5] = np.resize(bad, dout[:, :, queries, ::5].shape)
    real = np.float64 if case.type == F64 else np.float32
    dlse = rng.standard_normal(of_q).astype(real) if case.dlse else None
    bias = rng.standard_normal((case.batch, case.heads, case.queries, case.keys))
    return *(stored(x, case.type) for x in (q, k, v, dout)), dlse, bias.astype(np.float32)


def add(weights, rows, see):
    """Sums of weights [..., i, j] times rows [..., j, d], over pairs that see each other."""
    found = np.zeros((*weights.shape[:-1], rows.shape[-1]))
    for i in range(weights.shape[-2]):
        own = np.flatnonzero(see[i])
        found[..., i, :] = (weights[..., i : i + 1, :][..., own] @ rows[..., own, :])[..., 0, :]
    return found


def kept(case):
    """[batch, heads, queries, keys]: the factors of dropout."""
    shape = case.batch, case.heads, case.queries, case.keys
    if case.p is None:
        return np.ones(shape)
    last = case.number0 + int(np.prod(shape))
    real = np.float64 if case.type == F64 else np.float32
    keep, scale = element_checks.mask(case.seed + 5, 0, case.p, (last,), real)
    return (keep * (scale if case.p < 1 else 0))[case.number0 :].reshape(shape)


def sequence(case, see, factor, q, k, v, dout, dlse, bias):
    """Returns {name: value} of one sequence in float64, with its statistics and out."""
    group = case.heads // case.kv_heads
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = case.dim**-0.5 if case.scale is None else case.scale
    s, slope = q @ k.swapaxes(-1, -2) * scale, scale
    if case.score == SOFTCAP:
        t = np.tanh(s / CAP)
        s, slope = CAP * t, scale * (1 - t * t)
    if case.score == BIAS:
        s = s + bias
    s = np.where(see, s, -np.inf)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.where(see, np.exp(s - np.where(most == -np.inf, 0, most)), 0)
    total = p.sum(-1, keepdims=True)
    p = p / np.where(total == 0, 1, total)
    out = add(p * factor, v, see)
    given = values(stored(out, case.type), case.type)
    delta = (dout * given).sum(-1, keepdims=True)
    if dlse is not None:
        delta = delta - dlse[..., None]
    dp = np.where(factor == 0, 0, dout @ v.swapaxes(-1, -2) * factor)
    ds = np.where(see & (p != 0), p * (dp - delta), 0)
    dot = np.where(see, ds * slope, 0)
    dk, dv = (add(w.swapaxes(-1, -2), x, see.T) for w, x in ((dot, q), (p * factor, dout)))
    dk, dv = (x.reshape(*x.shape[:1], case.kv_heads, group, *x.shape[2:]).sum(2) for x in (dk, dv))
    log = np.where(total > 0, np.log(np.where(total > 0, total, 1)), -np.inf)
    return {"dq": add(dot, k, see), "dk": dk, "dv": dv, "dbias": ds, "out": out,
            "row_max": most[..., 0], "log_sum": log[..., 0]}  # fmt: skip


def reference(case, *tensors):
    """The same of a call."""
    with np.errstate(all="ignore"):
        if not case.query_offsets:
            return sequence(case, visible(case), kept(case), *tensors)
        q, k, v, dout, dlse, bias = tensors
        none, factor = np.zeros((case.queries, case.keys), bool), kept(case)
        found = sequence(case, none, factor, *tensors)
        for i in range(len(case.query_offsets) - 1):
            a, b = (slice(*at[i : i + 2]) for at in (case.query_offsets, case.key_offsets))
            part = dataclasses.replace(case, queries=a.stop - a.start, keys=b.stop - b.start)
            rest = dout[:, :, a], None if dlse is None else dlse[:, :, a], bias[:, :, a, b]
            own = factor[:, :, a, b], q[:, :, a], k[:, :, b], v[:, :, b]
            one = sequence(part, visible(part), *own, *rest)
            for name, x in one.items():
                if name != "dbias":
                    found[name][:, :, b if name in ("dk", "dv") else a] = x
        return found


# ---- one case


def run(dll, case, want, tensors, order):
    """Runs a case and returns {gradient: float64}."""
    q, k, v, dout, dlse, bias = tensors
    real = np.float64 if case.type == F64 else np.float32
    nan = stored(np.array(np.nan), case.type)
    fills = [(x, x.shape) for x in (q, k, v, stored(want["out"], case.type), dout)]
    fills += [(nan, x.shape) for x in (q, k, v)]
    arrays = [attention_core.tensor(shape, case, fill) for fill, shape in fills]
    rows = q.shape[:3]
    pointers = dict(zip(("q", "k", "v", "out", "dout", "dq", "dk", "dv"),
                        (x for x, _ in arrays), strict=True))  # fmt: skip
    with np.errstate(invalid="ignore"):
        pointers |= {"lse": (want["row_max"] + want["log_sum"]).astype(real)}
    if not case.lse_alone:
        pointers |= {name: want[name].astype(real) for name in ("row_max", "log_sum")}
    if dlse is not None:
        pointers["dlse"] = dlse
    pointers |= {name: np.full(rows, 77, real) for name in ("shift", "factor", "delta")}
    pointers |= {"bias": bias}
    if case.score == BIAS:
        pointers |= {"dbias": np.full(bias.shape, np.nan, np.float32)}
    if case.query_offsets:
        of = {"query_offsets": case.query_offsets, "key_offsets": case.key_offsets}
        pointers |= {name: np.array(x, np.int32) for name, x in of.items()}
    c = Call()
    for name, x in pointers.items():
        if name not in case.without:
            setattr(c, name, x.ctypes.data)
    per_batch = 0 if case.query_offsets else 1
    c.strides[:] = [s for _, (b, *own) in arrays for s in (b * per_batch, *own)]
    for name in SIZES:
        setattr(c, name, getattr(case, name, 0) or 0)
    c.batch = len(case.query_offsets) - 1 if case.query_offsets else case.batch
    c.dim_v = case.dim_v or case.dim
    c.shift_keys = case.keys - case.queries if case.shift is None else case.shift
    c.scale = case.dim**-0.5 if case.scale is None else case.scale
    c.softcap, c.probability = CAP, case.p or 0
    c.drops, c.seed = case.p is not None, case.seed + 5
    ctypes.c_int.in_dll(dll, "kf_emu_order").value = order
    ctypes.c_uint64.in_dll(dll, "kf_emu_seed").value = case.seed + 1
    result = dll.attention_bwd(ctypes.byref(c))
    assert result == 0, f"{case}: result {result}, {dll.kf_emu_report().decode()}"
    return {
        name: values(pointers[name], F32 if name == "dbias" else case.type)
        for name in ("dq", "dk", "dv", "dbias")
        if name in pointers and name not in case.without
    }


def check(dll, case, order=emulator.RANDOM):
    """Compares a case with the oracle."""
    tensors = drawn(case)
    with np.errstate(invalid="ignore"):
        wide = [values(x, case.type) for x in tensors[:4]]
    want = reference(case, *wide, *tensors[4:])
    for name, got in run(dll, case, want, tensors, order).items():
        finite = np.isfinite(want[name])
        same = finite == np.isfinite(got)
        assert same.all(), f"{case}: {name} is not finite at {np.argwhere(~same)[:4].tolist()}"
        if finite.any():
            error = np.abs(got[finite] - want[name][finite]).max()
            limit = TOLERANCE[case.type] * max(1.0, np.abs(want[name][finite]).max())
            assert error <= limit, f"{case}: {name} differs by {error:.3g}, at most {limit:.3g}"
