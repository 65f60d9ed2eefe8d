# SPDX-License-Identifier: Apache-2.0
"""Whole numbers of 64 bits: what the generator takes for one, and the scalars that are."""

import kflib
import pytest
from kfgen.entries import spec
from kfgen.language.expr import Graph, parse

FUNCTIONS = kflib.manifest()["functions"]


@pytest.mark.parametrize(
    "text, whole",
    [
        ("label == 3", True),
        ("column < label", True),
        ("column - 1 <= label + 2", True),
        ("-label >= column", True),
        ("label == 0.5", False),
        ("label * 2 == column", False),
        ("x > 0", False),
        ("x == label", False),
        ("1 < 2", False),
    ],
)
def test_comparisons(text, whole):
    graph = Graph({"label": 1}, ("label", "column"))
    node = parse(graph, f"where({text}, x, 0)", {n: graph.var(n) for n in ("x", "label", "column")})
    assert graph.compares_whole(graph.nodes[node].args[0]) == whole


def test_signatures():
    """Every op with ignore_index takes it as int64_t, before its float scalars."""
    found = [f for f in FUNCTIONS if any(a["name"] == "ignore_index" for a in f["arguments"])]
    layers = {"linear_cross_entropy", "linear_cross_entropy_with_grad"}
    assert {f["op"] for f in found} == {
        "cross_entropy",
        "cross_entropy_with_grad",
        "cross_entropy_weighted",
        "nll",
    } | layers
    for f in found:
        names = [a["name"] for a in f["arguments"]]
        assert (
            "strides, int64_t ignore_index" in f["signature"]
            and "strides, int64_t ignore_index" in f["cpu_signature"]
        )
        assert (
            names[names.index("depth" if f["op"] in layers else "cols") + 2] == "ignore_index"
            and f["scalars"]["ignore_index"] == -100
        )


ENTRY = """
[op.own]
family = "{family}"
brief = "own"
operands = {{ x = "elem" }}
scalars = {{ knee = {scalar} }}
expr = "{expr}"
ref = "{expr}"
"""


@pytest.mark.parametrize(
    "family, scalar, message",
    [
        (
            "elementwise",
            '{ kind = "int", value = 1 }',
            "`knee` is an integer, which family 'elementwise' does not accept",
        ),
        (
            "reduction",
            '{ kind = "int", value = 1 }',
            "`knee` is an integer, which family 'reduction' does not accept",
        ),
        ("rows", '{ kind = "int", value = 0.5 }', "knee is {'kind': 'int', 'value': 0.5}"),
        ("rows", '{ kind = "int" }', "knee is {'kind': 'int'}"),
        ("rows", '{ kind = "float", value = 1 }', "knee is {'kind': 'float', 'value': 1}"),
    ],
)
def test_scalars_that_are_refused(tmp_path, family, scalar, message):
    path = tmp_path / "mine.toml"
    path.write_text(
        ENTRY.format(
            family=family,
            scalar=scalar,
            expr="x * knee" if family == "elementwise" else "sum(x) * knee",
        )
    )
    with pytest.raises(spec.SpecError) as caught:
        spec.load([path])
    assert f"{path}: [op.own] scalars: {message}" in str(caught.value) and "\n  fix: " in str(
        caught.value
    )
