# SPDX-License-Identifier: Apache-2.0
"""Every mistake in a spec file is answered with the file, the entry, the field and what to do."""

import pytest
from kfgen.cli import main
from kfgen.entries import activations, spec
from spec_errors import CASES
from spec_errors.texts import COLUMN, act, op, row, weight


@pytest.mark.parametrize("case", CASES)
def test_message(tmp_path, case, capsys):
    text, where, field, problem, fix = CASES[case]
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(spec.SpecError) as caught:
        spec.load([path])
    first, _, second = str(caught.value).partition("\n  fix: ")
    assert first.startswith(f"{path}: [{where}] {field}: ")
    assert problem in first and fix in second
    assert main(["list", "--spec", str(path)]) == 1
    assert str(caught.value) in capsys.readouterr().err


def test_no_fix_is_in_kf_own_files(tmp_path):
    """A user cannot exclude an activation from an op of kf."""
    path = tmp_path / "mine.toml"
    path.write_text(act(scalars="{ alpha = 1 }", expr='"alpha * x"'))
    with pytest.raises(spec.SpecError) as caught:
        spec.load([path])
    assert str(caught.value).endswith("\n  fix: choose a longer name")


@pytest.mark.parametrize("count, word", [(24, "forward: x0, x1, "), (12, "backward: x0, ")])
def test_too_many_tensors(tmp_path, capsys, count, word):
    path, names = tmp_path / "mine.toml", [f"x{i}" for i in range(count)]
    path.write_text(
        row(
            operands="{" + ", ".join(f'{n} = "elem"' for n in names) + "}",
            expr=f'"{" + ".join(names)} + sum(x0)"',
        )
    )
    assert main(["list", "--spec", str(path)]) == 1
    message = capsys.readouterr().err
    assert (
        f"[op.share] operands: make 25 tensors of the {word}" in message
        and "fix: at most 24 are possible" in message
    )


@pytest.mark.parametrize(
    "count, grads, message",
    [
        (17, None, "makes 17 reductions in one pass over the row of the forward"),
        (
            16,
            '{ x = "dout * (' + " + ".join(f"sum(dout * x * {i})" for i in range(2, 20)) + ')" }',
            "makes 18 reductions in one pass over the row of the backward",
        ),
    ],
)
def test_too_many_reductions(tmp_path, capsys, count, grads, message):
    """A pass has at most as many reductions as core/rows/reduce.cuh encodes. Reductions of another
    pass do not count.
    """
    path, sums = tmp_path / "mine.toml", " + ".join(f"max(x * {i})" for i in range(2, count + 2))
    path.write_text(row(expr=f'"{sums}"', grads=grads))
    assert main(["list", "--spec", str(path)]) == 1
    assert (
        f"{path}: [op.share] expr: {message}\n  fix: at most 16 are possible: make two ops of it"
        in capsys.readouterr().err
    )
    sums = " + ".join(f"max(x * {i})" for i in range(2, 18))
    path.write_text(
        row(operands='{ x = { kind = "elem", grad = false } }', expr=f'"t = {sums}; sum(x * t)"')
    )
    assert main(["list", "--spec", str(path)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "x, saved, message",
    [
        (
            "elem",
            None,
            "the gradient for `w` needs a sum over the row, for which it would wait\n"
            "  fix: save that sum in the forward",
        ),
        (
            '{ kind = "elem", grad = false }',
            '{ s = "sum(x)" }',
            'has a gradient for a "group" and a backward that reduces nothing over the row\n'
            "  fix: add grad = false",
        ),
    ],
)
def test_gradients_of_groups(tmp_path, capsys, x, saved, message):
    """They are added up before the passes over a row, which all threads of the row wait for."""
    path, x = tmp_path / "mine.toml", x if x[0] == "{" else f'"{x}"'
    path.write_text(
        row(
            operands=f'{{ x = {x}, w = "group" }}',
            saved=saved,
            expr=f'"x * w / {"s" if saved else "sum(x)"}"',
        )
    )
    assert main(["list", "--spec", str(path)]) == 1
    assert f"{path}: [op.share] expr: {message}" in capsys.readouterr().err
    path.write_text(
        row(operands='{ x = "elem", w = "group" }', saved='{ s = "sum(x)" }', expr='"x * w / s"')
    )
    assert main(["list", "--spec", str(path)]) == 0, capsys.readouterr().err


def test_pick_of_what_may_be_overwritten(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    for text, status in (("x - pick(x, label)", 1), ("x - pick(x, label) / sum(x)", 0)):
        path.write_text(
            row(
                operands=f'{{ x = {{ kind = "elem", grad = false }}, label = {COLUMN} }}',
                expr=f'"{text}"',
            )
        )
        assert main(["list", "--spec", str(path)]) == status
    problem = (
        "stores elements and picks one of a tensor that they may overwrite, with no reduction "
        "between\n  fix: make two ops of it"
    )
    assert f"{path}: [op.share] expr: {problem}" in capsys.readouterr().err


def test_good_entries_load(tmp_path):
    path = tmp_path / "mine.toml"
    second = weight(
        '{ kind = "row", dtype = "U", absent = -0.5 }',
        types='"weights"',
        saved='{ s = "sum(x)" }',
        grads='{ w = "dout * x / s" }',
    )
    path.write_text(act() + op() + second)
    loaded = spec.load([path])
    assert loaded.ops["share"].operands[1].absent == -0.5
    assert (
        2**30 <= loaded.activations["twice"].id < 2**31 - 1
        and len(loaded.ops["plus_{act}"].activations) == 20
    )


def test_ids(tmp_path, monkeypatch):
    """A user's ids depend on the names of file and activation, not on the folder. Equal ids are an
    error that names both activations.
    """
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for path in (tmp_path / "mine.toml", folder / "mine.toml", tmp_path / "other.toml"):
        path.write_text(act())
    first, moved, other = (
        spec.load([p]).activations["twice"].id
        for p in (tmp_path / "mine.toml", folder / "mine.toml", tmp_path / "other.toml")
    )
    assert first == moved != other
    assert sorted(a.id for a in spec.load().activations.values()) == list(
        range(len(spec.load().activations))
    )
    monkeypatch.setattr(activations, "own_id", lambda stem, name: 2**30 + 5)
    (tmp_path / "mine.toml").write_text(act() + act("thrice"))
    with pytest.raises(
        spec.SpecError,
        match=r"\[activation.thrice\] name: gives the id \d+, which is already twice's\n"
        r"  fix: rename one of the two",
    ):
        spec.load([tmp_path / "mine.toml"])


def test_ids_of_kf(tmp_path, monkeypatch):
    """Errors in the ids of built-in activations."""
    for ids, message in (
        ((None, 1), "id: is missing"),
        ((1, 1), "id: 1 is already twice's"),
        ((1, 1024), "id: 1024 is not one of kf's own"),
        (("true", 1), "id: is True"),
    ):
        (tmp_path / "own.toml").write_text(
            "".join(act(name, id=i) for name, i in zip(("twice", "thrice"), ids))
        )
        monkeypatch.setattr(spec, "builtin_files", lambda: [tmp_path / "own.toml"])
        with pytest.raises(spec.SpecError, match=message):
            spec.load()


def test_missing_file(tmp_path, capsys):
    assert main(["list", "--spec", str(tmp_path / "none.toml")]) == 1
    assert "none.toml: [file] path: No such file" in capsys.readouterr().err


def test_across_files(tmp_path):
    """The second file's entries are checked against the first one's."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(act())
    second.write_text(act())
    with pytest.raises(spec.SpecError, match="already defined in .*first.toml"):
        spec.load([first, second])


@pytest.mark.parametrize(
    ("text", "name", "others"),
    [
        (
            op("plus", expr='"a + b"', ref='"a + b"') + op("plus_{act}"),
            "kf/ops/plus",
            ("op `plus`", "op `plus_{act}`"),
        ),
        (
            op("add_relu", expr='"a + b"', ref='"a + b"'),
            "kf_add_relu_f32",
            ("`add_{act}` with activation `relu`", "op `add_relu`"),
        ),
        (
            op("add_bwd", expr='"a + b"', ref='"a + b"'),
            "kf_add_bwd_f32",
            ("`add_{act}` with activation `none`, backward", "op `add_bwd`"),
        ),
        (act("gelu_bwd"), "kf_gelu_bwd", ("activation `gelu`", "activation `gelu_bwd`")),
        (act("relu_double"), "kf_relu_double", ("activation `relu`", "activation `relu_double`")),
        (
            act("add_f64"),
            "kf_add_f64",
            ("activation `add_f64`", "op `add_{act}` with activation `none`"),
        ),
        (act("check_abi"), "kf_check_abi", ("kf's core", "activation `check_abi`")),
        (act("f16"), "kf_f16", ("kf's core", "activation `f16`")),
        (
            op("activations", expr='"a + b"', ref='"a + b"'),
            "kf/ops/activations",
            ("kf itself", "op `activations`"),
        ),
    ],
)
def test_name_clashes(tmp_path, text, name, others, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for command in ("check", "list"):
        assert main([command, "--spec", str(path)]) == 1
        message = capsys.readouterr().err
        assert (
            f"{name}: made from" in message
            and all(o in message for o in others)
            and "rename" in message
        )


@pytest.mark.parametrize("stem", ["kf", "core", "ops", "kf_launchers", "kf_my_launchers"])
def test_spec_file_that_would_hide_kf_own(tmp_path, stem, capsys):
    path = tmp_path / f"{stem}.toml"
    path.write_text(act())
    assert main(["render", "--spec", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "rename the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, near",
    [
        (["--ops", "addd"], "add"),
        (["--activations", "reluu"], "relu"),
        (["--dtypes", "f33"], "f32"),
    ],
)
def test_unknown_selection(arguments, near, capsys):
    assert main(["list", *arguments]) == 1
    message = capsys.readouterr().err
    found = f"{arguments[0]}: there is no `{arguments[1]}`; did you mean `{near}`? "
    assert found in message and "{" not in message and len(message) < 400


def test_ops_are_listed_not_printed_in_errors(capsys):
    assert main(["list", "--ops", "nosuch"]) == 1
    message = capsys.readouterr().err
    assert message.endswith("--ops: there is no `nosuch`; `kfgen list --ops` shows all\n")
    assert main(["list", "--ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 80 and "layer_norm: act((x - mean) * rstd" in "\n".join(lines)
