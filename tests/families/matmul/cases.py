# SPDX-License-Identifier: Apache-2.0
"""The family `gemm` in tests: shapes [batch, rows, cols, depth], expected results."""

import functools

import numpy as np
import storage
from kfgen.families.matmul import reference as matmul_reference
from kfgen.language.primitives import KEEP, KEEP_SCALE

# Whole vectors and others, one row, less than a tile and more, more than a block along each axis,
# several batches, and a size of 0 on each axis.
SHAPES = [
    [(2, 4, 8, 6), 0],
    [(1, 5, 19, 7), 1],
    [(1, 1, 40, 70), 0],
    [(3, 17, 33, 9), 0],
    [(1, 37, 130, 33), 2],
    [(0, 3, 4, 5), 0],
    [(2, 0, 5, 4), 0],
    [(2, 4, 0, 3), 0],
    [(1, 4, 5, 0), 0],
    [(1, 70, 20, 140), 0],
    [(2, 11, 1, 1), 1],
]
# Further shapes that reach each CUDA kernel of forwards and gradients on a device of one SM: tiles
# by cp.async and through registers, split-K.
SHAPES += [
    [(1, 16, 24, 8), 0],
    [(1, 72, 72, 8), 0],
    [(1, 67, 66, 5), 1],
    [(1, 3, 20, 520), 0],
    [(1, 16, 16, 136), 0],
    [(1, 8, 136, 16), 0],
    [(1, 66, 5, 67), 1],
    [(1, 3, 67, 66), 1],
    [(1, 8, 72, 72), 0],
    [(1, 520, 20, 3), 0],
    [(1, 3, 520, 20), 0],
    [(1, 16, 64, 8), 0],
    [(1, 136, 16, 8), 0],
]  # the last ones: two products, a transposed left factor
MORE = [
    [(b, m, n, k), (m + n) % 3]
    for b in (1, 2)
    for m in (1, 2, 7, 13, 64, 131)
    for n in (1, 16, 31, 96, 257)
    for k in (1, 15, 64, 300)
]
# Launches of a call, at most: two passes with their totals, and a pass; a product with split-K for
# the inputs, and for each of two weights.
LAUNCHES = 14
RESULTS_IN_PARTS = True  # split-K needs a workspace
LARGE = (2**20, 2**20, 1, 1)
OVERFLOWS = [
    ((2**30, 2**28, 3, 1), "cols"),
    ((3, 2**30, 1, 2**30), "depth"),
    ((1, 1, 2**30, 2**30), "depth"),
    ((1, 2**30, 2**30, 1), "cols"),
    ((2**59, 1, 1, 1), "batch"),
]  # (sizes, the one that overflows)
CALLS = (
    [(1, 1, 2, 3), (2, 3, 5, 4), (1, 20, 17, 35), (1, 4, 5, 0)],
    [(3, 67, 49, 33), (1, 301, 66, 70)],
)
COLS = 3  # the result has the first three sizes


def result(call):
    return call.sizes[:COLS]


def prepare(call):
    """Sets beta to a fraction in some calls."""
    if "beta" in call.scalars and sum(call.sizes) % 2:
        call.scalars["beta"] = 0.5


def draw(rng, call, a, values):
    """Draws a tensor. wide: spreads over powers of two; special: adds zeros, infinities and NaN.

    Special values are so rare that most results are numbers.
    """
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["role"] != "in" and not call.scalars.get("beta"):
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    n = int(np.prod(shape))
    x = rng.standard_normal(n) * rng.choice([0.3, 1.0, 2.0], n)
    if values == "wide":
        x *= np.exp2(rng.integers(-12, 3, n))
    if values == "special" and a["role"] == "in":
        rare = rng.random(n) < 0.3 / max(call.sizes[-1], 1)
        x = np.where(
            rare, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-39, 2.0**-24, 3e4, -3e4], n), x
        )
    return storage.from_float(x, a["dtype"]).reshape(shape)


def fill(call):
    """Computes the forward's results that the backward reads, from the drawn data."""
    made = [s.name for s in call.kernel.inputs if s.use in ("saved", "output")]
    if not made or 0 in result(call):
        return
    op = call.kernel.op
    forward = storage.kernel_of(op.pattern, tuple(call.f["dtypes"][:1]), False, call.files)
    found = matmul_reference.Product(forward, call.act).run(
        environment(call, call.data), call.sizes
    )
    for name in made:
        call.data[name] = storage.from_float(
            np.ascontiguousarray(found[name].value), call.kernel.dtype.word
        )


def environment(call, data):
    env = {k: v for k, v in call.scalars.items() if k != "beta"}
    for s in call.kernel.inputs + call.kernel.outputs:
        if s.name in data:
            x = storage.to_float(data[s.name], s.dtype.word)
            env[s.name] = np.zeros_like(x) if s.absent is not None and s.name in call.drop else x
    return env | dict(zip((KEEP, KEEP_SCALE), call.mask()))


@functools.cache
def _product(pattern, dtypes, bwd, activation, files, by):
    kernel = storage.kernel_of(pattern, dtypes, bwd, files)
    act = storage.spec(files).activations[activation]
    return kernel.family.reference(kernel.op, act).bound(kernel, by)


def moved(dtype, values):
    """Returns the rounding error of stored values, and the largest finite number."""
    return 0.5 * storage.ulp(
        np.nan_to_num(values, posinf=0.0, neginf=0.0), dtype
    ), storage.MANTISSA[dtype][2]


def check(call, got, weights=None):
    f, dtype = call.f, call.f["dtypes"][0]
    compute = "f64" if dtype == "f64" else "f32"
    by = call.kernel.by(call.act) and call.kernel.result not in call.drop
    store = None if dtype in (compute, "tf32") else functools.partial(moved, dtype)
    factor = store if call.backend != "cpu" else None  # tensor cores multiply 2-byte elements
    factors = 2.0**-11 if dtype == "tf32" else 0.0
    least = (
        2.0 ** (-14 if dtype == "f16" else -126)
        if call.backend != "cpu" and dtype in ("f16", "bf16", "tf32")
        else 0.0
    )
    rounding = matmul_reference.Rounding(
        storage.EPS[compute],
        storage.TINY[compute],
        storage.MANTISSA[compute][2] / 4,
        store,
        factor,
        factors,
        least,
    )
    product = _product(f["op"], tuple(f["dtypes"]), f["bwd"], f["activation"], call.files, by)
    found = product.run(
        environment(call, call.data), call.sizes, rounding, call.scalars.get("beta", 0.0)
    )
    with np.errstate(all="ignore"):
        for s in call.kernel.outputs:
            if s.name in call.drop:
                continue
            n, own = found[s.name], storage.to_float(got[s.name], s.dtype.word)
            want, error, beyond = (
                np.broadcast_to(v.reshape(own.shape) if v.size == own.size else v, own.shape)
                for v in (n.value, n.error, n.beyond)
            )
            scale = (
                error + rounding.eps * np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0))
            ) / rounding.eps
            storage.compare(
                own,
                np.where(beyond, own, want),
                s.dtype.word,
                compute,
                f["tolerance"]["factor"],
                scale,
                np.ones_like(scale),
                np.zeros_like(scale),
                False,
                f"{call.where}: {s.name}",
                not np.isfinite(want).all(),
            )
