# SPDX-License-Identifier: Apache-2.0
"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer, for which the threads of a
block are threads: a race between them is reported with file and line."""

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


PARTS = cases.by_level(1, 64)  # in one process nobody else could take some


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sample", samples.SAMPLES)
def test_clean(sample, part):
    functions = samples.functions(sample)[
        part::PARTS
    ]  # not neighbours: families differ in the memory they take, which is time
    lib = emulator.library(functions, BUILD / "emu", samples.SAMPLES[sample].variant)
    done = samples.run(lib, sample, [f["name"] for f in functions])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:6000]
    assert done.stdout.startswith(f"{len(functions)} functions, ") and "WARNING" not in done.stderr
