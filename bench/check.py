# SPDX-License-Identifier: Apache-2.0
"""Whether a result is right, before it is timed: against float64 PyTorch and its autograd, on slices of the timed call.

A block of rows shows the elementwise results, a block of columns over all rows the reduced gradients; every element of
every output must have been written. The full comparison, with derived bounds, is the tests' business.
"""

import functools
import math

import numpy as np
import peers
import torch
from data import unwritten

# Relative to the result: a few roundings in f32, one ulp in a 2-byte dtype; what is absolute stands for cancellation.
RELATIVE = {"f32": 2e-5, "f16": 2.0**-10, "bf16": 2.0**-7}
ABSOLUTE = 5e-6
ROWS, COLS = 1 << 16, 16


class Wrong(AssertionError):
    pass


def slices(case):
    """Index tuples into the case's elementwise shape: (index, whether sums are complete in it)."""
    n = case.sizes
    if len(n) == 1:
        k = min(n[0], ROWS)
        middle = (n[0] - k) // 2 // 8 * 8
        return [((slice(0, k),), True), ((slice(middle, middle + k),), False), ((slice(n[0] - k, n[0]),), False)]
    rest = math.prod(n[1:])
    rows = max(1, min(n[0], ROWS // rest))
    tail = (slice(None),) * (len(n) - 1)
    found = [((slice(0, rows), *tail), rows == n[0]), ((slice(n[0] - rows, n[0]), *tail), rows == n[0])]
    if any(a["role"] == "sum" for a in case.outputs):
        cols = min(n[1], COLS if len(n) == 2 else 2)
        for start in {0, n[1] - cols}:
            found.append(((slice(None), slice(start, start + cols), *tail[1:]), True))
    return found


def cut(tensor, kind, index, sizes):
    if kind in ("row", "channel"):
        return tensor[index[1]]
    if kind == "half":  # both halves, cut alike
        gate, up = tensor.chunk(2, dim=-1)
        return torch.cat((gate[index], up[index]), dim=-1)
    return tensor[index]


@functools.lru_cache(maxsize=16)
def keep_mask(seed, offset, p, sizes, bounds, device):
    """kf's dropout mask on a slice: element i is kept if word i mod 8 of Philox4x32-10(counter i / 8) is not below 65536 p."""
    index = np.zeros([1] * len(sizes), np.int64)
    for i, (start, stop) in enumerate(bounds):
        axis = np.arange(start, stop, dtype=np.int64) * math.prod(sizes[i + 1:])
        index = index + axis.reshape([-1 if i == j else 1 for j in range(len(sizes))])
    groups, inverse = np.unique(index.reshape(-1) >> 3, return_inverse=True)
    groups, low = groups.astype(np.uint64), np.uint64(0xFFFFFFFF)
    c = [groups & low, groups >> np.uint64(32), np.full_like(groups, offset & 0xFFFFFFFF), np.full_like(groups, offset >> 32)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & low, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = np.stack([h for w in c for h in (w & np.uint64(0xFFFF), w >> np.uint64(16))], axis=1)
    word = words[inverse.reshape(-1), index.reshape(-1) & 7].reshape(index.shape)
    return torch.from_numpy(word >= round(65536 * p)).to(device)


def reference(case, inputs, index, dropout, scale=1.0):
    """{output: float64 tensor} on a slice. dropout: (seed, offset, p). scale: of the first input."""
    f = case.f
    t = {a["name"]: cut(inputs[a["name"]], a["kind"], index, case.sizes).double() for a in case.inputs}
    t[case.inputs[0]["name"]] *= scale
    drop = peers.no_drop
    if f["dropout"]:
        seed, offset, p = dropout
        bounds = tuple(s.indices(n)[:2] for s, n in zip(index, case.sizes))
        mask = keep_mask(seed, offset, p, case.sizes, bounds, next(iter(t.values())).device)

        def drop(y):
            return torch.where(mask, y / (1 - p), 0.0)
    names, fn = peers.forward(f, drop)
    if f["op"] == "cast":
        return {"out": t["x"]}
    if not f["bwd"]:
        return {"out": fn(*(t[n] for n in names))}
    leaves = {n: t[n].requires_grad_() for n in names if f"d{n}" in {a["name"] for a in case.outputs}}
    found = torch.autograd.grad(fn(*(t[n] for n in names)), list(leaves.values()), t["dout"])
    return {f"d{n}": g for n, g in zip(leaves, found)}


def kinks(case, inputs, index, dropout):
    """{sum: how far it moves when the first input moves by a few roundings}: terms near a kink may take either branch."""
    low, high = (reference(case, inputs, index, dropout, 1 + s) for s in (-1e-6, 1e-6))
    return {name: (high[name] - low[name]).abs() for name in low}


def _compare(name, a, got, want, sums, where, moves=0.0):
    """The largest error in units of the tolerance. A few elements may sit at a kink, where a rounding decides the branch."""
    want = want.to(got.dtype).double()
    got = got.double()
    # The terms of a sum are of order one: its error grows with their number, not with what they cancel to.
    absolute = ABSOLUTE + 4 * RELATIVE["f32"] * math.sqrt(sums) + moves
    error = (got - want).abs() / (RELATIVE[a["dtype"]] * want.abs() + absolute)
    good = (error <= 1) | (got == want) | (got.isnan() & want.isnan())
    bad = good.numel() - int(good.sum())
    allowed = good.numel() // 8 if sums else 2 + good.numel() // 20000
    if not bad <= allowed or bool((got.isnan() & ~want.isnan()).any()):
        i = int((~good).reshape(-1).nonzero()[0])
        raise Wrong(f"{where}: {name}: {bad} of {good.numel()} wrong, first at {i}: got {got.reshape(-1)[i]}, expected {want.reshape(-1)[i]}")
    return float(torch.where(good & error.isfinite(), error, 0.0).max())


def kf(case, inputs, outputs, dropout, where):
    """Raises Wrong, or returns the largest error over its tolerance."""
    worst = 0.0
    for name, tensor in outputs.items():
        if unwritten(tensor):
            raise Wrong(f"{where}: {name}: {unwritten(tensor)} elements were not written")
    for index, complete in slices(case):
        want = reference(case, inputs, index, dropout)
        for a in case.outputs:
            sums = a["role"] == "sum"
            if sums and not complete:
                continue
            terms = case.elements // case.sizes[1] if sums else 0
            got = cut(outputs[a["name"]], a["kind"], index, case.sizes)
            try:
                worst = max(worst, _compare(a["name"], a, got, want[a["name"]], terms, where))
            except Wrong:
                if not sums:
                    raise
                moves = kinks(case, inputs, index, dropout)[a["name"]]
                worst = max(worst, _compare(a["name"], a, got, want[a["name"]], terms, where, moves))
    return worst


def peer(case, inputs, found, where):
    """That a peer computes the same function, in its own accuracy. Its dropout mask is another: there only the shapes are compared."""
    for a in case.outputs:
        got = found[a["name"]]
        if tuple(got.shape) != case.shape(a):
            raise Wrong(f"{where}: {a['name']}: shape {tuple(got.shape)}, expected {case.shape(a)}")
    if case.f["dropout"]:
        return
    for index, complete in slices(case):
        want = reference(case, inputs, index, None)
        for a in case.outputs:
            if a["role"] == "sum" and not complete:
                continue
            got = cut(found[a["name"]], a["kind"], index, case.sizes).double()
            ref = want[a["name"]]
            both = got.isfinite() & ref.isfinite()
            got, ref = got[both], ref[both]
            # Eager rounds every intermediate, and a 2-byte quotient next to a kink lands on its other side: a share may differ.
            limit = 1e-3 if case.f["dtypes"] == ["f32"] else 0.1
            terms = case.elements // case.sizes[1] if a["role"] == "sum" else 0
            off = ((got - ref).abs() > limit * (ref.abs() + ref.abs().median() + math.sqrt(terms))).double().mean()
            if not off <= 0.05:
                raise Wrong(f"{where}: {a['name']}: {100 * float(off):.1f} % of the elements differ")
