# SPDX-License-Identifier: Apache-2.0
"""Calls launchers of packed sequences, and compares the results with the oracle of each sequence in
float64.

Tensors are [rows, heads, dim]; `strided` ones have rows apart."""

import ctypes
import dataclasses

import numpy as np
from kfgen.families.attention import reference
from launcher import LSE, TOLERANCE, Arena, close, mask, random
from storage import from_float, to_float

SAVED = ("lse", "row_max", "log_sum")


@dataclasses.dataclass
class Case:
    """Lengths of the sequences, in queries and in keys. before, behind: rows of no sequence."""

    queries: tuple
    keys: tuple = ()  # empty: the same as queries
    before: int = 0
    behind: int = 0
    dim: int = 64
    dim_v: int = 0  # 0: dim
    heads: int = 2
    kv_heads: int = 0  # 0: heads
    bounded: bool = False  # the call says how long the longest sequences are
    most: tuple = ()  # it says these lengths instead
    strided: bool = False
    scalars: dict = dataclasses.field(default_factory=lambda: {"scale": 0.125})
    hidden: tuple = ()  # sequences whose keys and values are NaN
    bounds: tuple = ()  # offsets of q and k that the call has instead
    bias: tuple = ()  # shape of a bias or a mask; 1: shared
    p: float = 0.25  # read by functions with dropout
    seed: int = 0

    @property
    def lengths(self):
        return list(zip(self.queries, self.keys or self.queries))

    def offsets(self, which):
        """Bounds of the sequences in q (0) or in k (1)."""
        return self.before + np.cumsum([0, *(n[which] for n in self.lengths)])

    @property
    def longest(self):
        if self.most or not self.bounded:
            return self.most or (0, 0)
        return tuple(max((n[i] for n in self.lengths), default=0) for i in (0, 1))


class Call:
    def __init__(self, f, case):
        self.f, self.case, self.dtype = f, case, f["dtypes"][0]
        rng, c = np.random.default_rng(case.seed), case
        rows = [int(c.offsets(i)[-1]) + c.behind for i in (0, 1)]
        kv, wide = c.kv_heads or c.heads, c.dim_v or c.dim
        self.sizes = {
            **{"batch": len(c.queries), "heads": c.heads, "kv_heads": kv},
            **{"queries": rows[0], "keys": rows[1], "dim": c.dim, "dim_v": wide},
        }
        self.shapes = {
            "q": (rows[0], c.heads, c.dim),
            "k": (rows[1], kv, c.dim),
            "v": (rows[1], kv, wide),
            "out": (rows[0], c.heads, wide),
        }
        draw = {n: rng.standard_normal(self.shapes[n]) for n in "qkv"}
        for i in c.hidden:
            for name in "kv":
                draw[name][slice(*c.offsets(1)[i : i + 2])] = np.nan
        self.values = {n: self.rounded(x) for n, x in draw.items()}
        self.more = self._more(rng)

    def rounded(self, x):
        return to_float(from_float(x, self.dtype), self.dtype)

    def _more(self, rng):
        """Further operands, in float64."""
        c, found = self.case, {}
        names = {a["name"]: a for a in self.f["arguments"] if a.get("role") == "in"}
        if "slope" in names:
            found["slope"] = 0.5 ** np.arange(c.heads)
        if "sink" in names:
            found["sink"] = self.rounded(np.resize([0.0, 3.0, -20.0, 60.0], c.heads))
        shape = tuple(
            1 if own == 1 else n
            for own, n in zip(c.bias or (0,) * 4, (len(c.queries), c.heads, *c.longest))
        )
        if "bias" in names:
            found["bias"] = self.rounded(rng.standard_normal(shape) * 2)
        if "mask" in names:
            found["mask"] = (rng.random(shape) < 0.6).astype(np.float64)
        return found

    # ---- the call

    def stored(self, name, x):
        dtype = next(a["dtype"] for a in self.f["arguments"] if a["name"] == name)
        if dtype[0] == "i":
            return np.asarray(x, np.int32 if dtype == "i32" else np.int64)
        return x.astype(np.uint8) if dtype == "u8" else from_float(x, dtype)

    def step(self, name):
        """Elements between rows."""
        rows, heads, dim = self.shapes[name]
        return heads * dim + (8 if self.case.strided else 0)

    def strides(self):
        given = next(a for a in self.f["arguments"] if a["role"] == "strides")
        values = {n: self.step(n) if self.case.strided else 0 for n in self.shapes}
        for name in ("bias", "mask"):
            if name in self.more:
                x = self.more[name]
                steps = [s // 8 if n > 1 else -(2**63) for n, s in zip(x.shape, x.strides)]
                values |= dict(zip((f"{name}_batch", f"{name}_head", name), steps))
        return (ctypes.c_int64 * len(given["fields"]))(*(values.get(n, 0) for n in given["fields"]))

    def placed(self, arena):
        kind, found = from_float(np.zeros(1), self.dtype).dtype, {}
        for name, (rows, heads, dim) in self.shapes.items():
            flat = np.full((rows, self.step(name) * kind.itemsize), 0xA5, np.uint8).view(kind)
            if name in self.values:
                own = from_float(self.values[name], self.dtype).reshape(rows, heads * dim)
                flat[:, : heads * dim] = own
            found[name] = arena.add(flat)
        real = np.float64 if self.dtype == "f64" else np.float32
        statistics = np.full(self.shapes["out"][1::-1], 77, real)
        found |= {name: arena.add(statistics) for name in SAVED}
        bounds = [self.case.bounds or self.case.offsets(i) for i in (0, 1)]
        for name, x in [*self.more.items(), *zip(("query_offsets", "key_offsets"), bounds)]:
            found[name] = arena.add(self.stored(name, x))
        return found

    def run(self, lib, memory):
        """Returns {result: array in float64}."""
        arena, c = Arena(), self.case
        begin, strides = self.placed(arena), self.strides()
        given = self.sizes | c.scalars
        longest = dict(zip(("max_query", "max_key"), map(int, c.longest)))
        given, sizes = given | longest, self.sizes | longest
        bytes_ = lib.workspace_bytes(self.f, [sizes[n] for n in self.f["sizes"]])
        begin["workspace"] = arena.add(np.full(max(bytes_, 1), 0x7F, np.uint8))
        drawn, placed = random(self.f, arena, c.p)
        given, begin = given | drawn, begin | placed
        before = arena.bytes

        def call(base):
            at = {n: base + x for n, x in begin.items()}
            more = {"strides": ctypes.addressof(strides), "workspace_bytes": bytes_}
            return lib.call(self.f, given | at | more)

        code, back = memory.run(before, call)
        assert code == 0, (self.f["name"], self.case, lib.detail)
        return self.results(before, back, begin, bytes_)

    def results(self, before, back, begin, bytes_):
        kept, found = np.ones(back.size, bool), {}
        kept[begin["workspace"] : begin["workspace"] + bytes_] = False
        kind, real = (
            from_float(np.zeros(1), d).dtype
            for d in (self.dtype, "f64" if self.dtype == "f64" else "f32")
        )
        rows, heads, dim = self.shapes["out"]
        span = slice(begin["out"], begin["out"] + rows * self.step("out") * kind.itemsize)
        own = back[span].copy().view(kind).reshape(rows, self.step("out"))[:, : heads * dim]
        found["out"] = to_float(own.copy(), self.dtype).reshape(rows, heads, dim)
        width = self.step("out") * kind.itemsize
        kept[span].reshape(rows, width)[:, : heads * dim * kind.itemsize] = False
        for name in SAVED:
            span = slice(begin[name], begin[name] + heads * rows * real.itemsize)
            found[name] = back[span].copy().view(real).reshape(heads, rows).astype(np.float64)
            kept[span] = False
        assert (before[kept] == back[kept]).all(), "bytes outside the results were written"
        return found

    # ---- oracle

    def score(self, index, queries, keys):
        """Returns (score of the products of a sequence, its visible keys, options)."""
        name, scalars = self.f["op"], self.case.scalars
        shift, more = keys - queries, self.more
        i, j = np.arange(queries)[:, None], np.arange(keys)[None]
        see, options = None, {}
        if "causal" in name:
            see = reference.window(queries, keys, shift, None, 0)
        if "window" in name:
            right = 0 if "sink" in name else scalars["right"]
            see = reference.window(queries, keys, shift, scalars["left"], right)
        if "sink" in name:
            options["sink"] = more["sink"]

        def own(x):
            return x[index if len(x) > 1 else 0, :, :queries, :keys][None]

        def score(s):
            s = s * scalars["scale"]
            if "bias" in more:
                return s + own(more["bias"])
            if "mask" in more:
                return np.where(own(more["mask"]), s, -np.inf)
            if "slope" in more:
                return s - more["slope"][:, None, None] * (i + shift - j)
            if "softcap" in name:
                return scalars["softcap"] * np.tanh(s / scalars["softcap"])
            return s

        return score, see, options

    def expected(self):
        """Returns {result: array}: 0, and -inf or the sink, in rows of no sequence."""
        c = self.case
        rows, heads, _ = self.shapes["out"]
        found = {"out": np.zeros(self.shapes["out"]), "lse": np.full((heads, rows), -np.inf)}
        if "sink" in self.more:
            found["lse"][:] = self.more["sink"][:, None]
        drop = mask(self.f, c.p, (heads, rows, self.sizes["keys"]))
        for index, lengths in enumerate(c.lengths):
            at, keys = (slice(*c.offsets(i)[index : index + 2]) for i in (0, 1))
            bound = {"bias", "mask"} & self.more.keys() and c.most
            if bound and any(n > most for n, most in zip(lengths, c.most)):
                found["out"][at] = found["lse"][:, at] = np.nan
                continue
            q, k, v = (
                self.values[n][own].swapaxes(0, 1)[None]
                for n, own in (("q", at), ("k", keys), ("v", keys))
            )
            score, see, options = self.score(index, *lengths)
            if drop:
                options |= drop | {"keep": drop["keep"][None, :, at, keys]}
            out, lse, _, _ = reference.forward(q, k, v, score, see=see, **options)
            found["out"][at], found["lse"][:, at] = out[0].swapaxes(0, 1), lse[0]
        return found

    def check(self, lib, memory):
        got, want = self.run(lib, memory), self.expected()
        with np.errstate(invalid="ignore"):
            got["sum"] = got.pop("row_max") + got.pop("log_sum")
        want["sum"] = want["lse"]
        for name, value in got.items():
            limit = (TOLERANCE if name == "out" else LSE)[self.dtype]
            nan = np.isnan(want[name])
            assert np.array_equal(np.isnan(value), nan), (self.f["name"], self.case, name)
            value, wanted = np.where(nan, 0, value), np.where(nan, 0, want[name])
            close((self.f["name"], self.case, name), value, wanted, limit)
        return got
