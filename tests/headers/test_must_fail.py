# SPDX-License-Identifier: Apache-2.0
"""Tests code that must not compile, and the compiler's first message."""

import re

import cases
import pytest
from compilers import ARCH, DIALECTS, NVCC, STEMS, WARNINGS, fails, flags, passes, write


def test_fast_math_is_refused(include, tmp_path):
    [source] = write(
        tmp_path,
        {"fast.c": f"#include <kf/{cases.by_level('ops/add', 'kf')}.h>\nextern int not_empty;\n"},
    )
    for compiler, *language in DIALECTS.values():
        message = fails(
            [compiler, *language, "-O2", "-ffast-math", "-fsyntax-only", *flags(include), source]
        )
        assert "#error" in message and "KF_ALLOW_FAST_MATH" in message
        passes(
            [
                compiler,
                *language,
                "-O2",
                "-ffast-math",
                "-fno-associative-math",
                "-DKF_ALLOW_FAST_MATH",
                *WARNINGS,
                "-fsyntax-only",
                *flags(include),
                source,
            ]
        )


def test_fast_math_is_refused_by_each_header(include, tmp_path):
    for stem in STEMS[:: 1 if cases.LEVEL > 1 else 6]:
        [source] = write(
            tmp_path, {"fast.c": f"#include <kf/ops/{stem}.h>\nextern int not_empty;\n"}
        )
        assert "KF_ALLOW_FAST_MATH" in fails(
            ["gcc", "-std=c11", "-ffast-math", "-fsyntax-only", *flags(include), source]
        )


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("gcc -std=c90", "kf/kf.h"),
        ("gcc -std=c99", "kf/ops/add.h"),
        ("g++ -std=c++14", "kf/kf.h"),
        ("g++ -std=c++14", "kf/core/math.h"),
        ("nvcc -std=c++14", "kf/ops/add.cuh"),
    ],
)
def test_old_standards_are_refused(command, header, include, tmp_path):
    """The error is a single line, not thousands."""
    compiler, standard = command.split()
    if compiler == "nvcc" and not NVCC:
        pytest.skip("no nvcc")
    [source] = write(
        tmp_path,
        {
            "old.cu"
            if compiler == "nvcc"
            else "old.c": f"#include <{header}>\nextern int not_empty;\n"
        },
    )
    language = {
        "gcc": ["-x", "c", "-fsyntax-only"],
        "g++": ["-x", "c++", "-fsyntax-only"],
        "nvcc": [ARCH, "-c", "-o", tmp_path / "old.o"],
    }[compiler]
    message = fails([compiler, standard, *language, *flags(include), source])
    first = next(line for line in message.splitlines() if "error" in line)
    assert "kf: needs C11 or C++17" in first and len(message.splitlines()) < 40, message[:3000]
    # g++'s own dialect has what is needed; clang++ 14 is the first with it by default.
    if compiler == "g++":
        passes([compiler, "-std=gnu++14", *language, *flags(include), source])


def test_cuda_header_without_nvcc(include, tmp_path):
    [source] = write(tmp_path, {"wrong.cpp": "#include <kf/kf.cuh>\n"})
    message = fails(["g++", "-std=c++17", "-fsyntax-only", *flags(include), source])
    assert "#error" in message and "compile with nvcc" in message and "kf/kf.h" in message


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_fast_math_is_refused_by_kernels(include, tmp_path):
    """nvcc defines no macro for fast math: the check is in device code, and the assembler reports
    it."""
    [source] = write(
        tmp_path,
        {"fast.cu": "#include <kf/ops/add.cuh>\nvoid *addresses[] = {(void *)&kf_add_f32<>};\n"},
    )
    compiling = [
        NVCC,
        "-std=c++17",
        ARCH,
        *flags(include),
        "-cubin",
        source,
        "-o",
        tmp_path / "fast.cubin",
    ]
    for word in ("--use_fast_math", "-ftz=true"):
        assert "kf_refuses_use_fast_math_and_ftz_unless_KF_ALLOW_FAST_MATH_is_defined" in fails(
            [*compiling, word]
        )
        passes([*compiling, word, "-DKF_ALLOW_FAST_MATH"])


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_extern_c(include, tmp_path):
    """The first error inside extern "C" comes from kf, not from CUDA's headers, and says what to
    do."""
    [source] = write(tmp_path, {"wrong.cu": 'extern "C" {\n#include <kf/kf.cuh>\n}\n'})
    message = fails(
        [NVCC, "-std=c++17", ARCH, *flags(include), "-c", source, "-o", tmp_path / "wrong.o"]
    )
    first = next(line for line in message.splitlines() if "error" in line)
    assert "/kf/" in first, f"the first complaint is {first}"
    # The compiler's own words do not count as advice.
    advice = (
        message[message.index(first) :]
        .replace('may not have extern "C" linkage', "")
        .replace("_", " ")
    )
    assert re.search(r"outside (of )?extern .?C", advice), message[:1000]


def test_a_result_that_nobody_looks_at(include, tmp_path):
    """Every dialect warns of an ignored result, unless KF_NODISCARD is empty."""
    [source] = write(
        tmp_path,
        {
            "dropped.c": "#include <kf/ops/add.h>\nvoid f(float *x);\n"
            "void f(float *x) { kf_cpu_add_f32(x, x, x, 4); }\n"
        },
    )
    for compiler, *language in DIALECTS.values():
        command = [
            compiler,
            *language,
            *WARNINGS,
            *flags(include),
            "-c",
            source,
            "-o",
            tmp_path / "dropped.o",
        ]
        assert re.search(r"unused|nodiscard", fails(command)), command
        passes([*command, "-DKF_NODISCARD="])


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_a_result_that_nobody_looks_at_in_cuda(include, tmp_path):
    [source] = write(
        tmp_path,
        {
            "dropped.cu": "#include <kf/ops/add.cuh>\n"
            "void f(float *x) { kf_add_f32(x, x, x, 4, 0); }\n"
        },
    )
    command = [
        NVCC,
        "-std=c++17",
        ARCH,
        "-Werror",
        "all-warnings",
        *flags(include),
        "-c",
        source,
        "-o",
        tmp_path / "dropped.o",
    ]
    assert re.search(r"nodiscard|discard", fails(command))
    passes([*command, "-DKF_NODISCARD="])
