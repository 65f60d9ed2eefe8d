# SPDX-License-Identifier: Apache-2.0
"""Few rows and few axes on a GPU: sums in one launch, whose bits depend on sizes alone."""

import checks
import kflib
import numeric
import numpy as np
import pytest
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

PLAIN = [f for f in kflib.manifest()["functions"] if not f.get("state")]
# Leaves out batch norm with gelu: float32 gradients of one row show the cheap form's tail.
SUMMED = [
    f
    for f in PLAIN
    if f["family"] == "elementwise"
    and f["bwd"]
    and f["scratch"]
    and f["activation"] == ("gelu" if f["op"].startswith("bias_{act}") else "none")
]
REDUCED = [
    f
    for f in PLAIN
    if f["op"] in ("sum", "amax", "std", "logsumexp", "prod") and len(f["dtypes"]) == 1
]
ROWS = [(1, 4096), (1, 5), (2, 88), (5, 4096), (9, 136), (33, 1000), (63, 4104), (64, 4096)]
MORE = [(65, 4096), (3, 40000), (64, 20000)]  # some take two launches
AXES = [
    (96, 1),
    (1030, 1),
    (4096, 1),
    (5000, 1),
    (8192, 1),
    (16384, 1),
    (64, 512),
    (64, 33),
    (2500, 96),
]


@pytest.fixture(scope="session")
def lib():
    """Compiles with clusters that reduce an axis' parts, which are off by default."""
    return kflib.build(
        "cuda",
        SUMMED + REDUCED,
        BUILD / "cuda",
        (*numeric.BUILDS["cuda"]["default"], "-DKFI_REDUCE_CLUSTER=3"),
    )


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@numeric.each(SUMMED, "name")
def test_few_rows(lib, memory, f):
    """Aligned and unaligned rows, long enough for a vector per thread, and shorter."""
    for rows, cols in ROWS:
        sizes = (rows, cols, 1) if f["form"] == "planes" else (rows, cols)
        found = [checks.run(lib, memory, f, sizes, shift=shift) for shift in (0, 1)]
        assert all(checks.same_bits(array, found[1][name]) for name, array in found[0].items()), (
            sizes
        )
    for rows, cols in MORE:
        checks.run(lib, memory, f, (rows, cols, 1) if f["form"] == "planes" else (rows, cols))


@numeric.each(REDUCED, "name")
def test_few_axes(lib, memory, f):
    """Results of few axes have the same bits as among many, aligned and unaligned."""
    for axis, inner in AXES:
        many = checks.Layout(lib, f, (600, axis, inner) if inner == 1 else (9, axis, inner))
        result, back = memory.run(many.image, lambda base, many=many: lib.call(f, many.given(base)))
        assert result == 0, lib.detail
        want = many.outputs(back)
        for shift in (0, 1):
            few = checks.Layout(lib, f, (3, axis, inner), shift=shift)
            for name, a in few.tensors.items():
                if a["role"] == "in":
                    few.put(name, many.data[name][2:5])
            result, back = memory.run(few.image, lambda base, few=few: lib.call(f, few.given(base)))
            assert result == 0, lib.detail
            for name, got in few.outputs(back).items():
                assert np.array_equal(got.view(np.uint8), want[name][2:5].view(np.uint8)), (
                    axis,
                    inner,
                    shift,
                    name,
                )


@numeric.each(REDUCED, "name")
def test_tall(lib, memory, f):
    """Axes whose parts the blocks of a cluster reduce."""
    for sizes in ((1, 4000, 768), (2, 2100, 1100)):
        checks.run(lib, memory, f, sizes)
