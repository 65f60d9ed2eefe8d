# SPDX-License-Identifier: Apache-2.0
"""kf_single.h and kf_single.cuh: alone, in two units, together, reduced, and with a user's ops.
Their code must equal that of the headers that they are made from."""

import re
import shutil

import cases
import pytest
import ways
from kfgen.entries import spec as specs
from kfgen.model import names
from kfgen.render import single
from kfgen.render.render import Selection
from ways import run

WARNINGS, NVCC_WARNINGS = ways.WARNINGS.split(), ways.NVCC_WARNINGS.split()
DIALECTS = {"c11": ("gcc", "-std=c11", "c"), "c++17": ("g++", "-std=c++17", "cpp")}
NVCC = [ways.NVCC, "-std=c++17", "-arch=sm_90"]


@pytest.fixture(scope="module")
def folder(once):
    """A folder with the single files and nothing else of kf."""

    def written(out):
        run("kfgen", "single", "--out", out)
        return out

    return once("single files", written)


def test_form(folder):
    """Every header must occur once, in place of its #include, with the licence first. Includes of
    the compiler's headers stay."""
    selection = Selection(specs.load())
    for name, text in single.everything(selection).items():
        assert (folder / name).read_text() == text
        assert text.split("\n")[0].strip("/* ") == "SPDX-License-Identifier: Apache-2.0"
        assert f"kf {ways.VERSION}" in text.split("\n")[1] and not re.search(
            r'#\s*include\s*["<]kf', text
        )
        guards = re.findall(r"^#define (KF_(?:CORE|OPS|KF)_\w*H)$", text, re.M)
        # Host code needs these headers, and NVRTC must not see them: they stand under two
        # conditions of which neither implies the other.
        hidden = {"KF_CORE_HOST_H", "KF_CORE_RESULT_H", "KF_CORE_PITCH_H"}
        assert {g for g in guards if guards.count(g) > 1} <= (
            hidden if name.endswith("cuh") else set()
        )
        ext = name.rsplit(".", 1)[1].upper()
        there = [
            op
            for op in selection.ops
            if ext == "H" or any("cuda" in k.backends for k in selection.kernels(op))
        ]
        assert {f"KF_OPS_{names.stem(op.pattern).upper()}_{ext}" for op in there} <= set(guards)
    # NVRTC has no C library, so its headers stay under their condition.
    assert "#ifndef __CUDACC_RTC__" in (folder / "kf_single.cuh").read_text()


TWICE = """#include "kf_single.h"
#include "kf_single.h"
#include <stdio.h>
const char *detail(void);
"""
MAIN = """
int main(void)
{
    const float a[] = {1, -2, 3}, b[] = {1, 1, -5};
    float out[3] = {9, 9, 9};
    if (kf_cpu_add_relu_f32(a, b, out, 3) != KF_SUCCESS) return 1;
    if (out[0] != 2.0f || out[1] != 0.0f || out[2] != 0.0f) return 1;
    if (kf_cpu_add_relu_f32(a, b, out, -7) != KF_ERROR_INVALID_SIZE) return 2;
    puts(detail());
    return 0;
}
"""
OTHER = "const char *detail(void) { return kf_get_last_error_detail(); }\n"


@pytest.mark.parametrize("dialect", cases.by_level(["c11"], DIALECTS))
def test_c(folder, tmp_path, dialect):
    """Two translation units must share one error detail; the header must also compile as the main
    file."""
    compiler, standard, ext = DIALECTS[dialect]
    (tmp_path / f"main.{ext}").write_text(TWICE + MAIN)
    (tmp_path / f"other.{ext}").write_text(TWICE + OTHER)
    units = [tmp_path / f"main.{ext}", tmp_path / f"other.{ext}"]
    run(
        compiler,
        standard,
        "-O2",
        *WARNINGS,
        f"-I{folder}",
        *units,
        "-o",
        tmp_path / "program",
        "-lm",
    )
    assert run(tmp_path / "program") == "kf_cpu_add_relu_f32: n is -7, expected 0 or more\n"
    # The header as the main file: it may not expect anything around it.
    run(
        compiler,
        standard,
        "-fsyntax-only",
        *WARNINGS,
        "-Wno-unused-function",
        "-x",
        "c" if ext == "c" else "c++",
        folder / "kf_single.h",
    )


BOTH = """
#include FIRST
#include SECOND
#include <cstdio>
float *buffer;
kf_result_t call(const kf_f16 *a, kf_f16 *b, cudaStream_t s) { return kf_gelu_f16(a, b, 5, s); }
int main()
{
    float a[3] = {1, -2, 3}, sum[3];
    if (kf_cpu_add_relu_f32(a, a, sum, 3) != KF_SUCCESS) return 1;
    if (sum[0] != 2.0f || sum[1] != 0.0f) return 1;
    if (kf_add_relu_f32(buffer, buffer, buffer, -1, nullptr) != KF_ERROR_INVALID_SIZE) return 2;
    return std::puts(kf_get_last_error_detail()) < 0;
}
"""


@pytest.mark.level(2)
@ways.needs_nvcc
@pytest.mark.parametrize(
    "order",
    [("kf_single.cuh", "kf_single.h"), ("kf_single.h", "kf_single.cuh")],
    ids=["cuh_h", "h_cuh"],
)
def test_cuda(folder, tmp_path, order):
    """Both headers must compile in one .cu, in either order, and in a second unit."""
    first, second = order
    (tmp_path / "both.cu").write_text(
        BOTH.replace("FIRST", f'"{first}"').replace("SECOND", f'"{second}"')
    )
    call = "kf_relu_f32(x, x, 9, 0)" if first.endswith("cuh") else "kf_cpu_relu_f32(x, x, 9)"
    (tmp_path / "other.cu").write_text(
        f'#include "{first}"\nkf_result_t other(float *x) {{ return {call}; }}\n'
    )
    run(
        *NVCC,
        *NVCC_WARNINGS,
        f"-I{folder}",
        tmp_path / "both.cu",
        tmp_path / "other.cu",
        "-o",
        tmp_path / "program",
    )
    assert run(tmp_path / "program") == ways.CUDA_OUTPUT


@pytest.mark.level(2)
def test_beside_installed_headers(folder, home, tmp_path):
    (tmp_path / "mixed.c").write_text(
        '#include <kf/ops/add.h>\n#include "kf_single.h"\n#include <kf/kf.h>\n'
        "extern int not_empty;\n"
    )
    run(
        "gcc",
        "-std=c11",
        *WARNINGS,
        "-fsyntax-only",
        f"-I{folder}",
        f"-I{home}/.local/include",
        tmp_path / "mixed.c",
    )


@pytest.mark.level(2)
def test_same_code_c(folder, home, tmp_path):
    """The object must equal that of the umbrella header, to the byte."""
    made = {}
    text = TWICE + MAIN + OTHER
    for kind in ("tree", "single"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "program.c").write_text(
            text if kind == "single" else text.replace('"kf_single.h"', "<kf/kf.h>")
        )
        run(
            "gcc",
            "-std=c11",
            "-O2",
            "-c",
            f"-I{folder}",
            f"-I{home}/.local/include",
            "program.c",
            cwd=tmp_path / kind,
        )
        made[kind] = (tmp_path / kind / "program.o").read_bytes()
    # the text of an error shows that kf's code is in it
    assert made["tree"] == made["single"] and b"expected" in made["tree"]


@pytest.mark.level(2)
@ways.needs_nvcc
def test_same_code_cuda(folder, home, tmp_path):
    """The umbrella and the single header must give the same code, and the same preprocessed lines,
    so compiling costs the same."""
    call = (
        "kf_result_t call(const kf_bf16 *a, kf_bf16 *b, cudaStream_t s)\n"
        "{\n    return kf_gelu_bf16(a, b, 5, s);\n}\n"
    )
    ptx, texts = [], []
    for kind, include in (
        ("tree", "#include <kf/kf.cuh>\n"),
        ("single", '#include "kf_single.cuh"\n'),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "call.cu").write_text(include + call)
        flags = ["-O3", f"-I{folder}", f"-I{home}/.local/include", "call.cu", "-o"]
        run(*NVCC, *flags, "call.ptx", "-ptx", cwd=tmp_path / kind)
        run(*NVCC, *flags, "call.ii", "-E", cwd=tmp_path / kind)
        ptx.append((tmp_path / kind / "call.ptx").read_text())
        lines = (line.strip() for line in (tmp_path / kind / "call.ii").read_text().splitlines())
        texts.append([line for line in lines if line and not re.match(r"# \d", line)])
    assert ptx[0] == ptx[1] and "kfk_act_bf16" in ptx[0]
    assert texts[0] == texts[1] and sum("kfk_" in line for line in texts[0]) > 1000


@pytest.mark.level(2)
def test_page(home, tmp_path):
    """Runs the page's commands: reduced headers, a user's ops, and both together."""
    shutil.copy(ways.ROOT / "examples/my_ops.toml", tmp_path)
    ways.shell(ways.snippet("single"), tmp_path)
    cut = (tmp_path / "kf_single.h").read_text()
    assert (
        "kf_cpu_add_gelu_bf16(" in cut
        and "_f64(const double *a" not in cut
        and "kfi_cpu_act_silu" not in cut
        and "KF_OPS_MUL_H" not in cut
    )
    assert len(cut) < 400_000
    (tmp_path / "own.c").write_text(
        (ways.ROOT / "examples/04_own_ops.c")
        .read_text()
        .replace("#include <kf/kf.h>\n", "")
        .replace("<kf/my_ops.h>", '"my_ops_single.h"\n#include "kf_single.h"')
    )
    run("gcc", "-std=c11", "-O2", *WARNINGS, "own.c", "-o", "own", "-lm", cwd=tmp_path)
    assert "largest error" in run(tmp_path / "own")
    # If only the user's ops are selected, kf's own must be left out.
    run(
        "kfgen",
        "single",
        "--out",
        tmp_path,
        "--spec",
        "my_ops.toml",
        "--ops",
        "act_layer_scale",
        cwd=tmp_path,
    )
    text = (tmp_path / "my_ops_single.h").read_text()
    assert "kf_cpu_gelu_layer_scale_f32(" in text and "kf_cpu_add_f32(" not in text


OWN_CUDA = """
#include "my_ops_single.cuh"
kf_result_t a(kf_bf16 *x, cudaStream_t s) { return kf_logsigmoid_bf16(x, x, 4, s); }
kf_result_t b(float *x, cudaStream_t s) { return kf_add_gelu_f32(x, x, x, 4, s); }
"""


@pytest.mark.level(2)
@ways.needs_nvcc
def test_own_cuda(tmp_path):
    run(
        "kfgen",
        "single",
        "--out",
        tmp_path,
        "--spec",
        ways.ROOT / "examples/my_ops.toml",
        "--dtypes",
        "f32,bf16",
    )
    (tmp_path / "own.cu").write_text(OWN_CUDA)
    run(*NVCC, *NVCC_WARNINGS, "-c", "own.cu", "-o", "own.o", cwd=tmp_path)


def test_one_file_wants_a_spec(tmp_path):
    output = run("kfgen", "render", "--one-file", "--out", tmp_path, fails=True)
    assert "--one-file needs --spec" in output and not list(tmp_path.iterdir())
    output = run("kfgen", "single", "--out", tmp_path, "--dtypes", "f23", fails=True)
    assert "--dtypes: there is no `f23`" in output and not list(tmp_path.iterdir())
