# SPDX-License-Identifier: Apache-2.0
"""Linear cross entropy: shapes [rows, cols, depth], labels (some out of range), float64 oracle."""

import json
import re
import tomllib

import kflib
import numpy as np
import storage

# More and fewer rows than a chunk of 64; few rows; whole and partial vectors; empty axes.
SHAPES = [
    [(4, 8, 12), 0],
    [(5, 8, 6), 0],
    [(3, 19, 7), 1],
    [(1, 40, 70), 0],
    [(70, 33, 9), 0],
    [(150, 16, 24), 0],
    [(137, 70, 20), 2],
    [(0, 5, 4), 0],
    [(4, 5, 0), 0],
    [(300, 24, 16), 0],
    [(4, 0, 3), 0],
    [(2, 1, 1), 1],
]
MORE = [
    [(m, n, k), (m + n) % 3]
    for m in (1, 13, 64, 131, 259)
    for n in (1, 16, 97, 515)
    for k in (1, 64, 130)
]
LARGE = (1, 2**40, 1)
# (sizes, the size that overflows)
OVERFLOWS = [
    ((2**30, 3, 2**30), "depth"),
    ((3, 2**30, 2**30), "depth"),
    ((2**30, 2**30, 3), "cols"),
    ((2**59, 1, 1), "rows"),
]
# Per chunk: a split-K product, a row op, gradients with their reductions; up to three chunks.
LAUNCHES = 3 * 8
RESULTS_IN_PARTS = True  # the workspace holds the logits of a chunk
TORCH = (3, 5, 4)  # sizes in the PyTorch tests
EXTENTS = {"rows": (5,), "cols": (9,), "depth": (4,)}  # sizes in the tests of functions on tensors
COUNTED = [
    ("rows", "depth"),
    ("cols", "depth"),
    ("rows", "cols"),
]  # sizes of tensors whose elements are counted
IGNORED = -100
ROWS_OF_A_PRODUCT = True
KERNELS_OF_OTHERS = True  # tested by their own families


def prepare(call):
    """Sets beta = 0.5 in some calls."""
    if "beta" in call.scalars and sum(call.sizes) % 2:
        call.scalars["beta"] = 0.5


def draw(rng, call, a, values):
    """Draws factors of about 1.

    wide: over several powers of two. special: a few zeros, infinities and NaNs, so few that most
    rows are finite.
    """
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["dtype"][0] == "i":
        cols = call.sizes[1]
        found = np.where(rng.random(shape) < 0.15, IGNORED, rng.integers(0, max(cols, 1), shape))
        return np.where(
            rng.random(shape) < 0.1, rng.choice([-1, cols, 2**31 - 1], shape), found
        ).astype(storage.STORAGE[a["dtype"]])
    n = int(np.prod(shape))
    if a["role"] != "in" and not call.scalars.get("beta"):
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    x = rng.standard_normal(n) * rng.choice([0.3, 1.0, 2.0], n) / max(call.sizes[2], 1) ** 0.25
    if values == "wide":
        x *= np.exp2(rng.integers(-8, 1, n))
    if values == "special" and a["name"] == "x":
        rare = rng.random(n) < 0.1 / max(call.sizes[2], 1)
        x = np.where(rare, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], n), x)
    return storage.from_float(x, a["dtype"]).reshape(shape)


def chunks(call):
    """Number of roundings of a 2-byte gradient."""
    return 1 + call.sizes[0] // 64


def product(a, error_a, b, eps):
    """(a . b, error bound), for a first factor with error `error_a`."""
    size_a, size_b = (np.abs(np.nan_to_num(v, posinf=0.0, neginf=0.0)) for v in (a, b))
    return a @ b, error_a @ size_b + eps * (4 + np.sqrt(a.shape[-1])) * (size_a @ size_b)


class Expected:
    """Expected values and their error bounds."""

    def __init__(self, call):
        f, s = call.f, call.scalars
        dtype = f["dtypes"][0]
        self.eps = eps = storage.EPS["f64" if dtype == "f64" else "f32"]
        self.dtype, self.rounds = dtype, dtype in ("f16", "bf16")
        read = {
            name: storage.to_float(call.data[name], a["dtype"])
            for name, a in call.tensors.items()
            if a["dtype"][0] != "i"
        }
        x, weight, label = read["x"], read["weight"], call.data["label"].astype(np.int64)
        bias = np.zeros(call.sizes[1]) if "bias" in call.drop else read["bias"]
        dloss = read.get("dloss", np.ones(call.sizes[0]))
        dloss = np.ones(call.sizes[0]) if "dloss" in call.drop else dloss
        logits, error = product(x, np.zeros(x.shape), weight.T, eps)
        logits, error = logits + bias, error + eps * (np.abs(bias) + np.abs(logits))
        error = self.stored(logits, error)
        smoothing, z, cols = s["label_smoothing"], s["z_loss"], call.sizes[1]
        there = (label >= 0) & (label < cols)
        most = logits.max(1, initial=-np.inf)
        e = np.exp(logits - most[:, None])
        total = e.sum(1)
        log_sum = np.log(total)
        lse = most + log_sum
        far = error.max(1, initial=0.0)
        own = far + eps * (8 + np.sqrt(cols)) * (1 + np.abs(log_sum))
        picked = (
            np.where(there, logits[np.arange(len(label)), np.where(there, label, 0)], np.nan)
            if cols
            else np.full(len(label), np.nan)
        )
        mean = logits.mean(1) if cols else np.full(len(label), np.nan)
        off_label, off_mean = most - picked, most - mean
        loss = log_sum + (1 - smoothing) * off_label + smoothing * off_mean + z * lse * lse
        size = np.abs(log_sum) + np.abs(off_label) + np.abs(off_mean) + z * lse * lse
        skipped = label == s["ignore_index"]
        of_lse = own + eps * np.abs(most)
        of_loss = own * 3 + 4 * z * np.abs(lse) * of_lse + eps * 16 * size
        self.found = {
            "row_max": (most, far),
            "log_sum": (log_sum, own),
            "loss": (np.where(skipped, 0.0, loss), np.where(skipped, 0.0, of_loss)),
        }
        if "dx" not in call.tensors:
            return
        one = np.zeros(logits.shape)
        one[np.flatnonzero(there), label[there]] = 1 - smoothing
        p, rise = e / total[:, None], (1 + 2 * z * lse)[:, None]
        dlogits = dloss[:, None] * (p * rise - one - smoothing / max(cols, 1))
        off = (
            p * np.abs(rise) * (2 * own)[:, None]
            + p * 2 * z * of_lse[:, None]
            + eps * 16 * (p * np.abs(rise) + one + smoothing)
        )
        off = np.abs(dloss)[:, None] * off
        keep = (there & ~skipped)[:, None]
        dlogits, off = np.where(keep, dlogits, 0.0), np.where(keep, off, 0.0)
        off = self.stored(dlogits, off)
        self.found["dx"] = product(dlogits, off, weight, eps)
        for name, (value, error) in (
            ("dweight", product(dlogits.T, off.T, x, eps)),
            ("dbias", product(dlogits.T, off.T, np.ones((len(label), 1)), eps)),
        ):
            value, error = (v.reshape(call.data[name].shape) for v in (value, error))
            beta = s.get("beta", 0.0)
            old = beta * read[name] if beta else np.zeros(value.shape)
            error = error + 2 * eps * (np.abs(old) + np.abs(value))
            if (
                self.rounds and call.tensors[name]["dtype"] == dtype
            ):  # each chunk rounds the accumulated gradient
                other = np.abs(np.nan_to_num(x)) if name == "dweight" else np.ones((len(label), 1))
                size = np.abs(old) + (np.abs(np.nan_to_num(dlogits)).T @ other).reshape(value.shape)
                error = error + chunks(call) * storage.ulp(size, self.dtype)
            self.found[name] = value + old, error

    def stored(self, values, error):
        """Error bound after a store to the workspace in the tensors' dtype."""
        return (
            error + 0.5 * storage.ulp(np.nan_to_num(values, posinf=0.0, neginf=0.0), self.dtype)
            if self.rounds
            else error
        )


def check(call, got, weights=None):
    with np.errstate(all="ignore"):
        expected = Expected(call)
        finite = np.isfinite(expected.found["log_sum"][0]).all()
        for name, own in got.items():
            if name in call.drop:
                continue
            a = call.tensors[name]
            want, error = expected.found[name]
            found = storage.to_float(own, a["dtype"])
            if not finite:  # compares the finite rows and columns only
                found = np.where(np.isfinite(want), found, want)
            scale = (
                error + expected.eps * np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0))
            ) / expected.eps
            compute = "f64" if expected.dtype == "f64" else "f32"
            storage.compare(
                found,
                want,
                a["dtype"],
                compute,
                call.f["tolerance"]["factor"],
                scale,
                np.ones_like(scale),
                np.zeros_like(scale),
                False,
                f"{call.where}: {name}",
                not np.isfinite(want).all(),
            )


# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "all chunks read the first chunk's rows": (
        "kf/ops/linear_cross_entropy.host.cuh",
        r"x \+ kfi_first",
        "x + 0 * kfi_first",
        ("kf_linear_cross_entropy_f32",),
        (),
    )
}


def inline(value):
    """Writes a value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def entry(pattern):
    """The body of kf's own entry. Its per_row operands keep the names of the op over rows."""
    file = kflib.ROOT / "gen/kfgen/families/linear_cross_entropy/ops.toml"
    fields = tomllib.loads(file.read_text())["op"][pattern]
    lines = [
        f"{name} = {inline(value)}"
        for name, value in fields.items()
        if name not in ("family", "brief", "source", "since")
    ]
    return re.sub(r"\b(x|weight|bias)( = \{ kind)", r"<\1>\2", "\n".join(["", *lines, ""]))


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "linear_cross_entropy": [entry("linear_cross_entropy"), entry("linear_cross_entropy_with_grad")]
}
FEW_NAMES = {"linear_cross_entropy": 5}  # its code has few names that do not begin with kfi_
SOME_NAMES = {"linear_cross_entropy": {"apart", "chunk", "weight"}}
# Kinds of tensors that may be strided, with the suffix of the first stride:
# tests/gen/test_manifest.py.
STRIDED = {"linear_cross_entropy": {"left": "", "right": ""}}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = {
    "linear_cross_entropy": (0, True, "with numbers of 32 bits too", False),
    "linear_cross_entropy_with_grad": (0, True, "with both of these", False),
}
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"linear_cross_entropy": ("kf_linear_cross_entropy_bf16", 106000)}
# Not in the Python package of level 1: it would compile all matrix products, half a minute.
ON_TENSORS = ["linear_cross_entropy_with_grad"]  # functions on tensors tested at level 1


def work(f, size):
    """Returns the dimensions of the elementwise pass and the operations of the products, with all
    sizes equal; the backward may be in the same call."""
    backward = any(a["name"] == "dx" for a in f["arguments"])
    return 2, (6 if backward else 2) * size**3
