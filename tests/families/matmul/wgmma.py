# SPDX-License-Identifier: Apache-2.0
"""Functions whose products can use wgmma, and a check that forces each of its tiles. Used by
tests/emu and tests/cuda."""

import re

import cases
import checks
import kflib
import launch_steps
import ledger
import selection
import strided


def functions(dtypes=("bf16", "f16", "f32", "tf32")):
    """Returns functions that cover each op, forward and backward, with an activation with scalars
    or none.

    For f32 and tf32 it covers the factors' layouts, one product or two, and the prologue.
    """
    found = [
        f
        for f in kflib.on("cuda", kflib.manifest()["functions"])
        if f["family"] == "matmul"
        and f["activation"] in ("none", "gelu", "elu")
        and f["dtypes"][0] in dtypes
        and (
            f["dtypes"][0] in ("bf16", "f16")
            or any("_wgmma<" in name for name in launch_steps.kernels(f))
        )
    ]

    # Every kernel, if the family is unchanged since all tests passed (ledger.py).
    def thin(f):
        halves = f["dtypes"][0] in ("bf16", "f16")
        return [
            ("2 bytes" if halves else f["dtypes"][0], f["form"] == "nt", f["bwd"]),
            (halves, f["op"] == "linear_{act}_mul", f["bwd"]),
        ]

    def features(f):
        if f["dtypes"][0] == "tf32":
            return [("tf32", f["form"] == "nt", f["bwd"], f["op"] == "linear_{act}_mul")] * (
                f["form"] in ("nt", "nn")
            )
        if f["dtypes"][0] == "f32":
            return [
                ("f32", f["form"], f["bwd"]),
                ("f32", f["op"].endswith("_linear"), f["op"] == "linear_{act}_mul", f["bwd"]),
            ]
        return [
            ("op", f["op"], f["state"], f["bwd"]),
            ("dtype", *f["dtypes"], f["layout"]),
            ("activation", f["activation"]),
        ]

    return selection.cover(
        thin if cases.LEVEL == 1 and ledger.unchanged("matmul") else features, found
    )


FUNCTIONS = functions()
# Functions whose rows must have the same bits in any batch: one of each kind; at level 2 all.
INVARIANT = cases.by_level(
    selection.cover(lambda f: [(f["bwd"], f["dtypes"][0] == "f32", "_mul" in f["op"])], FUNCTIONS),
    FUNCTIONS,
)


def gradient_of(*dtypes):
    return next(
        f
        for f in FUNCTIONS
        if f["bwd"] and f["dtypes"][0] in dtypes and f["form"] == "nt" and not f["dropout"]
    )


# Weight gradients whose last tiles are split over several blocks: one per multiplication method.
LAST = [gradient_of("bf16", "f16"), gradient_of("f32"), gradient_of("tf32")]


# ---- tiles of kernels with staged stores

# {name: number} of the tiles that KFI_GEMM_TILE can force.
TILES = {
    name: int(number)
    for name, number in re.findall(
        r"#define KFI_TILE_(WGMMA_\d+x\d+_\w+) (\d+)",
        (kflib.ROOT / "include/kf/core/matmul/tile.cuh").read_text(),
    )
}


def stores_through_slabs(f):
    """True if a function has kernels that store through slabs."""
    return any("_slabs<" in name for name in launch_steps.kernels(f))


def few_floats(f):
    """True if a function has the kernels of skinny_f32.cuh: few rows of float32 elements."""
    return not f["bwd"] and f["dtypes"][0] in ("f32", "tf32") and f["form"] == "nt"


def weights_of(f):
    return [a["name"] for a in f["arguments"] if a.get("kind") == "right" and a["role"] == "in"]


# One function with these kernels per dtype and number of products.
FEW_FLOATS = selection.cover(
    lambda f: [(f["dtypes"][0], len(weights_of(f)))], [f for f in FUNCTIONS if few_floats(f)]
)
# Each width; one round and several; K of one block, and split over 2 and 4; empty quarters.
FEW_FLOATS_SHAPES = [
    (1, 5, 24, 2056),
    (2, 12, 72, 1032),
    (3, 33, 40, 64),
    (1, 64, 136, 520),
    (1, 24, 100, 1100),
]


def check_few_floats(lib, memory, f, set_sms):
    """Checks few rows on devices of several sizes, with infinities and NaN. set_sms: called with
    the number of SMs."""
    for sms in (5, 132):
        set_sms(sms)
        for sizes in FEW_FLOATS_SHAPES:
            checks.run(lib, memory, f, sizes)
        checks.run(lib, memory, f, (1, 30, 24, 72), "special")
        checks.run(lib, memory, f, (1, 3, 24, 1072), "special")


# Rows of a call of which each row must have the same bits: all widths, and odd ones.
FEW_ROWS = 64, 1, 7, 8, 16, 17, 33, 47


# One function per op, dtype and activation with such kernels: residual, pre-activation output,
# computed left factor.
TILED = selection.cover(
    lambda f: [("op", f["op"]), ("dtype", f["dtypes"][0]), ("activation", f["activation"])],
    [
        f
        for f in kflib.on("cuda", kflib.manifest()["functions"])
        if f["sizes"] == ["batch", "rows", "cols", "depth"]
        and f["activation"] in ("none", "gelu", "elu")
        and stores_through_slabs(f)
    ],
)
assert TILED and len(TILES) == 5


def padded(f, sizes):
    """Returns strides for which every row of `cols` elements is 16-byte aligned."""
    cols, found = sizes[2], {}
    for a in strided.strided_tensors(f):
        extents, line = strided.levels(f, sizes, a)
        if line == cols:
            found[a["name"]] = [-(-cols // 8) * 8] + [0] * (len(extents) - 1)
    return found


def aligned_rows(f, sizes):
    """Rounds rows up to 8 where they are the leading dimension of a transposed left factor."""
    rows = -(-sizes[1] // 8) * 8 if f["form"][0] == "t" else sizes[1]
    return (sizes[0], rows, *sizes[2:])


def check_padded(lib, memory, f, sizes):
    """Checks that padded rows of an odd number of columns, which the kernel with direct stores
    computes, have the bits of contiguous ones."""
    sizes = aligned_rows(f, sizes)
    call = strided.Call(checks.Layout(lib, f, sizes), padded(f, sizes))
    strided.compare(*call.run(lib, memory), checks.run(lib, memory, f, sizes), "padded rows")


def outputs(lib, memory, f, sizes, drop=()):
    """Returns the outputs of a call and checks that it writes nothing else."""
    call = checks.Layout(lib, f, sizes, drop=drop)
    memory.spans = call.spans()
    result, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    assert result == 0, lib.detail
    call.untouched(back)
    return call.outputs(back)


def check_tiles(lib, memory, f, sizes, force):
    """Runs f with each tile forced. The first result is compared with the oracle, the others must
    have its bits.

    If cols is no multiple of 8, padded rows must give the bits of contiguous ones, which a kernel
    with direct stores computes. force: called with a tile's number before its calls.
    """
    sizes = aligned_rows(f, sizes)
    optional = tuple(a["name"] for a in f["arguments"] if a["name"] in ("pre", "bias"))
    first, run = None, checks.run
    for name, number in TILES.items():
        force(number)
        found = [run(lib, memory, f, sizes)]
        if sizes[2] % 8 == 0:
            found.append(run(lib, memory, f, sizes, drop=optional))
        else:
            call = strided.Call(checks.Layout(lib, f, sizes), padded(f, sizes))
            strided.compare(*call.run(lib, memory), found[0], f"tile {name}")
        first, run = first or found, outputs
        for want, got in zip(first, found):
            assert all(checks.same_bits(want[k], got[k]) for k in want), (name, sizes)
