# SPDX-License-Identifier: Apache-2.0
"""Tests rows of any length at any address, read by vectors (core/rows/shift.cuh), in the emulator
with at most 64 threads per block."""

import re

import checks
import emulator
import faults
import numeric
import odd_rows
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
# Lengths with every remainder modulo 8: less than a vector, one lane, several, a warp, two, rows of
# persistent blocks, of clusters, and rows that are read again.
LENGTHS = (
    1,
    3,
    7,
    8,
    10,
    13,
    20,
    47,
    60,
    129,
    510,
    520,
    767,
    768,
    1023,
    1026,
    1539,
    2044,
    2048,
    3333,
    4097,
    9001,
)
# A block computes several rows that are not in registers, and adds up their terms in memory.
SUMMED = (20, 3334)
SHIFT = "kf/core/rows/shift.cuh"
SOFTMAX = "kf_softmax_bf16", 5, (20, 47, 510, 1023, 1026, 1539)
# pattern, replacement
SHIFTED = {
    "a vector's end comes from the lane's own vector": (
        r"kfi_shift_lane\(give, of, 1\)",
        "kfi_shift_lane(give, of, 0)",
    ),
    "a warp's last lane uses its own vector for the next one": (
        r"front \? s \+ 1 < in_registers \?.*: next : v\[s\]",
        "v[s]",
    ),
    "the vector behind a warp's last one is not loaded": (
        r"if \(front && in_registers \* step",
        "if (0 * front && in_registers * step",
    ),
    "an odd offset is realigned as an even one": (r"\(from & 1\) \* 16", "0 * from"),
    "an offset of four elements is realigned by two": (
        r"from & 4 \? w\[i \+ 2\]",
        "from & 4 ? w[i + 1]",
    ),
    "the first elements of a row are zeros": (
        r"if \(begins\) v\[0\] = head;",
        "if (begins) v[0] = zero;",
    ),
    "the end of a row is one element short": (
        r"ends \? of\.rest : 0\);",
        "ends ? of.rest - 1 : 0);",
    ),
    "the end of a row behind a warp's last vector is not loaded": (
        r"if \(ends && in_registers \* step == of\.end\) next = tail;",
        "",
    ),
    "a store leaves out the vector carried from the step before": (
        r"of\.lane == 0 \? so->before : up",
        "of.lane == 0 ? own : up",
    ),
    "elements before a row are written": (
        r"kfi_shift_write\(to, both, of\.a, of\.a \+ room\)",
        "kfi_shift_write(to, both, 0, of.a + room)",
    ),
    "elements behind a row are written": (r"so\.last, 0, of\.rest", "so.last, 0, 8"),
    "a row's end is not written": (r"if \(s \* step == of\.end\) so->last = both;", ""),
    "a warp's last elements are not written": (r"of\.a < left \? of\.a : left", "0 * left"),
    "a warp writes its last elements behind the row's end": (
        r"of\.a < left \? of\.a : left",
        "of.a",
    ),
}
STAGE = "kf/core/rows/stage.cuh"
STAGED = {
    "a stage is read before its copy is complete": (
        r"kfi_fetch_wait<KFI_STAGE_AHEAD>",
        "kfi_fetch_wait<KFI_STAGE_AHEAD + 1>",
    ),
    "later stages of a row are not loaded": (r"kfi_stage_issue\(row\);", ""),
    "other threads' elements are read without a barrier": (
        r"(kfi_fetch_wait<KFI_STAGE_AHEAD>\(\);\s*)__syncthreads\(\);",
        r"\1",
    ),
    "a row begins an element late": (r"lane >= a && lane < 8", "lane > a && lane < 8"),
    "a row ends an element early": (r"if \(lane < rest\)", "if (lane + 1 < rest)"),
    "a thread's last element is left out": (r"cols - lane \+ lanes - 1\)", "cols - lane - 1)"),
    "elements before a row are written": (
        r"\(const uint4 \*\)value, -first, cols - first",
        "(const uint4 *)value, 0, cols - first",
    ),
    "elements behind a row are written": (
        r"\(const uint4 \*\)value, -first, cols - first",
        "(const uint4 *)value, -first, 8",
    ),
}
# file, pattern, replacement, function that notices, number of rows, lengths
SEEDED = {what: (SHIFT, *change, *SOFTMAX) for what, change in SHIFTED.items()}
SEEDED |= {
    f"in shared memory: {what}": (STAGE, *change, "kf_softmax_bf16", 2, (4097,))
    for what, change in STAGED.items()
}
SEEDED["three vectors a thread of a row that has four"] = (
    "kf/core/rows/host.cuh",
    r"cols <= 3 \* g\.lanes",
    "cols <= 4 * g.lanes",
    *SOFTMAX,
)
SEEDED["the partial sums of a block's last row alone"] = (
    "kf/core/rows/reduce.cuh",
    r"there\[e\] \+= sum\[e\]",
    "there[e] = sum[e]",
    "kf_layer_norm_bwd_bf16",
    20,
    (3334,),
)


# Kernels of unaligned rows, and of aligned rows of a warp.
UNALIGNED = r", (KFI_ROWS_\w+|KFI_ROWS_WARP \| KFI_ROWS_ALIGNED)>$"


def test_lengths():
    assert {cols % 8 for cols in LENGTHS} == set(range(8))


@pytest.fixture(scope="session")
def lib():
    return emulator.build(odd_rows.FUNCTIONS, BUILD / "emu")


@numeric.each(odd_rows.FUNCTIONS, "name")
def test_any_length_and_address(lib, f):
    """Any length and address gives right results, and every kernel for such rows is reached."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, emulator.RUNS[2:])
    emu.set(sms=1)
    emu.forget()
    for cols in LENGTHS:
        odd_rows.check(lib, memory, f, 3 if cols > 2000 else 5, cols)
    if f["scratch"]:
        checks.run(lib, memory, f, odd_rows.sizes_of(f, *SUMMED), "normal")
    assert not [name for name in emu.missing() if re.search(UNALIGNED, name)], (
        "kernels that no length reaches"
    )


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead, *_ in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    *change, name, rows, lengths = SEEDED[what]
    functions = faults.named((name,), "cuda")
    broken = emulator.build(functions, tmp_path / "lib", faults.plant(include, tmp_path, *change))
    emu = emulator.Emulator(broken)
    memory = emulator.Memory(emu, emulator.RUNS[:1])
    emu.set(sms=1)
    with pytest.raises(checks.Failure):
        for f in functions:
            for cols in lengths:
                odd_rows.check(broken, memory, f, rows, cols)
