# SPDX-License-Identifier: Apache-2.0
"""Tests the checks of tests/cuda/test_robust.py without a GPU. C functions called as launchers keep
the promises and must pass; each broken promise must be noticed by its check."""

import math

import cases
import checks
import fakegpu
import kflib
import large
import numeric
import pytest
import robust
import selection
from conftest import BUILD

# Level 1 takes the functions that test_numbers.py has compiled.
KINDS = (
    selection.cover(
        lambda f: [selection.kind(f)], [f for f in selection.gate() if not f["integer"]]
    )
    if cases.LEVEL == 1
    else selection.kinds()
)


def library(functions):
    if cases.LEVEL == 1:
        return numeric.build_cpu("native", BUILD)
    return kflib.build("cpu", functions, BUILD / "cpu", ("-O1",), extra=fakegpu.COUNTERS)


@pytest.fixture(scope="module")
def plain():
    return library(KINDS)


@pytest.fixture(scope="module")
def gpu():
    return fakegpu.FakeGpu(1 << 25)


def each(gpu, lib, f):
    """Returns {check: its call} on the shapes of the GPU tests."""
    small, large = cases.of_form(f, robust.SHAPES), cases.of_form(f, robust.LARGE)
    # A softmax of softmaxes soon converges.
    return {
        "graph": lambda: [robust.graph(gpu, lib, f, *shape) for shape in small],
        "streams": lambda: robust.streams(gpu, lib, [(f, *shape) for shape in small]),
        "only_launches": lambda: [robust.only_launches(gpu, lib, f, *shape) for shape in small],
        "repeated": lambda: [robust.repeated(gpu, lib, f, *shape, times=8) for shape in large[:1]],
        "chained": lambda: robust.chained(gpu, lib, f, large[0][0], times=2),
        "loaded": lambda: [
            robust.loaded(gpu, fakegpu.FakeLib(lib.lib, gpu), lib, f, *shape) for shape in small
        ],
        "alone": lambda: [robust.alone(gpu, lib, f, *shape) for shape in small],
    }


@pytest.mark.parametrize("f", KINDS, ids=lambda f: f["cpu_name"])
def test_kept_promises(plain, gpu, f):
    for check in each(gpu, fakegpu.FakeLib(plain, gpu), f).values():
        check()


FAULTS = {
    "runs while captured": "graph",
    "keeps the first inputs": "graph",
    "default stream": "streams",
    "waits": "streams",
    "allocates": "only_launches",
    "other bits sometimes": "repeated",
    "does not wait for the call before": "chained",
    "other bits": "loaded",
    "depends on other rows": "alone",
}


def can_be_noticed(gpu, lib, f, fault):
    """True if the fault can change a result of f.

    A chained call needs a call in place whose second run changes what the first wrote. That
    excludes l2_normalize, which is idempotent, and a residual's gradient, which is a copy. A row
    alone needs an output that is not summed over rows, and rows that are not those of a product.
    """
    if FAULTS[fault] == "alone":
        own = cases.own(f)
        some = any(a["role"] == "out" for a in f["arguments"]) or hasattr(own, "of_row")
        return some and not getattr(own, "ROWS_OF_A_PRODUCT", False)
    if FAULTS[fault] != "chained":
        return True
    sizes = cases.of_form(f, robust.LARGE)[0][0]
    return any(
        robust.changes_again(gpu, fakegpu.FakeLib(lib, gpu), f, sizes, pair)
        for pair in checks.in_place_pairs(f)
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "f", cases.by_level(KINDS[:: cases.SHARE], KINDS), ids=lambda f: f["cpu_name"]
)
def test_broken_promises(plain, gpu, f, fault):
    if not can_be_noticed(gpu, plain, f, fault):
        return
    with pytest.raises(checks.Failure):
        each(gpu, fakegpu.FakeLib(plain, gpu, fault), f)[FAULTS[fault]]()


CONSTANT = {"any_nonfinite"}  # constant for all ordinary values, so no test can notice
# Also excludes ops whose rows are not parts of one tensor.
CONSTANT |= {f["op"] for f in kflib.manifest()["functions"] if cases.own(f)}
LARGE_OPS = list(
    {
        (f["op"], f["bwd"], f["state"]): f
        for f in kflib.of_tensors()
        if f["dtypes"] == ["bf16"]
        and f["activation"] in ("none", "silu")
        and f["op"] not in CONSTANT
    }.values()
)
if cases.LEVEL == 1:
    LARGE_OPS = [f for f in selection.gate() if f["dtypes"] == ["bf16"] and f["op"] not in CONSTANT]
    LARGE_OPS = selection.cover(lambda f: [selection.schedule(f)], LARGE_OPS)


@pytest.fixture(scope="module")
def bf16():
    return library(LARGE_OPS)


@pytest.mark.parametrize("f", LARGE_OPS, ids=lambda f: f["cpu_name"])
def test_large_on_small_tensors(bf16, gpu, f):
    """The boundary of 2^31 elements is lowered to a small one. An index that wraps there must be
    noticed."""
    boundary = 150000

    class Wraps(fakegpu.FakeLib):
        def call(self, f, given, stream=0):
            row = boundary // f_row(f, given)
            if given[f["sizes"][cases.counted(f)]] <= row:
                return self.lib.call(f, given)
            result = self.lib.call(f, given)
            for a in f["arguments"]:  # restarts at the boundary with results from the beginning
                if (
                    a["role"] != "in"
                    and given.get(a["name"])
                    and "kind" in a
                    and robust.batch_axis(a)
                ):
                    width = math.prod(
                        checks.shape_of(f, cases.of_count(f, 1, [given[s] for s in rest_of(f)]), a)
                    )
                    step = checks.np.dtype(checks.STORAGE[a["dtype"]]).itemsize * width
                    # several rows, since a single row may equal another
                    self.gpu.copy(given[a["name"]] + (row + 1) * step, given[a["name"]], 4 * step)
            if any(a["role"] == "sum" and given.get(a["name"]) for a in f["arguments"]):
                wrong = given | {f["sizes"][cases.counted(f)]: row}
                result = self.lib.call(f, wrong)
            return result

    def f_row(f, given):
        return int(checks.np.prod([given[s] for s in rest_of(f)], dtype=int))

    def rest_of(f):
        return f["sizes"][cases.counted(f) + 1 :]

    rest, rows = large.shapes(f)[0]
    large.large(gpu, fakegpu.FakeLib(bf16, gpu), f, rest, rows, boundary)
    with pytest.raises(checks.Failure):
        large.large(gpu, Wraps(bf16, gpu), f, rest, rows, boundary)
