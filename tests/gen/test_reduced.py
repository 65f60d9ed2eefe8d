# SPDX-License-Identifier: Apache-2.0
"""`reduced`: an op over elements is its mean and its sum over an axis as well."""

import json

import pytest
from kfgen.cli import main
from kfgen.entries import spec

TEXT = """
[op.gap]
brief = "(x - y)^2, weighted"
operands = { x = "elem", y = { kind = "elem", grad = false } }
scalars = { weight = 2.0 }
expr = "d = x - y; weight * d * d"
ref = "weight * (x - y) ** 2"
source = "a test"
reduced = ["mean", "sum"]
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def test_entries(path):
    ops = spec.load([path]).ops
    assert [ops[name].family for name in ("gap", "gap_mean", "gap_sum")] == [
        "elementwise",
        "reduction",
        "reduction",
    ]
    for word in ("mean", "sum"):
        op = ops[f"gap_{word}"]
        assert op.outputs == {"out": f"d = x - y; {word}(weight * d * d)"} and op.refs == {
            "out": f"{word}(weight * (x - y) ** 2)"
        }
        assert (
            op.operands == ops["gap"].operands
            and op.scalars == ops["gap"].scalars
            and op.source == "a test"
        )
        assert op.brief == f"the {word} of (x - y)^2, weighted"


def test_values_and_gradients(path, capsys):
    """kfgen check compares reduced ops by finite differences and finds a wrong reference."""
    assert main(["check", "--spec", str(path)]) == 0
    path.write_text(TEXT.replace("** 2", "** 2 * 3"))
    assert main(["check", "--spec", str(path)]) != 0
    assert "op.gap_mean" in capsys.readouterr().err


@pytest.mark.check
def test_functions(path, capsys):
    assert main(["list", "--json", "--spec", str(path)]) == 0
    found = {
        f["name"]: f
        for f in json.loads(capsys.readouterr().out)["functions"]
        if f["op"].startswith("gap_")
    }
    assert len(found) == 2 * (4 + 2) * 2 and found["kf_gap_mean_bwd_bf16"]["sizes"] == [
        "outer",
        "axis",
        "inner",
    ]


@pytest.mark.parametrize("expr", ["x -", "", "d = x - y"])
def test_an_expression_that_is_none(path, expr):
    """Is the op's own error."""
    path.write_text(TEXT.replace("d = x - y; weight * d * d", expr))
    with pytest.raises(spec.SpecError) as caught:
        spec.load([path])
    assert "[op.gap] " in str(caught.value)
