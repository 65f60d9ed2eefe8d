# SPDX-License-Identifier: Apache-2.0
"""Tests that the headers define no macros in a user's file but KF_*, KFI_* and the workspace
queries, and name no framework."""

import re

import cases
import kflib
import pytest
from compilers import ARCH, DIALECTS, NVCC, flags, passes, write


def macros(output, include):
    """Returns {macro: file} of the macros that the headers below `include` leave defined, from
    preprocessor output with -dD."""
    found, here = {}, ""
    for line in output.splitlines():
        if mark := re.match(r'#\s+\d+ "(.*?)"', line):
            here = mark[1]
        elif definition := re.match(r"#\s*define (\w+)", line):
            if any(here.startswith(str(d)) for d in include):
                found[definition[1]] = here
        elif removal := re.match(r"#\s*undef (\w+)", line):
            found.pop(removal[1], None)
    return found


def leaked(found, workspace):
    public = {f[workspace] for f in kflib.manifest()["functions"]}
    return {
        m: f
        for m, f in found.items()
        if m not in public and not m.startswith(("KF_", "KFI_")) or "__" in m
    }


def test_macros_of_the_c_headers(include, tmp_path):
    [source] = write(tmp_path, {"macros.c": "#include <kf/kf.h>\n"})
    for compiler, *language in cases.by_level([DIALECTS["c11"]], DIALECTS.values()):
        found = macros(
            passes([compiler, *language, "-E", "-dD", "-fopenmp", *flags(include), source]), include
        )
        assert "KF_SUCCESS" not in found and "KF_VERSION" in found
        assert not leaked(found, "cpu_workspace")


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_macros_of_the_cuda_headers(include, tmp_path):
    [source] = write(tmp_path, {"macros.cu": "#include <kf/kf.cuh>\n"})
    found = macros(
        passes([NVCC, "-std=c++17", ARCH, "-E", "-Xcompiler", "-dD", *flags(include), source]),
        include,
    )
    assert "KF_VERSION" in found and "KF_FN" in found
    assert not leaked(found, "workspace")


def test_no_names_of_frameworks(include):
    """The headers use no name of CUTLASS, CCCL, the C++ standard library or a framework."""
    words = re.compile(r"\b(cutlass|cute|cub|thrust|std|at|torch|c10|xla)::|libcu\+\+|<cuda/")
    for directory in include:
        for path in (directory / "kf").rglob("*.*h"):
            assert not (hit := words.search(path.read_text())), f"{path}: {hit[0]}"
