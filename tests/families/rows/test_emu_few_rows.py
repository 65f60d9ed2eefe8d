# SPDX-License-Identifier: Apache-2.0
"""Gradients of few rows, summed in the launch that computes the rows.

Weight gradients (kfi_row_strip_enter) have the bits of two launches; those of elementwise ops
(kfi_few_sum) have bits that depend on sizes alone.
"""

import checks
import emulator
import faults
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
NAMES = ("kf_layer_norm_bwd_f32", "kf_add_rms_norm_gelu_bwd_bf16")
FUNCTIONS = faults.named(NAMES, "cuda")
# One row and some; more than a thread's; as many as the second launch has groups; columns that are
# no multiple of a strip.
SIZES = [(1, 1024), (5, 520), (40, 1000), (64, 520)]
LIMIT = 64
CORE = "kf/core/rows/reduce.cuh"
# Faults: (file, pattern, replacement)
SEEDED = {
    "columns are summed in the launch that overwrites them": (
        "kf/core/rows/host.cuh",
        r"&&\s+!kfi_row_in_place\(c\.operands\)",
        "",
    ),
    "the sum leaves out the first row": (
        CORE,
        r"\(gradient \* KFI_SUM_GROUPS \+ row\)",
        "(gradient * KFI_SUM_GROUPS + (row ? row : 1))",
    ),
    "the second gradient is the first one's": (
        CORE,
        r"kfi_dynamic\(\) \+ k \* KFI_SUM_GROUPS",
        "kfi_dynamic() + 0 * KFI_SUM_GROUPS",
    ),
    "a block sums the next strip of columns": (
        CORE,
        r"blockIdx\.x - sums\.parts\) \* KFI_ROW_STRIP",
        "blockIdx.x - sums.parts + 1) * KFI_ROW_STRIP",
    ),
    "sums are read without a barrier": (CORE, r"\* columns;\s+__syncthreads\(\);", "* columns;"),
    "a thread adds its earlier rows again": (CORE, r"(0\.0 \+ sum\[e\];)\s+sum\[e\] = 0;", r"\1"),
}


def launched(lib, emu, memory, f, sizes, **more):
    """Returns (outputs, launches) of a call."""
    memory.runs, before = emulator.RUNS[:1], emu.launches
    return checks.run(lib, memory, f, sizes, **more), emu.launches - before


def check(lib, f, sizes):
    """Checks one launch, and the same bits in two launches, in place, at other addresses."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu)
    emu.set(sms=132)
    one, launches = launched(lib, emu, memory, f, sizes)
    assert launches == 1, sizes
    memory.runs = emulator.RUNS[1:]
    checks.run(lib, memory, f, sizes)
    pairs = [(out, source) for out, source in checks.in_place_pairs(f)]
    for more in ({"shift": 1}, *({"inplace": (pair,)} for pair in pairs)):
        two, launches = launched(lib, emu, memory, f, sizes, **more)
        assert launches == 2, more
        for name, array in one.items():
            if not checks.same_bits(array, two[name]):
                raise checks.Failure(f"{f['name']} {sizes}: {name} has other bits with {more}")
    memory.runs = emulator.RUNS[1:]
    for pair in pairs:
        checks.run(lib, memory, f, sizes, inplace=(pair,))


@pytest.fixture(scope="session")
def lib():
    return emulator.build(FUNCTIONS, BUILD / "emu")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f["name"])
def test_the_bits_of_two_launches(lib, f, sizes):
    check(lib, f, sizes)


def test_many_rows(lib):
    """The second launch is used above the row limit, and for more rows than blocks."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu)
    for sms, rows in ((132, LIMIT + 1), (1, 7)):
        emu.set(sms=sms)
        assert launched(lib, emu, memory, FUNCTIONS[0], (rows, 520))[1] == 2
    emu.set(sms=132)


def test_every_fault_has_its_place(include, tmp_path):
    for place in [*SEEDED.values(), *MAP_SEEDED.values()]:
        faults.plant(include, tmp_path, *place)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    functions = faults.named(NAMES[:1], "cuda")
    broken = emulator.build(
        functions, tmp_path / "lib", faults.plant(include, tmp_path, *SEEDED[what])
    )
    with pytest.raises((checks.Failure, AssertionError)):
        for sizes in SIZES:
            check(broken, functions[0], sizes)


# Elementwise ops: one sum and several, columns in registers and in a pipeline, each vector width.
MAP_NAMES = (
    "kf_bias_gelu_bwd_bf16",
    "kf_prelu_bias_bwd_f32",
    "kf_batch_norm_bwd_f32",
    "kf_bias_dropout_add_bwd_f64",
)
MAP_FUNCTIONS = faults.named(MAP_NAMES, "cuda")
MAP_SIZES = [(1, 4096), (2, 88), (3, 40), (7, 5), (9, 136), (64, 80)]
MAP_CORE = "kf/core/elementwise/device.cuh"
MAP_SEEDED = {
    "a warp's sum leaves out its last rows": (
        MAP_CORE,
        r"j < KFI_MAP_FEW_BITS; \+\+j",
        "j < KFI_MAP_FEW_BITS - 1; ++j",
    ),
    "the sum leaves out the last warp": (
        MAP_CORE,
        r"w < KFI_MAP_FEW >> KFI_MAP_FEW_BITS",
        "w < (KFI_MAP_FEW >> KFI_MAP_FEW_BITS) - 1",
    ),
    "lanes keep the half that they should send": (
        MAP_CORE,
        r"given = upper \? sum\[e\]",
        "given = upper ? sum[e + half]",
    ),
    "all columns read the first one's sum": (
        MAP_CORE,
        r"buffer\[w \* width \+ c\]",
        "buffer[w * width]",
    ),
    "the order of sums depends on the vector width": (
        MAP_CORE,
        r"by = g\.bx << j;",
        "by = vec > 1 ? g.bx << j : 16 >> j;",
    ),
    "the sign of a NaN depends on the order of rows": (
        MAP_CORE,
        r"total = __uint_as_float\(0x7fffffffu\);",
        ";",
    ),
}


def map_sizes(f, rows, cols):
    return (rows, cols, 1) if f["form"] == "planes" else (rows, cols)


def check_map(lib, f, rows, cols, values="normal"):
    """Checks one launch, and the same bits without alignment, and with one element per thread."""
    emu = emulator.Emulator(lib)
    memory, before = emulator.Memory(emu), emu.launches
    sizes = map_sizes(f, rows, cols)
    one, other = (checks.run(lib, memory, f, sizes, values, shift=shift) for shift in (0, 1))
    assert emu.launches - before == 2 * len(memory.runs), sizes
    for name, array in one.items():
        if not checks.same_bits(array, other[name]):
            raise checks.Failure(
                f"{f['name']} {sizes}: {name} has other bits where nothing is aligned"
            )


@pytest.fixture(scope="session")
def map_lib():
    return emulator.build(MAP_FUNCTIONS, BUILD / "emu")


@pytest.mark.parametrize("f", MAP_FUNCTIONS, ids=lambda f: f["name"])
def test_elementwise_in_one_launch(map_lib, f):
    """Includes special values, and the sign of NaN, which may be either operand's."""
    for rows, cols in MAP_SIZES:
        for values in ("normal", "special"):
            check_map(map_lib, f, rows, cols, values)


def test_elementwise_of_many_rows(map_lib):
    """More rows, and rows longer than all blocks cover, take a second launch; no sum takes one."""
    emu = emulator.Emulator(map_lib)
    memory = emulator.Memory(emu)
    for rows, cols, want in ((LIMIT + 1, 80, 2), (2, 33000, 2)):
        assert launched(map_lib, emu, memory, MAP_FUNCTIONS[0], (rows, cols))[1] == want
    assert launched(map_lib, emu, memory, MAP_FUNCTIONS[0], (3, 80), drop=("dbias",))[1] == 1


@pytest.mark.parametrize("what", faults.some(MAP_SEEDED))
def test_seeded_fault_of_elementwise(include, tmp_path, what):
    functions = faults.named(MAP_NAMES[2:3], "cuda")
    broken = emulator.build(
        functions, tmp_path / "lib", faults.plant(include, tmp_path, *MAP_SEEDED[what])
    )
    with pytest.raises((checks.Failure, AssertionError)):
        for rows, cols in MAP_SIZES:
            for values in ("normal", "special"):
                check_map(broken, functions[0], rows, cols, values)
