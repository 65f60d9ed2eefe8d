# SPDX-License-Identifier: Apache-2.0
"""The compile budgets of the headers. `python tests/headers/budget.py` prints the table of a longer run."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import budget  # noqa: E402

needs_nvcc = pytest.mark.skipif(not budget.NVCC, reason="no nvcc")
TOLERANCE = 1.05  # of the timer, on a machine that does other things as well


@pytest.fixture(scope="module")
def measured(include):
    """Five runs; where a budget does not hold in them, eleven others decide."""
    for runs in (5, 11):
        m = budget.measure(include, runs)
        floor = m["seconds"]["floor"]
        if m["seconds"]["umbrella"] <= budget.umbrella_budget(m["launchers"]) * floor and m["seconds"]["op header"] <= budget.OP_BUDGET * floor:
            break
    print(budget.table(m))
    return m


def test_budget_formula():
    assert budget.umbrella_budget(300) == budget.umbrella_budget(2800) == 1.5 and budget.umbrella_budget(4800) == 2.0


def test_history():
    """Every row can be read, and the newest one, which says how far the margins are, holds the budgets."""
    rows = budget.history()
    assert rows and [r["date"] for r in rows] == sorted(r["date"] for r in rows)
    for row in rows:
        assert int(row["launchers"]) > 0 and int(row["runs"]) >= 5 and row["commit"] and row["nvcc"]
        assert 1 < float(row["op_header"]) < float(row["umbrella"]) < 10
    newest = rows[-1]
    assert float(newest["umbrella"]) <= budget.umbrella_budget(int(newest["launchers"])) * TOLERANCE
    assert float(newest["op_header"]) <= budget.OP_BUDGET * TOLERANCE


@needs_nvcc
@pytest.mark.parametrize("name", ["umbrella", "op header"])
def test_compile_time(measured, name):
    ratio = measured["seconds"][name] / measured["seconds"]["floor"]
    allowed = budget.OP_BUDGET if name == "op header" else budget.umbrella_budget(measured["launchers"])
    assert ratio <= allowed * TOLERANCE, f"{ratio:.2f} times the floor, {allowed:.2f} are allowed\n{budget.table(measured)}"


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
