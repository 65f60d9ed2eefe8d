# SPDX-License-Identifier: Apache-2.0
"""make install and uninstall, and the Makefile's messages about missing tools."""

import pathlib
import sys

import cases
import pytest
import ways

GCC = "gcc -O3 -march=native"


def compile_and_run(snippet, project, home, compiler="gcc -std=c11", source="program.c"):
    """Runs the page's command with the test's compiler, warnings and source."""
    line = ways.snippet(snippet, [(GCC, f"{compiler} -O2 {ways.WARNINGS}"), ("program.c", source)])
    ways.shell(line, project, home)
    assert ways.run(project / "program") == ways.OUTPUT


@pytest.mark.parametrize(
    "compiler", cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17"])
)
def test_install(home, tmp_path, compiler):
    compile_and_run(
        "compile",
        ways.consumer(tmp_path),
        home,
        compiler,
        "program.c" if "gcc" in compiler else "program.cpp",
    )


ON_TENSORS = """
#define KF_RUNTIME_IMPLEMENTATION
#define KF_RUNTIME_DTYPES (1 << KF_DTYPE_FLOAT32)
#include <kf/runtime/lt.h>
#include <kf/runtime/where.h>
#include <kf/runtime/clamp.h>
#include <stdio.h>
int main(void)
{
    float a[] = {1, -2, 3}, b[] = {1, 1, -5};
    const int64_t shape[] = {3};
    const kf_tensor_desc_t floats = {shape, NULL, 1, KF_DTYPE_FLOAT32, 0, 0};
    const kf_tensor_desc_t bytes = {shape, NULL, 1, KF_DTYPE_UINT8, 0, 0};
    const kf_memory_desc_t of_a = {a, sizeof a, 0}, of_b = {b, sizeof b, 0};
    kf_context_t *const ctx = kf_context_create(-1);
    kf_tensor_t *const x = kf_tensor_create_from_memory(ctx, &of_a, &floats);
    kf_tensor_t *const y = kf_tensor_create_from_memory(ctx, &of_b, &floats);
    kf_tensor_t *const out = kf_tensor_create(ctx, &floats);
    kf_tensor_t *const less = kf_tensor_create(ctx, &bytes);
    if (kf_fused_lt(ctx, x, y, less, NULL) != KF_SUCCESS) return 1;
    if (kf_fused_where(ctx, less, x, y, out, NULL) != KF_SUCCESS) return 2;
    const float *const v = (const float *)kf_tensor_data(out);
    const unsigned char *const l = (const unsigned char *)kf_tensor_data(less);
    printf("%d %d %d, %g %g %g\\n", l[0], l[1], l[2], (double)v[0], (double)v[1], (double)v[2]);
    if (kf_fused_clamp(ctx, x, out, 1, -1, NULL) != KF_ERROR_INVALID_VALUE) return 3;
    printf("%s\\n", kf_get_last_error_detail());
    return 0;
}
"""


@pytest.mark.check
def test_functions_on_tensors(home, tmp_path):
    """An installation has the headers of functions on tensors: no generator step."""
    project = ways.consumer(tmp_path, program__c=ON_TENSORS)
    command = ways.snippet("compile", [(GCC, f"gcc -std=gnu11 -O1 {ways.WARNINGS}")])
    ways.shell(command, project, home)
    assert ways.run(project / "program") == (
        "0 1 0, 1 -2 -5\nkf_cpu_clamp_f32: max_val is -1, expected min_val = 1 or more\n"
    )
    listed = (home / ".local/include/kf/runtime/all.h").read_text()
    assert '#include "kf/runtime/clamp.h"' in listed


@pytest.mark.level(2)
@ways.needs_nvcc
def test_install_cuda(home, tmp_path):
    ways.shell(
        ways.snippet("compile-cuda", [("-O3", ways.NVCC_WARNINGS)]), ways.consumer(tmp_path), home
    )
    assert ways.run(tmp_path / "program") == ways.CUDA_OUTPUT


def test_no_venv_where_python_has_jinja2(home, clone):
    assert (home / ".local/include/kf/kf.h").is_file() and not (clone / ".venv").exists()


def test_the_list_is_what_is_there(home):
    assert (home / ".local/share/kf/installed.txt").read_text().split() == sorted(
        ways.tree(home / ".local")
    )


@pytest.mark.level(2)
def test_destdir(clone, home, tmp_path):
    """DESTDIR must install the same files as PREFIX alone, with the same paths inside. /usr
    differs, because compilers treat /usr/include specially."""
    ways.run("make", "install", "PREFIX=/opt/kf", f"DESTDIR={tmp_path / 'root'}", cwd=clone)
    assert ways.tree(tmp_path / "root/opt/kf") == ways.tree(home / ".local")


@pytest.mark.level(2)
def test_usr(clone, tmp_path):
    """/usr/include as a system path would hide C++'s headers from each other: <cstdlib> would not
    compile."""
    ways.run("make", "install", "PREFIX=/usr", f"DESTDIR={tmp_path}", cwd=clone)
    assert "isystem" not in (tmp_path / "usr/share/pkgconfig/kf.pc").read_text()


def test_again_and_uninstall(clone, tmp_path):
    prefix = tmp_path / "prefix"
    install = ["make", "install", f"PREFIX={prefix}"]
    ways.run(*install, cwd=clone)
    first = {p: p.stat().st_mtime_ns for p in prefix.rglob("*") if p.is_file()}
    ways.run(*install, cwd=clone)
    assert {p: p.stat().st_mtime_ns for p in prefix.rglob("*") if p.is_file()} == first, (
        "what has not changed is not touched"
    )
    ways.run("kfgen", "install", "--prefix", prefix, "--ops", "add", "--dtypes", "f32")
    left = ways.tree(prefix)
    assert {
        pathlib.PurePath(p).name
        for p in left
        if p.startswith("include/kf/ops/") and p.endswith(".h")
    } == {"activations.h", *ways.headers("add")}
    assert b"f16" not in left["include/kf/ops/add.h"]

    ways.run(
        "kfgen",
        "render",
        "--spec",
        ways.ROOT / "examples/my_ops.toml",
        "--out",
        prefix / "include",
        "--ops",
        "add",
    )
    (prefix / "include/other.h").write_text("")
    ways.run("make", "uninstall", f"PREFIX={prefix}", cwd=clone)
    mine = {p for p in ways.tree(prefix) if p not in left}
    assert set(ways.tree(prefix)) == mine and {"include/other.h", "include/kf/my_ops.h"} <= mine
    assert not (prefix / "include/kf/core").exists() and not (prefix / "share/kf").exists()
    output = ways.run("make", "uninstall", f"PREFIX={prefix}", cwd=clone, fails=True)
    assert (
        f"kf: no kf is installed in {prefix}: share/kf/installed.txt is not there"
        in output.splitlines()
    )


def test_a_relative_prefix_in_a_destdir(clone, tmp_path):
    """kfgen resolves a relative prefix from its working directory. install and uninstall must mean
    the same folder."""
    ways.run("make", "install", "PREFIX=build/a b/own", f"DESTDIR={tmp_path}", cwd=clone)
    there = pathlib.Path(f"{tmp_path}{clone}/build/a b/own")
    assert (there / "include/kf/kf.h").is_file()
    ways.run("make", "uninstall", "PREFIX=build/a b/own", f"DESTDIR={tmp_path}", cwd=clone)
    assert not ways.tree(there)


def test_install_refuses_before_it_writes(tmp_path):
    output = ways.run("kfgen", "install", "--prefix", tmp_path / "p", "--ops", "adds", fails=True)
    assert "--ops: there is no `adds`" in output and not (tmp_path / "p").exists()
    output = ways.run(
        "kfgen",
        "install",
        "--prefix",
        tmp_path / "p",
        "--spec",
        ways.ROOT / "examples/my_ops.toml",
        fails=True,
    )
    assert "kfgen render --spec" in output and not (tmp_path / "p").exists()


def test_what_is_missing_is_named_in_one_line(checkout):
    lines = [
        x
        for x in ways.run("make", "cc", "CC=no-such-gcc", cwd=checkout, fails=True).splitlines()
        if x.startswith("kf:")
    ]
    assert lines == ["kf: no-such-gcc is missing: apt install gcc libc6-dev"]
    output = ways.run("make", "python", "PYTHON=nopython", cwd=checkout, fails=True)
    assert "kf: nopython is missing: apt install python3 python3-venv" in output
    old = checkout / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    output = ways.run("make", "headers", "PYTHON=./old-python", cwd=checkout, fails=True)
    lines = [x for x in output.splitlines() if x.startswith("kf:")]
    assert lines == [
        "kf: Python 3.9.2 is too old, kf needs 3.11: apt install python3.11 python3.11-venv"
    ]
    output = ways.run(
        "make",
        "dist",
        f"PYTHON={sys.executable}",
        cwd=checkout,
        fails=True,
        GIT_CEILING_DIRECTORIES=checkout.parent,
    )
    assert any(x.startswith("kf: a release needs a git checkout") for x in output.splitlines())
