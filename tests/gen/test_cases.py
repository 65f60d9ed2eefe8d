# SPDX-License-Identifier: Apache-2.0
"""The shapes of the tests, without running them."""

import cases
import checks
import kflib
import pytest


@pytest.mark.parametrize("f", [f for f in kflib.manifest()["functions"] if f["activation"] in ("none", "gelu")], ids=lambda f: f["name"])
def test_every_shape_fits_the_arena_of_a_gpu(f):
    """With a tenth of it left for the workspace, whose size only the library knows."""
    for sizes, _, shift in cases.runs(f, long=True):
        assert checks.places(f, sizes, shift)[1] <= 0.9 * checks.ARENA, sizes
