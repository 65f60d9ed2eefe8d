# SPDX-License-Identifier: Apache-2.0
"""What a C launcher takes of its caller's stack: 32 KiB at most, so that it runs on the threads of any pool."""

import os
import re
import subprocess

import cases
import cprogram
import kflib
import operand_ops
import pytest
import selection

MOST = 32 << 10  # docs/install.md
FRAME = (
    24 << 10
)  # of one function: a traversal calls what computes a tile, and a launcher calls the traversal
BUILDS = [
    ("-O3", "-march=native"),
    ("-O2",),
]  # at level 1 frames are of the first, calls of the second
SAMPLE = selection.of_schedules(cases.by_level(("f64",), None))
# At level 1 one of each kind of traversal, with sums and without.
FRAMED = cases.by_level(
    selection.cover(
        lambda f: [(f["family"], f["layout"], f["bwd"], f["scratch"], f["dropout"])], SAMPLE
    ),
    SAMPLE,
)


def frames(functions, folder, include, flags):
    """{function: bytes of its frame}."""
    found = {}
    for name, text in kflib.sources("cpu", functions).items():
        (folder / name).write_text(text)
        command = [
            "gcc",
            "-std=c11",
            *flags,
            "-fstack-usage",
            *(f"-I{d}" for d in include),
            "-c",
            name,
            "-o",
            "object.o",
        ]
        subprocess.run(command, check=True, cwd=folder)
        for line in (folder / "object.su").read_text().splitlines():
            place, size, kind = line.split("\t")
            assert kind.startswith("static") or "bounded" in kind, line
            found[place.rsplit(":", 1)[1]] = max(int(size), found.get(place.rsplit(":", 1)[1], 0))
    return found


@pytest.mark.parametrize("flags", cases.by_level(BUILDS[:1], BUILDS), ids=" ".join)
def test_frames(flags, include, tmp_path):
    found = frames(FRAMED, tmp_path, include, flags)
    assert any(name.startswith("kfi_traverse_") for name in found) and any(
        name.startswith("kfi_rows") for name in found
    )
    assert {name: size for name, size in found.items() if size > FRAME} == {}


@pytest.mark.parametrize("flags", cases.by_level(BUILDS[1:], BUILDS), ids=" ".join)
def test_calls_on_a_small_stack(flags, include, tmp_path):
    """Every function on a thread that has room for nothing else."""
    functions = SAMPLE if cases.LEVEL == 1 else selection.kernels()
    is_run(
        cprogram.build(tmp_path, functions, include, flags, few=1), functions
    )  # frames are as large as inlining makes them


def test_calls_of_many_operands(include, tmp_path):
    _, functions = operand_ops.load(operand_ops.WIDE, tmp_path, ("f64",))
    is_run(
        cprogram.build(tmp_path / "program", functions, [*include, tmp_path], ("-O2",)), functions
    )


def is_run(program, functions):
    done = subprocess.run(
        [program, "small stack", str(MOST)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, f"{done.returncode} {(done.stdout + done.stderr)[-3000:]}"
    assert int(re.match(r"(\d+) calls", done.stdout)[1]) >= len(functions)
