# SPDX-License-Identifier: Apache-2.0
"""A family of a user's own, in a folder of the user's own (tests/families/stencil): rendered by
kfgen, compiled for both backends, right forward and backward, described by the manifest, explained
and checked, with nothing of kf changed.
"""

import json

import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from storage import EPS, from_float, to_float

pytestmark = pytest.mark.xdist_group("own family")  # whose headers are made once
FOLDER = kflib.ROOT / "tests/families/stencil"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """(functions, where their headers are, the words that name family and ops)."""
    folder = tmp_path_factory.mktemp("own")
    words = ["--family", FOLDER]
    made = kflib.kfgen("render", *words, "--out", folder / "include")
    assert made.returncode == 0, made.stderr
    listed = json.loads(kflib.kfgen("list", "--json", *words).stdout)
    functions = [f for f in listed["functions"] if f["family"] == "stencil"]
    return (
        functions,
        [kflib.ROOT / "include", kflib.rendered(), folder / "include", FOLDER / "include"],
        words,
    )


def called(lib, memory, f, given):
    rows, cols = given.shape
    size = given.itemsize * given.size
    image = np.concatenate([given.reshape(-1).view(np.uint8), np.full(size, 0xFF, np.uint8)])
    source, result = ("dout", "dx") if f["bwd"] else ("x", "out")
    values = {"x": None, "workspace": None, "workspace_bytes": 0, "rows": rows, "cols": cols} | f[
        "scalars"
    ]
    memory.spans = [(0, size), (size, 2 * size)]
    code, back = memory.run(
        image, lambda base: lib.call(f, values | {source: base, result: base + size})
    )
    assert code == 0, lib.detail
    assert (back[:size] == image[:size]).all()
    return back[size:].view(given.dtype).reshape(rows, cols)


def expected(f, x):
    middle, side = f["scalars"]["middle"], f["scalars"]["side"]
    before, behind = np.zeros_like(x), np.zeros_like(x)
    before[:, 1:], behind[:, :-1] = x[:, :-1], x[:, 1:]
    terms = (
        (x * middle, side * behind, -2 * side * before)
        if f["bwd"]
        else (x * middle, side * before, -2 * side * behind)
    )
    return sum(terms), sum(map(np.abs, terms))


@pytest.mark.check
@pytest.mark.parametrize(
    "backend",
    [
        "cpu",
        pytest.param(
            "emu", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
        ),
    ],
)
def test_numbers(own, backend, tmp_path):
    functions, include, _ = own
    assert {(f["bwd"], f["dtypes"][0]) for f in functions} == {
        (bwd, d) for bwd in (False, True) for d in ("f32", "f16", "bf16", "f64")
    }
    if backend == "cpu":
        lib = kflib.build(
            "cpu",
            functions,
            tmp_path,
            ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"),
            include=include,
        )
        memory = checks.CpuMemory(1 << 20)
    else:
        lib = emulator.build(functions, tmp_path, include=include)
        memory = emulator.Memory(emulator.Emulator(lib), size=1 << 20)
    rng = np.random.default_rng(5)
    for f in functions:
        dtype = f["dtypes"][0]
        for shape in ((3, 7), (1, 1), (5, 300)):
            given = from_float(rng.standard_normal(shape), dtype)
            want, size = expected(f, to_float(given, dtype))
            got = to_float(called(lib, memory, f, given), dtype)
            eps = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)
            assert (
                np.abs(got - want)
                <= 4 * EPS["f64" if dtype == "f64" else "f32"] * size
                + eps * np.abs(want)
                + 2.0**-24
            ).all(), f["name"]


@pytest.mark.check
def test_what_is_said_of_it(own):
    functions, _, words = own
    forward = next(f for f in functions if f["name"] == "kf_smooth_bf16")
    assert (
        forward["axes"] is None
        and forward["backward"] == "kf_smooth_bwd_bf16"
        and forward["header"] == "kf/user/stencil/smooth"
    )
    assert [a["in_place"] for a in forward["arguments"] if a["role"] == "out"] == [[]] and forward[
        "bytes"
    ] == 4
    assert (
        "1 op with" in (found := kflib.kfgen("check", *words)).stdout and found.returncode == 0
    ), found.stderr
    assert (
        "stencil/templates/kernel.cuh.j2"
        in (found := kflib.kfgen("explain", *words, "kf_smooth_bwd_f32")).stdout
    ), found.stderr


def test_its_own_oracle_checks_it(tmp_path):
    """Rows with neighbours, not elements: the point of a wrong value is a tensor's."""
    entry = (FOLDER / "ops.toml").read_text().replace("op.smooth", "op.wrong")
    wrong = entry.replace('ref = "here * middle', 'ref = "here * here * middle')
    assert wrong != entry
    (tmp_path / "mine.toml").write_text(wrong)
    found = kflib.kfgen("check", "--family", FOLDER, "--spec", tmp_path / "mine.toml")
    for what in ("expr of out against its ref", "gradient for x against the derivative of ref"):
        assert f"[op.wrong] {what}, at x = " in found.stderr, found.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "needs FAMILY"),
        (
            "from kfgen.families.elementwise.family import Elementwise\nFAMILY = Elementwise()\n",
            "a family called `elementwise` already exists",
        ),
        (
            "from kfgen.families.family import Family\n\n\nclass Own(Family):\n"
            '    name, kinds = "own", ("line",)\n\n\nFAMILY = Own()\n',
            "`kinds` has 'line', expected kfgen.model.kinds.Kind: write Kind('line')",
        ),
    ],
)
def test_refused(text, message, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    assert "a family is a folder" in kflib.kfgen("list", "--family", folder).stderr
    (folder / "family.py").write_text(text)
    assert message in kflib.kfgen("list", "--family", folder).stderr
