# SPDX-License-Identifier: Apache-2.0
"""Tests strided rows in C: they give the bits of contiguous tensors, and nothing between the rows
is written."""

import checks
import faults
import kflib
import numeric
import pytest
import strided
from conftest import BUILD


@pytest.fixture
def lib(request):
    return numeric.build_cpu(request.param, BUILD)


# file, pattern, replacement, functions; each fault leaves contiguous tensors right.
BROKEN = {
    "rows of heads are read as if they were contiguous": (
        "kf/core/rows/rows.h",
        r"head \* p->head",
        "0 * head",
        ("kf_cpu_scale_causal_softmax_f32",),
    ),
    "segments are read as if they were contiguous": (
        "kf/core/rows/rows.h",
        r"none\.gap = m->operands\.of\[operand\]\.at\.gap",
        "none.gap = m->operands.of[0].at.gap",
        ("kf_cpu_group_norm_bwd_f32",),
    ),
    "strips are read as if they were contiguous": (
        "kf/core/reduction/reduction.h",
        r"m->down == 1 \|\| p->row == m->inner",
        "1",
        ("kf_cpu_sum_f32",),
    ),
    "elements between rows are written": (
        "kf/core/reduction/reduction.h",
        r"const int run = .*? : s->width;",
        "const int run = lanes;",
        ("kf_cpu_sum_bwd_f32",),
    ),
}


def test_every_fault_has_its_place(include, tmp_path):
    """Every fault can still be planted, including those that level 1 does not compile."""
    for *place, _ in BROKEN.values():
        faults.plant(include, tmp_path, *place)


@pytest.mark.parametrize("what", faults.some(BROKEN))
def test_seeded_fault(include, tmp_path, what):
    file, text, instead, names = BROKEN[what]
    functions = faults.named(names, "cpu")
    broken = kflib.build(
        "cpu",
        functions,
        tmp_path / "lib",
        include=faults.plant(include, tmp_path, file, text, instead),
    )
    with pytest.raises(checks.Failure):
        for f in functions:
            for sizes in strided.shapes(f):
                strided.same(broken, checks.CpuMemory(), f, sizes)


@numeric.each_on_cpu([f for f in numeric.of_gate(numeric.FUNCTIONS) if strided.strided_tensors(f)])
def test_strided(lib, f):
    for sizes in strided.shapes(f):
        strided.same(lib, checks.CpuMemory(), f, sizes)
