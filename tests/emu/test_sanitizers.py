# SPDX-License-Identifier: Apache-2.0
"""Runs the kernels under AddressSanitizer with UndefinedBehaviorSanitizer, and under
ThreadSanitizer. ThreadSanitizer sees a block's threads as threads, and reports races between them
with file and line."""

import pathlib
import sys

import cases
import emulator
import pytest
import toolkit
from conftest import BUILD

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import samples  # noqa: E402

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


PARTS = cases.by_level(1, 64)  # parts run in parallel processes


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sample", samples.SAMPLES)
def test_clean(sample, part):
    # Strided parts: neighbours are of one family, and families differ in memory, hence time.
    functions = samples.functions(sample)[part::PARTS]
    lib = emulator.library(functions, BUILD / "emu", samples.SAMPLES[sample].variant)
    done = samples.run(lib, sample, [f["name"] for f in functions])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:6000]
    assert done.stdout.startswith(f"{len(functions)} functions, ") and "WARNING" not in done.stderr
