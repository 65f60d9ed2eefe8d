# SPDX-License-Identifier: Apache-2.0
"""Rendering: repeatable bytes, files rewritten only if their text changes, readable text."""

import os
import pathlib
import re
import subprocess
import sys

import cases
import kflib
import pytest
from kfgen import families
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.paths import TEMPLATES
from kfgen.render import environment, layout, render
from kfgen.render.render import PARTS, ROOT, Renderer, Selection, parts

GOLDEN = ROOT / "tests/golden"
# Suffixes of files that are parts of a header.
ENDS = tuple(f".{part}.{ext}" for ext, found in PARTS.items() for part in found)
FEW = ("add", "act_dropout", "layer_norm", "sum")  # one op per family


@pytest.fixture(scope="module")
def files():
    """{path: text} of all generated files of kf."""
    return kflib.files()


def kfgen(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-B", str(ROOT / "gen/bin/kfgen"), *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    ).stdout


def tree(directory):
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in pathlib.Path(directory).rglob("*")
        if p.is_file()
    }


@pytest.mark.check
def test_same_bytes_every_time(tmp_path, files):
    """Output must not depend on Python's hash seeds, nor on which other ops are rendered. Level 1
    renders a few ops, level 2 all."""
    few = ("--ops", ",".join(FEW)) if cases.LEVEL == 1 else ()
    for seed in ("0", "1234"):
        kfgen("render", "--out", tmp_path / seed, *few, PYTHONHASHSEED=seed)
    found = tree(tmp_path / "0")
    assert found == tree(tmp_path / "1234")
    same = {p for p in found if p.startswith("kf/ops/")} if few else set(files)
    assert len(same) >= 4 * len(FEW) and all(found[p] == files[p].encode() for p in same)


def test_touches_only_what_changed(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["render", "--out", str(out), "--ops", "add,mul", "--dtypes", "f32"]
    assert main(arguments) == 0
    for p in out.rglob("*"):
        os.utime(p, (1, 1))
    (out / "kf/ops/add.h").write_text("something else\n")
    assert main(arguments) == 0
    assert "1 changed" in capsys.readouterr().out
    assert [p.name for p in out.rglob("*") if p.is_file() and p.stat().st_mtime != 1] == ["add.h"]
    assert not list(out.rglob("*.tmp"))


def test_an_edit_of_one_template_changes_its_files_alone(tmp_path, monkeypatch, files):
    copy = tmp_path / "templates"
    for p in TEMPLATES.rglob("*.j2"):
        to = copy / p.relative_to(TEMPLATES)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(p.read_bytes())
    monkeypatch.setattr(environment, "TEMPLATES", copy)
    run = copy / "elementwise/run.h.j2"
    run.write_text("/* edited */\n" + run.read_text())
    again = {
        p: t
        for p, t in Renderer(Selection(spec.load(), FEW)).render().items()
        if p.startswith("kf/ops/")
    }
    changed = {p for p, t in again.items() if t != files[p]}
    assert (
        changed
        == {p for p in again if "elementwise/run.h.j2" in files[p].split("#ifndef")[0]}
        == {"kf/ops/add.kernels.h", "kf/ops/act_dropout.kernels.h"}
    )


def test_depfile(tmp_path):
    """The depfile must list all templates and sources, or a build misses a change. The ops use
    every family and every template."""
    ops = ",".join(
        [
            "add",
            "bias",
            "layer_norm",
            "batch_norm",
            "batch_norm_train",
            "sum",
            "matmul_nn",
            "softmax",
            *cases.merged("FUNCTIONS"),
            # Updates of lists, with and without sums over each tensor, and sums of lists.
            *{str([s["does"] for s in f["steps"]]): f["op"] for f in kflib.of_lists()}.values(),
        ]
    )
    kfgen(
        "render",
        "--out",
        tmp_path / "out",
        "--depfile",
        tmp_path / "deps.d",
        "--ops",
        ops,
        "--dtypes",
        "f32,bf16",
    )
    target, _, rest = (tmp_path / "deps.d").read_text().partition(": ")
    assert pathlib.Path(target).is_file()
    listed = {pathlib.Path(p) for p in rest.split()}
    folders = [TEMPLATES / name for name in ("", "op", *families.FAMILIES)]
    used = {p for folder in folders for p in folder.glob("*.j2")}
    own = {ROOT / "gen/kfgen/model/kernel.py", ROOT / "gen/kfgen/families/elementwise/family.py"}
    entries = set(spec.builtin_files())
    assert listed >= used | own | entries | {ROOT / "include/kf/core/version.h"}


def test_depfile_names_the_users_files(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[op."twice"]\nbrief = "2 x"\noperands = { x = "elem" }\nexpr = "2 * x"\nref = "2 * x"\n'
    )
    kfgen("render", "--spec", mine, "--out", tmp_path / "out", "--depfile", tmp_path / "deps.d")
    assert str(mine) in (tmp_path / "deps.d").read_text().split()


def test_text(files):
    """No tabs, no trailing blanks, one newline at the end; CUDA's launchers are one line each.

    test_generated_text.py checks indentation, blank lines and columns.
    """
    for path in files:
        looks_well(path, files[path])


def looks_well(path, text):
    assert (
        "\t" not in text
        and not re.search(r"[ \t]+$", text, re.M)
        and text.endswith("\n")
        and not text.endswith("\n\n")
    )
    assert "\n\n\n" not in text
    for line in text.split("\n"):
        assert not layout.one_line(line) or line.endswith("}"), line
    head = text.split("#ifndef")[0]
    assert head.startswith(("// SPDX-License-Identifier", "/* SPDX-License-Identifier"))
    assert re.search(rf"{re.escape(path)}: generated by kfgen \d+\.\d+\.\d+\s", head)
    assert re.search(r"^(//|  ) Entries: [\w./]+\.toml", head, re.M)
    assert re.search(r"^(//|  ) Templates: [\w./]+\.j2", head, re.M)
    assert "Do not" in head and not re.search(r"\b20\d\d-\d\d", head) and render.DIGEST not in text


def test_statements_under_a_guard_have_braces(files):
    """Guarded statements need braces: otherwise gcc -Wall (-Wmisleading-indentation) rereads the
    file from its first line for each. kf.h took three times as long to compile, kf_single.h forty
    times."""
    for path in (p for p in files if p.startswith("kf/ops/") and p.endswith(".h")):
        lines = [line.strip() for line in files[path].split("\n")]
        for i, line in enumerate(lines):
            if re.match(r"(if|else if|for|while) \(", line):
                end = next(
                    k for k in range(i, len(lines)) if "{" in lines[k] or lines[k].endswith(";")
                )
                assert "{" in lines[end] or lines[end + 1].startswith(("}", "else")), (
                    f"{path}: {' '.join(lines[i : end + 1])}"
                )


def test_banner_follows_the_text(files):
    digest = re.compile(r"\(([0-9a-f]{12})\)")
    found = {path: digest.search(text)[1] for path, text in files.items()}
    assert len(set(found.values())) == len(found)


def test_every_guard_is_its_files(files):
    guarded = {path: text for path, text in files.items() if not path.endswith((".cu", *ENDS))}
    guards = [re.search(r"^#ifndef (\w+)", text, re.M)[1] for text in guarded.values()]
    assert len(set(guards)) == len(guards)
    assert all(g == re.sub(r"[^A-Z0-9]", "_", p.upper()) for p, g in zip(guarded, guards))


def test_parts_are_included_by_their_header_alone(files):
    of = {
        part: path
        for path in files
        if path.endswith((".h", ".cuh"))
        for part in parts(path)[1:]
        if part in files
    }
    assert set(of) == {p for p in files if p.endswith(ENDS)} and len(of) > 50 * len(ENDS)
    found = [
        (part, path)
        for path, text in files.items()
        for part in re.findall(r'#include "(kf/ops/\w+\.\w+\.\w+)"', text)
    ]
    assert sorted(found) == sorted(of.items())


# {op of golden.toml: dtype with the shortest text}. Of the first op all files are compared, with
# contracts and launchers; of the others those with kernels.
GOLDENS = {"twice": "f32", "row_mean": "f32", "largest": "f16", "product": "f64"}
GOLDEN_LINES = 120  # short enough to review as a diff


@pytest.mark.parametrize("stem", GOLDENS)
def test_golden(stem):
    """Generated code must equal the last reviewed version. KF_UPDATE_GOLDEN=1 writes a new one."""
    dtype = GOLDENS[stem]
    entries = spec.load([GOLDEN / "golden.toml"])
    files = Renderer(Selection(entries, [stem], ["none"], [dtype]), "golden").render()
    for ext, kernels in ((".cuh", "device.cuh"), (".h", "kernels.h")):
        compared = [
            part
            for part in parts(f"kf/user/golden/{stem}{ext}")
            if stem == "twice" or part.endswith(kernels)
        ]
        text = re.sub(r"\([0-9a-f]{12}\)", "(...)", "".join(files[part] for part in compared))
        assert 0 < text.count("\n") <= GOLDEN_LINES
        # Not a header's suffix: formatters ignore the file.
        path = GOLDEN / f"{stem}_{dtype}{ext}.golden"
        if os.environ.get("KF_UPDATE_GOLDEN") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; KF_UPDATE_GOLDEN=1 writes it"
        assert text == path.read_text(), (
            f"{path.name} differs; if it should, KF_UPDATE_GOLDEN=1 writes it anew"
        )
