# SPDX-License-Identifier: Apache-2.0
"""Tests every CUDA header with nvcc, without a warning: alone and together, every kernel on one
architecture (level 1: of three activations) and samples on the others, with debug information, and
without CUDA's half operators."""

import cases
import compilers
import kflib
import pytest
from compilers import (
    ARCH,
    CORE_C,
    CORE_CUDA,
    NVCC,
    NVCC_WARNINGS,
    STEMS,
    addresses,
    compile_cuda,
    file_of,
    flags,
    passes,
    quick,
    sample,
    write,
)

pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")
FUNCTIONS = kflib.on("cuda", kflib.manifest()["functions"])
# The oldest architecture, which has only the portable kernels.
ALL_ON = "sm_75"
PROGRAMS = {}  # {header: {dtypes: functions}}
for f in FUNCTIONS:
    PROGRAMS.setdefault(f["header"], {}).setdefault(tuple(f["dtypes"]), []).append(f)
TURNS = {
    (header, dtypes): turn
    for turn, (header, dtypes) in enumerate((h, d) for h, found in PROGRAMS.items() for d in found)
}
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


def cubin(include, folder, functions, arch, *extra):
    [source] = write(folder, {"all.cu": addresses(functions)})
    passes(
        [
            NVCC,
            f"-arch={arch}",
            "-Werror",
            "all-warnings",
            *extra,
            *flags(include),
            "-cubin",
            source,
            "-o",
            folder / "all.cubin",
        ],
        cwd=folder,
    )


def of_program(program):
    """Functions of a program: all activations of {act}; elsewhere none, gelu and one more
    activation per dtype, in turn. test_nvrtc.py compiles a kernel of every activation, at level 3
    of every function."""
    found = []
    for dtypes, functions in PROGRAMS[program].items():
        others = list(
            dict.fromkeys(
                f["activation"] for f in functions if f["activation"] not in ("none", "gelu")
            )
        )
        one = others[TURNS[program, dtypes] % len(others)] if others else ""
        found += [
            f
            for f in functions
            if f["op"] == "{act}" or f["activation"] in ("none", "gelu", one) or cases.LEVEL > 2
        ]
    return found


# Level 1 has a kernel of every op and direction; NVRTC compiles one of every activation.
UNITS = 6


def units(program):
    """Splits a program into parts of at most 18 functions that compile in parallel: ops over rows
    take minutes."""
    functions = of_program(program)
    parts = -(-len(functions) // 18)
    return [functions[part::parts] for part in range(parts)]


CHOSEN = cases.by_level(
    {str(i): sample()[i::UNITS] for i in range(UNITS)},
    {f"{program}-{i}": unit for program in PROGRAMS for i, unit in enumerate(units(program))},
)


@pytest.mark.parametrize("arch", [ALL_ON] if cases.LEVEL < 3 else ARCHITECTURES)
@pytest.mark.parametrize("unit", CHOSEN)
def test_every_kernel(unit, arch, include, tmp_path):
    cubin(include, tmp_path, CHOSEN[unit], arch, *quick())


def test_every_activation_is_compiled():
    """Each family compiles every activation in some op."""
    found = {(f["family"], f["activation"]) for program in PROGRAMS for f in of_program(program)}
    assert found == {(f["family"], f["activation"]) for f in FUNCTIONS}


PARTS = cases.by_level(1, 4)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "arch", cases.by_level(["sm_90a", "sm_120"], [a for a in ARCHITECTURES if a != ALL_ON])
)
def test_other_architectures(arch, part, include, tmp_path):
    """Each architecture compiles every second op and direction (level 1: every fourth), with
    varying dtypes and activations."""
    turn = ARCHITECTURES.index(arch)
    cubin(
        include,
        tmp_path,
        sample(turn)[turn % 2 :: cases.by_level(4, 2)][part::PARTS],
        arch,
        *quick(),
    )


def test_core_alone(include, tmp_path):
    """From level 2 on each header is compiled alone, as NVRTC does at level 1."""
    headers = [*CORE_CUDA, "kf/ops/activations.cuh"]
    # C headers of core that CUDA code shares.
    shared = "".join(
        f'#include "{h}"\n'
        for h in CORE_C
        if not h.startswith(
            ("kf/core/elementwise/", "kf/core/math", "kf/core/convert", "kf/core/parallel")
        )
    )
    compile_cuda(
        include,
        tmp_path,
        cases.by_level(
            {"all.cu": "".join(f'#include "{h}"\n' for h in headers), "shared.cu": shared},
            {"shared.cu": shared}
            | {f"{file_of(h)}.cu": f'#include "{h}"\n' for h in (*headers, "kf/kf.cuh")},
        ),
    )


@pytest.mark.level(2)
@pytest.mark.parametrize("part", range(4))
def test_ops_alone(part, include, tmp_path):
    """Builds whole objects with both of nvcc's passes: each op's header with one launcher per
    direction."""
    chosen = {}
    for f in sample(part):
        chosen.setdefault(f["header"], []).append(f)
    files = {f"{h.split('/')[-1]}.cu": addresses(functions) for h, functions in chosen.items()}
    assert len(files) == len(STEMS)
    compile_cuda(
        include, tmp_path, {name: files[name] for name in sorted(files)[part::4]}, *quick()
    )


@pytest.mark.parametrize("option", cases.by_level(["-lineinfo"], ["-G", "-lineinfo"]))
def test_debug_information(option, include, tmp_path):
    functions = [
        f
        for f in sample(1)
        if f["scratch"] or f["dropout"] or "cast" in f["header"] or not f["bwd"]
    ][:: cases.by_level(12, 2)]
    objects = compile_cuda(
        include, tmp_path, {"debug.cu": addresses(functions)}, option, "-no-compress", *quick()
    )
    assert b".debug_line" in objects[0].read_bytes() and any(f["scratch"] for f in functions)


# Macros with which PyTorch's extensions are compiled, and the others of their kind.
HALF_OFF = [
    f"-D__CUDA_NO_{w}__"
    for w in (
        "HALF_OPERATORS",
        "HALF_CONVERSIONS",
        "HALF2_OPERATORS",
        "BFLOAT16_OPERATORS",
        "BFLOAT16_CONVERSIONS",
        "BFLOAT162_OPERATORS",
    )
]


def test_without_half_operators(include, tmp_path):
    """Compiles f16 and bf16 kernels of every op and direction, and every cast."""
    functions = [
        f for f in (*sample(0, ("f16", "bf16")), *(f for f in FUNCTIONS if f["op"] == "cast"))
    ]
    cubin(
        include, tmp_path, cases.by_level(functions[::14], functions), "sm_90", *HALF_OFF, *quick()
    )
    if cases.LEVEL > 1:
        compile_cuda(
            include,
            tmp_path,
            {"umbrella.cu": "#include <kf/kf.cuh>\n" + addresses(functions[:6])},
            *HALF_OFF,
        )


BOTH = """
#include <kf/kf.cuh>
#include <kf/kf.h>
#include <kf/kf.cuh>
#include <kf/kf.h>
#include <kf/ops/add.cuh>
#include <kf/ops/add.h>

static_assert(sizeof(kf_f16) == 2 && alignof(kf_f16) == 2 && sizeof(kf_bf16) == 2 &&
    alignof(kf_bf16) == 2, "2-byte types");
static_assert(sizeof(kf_i64) == 8, "8 bytes");
kf_f16 cuda_f16(__half h) { return h; }
kf_bf16 cuda_bf16(__nv_bfloat16 h) { return h; }

// An address, a pointer to function, and a call, beside a global of the user's own.
int n, x, out, rows;
kf_result_t (*pointer)(const float *, const float *, float *, int64_t, cudaStream_t) =
    kf_add_relu_f32<>;
kf_result_t both(const kf_f16 *a, kf_f16 *b, const float *f, float *g, cudaStream_t s)
{
    const kf_result_t one = kf_gelu_f16(a, b, 5, s);
    return one != KF_SUCCESS ? one : kf_cpu_relu_f32(f, g, 5);
}
"""


@pytest.mark.parametrize("standard", cases.by_level(["c++17"], ["c++17", "c++20"]))
def test_both_umbrellas(standard, include, tmp_path):
    """Includes both umbrellas twice, in both orders, as a system path like build integrations do. A
    user's globals then cause no shadow warning."""
    swapped = BOTH.replace(
        "#include <kf/kf.cuh>\n#include <kf/kf.h>\n",
        "#include <kf/kf.h>\n#include <kf/kf.cuh>\n",
        1,
    )
    files = cases.by_level({"both.cu": BOTH}, {"both.cu": BOTH, "swapped.cu": swapped})
    sources = write(tmp_path, files)
    passes(
        [
            NVCC,
            f"-std={standard}",
            ARCH,
            *quick(),
            *NVCC_WARNINGS,
            *(f"-isystem={d}" for d in include),
            "-c",
            *sources,
        ],
        cwd=tmp_path,
    )


def test_the_samples_are_whole():
    """The samples cover every op and direction, and over the architectures all dtypes and most
    activations."""
    kinds = {(f["op"], f["bwd"], f["state"]) for f in FUNCTIONS}
    found = [f for turn in range(len(ARCHITECTURES)) for f in compilers.sample(turn)]
    assert {(f["op"], f["bwd"], f["state"]) for f in found} == kinds
    assert {f["dtypes"][0] for f in found} >= {"f32", "f16", "bf16", "f64"}
    assert len({f["activation"] for f in found}) > 15
