# SPDX-License-Identifier: Apache-2.0
"""Tests the headers of functions with a run-time activation (kf/any): with nvcc and NVRTC, with a
user's activations, and their cost."""

import pathlib
import sys

import cases
import kflib
import launch_steps
import nvrtc
import pytest
import toolkit
from compilers import NVCC, WARNINGS, addresses, compile_cuda, fails, flags, passes, quick, write
from kfgen.cli import main

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import budget  # noqa: E402
from instructions import kernels_in  # noqa: E402

FUNCTIONS = kflib.manifest()["any"]
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
# One function per schedule; from level 2 on every header, at level 3 every function.
LAUNCHED = cases.by_level(
    ["kf_add_activation_bf16", "kf_layer_norm_activation_f32"],
    {(f["header"], f["bwd"]): f["name"] for f in FUNCTIONS},
)
LAUNCHED = [
    f
    for f in FUNCTIONS
    if f["name"] in (LAUNCHED if cases.LEVEL == 1 else LAUNCHED.values()) or cases.LEVEL > 2
]
TOKENS = 55300  # <kf/any/add.cuh>, beyond CUDA's own
CALL = """#include <kf/any/add.cuh>
kf_result_t call(const float *a, const float *b, float *out, long long n, cudaStream_t stream);
kf_result_t call(const float *a, const float *b, float *out, long long n, cudaStream_t stream)
{
    return kf_add_activation_f32(a, b, out, n, KF_ACTIVATION_RELU, nullptr, stream);
}
"""


PARTS = cases.by_level(1, 4)  # parts run in parallel: the whole takes minutes


@needs_nvcc
@pytest.mark.parametrize("part", range(PARTS))
def test_whole_objects(include, tmp_path, part):
    """Level 1 leaves out rows, which NVRTC compiles in a tenth of the time."""
    chosen = [f for f in LAUNCHED if cases.LEVEL > 1 or f["family"] == "elementwise"][part::PARTS]
    compile_cuda(include, tmp_path, {"any.cu": addresses(chosen)}, *quick())


@needs_nvcc
def test_only_what_is_called_is_compiled(include, tmp_path):
    """A call compiles one kernel for all activations, in as many instances as for one activation.
    The C header in a .cu file adds nothing."""
    (tmp_path / "call.cu").write_text("#include <kf/any/add.h>\n" + CALL)
    found = kernels_in(tmp_path / "call.cu", include, tmp_path)
    assert found and all("kfk_add_activation_f32" in k for k in found)
    add = next(f for f in FUNCTIONS if f["name"] == "kf_add_activation_f32")
    assert len(found) == len(launch_steps.kernels(add))


@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
@pytest.mark.parametrize("f", LAUNCHED, ids=[f["name"] for f in LAUNCHED])
def test_nvrtc(f, include):
    asked = launch_steps.kernels(f)
    _, lowered, log = nvrtc.compile_text(
        f"#include <{f['header']}.cuh>\n", asked, include, options=nvrtc.quick()
    )
    assert len(set(lowered)) == len(set(asked)) and "warning" not in log, log[:2000]


@needs_nvcc
def test_text_of_a_header(include, tmp_path, monkeypatch):
    """The tokens that nvcc reads beyond CUDA's own stay within a twelfth of their first count; the
    umbrella does not include kf/any."""
    monkeypatch.setitem(budget.SOURCES, "any", budget.FLOOR + CALL)
    floor, own = (budget.tokens(name, include, tmp_path) for name in ("floor", "any"))
    assert own - floor <= TOKENS, own - floor
    for umbrella in ("kf/kf.h", "kf/kf.cuh"):
        assert "kf/any/" not in (include[1] / umbrella).read_text()


SPEC = """
[activation.tripled]
brief = "3 x"
scalars = { by = 3.0 }
expr = "by * x"
ref = "by * x"
dref = "by * np.ones_like(x)"
edges = { nan = "nan", inf = "inf", "-inf" = "-inf", "-0" = "-0" }
dedges = { 0 = "by" }
ulp = { f32 = 0.5, f64 = 0.5 }
source = "a test"
since = "0"

[op."{act}_halved"]
brief = "act(x) / 2"
operands = { x = "elem" }
expr = "act(x) * 0.5"
ref = "act(x) * 0.5"
"""
PROGRAM = """#include <kf/user/mine/any/add.h>
#include <kf/user/mine/any/act_halved.h>
#include <kf/any/add.h>
#include <stdio.h>
int main(void)
{
    float a[3] = {1, 2, 3}, b[3] = {1, 1, 1}, out[3];
    const float by = 5;
    if (kf_cpu_add_activation_f32(a, b, out, 3, KF_ACTIVATION_TRIPLED, NULL) != KF_SUCCESS ||
        out[2] != 12) return 1;
    if (kf_cpu_add_activation_f32(a, b, out, 3, KF_ACTIVATION_TRIPLED, &by) != KF_SUCCESS ||
        out[2] != 20) return 2;
    if (kf_cpu_add_activation_f32(a, b, out, 3, KF_ACTIVATION_RELU, NULL) != KF_SUCCESS ||
        out[2] != 4) return 3;
    if (kf_cpu_activation_halved_f32(a, out, 3, KF_ACTIVATION_TRIPLED, NULL) != KF_SUCCESS ||
        out[1] != 3) return 4;
    if (kf_cpu_activation_halved_f32(a, out, 3, KF_ACTIVATION_TANH, NULL) != KF_SUCCESS) return 5;
    return kf_cpu_add_activation_f32(a, b, out, 3, 12345, NULL) == KF_ERROR_UNSUPPORTED ? 0 : 6;
}
"""


@pytest.fixture(scope="module")
def mine(include, tmp_path_factory):
    """Returns include directories with the headers of a user's activation and op."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.toml").write_text(SPEC)
    chosen = ["--ops", "add,act_halved", "--activations", "none,relu,tanh", "--dtypes", "f32"]
    assert main(["render", "--spec", str(folder / "mine.toml"), "--out", str(folder), *chosen]) == 0
    return [*include, folder]


def test_a_user_s_activation(mine, tmp_path):
    [source] = write(tmp_path, {"program.c": PROGRAM})
    passes(
        [
            "gcc",
            "-std=c11",
            "-O1",
            *WARNINGS,
            *flags(mine),
            source,
            "-o",
            tmp_path / "program",
            "-lm",
        ]
    )
    passes([tmp_path / "program"])
    [source] = write(
        tmp_path, {"late.c": "#include <kf/any/add.h>\n#include <kf/user/mine/any/add.h>\n"}
    )
    assert "replaces kf/any/" in fails(["gcc", "-std=c11", "-fsyntax-only", *flags(mine), source])


@needs_nvcc
def test_a_user_s_activation_in_cuda(mine, tmp_path):
    compile_cuda(
        mine,
        tmp_path,
        {
            "mine.cu": CALL.replace("kf/any/add.cuh", "kf/user/mine/any/add.cuh").replace(
                "_RELU", "_TRIPLED"
            )
        },
        *quick(),
    )
