# SPDX-License-Identifier: Apache-2.0
"""Tests the stack use of C launchers: at most 32 KiB, so that they run on the threads of any
pool."""

import os
import re
import subprocess

import cases
import cprogram
import kflib
import operand_ops
import pytest
import selection

MOST = 32 << 10  # the limit in docs/install.md
# Limit of one function's frame. A launcher calls a traversal, which calls the tile computation.
FRAME = 24 << 10
# Level 1 tests frames in the first build and calls in the second.
BUILDS = [("-O3", "-march=native"), ("-O2",)]
SAMPLE = selection.of_schedules(cases.by_level(("f64",), None))
# Level 1 takes one function of each kind of traversal, with sums and without.
FRAMED = cases.by_level(
    selection.cover(
        lambda f: [(f["family"], f["layout"], f["bwd"], f["scratch"], f["dropout"])], SAMPLE
    ),
    SAMPLE,
)


def frames(functions, folder, include, flags):
    """Returns {function: bytes of its frame}."""
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
            function, size, kind = line.split("\t")
            assert kind.startswith("static") or "bounded" in kind, line
            found[function.rsplit(":", 1)[1]] = max(
                int(size), found.get(function.rsplit(":", 1)[1], 0)
            )
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
    """Calls every function on a thread whose stack has the promised size only."""
    functions = SAMPLE if cases.LEVEL == 1 else selection.kernels()
    # Inlining decides the size of frames, so both optimisation levels count.
    is_run(cprogram.build(tmp_path, functions, include, flags, few=1), functions)


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
