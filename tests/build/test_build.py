# SPDX-License-Identifier: Apache-2.0
"""The ways in which users get the headers: make install, make demo's fallbacks, Meson alone and as a subproject."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESON = shutil.which("meson", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
needs_meson = pytest.mark.skipif(not MESON, reason="no meson")

PROGRAM = """
#include <kf/kf.h>
#include <stdio.h>
int main(void)
{
    const float a[] = {1, -2, 3}, b[] = {1, 1, -5};
    float out[3] = {9, 9, 9};
    if (kf_cpu_add_relu_f32(a, b, out, 3) != KF_SUCCESS) return 1;
    printf("%g %g %g\\n", (double)out[0], (double)out[1], (double)out[2]);
    return 0;
}
"""


def run(*command, cwd=None, fails=False, **env):
    environment = {**os.environ, **env}
    for inherited in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of the `make test` we may be running under
        environment.pop(inherited, None)
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, env=environment)
    assert (done.returncode != 0) == fails, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path):
    """A copy that a test may edit and build in; as a clone has it, without anything generated. Its name has a blank."""
    copy = tmp_path / "a clone"
    for part in ("gen", "include", "templates"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("Makefile", "meson.build", "meson_options.txt", "requirements.txt"):
        shutil.copy(ROOT / part, copy / part)
    return copy


def make(checkout, *arguments, **kwargs):
    return run("make", *arguments, f"PYTHON={sys.executable}", cwd=checkout, **kwargs)


@pytest.mark.parametrize("compiler", ["gcc -std=c11", "g++ -std=c++17"])
def test_install(checkout, tmp_path, compiler):
    prefix = tmp_path / "prefix"
    make(checkout, "install", f"PREFIX={prefix}")
    assert not (checkout / ".venv").exists(), "a Python with jinja2 was there"
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    language = "c" if "gcc" in compiler else "c++"
    run(*compiler.split(), "-O2", "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", "-x", language, source, "-o", tmp_path / "program", "-lm")
    assert run(tmp_path / "program") == "2 0 0\n"


def test_destdir(checkout, tmp_path):
    make(checkout, "install", "PREFIX=/usr", f"DESTDIR={tmp_path / 'root'}")
    for header in ("kf.h", "kf.cuh", "core/config.h", "ops/add.cuh"):
        assert (tmp_path / "root/usr/include/kf" / header).is_file()


def test_what_is_missing_is_named_in_one_line(checkout):
    lines = [x for x in make(checkout, "cc", "CC=no-such-gcc", fails=True).splitlines() if x.startswith("kf:")]
    assert lines == ["kf: no-such-gcc is missing: apt install gcc libc6-dev"]
    old = checkout / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    said = run("make", "headers", "PYTHON=./old-python", cwd=checkout, fails=True)
    lines = [x for x in said.splitlines() if x.startswith("kf:")]
    assert lines == ["kf: Python 3.9.2 is too old, kf needs 3.11: apt install python3.11 python3.11-venv"]


CONSUMER = """
project('consumer', 'c', default_options: ['warning_level=3', 'werror=true'])
executable('program', 'program.c', dependencies: dependency('kf'))
executable('other', 'other.c', dependencies: dependency('kf'))
"""
OTHER = """
#include <kf/ops/bias.h>
int main(void) { return kf_cpu_bias_f32(NULL, NULL, NULL, 0, 0); }
"""


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@needs_meson
def test_meson_install(checkout, tmp_path):
    run(MESON, "setup", "build", f"--prefix={tmp_path / 'prefix'}", "-Dops=add,bias", "-Ddtypes=f32", "-Dactivations=relu", "-Dtests=disabled",
        cwd=checkout)
    run("ninja", "-C", "build", cwd=checkout)
    run(MESON, "install", "-C", "build", cwd=checkout)
    include = tmp_path / "prefix/include"
    assert (include / "kf/core/config.h").is_file()
    assert {p.name for p in (include / "kf/ops").glob("*.h")} == {"activations.h", "add.h", "bias.h"}
    (tmp_path / "program.c").write_text(PROGRAM)
    run("gcc", f"-I{include}", tmp_path / "program.c", "-o", tmp_path / "program", "-lm")
    assert run(tmp_path / "program") == "2 0 0\n"


@needs_meson
def test_meson_subproject_follows_edits(checkout, tmp_path):
    """A consumer's objects are compiled again after an edit of a template, a spec or a core header, in the same run of
    ninja; those that do not include what changed are not."""
    project = tmp_path / "consumer"
    (project / "subprojects").mkdir(parents=True)
    kf = project / "subprojects" / "kf"
    shutil.move(checkout, kf)
    (project / "subprojects/kf.wrap").write_text("[wrap-file]\ndirectory = kf\n[provide]\nkf = kf_dep\n")
    (project / "meson.build").write_text(CONSUMER)
    (project / "program.c").write_text(PROGRAM)
    (project / "other.c").write_text(OTHER)
    run(MESON, "setup", "build", "-Dkf:ops=add,bias", "-Dkf:dtypes=f32", cwd=project)

    def ninja():
        return run("ninja", "-v", "-C", "build", cwd=project)

    ninja()
    assert run(project / "build/program") == "2 0 0\n"
    assert "no work to do" in ninja()

    edit(kf / "include/kf/core/map.h", "#endif", "#endif\n/* edited */")
    assert "program.c.o" in ninja()

    (kf / "templates/macros.j2").touch()  # the same headers: restat ends it there
    said = ninja()
    assert "kfgen" in said and "program.c.o" not in said

    spec = kf / "gen/spec/map.toml"
    edit(spec, 'expr = "act(a + b)"', 'expr = "act(a - b)"')
    assert "program.c.o" in ninja()
    assert run(project / "build/program") == "0 0 8\n"
    assert "no work to do" in ninja()
    # A file more: another op.
    run(MESON, "configure", "build", "-Dkf:ops=add,bias,mul", cwd=project)
    ninja()
    assert (project / "build/subprojects/kf/include/kf/ops/mul.h").is_file()
