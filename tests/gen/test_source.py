# SPDX-License-Identifier: Apache-2.0
"""`kfgen explain` and `kfgen source`: a function explained, and a kernel that compiles alone."""

import ctypes
import re
import shutil
import subprocess

import cases
import pytest
import toolkit
from compilers import quick
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.render import source
from kfgen.render.render import Selection

SELECTION = Selection(spec.load())


def output_of(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "kf_add_relu_f16",
            [
                "gen/kfgen/families/elementwise/ops.toml",
                '[op."add_{act}"]',
                "[activation.relu]",
                'expr = "where(x <= 0, 0, x)"',
                "kf_result_t kf_add_relu_f16(",
                "(x <= 0.0f ? 0.0f : x)",
                "kfi_cpu_select_f32(",
                "(x <= 0.0f ? 0.0f : dy)",
                "derived from its expr",
                "kfk_add_f16<1, 8, 1>",
                "templates/elementwise/each.cuh.j2",
                "kf/ops/add.cuh",
            ],
        ),
        (
            "kf_bias_gelu_bwd_bf16",
            ["dbias", "kfi_gelu_bwd_lp(x)", "templates/elementwise/sum.cuh.j2", "kf/ops/bias.cuh"],
        ),
        (
            "kf_cpu_bias_gelu_bwd_bf16",
            [
                "kf_result_t kf_cpu_bias_gelu_bwd_bf16(",
                "templates/elementwise/run.h.j2",
                "kf/ops/bias.h",
            ],
        ),
        (
            "kf_silu_dropout_state_f32",
            [
                "const uint64_t *seed, const uint64_t *offset, uint64_t offset_add",
                "closed form, its dexpr",
                'dexpr = "s = sigmoid(x)',
                "kfk_act_dropout_f32<10, 4, ",
            ],
        ),
        ("kf_cpu_mish_f64", ["n = t * (t + 2)\n    r = rcp(n + 2)", "kf/ops/act.h"]),
        ("kf_cast_f32_bf16", ["[op.cast]", "kfk_cast_f32_bf16<0, 4, 1>", "Workspace\n    none\n"]),
        (
            "kf_embedding_bwd_f32",
            [
                "    1. counts the digits of each tile of indices\n       if     rows > 0\n"
                "       per    digit of 8 bits\n       reads  index\n"
                "       writes workspace.sorted\n"
                "       launch grid (ceil(rows / 2048)); block (256); early\n"
                "              kfk_index_count<KF_I64>\n",
                "    5. sums the rows of each token\n",
                "reads  dout, dweight, workspace.sorted\n",
                "Workspace\n    kf_embedding_bwd_f32_workspace_bytes(rows, cols, vocab) bytes\n",
            ],
        ),
        (
            "kf_linear_relu_bf16",
            ["tensor maps of x, weight", "clusters of up to 4", "shared memory: pipeline stages"],
        ),
    ],
)
def test_explain(capsys, name, parts):
    text = output_of(capsys, "explain", name)
    for part in parts:
        assert part in text
    assert ("/kernel.h.j2" in text) != ("/run.cuh.j2" in text)
    assert "[activation.elu]" not in text and not re.search(r"[ \t]+$", text, re.M)


def test_explain_of_a_users_function(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[activation.twice]\nbrief = "2 x"\nexpr = "2 * x"\nref = "2 * x"\n')
    text = output_of(capsys, "explain", "kf_add_twice_f16", "--spec", str(path))
    assert (
        str(path) in text
        and "gen/kfgen/families/elementwise/ops.toml" in text
        and "kf/user/mine/add.cuh" in text
        and "kf/mine.cuh" in text
    )


@pytest.mark.parametrize("command", ["explain", "source"])
def test_unknown_name(capsys, command):
    assert main([command, "kf_add_rellu_f16"]) == 1
    captured = capsys.readouterr()
    assert (
        "`kf_add_rellu_f16` is not a function of kf; similar names: kf_add_relu_f16, "
        in captured.err
        and not captured.out
    )


def test_help(capsys):
    for words in (["help"], ["help", "explain"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith(" ".join(["usage: kfgen", *words[1:], "[-h]"]))


@pytest.mark.parametrize("command", ["explain", "source"])
def test_a_name_of_python(capsys, command):
    assert main([command, "bias_gelu"]) == 0
    found = capsys.readouterr().out
    assert main([command, "kf_bias_gelu_f32"]) == 0 and capsys.readouterr().out == found


@pytest.mark.parametrize("name", ["kf_linear_softplus_f32", "kf_cpu_linear_softplus_bwd_bf16"])
def test_an_activation_that_the_op_lacks(capsys, name):
    assert main(["explain", name]) == 1
    captured = capsys.readouterr()
    assert f"`{name}` is not a function of kf: linear has no softplus; it has: none, relu," in (
        captured.err
    )


CPU = [
    "kf_cpu_add_relu_f16",
    "kf_cpu_add_i32",
    "kf_cpu_bias_gelu_bwd_bf16",
    "kf_cpu_batch_norm_silu_bwd_f32",
    "kf_cpu_silu_dropout_state_bwd_f64",
    "kf_cpu_cast_f32_bf16",
    "kf_cpu_linear_cross_entropy_with_grad_bf16_f32",
]


@pytest.mark.parametrize("name", CPU)
def test_c(capsys, tmp_path, name):
    text = output_of(capsys, "source", name)
    assert not re.search(r'#\s*include\s*["<]kf', text)
    path = tmp_path / "one.c"
    path.write_text(text + f"void *address(void) {{ return (void *){name}; }}\n")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    subprocess.run(["gcc", *flags, "-c", str(path), "-o", str(tmp_path / "one.o")], check=True)


CUDA = [
    "kf_add_relu_f16",
    "kf_bias_gelu_bwd_bf16",
    "kf_batch_norm_bwd_f32",
    "kf_silu_dropout_state_f32",
    "kf_gelu_glu_bwd_f64",
    "kf_cast_f32_bf16",
    "kf_linear_cross_entropy_f32",
]


@pytest.mark.check
@pytest.mark.parametrize("name", CUDA[:3])
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
def test_nvcc(capsys, tmp_path, name):
    text = output_of(capsys, "source", name)
    assert not re.search(r'#\s*include\s*["<]kf', text)
    assert set(re.findall(r"\bkf_\w+_(?:f32|f16|bf16|f64)(?=\()", text)) == {name}
    path = tmp_path / "one.cu"
    path.write_text(text + f"void *use() {{ return (void *){name}<>; }}\n")
    done = subprocess.run(
        [
            "nvcc",
            "-arch=sm_90",
            *quick(),
            "-Werror",
            "all-warnings",
            "-c",
            str(path),
            "-o",
            str(tmp_path / "one.o"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        source.kernel_names(source.find(SELECTION, name)[0])[0].split("<")[0].encode()
        in (tmp_path / "one.o").read_bytes()
    )


LOADER = """\
#include <cuda.h>
CUresult load(const char *name, CUfunction *function);
#define KF_LOAD_KERNEL(name, function) load(name, function)
"""


@pytest.mark.parametrize("compiler", cases.by_level(["g++"], ["g++", "clang++"]))
@pytest.mark.parametrize("name", CUDA)
@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_launcher_without_nvcc(capsys, tmp_path, name, compiler):
    """A C++ compiler builds the launcher from NVRTC's text, with CUDA's driver header and dim3."""
    path = tmp_path / "one.cpp"
    path.write_text(
        LOADER + output_of(capsys, "source", name) + f"void *use() {{ return (void *){name}<>; }}\n"
    )
    flags = [
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Wshadow",
        "-Wconversion",
        "-Werror",
        "-isystem",
        str(toolkit.include()),
    ]
    done = subprocess.run(
        [compiler, *flags, "-MD", "-c", str(path), "-o", str(tmp_path / "one.o")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:3000]
    assert (
        "cuda.h" in (read := (tmp_path / "one.d").read_text())
        and "cuda_runtime" not in read
        and "cuda_fp16" not in read
    )
    assert (
        b"cuLaunchKernelEx" in (code := (tmp_path / "one.o").read_bytes())
        and b"cudaLaunch" not in code
    )
    assert source.kernel_names(source.find(SELECTION, name)[0])[0].split("<")[0].encode() in code


@pytest.mark.check
@pytest.mark.parametrize("name", CUDA)
def test_nvrtc(capsys, name):
    """NVRTC compiles the device part with CUDA's headers and finds the kernels named at the top."""
    lib, include = toolkit.nvrtc(), toolkit.include()
    if not lib or not include:
        pytest.skip("no NVRTC")
    text = output_of(capsys, "source", name)
    asked = re.findall(r"^//     (kfk_.*)$", text, re.M)
    assert asked
    program = ctypes.c_void_p()
    assert (
        lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"one.cu", 0, None, None) == 0
    )
    for kernel in asked:
        assert lib.nvrtcAddNameExpression(program, kernel.encode()) == 0
    options = (ctypes.c_char_p * 2)(b"-arch=sm_90", f"-I{include}".encode())
    result = lib.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()[:3000]
    for kernel in asked:
        lowered = ctypes.c_char_p()
        assert (
            lib.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(lowered)) == 0
            and lowered.value
        )


def test_conditional_includes():
    """A header first included inside an #if is repeated outside; all others occur once."""
    files = {
        "kf/a.h": '#ifdef X\n#include "kf/b.h"\n#endif\n'
        '#include "kf/c.h"\n#include <kf/b.h>\n#include <math.h>\n',
        "kf/b.h": "int b;\n",
        "kf/c.h": '#ifdef Y\n#include "kf/b.h"\n#endif\nint c;\n',
    }
    files = {
        path: f"#ifndef {path[3].upper()}_H\n#define {path[3].upper()}_H\n{text}#endif\n"
        for path, text in files.items()
    }
    text = source.inline("kf/a.h", files)
    assert (
        text.count("int b;") == 3
        and text.count("int c;") == 1
        and "#include <math.h>" in text
        and '"kf/' not in text
    )
    files["kf/a.h"] = (
        files["kf/a.h"]
        .replace("#ifdef X\n", "")
        .replace('#endif\n#include "kf/c.h"', '#include "kf/c.h"')
    )
    assert source.inline("kf/a.h", files).count("int b;") == 1


def test_a_header_that_is_another_each_time():
    """A header without include guard, which reads its includer's macros, is repeated."""
    files = {
        "kf/a.h": '#ifndef A_H\n#define A_H\n#define N 1\n#include "kf/b.h"\n'
        '#undef N\n#define N 2\n#include "kf/b.h"\n#endif\n',
        "kf/b.h": "#ifdef N\nint b;\n#endif\n",
    }
    assert source.inline("kf/a.h", files).count("int b;") == 2
