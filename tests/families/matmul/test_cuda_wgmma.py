# SPDX-License-Identifier: Apache-2.0
"""Matrix products by wgmma (kf/core/matmul/hopper.cuh) in code for sm_90a.

Shapes fill tiles and pipeline stages, or do not, for every op with such kernels. Launches are
checked to be these kernels. Needs a GPU of compute capability 9.0.
"""

import ctypes

import checks
import invariant
import kflib
import pytest
import torch
from conftest import BUILD
from wgmma import (
    FEW_FLOATS,
    FEW_ROWS,
    FUNCTIONS,
    INVARIANT,
    LAST,
    TILED,
    TILES,
    check_tiles,
    few_floats,
)

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)
if kflib.capability() != (9, 0):
    pytest.skip("the device has no wgmma", allow_module_level=True)

NAMED = {f["name"]: f for f in kflib.manifest()["functions"]}
PLAIN, TF32, TF32_NN = (
    NAMED[name] for name in ("kf_linear_bf16", "kf_linear_tf32", "kf_linear_nn_tf32")
)
FLAGS = ("-O3", "-gencode=arch=compute_90a,code=sm_90a")
COUNTED = """extern "C" int kft_threads, kft_shared;
#define KF_ON_LAUNCH(function, kernel, config) \
    (kft_threads = (int)(config)->blockDim.x, kft_shared = (int)(config)->dynamicSmemBytes)
"""
# Which tile the kernels that store through slabs have, and how many SMs the device is taken for.
FORCED = """extern "C" int kft_tile, kft_sms;
#define KFI_GEMM_TILE kft_tile
#define KFI_GEMM_SMS kft_sms
"""
NUMBERS = "int kft_threads = 0, kft_shared = 0, kft_tile = -1, kft_sms = 132;\n"
LARGE = (2, 1024, 2304, 768)  # for tiles of 128 x 128
SHAPES = [
    (1, 130, 136, 72),
    (2, 200, 72, 712),
    (1, 65, 8, 8),
    (3, 129, 40, 64),
    (1, 1000, 1032, 520),
    LARGE,
    (1, 3000, 136, 72),
]
# Skinny M: up to 16 and up to 64 rows; K of one block, and split over 2 and 4; several waves.
SKINNY = [
    (1, 1, 1000, 520),
    (2, 16, 520, 4104),
    (1, 33, 4096, 1032),
    (3, 64, 136, 72),
    (1, 5, 2104, 2056),
    (1, 16, 30000, 64),
    (1, 64, 8, 8),
]


# With 1 and 3 SMs: several tiles per block, batches, columns that are no multiple of a slab's or a
# vector's, and a K loop around the pipeline. With 132 a block has one tile, or two.
TILE_SHAPES = [
    (1, (2, 300, 520, 136)),
    (3, (3, 130, 264, 712)),
    (1, (1, 200, 131, 72)),
    (3, (2, 257, 1003, 200)),
    (132, (1, 2048, 2304, 520)),
    (132, (2, 1000, 1032, 520)),
]


def build(functions=FUNCTIONS, flags=FLAGS, text=COUNTED):
    header = BUILD / ("cuda/threads.h" if text == COUNTED else "cuda/forced.h")
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(text)
    functions = [*functions, *(f for f in (PLAIN, TF32, TF32_NN) if f not in functions)]
    return kflib.build(
        "cuda",
        functions,
        BUILD / "cuda",
        (*flags, "-include", str(header)),
        extra={"threads.cu": NUMBERS},
    )


@pytest.fixture(scope="module")
def lib():
    return build()


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_launchers(lib, f):
    memory = checks.CudaMemory()
    checks.run(lib, memory, f, (1, 300, 136, 72), "special")
    if few_floats(f):
        for rows in (1, 16, 33, 64):
            checks.run(lib, memory, f, (1, rows, 1000, 1100), "special")
    floats = f["dtypes"][0] in ("f32", "tf32")
    of_floats = 384 if f["dtypes"][0] == "tf32" and f["form"] == "nt" else 512
    few = not f["bwd"] and (not floats or few_floats(f))
    for sizes in SHAPES + SKINNY * few:
        checks.run(lib, memory, f, sizes)
        if not f["bwd"] and (
            sizes[1] % 8 == 0 or not {"tn", "tt"} & set(f["op"].split("_"))
        ):  # rows of x as stored there
            threads = (
                ((384,) if sizes in SKINNY else (of_floats,))
                if floats
                else (160,)
                if sizes in SKINNY
                else (384,)
                if sizes == LARGE
                else (160, 384)
            )
            assert ctypes.c_int.in_dll(lib.dll, "kft_threads").value in threads


@pytest.fixture(scope="module")
def forced():
    return build(TILED, (*FLAGS, "-DKF_SCHEDULES=12"), COUNTED + FORCED)


@pytest.mark.parametrize("f", TILED, ids=lambda f: f["name"])
def test_tiles(forced, f):
    """Each tile of the kernels that store through slabs, forced: the same bits by all of them."""
    memory = checks.CudaMemory()
    tile, sms, shared = (
        ctypes.c_int.in_dll(forced.dll, f"kft_{name}") for name in ("tile", "sms", "shared")
    )
    launched = {}

    def force(number):
        if tile.value >= 0:
            launched[tile.value] = shared.value
        tile.value = number

    try:
        for sms.value, sizes in TILE_SHAPES:
            check_tiles(forced, memory, f, sizes, force)
            force(-1)
            if sizes[2] % 8 == 0:  # the tile is told by a block's shared memory
                # A transposed right factor has no tile of 96 columns.
                tiles = len(TILES) - (f["form"][1] == "n")
                assert len(set(launched.values())) == tiles, launched
            launched.clear()
    finally:
        tile.value, sms.value = -1, 132


@pytest.mark.parametrize("f", LAST, ids=lambda f: f["name"])
def test_last_tiles_are_shared(lib, f):
    """144 tiles of a weight gradient: 132 SMs compute one each, then share the other twelve."""
    weights = [a["name"] for a in f["arguments"] if a.get("kind") == "right" and a["role"] == "sum"]
    drop = [
        a["name"]
        for a in f["arguments"]
        if a["role"] in ("out", "sum") and a["name"] not in weights
    ]
    for shift in (
        (0, 1) if f["dtypes"][0] in ("bf16", "f16") else (0,)
    ):  # wgmma, then kernels for any address
        checks.run(lib, checks.CudaMemory(), f, (1, 800, 1500, 1504), shift=shift, drop=drop)


@pytest.mark.parametrize("f", [TF32, TF32_NN], ids=lambda f: f["name"])
def test_tf32_rounds_to_the_nearest(lib, f):
    """Multiplies by the identity: elements come back with 11 bits, ties to even."""
    bits = torch.randint(-(2**31), 2**31, (136, 72), device="cuda", dtype=torch.int64)
    x = torch.cat(
        [torch.randn(136, 71, device="cuda"), torch.full((136, 1), 1 + 2.0**-11, device="cuda")], 1
    )
    x[:, :8] = (bits[:, :8] & 0x3FFFFFFF).int().view(torch.float32)  # any exponent up to that of 1
    was = x.view(torch.int32).long()
    want = ((was + 0xFFF + (was >> 13 & 1)) & ~0x1FFF).int().view(torch.float32)
    out = torch.empty_like(x)
    workspace = torch.empty(
        max(lib.workspace_bytes(f, (1, 136, 72, 72)), 1), device="cuda", dtype=torch.uint8
    )
    given = {
        "x": x,
        "weight": torch.eye(72, device="cuda"),
        "bias": None,
        "out": out,
        "pre": None,
        "strides": None,
        "workspace": workspace,
    }
    given = {name: t if t is None else t.data_ptr() for name, t in given.items()}
    sizes = {"batch": 1, "rows": 136, "cols": 72, "depth": 72, "workspace_bytes": workspace.numel()}
    assert lib.call(f, given | sizes, torch.cuda.current_stream().cuda_stream) == 0
    normal = want.abs() >= 2.0**-126
    assert torch.equal(out[normal], want[normal]) and bool((out - want).abs().max() <= 2.0**-126)


def test_rows_alone(lib):
    """A row of up to 64 has the same bits, however many there are."""
    stream = torch.cuda.current_stream().cuda_stream
    for cols, depth in ((4096, 4096), (1536, 7168), (136, 4104), (11008, 520)):
        x, weight = (torch.randn(n, depth, device="cuda", dtype=torch.bfloat16) for n in (64, cols))
        found = {}
        for rows in (1, 5, 16, 17, 64):
            out = torch.full((rows, cols), float("nan"), device="cuda", dtype=torch.bfloat16)
            workspace = torch.empty(
                lib.workspace_bytes(PLAIN, (1, rows, cols, depth)), device="cuda", dtype=torch.uint8
            )
            given = {
                "x": x,
                "weight": weight,
                "bias": None,
                "out": out,
                "pre": None,
                "strides": None,
                "workspace": workspace,
            }
            given = {name: t if t is None else t.data_ptr() for name, t in given.items()}
            sizes = {
                "batch": 1,
                "rows": rows,
                "cols": cols,
                "depth": depth,
                "workspace_bytes": workspace.numel(),
            }
            assert lib.call(PLAIN, given | sizes, stream) == 0
            found[rows] = out
        assert all(torch.equal(found[64][:rows], out) for rows, out in found.items())


@pytest.mark.parametrize("f", FEW_FLOATS, ids=lambda f: f["name"])
def test_rows_alone_of_floats(lib, f):
    memory = checks.CudaMemory()
    for cols, depth in ((4096, 4096), (768, 3072), (136, 4104), (11008, 520), (2000, 772)):
        invariant.check(f, [("alone", lib, memory, 0, lambda: None, 0)], cols, depth, FEW_ROWS)


@pytest.fixture(scope="module")
def invariant_libs():
    return [
        build(INVARIANT, (*flags, "-DKF_BATCH_INVARIANT"))
        for flags in (FLAGS, ("-O3", "-arch=sm_90"))
    ]


@pytest.mark.parametrize("f", INVARIANT, ids=[f["name"] for f in INVARIANT])
def test_batch_invariant(invariant_libs, f):
    """Compares wgmma, mma.sync, and loads through registers."""
    memory = checks.CudaMemory()
    ways = [
        (what, invariant_libs[portable], memory, shift, lambda: None, 0)
        for what, portable, shift in (
            ("by wgmma", 0, 0),
            ("by mma.sync", 1, 0),
            ("from any address", 1, 1),
        )
    ]
    for cols, depth, rows in (
        (24, 1032, invariant.ROWS),
        (1032, 520, (2100, 1000, 65, 64, 5)),
    ):  # all of sm_90a's tiles
        invariant.check(f, ways, cols, depth, rows)
