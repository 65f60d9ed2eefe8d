# SPDX-License-Identifier: Apache-2.0
"""Tests the C headers in a file for nvcc: host code calls the functions, and the device pass does
not read their bodies."""

import re
import subprocess

import kflib
import pytest
import toolkit
from compilers import quick
from kfgen.entries import spec as specs
from kfgen.render.render import Selection

NVCC = toolkit.nvcc()
pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")
# Typical host code: a plain function, an address, a template, a lambda, beside a kernel and CUDA
# launchers.
PROGRAM = """#include <kf/kf.h>
#include <kf/kf.cuh>
#include <stdio.h>
__global__ void own(float *x) { x[threadIdx.x] = kf_gelu(x[threadIdx.x]); }
static kf_result_t (*const add)(const float *, const float *, float *, int64_t) =
    kf_cpu_add_relu_f32;
template <typename T> static kf_result_t normalise(const T *x, T *out)
{
    return kf_cpu_layer_norm_f32(x, NULL, NULL, out, NULL, NULL, 1, 4, NULL, 0.0f);
}
int main(int argc, char **)
{
    const float a[4] = {1, 2, 3, -4}, b[4] = {1, 1, 1, 1};
    float sum[4], normal[4], total[1];
    alignas(256) double work[512];
    if (add(a, b, sum, 4) != KF_SUCCESS || sum[2] != 4.0f || sum[3] != 0.0f) return 1;
    if (normalise(b, normal) != KF_SUCCESS) return 2;
    const auto summed = [&] { return kf_cpu_sum_f32(a, total, 1, 4, 1, NULL, work, sizeof work); };
    if (summed() != KF_SUCCESS || total[0] != 2.0f) return 3;
    if (kf_cpu_sum_f32_workspace_bytes(1, 4, 1) > sizeof work) return 3;
    if (kf_cpu_gelu_f32(NULL, sum, 4) != KF_ERROR_NULL_POINTER) return 4;
    if (argc > 9) { /* compiled, not run: there may be no GPU */
        own<<<1, 4>>>(sum);
        return kf_add_relu_f32(a, b, sum, 4, nullptr);
    }
    puts(kf_get_last_error_detail());
    return 0;
}
"""


def test_host_code_calls_them(include, tmp_path):
    (tmp_path / "both.cu").write_text(PROGRAM)
    command = [
        NVCC,
        "-std=c++17",
        "-arch=sm_90",
        *quick(),
        "-Werror",
        "all-warnings",
        "-Xcompiler",
        "-Wall,-Wextra",
        *(f"-I{d}" for d in include),
    ]
    done = subprocess.run(
        [*command, "both.cu", "-o", "both"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    done = subprocess.run([tmp_path / "both"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("kf_cpu_gelu_f32: x is NULL"), done


def device_pass(text, include, work):
    """Tokens of a file in nvcc's device pass, after preprocessing."""
    work.mkdir()
    (work / "one.cu").write_text(text)
    command = [
        NVCC,
        "-std=c++17",
        "-D__CUDA_ARCH__=900",
        *(f"-I{d}" for d in include),
        "-E",
        "one.cu",
    ]
    output = subprocess.run(command, cwd=work, capture_output=True, text=True, check=True).stdout
    return re.findall(r"\w+|[^\w\s]", re.sub(r"^#.*$", "", output, flags=re.M))


KERNELS = [k for k in Selection(specs.load()).all_kernels() if "c" in k.backends]
# Headers that those of ops include.
CORE = [
    "kf/core/version.h",
    *sorted({f"{h}.h" for k in KERNELS for h in (k.header, *k.c.core)}),
    "kf/ops/activations.h",
    "kf/core/reduction/argreduce.h",
]


def test_the_device_s_pass_reads_declarations_alone(include, tmp_path):
    """The device pass reads only declarations. kf.h has half a million lines, whose bodies would
    cost it as much as the host pass."""
    whole = device_pass("#include <kf/kf.h>\n", include, tmp_path / "whole")
    core = device_pass("".join(f"#include <{h}>\n" for h in CORE), include, tmp_path / "core")
    # The other workspace queries are macros for these.
    workspace_functions = {k.cpu_workspace for k in KERNELS if k.has_workspace}
    public = {f["cpu_name"] for f in kflib.on("cpu", kflib.manifest()["functions"])} | {
        w for w in workspace_functions if w.startswith("kf_cpu_")
    }
    public.add("kf_cpu_enable_amx")  # belongs to no op
    # each exactly once
    assert sorted(w for w in whole if w.startswith("kf_cpu_")) == sorted(public)
    assert {
        w for w in set(whole) - set(core) if w.startswith("kfi_")
    } == workspace_functions - public
    assert len(core) > 10000 and (len(whole) - len(core)) / len(public) <= 40, (
        len(whole),
        len(core),
    )
