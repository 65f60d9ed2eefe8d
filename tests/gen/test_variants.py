# SPDX-License-Identifier: Apache-2.0
"""Tests entries whose functions exist in several variants and layouts."""

import subprocess

import launch_steps
import pytest
import user_ops
from kfgen import families
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.interfaces import manifest, packed
from kfgen.model import names
from kfgen.render.render import Selection
from spec_errors.type_variables import product

LAYOUTS = product(
    "own_{layout}_{act}",
    layouts='["", "nn"]',
    saved='{ pre = "acc" }',
    expr='"act(pre)"',
    ref='"act(x @ (weight if weight.shape == (0, 0) else weight.T))"',
)


def test_layouts_of_an_entry(tmp_path, capsys):
    """Each layout is an op, in whose name {layout} is replaced."""
    path = tmp_path / "mine.toml"
    path.write_text(LAYOUTS)
    ops = [op for op in spec.load([path]).ops.values() if not op.builtin]
    assert [(op.pattern, op.layout, op.entry) for op in ops] == [
        ("own_{act}", "", "own_{layout}_{act}"),
        ("own_nn_{act}", "nn", "own_{layout}_{act}"),
    ]
    assert main(["explain", "--spec", str(path), "kf_own_nn_relu_bwd_bf16_f32"]) == 0
    found = capsys.readouterr().out
    assert '[op."own_{layout}_{act}"]' in found and "dx = dacc . weight^T" in found


VARIANTS = (
    "[op.own]\n"
    'variants = ["unordered", "device", "stochastic"]\n'
    'brief = "a + b"\n'
    'operands = { a = "elem", b = "row" }\n'
    'expr = "a + b"\n'
    'ref = "a + b"\n'
)


def test_variants_of_an_entry(tmp_path, monkeypatch):
    """Functions exist with each set of the entry's suffixes; only gradients are unordered."""
    monkeypatch.setattr(families.FAMILIES["elementwise"], "variants", names.VARIANTS, raising=False)
    path = tmp_path / "mine.toml"
    path.write_text(VARIANTS)
    made = manifest.build(Selection(spec.load([path]), ["own"], dtypes=["f32"]))
    found = {f["name"]: f for f in made["functions"]}
    forwards = ["", "device_", "stochastic_", "stochastic_device_"]
    assert set(found) == {
        f"kf_own_{word}{bwd}f32" for word in forwards for bwd in ("", "bwd_", "bwd_unordered_")
    }
    f = found["kf_own_stochastic_device_bwd_unordered_f32"]
    assert f["variant"] == ["stochastic", "device", "unordered"]
    assert f["forward"] == "kf_own_stochastic_device_f32"
    assert found[f["forward"]]["backward"] == "kf_own_stochastic_device_bwd_f32"
    assert f["workspace"] == f"{f['name']}_workspace_bytes"
    kernels = {launch_steps.kernels(f)[0] for f in found.values()}
    assert len({name.partition("<")[0] for name in kernels}) == len(found)
    assert {f["op"] for f in packed.functions(made) if f["variant"]} == set()


def test_variants_have_code_of_their_own(include, tmp_path, monkeypatch):
    """No two of them define one name, in C as C or as C++."""
    monkeypatch.setattr(families.FAMILIES["elementwise"], "variants", names.VARIANTS, raising=False)
    _, _, made = user_ops.load(VARIANTS, tmp_path)
    text = "#include <kf/mine.h>\n" + "".join(
        f"const void *const f{i} = (const void *){f['cpu_name']};\n" for i, f in enumerate(made)
    )
    assert len(made) == 12 * 4
    for name, compiler in (("all.c", "gcc"), ("all.cpp", "g++")):
        (tmp_path / name).write_text(text)
        options = ["-c", "-O0", "-Wall", "-Werror", *(f"-I{path}" for path in (*include, tmp_path))]
        subprocess.run([compiler, *options, name, "-o", "all.o"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    "other, name",
    [("own_device", "kf_own_device_f32"), ("own_stochastic", "kf_own_stochastic_f32")],
)
def test_a_variant_of_a_name_that_is_taken(tmp_path, monkeypatch, capsys, other, name):
    monkeypatch.setattr(families.FAMILIES["elementwise"], "variants", names.VARIANTS, raising=False)
    path = tmp_path / "mine.toml"
    path.write_text(VARIANTS + VARIANTS.replace("own", other).replace("variants", "# variants"))
    assert main(["list", "--spec", str(path)]) == 1
    message = capsys.readouterr().err
    assert f"{name}: made from op `own`" in message and f"op `{other}`" in message


def test_variants_that_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(
        families.FAMILIES["elementwise"], "variants", ("device", "unordered"), raising=False
    )
    path = tmp_path / "mine.toml"
    for change, problem in (
        (("stochastic", "varlen"), "variants: has 'varlen'"),
        ((', "stochastic"', ', "device"'), "variants: is ["),
        (('"device", "stochastic"', "1"), "variants: has 1"),
        ((', "device", "stochastic"', ""), ""),
    ):
        path.write_text(VARIANTS.replace(*change))
        if not problem:
            assert spec.load([path]).ops["own"].variants == ("unordered",)
            continue
        with pytest.raises(spec.SpecError) as caught:
            spec.load([path])
        assert problem in str(caught.value) and "device, unordered" in str(caught.value)
    without = VARIANTS.replace('"elem"', '{ kind = "elem", grad = false }')
    without = without.replace('"row"', '{ kind = "row", grad = false }')
    path.write_text(without.replace(', "device", "stochastic"', ""))
    with pytest.raises(spec.SpecError, match="has 'unordered', but the op has no gradient"):
        spec.load([path])
