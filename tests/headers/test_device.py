# SPDX-License-Identifier: Apache-2.0
"""Tests the public device functions (kf/core/device.cuh). docs/device.md must name exactly these;
each must compile in a user's kernel with nvcc and NVRTC; misuse must give a clear error."""

import ctypes
import re
import subprocess

import cases
import pytest
import toolkit
from conftest import ROOT
from kfgen.entries import spec
from kfgen.interfaces.clashes import CORE_NAMES

NVCC = toolkit.nvcc()
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
HEADER = "".join((ROOT / "include/kf/core" / name).read_text() for name in ("device.cuh", "rng.h"))
PAGE = (ROOT / "docs/device.md").read_text()
PUBLIC = set(
    re.findall(r"^(?:template <int vec>\s+)?(?:KFI_DEVICE|KFI_HOST) \w+ (kf_\w+)\(", HEADER, re.M)
) | {"kf_rng_t"}
TYPES = {"float": "float", "kf_f16": "float", "kf_bf16": "float", "double": "double"}
ARCHS = (
    ("75", "80", "90") if cases.LEVEL == 1 else ("75", "80", "86", "89", "90", "90a", "100", "120")
)


def kernels(global_="__global__", index="long long"):
    """User kernels that call every device function, with every type and width."""
    text = []
    for storage, value in TYPES.items():
        for vec in (1, 2, 4, 8, 16):
            dropout = "" if vec == 16 else f"\n    kf_dropout<{vec}>(v, rng, i);"
            text.append(f"""
{global_} void move_{storage}_{vec}(const {storage} *x, {storage} *y, {index} n, kf_rng_t rng)
{{
    const {index} i = (blockIdx.x * ({index})blockDim.x + threadIdx.x) * {vec};
    {value} v[{vec}];
    kf_load<{vec}>(v, x + i, n - i);{dropout}
    kf_store<{vec}>(y + i, v, n - i);
    kf_load<{vec}>(v, x + i);
    kf_store<{vec}>(y + i, v);
}}""")
    for value in ("float", "double"):
        calls = "".join(
            f"    v += kf_{scope}_{what}(v);\n"
            for scope in ("warp", "block")
            for what in ("sum", "max", "min")
        )
        text.append(
            f"\n{global_} void reduce_{value}({value} *x)\n"
            f"{{\n    {value} v = x[threadIdx.x];\n{calls}    x[threadIdx.x] = v;\n}}"
        )
    text.append(f"""
{global_} void bits(unsigned *words, kf_rng_t rng, const unsigned long long *seed,
                    const unsigned long long *offset)
{{
    kf_read_rng(rng, seed, offset);
    kf_philox(words + 4 * threadIdx.x, rng, threadIdx.x);
}}
""")
    return "\n".join(text)


def compiles(include, source, *extra, fails=False):
    command = [
        NVCC,
        "-std=c++17",
        "-Werror",
        "all-warnings",
        "-Xcompiler",
        "-Wall,-Wextra,-Wshadow,-Wconversion,-Werror",
        *extra,
        *(f"-I{d}" for d in include),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, f"{' '.join(command)}\n{done.stderr[:4000]}"
    return done.stderr


def test_the_page_names_every_word():
    """The page names every device function, and no activation of a user's can take these names."""
    named = set(re.findall(r"\bkf_[a-z0-9_]+\b", PAGE)) - {"kf_result_t"}
    activations = {f"kf_{a}{b}" for a in spec.load().activations for b in ("", "_bwd")}
    assert len(PUBLIC) >= 13 and named - activations - {"kf_f16", "kf_bf16"} == PUBLIC
    assert {name.removeprefix("kf_") for name in PUBLIC} <= set(CORE_NAMES)


def test_the_kernels_call_every_word():
    assert {w for w in PUBLIC - {"kf_make_rng"} if not re.search(rf"\b{w}\b", kernels())} == set()


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHS)
def test_nvcc(arch, include, tmp_path):
    """There is no warning, and no kernel has a stack frame: values stay in registers."""
    (tmp_path / "own.cu").write_text(
        "#include <kf/core/device.cuh>\n#include <kf/kf_launchers.h>\n" + kernels()
    )
    output = compiles(
        include,
        tmp_path / "own.cu",
        f"-arch=sm_{arch}",
        "-O3",
        "-Xptxas",
        "-v",
        "-cubin",
        "-o",
        str(tmp_path / "own.cubin"),
    )
    assert len(re.findall(r"Compiling entry function", output)) == 4 * 5 + 3
    frames = re.findall(r"(\d+) bytes stack frame", output)
    assert frames and set(frames) == {"0"}
    shared = re.findall(r"(\d+) bytes smem", output)
    assert sorted(shared) == ["128", "256"]  # the two kernels that reduce, with six reductions each


@pytest.mark.skipif(not toolkit.nvrtc() or not toolkit.include(), reason="no NVRTC")
def test_nvrtc(include):
    """Needs only the include directories of kf and CUDA; every kernel is found by its name."""
    text = "#include <kf/core/device.cuh>\n" + kernels('extern "C" __global__')
    lib, program, size = toolkit.nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"own.cu", 0, None, None) == 0
    )
    options = [b"-arch=sm_90", *(f"-I{d}".encode() for d in [*include, toolkit.include()])]
    result = lib.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()[:3000]
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    for name in re.findall(r"__global__ void (\w+)\(", text):
        assert f".text.{name}".encode() in cubin.raw


@needs_nvcc
def test_beside_kf_cuh(include, tmp_path):
    (tmp_path / "both.cu").write_text("""
#include <kf/core/device.cuh>
#include <kf/ops/act_dropout.cuh>
#include <kf/core/device.cuh>
#include <cstring>
__global__ void own(float *x, kf_rng_t rng)
{
    float v[4];
    kf_load<4>(v, x + 4 * threadIdx.x);
    kf_dropout<4>(v, rng, 4 * threadIdx.x);
    v[0] = kf_gelu(v[0]) + kf_block_sum(v[1]);
    kf_store<4>(x + 4 * threadIdx.x, v);
}
int main()
{
    kf_rng_t rng;
    if (kf_make_rng(&rng, 0.5, 1, 2) != KF_SUCCESS) return 1;
    if (kf_make_rng(&rng, 1.5, 1, 2) != KF_ERROR_INVALID_VALUE) return 2;
    if (std::strcmp(kf_get_last_error_detail(), "kf_make_rng: p is 1.5, expected 0 <= p <= 1") != 0)
        return 5;
    if (kf_make_rng(nullptr, 0.5, 1, 2) != KF_ERROR_NULL_POINTER) return 3;
    static_assert(sizeof rng == 120, "as in C");
    return kf_dropout_f32(nullptr, nullptr, -1, 0.5f, 1, 2, 0) == KF_ERROR_INVALID_SIZE ? 0 : 4;
}
""")
    compiles(include, tmp_path / "both.cu", "-arch=sm_90", "-o", str(tmp_path / "both"))
    assert subprocess.run([tmp_path / "both"]).returncode == 0


# Includes every core header of kernels.
UMBRELLA = cases.by_level(
    [f"kf/ops/{op}.cuh" for op in ("act_dropout", "bias", "group_norm", "softmax", "sum")],
    ["kf/kf.cuh"],
)


@pytest.mark.parametrize(
    "order",
    [["kf/core/device.cuh", *UMBRELLA], [*UMBRELLA, "kf/core/device.cuh"]],
    ids=["before", "after"],
)
def test_beside_the_umbrella(order, include, tmp_path):
    """Names of device.cuh do not clash with other headers: in the emulator's compiler, which reads
    both of nvcc's passes in one, and in nvcc."""
    text = "".join(f"#include <{h}>\n" for h in order)
    text += (
        "__global__ void own(float *x) { x[threadIdx.x] = "
        "kf_block_max(kf_warp_sum(x[threadIdx.x])); }\n"
    )
    (tmp_path / "own.cu").write_text(text)
    (tmp_path / "own.cpp").write_text("#include <cuda_runtime.h>\n" + text)
    if toolkit.include():
        here = [ROOT / "tests/emu/include", ROOT / "tests/emu", *include]
        command = [
            "g++",
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-isystem",
            toolkit.include(),
        ]
        done = subprocess.run(
            [*command, *(f"-I{d}" for d in here), tmp_path / "own.cpp"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[:4000]
    if NVCC and cases.LEVEL > 1:
        compiles(
            include, tmp_path / "own.cu", "-arch=sm_90", "-cubin", "-o", str(tmp_path / "own.cubin")
        )


@needs_nvcc
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kf_load<3>(v, x, 5);", "a vector has 1, 2, 4, 8 or 16 elements"),
        ("kf_store<32>(x, v);", "a vector has 1, 2, 4, 8 or 16 elements"),
        ("kf_dropout<16>(v, rng, 0);", "dropout takes 1, 2, 4 or 8"),
    ],
)
def test_misuse(line, message, include, tmp_path):
    (tmp_path / "wrong.cu").write_text(
        "#include <kf/core/device.cuh>\n__global__ void own(float *x, kf_rng_t rng)\n{\n"
        "    float v[32];\n"
        f"    {line}\n    *x = v[0] + rng.scale;\n}}\n"
    )
    assert message in compiles(
        include,
        tmp_path / "wrong.cu",
        "-arch=sm_90",
        "-ptx",
        "-o",
        str(tmp_path / "wrong.ptx"),
        fails=True,
    )


C_HOST = """
#include <kf/core/rng.h>
#include <stdio.h>
int main(void)
{
    kf_rng_t rng;
    if (kf_make_rng(&rng, 0.5, 1, 2) != KF_SUCCESS || sizeof rng != 120) return 1;
    if (kf_make_rng(&rng, -1.0, 1, 2) != KF_ERROR_INVALID_VALUE) return 2;
    return puts(kf_get_last_error_detail()) < 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc -std=c11 -xc", "g++ -std=c++17 -xc++"])
def test_random_bits_made_without_nvcc(compiler, include, tmp_path):
    """A program without nvcc can create random state, for kernels that NVRTC compiled."""
    (tmp_path / "host.c").write_text(C_HOST)
    flags = ["-Wall", "-Wextra", "-Wconversion", "-Werror", *(f"-I{d}" for d in include)]
    subprocess.run(
        [*compiler.split(), *flags, str(tmp_path / "host.c"), "-o", str(tmp_path / "host")],
        check=True,
    )
    output = subprocess.run([tmp_path / "host"], capture_output=True, text=True, check=True).stdout
    assert output == "kf_make_rng: p is -1, expected 0 <= p <= 1\n"


def test_not_cuda(include, tmp_path):
    (tmp_path / "wrong.cpp").write_text("#include <kf/core/device.cuh>\n")
    command = ["g++", "-fsyntax-only", *(f"-I{d}" for d in include), str(tmp_path / "wrong.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "compile with nvcc or NVRTC" in done.stderr


def test_not_in_the_umbrella(include):
    """Only those who use device.cuh pay for it."""
    for directory in include:
        for path in (directory / "kf").rglob("*.*h"):
            assert path.name != "device.cuh" or "core" in path.parts
            assert '#include "kf/core/device.cuh"' not in path.read_text(), path
