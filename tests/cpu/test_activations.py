# SPDX-License-Identifier: Apache-2.0
"""Tests each activation in C. The public scalar functions are called at the points of the spec's
`edges` and `dedges`. The {act} op is called with every f16 and bf16 value, forward and backward."""

import ctypes
import subprocess

import checks
import exhaustive
import kflib
import numeric
import numpy as np
import pytest
from conftest import BUILD

ACTIVATIONS = [a for a in checks.spec().activations.values() if a.name != "none"]
FUNCTIONS = [f for f in kflib.manifest()["functions"] if f["op"] == "{act}"]
BUILDS = {name: numeric.BUILDS["cpu"][name] for name in numeric.CPU}
TYPES = {"f32": ("float", "", np.float32), "f64": ("double", "_double", np.float64)}


def source():
    """C source of edge_<name>_<f32|f64>(x, value) and edge_<name>_bwd_<f32|f64>(x, dy, gradient),
    which loop over the public functions."""
    text = ["#include <kf/ops/activations.h>"]
    for a in ACTIVATIONS:
        for dtype, (ctype, suffix, _) in TYPES.items():
            scalars = "".join(f", ({ctype}){value!r}" for value in a.scalars.values())
            text.append(f"""
void edge_{a.name}_{dtype}(const {ctype} *x, {ctype} *y, int n);
void edge_{a.name}_{dtype}(const {ctype} *x, {ctype} *y, int n)
{{
    for (int i = 0; i < n; ++i) y[i] = kf_{a.name}{suffix}(x[i]{scalars});
}}
void edge_{a.name}_bwd_{dtype}(const {ctype} *x, const {ctype} *dy, {ctype} *dx, int n);
void edge_{a.name}_bwd_{dtype}(const {ctype} *x, const {ctype} *dy, {ctype} *dx, int n)
{{
    for (int i = 0; i < n; ++i) dx[i] = kf_{a.name}_bwd{suffix}(x[i], dy[i]{scalars});
}}""")
    return "\n".join(text) + "\n"


@pytest.fixture(scope="module", params=sorted(BUILDS))
def scalar(request, include, once):
    """Returns a function that calls a public scalar function on arrays."""

    def made(work):
        (work / "edges.c").write_text(source())
        command = [
            "gcc",
            "-std=c11",
            *BUILDS[request.param],
            "-Wall",
            "-Wextra",
            "-Wconversion",
            "-Werror",
            *(f"-I{d}" for d in include),
            "-shared",
            "-fPIC",
            str(work / "edges.c"),
            "-o",
            str(work / "edges.so"),
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        return work / "edges.so"

    dll = ctypes.CDLL(str(once(f"scalar functions, {request.param}", made)))

    def run(name, dtype, *inputs):
        kind = TYPES[dtype][2]
        inputs = [np.ascontiguousarray(x, kind) for x in inputs]
        out = np.full(inputs[0].size, np.nan, kind)
        getattr(dll, f"edge_{name}_{dtype}")(
            *(ctypes.c_void_p(x.ctypes.data) for x in (*inputs, out)), ctypes.c_int(out.size)
        )
        return out

    return run


def number(word, act, kind):
    """Parses a point or value of the tables: a number, "nan", "-inf", "-0", or the name of a
    scalar, possibly negated."""
    if isinstance(word, str) and word.lstrip("-") in act.scalars:
        value = kind(act.scalars[word.lstrip("-")])
        return -value if word.startswith("-") else value
    return kind(float(word))


def check_edges(act, table, values, got, dtype, limit, where):
    """Compares exactly where the value is a short number (with the sign of a zero, if the table
    gives one), else within `limit` ulp."""
    kind = TYPES[dtype][2] if dtype in TYPES else np.float64
    for point, value, g in zip(table, values, got):
        want = number(value, act, kind)
        text = f"{where} at {point}: got {g!r}, the spec says {value!r}"
        if np.isnan(want):
            assert np.isnan(g), text
        elif np.isinf(want) or float(np.float16(want)) == want or value in act.scalars:
            assert g == want, text
            if value == "-0":
                assert np.signbit(g), text
        else:
            assert abs(float(g) - float(want)) <= limit * checks.ulp(np.float64(want), dtype), text


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda a: a.name)
def test_edges(scalar, act, dtype):
    kind = TYPES[dtype][2]
    points = np.array([number(p, act, kind) for p in act.edges], kind)
    assert points.size >= 3
    check_edges(
        act,
        act.edges,
        act.edges.values(),
        scalar(act.name, dtype, points),
        dtype,
        act.ulp[dtype],
        f"kf_{act.name} ({dtype})",
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda a: a.name)
def test_edges_of_the_derivative(scalar, act, dtype):
    kind = TYPES[dtype][2]
    points = np.array([number(p, act, kind) for p in act.dedges], kind)
    assert points.size >= 3
    for factor in (1.0, -2.0):
        got = scalar(f"{act.name}_bwd", dtype, points, np.full(points.size, factor)) / kind(factor)
        check_edges(
            act,
            act.dedges,
            act.dedges.values(),
            got,
            dtype,
            max(act.ulp[dtype], 2),
            f"kf_{act.name}_bwd ({dtype}, dy {factor})",
        )


@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda a: a.name)
def test_edges_of_the_table_are_the_references(act):
    """The tables and the float64 oracle are independent sources and must agree."""
    from kfgen.families import reference as elements_reference

    scalars = dict(act.scalars)
    for table, reference in (
        (act.edges, elements_reference.act_value),
        (act.dedges, elements_reference.act_derivative),
    ):
        x = np.array([number(p, act, np.float64) for p in table])
        want = np.array([number(v, act, np.float64) for v in table.values()])
        got = np.broadcast_to(reference(act, x, scalars), x.shape)
        loose = ~np.isfinite(x) | np.isnan(want)  # the oracle may overflow on the way at infinity
        assert np.allclose(got[~loose], want[~loose], rtol=1e-14, atol=0), (act.name, table, got)


@pytest.fixture(scope="module", params=sorted(BUILDS))
def lib(request):
    return kflib.build(
        "cpu",
        [f for f in FUNCTIONS if f["dtypes"][0] in ("f32", "f16", "bf16")],
        BUILD / "cpu",
        BUILDS[request.param],
    )


@pytest.mark.parametrize(
    "f",
    [f for f in FUNCTIONS if f["dtypes"][0] in ("f32", "f16", "bf16")],
    ids=lambda f: f["cpu_name"],
)
def test_all_values(lib, f):
    """Covers all 65,536 values; f32 takes those of bf16, which lie in all its binades."""
    exhaustive.run_all_values(lib, f)


@pytest.mark.parametrize(
    "f", [f for f in FUNCTIONS if f["dtypes"][0] in ("f16", "bf16")], ids=lambda f: f["cpu_name"]
)
def test_edges_of_the_op(lib, f):
    """Tests the tables through the vectorised 2-byte kernels: exact where the type has the
    value."""
    act, dtype = checks.spec().activations[f["activation"]], f["dtypes"][0]
    table = act.dedges if f["bwd"] else act.edges
    points = np.array([number(p, act, np.float64) for p in table])
    inputs = {
        "x": checks.from_float(points, dtype),
        "dout": checks.from_float(np.ones(points.size), dtype),
    }
    name = "dx" if f["bwd"] else "out"
    got = checks.to_float(exhaustive.call(lib, f, inputs, (points.size,))[name], dtype)
    for point, value, g in zip(table, table.values(), got):
        want = checks.to_float(
            checks.from_float(np.array([number(value, act, np.float64)]), dtype), dtype
        )[0]
        text = (
            f"{f['cpu_name']} at {point}: got {g!r}, the spec says {value!r}, {want!r} in {dtype}"
        )
        assert np.isnan(g) if np.isnan(want) else g == want, text
        if value == "-0":
            assert np.signbit(g), text
