# SPDX-License-Identifier: Apache-2.0
"""Tests kf inside a crowded user file: macros like those of Windows' headers and old code, `using
namespace std`, and functions and globals with the names of kf's ops and arguments."""

import cases
import kflib
import pytest
from compilers import ARCH, DIALECTS, NVCC, addresses, flags, passes, sample, write

# Macros of windows.h, complex.h, termios.h, curses.h and of users; names that kf's code might use.
MACROS = """
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define abs(x) ((x) < 0 ? -(x) : (x))
#define near
#define far
#define small char
#define interface struct
#define pascal
#define hyper long long
#define IN
#define OUT
#define CONST const
#define VOID void
#define TRUE 1
#define FALSE 0
#define BOOL int
#define ERROR 0
#define NO_ERROR 0
#define DELETE 1
#define STRICT 1
#define I 1i
#define N 1000
#define T 3
#define M 4
#define K 5
#define E 6
#define B0 7
#define VT0 8
#define PI 3.14
#define SIZE 16
#define THREADS 32
#define TILE 64
#define ROWS 65
#define VEC 4
#define CHECK(x) if (!(x)) return
#define ASSERT(x)
#define LOG(x)
#define _A 1
#define timeout 5
#define move(y, x) (y)
#define erase() 0
#define clear() 0
"""
SYSTEM = "".join(
    f"#include <{h}.h>\n"
    for h in ("limits", "math", "stdarg", "stddef", "stdint", "stdio", "string", "unistd")
)
CXX = (
    "#include <algorithm>\n#include <cmath>\n#include <cstddef>\n#include <functional>\n"
    "#include <numeric>\n#include <vector>\n"
)
WORDS = sorted({a["name"] for a in kflib.manifest()["activations"]} - {"tanh"}) + [
    "cast",
    "add",
    "bias",
    "scale",
    "dropout",
    "batch_norm",
    "tile",
    "span",
    "each",
    "row",
    "launch",
    "select_",
    "philox",
    "fill",
    "clamp_",
]


def own(cxx):
    """A user function for each op name, and variables with the names of arguments."""
    linkage = "" if cxx else "static "
    text = "".join(f"{linkage}inline float {w}(float v) {{ return v + 1; }}\n" for w in WORDS)
    return (
        text
        + "int n, rows, cols, outer, inner, channels, x, out, stream, workspace, seed, state, p, "
        "scalars, at, shape;\n"
    )


@pytest.mark.parametrize("dialect", cases.by_level(["c++17"], DIALECTS))
def test_c(dialect, include, tmp_path):
    compiler, *language = DIALECTS[dialect]
    cxx = "c++" in language
    text = (
        SYSTEM
        + (CXX + "using namespace std;\n" if cxx else "")
        + own(cxx)
        + MACROS
        + "#include <kf/kf.h>\n"
    )
    text += (
        "int use(const float *a, float *b);\n"
        "int use(const float *a, float *b) { return (int)kf_cpu_gelu_f32(a, b, N) + "
        "(int)gelu(1.0f); }\n"
    )
    [source] = write(tmp_path, {"polluted.c": text})
    # Build integrations include kf as a system path; otherwise -Wshadow would report the user's
    # globals.
    include_words = [w for d in include for w in ("-isystem", d)]
    passes(
        [
            compiler,
            *language,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-fsyntax-only",
            *include_words,
            source,
        ]
    )


@pytest.mark.level(2)
@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_cuda(include, tmp_path):
    functions = sample(5)[::3]
    text = (
        "#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        + SYSTEM
        + CXX
        + "using namespace std;\n"
    )
    text += own(True) + MACROS + "#include <kf/kf.cuh>\n" + addresses(functions)
    text += (
        "kf_result_t use(const float *a, float *b, cudaStream_t s) { return kf_gelu_f32(a, b, "
        "N, s); }\n"
    )
    text += "float mine(float v) { return gelu(cast(v)); }\n"
    [source] = write(tmp_path, {"polluted.cu": text})
    passes(
        [NVCC, "-std=c++17", ARCH, "-Werror", "all-warnings", *flags(include), "-c", source],
        cwd=tmp_path,
    )


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_inside_a_file_of_namespaces(include, tmp_path):
    """Calls kf from a namespace with functions and types of kf's names, from a member function and
    from a lambda."""
    text = """#include <kf/ops/add.cuh>
namespace mine {
struct tensor { float *p; long long n; };
template <class T> T add(T a, T b) { return a + b; }
enum { relu, none, f32 };
struct layer {
    int rows, cols;
    kf_result_t forward(tensor a, tensor b, tensor out, cudaStream_t stream) const
    {
        auto run = [&](const float *x) { return kf_add_relu_f32(x, b.p, out.p, a.n, stream); };
        return run(a.p);
    }
};
}
kf_result_t call(mine::tensor t) { return mine::layer{1, 2}.forward(t, t, t, 0); }
"""
    [source] = write(tmp_path, {"names.cu": text})
    passes(
        [NVCC, "-std=c++17", ARCH, "-Werror", "all-warnings", *flags(include), "-c", source],
        cwd=tmp_path,
    )
