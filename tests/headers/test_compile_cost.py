# SPDX-License-Identifier: Apache-2.0
"""Tests the compile cost of one function per family (tokens, kernels, instructions) and of kf.h
(processor time). test_budget.py has the budgets of kf.cuh and of an elementwise op."""

import collections
import pathlib
import re
import sys

import cases
import kflib
import launch_steps
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import budget  # noqa: E402
from instructions import cubin_of  # noqa: E402

needs_nvcc = pytest.mark.skipif(not budget.NVCC, reason="no nvcc")
FUNCTIONS = {f["name"]: f for f in kflib.on("cuda", kflib.manifest()["functions"])}
# One function per family, with a second stage of sums if there is one, and the tokens that its
# header may have beyond CUDA's own: a twelfth more than when the budget was set.
ONE = {
    "elementwise": ("kf_bias_gelu_bwd_bf16", 39500),
    "rows": ("kf_layer_norm_bwd_bf16", 83500),
    "reduction": ("kf_sum_f32", 46000),
    "matmul": ("kf_linear_gelu_bwd_bf16", 57500),
    **cases.merged("COMPILED"),
}
# Processor time of kf/kf.h with one call, relative to the op's own header with that call; 0.3 more
# per 1,000 functions beyond 5,200.
C_OVER = 3.5
# Function and flags of docs/compile_time.md. If less is compiled, reading the text weighs more.
C_FLAGS = ("-std=gnu11", "-O3", "-march=native")
C_CALL = """#include <{header}.h>
kf_result_t call(const float *x, const float *bias, float *out, int64_t n);
kf_result_t call(const float *x, const float *bias, float *out, int64_t n)
{{
    return kf_cpu_bias_gelu_f32(x, bias, out, 1, n);
}}
"""


def call_of(f):
    """C++ function that calls one launcher."""
    words = ", ".join(a["name"] for a in f["arguments"])
    return (
        f"{f['signature'].replace(f['name'], 'call_' + f['name'])} "
        f"{{ return {f['name']}({words}, stream); }}\n"
    )


def test_a_function_of_each_family():
    assert set(ONE) == {f["family"] for f in FUNCTIONS.values()}
    assert all(FUNCTIONS[name]["family"] == family for family, (name, _) in ONE.items())


@pytest.mark.level(2)
@needs_nvcc
def test_kernels_are_those_of_their_steps(include, tmp_path):
    """A file that calls one function per family has exactly the kernels that the manifest lists for
    their launches."""
    used = [FUNCTIONS[name] for name, _ in ONE.values()]
    (tmp_path / "calls.cu").write_text(
        "".join([*(f"#include <{f['header']}.cuh>\n" for f in used), *map(call_of, used)])
    )
    kernels = budget.kernels_in(tmp_path / "calls.cu", include, tmp_path)
    found = collections.Counter(re.search(r"(?<=\d)kfk_\w+?(?=I[LN])", k)[0] for k in kernels)
    assert found == collections.Counter(
        name.split("<")[0] for name in {n for f in used for n in launch_steps.kernels(f)}
    )


@needs_nvcc
@pytest.mark.parametrize("family", ONE)
def test_text_of_an_op_header(family, include, tmp_path, monkeypatch):
    """nvcc reads the text in five passes, whatever is called."""
    name, allowed = ONE[family]
    monkeypatch.setitem(
        budget.SOURCES, name, f"{budget.FLOOR}#include <{FUNCTIONS[name]['header']}.cuh>\n"
    )
    floor, own = (budget.tokens(n, include, tmp_path) for n in ("floor", name))
    assert own - floor <= allowed, own - floor


@pytest.mark.level(2)
@needs_nvcc
@pytest.mark.skipif(not budget.VALGRIND, reason="no valgrind")
def test_instructions_of_op_headers(include, tmp_path):
    """Instructions of nvcc for a file that includes a header and calls nothing, relative to the
    file without it; a minute each. test_budget.py tests elementwise ops with a call. A call of a
    norm compiles kernels that take longer than all headers."""
    flags = [f"-I{d}" for d in include]
    counts = {}
    for name in ("floor", ONE["rows"][0], ONE["reduction"][0]):
        (tmp_path / "one.cu").write_text(
            budget.FLOOR
            + ("" if name == "floor" else f"#include <{FUNCTIONS[name]['header']}.cuh>\n")
        )
        command = [
            budget.NVCC,
            "-std=c++17",
            "-O3",
            "-arch=sm_90",
            *flags,
            "-c",
            "one.cu",
            "-o",
            "one.o",
        ]
        counts[name] = budget.instructions(command, tmp_path)
    assert max(counts.values()) <= budget.OP_BUDGET * counts["floor"], counts


@pytest.mark.level(2)
def test_time_of_the_c_umbrella(include, tmp_path):
    """Takes the shortest of three interleaved compilations each, because other work only adds
    time."""
    functions = len(kflib.on("cpu", kflib.manifest()["functions"]))
    texts = {
        name: C_CALL.format(header=header)
        for name, header in (("umbrella", "kf/kf"), ("op", "kf/ops/bias"))
    }
    seconds = collections.defaultdict(list)
    for _ in range(3):
        for name, text in texts.items():
            (tmp_path / f"{name}.c").write_text(text)
            command = [
                "gcc",
                *C_FLAGS,
                *(f"-I{d}" for d in include),
                "-c",
                f"{name}.c",
                "-o",
                f"{name}.o",
            ]
            seconds[name].append(budget.compile_seconds(command, tmp_path))
    allowed = C_OVER + 0.3 * max(0, functions - 5200) / 1000
    assert min(seconds["umbrella"]) <= allowed * min(seconds["op"]), dict(seconds)


@pytest.mark.level(2)
@needs_nvcc
def test_a_linear_layer_for_hopper(include, tmp_path):
    """Compiles every schedule of a linear layer. Limits the number of kernels and the time relative
    to a file without kf (3.8 to 4.2 in practice). Limits the instructions that a second activation
    adds (16,000 take two seconds)."""
    calls, arch = (
        [FUNCTIONS["kf_linear_gelu_bf16"], FUNCTIONS["kf_linear_silu_bf16"]],
        "-gencode=arch=compute_90a,code=sm_90a",
    )
    instructions = []
    for count in (1, 2):
        (tmp_path / "calls.cu").write_text(
            "".join([f"#include <{calls[0]['header']}.cuh>\n", *map(call_of, calls[:count])])
        )
        kernels = cubin_of(tmp_path / "calls.cu", include, tmp_path, arch=arch)
        assert len(kernels) <= 14 * count
        instructions.append(sum(kernels.values()))
        if count == 1:
            (tmp_path / "floor.cu").write_text(budget.FLOOR)
            command = [
                budget.NVCC,
                "-std=c++17",
                "-O3",
                arch,
                *(f"-I{d}" for d in include),
                "-o",
                "made.o",
                "-c",
            ]
            seconds = {
                name: min(budget.compile_seconds([*command, name], tmp_path) for _ in range(2))
                for name in ("calls.cu", "floor.cu")
            }
            assert seconds["calls.cu"] <= 5.5 * seconds["floor.cu"], seconds
    assert instructions[1] - instructions[0] <= 16000, instructions
    assert (
        len(cubin_of(tmp_path / "calls.cu", include, tmp_path, "-DKF_SCHEDULES=4", arch=arch))
        <= 7 * 2
    )
