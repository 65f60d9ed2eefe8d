# SPDX-License-Identifier: Apache-2.0
"""Tests that kernels with the maximum of operands and gradients compile with nvcc for every device,
within the static shared memory of a block."""

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
    output = passes([NVCC, *options, "-cubin", source, "-o", tmp_path / "all.cubin"], cwd=tmp_path)
    found = [int(size) for size in re.findall(r"(\d+) bytes smem", output)]
    assert found and max(found) <= STATIC_SHARED
