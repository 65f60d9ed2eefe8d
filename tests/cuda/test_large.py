# SPDX-License-Identifier: Apache-2.0
"""Tests tensors of more than 2^31 elements: every kernel of a 2-byte dtype, each element compared.
Needs up to 40 GiB."""

import cases
import kflib
import large
import pytest
import selection

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

TWO_BYTES = [
    f
    for f in kflib.on("cuda", selection.gate())
    if f["dtypes"][0] == "bf16"
    and all(kflib.SIZE[d] == 2 for d in f["dtypes"])
    and not cases.own(f)
]
FUNCTIONS = list(
    {
        (f["op"], f["bwd"], f["state"]): f for f in TWO_BYTES if f["activation"] in ("none", "silu")
    }.values()
)
CASES = [
    pytest.param(f, rest, rows, id="_".join([f["name"], "x", *map(str, rest)]))
    for f in FUNCTIONS
    for rest, rows in large.shapes(f)
]
pytestmark = pytest.mark.one_at_a_time


@pytest.mark.parametrize("f, rest, rows", CASES)
def test_large(gpu, libraries, f, rest, rows):
    wide = sum(
        2 if a["kind"] == "half" else 1
        for a in f["arguments"]
        if a.get("kind") in ("elem", "half") and not a["unread"]
    )
    need = int(wide * 2 * large.BOUNDARY * (1 + 1 / large.SHARE)) + (4 << 30)
    if gpu.free_bytes() < need:
        pytest.skip(f"{need >> 30} GiB of device memory are not free")
    large.large(gpu, libraries("default"), f, rest, rows)
