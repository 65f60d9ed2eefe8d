# SPDX-License-Identifier: Apache-2.0
"""The command line: what it says where something is missing or nothing is left to do, in one line
and not as a traceback; and that a second `make headers` does nothing unless it must.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import kflib
import pytest
from kfgen.cli import main
from kfgen.entries import spec as specs
from kfgen.render.render import Selection

KFGEN = kflib.ROOT / "gen/bin/kfgen"
OWN = """
[activation.twice]
brief = "2 x"
expr = "2 * x"
ref = "2 * x"
[op."plus_{act}"]
brief = "act(a + b)"
operands = { a = "elem", b = "elem" }
expr = "act(a + b)"
ref = "act(a + b)"
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


def output_of(capsys, *arguments):
    """Runs a failing command; checks that it prints one line of the usual form and returns it."""
    assert main([str(a) for a in arguments]) == 1
    text = capsys.readouterr().err
    assert text.startswith("kfgen: error: ") and "Traceback" not in text
    return text.removeprefix("kfgen: error: ").strip()


@pytest.mark.parametrize(
    "command",
    [
        ("render", "--out"),
        ("single", "--out"),
        ("install", "--prefix"),
        ("docs", "--out"),
        ("package", "--out"),
    ],
)
def test_what_cannot_be_written(command, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    text = output_of(
        capsys,
        *command,
        tmp_path / "file/below",
        *(() if command[0] == "package" else ("--ops", "add", "--dtypes", "f32")),
    )
    assert (
        text.startswith(f"{tmp_path}/file/below")
        and "Not a directory" in text
        and len(text.splitlines()) == 1
    )


def test_a_directory_of_somebody_elses(tmp_path, capsys, monkeypatch):
    """A directory without write permission, as /usr/local for ordinary users."""

    def refuse(self, *args, **more):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    text = output_of(
        capsys, "install", "--prefix", tmp_path / "local", "--ops", "add", "--dtypes", "f32"
    )
    assert "Permission denied" in text and "$HOME/.local" in text and len(text.splitlines()) == 1


# ---- Python and jinja2 ---------------------------------------------------------------------------


def run(kfgen, *arguments, python=sys.executable, **more):
    return subprocess.run(
        [python, *arguments[:0], kfgen, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | more,
    )


@pytest.fixture
def checkout(tmp_path):
    """A clone of the repository, where Python finds no jinja2."""
    for part in ("gen", "templates", "include/kf/core"):
        shutil.copytree(
            kflib.ROOT / part,
            tmp_path / "clone" / part,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    (tmp_path / "nothing/jinja2").mkdir(parents=True)
    (tmp_path / "nothing/jinja2/__init__.py").write_text(
        "raise ModuleNotFoundError('no jinja2', name='jinja2')"
    )
    return tmp_path / "clone"


def test_without_jinja2(checkout):
    """One line; and where `make` has put it into .venv, that is used."""
    kfgen, hidden = checkout / "gen/bin/kfgen", {"PYTHONPATH": str(checkout.parent / "nothing")}
    done = run(kfgen, "list", "--ops", "add", **hidden)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "kfgen: needs jinja2" in done.stderr and "pip install jinja2" in done.stderr
    venv = checkout / ".venv/bin/python"
    venv.parent.mkdir(parents=True)
    venv.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    venv.chmod(0o755)
    done = run(kfgen, "list", "--ops", "add", "--dtypes", "f32", "--activations", "none", **hidden)
    assert done.returncode == 0 and "kf_add_f32(" in done.stdout, done.stderr
    venv.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # one that has none either
    done = run(kfgen, "list", "--ops", "add", **hidden)
    assert (
        done.returncode == 1
        and "kfgen: needs jinja2" in done.stderr
        and len(done.stderr.splitlines()) == 1
    ), done.stderr


@pytest.mark.check
def test_check_without_numpy(checkout):
    """It says so; and a .venv that has it is used, where there is one."""
    kfgen, hidden = checkout / "gen/bin/kfgen", {"PYTHONPATH": str(checkout.parent / "less")}
    (checkout.parent / "less/numpy").mkdir(parents=True)
    (checkout.parent / "less/numpy/__init__.py").write_text(
        "raise ModuleNotFoundError('no numpy', name='numpy')"
    )
    venv = checkout / ".venv/bin/python"
    venv.parent.mkdir(parents=True)
    venv.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    venv.chmod(0o755)
    done = run(kfgen, "check", **hidden)  # one with jinja2 alone
    assert (
        done.returncode == 1
        and done.stderr.strip() == "kfgen: error: check needs numpy: pip install numpy scipy"
    ), done.stderr
    for name in ("jinja2", "numpy", "scipy"):
        (checkout / ".venv/lib/python3.11/site-packages" / name).mkdir(parents=True)
    done = run(kfgen, "check", **hidden)
    assert done.returncode == 0, done.stderr


def test_an_old_python(checkout):
    """An old Python gets the message of make."""
    text = (checkout / "gen/bin/kfgen").read_text()
    (checkout / "gen/bin/old").write_text(
        text.replace("import sys\n", "import sys\nsys.version_info = (3, 10, 2)\n")
    )
    done = run(checkout / "gen/bin/old", "list")
    assert (
        done.returncode == 1
        and done.stderr.strip()
        == "kfgen: needs Python 3.11 or newer, this is 3.10.2: apt install python3.11"
    ), done.stderr


# ---- what is chosen ------------------------------------------------------------------------------


def test_own_entries_are_always_kept(own):
    """--ops and --activations choose from what is installed."""
    chosen = Selection(specs.load([own]), ["add"], ["relu"], ["f32"])
    assert [op.pattern for op in chosen.ops] == ["add_{act}", "plus_{act}"]
    assert [a.name for a in chosen.activations] == ["none", "relu", "twice"]


def test_nothing_left_is_an_error(own, tmp_path, capsys):
    for command in (("list",), ("render", "--out", tmp_path / "out")):
        text = output_of(capsys, *command, "--ops", "softmax", "--dtypes", "i32")
        assert "no function matches --ops softmax, --dtypes i32" in text
    own.write_text(
        OWN[: OWN.index("[op.")].replace("[activation.twice]", "[activation.twice]\nints = false")
    )
    text = output_of(capsys, "render", "--out", tmp_path / "out", "--spec", own, "--ops", "softmax")
    assert "no function of" in text and "mine.toml" in text and not (tmp_path / "out").exists()


def test_a_function_is_not_an_op(capsys):
    text = output_of(capsys, "list", "--ops", "silu_mul")
    assert (
        "`silu_mul` is the op act_mul with activation silu: --ops act_mul --activations silu"
        in text
    )


def test_explain_prints_all_of_it(capsys):
    """explain prints the whole formula that a header's comment cuts."""
    assert main(["explain", "kf_batch_norm_train_bf16"]) == 0
    text = capsys.readouterr().out
    assert "kfgen explain prints the rest" not in text and text.count("running_var_out = ") >= 1


def test_the_files_that_a_build_will_have(tmp_path, capsys):
    """--list prints outputs and inputs for build systems, and writes nothing."""
    arguments = ["render", "--out", str(tmp_path / "out"), "--ops", "add", "--dtypes", "f32"]
    assert main([*arguments, "--list"]) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert not (tmp_path / "out").exists()
    assert main(arguments) == 0
    written = sorted(
        p.relative_to(tmp_path / "out").as_posix()
        for p in (tmp_path / "out").rglob("*")
        if p.is_file()
    )
    assert lines[: len(written)] == written
    assert {pathlib.Path(p).name for p in lines[len(written) :]} >= {
        "ops.toml",
        "cli.py",
        "render.py",
    }


# ---- again ---------------------------------------------------------------------------------------


@pytest.fixture
def stamped(checkout, tmp_path, monkeypatch):
    """Renders part of a clone with a stamp; returns the output."""

    def render(*more):
        done = run(
            checkout / "gen/bin/kfgen",
            "render",
            "--out",
            str(tmp_path / "out"),
            "--stamp",
            str(tmp_path / "stamp"),
            *(more or ("--ops", "add", "--dtypes", "f32")),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return render


def test_again_is_for_nothing(stamped, tmp_path):
    assert "changed" in stamped() and "up to date" in stamped()
    begin = time.process_time(), os.times().children_user + os.times().children_system
    assert "up to date" in stamped()
    assert (
        os.times().children_user + os.times().children_system - begin[1] < 0.5 * 2
    )  # on a machine that is busy


@pytest.mark.check
@pytest.mark.parametrize(
    "what",
    [
        "generated",
        "deleted",
        "template",
        "python",
        "entry",
        "options",
        "output",
        "version",
        "stamp",
    ],
)
def test_again_where_it_must(what, stamped, checkout, tmp_path):
    """Whatever a rendering is made from or has made has another content."""
    stamped()
    header = tmp_path / "out/kf/ops/add.h"
    before = header.read_text()
    edited = {
        "template": "templates/elementwise/kernel.h.j2",
        "python": "gen/kfgen/model/names.py",
        "entry": "gen/kfgen/families/elementwise/ops.toml",
        "version": "include/kf/core/version.h",
    }
    if what in edited:
        (checkout / edited[what]).write_text(
            (checkout / edited[what]).read_text().replace("act(a + b)", "act(b + a)") + "\n"
        )
    elif what == "generated":
        when = header.stat()
        header.write_text(before.replace("return", "RETURN", 1))  # same length
        os.utime(header, ns=(when.st_atime_ns, when.st_mtime_ns + 1000))
    elif what == "deleted":
        header.unlink()
    elif what == "stamp":
        (tmp_path / "stamp").write_text("{")
    if what == "options":
        assert (
            "changed" in stamped("--ops", "add", "--dtypes", "f16") and header.read_text() != before
        )
    elif what == "output":
        shutil.move(tmp_path / "out", tmp_path / "moved")
        assert "changed" in stamped() and header.read_text() == before
    else:
        assert "changed" in stamped()
        assert (header.read_text() == before) == (what not in ("entry",))
    assert "up to date" in stamped(
        *(("--ops", "add", "--dtypes", "f16") if what == "options" else ())
    )


def test_touched_is_not_changed(stamped, checkout, tmp_path):
    stamped()
    for path in (
        tmp_path / "out/kf/ops/add.h",
        checkout / "gen/kfgen/families/elementwise/ops.toml",
    ):
        path.touch()
    assert "up to date" in stamped()
