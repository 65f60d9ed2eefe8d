# SPDX-License-Identifier: Apache-2.0
"""Every function of the C backend against the float64 oracle, on the axes of cases.py, in two builds."""

import cases
import checks
import kflib
import pytest
from conftest import BUILD

FUNCTIONS = kflib.manifest()["functions"]
BUILDS = {
    # What a careful user writes, and what a careless one does; contraction as the compiler likes it, and off.
    "native": ("-O3", "-march=native", "-fopenmp", "-ffp-contract=fast"),
    "plain": ("-O2", "-ffp-contract=off"),
}


@pytest.fixture(scope="session", params=sorted(BUILDS))
def lib(request):
    return kflib.build("cpu", FUNCTIONS, BUILD / "cpu", BUILDS[request.param])


@pytest.fixture(scope="session")
def memory():
    return checks.CpuMemory()


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["cpu_name"] for f in FUNCTIONS])
def test_numbers(lib, memory, f):
    for sizes, values, shift in cases.runs(f):
        checks.run(lib, memory, f, sizes, values, shift=shift)


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["bwd"] and f["activation"] in ("none", "gelu")], ids=lambda f: f["cpu_name"])
def test_skipped_gradients(lib, memory, f):
    """Any gradient may be NULL: the others do not change, nothing else is written."""
    sizes, shift = cases.shapes(f)[1]
    whole = checks.run(lib, memory, f, sizes)
    for name in whole:
        rest = checks.run(lib, memory, f, sizes, drop=(name,))
        assert all(checks.same_bits(rest[n], whole[n]) for n in rest if n != name)


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["activation"] in ("none", "silu")], ids=lambda f: f["cpu_name"])
def test_in_place(lib, memory, f):
    """An output may be an input of its own shape and element size."""
    for out, source in checks.in_place_pairs(f):
        for sizes, shift in cases.shapes(f)[:3]:
            checks.run(lib, memory, f, sizes, shift=shift, inplace=((out, source),))


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["dropout"] and f["activation"] in ("none", "relu")], ids=lambda f: f["cpu_name"])
@pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 1e-5])
def test_dropout_probabilities(lib, memory, f, p):
    sizes, shift = cases.shapes(f)[0]
    checks.run(lib, memory, f, sizes, "special", shift=shift, p=p)
