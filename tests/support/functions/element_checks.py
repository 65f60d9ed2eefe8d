# SPDX-License-Identifier: Apache-2.0
"""Expected results of elementwise functions and of casts, and dropout's mask. checks.py uses it, as
it uses row_checks.py for functions over rows."""

import functools

import numpy as np
from kfgen.families import reference as elements_reference
from storage import (
    EPS,
    MANTISSA,
    STORAGE,
    TINY,
    Failure,
    compare,
    from_float,
    kernel_of,
    same,
    spec,
    to_float,
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


@functools.cache
def bound_of(pattern, dtypes, bwd, act, files=(), by=False):
    kernel = kernel_of(pattern, dtypes, bwd, files)
    return kernel.family.reference(kernel.op, spec(files).activations[act]).bound(kernel, by)


def result_of(f):
    """Returns the name of the activation's result, if this backward can compute its gradient from
    it."""
    return next((a["name"] for a in f["arguments"] if a.get("null") == "inputs"), None)


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
    # The oracle is in float64 too.
    k = f["tolerance"]["factor"] + (4.0 if compute == "f64" else 0.0)
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
                # Rounding of the accumulation: errors of random signs.
                k_sum = k + np.sqrt(terms)
            if stream.dtype.word == "u8":  # exactly 0 or 1
                same(raw.ravel(), np.where(skip, raw, want).ravel(), f"{where}: {stream.name}")
                continue
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
            f"{where}: {bad.size} of {out.size} wrong, first at {i}: {x.flat[i]!r} gave "
            f"{out.flat[i]!r}, expected {want.flat[i]!r}"
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
            f"{where}: {bad.size} of {want.size} wrong, first at {i}: got {got['out'].flat[i]}, "
            f"expected {want.flat[i]}"
        )
