# SPDX-License-Identifier: Apache-2.0
"""Tests the instruction budgets of activations: 13 in a 2-byte forward, 25 in a 2-byte backward, 30
in float. An entry of the spec that needs more has a budget of its own, with the reason. `python
tests/headers/instructions.py` prints the table."""

import pathlib
import sys

import kflib
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import instructions  # noqa: E402

pytestmark = pytest.mark.skipif(not instructions.NVCC, reason="no nvcc")
ACTIVATIONS = kflib.manifest()["activations"]


@pytest.fixture(scope="module")
def counts(include, once):
    return once("instructions", lambda folder: instructions.measure(include, ACTIVATIONS))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: a["name"])
def test_instructions(counts, activation):
    over = instructions.over(counts, [activation])
    assert not over, "; ".join(over)


def test_the_counting_counts(counts):
    """Known relations hold: a copy needs less than the negation of the base, a tanh more than a
    comparison."""
    assert all(counts["none"][form] <= 0 for form in instructions.FORMS)
    assert counts["tanh"]["f32"] > counts["relu"]["f32"] + 5
    assert 10 < counts["gelu"]["f32"] < 60
    assert all(counts[a["name"]]["lp"] <= counts[a["name"]]["f32"] + 1 for a in ACTIVATIONS)


def test_own_budgets_are_needed(counts):
    """A budget in the spec that is no longer needed would hide the next regression."""
    for a in ACTIVATIONS:
        for form in instructions.FORMS:
            if form in a["budget"]:
                assert counts[a["name"]][form] > instructions.FORMS[form][0], (
                    f"{a['name']}: budget.{form} can go"
                )
        unknown = set(a["budget"]) - set(instructions.FORMS) - {"why"}
        assert not unknown, f"{a['name']}: {unknown} names no form"
