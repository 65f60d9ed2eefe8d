# SPDX-License-Identifier: Apache-2.0
"""Tests that no function reads or writes outside its tensors. Each tensor ends at an inaccessible
page or begins right after one, so the system kills a process that does (support/builds/guarded.py).
"""

import cases
import checks
import faults
import guarded
import kflib
import numeric
import numpy as np
import pytest
from conftest import BUILD

# Full and partial tiles, of repeated rows, of other rows and of planes; more and fewer elements
# than a vector.
SHAPES = {
    "flat": [(1,), (255,), (517,)],
    "rows": [(1, 1), (3, 5), (7, 67), (2, 2309)],
    "planes": [(1, 1, 1), (2, 3, 5), (3, 7, 1), (2, 5, 49), (1, 3, 259)],
    "heads": [(1, 1, 1, 1), (2, 3, 2, 5), (1, 2, 3, 67), (2, 1, 1, 2309)],
    "groups": [
        (1, 1, 1, 1, 1),
        (2, 1, 3, 6, 5),
        (2, 3, 2, 10, 1),
        (1, 2, 3, 12, 67),
        (2, 5, 2, 128, 1),
    ],
}


@pytest.fixture(scope="module")
def lib():
    return numeric.build_cpu("native", BUILD)


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory(1 << 22)


def calls(lib, memory, functions, note):
    """Calls each function on each shape, before and after an inaccessible page. The bits must be
    those in ordinary memory, except the sign of a NaN: a compiler chooses, vector by vector, which
    of two NaN operands an FMA propagates."""
    guard = guarded.Guarded()
    for f in functions:
        for sizes in cases.of_form(f, SHAPES):
            call = checks.Layout(lib, f, sizes, "special")
            result, back = memory.run(
                call.image, lambda base, f=f, call=call: lib.call(f, call.given(base))
            )
            assert result == 0, lib.detail
            want = call.outputs(back)
            for at_end in (True, False):
                note(
                    f"{call.where}, tensors {'in front of' if at_end else 'behind'} a "
                    "forbidden page"
                )
                got = guard.run(lib, f, call, at_end)
                for name in want:
                    if not checks.same_numbers(got[name], want[name], call.tensors[name]["dtype"]):
                        raise checks.Failure(f"{call.where}: {name} depends on where it lies")


@pytest.mark.parametrize("group", numeric.GROUPS, ids=lambda g: "_".join(g).removeprefix("kf/ops/"))
def test_guard_pages(lib, memory, group):
    notes = guarded.in_child(lambda note: calls(lib, memory, numeric.GROUPS[group], note))
    assert len(notes) == sum(2 * len(cases.of_form(f, SHAPES)) for f in numeric.GROUPS[group])


PLANTED = {
    "a row value too many is read": (
        "elementwise/traverse.h",
        r"memcpy\(room->tile\[k\], base \+ col \* s->size, \(size_t\)\(count \* s->size\)\)",
        "memcpy(room->tile[k], base + col * s->size, (size_t)((count + 1) * s->size))",
        "kf_cpu_bias_f32",
    ),
    "a tail is a whole tile": (
        "elementwise/tile.h",
        r"parted =\s+count < t->count \|\| ",
        "parted = ",
        "kf_cpu_relu_f32",
    ),
    "the byte before the first is read": (
        "elementwise/tile.h",
        r"(char \*at = tensor \+ first \* s->size;)",
        r"\1 (void)*(volatile char *)(at - 1);",
        "kf_cpu_relu_f32",
    ),
    "an input is written": (
        "elementwise/traverse.h",
        r"(if \(indirect\) kfi_finish\(m, &t, indirect, i, count, m->tile_size\);)",
        r"\1 *(volatile char *)(uintptr_t)m->operands.of[0].ptr = 1;",
        "kf_cpu_relu_f32",
    ),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_what_is_the_same(dtype):
    """Two NaN compare as equal whatever their bits; any other difference counts."""
    one = checks.from_float(np.array([1.0, np.nan, 0.0, -np.inf]), dtype)
    sign = one.view(f"u{one.itemsize}")
    for position in range(one.size):
        other = sign.copy()
        other[position] ^= sign.dtype.type(1 << 8 * one.itemsize - 1)
        assert checks.same_numbers(one, other.view(one.dtype), dtype) == (position == 1)
    assert not checks.same_numbers(one, one[::-1].copy(), dtype)


@pytest.mark.parametrize("what", PLANTED)
def test_planted(include, memory, tmp_path, what):
    file, text, instead, name = PLANTED[what]
    functions = faults.named([name])
    lib = kflib.build(
        "cpu",
        functions,
        tmp_path / "lib",
        ("-O1",),
        include=faults.plant(include, tmp_path, f"kf/core/{file}", text, instead),
    )
    with pytest.raises(checks.Failure, match=f"killed by signal 11 in {name.replace('_cpu', '')} "):
        guarded.in_child(lambda note: calls(lib, memory, functions, note))
