# SPDX-License-Identifier: Apache-2.0
"""A family of a user's own whose functions have a shape struct (tests/families/conv1d): numbers in C
and in the emulation, errors of the struct, and what the manifest says of it.
"""

import importlib
import json
import subprocess
import sys

import checks
import emulator
import kflib
import numpy as np
import pytest
import size_rules
import toolkit
from storage import EPS, from_float, to_float

pytestmark = pytest.mark.xdist_group("shape structs")  # whose headers are made once
FOLDER = kflib.ROOT / "tests/families/conv1d"
EXACT = ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
# Shapes as the struct has them; 0 of an option is its default. bounds: of packed sequences.
SHAPES = [
    {"batch": 2, "length": 9, "channels": 4, "filters": 6, "kernel": 3},
    {"batch": 1, "length": 11, "channels": 6, "filters": 3, "kernel": 2, "stride": 3, "groups": 3},
    {"batch": 3, "length": 7, "channels": 2, "filters": 2, "kernel": 4, "stride": 2, "pad_left": 3,
     "pad_right": 1, "dilation": 2, "groups": 2},
    {"batch": 2, "length": 1, "channels": 1, "filters": 130, "kernel": 1, "pad_right": 5},
    {"batch": 1, "length": 2, "channels": 1, "filters": 1, "kernel": 3},
]  # fmt: skip
PACKED = [
    ((0, 4, 4, 9), {"channels": 4, "filters": 6, "kernel": 3, "pad_left": 2}),
    ((0, 1, 8), {"channels": 2, "filters": 4, "kernel": 2, "dilation": 3, "groups": 2}),
    # Rows of no sequence; a bound outside.
    ((2, 5, 30), {"channels": 1, "filters": 3, "kernel": 5, "pad_left": 4, "dilation": 2}),
]


def kfgen(*arguments):
    return subprocess.run(
        [sys.executable, kflib.ROOT / "gen/bin/kfgen", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """(functions, include directories, words that name the family)."""
    folder, words = tmp_path_factory.mktemp("conv1d"), ["--family", FOLDER]
    made = kfgen("render", *words, "--out", folder / "include")
    assert made.returncode == 0, made.stderr
    listed = json.loads(kfgen("list", "--json", "--ops", "bias", *words).stdout)
    return (
        [f for f in listed["functions"] if f["family"] == "conv1d"],
        [kflib.ROOT / "include", kflib.rendered(), folder / "include", FOLDER / "include"],
        words,
    )


@pytest.fixture(scope="module")
def reference():
    """The family's oracle."""
    from kfgen import families

    families.load(FOLDER)
    return importlib.import_module("kfgen.families.conv1d.reference")


class Call:
    """A function's tensors, side by side in one block of memory.

    Args:
        without: outputs and inputs that are NULL.
    """

    def __init__(self, f, shape, bounds=None, without=()):
        self.f, self.shape, self.bounds, self.without = f, dict(shape), bounds, without
        if bounds:
            self.shape |= {"batch": len(bounds) - 1, "length": 9}
        self.rng, self.dtype = np.random.default_rng(3), f["dtypes"][0]
        at = {a["name"]: a["default"] or 0 for a in self.fields}
        at |= {name: n for name, n in self.shape.items() if n}
        self.at = at
        self.tensors = [a for a in f["arguments"] if "use" in a]
        self.extents = {a["name"]: self.extent(a) for a in self.tensors}
        self.arrays = {a["name"]: self.draw(a) for a in self.tensors}

    @property
    def fields(self):
        return next(a["fields"] for a in self.f["arguments"] if a["role"] == "shape")

    def extent(self, a):
        return tuple(size_rules.shape(a, self.at))

    def draw(self, a):
        if a["kind"] == "offsets":
            return np.array(self.bounds, {"i64": np.int64, "i32": np.int32}[a["dtype"]])
        shape = self.extents[a["name"]]
        if a["role"] != "in":
            return np.full(int(np.prod(shape)) * kflib.SIZE[a["dtype"]], 0xA5, np.uint8)  # poisoned
        return from_float(self.rng.standard_normal(shape), a["dtype"])

    def run(self, lib, memory):
        """Returns {output: array}."""
        image, offsets, spans = [], {}, []
        at = 0
        for name, array in self.arrays.items():
            flat = array.reshape(-1).view(np.uint8)
            offsets[name] = at
            spans.append((at, at + flat.size))
            at += (flat.size + 255) // 256 * 256 + 256
            image.append(
                np.concatenate([flat, np.full(at - offsets[name] - flat.size, 0x5A, np.uint8)])
            )
        memory.spans = spans
        whole = np.concatenate(image)

        def call(base):
            given = {n: None if n in self.without else base + where for n, where in offsets.items()}
            return lib.call(self.f, self.shape | given | {"workspace": None, "workspace_bytes": 0})

        code, back = memory.run(whole, call)
        assert code == 0, lib.detail
        found = {}
        for a in self.tensors:
            begin = offsets[a["name"]]
            got = back[begin : begin + self.arrays[a["name"]].nbytes]
            if a["role"] == "in" or a["name"] in self.without:
                kept = self.arrays[a["name"]].reshape(-1).view(np.uint8)
                assert (got == kept).all(), a["name"]
            else:
                array = np.ascontiguousarray(got).view(from_float(np.zeros(1), a["dtype"]).dtype)
                found[a["name"]] = to_float(array, a["dtype"]).reshape(self.extents[a["name"]])
        return found

    def expected(self, reference):
        """{output: (value, sum of the terms' magnitudes)}."""
        names = ("stride", "pad_left", "pad_right", "dilation", "groups")
        bounds = self.bounds and tuple(np.clip(self.bounds, 0, self.at["length"]))
        o = reference.Options(**{n: self.at[n] for n in names}, packed=bounds)

        def both(how):
            x = {
                n: how(to_float(v, self.dtype))
                for n, v in self.arrays.items()
                if v.dtype not in (np.int64, np.int32) and n in ("x", "weight", "bias", "dout")
            }
            if not self.f["bwd"]:
                bias = None if "bias" in self.without else x["bias"]
                return [reference.forward(x["x"], x["weight"], bias, o)]
            return reference.backward(x["x"], x["weight"], x["dout"], o)

        outputs = [a["name"] for a in self.tensors if a["role"] != "in"]
        return dict(zip(outputs, zip(both(np.asarray), both(np.abs))))

    def check(self, lib, memory, reference):
        got, wanted = self.run(lib, memory), self.expected(reference)
        assert got.keys() == wanted.keys() - set(self.without)
        eps = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(self.dtype, 0.0)
        for name, value in got.items():
            want, size = wanted[name]
            terms = self.at["kernel"] * max(self.at["channels"], self.at["filters"]) + max(
                want.size, 30
            )
            bound = terms * EPS["f64" if self.dtype == "f64" else "f32"] * size
            bound = bound + eps * np.abs(want) + 2.0**-24
            right = (np.abs(value - want) <= bound) | (np.isnan(value) & np.isnan(want))
            assert value.shape == want.shape and right.all(), (self.f["name"], name, self.shape)


@pytest.fixture(scope="module", params=["cpu", "emu"])
def backend(request, own, tmp_path_factory):
    """(library, memory)."""
    functions, include, _ = own
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "cpu":
        return (
            kflib.build("cpu", functions, folder, EXACT, include=include),
            checks.CpuMemory(1 << 20),
        )
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    lib = emulator.build(functions, folder, include=include)
    return lib, emulator.Memory(emulator.Emulator(lib), size=1 << 20)


@pytest.mark.check
def test_numbers(own, backend, reference):
    functions, _, _ = own
    assert {(f["op"], f["bwd"], *f["dtypes"]) for f in functions} == {
        (op, bwd, d, *index)
        for bwd in (False, True)
        for d in ("f32", "f16", "bf16", "f64")
        for op, index in (("conv1d", ()), ("conv1d_varlen", ()), ("conv1d_varlen", ("i32",)))
    }
    for f in functions:
        packed = f["op"].endswith("_varlen")
        for shape in PACKED if packed else SHAPES:
            bounds, shape = shape if packed else (None, shape)
            for without in [(), ("bias", "dx"), ("dweight",)]:
                Call(f, shape, bounds, without).check(*backend, reference)
