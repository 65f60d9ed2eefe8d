# SPDX-License-Identifier: Apache-2.0
"""The shapes of the tests, without running them."""

import cases
import checks
import kflib


def test_every_shape_fits_the_arena_of_a_gpu():
    """With a tenth of it left for the workspace, whose size only the library knows."""
    for f in kflib.manifest()["functions"]:
        for sizes, _, shift in cases.runs(f, long=True) if f["activation"] in ("none", "gelu") else ():
            assert checks.places(f, sizes, shift)[1] <= 0.9 * checks.ARENA, (f["name"], sizes)


def test_shared_out_shapes_are_all_there():
    """Where an activation has some of the shapes, the activations of a kernel have them all. Those of integers have relu alone, and all
    shapes in none."""
    kernels = {}
    for f in kflib.manifest()["functions"]:
        if f["activation"] not in ("none", "gelu"):
            kernels.setdefault((f["op"], f["bwd"], *f["dtypes"]), []).append(f)
    for members in kernels.values():
        found = {str(run[::2]) for f in members for run in cases.runs(f, share=2)}
        assert members[0]["dtypes"][0] in ("i32", "i64") or found == {str(run[::2]) for run in cases.runs(members[0])}
        assert all(len(cases.runs(f, share=2)) < len(cases.runs(f)) for f in members)
