# SPDX-License-Identifier: Apache-2.0
"""Kernels of as many operands and gradients as an entry may have fit on every device: nvcc compiles them, and none takes more shared
memory than a block may have without asking."""

import re

import cases
import operand_ops
import pytest
from compilers import NVCC, addresses, flags, passes, write
from kfgen.model.schedule import STATIC_SHARED

pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")


@pytest.mark.parametrize("arch", cases.by_level(["90"], ["75", "90"]))
@pytest.mark.parametrize(
    "text",
    cases.by_level([operand_ops.LARGE], [operand_ops.LARGE, operand_ops.WIDE, operand_ops.MIXED]),
)
def test_shared_memory(text, arch, include, tmp_path):
    _, functions = operand_ops.load(text, tmp_path)
    [source] = write(tmp_path, {"all.cu": addresses(functions)})
    options = ["-O3", f"-arch=sm_{arch}", "-Xptxas", "-v", *flags([*include, tmp_path])]
    said = passes([NVCC, *options, "-cubin", source, "-o", tmp_path / "all.cubin"], cwd=tmp_path)
    found = [int(size) for size in re.findall(r"(\d+) bytes smem", said)]
    assert found and max(found) <= STATIC_SHARED
