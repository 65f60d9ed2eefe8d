# SPDX-License-Identifier: Apache-2.0
"""Tests the compile budgets of the headers. `python tests/headers/budget.py` prints the table of a
longer run."""

import pathlib
import sys

import kflib
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import budget  # noqa: E402

needs_nvcc = pytest.mark.skipif(not budget.NVCC, reason="no nvcc")
needs_valgrind = pytest.mark.skipif(not budget.VALGRIND, reason="no valgrind")


@pytest.fixture(scope="module")
def measured(include, once):
    return once("budget", lambda folder: budget.measure(include))


@pytest.fixture(scope="module")
def counted(include, once):
    return once("instructions of the budget", lambda folder: budget.measure(include, count=True))


@pytest.mark.level(2)
@needs_nvcc
@needs_valgrind
@pytest.mark.parametrize("name", ["umbrella", "op header"])
def test_compile_cost(counted, name):
    """Takes three minutes for all tests that count instructions."""
    print(budget.table(counted))
    assert budget.ratio(counted, name) <= budget.budgets(counted)[name], budget.table(counted)


@pytest.mark.level(2)
@needs_nvcc
@needs_valgrind
@pytest.mark.xfail(
    reason="a goal that is missed: bench/NOTES.md, 'The umbrella is over its budget', has what was "
    "tried"
)
def test_the_goal_of_the_umbrella(counted):
    assert budget.ratio(counted, "umbrella") <= budget.umbrella_goal(counted["launchers"])


@needs_nvcc
@pytest.mark.parametrize("side", budget.TOKENS)
def test_tokens(include, tmp_path, side):
    """Level 1 takes seconds: it counts the tokens that a launcher adds, which nvcc reads whether or
    not it is called."""
    floor, umbrella, op = (budget.tokens(name, include, tmp_path, side) for name in budget.TIMED)
    texts = {
        (f["op"], *f["dtypes"], f["bwd"], f["state"])
        for f in kflib.on("cuda", kflib.manifest()["functions"])
    }
    assert (umbrella - floor) / len(texts) <= budget.TOKENS[side]["umbrella"], umbrella
    assert op - floor <= budget.TOKENS[side]["op header"], op


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
    assert len(measured["kernels"]["floor"]) == 1  # the count is not always empty
