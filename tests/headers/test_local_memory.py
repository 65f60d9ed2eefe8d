# SPDX-License-Identifier: Apache-2.0
"""What a block holds of a row is in registers: ptxas gives such a kernel no place in local memory, neither for spilled values nor for an
array that is read across its elements."""

import re

import kflib
import pytest
from compilers import ARCH, NVCC, addresses, flags, passes, write

pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")
OPS = ("softmax", "scale_bool_mask_softmax", "layer_norm_{act}")  # one tensor, conditions beside it, weights
FUNCTIONS = [f for f in kflib.manifest()["functions"] if f["op"] in OPS and f["activation"] == "none" and not f["bwd"] and len(f["dtypes"]) == 1]


def frames(text, include, folder):
    """{kernel: bytes of its stack frame}."""
    [source] = write(folder, {"rows.cu": text})
    said = passes([NVCC, "-O3", ARCH, "-Xptxas", "-v", *flags(include), "-cubin", source, "-o", folder / "rows.cubin"], cwd=folder)
    return {name: int(size) for name, size in re.findall(r"Function properties for (\w+)\n\s+(\d+) bytes stack frame", said)}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_rows_are_held_in_registers(dtype, include, tmp_path):
    """The kernels of four vectors a thread, 16-byte accesses, a block for each row."""
    chosen = [f for f in FUNCTIONS if f["dtypes"] == [dtype]]
    found = frames(addresses(chosen), include, tmp_path)
    held = {name: size for name, size in found.items() if "ILi0ELi4ELi1EE" in name}
    assert len(held) == len(chosen) == len(OPS) and len(found) > len(held)
    assert not any(held.values()), held


def test_a_frame_is_seen(include, tmp_path):
    """Of an array that is written at places nobody knows before."""
    body = "    int a[16] = {};\n    for (int k = 0; k < 9; ++k) a[(k * i) & 15] += x[k];\n    x[0] = a[i];\n"
    text = f"__global__ void kernel(int *x, int i)\n{{\n{body}}}\n"
    assert list(frames(text, include, tmp_path).values()) == [64]
