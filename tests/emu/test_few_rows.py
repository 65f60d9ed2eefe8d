# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights of few rows, summed in the launch that has the rows (kfi_row_strip_enter): the bits of two launches."""

import checks
import emulator
import faults
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
NAMES = ("kf_layer_norm_bwd_f32", "kf_add_rms_norm_gelu_bwd_bf16")
FUNCTIONS = faults.named(NAMES, "cuda")
# One row and some; more than a thread has; as many as the second stage has groups; columns that are no whole strip.
SIZES = [(1, 1024), (5, 520), (40, 1000), (64, 520)]
LIMIT = 64
CORE = "kf/core/row_reduce.cuh"
# file, text of it, what stands there instead
SEEDED = {
    "columns are read when rows are written": ("kf/core/row_host.cuh", r"&& !kfi_row_in_place\(operands\)", ""),
    "a row left out": (CORE, r"\(gradient \* KFI_SUM_GROUPS \+ row\)", "(gradient * KFI_SUM_GROUPS + (row ? row : 1))"),
    "the first gradient for the second": (CORE, r"kfi_dynamic\(\) \+ k \* KFI_SUM_GROUPS", "kfi_dynamic() + 0 * KFI_SUM_GROUPS"),
    "a strip's neighbour": (CORE, r"blockIdx\.x - sums\.parts\) \* KFI_ROW_STRIP", "blockIdx.x - sums.parts + 1) * KFI_ROW_STRIP"),
    "nobody waits for the other warps": (CORE, r"\* columns;\s+__syncthreads\(\);", "* columns;"),
    "a thread's rows added to those before": (CORE, r"(0\.0 \+ sum\[e\];)\s+sum\[e\] = 0;", r"\1"),
}


def launched(lib, emu, memory, f, sizes, **more):
    """(outputs, launches of a call)"""
    memory.runs, before = emulator.RUNS[:1], emu.launches
    return checks.run(lib, memory, f, sizes, **more), emu.launches - before


def check(lib, f, sizes):
    """Right in one launch; of the same rows in two, in place or at other addresses, the same bits."""
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
    """More rows, and more than there are blocks, take the second launch."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu)
    for sms, rows in ((132, LIMIT + 1), (1, 7)):
        emu.set(sms=sms)
        assert launched(lib, emu, memory, FUNCTIONS[0], (rows, 520))[1] == 2
    emu.set(sms=132)


def test_every_fault_has_its_place(include, tmp_path):
    for place in SEEDED.values():
        faults.plant(include, tmp_path, *place)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    functions = faults.named(NAMES[:1], "cuda")
    broken = emulator.build(functions, tmp_path / "lib", faults.plant(include, tmp_path, *SEEDED[what]))
    with pytest.raises((checks.Failure, AssertionError)):
        for sizes in SIZES:
            check(broken, functions[0], sizes)
