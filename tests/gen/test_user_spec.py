# SPDX-License-Identifier: Apache-2.0
"""A user's spec file: rendered beside installed headers, called from C and compiled as CUDA."""

import shutil
import subprocess

import cases
import checks
import kflib
import pytest
import toolkit
from compilers import quick
from kfgen.cli import main
from kfgen.entries import spec as specs
from kfgen.render.render import Renderer, Selection, parts

SPEC = """
[activation.shifted_log]
brief = "sign(x) * knee * log(1 + |x| / knee)"
scalars = { knee = 1.5 }
expr = "t = knee * log1p(abs(x) / knee); where(x < 0, -t, t)"
dexpr = "dy * (knee / (knee + abs(x)))"
ref = "np.sign(x) * knee * np.log1p(np.abs(x) / knee)"
dref = "1 / (1 + np.abs(x) / knee)"
edges = { nan = "nan", inf = "inf", "-inf" = "-inf" }
dedges = { nan = "nan", inf = 0, "-inf" = 0, 0 = 1 }
source = "here"

[op."clamp_mul_{act}"]
brief = "act(min(max(a, -2), 2) * b + shift)"
operands = { a = "elem", b = "elem", shift = "row" }
expr = "act(min(max(a, -2), 2) * b + shift)"
ref = "act(np.clip(a, -2, 2) * b + shift)"
source = "here"
"""
# The user's op with a built-in activation, a built-in op with the user's activation, and both.
OPS = {
    ("clamp_mul_{act}", "gelu"),
    ("clamp_mul_{act}", "none"),
    ("add_{act}", "shifted_log"),
    ("bias_{act}", "shifted_log"),
    ("{act}_dropout", "shifted_log"),
    ("{act}_glu", "shifted_log"),
    ("batch_norm_{act}", "shifted_log"),
    ("clamp_mul_{act}", "shifted_log"),
}


@pytest.fixture(scope="module")
def spec_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "my.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def installed(once):
    """include/ as `make install` leaves it."""

    def copied(folder):
        shutil.copytree(kflib.ROOT / "include/kf/core", folder / "include/kf/core")
        shutil.copytree(kflib.rendered() / "kf", folder / "include/kf", dirs_exist_ok=True)
        return folder / "include"

    return once("installed headers", copied)


@pytest.fixture(scope="module")
def include(once, spec_file, installed):
    """The installed headers, and the user's own beside them."""

    def rendered(folder):
        assert main(["render", "--spec", str(spec_file), "--out", str(folder / "generated")]) == 0
        return folder / "generated"

    return [installed, once("a user's headers", rendered)]


@pytest.fixture(scope="module")
def functions(spec_file):
    return [
        f for f in kflib.manifest((spec_file,))["functions"] if (f["op"], f["activation"]) in OPS
    ]


def test_passes_check(spec_file, capsys):
    assert main(["check", "--spec", str(spec_file)]) == 0, capsys.readouterr().err
    assert "1 activation: values" in capsys.readouterr().out


def test_writes_its_own_files_alone(include, installed):
    written = {str(p.relative_to(include[1])) for p in include[1].rglob("*") if p.is_file()}
    assert {
        "kf/my.h",
        "kf/my.cuh",
        "kf/user/my/activations.h",
        "kf/user/my/clamp_mul.cuh",
        "kf/user/my/add.h",
    } <= written
    own = {
        "kf/my.h",
        "kf/my.cuh",
        "kf/kf_my_launchers.h",
        *(f"kf/kf_my_launchers_{d}.cu" for d in ("f32", "f16", "bf16", "f64", "tf32")),
    }
    assert own <= written and all(p in own or p.startswith("kf/user/my/") for p in written)
    for op in ("cast", "prelu_bias", "bias_dropout_add"):  # take no activation
        assert f"kf/user/my/{op}.h" not in written
    assert (
        not {str(p.relative_to(installed)) for p in installed.rglob("*") if p.is_file()} & written
    )
    add = "".join((include[1] / part).read_text() for part in parts("kf/user/my/add.cuh"))
    assert '#include "kf/ops/add.cuh"' in add and "KF_USER_MY_ADD_CUH" in add
    assert "kfk_add" not in add and "kf_add_relu" not in add and "kf_add_shifted_log_f32" in add
    assert "kf_relu(" not in (include[1] / "kf/user/my/activations.h").read_text()


@pytest.mark.check
def test_two_spec_files(tmp_path, spec_file):
    other = tmp_path / "other.toml"
    other.write_text(SPEC.replace("shifted_log", "log_shifted").replace("clamp_mul", "mul_clamp"))
    first = Renderer(Selection(specs.load([spec_file])), "my").render()
    second = Renderer(Selection(specs.load([other])), "other").render()
    assert not set(first) & set(second)
    both = Renderer(
        Selection(specs.load([spec_file, other])), specs.user_stem([spec_file, other])
    ).render()
    assert (
        "kf/my_other.h" in both
        and "kf_cpu_mul_clamp_shifted_log_f32" in both["kf/user/my_other/mul_clamp.h"]
    )


def test_manifest_says_where_they_land(functions, include):
    assert {(f["op"], f["activation"]) for f in functions} == OPS
    for f in functions:
        assert f["header"].startswith("kf/user/my/")
        for part, name in (
            *((p, f["name"]) for p in parts(f["header"] + ".cuh")[1:]),
            (f["header"] + ".h", f["cpu_name"]),
        ):
            assert f" {name}(" in (include[1] / part).read_text()


@pytest.fixture(scope="module")
def lib(functions, include, once):
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
    return kflib.Lib(
        "cpu",
        once(
            "a user's functions",
            lambda folder: kflib.library("cpu", functions, folder, flags, include=include),
        ),
    )


@pytest.mark.check
def test_called_from_c(lib, functions, spec_file):
    memory = checks.CpuMemory()
    assert len(functions) > 60
    for f in functions:
        sizes = cases.of_form(f, {"flat": (1000,), "rows": (5, 300), "planes": (2, 3, 304)})
        for values in ("normal", "special"):
            checks.run(lib, memory, f, sizes, values, files=(spec_file,))


PROGRAM = """
#include <kf/kf.h>
#include <kf/my.h>
#include <kf/my.h>
int main(void)
{
    const float a[] = {1, -9}, b[] = {1, 1}, shift[] = {0, 0.5f};
    float out[2], sum[2];
    if (kf_cpu_clamp_mul_relu_f32(a, b, shift, out, 1, 2) != KF_SUCCESS) return 1;
    if (out[0] != 1.0f || out[1] != 0.0f) return 1;
    if (kf_cpu_add_shifted_log_f32(a, b, sum, 2, 1.5f) != KF_SUCCESS) return 2;
    if (!(sum[0] > 1.27f && sum[0] < 1.28f)) return 2;
    return kf_shifted_log(2.0f, 1.5f) == sum[0] ? 0 : 3;
}
"""


@pytest.mark.parametrize(
    "compiler", cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17"])
)
def test_umbrella(include, tmp_path, compiler):
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    language = "c" if "gcc" in compiler else "c++"
    flags = ["-Wall", "-Wextra", "-Werror", *(f"-I{d}" for d in include)]
    subprocess.run(
        [
            *compiler.split(),
            *flags,
            "-x",
            language,
            str(source),
            "-o",
            str(tmp_path / "program"),
            "-lm",
        ],
        check=True,
    )
    assert subprocess.run([tmp_path / "program"]).returncode == 0


CUDA_PROGRAM = """
#include <kf/kf.cuh>
#include <kf/my.cuh>
kf_result_t use(const float *a, const kf_f16 *x, const kf_f16 *b, kf_f16 *out, kf_f16 *db, void *w,
                size_t size, cudaStream_t s)
{
    kf_result_t r = kf_clamp_mul_relu_bwd_f16(x, x, b, NULL, x, out, out, db, 8, 8, w, size, s);
    if (!r) r = kf_clamp_mul_shifted_log_f32(a, a, a, (float *)out, 8, 8, 1.5f, s);
    if (!r) r = kf_add_shifted_log_f16(x, x, out, 8, 1.5f, s);
    if (!r) r = kf_bias_shifted_log_bwd_f16(x, b, NULL, x, out, db, 8, 8, 1.5f, w, size, s);
    return r;
}
__global__ void own(float *x) { x[threadIdx.x] = kf_shifted_log(x[threadIdx.x], 1.5f); }
"""


@pytest.mark.check
@pytest.mark.skipif(
    not shutil.which("nvcc"),
    reason="no nvcc: the CUDA headers of a user's spec file are not compiled",
)
def test_compiled_as_cuda(include, spec_file, tmp_path):
    source = tmp_path / "program.cu"
    source.write_text(CUDA_PROGRAM)
    done = subprocess.run(
        [
            "nvcc",
            "-arch=sm_90",
            *quick(),
            "-Werror",
            "all-warnings",
            *(f"-I{d}" for d in include),
            "-c",
            str(source),
            "-o",
            str(tmp_path / "program.o"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    text = (tmp_path / "program.o").read_bytes()
    own = specs.load([spec_file]).activations["shifted_log"].id
    for kernel in (
        "kfk_clamp_mul_bwd_f16ILi1E",
        f"kfk_clamp_mul_f32ILi{own}E",
        f"kfk_add_f16ILi{own}E",
        f"kfk_bias_bwd_f16ILi{own}E",
    ):
        assert kernel.encode() in text
    for kernel in (b"kfk_clamp_mul_f16", b"kfk_mul_"):
        assert kernel not in text


def passes_as_cuda(folder, include, text):
    emu = kflib.ROOT / "tests/emu"
    (folder / "program.cpp").write_text("#include <cuda_runtime.h>\n" + text)
    command = [
        "g++",
        "-std=c++17",
        "-fsyntax-only",
        "-isystem",
        toolkit.include(),
        f"-I{emu}/include",
        f"-I{emu}",
        *include,
    ]
    done = subprocess.run([*command, folder / "program.cpp"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


LIBRARY = """
[activation.my{name}]
brief = "{factor} x"
expr = "{factor} * x"
ref = "{factor} * x"
"""
BOTH = """
#include <kf/user/libone/act.{ext}>
#include <kf/user/libtwo/act.{ext}>
"""


@pytest.mark.check
def test_two_libraries(installed, tmp_path):
    """A program may use spec files of independent users: the ids of their activations differ."""
    for name, factor in (("one", 2), ("two", 3)):
        (tmp_path / f"lib{name}.toml").write_text(LIBRARY.format(name=name, factor=factor))
        assert (
            main(["render", "--spec", str(tmp_path / f"lib{name}.toml"), "--out", str(tmp_path)])
            == 0
        )
    include = [f"-I{d}" for d in (installed, tmp_path)]
    (tmp_path / "both.c").write_text(
        BOTH.format(ext="h")
        + """
int main(void)
{
    float x[2] = {1, -2}, one[2], two[2];
    if (kf_cpu_myone_f32(x, one, 2) != KF_SUCCESS) return 1;
    if (kf_cpu_mytwo_f32(x, two, 2) != KF_SUCCESS) return 1;
    return one[0] == 2 && one[1] == -4 && two[0] == 3 && two[1] == -6 ? 0 : 2;
}
"""
    )
    subprocess.run(
        ["gcc", "-O1", *include, tmp_path / "both.c", "-o", tmp_path / "both", "-lm"], check=True
    )
    assert subprocess.run([tmp_path / "both"]).returncode == 0
    if toolkit.include():  # CUDA, through the compiler of the emulation
        passes_as_cuda(
            tmp_path,
            include,
            BOTH.format(ext="cuh")
            + """
kf_result_t both(const float *x, float *out)
{
    const kf_result_t r = kf_myone_f32(x, out, 2, nullptr);
    return r == KF_SUCCESS ? kf_mytwo_f32(x, out, 2, nullptr) : r;
}
""",
        )


# An op over rows that has no scalars, and the loss of a layer that is made of it, in files of their
# own. {0}: what it calls the logits.
SHARP = """
outputs = {{ loss = "m = max({0}); 2 * (m + log(sum(exp({0} - m)))) - pick({0}, label)" }}
refs = {{ loss = "2 * (max({0}) + np.log(sum(np.exp({0} - max({0}))))) - \
np.where((label < 0) | (label >= count), np.nan, \
sum(np.where(column == label, {0}, 0)))" }}
"""
LABEL = 'label = { kind = "per_row", dtype = "I", grad = false }'
LOSSES = {
    "rows": '[op.sharp_loss]\nfamily = "rows"\nbrief = "2 lse - x[label]"\n'
    'operands = { x = "elem", ' + LABEL + " }" + SHARP.format("x"),
    "layer": '[op.linear_sharp_loss]\nfamily = "linear_cross_entropy"\nrows = "sharp_loss"\n'
    'brief = "of x . weight^T + bias"\n'
    'operands = { x = { kind = "left", grad = false }, '
    'weight = { kind = "right", grad = false }, bias = { kind = "row", grad = false, '
    "absent = 0 }, " + LABEL + " }" + SHARP.format("logits"),
}
LOSS_PROGRAM = """
#include <kf/rows_layer.h>
#include <math.h>
int main(void)
{
    const float x[2] = {1, 2}, weight[3] = {0.5f, -1, 2};
    const int64_t label[2] = {2, 0};
    static _Alignas(256) char workspace[1 << 20];
    float loss[2];
    const size_t need = kf_cpu_linear_sharp_loss_f32_workspace_bytes(2, 3, 1);
    if (need > sizeof workspace) return 1;
    const kf_result_t result = kf_cpu_linear_sharp_loss_f32(x, weight, NULL, label, loss, 2, 3, 1,
                                                            NULL, workspace, need);
    if (result != KF_SUCCESS) return 1;
    for (int r = 0; r < 2; ++r) {
        double sum = 0;
        for (int c = 0; c < 3; ++c) sum += exp(x[r] * weight[c]);
        if (!(fabs(loss[r] - (2 * log(sum) - x[r] * weight[label[r]])) < 1e-5)) return 2 + r;
    }
    return 0;
}
"""


def test_losses_of_a_user_s_own_rows(installed, tmp_path):
    files = [tmp_path / f"{name}.toml" for name in LOSSES]
    for path in files:
        path.write_text(LOSSES[path.stem])
    assert (
        main(
            [
                "render",
                *(word for path in files for word in ("--spec", str(path))),
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    include = [f"-I{d}" for d in (installed, tmp_path)]
    (tmp_path / "loss.c").write_text(LOSS_PROGRAM)
    subprocess.run(
        [
            "gcc",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            *include,
            tmp_path / "loss.c",
            "-o",
            tmp_path / "loss",
            "-lm",
        ],
        check=True,
    )
    assert subprocess.run([tmp_path / "loss"]).returncode == 0
    if toolkit.include():  # CUDA, through the compiler of the emulation
        passes_as_cuda(
            tmp_path,
            include,
            """#include <kf/rows_layer.cuh>
kf_result_t loss(const float *x, const float *w, const int64_t *label, float *out, void *work,
                 size_t size)
{
    return kf_linear_sharp_loss_f32(x, w, nullptr, label, out, 2, 3, 1, nullptr, work, size,
                                    nullptr);
}
""",
        )
