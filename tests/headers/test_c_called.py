# SPDX-License-Identifier: Apache-2.0
"""Tests that an object contains the called C functions and no others, even without optimisation."""

import subprocess

import pytest
from compilers import flags, write

CALLS = {
    "bias": "kf_cpu_bias_gelu_f32(p, p, p, 2, 3)",
    "layer_norm": "kf_cpu_layer_norm_gelu_f32(p, p, p, p, NULL, NULL, 2, 3, NULL, 0.0f)",
    "sum": "kf_cpu_sum_f32(p, p, 2, 3, 1, NULL, NULL, 0)",
}


@pytest.mark.parametrize("stem", CALLS)
@pytest.mark.parametrize("compiler", ["gcc -std=c11 -O0", "g++ -std=c++17 -O0 -xc++"])
def test_only_what_is_called(stem, compiler, include, tmp_path):
    text = (
        f"#include <kf/ops/{stem}.h>\nint f(float *p);\n"
        f"int f(float *p) {{ return {CALLS[stem]}; }}\n"
    )
    [source] = write(tmp_path, {"f.c": text})
    subprocess.run(
        [*compiler.split(), *flags(include), "-c", source, "-o", tmp_path / "f.o"], check=True
    )
    found = subprocess.run(
        ["nm", tmp_path / "f.o"], capture_output=True, text=True, check=True
    ).stdout
    assert f"kf_cpu_{stem}" in found and f"kfi_cpu_run_{stem}_f32" in found
    others = [
        line
        for line in found.splitlines()
        if any(word in line for word in ("_relu", "_f64", "bf16", f"{stem}_bwd"))
    ]
    assert [line for line in others if stem in line] == []
