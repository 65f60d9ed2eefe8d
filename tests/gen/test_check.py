# SPDX-License-Identifier: Apache-2.0
"""`kfgen check` passes on kf's entries and finds every altered constant, derivative and edge."""

import ast
import copy

import numpy as np
import pytest
from kfgen import check, check_activations, differences, notes
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.model import derive, entries
from kfgen.render.render import Selection

SPEC = spec.load()
ACTS = list(SPEC.activations.values())


def failures_of(act):
    found = []
    try:
        check_activations.check(act, found)
    except differences.Trouble as e:
        found.append(str(e))
    return found


def mutants(text):
    """The expression with one number or one operator changed."""
    tree = ast.parse(text.strip())
    spots = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant)
        or (isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Add, ast.Sub)))
    ]
    for k in range(len(spots)):
        changed = copy.deepcopy(tree)
        node = [
            n
            for n in ast.walk(changed)
            if isinstance(n, ast.Constant)
            or (isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Add, ast.Sub)))
        ][k]
        if isinstance(node, ast.Constant):
            node.value = node.value * 1.001 if node.value else 0.001
        else:
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield ast.unparse(changed)


# Clamps where the function is flat to the last bit, and signs of terms that are 0 or NaN: no value
# depends on them.
SILENT = ("20.0199", "30.0299", "-30.03", "e+30", "- x * 0")


def test_a_text_of_several_lines():
    """Joins the lines, as the evaluation does."""
    assert entries.names_read("(x - mean(x))\n    * weight") == {"x", "weight"}


def test_own_spec_passes(capsys):
    assert main(["check"]) == 0
    message = capsys.readouterr()
    assert "19 activations" in message.out and "functions" in message.out and not message.err


@pytest.mark.parametrize("act", ACTS, ids=lambda a: a.name)
@pytest.mark.parametrize("field", ["expr", "dexpr"])
def test_altered_constants_are_found(act, field):
    text = getattr(act, field)
    if text is None:
        pytest.skip("derived")
    missed = []
    for mutant in mutants(text):
        changed = copy.copy(act)
        setattr(changed, field, mutant)
        if not failures_of(changed) and not any(constant in mutant for constant in SILENT):
            missed.append(mutant)
    assert not missed


@pytest.mark.parametrize("act", ACTS, ids=lambda a: a.name)
@pytest.mark.parametrize("field", ["ref", "dref"])
def test_altered_references_are_found(act, field):
    changed = copy.copy(act)
    setattr(changed, field, f"1.0001 * ({getattr(act, field)})")
    assert failures_of(changed)


@pytest.mark.parametrize("act", ACTS, ids=lambda a: a.name)
def test_altered_edges_are_found(act):
    for field in ("edges", "dedges"):
        for point in getattr(act, field):
            changed = copy.copy(act)
            setattr(changed, field, {**getattr(act, field), point: 7.25})
            found = failures_of(changed)
            assert (
                len(found) >= 1
                and f"{field}: at x = {point}" in found[0]
                and "expected 7.25" in found[0]
            )
    assert any(
        "expected -0.0" in f
        for f in failures_of(with_field(SPEC.activations["relu"], edges={"-0": "-0"}))
    )


@pytest.mark.parametrize("op", ["{act}", "bias_{act}", "bias_{act}_add"])
def test_a_gradient_that_hides_nan_is_found(op):
    hidden = with_field(
        SPEC.activations["relu"], dexpr="where(x > 0, dy, 0)", dexpr_out=None, dedges={}
    )
    found = []
    check._op(SPEC.ops[op], hidden, found)
    assert found and "where x is NaN the result is NaN, but the gradient for x is 0" in found[0]
    found = []
    check._op(SPEC.ops[op], with_field(hidden, dedges={"nan": 0}), found)
    assert not found


def with_field(entry, **fields):
    changed = copy.copy(entry)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


@pytest.mark.parametrize("pattern", sorted(SPEC.ops))
def test_altered_ops_are_found(pattern):
    """A reference with a small change in one operand shows as a wrong value and wrong gradients."""
    op = SPEC.ops[pattern]
    first = next((o for o in op.operands if o.grad), op.operands[0])
    name = "logits" if op.family == "linear_cross_entropy" else first.values[0]
    in_one = (
        f"{name} * {name}" if op.family != "matmul" else "({0}) * ({0})"
    )  # whose operands have shapes of their own: a little in all of them
    refs = {out: text + f" + 1e-6 * {in_one.format(text)}" for out, text in op.refs.items()}
    found = []
    check._op(with_field(op, refs=refs), op.activations[-1], found)
    at = f"{name} = " if op.family != "matmul" else "value = "
    assert any("against its ref" in f and f"[op.{pattern}]" in f and at in f for f in found)
    if op.types.word in ("one", "products") and any(o.grad for o in op.operands):
        wide = with_field(
            op,
            refs={out: text + f" + 1e-2 * {in_one.format(text)}" for out, text in op.refs.items()},
        )
        check._op(wide, op.activations[-1], found)
        assert any(f"gradient for {name} against finite differences" in f for f in found)


def test_wrong_rule_of_a_primitive_is_found(monkeypatch):
    from kfgen.language import primitives

    monkeypatch.setitem(primitives.PRIMITIVES, "div", ("ab", {"a": "dy / b", "b": "-(dy * y)"}))
    found, op = [], SPEC.ops["div_{act}"]
    check._op(op, op.activations[0], found)
    assert any("gradient for b" in f for f in found)


BAD = """
[activation.wrong]
brief = "x^2"
expr = "x * x"
dexpr = "dy * x"
ref = "x * x"
"""


def test_message_and_exit_code(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(BAD)
    assert main(["check", "--spec", str(path)]) == 1
    message = capsys.readouterr().err
    assert (
        f"{path}: [activation.wrong] dexpr with dy = -1.75 against finite differences of ref, "
        "at x = " in message
    )
    path.write_text(
        BAD.replace('ref = "x * x"', 'ref = "np.cbrt(x) ** 6"').replace("dy * x", "2 * dy * x")
    )
    assert main(["check", "--spec", str(path)]) == 1
    assert "give the activation a dref" in capsys.readouterr().err
    path.write_text(
        '[op.root]\nbrief = "b"\noperands = { x = "elem" }\n'
        'expr = "x * x"\nref = "np.cbrt(x) ** 6"\n'
    )
    assert main(["check", "--spec", str(path)]) == 1
    message = capsys.readouterr().err
    assert (
        "the reference uses np.cbrt" in message
        and "activation" not in message.split("cbrt")[1]
        and "np.exp" in message
    )


# A value may have a function's name, as layer_norm's saved mean; a call does not read the value.
NAMED = """
[op.centred_again]
family = "rows"
brief = "y less its mean"
operands = { x = "elem" }
saved = { mean = "mean(y)" }
outputs = { y = "x - mean(x)", z = "y - mean" }
refs = { y = "x - mean(x)", z = "y - mean(y)" }

[op.centred]
family = "rows"
brief = "x less its mean, and the mean"
operands = { x = "elem" }
outputs = { mean = "mean (x)", y = "x - mean (x)" }
refs = { mean = "mean (x)", y = "x - mean (x)" }
"""


CONSTANT = """
[op.{name}]
family = "{family}"
brief = "constant"
operands = {{ x = "elem" }}
expr = "{expr}"
ref = "{ref}"
"""


@pytest.mark.parametrize(
    "family, expr",
    [
        ("elementwise", "0 * x + 1"),
        ("rows", "0 * sum(x) + x - x + 1"),
        ("reduction", "sum(0 * x) + 1"),
    ],
)
def test_a_reference_that_reads_nothing(tmp_path, capsys, family, expr):
    """NumPy's functions of an int have neither a shape nor a derivative."""
    path = tmp_path / "constants.toml"
    path.write_text(CONSTANT.format(name="constant_one", family=family, expr=expr, ref="1"))
    code = main(["check", "--spec", str(path)])
    assert code == 0, capsys.readouterr().err


def test_a_reference_that_is_no_number(tmp_path, capsys):
    path = tmp_path / "texts.toml"
    path.write_text(
        CONSTANT.format(name="text_one", family="elementwise", expr="0 * x + 1", ref="'a'")
    )
    assert main(["check", "--spec", str(path)]) == 1
    assert "[op.text_one] ref: cannot be evaluated: could not convert" in capsys.readouterr().err


def test_an_activation_whose_reference_reads_nothing(tmp_path, capsys):
    path = tmp_path / "units.toml"
    text = "[activation.unit]\nbrief = '1'\nexpr = '0 * x + 1'\nref = '1'\n"
    path.write_text(text + "edges = { 3 = 1 }\nulp = { f32 = 4, f64 = 4 }\n")
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err


def test_values_called_as_words_are(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(NAMED)
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err
    loaded = spec.load([path])
    assert derive.in_order(
        loaded.ops["centred_again"].saved | loaded.ops["centred_again"].outputs
    ) == ["y", "mean", "z"]
    assert entries.names_read("exp(-mean) * mean(x + row_mean(y)) - sum (z)") == {
        "mean",
        "x",
        "y",
        "z",
    }


def test_a_call_is_a_call_with_blanks_in_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[op.spaced]\nbrief = "b"\noperands = { x = "elem" }\n'
        'expr = "dropout (x * 2)"\nref = "dropout(x * 2)"\n'
    )
    assert spec.load([path]).ops["spaced"].dropout


def test_ops_without_gradients(tmp_path, capsys):
    """Have no backward, and their values are checked all the same."""
    path = tmp_path / "mine.toml"
    text = '[op.no_grad]\nbrief = "x * w"\nexpr = "x * w"\nref = "x * w"\n'
    path.write_text(
        text
        + 'operands = { x = { kind = "elem", grad = false }, w = { kind = "row", grad = false } }\n'
    )
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err
    assert (
        "1 op with their activations, 1 in all" in capsys.readouterr().out
    )  # kf's own are not checked again
    path.write_text(path.read_text().replace('ref = "x * w"', 'ref = "x + w"'))
    assert main(["check", "--spec", str(path)]) == 1
    assert "[op.no_grad] expr of out against its ref" in capsys.readouterr().err


FLOAT32 = """
[op.naive]
family = "rows"
brief = "a softmax that overflows"
operands = { x = "elem" }
expr = "exp(x) / sum(exp(x))"
ref = "np.exp(x) / sum(np.exp(x))"
[op.careful]
family = "rows"
brief = "one that does not"
operands = { x = "elem" }
expr = "e = exp(x - stop(max(x))); e / sum(e)"
ref = "np.exp(x - max(x)) / sum(np.exp(x - max(x)))"
[op.versine]
brief = "what cancels"
operands = { x = "elem" }
expr = "1 - cos(x)"
ref = "2 * np.square(np.sin(x / 2))"
[op.product]
brief = "what may be as large as it likes"
operands = { x = "elem", y = "row" }
expr = "x * y + exp(x)"
ref = "x * y + np.exp(x)"
[activation.log_of_exp]
brief = "log(1 + exp(x))"
expr = "log(1 + exp(x))"
ref = "np.logaddexp(0, x)"
edges = { nan = "nan" }
"""


def test_notes_on_float32(tmp_path, capsys):
    """A correct formula that overflows or cancels in float32 gets a note, not an error."""
    path = tmp_path / "mine.toml"
    path.write_text(FLOAT32)
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err
    notes = [
        line.removeprefix(f"kfgen: note: {path}: ")
        for line in capsys.readouterr().out.splitlines()
        if ": note: " in line
    ]
    assert [n.partition(" where")[0] for n in notes] == [
        "[activation.log_of_exp] expr overflows in float32",
        "[op.naive] out is NaN in float32",
        "[op.naive] gradient dx is NaN in float32",
        "[op.versine] out loses its digits in float32",
    ], notes
    assert (
        "where x is about 10000: nan" in notes[1]
        and "where x is about 0.0001: 0, in float64" in notes[3]
    )


@pytest.mark.parametrize("family", sorted({op.family for op in SPEC.ops.values()}))
def test_notes_are_made_of_every_family(family):
    """Returns the notes on the first entry, as if it were a user's."""
    op = next(op for op in SPEC.ops.values() if op.family == family)
    assert all(
        note.startswith(f"{op.file}: [op.{op.pattern}] ")
        for note in notes._op(op, SPEC.activations["none"])
    )


WAVES = """
[activation.cosine]
brief = "cos(x)"
expr = "cos(x)"
ref = "np.cos(x)"
[activation.growing]
brief = "x sin(x)"
expr = "x * sin(x)"
ref = "x * np.sin(x)"
"""


def test_a_wave_of_a_quotient(tmp_path, capsys):
    """cos(a / b) has many periods within a step of b near 0: that is no fault of the activation."""
    path = tmp_path / "mine.toml"
    path.write_text(WAVES)
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err
    failures = []
    op, act = SPEC.ops["div_{act}"], spec.load([path]).activations["cosine"]
    act.expr = "cos(x) + 1e-3 * sin(x)"  # and a slip in it is still seen
    check._op(op, act, failures)
    assert any("gradient for b against finite differences" in f for f in failures), failures


@pytest.mark.check
def test_points_are_seen():
    """Most of the grid is away from kinks."""
    rng = np.random.default_rng(0)
    for act in ACTS:
        graph, y, dx = check_activations._activation_graph(act)
        x = differences.grid(rng, [])
        near = [
            {"x": x + s * differences.step_at(x), "dy": 1.0, **act.scalars}
            for s in (0.0, *differences.STENCIL)
        ]
        assert np.broadcast_to(differences.smooth(graph, [y, dx], near), x.shape).mean() > 0.8
    assert check.run(Selection(SPEC))[0] == []
