# SPDX-License-Identifier: Apache-2.0
"""Extents and size rules are data (gen/kfgen/model/shapes.py) with two evaluators. Nobody else
takes an extent's text apart or counts the dimensions of a size."""

import re

import pytest
from conftest import ROOT
from kfgen.model import shapes

EVALUATORS = (
    "gen/kfgen/model/shapes.py",
    "include/kf/core/extent.h",
    "include/kf/runtime/layout.h",
    "frontends/python/kernel_fusion/_sizes.py",
)
# Files that write rules in the terms of layout.h.
WRITERS = ("frontends/python/kernel_fusion/_layout.py", "gen/kfgen/interfaces/runtime.py")
OWN = "tests/gen/test_size_rules.py"
FOLDERS = ("gen", "frontends", "tests", "bench", "include", "templates", "examples")
SUFFIXES = {".py", ".h", ".cuh", ".cpp", ".c", ".hpp", ".j2", ".toml"}
# Signs of a third evaluator: {name: (pattern, files that may match)}.
SIGNS = {
    "splits text": (r"""\.(?:r?partition|r?split)\(["'] ?\* ?["']\)""", ()),
    "evaluates text": (r"""\beval\((?:extent|size|dim)\w*\b""", ()),
    "old words": (r"""["'](?:all but three|between)["']|KFI_RT_(?:BEFORE|BETWEEN)\b""", ()),
    "reads counts": (r"""(?:\.get\(|\[)["']dims["'][\])]""", (*EVALUATORS, *WRITERS)),
    "reads count codes": (r"KFI_LAYOUT_(?:REST|BEFORE_AXIS)\b", (*EVALUATORS, *WRITERS)),
    "reads expressions": (r"KFI_LAYOUT_(?:TIMES|OVER|NUMBER)\b", EVALUATORS),
}


def found_in(name, text):
    return [
        sign
        for sign, (pattern, allowed) in SIGNS.items()
        if name not in allowed and re.search(pattern, text)
    ]


def test_two_evaluators():
    files = [
        p
        for folder in FOLDERS
        for p in (ROOT / folder).rglob("*")
        if p.suffix in SUFFIXES and "build" not in p.relative_to(ROOT).parts[:-1]
    ]
    names = {p: p.relative_to(ROOT).as_posix() for p in files}
    assert {*EVALUATORS, *WRITERS} <= set(names.values())
    found = {
        name: signs
        for p, name in names.items()
        if name != OWN
        for signs in [found_in(name, p.read_text(errors="replace"))]
        if signs
    }
    assert not found, found


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ('factor, _, size = extent.rpartition(" * ")', "splits text"),
        ("words = part.split(' * ')", "splits text"),
        ("eval(extent, {}, sizes)", "evaluates text"),
        ('"all but three": lambda: math.prod(shape[:-3]),', "old words"),
        ("    KFI_RT_BETWEEN, /* from the axis */", "old words"),
        ('count = rule["dims"]', "reads counts"),
        ('count = rule.get("dims")', "reads counts"),
        ("if (r->count[s] == KFI_LAYOUT_REST)", "reads count codes"),
        ("case KFI_LAYOUT_OVER: break;", "reads expressions"),
    ],
)
def test_a_third_one_is_found(line, sign):
    assert found_in("bench/case.py", line) == [sign]


@pytest.mark.parametrize(
    ("text", "extent", "names", "line"),
    [
        ("cols", "cols", ["cols"], (1, "cols", 0)),
        ("2 * cols", ["*", 2, "cols"], ["cols"], (2, "cols", 0)),
        ("cols * 2 + 3", ["+", ["*", "cols", 2], 3], ["cols"], (2, "cols", 3)),
        ("2 * (n - 1)", ["*", 2, ["-", "n", 1]], ["n"], (2, "n", -2)),
        ("batch + 1", ["+", "batch", 1], ["batch"], (1, "batch", 1)),
        ("1 - n", ["-", 1, "n"], ["n"], None),
        ("n / 2", ["/", "n", 2], ["n"], None),
        ("a * b", ["*", "a", "b"], ["a", "b"], None),
        ("7", 7, [], None),
        ("a - (b - c) / (d * e)", ["-", "a", ["/", ["-", "b", "c"], ["*", "d", "e"]]], None, None),
    ],
)
def test_extents(text, extent, names, line):
    assert shapes.parse(text) == extent and shapes.parse(shapes.text(extent)) == extent
    assert names is None or shapes.names(extent) == names
    assert shapes.linear(extent) == line


@pytest.mark.parametrize(
    ("text", "values", "rules", "problem"),
    [
        ("2 * cols", ["rows"], {}, "`cols` is no size or integer"),
        ("2 * n", ["n"], {"n": shapes.REST}, "`2 * n` is one dimension, and n may have none"),
        ("2 * n", ["n"], {"n": shapes.ONE}, ""),
        ("n / (m + 1)", ["n", "m"], {"n": shapes.REST}, ""),
    ],
)
def test_problems(text, values, rules, problem):
    found = shapes.problem([shapes.parse(text)], values, rules)
    assert found.startswith(problem) and bool(found) == bool(problem)
    assert "7 extents" in shapes.problem([1] * 7, values, rules)


def test_sizes_that_nothing_determines():
    rules = {"batch": shapes.REST, "rows": shapes.REST, "cols": shapes.ONE}
    assert shapes.undetermined(rules, [["batch", "rows", "cols"]]) == "batch"
    assert shapes.undetermined(rules, [["batch", "cols"]]) == "rows"
    assert shapes.undetermined(rules, [["batch", "cols"], ["batch", "rows"]]) == ""


def test_products_in_text():
    assert shapes.product(["rows", "2 * cols"]) == "rows * 2 * cols"
    assert shapes.product(["rows", "batch + 1", "n / 2"]) == "rows * (batch + 1) * (n / 2)"
    assert shapes.product(["batch + 1"]) == "batch + 1"


def test_expressions_in_postfix_order():
    values, extent = ["n", "stride"], shapes.parse("(n - 1) / stride + 1")
    code = shapes.CODES
    wanted = [0, code["number"], 1, code["-"], 1, code["/"], code["number"], 1, code["+"]]
    assert shapes.code(extent, values) == [*wanted, code["end"]]
    codes = [9]
    assert shapes.fields(["n", extent], ["n"], values, codes) == [(0, 1, 0, 0), (-1, 0, 0, 1)]
    assert codes[1:] == [*wanted, code["end"]]
    deep = "n"
    for _ in range(shapes.DEPTH):
        deep = ["+", 1, deep]
    with pytest.raises(ValueError, match="needs 17 operands at a time"):
        shapes.code(deep, values)
