# SPDX-License-Identifier: Apache-2.0
"""Checks the tests' shapes without running them."""

import os
import subprocess
import sys

import cases
import checks
import folders
import kflib


def test_every_shape_fits_the_arena_of_a_gpu():
    """Every shape must fit the GPU arena, with a tenth left for the workspace, whose size only the
    library knows."""
    for f in kflib.of_tensors():
        for sizes, _, shift in (
            cases.runs(f, long=True) if f["activation"] in ("none", "gelu") else ()
        ):
            assert checks.offsets(f, sizes, shift)[1] <= 0.9 * checks.ARENA, (f["name"], sizes)


SANITIZED = """
import checks, samples
for sample in samples.SAMPLES.values():
    for f in filter(sample.takes, samples.MANIFEST):
        for sizes, _, shift in sample.cases(f):
            assert checks.offsets(f, sizes, shift)[1] <= 0.9 * samples.ARENA, (f["name"], sizes)
"""


def test_every_shape_fits_the_arena_of_the_sanitizers():
    """Checks level 2 shapes at every level, because they take an hour to run."""
    tests, emu, gen = (str(kflib.ROOT / d) for d in ("tests", "tests/emu", "gen"))
    path = os.pathsep.join([tests, *folders.PATHS, emu, gen])
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED],
        env={**os.environ, "KF_LEVEL": "2", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_shared_out_shapes_are_all_there():
    """Each activation gets a share of the long rows. The activations of a kernel must cover all of
    them, even if some are left out."""
    kernels = {}
    for f in kflib.manifest()["functions"]:
        if f["family"] == "rows" and f["activation"] not in ("none", "gelu"):
            kernels.setdefault((f["op"], f["bwd"], *f["dtypes"]), []).append(f)
    assert kernels
    for members in kernels.values():
        for table in (cases.LINES, cases.LONG):
            shares = [cases.share_of(f, table) for f in members]
            assert all(size in [s for share in shares for s in share] for size in table) and all(
                len(share) < len(table) for share in shares
            )
