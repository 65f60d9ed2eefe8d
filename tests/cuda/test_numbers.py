# SPDX-License-Identifier: Apache-2.0
"""Every function of the CUDA backend against the float64 oracle, on the axes of cases.py. Needs a GPU."""

import cases
import checks
import kflib
import pytest
from conftest import BUILD

FUNCTIONS = kflib.manifest()["functions"]
BUILDS = {"default": ("-O3", "-arch=native"), "nofma": ("-O3", "-arch=native", "-fmad=false")}
pytestmark = pytest.mark.skipif(not kflib.has_gpu(), reason="no CUDA device answers")


@pytest.fixture(scope="session", params=sorted(BUILDS))
def lib(request):
    return kflib.build("cuda", FUNCTIONS, BUILD / "cuda", BUILDS[request.param])


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_numbers(lib, memory, f):
    for sizes, values, shift in cases.runs(f):
        checks.run(lib, memory, f, sizes, values, shift=shift)


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["bwd"] and f["activation"] in ("none", "gelu")], ids=lambda f: f["name"])
def test_skipped_gradients(lib, memory, f):
    sizes, shift = cases.shapes(f)[1]
    whole = checks.run(lib, memory, f, sizes)
    for name in whole:
        rest = checks.run(lib, memory, f, sizes, drop=(name,))
        assert all(checks.same_bits(rest[n], whole[n]) for n in rest if n != name)


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["activation"] in ("none", "silu")], ids=lambda f: f["name"])
def test_in_place(lib, memory, f):
    for out, source in checks.in_place_pairs(f):
        for sizes, shift in cases.shapes(f)[:3]:
            checks.run(lib, memory, f, sizes, shift=shift, inplace=((out, source),))


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f["dropout"] and f["activation"] in ("none", "relu")], ids=lambda f: f["name"])
@pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 1e-5])
def test_dropout_probabilities(lib, memory, f, p):
    sizes, shift = cases.shapes(f)[0]
    checks.run(lib, memory, f, sizes, "special", shift=shift, p=p)
