# SPDX-License-Identifier: Apache-2.0
"""Limits of a function: generator and headers agree, and an entry at a limit is accepted."""

import re

import kflib
import pytest
from kfgen.entries import expand, spec
from kfgen.families.elementwise import c as map_c
from kfgen.families.rows import c as row_c
from kfgen.model import limits

HEADER = kflib.ROOT / "include/kf/core/limits.h"
NAMES = {"KFI_MAX_" + name: value for name, value in vars(limits).items() if name.isupper()}


def defined(path):
    return {
        name: int(value)
        for name, value in re.findall(r"#define (\w+_(?:MAX_)?\w+) +(\d+)\b", path.read_text())
    }


def test_the_headers_have_the_same():
    core = kflib.ROOT / "include/kf/core"
    assert defined(core / "elementwise/tile.h")["KFI_GROUP"] == map_c.GROUP
    assert defined(core / "rows/rows.h")["KFI_STRIP"] == row_c.STRIP
    assert NAMES and defined(HEADER) == NAMES
    table = kflib.ROOT / "tests/support/builds/every_call.h"
    assert defined(table) == {"KFT_TENSORS": limits.TENSORS}


def entry(operands, expr, **more):
    lines = [f"{name} = {value}" for name, value in more.items()]
    return (
        "\n".join(
            [
                "[op.own]",
                'brief = "own"',
                f'expr = "{expr}"',
                f'ref = "{expr}"',
                *lines,
                "[op.own.operands]",
                *operands,
            ]
        )
        + "\n"
    )


def many(count, kind, grad="false"):
    return [f'x{i} = {{ kind = "{kind}", grad = {grad} }}' for i in range(count)]


def total(count):
    return " + ".join(f"x{i}" for i in range(count))


SCALARS = [f"s{i}" for i in range(limits.SCALARS + 1)]
MOST = {  # (entry, entry with one more, error message)
    "tensors": [entry(many(n, "elem"), total(n)) for n in (23, 24)]
    + ["operands: make 25 tensors of the forward: x0, "],
    "gradients that are added up": [
        entry(
            ['y = { kind = "elem", grad = false }', *many(n, "row", "true")],
            "y * (" + total(n) + ")",
        )
        for n in (11, 12)
    ]
    + ["operands: make 26 tensors of the backward: y, x0, "],
    "values of an element": [
        entry(
            [
                f'x{i} = {{ kind = "half", parts = ["u{i}", "w{i}"], grad = false }}'
                for i in range(n)
            ],
            " + ".join(f"u{i} * w{i}" for i in range(n)),
        )
        for n in (15, 16)
    ]
    + ["operands: make 33 values of an element of the forward: u0, w0, "],
    "scalars": [
        entry(
            many(1, "elem"),
            " + ".join(["x0", *SCALARS[:n]]),
            scalars="{ " + ", ".join(f"{s} = 1" for s in SCALARS[:n]) + " }",
        )
        for n in (8, 9)
    ]
    + ["scalars: has 9 entries"],
}


@pytest.mark.parametrize("what", MOST)
def test_as_many_and_one_more(what, tmp_path):
    path, (text, beyond, message) = tmp_path / "mine.toml", MOST[what]
    path.write_text(text)
    assert expand.kernels(spec.load([path]).ops["own"])
    path.write_text(beyond)
    with pytest.raises(spec.SpecError) as caught:
        expand.kernels(spec.load([path]).ops["own"])
    assert f"{path}: [op.own] {message}" in str(caught.value) and "fix: at most" in str(
        caught.value
    )
