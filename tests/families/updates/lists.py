# SPDX-License-Identifier: Apache-2.0
"""Calls of functions over lists of tensors, and the values that they leave."""

import ctypes

import kflib
import numpy as np
from storage import EPS, STORAGE, from_float, to_float

FOLDER = kflib.ROOT / "tests/families/updates"
WORDS = ["--family", str(FOLDER)]
# Empty tensors at every slot, single elements, odd sizes, several chunks of 8,192 elements.
LENGTHS = (
    (),
    (0,),
    (1,),
    (7,),
    (0, 5, 0),
    (3, 0, 257, 8192, 0),
    (8193, 1, 16385, 64),
    (2, 3, 5) * 67,
)
LISTS = ("param", "grad", "velocity")


def rendered(folder):
    """Renders the family and returns the include directories."""
    made = kflib.kfgen("render", *WORDS, "--out", folder / "include")
    assert made.returncode == 0, made.stderr
    return [kflib.ROOT / "include", kflib.rendered(), folder / "include", FOLDER / "include"]


def table(numbers, ctype=ctypes.c_void_p):
    """Returns a C array; one of nothing has one element, which nobody reads."""
    numbers = [*numbers]
    return (ctype * max(len(numbers), 1))(*numbers)


class Call:
    """The memory of one call: its tensors, one after another, each behind guard bytes."""

    def __init__(self, f, lengths, seed, shift=0):
        rng = np.random.default_rng(seed)
        self.f, self.lengths, at = f, lengths, 64
        self.tensors = [a for a in f["arguments"] if "kind" in a]
        self.given, self.at = {}, {}
        for k, a in enumerate(self.tensors):
            size = np.dtype(STORAGE[a["dtype"]]).itemsize
            self.given[a["name"]], self.at[a["name"]] = [], []
            for i, n in enumerate(lengths):
                at = -(-at // 16) * 16 + size * (shift and (shift + i + k) % 4)
                self.at[a["name"]].append(at)
                values = from_float(rng.standard_normal(n) * 3, a["dtype"])
                self.given[a["name"]].append(values)
                at += values.nbytes + 8
        self.image = np.full(-(-at // 256) * 256 + 256, 0xFF, np.uint8)
        for name, values in self.given.items():
            for x, at in zip(values, self.at[name]):
                self.image[at : at + x.nbytes] = x.view(np.uint8)

    def arguments(self, base):
        lists = {
            name: table(base + at if n else None for at, n in zip(places, self.lengths))
            for name, places in self.at.items()
        }
        self.held = [*lists.values(), table(self.lengths, ctypes.c_int64)]
        found = {name: ctypes.addressof(x) for name, x in lists.items()}
        return (
            found
            | {"lengths": ctypes.addressof(self.held[-1]), "count": len(self.lengths)}
            | self.f["scalars"]
        )

    def single(self, base):
        """Arguments of a function of single tensors."""
        found = {name: base + at for name, [at] in self.at.items()}
        return found | {"n": self.lengths[0]} | self.f["scalars"]

    def check(self, back, expected):
        """Compares the memory after the call. expected(values) returns {name: (value, size)}."""
        whole = self.image.copy()
        for i in range(len(self.lengths)):
            values = {
                a["name"]: to_float(self.given[a["name"]][i], a["dtype"]) for a in self.tensors
            }
            for name, (want, size) in expected(self.f["scalars"], values).items():
                [dtype] = {a["dtype"] for a in self.tensors if a["name"] == name}
                at, n = self.at[name][i], self.given[name][i].nbytes
                got = to_float(back[at : at + n].view(STORAGE[dtype]), dtype)
                assert_near(got, want, size, dtype, self.f["dtypes"][0])
                whole[at : at + n] = back[at : at + n]
        assert (back == whole).all(), "bytes outside of the tensors that are updated changed"


def assert_near(got, want, size, dtype, elements):
    eps = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)
    bound = 4 * EPS["f64" if elements == "f64" else "f32"] * size + eps * np.abs(want)
    assert (np.abs(got - want) <= bound + 2.0**-24).all()


def momentum(scalars, x):
    """Returns {tensor: (next value, magnitude of its terms)}."""
    velocity = scalars["decay"] * x["velocity"] + x["grad"]
    size = np.abs(scalars["decay"] * x["velocity"]) + np.abs(x["grad"])
    param = x["param"] - scalars["rate"] * velocity
    return {
        "velocity": (velocity, size),
        "param": (param, np.abs(x["param"]) + scalars["rate"] * size),
    }


def moving_average(scalars, x):
    w = scalars["weight"]
    want = (1 - w) * x["average"] + w * x["x"]
    return {"average": (want, 2 * np.abs(x["average"]) + np.abs(x["x"]))}
