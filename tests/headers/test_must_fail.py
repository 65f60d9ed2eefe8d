# SPDX-License-Identifier: Apache-2.0
"""What must not compile, and what the compiler then says first."""

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
        said = fails(
            [compiler, *language, "-O2", "-ffast-math", "-fsyntax-only", *flags(include), source]
        )
        assert "#error" in said and "KF_ALLOW_FAST_MATH" in said
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
    """In a line, and not in thousands."""
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
    said = fails([compiler, standard, *language, *flags(include), source])
    first = next(line for line in said.splitlines() if "error" in line)
    assert "kf: needs C11 or C++17" in first and len(said.splitlines()) < 40, said[:3000]
    if compiler == "g++":  # in its own dialect it has what is needed; clang++ 14 begins with it
        passes([compiler, "-std=gnu++14", *language, *flags(include), source])


def test_cuda_header_without_nvcc(include, tmp_path):
    [source] = write(tmp_path, {"wrong.cpp": "#include <kf/kf.cuh>\n"})
    said = fails(["g++", "-std=c++17", "-fsyntax-only", *flags(include), source])
    assert "#error" in said and "compile with nvcc" in said and "kf/kf.h" in said


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_fast_math_is_refused_by_kernels(include, tmp_path):
    """nvcc has no macro for it: what asks is the compiler of device code, and the assembler complains."""
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
    """Inside extern "C" the first complaint is kf's own, and says what to do; not one from inside CUDA's headers."""
    [source] = write(tmp_path, {"wrong.cu": 'extern "C" {\n#include <kf/kf.cuh>\n}\n'})
    said = fails(
        [NVCC, "-std=c++17", ARCH, *flags(include), "-c", source, "-o", tmp_path / "wrong.o"]
    )
    first = next(line for line in said.splitlines() if "error" in line)
    assert "/kf/" in first, f"the first complaint is {first}"
    advice = (
        said[said.index(first) :].replace('may not have extern "C" linkage', "").replace("_", " ")
    )  # the compiler's own words say nothing new
    assert re.search(r"outside (of )?extern .?C", advice), said[:1000]


def test_a_result_that_nobody_looks_at(include, tmp_path):
    """Warned of in every dialect, unless KF_NODISCARD is nothing."""
    [source] = write(
        tmp_path,
        {
            "dropped.c": "#include <kf/ops/add.h>\nvoid f(float *x);\nvoid f(float *x) { kf_cpu_add_f32(x, x, x, 4); }\n"
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
            "dropped.cu": "#include <kf/ops/add.cuh>\nvoid f(float *x) { kf_add_f32(x, x, x, 4, 0); }\n"
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
