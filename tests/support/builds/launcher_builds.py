# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests/build/test_launchers.py and test_launcher_files.py: compilers, C programs, a
user's spec, and a library of a few launchers."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess

import kflib
import pytest
import toolkit
from kfgen.cli import main
from kfgen.interfaces import abi
from kflib import ROOT

NVCC = toolkit.nvcc()
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wpedantic", "-Werror")
DIALECTS = {
    "c11": ("gcc", "-std=c11", "-x", "c"),
    "c++17": ("g++", "-std=c++17", "-x", "c++"),
    "c++20": ("g++", "-std=c++20", "-x", "c++"),
}
SUBSET = ("--ops", "add,bias", "--activations", "relu", "--dtypes", "f32,f16")
VERSION = abi.version()
OWN = """
[activation.cubed]
brief = "x * x * x"
expr = "x * x * x"
ref = "x ** 3"
edges = { nan = "nan", inf = "inf", "-inf" = "-inf" }
source = "here"
[op."shift_{act}"]
brief = "act(x + shift)"
operands = { x = "elem", shift = "row" }
expr = "act(x + shift)"
ref = "act(x + shift)"
source = "here"
"""


def execute(command, env=None):
    command = [str(c) for c in command]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", env={**os.environ, **(env or {})}
    ), " ".join(command)


def passes(*command, env=None):
    done, line = execute(command, env)
    assert done.returncode == 0, f"{line}: {done.returncode}\n{(done.stderr + done.stdout)[:6000]}"
    return done.stdout


def fails(*command, env=None):
    done, line = execute(command, env)
    assert done.returncode != 0, f"should have failed: {line}"
    return done.stderr + done.stdout


def symbols(text):
    """Returns the functions that a .cu file defines."""
    return re.findall(
        r"^KFI_EXPORT \w+ (?:char \*)?\*?(kf_\w+)\(", text.replace("const char *", "text "), re.M
    )


def of_a_user(work):
    """Renders a user's spec into `work` and returns the include directories."""
    (work / "my.toml").write_text(OWN)
    chosen = ["--ops", "add,shift,bias", "--dtypes", "f32"]
    assert (
        main(["render", "--spec", str(work / "my.toml"), *chosen, "--out", str(work / "include")])
        == 0
    )
    return [ROOT / "include", work / "include"]


def compile_cuda(include, source, *extra):
    """Returns the command that compiles a .cu file to an object, with warnings as errors."""
    command = [
        NVCC,
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        "-Xcompiler",
        "-Wall,-Wextra,-Werror",
        *extra,
        *(f"-I{d}" for d in include),
    ]
    return [*command, "-c", source, "-o", source.with_suffix(".o")]


def build(work):
    """Builds objects, an archive and a shared library of a few launchers in `work`."""
    shutil.copytree(ROOT / "include/kf/core", work / "include/kf/core")
    assert main(["render", "--out", str(work / "include"), *SUBSET]) == 0
    sources = sorted((work / "include/kf").glob("kf_launchers_*.cu"))
    assert len(sources) == 2
    objects = [work / f"{s.stem}.o" for s in sources]

    def one(source, target):
        passes(
            NVCC,
            "-O3",
            "-arch=sm_90",
            "-Werror",
            "all-warnings",
            "-Xcompiler",
            "-fPIC,-Wall,-Wextra,-Wshadow,-Wconversion,-Werror",
            f"-I{work / 'include'}",
            "-c",
            source,
            "-o",
            target,
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, sources, objects))
    passes("ar", "rcs", work / "libkf_launchers.a", *objects)
    passes(NVCC, "-shared", *objects, "-o", work / "libkf_launchers.so")
    return work


def cuda():
    """Returns the toolkit's path. nvcc may be a script that starts another nvcc, so it is asked
    itself."""
    output = execute([NVCC, "-dryrun", "-x", "cu", "/dev/null", "-c", "-o", "/dev/null"])[0].stderr
    return pathlib.Path(re.search(r"\bTOP=(.*)", output)[1]).resolve()


def static(built, program, *extra):
    """Returns gcc's command that links the archive into a program, without nvcc."""
    return [
        "gcc",
        "-std=c11",
        "-O2",
        *WARNINGS,
        f"-I{built / 'include'}",
        program,
        *extra,
        built / "libkf_launchers.a",
        f"-L{cuda() / 'lib64'}",
        "-lcudart_static",
        "-lstdc++",
        "-lpthread",
        "-ldl",
        "-lrt",
        "-lm",
        "-o",
        program.with_suffix(""),
    ]


PROGRAM = """
#include <kf/kf_launchers.h>
#include <kf/kf.h>
#include <stdio.h>
#include <string.h>
#define EXPECT(call, code, words) \\
    if ((call) != (code) || !strstr(kf_get_last_error_detail(), words)) \\
        return printf("%s: %s\\n", #call, kf_get_last_error_detail()), 1

int main(int count, char **words)
{
    float f[8] = {0}, g[8] = {0};
    kf_f16 h[8], k[8];
    memset(h, 0, sizeof h);
    memset(k, 0x55, sizeof k);
    EXPECT(kf_add_relu_f32(f, f, g, -3, NULL), KF_ERROR_INVALID_SIZE, "kf_add_relu_f32: n is -3");
    EXPECT(kf_add_relu_f16(h, NULL, k, 8, NULL), KF_ERROR_NULL_POINTER,
           "kf_add_relu_f16: b is NULL");
    EXPECT(kf_add_relu_bwd_f32(f, f, NULL, f, g, g + 1, 4, NULL, 0, NULL), KF_ERROR_OVERLAP,
           "kf_add_relu_bwd_f32: db");
    EXPECT(kf_bias_relu_bwd_f16(h, h, NULL, h, NULL, k, 2, 4, NULL, 0, NULL), KF_ERROR_WORKSPACE,
           "kf_bias_relu_bwd_f16: workspace");
    if (kf_bias_relu_bwd_f16_workspace_bytes(2, 4) == 0) return 2;
    if (kf_add_relu_bwd_f32_workspace_bytes(4) != 0) return 2;
    if (kf_add_relu_f32(NULL, NULL, NULL, 0, NULL) != KF_SUCCESS) return 3;
    if (kf_cpu_add_relu_f32(f, f, g, 8) != KF_SUCCESS) return 3;
    if (kf_cpu_add_relu_f32(f, f, g, -9) != KF_ERROR_INVALID_SIZE) return 4;
    if (strcmp(kf_launchers_f32_error_detail(), kf_get_last_error_detail())) return 4;
    if (kf_check_abi("kf_launchers_f16", kf_launchers_f16_abi_version()) != KF_SUCCESS) return 5;
    const char *text = kf_launchers_f16_error_string(KF_ERROR_OVERLAP);
    if (strcmp(text, kf_get_error_string(KF_ERROR_OVERLAP))) return 6;
    for (int i = 0; i < 8; ++i)
        if (k[i].bits != 0x5555) return 7; /* nothing is written by a call that is refused */
    if (count > 1) return puts(words[1]) < 0; /* a GPU would read this host's memory */
    const kf_result_t launched = kf_add_relu_f32(f, f, g, 8, NULL);
    return printf("%d %s\\n", (int)launched, kf_get_last_error_detail()) < 0;
}
"""


def check_program(path, env=None):
    """Refused arguments need no GPU. Without one, the launch returns CUDA's error."""
    if kflib.has_gpu():
        assert passes(path, "checked", env=env) == "checked\n"
    else:
        assert re.match(
            r"8 kf_add_relu_f32: launch of .*: CUDA error \d+ \(", passes(path, env=env)
        )


OWN_PROGRAM = """
#include <kf/kf_my_launchers.h>
#include <stdio.h>
int main(void)
{
    if (kf_shift_cubed_f32(NULL, NULL, NULL, 2, 3, NULL) != KF_ERROR_NULL_POINTER) return 1;
    puts(kf_get_last_error_detail());
    return kf_check_abi("kf_my_launchers_f32", kf_my_launchers_f32_abi_version()) != KF_SUCCESS;
}
"""


BOTH_BACKENDS = """
#include <kf/ops/act.h>
#include <kf/kf_launchers.h>
double scalar(double x);
kf_result_t cuda(const double *x, double *out, struct CUstream_st *stream);
kf_result_t cpu(const double *x, double *out);
double scalar(double x)
{
    return kf_gelu_double(x) + kf_gelu_bwd_double(x, 1.0) + (double)kf_gelu((float)x);
}
kf_result_t cuda(const double *x, double *out, struct CUstream_st *stream)
{
    return kf_gelu_f64(x, out, 1, stream);
}
kf_result_t cpu(const double *x, double *out) { return kf_cpu_gelu_f64(x, out, 1); }
"""


STRIDED = """#include <kf/{header}>
kf_result_t strided(const float *x, float *out, struct CUstream_st *stream)
{{
    kf_softmax_strides_t strides = {{0}};
    strides.x = KF_BROADCAST;
    return {call};
}}
"""


AFTER = """
#include <kf/{first}>
#include <kf/kf_launchers.h>
kf_result_t call(const float *a, float *b, cudaStream_t s)
{{
    return kf_add_relu_f32(a, a, b, 5, s);
}}
"""
