# SPDX-License-Identifier: Apache-2.0
"""Tests two translation units of one program, in C, C++ and CUDA: no duplicate symbol, one error
detail."""

import cases
import pytest
from compilers import ARCH, GCC, NVCC, WARNINGS, compile_cuda, flags, passes, quick, write

UNIT_A = """
#include <kf/kf.h>
#include <stdio.h>
#include <string.h>
EXTERN kf_result_t other(const float *a, const float *b, float *out, int64_t n);
EXTERN const char *other_detail(void);
int main(void)
{
    const float a[3] = {1, -2, 3}, b[3] = {1, 1, -5};
    float first[3] = {9, 9, 9}, second[3] = {8, 8, 8};
    if (kf_cpu_add_relu_f32(a, b, first, 3) != KF_SUCCESS || other(a, b, second, 3) != KF_SUCCESS)
        return 1;
    if (memcmp(first, second, sizeof first) != 0 || first[0] != 2.0f || first[1] != 0.0f) return 2;
    if (kf_cpu_add_relu_f32(a, b, first, -3) != KF_ERROR_INVALID_SIZE) return 3;
    /* One detail per program. */
    if (!strstr(other_detail(), "kf_cpu_add_relu_f32: n is -3")) return 4;
    puts("same");
    return 0;
}
"""
UNIT_B = """
#include <kf/kf.h>
EXTERN kf_result_t other(const float *a, const float *b, float *out, int64_t n);
EXTERN const char *other_detail(void);
kf_result_t other(const float *a, const float *b, float *out, int64_t n)
{
    return kf_cpu_add_relu_f32(a, b, out, n);
}
const char *other_detail(void) { return kf_get_last_error_detail(); }
"""


@pytest.mark.parametrize(
    "languages",
    [("c11", "c++17"), *cases.by_level([], [("c++17", "c11"), ("c11", "c11"), ("c++17", "c++17")])],
    ids="_".join,
)
@pytest.mark.parametrize(
    "openmp",
    cases.by_level([("-fopenmp",)], [("-fopenmp",), ()]),
    ids=lambda words: "openmp" if words else "serial",
)
def test_two_units(languages, openmp, include, tmp_path):
    objects = []
    for language, text, name in zip(languages, (UNIT_A, UNIT_B), "ab"):
        compiler, *words = GCC[language]
        extern = 'extern "C"' if language != "c11" else "extern"
        [source] = write(tmp_path, {f"{name}.c": text.replace("EXTERN", extern)})
        objects.append(tmp_path / f"{name}.o")
        passes(
            [
                compiler,
                *words,
                "-O1",
                *WARNINGS,
                *openmp,
                *flags(include),
                "-c",
                source,
                "-o",
                objects[-1],
            ]
        )
    passes(["g++", *objects, *openmp, "-o", tmp_path / "program", "-lm"])
    assert passes([tmp_path / "program"]) == "same\n"


CUDA_A = """
#include <kf/kf.cuh>
#include <stdio.h>
#include <string.h>
kf_result_t other(const float *a, const float *b, float *out, int64_t n);
const char *other_detail(void);
int main(void)
{
    float a[3] = {1, 2, 3};
    if (other(a, a, a, -3) != KF_ERROR_INVALID_SIZE) return 1;
    if (kf_add_relu_f32(a, a, a, -4, 0) != KF_ERROR_INVALID_SIZE) return 2;
    if (!strstr(other_detail(), "kf_add_relu_f32: n is -4")) return 3;
    if (other(NULL, a, a, 3) != KF_ERROR_NULL_POINTER ||
        !strstr(kf_get_last_error_detail(), "a is NULL")) return 4;
    if (kf_add_relu_f32(NULL, NULL, NULL, 0, 0) != KF_SUCCESS) return 5;
    puts("same");
    return 0;
}
"""
CUDA_B = """
#include <kf/ops/add.cuh>
kf_result_t other(const float *a, const float *b, float *out, int64_t n)
{
    return kf_add_relu_f32(a, b, out, n, 0);
}
const char *other_detail(void) { return kf_get_last_error_detail(); }
"""


@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize(
    "rdc", cases.by_level([()], [(), ("-rdc=true",)]), ids=lambda words: "rdc" if words else "whole"
)
def test_two_cuda_units(rdc, include, tmp_path):
    """Calls that are refused before a launch need no GPU."""
    objects = compile_cuda(include, tmp_path, {"a.cu": CUDA_A, "b.cu": CUDA_B}, *rdc, *quick())
    passes([NVCC, ARCH, *rdc, *objects, "-o", tmp_path / "program"])
    assert passes([tmp_path / "program"]) == "same\n"
