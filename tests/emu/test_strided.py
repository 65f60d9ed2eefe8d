# SPDX-License-Identifier: Apache-2.0
"""Tests strided rows in the emulator: they give the bits of contiguous tensors, and nothing between
the rows is written."""

import cases
import checks
import emulator
import faults
import numeric
import pytest
import selection
import strided
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
FUNCTIONS = [f for f in numeric.ON_CUDA if strided.strided_tensors(f)]
if cases.LEVEL == 1:
    FUNCTIONS = selection.cover(
        lambda f: [
            selection.schedule(f),
            (f["form"], f["op"] == "nll"),
            (f["form"], strided.bits_by_alignment(f) and f["dtypes"][0] in ("f16", "bf16")),
        ],
        FUNCTIONS,
    )


@pytest.fixture(scope="session")
def lib():
    return emulator.build(numeric.ON_CUDA, BUILD / "emu")


# file, pattern, replacement, functions; each fault leaves contiguous tensors right.
SEEDED = {
    "rows of heads are read as if they were contiguous": (
        "kf/core/rows/access.cuh",
        r"head \* p\.head",
        "0 * head",
        ("kf_scale_causal_softmax_f32",),
    ),
    "batches of planes are read as if they were contiguous": (
        "kf/core/rows/access.cuh",
        r"if \(p\.outer\)(\s+)at",
        r"if (0)\1at",
        ("kf_instance_norm_f32",),
    ),
    "outer indices are read as if they were contiguous": (
        "kf/core/reduction/reduction.cuh",
        r"at\.start = (o|outer) \* p\.outer",
        r"at.start = \1 * g.axis",
        ("kf_sum_f32",),
    ),
    "partial results are joined by the tensor's strides": (
        "kf/core/reduction/host.cuh",
        r"pitches\[i\]\.row = plan\.results;",
        ";",
        ("kf_sum_f32",),
    ),
}


def test_every_fault_has_its_place(include, tmp_path):
    """Every fault can still be planted, including those that level 1 does not compile."""
    for *place, _ in SEEDED.values():
        faults.plant(include, tmp_path, *place)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    file, text, instead, names = SEEDED[what]
    functions = faults.named(names, "cuda")
    broken = emulator.build(
        functions, tmp_path / "lib", faults.plant(include, tmp_path, file, text, instead)
    )
    memory = emulator.Memory(emulator.Emulator(broken), emulator.RUNS[:1])
    with pytest.raises(checks.Failure):
        for f in functions:
            for sizes in strided.shapes(f):
                strided.same(broken, memory, f, sizes)


@numeric.each(FUNCTIONS, "name")
def test_strided(lib, f):
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[:1])
    for turn, sizes in enumerate(strided.shapes(f)):
        strided.same(lib, memory, f, sizes, turn=cases.by_level(turn, None))
