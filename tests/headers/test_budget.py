# SPDX-License-Identifier: Apache-2.0
"""The compile budgets of the headers. `python tests/headers/budget.py` prints the table of a longer run."""

import pathlib
import sys

import kflib
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import budget  # noqa: E402

needs_nvcc = pytest.mark.skipif(not budget.NVCC, reason="no nvcc")


@pytest.fixture(scope="module")
def measured(include, once):
    return once("budget", lambda folder: budget.measure(include))


@pytest.mark.level(2)
@needs_nvcc
@pytest.mark.skipif(not budget.VALGRIND, reason="no valgrind")
def test_compile_cost(include):
    """Both budgets in one test, so that no second worker counts the same again: three minutes."""
    m = budget.measure(include, count=True)
    print(budget.table(m))
    over = {name: (budget.ratio(m, name), allowed) for name, allowed in budget.budgets(m).items() if budget.ratio(m, name) > allowed}
    assert not over, budget.table(m)


@needs_nvcc
def test_tokens(include, tmp_path):
    """What level 1 has of the budgets, in a second: text that a launcher adds, which nvcc reads whether or not it is called."""
    floor, umbrella, op = (budget.tokens(name, include, tmp_path) for name in budget.TIMED)
    texts = {(f["op"], *f["dtypes"], f["bwd"], f["state"]) for f in kflib.on("cuda", kflib.manifest()["functions"])}
    assert (umbrella - floor) / len(texts) <= budget.TOKENS["umbrella"], umbrella
    assert op - floor <= budget.TOKENS["op header"], op


@needs_nvcc
@pytest.mark.parametrize("name", ["umbrella", "op header"])
def test_only_what_is_called_is_in_the_object(measured, name):
    kernels = measured["kernels"][name]
    assert kernels and all("kfk_add_f32" in k for k in kernels), kernels
    assert len(kernels) <= 3 and kernels == measured["kernels"]["op header"]
    assert measured["object"][name] < 3 * measured["object"]["floor"]


@needs_nvcc
def test_nothing_called_nothing_emitted(measured):
    assert measured["kernels"]["umbrella, nothing called"] == []
    assert len(measured["kernels"]["floor"]) == 1  # and the counting does count
