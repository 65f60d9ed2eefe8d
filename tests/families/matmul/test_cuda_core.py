# SPDX-License-Identifier: Apache-2.0
"""Matrix products on a GPU: every portable tile and kind of load, and products that fill it.

Small shapes reach every kernel when launchers take the device for one of a single SM, as in the
emulation. Needs a GPU.
"""

import checks
import kflib
import numeric
import pytest
import selection
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)


def of(features):
    """Selects functions that cover the features; f16 differs from bf16 in its conversion alone."""
    found = [f for f in kflib.on("cuda", numeric.FUNCTIONS) if f["family"] == "matmul"]
    return selection.cover(
        lambda f: [(f["bwd"], f["dtypes"][0].replace("bf16", "f16"), *(f[x] for x in features))],
        found,
    )


EACH_OP, EACH_DTYPE = of(("op",)), of(())
# Whole vectors and others, up to 64 rows and more, split-K in each of the products.
WIDE = [
    ((1, 1100, 1300, 200), 0),
    ((1, 1031, 777, 333), 1),
    ((2, 300, 520, 1000), 0),
    ((1, 60, 140, 4100), 0),
    ((1, 5000, 130, 70), 0),
]


def build(functions, *flags):
    return kflib.build(
        "cuda", functions, BUILD / "cuda", (*numeric.BUILDS["cuda"]["default"], *flags)
    )


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@pytest.fixture(scope="session")
def narrow():
    return build(EACH_OP, "-DKFI_GEMM_SMS=1")


@pytest.fixture(scope="session")
def plain():
    return build(EACH_DTYPE)


@numeric.each(EACH_OP, "name")
def test_every_tile(narrow, memory, f):
    numeric.numbers(narrow, memory, f)


@numeric.each(EACH_DTYPE, "name")
def test_wide(plain, memory, f):
    for sizes, shift in WIDE:
        checks.run(plain, memory, f, sizes, shift=shift)


# linear_add of each dtype for tensor cores: forward, gradient, weight gradients in float32 and not.
SUBNORMAL = [
    f
    for f in kflib.on("cuda", kflib.manifest()["functions"])
    if f["op"] == "linear_{act}_add"
    and f["activation"] == "none"
    and {"bf16", "f16", "tf32"} & set(f["dtypes"])
]


@numeric.each(SUBNORMAL, "name")
def test_subnormal_factors(memory, f):
    """A subnormal factor beside a large one takes bits from other terms (product_oracle).

    This holds for mma.sync and, in code for sm_90a, for wgmma.
    """
    flags = (
        ["-O3", "-gencode=arch=compute_90a,code=sm_90a"]
        if kflib.capability() == (9, 0)
        else numeric.BUILDS["cuda"]["default"]
    )
    lib = kflib.build("cuda", SUBNORMAL, BUILD / "cuda", flags)
    for sizes in (
        (1, 2, 96, 1),
        (1, 16, 40, 8),
        (1, 40, 24, 70),
        (1, 130, 72, 136),
        (1, 16, 520, 1032),
    ):
        for seed in range(5):
            checks.run(lib, memory, f, sizes, "special", seed=seed, shift=seed % 2)
