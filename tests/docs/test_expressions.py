# SPDX-License-Identifier: Apache-2.0
"""Checks docs/expressions.md: its functions, gradient rules and names are those of the language."""

import re

import pytest
from conftest import ROOT
from kfgen import families
from kfgen.language.expr import MOST, ExprError, Graph, parse
from kfgen.language.primitives import (
    ARG_REDUCTIONS,
    CALLABLE,
    INF,
    PRIMITIVES,
    REDUCTIONS,
    ROW_CALLABLE,
)

PAGE = (ROOT / "docs/expressions.md").read_text()
FUNCTIONS = PAGE.split("## Functions\n")[1].split("\n### Rows")[0]
OVER_ROWS = PAGE.split("### Rows and axes\n")[1].split("\n## ")[0]


def rows(section):
    """Returns [[text in backquotes], ...] per cell for each row of the section's table."""
    return [
        [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]


def test_functions_have_the_rules_of_the_generator():
    found = {}
    for called, _, rules in rows(FUNCTIONS):
        name, arguments = re.fullmatch(r"(\w+)\((.*)\)", called[0]).groups()
        found[name] = (arguments.split(", "), rules)
    assert set(found) == set(CALLABLE)
    for name, (arguments, rules) in found.items():
        if name not in ("where", "dropout"):
            assert (arguments, rules) == (
                list(PRIMITIVES[name][0]),
                list(PRIMITIVES[name][1].values()),
            )
    assert found["where"][0] == list(PRIMITIVES["where"][0])


def test_names_over_rows_are_those_of_the_families():
    found = {re.match(r"\w+", word)[0] for cells in rows(OVER_ROWS) for word in cells[0]}
    reads = {name for f in families.FAMILIES.values() for name in getattr(f, "reads", ())}
    assert found == {*ROW_CALLABLE, *REDUCTIONS, *ARG_REDUCTIONS, *reads, INF}


@pytest.mark.parametrize(
    "text",
    ["0 < x < 1", "x ** 2", "where(True, x, 0)", "x[0]", "exp(a=x)", "x = 1; x", "x < 1", "1e39"],
)
def test_the_language_lacks_what_the_page_says(text):
    graph = Graph()
    with pytest.raises(ExprError):
        parse(graph, text, {"x": graph.var("x")})
    assert f"{MOST:.1e}".replace("+", "") in PAGE
