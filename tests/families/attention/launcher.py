# SPDX-License-Identifier: Apache-2.0
"""Calls launchers of attention with tensors in any layout, and compares the results with the oracle
in float64.

Tensors are [batch, heads, rows, dim] in NumPy, as in reference.py; `layout` is their order in
memory."""

import ctypes
import dataclasses

import checks
import element_checks
import numpy as np
from kfgen.families.attention import reference
from storage import from_float, to_float

BROADCAST = -(2**63)
DENSE, HEADS_FIRST, PACKED = "dense", "heads first", "q, k and v side by side"
# Relative to the largest result: 2-byte probabilities and results are rounded.
TOLERANCE = {"bf16": 0.01, "f16": 0.0015, "f32": 2e-6, "f64": 1e-14}
LSE = {"bf16": 2e-5, "f16": 2e-5, "f32": 2e-6, "f64": 1e-13}
BASES = {"queries": "query_base", "keys": "key_base", "heads": "head_base"}
GUARD = 256
RANDOM = 11, 2**40 + 5  # seed and offset of dropout


def random(f, arena, p):
    """Returns (arguments of dropout, {argument: its place in the arena})."""
    if not f["dropout"]:
        return {}, {}
    seed, offset = RANDOM
    if not f["state"]:
        return {"p": p, "seed": seed, "offset": offset}, {}
    at = arena.add(np.array([seed, offset - checks.OFFSET_ADD], np.uint64))
    given = {"p": p, "offset_add": checks.OFFSET_ADD}
    return given, {"seed": at, "offset": at + 8}


def mask(f, p, shape):
    """Options of the oracle for dropout. shape: that of the weights, which bits are numbered by."""
    if not f["dropout"]:
        return {}
    real = np.float64 if f["dtypes"][0] == "f64" else np.float32
    keep, scale = element_checks.mask(*RANDOM, p, shape, real)
    return {"keep": keep, "keep_scale": scale if p < 1 else 0.0}


@dataclasses.dataclass
class Case:
    queries: int = 64
    keys: int = 64
    dim: int = 64
    dim_v: int = 0  # 0: dim
    heads: int = 1
    kv_heads: int = 0  # 0: heads
    batch: int = 1
    layout: str = DENSE
    shared_kv: bool = False  # all batches have the same keys and values
    offset: int = 0  # elements between an aligned address and each tensor
    scalars: dict = dataclasses.field(default_factory=lambda: {"scale": 0.125})
    shard: dict = dataclasses.field(default_factory=dict)  # query_base, ...
    saved: tuple = ("lse", "row_max", "log_sum")
    more: dict = dataclasses.field(default_factory=dict)  # {operand: array}
    p: float = 0.25  # read by functions with dropout
    seed: int = 0

    @property
    def wide(self):
        return self.dim_v or self.dim

    @property
    def groups(self):
        return self.kv_heads or self.heads

    def total(self, name):
        return self.shard.get(f"{name}_total") or self.base(name) + getattr(self, name)

    def base(self, name):
        return self.shard.get(BASES[name], 0)


class Arena:
    """Tensors in one block of memory, with guards between them."""

    def __init__(self):
        self.image, self.at = [], 0

    def add(self, raw, align=256, offset=0):
        """Returns where the bytes begin, `offset` bytes behind an aligned address."""
        begin = (self.at + GUARD + align - 1) // align * align + offset
        self.image.append(np.full(begin - self.at, 0x5A, np.uint8))
        self.image.append(np.ascontiguousarray(raw).view(np.uint8).reshape(-1))
        self.at = begin + self.image[-1].size
        return begin

    @property
    def bytes(self):
        return np.concatenate([*self.image, np.full(GUARD, 0x5A, np.uint8)])


class Call:
    def __init__(self, f, case):
        self.f, self.case, self.dtype = f, case, f["dtypes"][0]
        rng = np.random.default_rng(case.seed)
        b, kv = case.batch, 1 if case.shared_kv else case.batch
        self.shapes = {
            "q": (b, case.heads, case.queries, case.dim),
            "k": (kv, case.groups, case.keys, case.dim),
            "v": (kv, case.groups, case.keys, case.wide),
            "out": (b, case.heads, case.queries, case.wide),
        }
        self.values = {
            n: self.rounded(rng.standard_normal(self.shapes[n])) for n in ("q", "k", "v")
        }
        self.more = case.more  # rounded in place: the oracle reads the same arrays
        for name, x in self.more.items():
            dtype = next(a["dtype"] for a in f["arguments"] if a["name"] == name)
            if dtype != "u8":
                x[...] = to_float(from_float(x, dtype), dtype)

    def rounded(self, x):
        return to_float(from_float(x, self.dtype), self.dtype)

    def layout(self, name):
        """Returns (elements of the block, strides of batch, head, row)."""
        b, h, r, d = self.shapes[name]
        if self.case.layout == HEADS_FIRST:
            strides = h * r * d, r * d, d
        elif self.case.layout == PACKED:  # rows of three times as many elements
            strides = r * h * d * 3, d, h * d * 3
        else:
            strides = r * h * d, d, h * d
        last = sum((n - 1) * s for n, s in zip((b, h, r), strides)) + d if b * h * r * d else 0
        return last, strides

    def view(self, flat, name):
        last, strides = self.layout(name)
        shape, size = self.shapes[name], flat.itemsize
        return np.lib.stride_tricks.as_strided(
            flat, shape, (*(s * size for s in strides), size), writeable=True
        )

    def placed(self, arena):
        """Adds the tensors and returns {name: begin or None}."""
        found = {}
        for name in self.shapes:
            last, _ = self.layout(name)
            kind = from_float(np.zeros(1), self.dtype).dtype
            flat = np.full(last * kind.itemsize, 0xA5, np.uint8).view(kind)
            if name in self.values and last:
                self.view(flat, name)[...] = from_float(self.values[name], self.dtype)
            found[name] = arena.add(flat, 256, self.case.offset * kind.itemsize)
        real = np.float64 if self.dtype == "f64" else np.float32
        rows = np.full(self.shapes["out"][:3], 77, real)
        for name in ("lse", "row_max", "log_sum"):
            found[name] = arena.add(rows) if name in self.case.saved else None
        for name, x in self.more.items():
            found[name] = arena.add(self.stored(name, x))
        return found

    def stored(self, name, x):
        dtype = next(a["dtype"] for a in self.f["arguments"] if a["name"] == name)
        return x.astype(np.uint8) if dtype == "u8" else from_float(x, dtype)

    def strides(self):
        """Returns the strides struct, or None for contiguous tensors."""
        given = next(a for a in self.f["arguments"] if a["role"] == "strides")
        if self.case.layout == DENSE and not self.case.shared_kv and not self.more:
            return None
        of = {n: self.layout(n)[1] for n in self.shapes}
        values = {}
        for name, (batch, head, row) in of.items():
            values |= {f"{name}_batch": batch, f"{name}_head": head, name: row}
            if self.case.shared_kv and name in "kv":
                values[f"{name}_batch"] = BROADCAST
        for name, x in self.more.items():
            if x.ndim == 4:  # [batch, heads, queries, keys], or 1 where all share it
                steps = [
                    s // x.itemsize if n > 1 else BROADCAST for n, s in zip(x.shape, x.strides)
                ]
                values |= dict(zip((f"{name}_batch", f"{name}_head", name), steps))
        return (ctypes.c_int64 * len(given["fields"]))(*(values.get(n, 0) for n in given["fields"]))

    def given(self, lib):
        """Returns the sizes, scalars and workspace of a call."""
        c = self.case
        sizes = {n: getattr(c, n) for n in self.f["sizes"]}
        ordered = [sizes[n] for n in self.f["sizes"]]
        return sizes | c.shard | c.scalars, lib.workspace_bytes(self.f, ordered)

    def run(self, lib, memory):
        """Returns {result: array in float64}."""
        arena = Arena()
        begin = self.placed(arena)
        given, bytes_ = self.given(lib)
        # A workspace may hold anything.
        begin["workspace"] = arena.add(np.full(max(bytes_, 1), 0x7F, np.uint8)) if bytes_ else None
        drawn, placed = random(self.f, arena, self.case.p)
        given, begin = given | drawn, begin | placed
        before, strides = arena.bytes, self.strides()
        step = {"strides": None if strides is None else ctypes.addressof(strides)}

        def call(base):
            at = {n: None if x is None else base + x for n, x in begin.items()}
            return lib.call(self.f, given | at | step | {"workspace_bytes": bytes_})

        code, back = memory.run(before, call)
        assert code == 0, (self.f["name"], self.case, lib.detail)
        return self.results(before, back, begin, bytes_)

    def results(self, before, back, begin, bytes_):
        kept, found = np.ones(back.size, bool), {}
        if bytes_:
            kept[begin["workspace"] : begin["workspace"] + bytes_] = False
        kind = from_float(np.zeros(1), self.dtype).dtype
        last, _ = self.layout("out")
        span = slice(begin["out"], begin["out"] + last * kind.itemsize)
        if last:
            found["out"] = to_float(
                self.view(back[span].copy().view(kind), "out").copy(), self.dtype
            )
            own = np.zeros(last, kind)
            self.view(own, "out")[...] = np.ones(1).astype(kind)
            kept[span] = np.repeat(own == 0, kind.itemsize)
        else:
            found["out"] = np.zeros(self.shapes["out"])
        real = np.dtype(np.float64 if self.dtype == "f64" else np.float32)
        for name in self.case.saved:
            count = int(np.prod(self.shapes["out"][:3])) * real.itemsize
            span = slice(begin[name], begin[name] + count)
            found[name] = back[span].copy().view(real).reshape(self.shapes["out"][:3]).astype(float)
            kept[span] = False
        assert (before[kept] == back[kept]).all(), "bytes outside the results were written"
        return found

    # ---- oracle

    def expected(self, score, see, **options):
        """Returns {result: array}.

        score: a function of the products; see: [queries, keys]; options: of reference.weights.
        """
        q, k, v = (self.values[n] for n in ("q", "k", "v"))
        k, v = (np.repeat(x, self.case.batch // len(x), 0) for x in (k, v))
        names = ("out", "lse", "row_max", "log_sum")
        options = self.mask() | options
        return dict(zip(names, reference.forward(q, k, v, score, see=see, **options)))

    def mask(self):
        """Options of the oracle for dropout: the call's part of the whole tensors' mask."""
        c, sizes = self.case, ("heads", "queries", "keys")
        found = mask(self.f, c.p, (c.batch, *map(c.total, sizes)))
        own = (slice(c.base(n), c.base(n) + getattr(c, n)) for n in sizes)
        return found | ({"keep": found["keep"][:, *own]} if found else {})

    def check(self, lib, memory, score, see, **options):
        got, want = self.run(lib, memory), self.expected(score, see, **options)
        if {"row_max", "log_sum"} <= got.keys():
            with np.errstate(invalid="ignore"):
                got["row_max + log_sum"] = got.pop("row_max") + got.pop("log_sum")
            want["row_max + log_sum"] = want["lse"]
        for name, value in got.items():
            limit = (TOLERANCE if name == "out" else LSE)[self.dtype]
            close((self.f["name"], self.case, name), value, want[name], limit)
        return got


def close(what, got, want, tolerance):
    finite = np.isfinite(want)
    assert got.shape == want.shape and np.array_equal(got[~finite], want[~finite]), what
    if finite.any():
        error = np.abs(got[finite] - want[finite]).max()
        limit = tolerance * max(1.0, np.abs(want[finite]).max())
        assert error <= limit, (what, f"differs by {error:.3g}, at most {limit:.3g} expected")


def visible(case, first=None, last=None):
    """[queries, keys]: the keys from first to last that each query sees; functions of the query's
    index, both in the whole tensors."""
    i = np.arange(case.queries)[:, None] + case.shard.get("query_base", 0)
    j = np.arange(case.keys)[None] + case.shard.get("key_base", 0)
    see = np.ones((case.queries, case.keys), bool)
    if first is not None:
        see &= j >= first(i)
    if last is not None:
        see &= j <= last(i)
    return see
