# SPDX-License-Identifier: Apache-2.0
"""Tests the backward kernels of kf/core/attention in the emulator against float64 (bwd_core.py).
Planted faults must be noticed."""

import bwd_core
import cases
import emulator
import faults
import pytest
import toolkit
from bwd_core import BF16, BIAS, F16, F32, F64, HOPPER, SIMT, SOFTCAP, Case

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")

# Lengths around 64 rows and 64, 32 and 16 walked ones; queries before, at and behind the keys;
# rows that begin anywhere; packed sequences, some empty.
MMA_CASES = [
    Case(queries=1, keys=1),
    Case(queries=65, keys=130, dlse=True),
    Case(queries=130, keys=65, right=0, heads=4, kv_heads=2, batch=2, packed=True),
    Case(queries=130, keys=129, right=0, hidden_nan=True, heads=2, kv_heads=1),
    Case(queries=130, keys=129, right=0, shift=0, dim=40, offset=1, lse_alone=True),
    Case(queries=70, keys=200, right=0, dim=128, packed=True, heads=3, batch=2),
    Case(queries=70, keys=200, left=60, right=3, dim=72, type=F16, offset=3, dlse=True),
    Case(queries=70, keys=100, right=0, dim=256, left=50, hidden_nan=True),
    Case(queries=70, keys=100, right=0, dim=200, dim_v=104),
    Case(queries=70, keys=100, right=0, type=F16, score=SOFTCAP),
    Case(queries=70, keys=100, right=0, left=20, dim=128, score=BIAS, heads=2, type=F16),
    Case(queries=70, keys=100, right=0, dim=40, dim_v=20),
    Case(queries=70, keys=100, left=50, dim=7, dim_v=100, type=F16, hidden_nan=True),
    Case(queries=70, keys=100, last=70, hidden_nan=True),
    Case(queries=70, keys=100, right=0, dim=128, score=BIAS, type=F16, hidden_nan=True),
    Case(queries=70, keys=0),
    Case(queries=0, keys=70),
    Case(queries=100, keys=70, right=0, scale=-1.0),
    Case(queries=70, keys=70, scale=0.0),
    Case(queries=70, keys=70, scale=4.0),
    Case(queries=70, keys=70, without=("dq",)),
    Case(queries=70, keys=70, without=("dk",)),
    Case(queries=70, keys=70, without=("dv", "dk")),
    Case(
        queries=200,
        keys=190,
        right=0,
        heads=2,
        packed=True,
        query_offsets=(3, 70, 70, 90, 190),
        key_offsets=(0, 50, 60, 60, 185),
        dlse=True,
    ),
    # Dropout: numbers of weights that begin anywhere, hidden pairs, p of 0 and 1.
    Case(queries=70, keys=104, p=0.3, heads=2, batch=2),
    Case(queries=70, keys=101, p=0.3, right=0, heads=4, kv_heads=2, number0=13),
    Case(queries=70, keys=100, p=0.5, right=0, left=30, dim=256, type=F16, number0=3),
    Case(queries=70, keys=100, p=0.0, right=0, hidden_nan=True),
    Case(queries=20, keys=30, p=1.0),
    Case(
        queries=100, keys=91, p=0.3, query_offsets=(3, 70, 90), key_offsets=(2, 50, 91), packed=True
    ),
]
# Lengths around 64 and 128 queries and keys; several blocks of keys in either order, by blocks that
# run together; queries that see no key and keys that no query sees; heads that share keys.
HOPPER_CASES = [
    Case(kernel=HOPPER, queries=1, keys=1),
    Case(kernel=HOPPER, queries=65, keys=130, dlse=True),
    Case(kernel=HOPPER, queries=130, keys=65, right=0, heads=4, kv_heads=2, batch=2, packed=True),
    Case(kernel=HOPPER, queries=130, keys=129, right=0, hidden_nan=True, heads=2, kv_heads=1),
    Case(kernel=HOPPER, queries=192, keys=192, right=0, low=True, lse_alone=True),
    Case(kernel=HOPPER, queries=192, keys=320, right=0, dim=128, low=True, type=F16),
    Case(kernel=HOPPER, queries=130, keys=200, right=0, shift=0, dim=40, lse_alone=True),
    Case(kernel=HOPPER, queries=70, keys=300, right=0, dim=128, blocks=2, cluster=2, dlse=True),
    Case(kernel=HOPPER, queries=260, keys=400, right=0, heads=2, blocks=4, cluster=4),
    Case(kernel=HOPPER, queries=200, keys=270, heads=2, kv_heads=1, blocks=3, cluster=3),
    Case(kernel=HOPPER, queries=70, keys=260, dim=128, dim_v=96, type=F16, hidden_nan=True),
    Case(kernel=HOPPER, queries=100, keys=70, dim=72, right=0, hidden_nan=True, heads=3, batch=2),
    Case(kernel=HOPPER, queries=70, keys=200, last=70, hidden_nan=True),
    Case(kernel=HOPPER, queries=70, keys=200, last=0, dim=128),
    Case(kernel=HOPPER, queries=100, keys=70, right=0, scale=-1.0),
    Case(kernel=HOPPER, queries=70, keys=70, right=0, scale=0.0),
    Case(kernel=HOPPER, queries=70, keys=70, scale=4.0),
    Case(kernel=HOPPER, queries=70, keys=70, without=("dq",)),
    Case(kernel=HOPPER, queries=70, keys=70, right=0, without=("dk",)),
    Case(kernel=HOPPER, queries=70, keys=70, without=("dv", "dk")),
]
SIMT_CASES = [
    Case(kernel=SIMT, type=F32, queries=1, keys=1),
    Case(kernel=SIMT, type=F32, queries=65, keys=130, left=40, dlse=True),
    Case(
        kernel=SIMT, type=F32, queries=130, keys=65, right=0, hidden_nan=True, heads=4, kv_heads=1
    ),
    Case(kernel=SIMT, type=F32, queries=70, keys=100, dim=128, right=0, left=20, score=BIAS),
    Case(kernel=SIMT, type=F32, queries=70, keys=100, dim=256, dim_v=250, right=0, packed=True),
    Case(kernel=SIMT, type=F32, queries=35, keys=40, dim=300, dim_v=7, lse_alone=True),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, dim=40, offset=1, heads=2, batch=2),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, dim=128, score=SOFTCAP),
    Case(kernel=SIMT, type=F64, queries=35, keys=70, right=0, dim=256, hidden_nan=True),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, scale=-0.3),
    Case(kernel=SIMT, type=F64, queries=5, keys=0),
    Case(kernel=SIMT, type=F64, queries=0, keys=5),
    Case(kernel=SIMT, type=BF16, queries=65, keys=70, right=0),
    Case(kernel=SIMT, type=F16, queries=65, keys=70, right=0, dim=72),
    Case(
        kernel=SIMT,
        type=F32,
        queries=120,
        keys=110,
        right=0,
        heads=2,
        kv_heads=1,
        packed=True,
        query_offsets=(3, 70, 70, 90),
        key_offsets=(0, 50, 60, 105),
    ),
    Case(kernel=SIMT, type=F32, queries=70, keys=101, p=0.3, right=0, number0=5, heads=2),
    Case(kernel=SIMT, type=F64, queries=70, keys=100, p=0.7, dim=128, score=SOFTCAP, batch=2),
]
ORDERS = cases.by_level((emulator.RANDOM,), (emulator.RANDOM, emulator.FORWARD, emulator.REVERSED))


def name_of(case):
    default = Case()
    own = {k: v for k, v in vars(case).items() if v != getattr(default, k)}
    return "-".join(f"{k}{v}" for k, v in own.items()) or "default"


@pytest.fixture(scope="module")
def kernels(include, once):
    folder = once(
        "attention bwd kernels", lambda folder: [folder, bwd_core.library(include, folder)][0]
    )
    return bwd_core.load(folder / "attention_bwd_plain.so")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"order{order}")
@pytest.mark.parametrize("case", MMA_CASES, ids=name_of)
def test_mma(kernels, case, order):
    bwd_core.check(kernels, case, order)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"order{order}")
@pytest.mark.parametrize("case", HOPPER_CASES, ids=name_of)
def test_hopper(kernels, case, order):
    bwd_core.check(kernels, case, order)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"order{order}")
@pytest.mark.parametrize("case", SIMT_CASES, ids=name_of)
def test_simt(kernels, case, order):
    bwd_core.check(kernels, case, order)


BWD, MMA_FILE, SIMT_FILE, SCORE, PACKED, HOPPER_FILE, LOAD, ROWS, WORK = (
    f"kf/core/attention/{name}.cuh"
    for name in (
        *("bwd", "bwd_mma", "bwd_simt", "score", "packed"),
        *("bwd_hopper", "bwd_hopper_load", "bwd_hopper_rows", "bwd_hopper_work"),
    )
)
# file, pattern, replacement
SEEDED = {
    "dlse is not subtracted": (BWD, r"g\.dlse \? sum - .*? : sum", "sum"),
    "an lse alone is taken for a maximum of one key": (
        BWD,
        r"two \? g\.row_max : g\.lse",
        "g.row_max",
    ),
    "a pair of blocks is not masked": (BWD, r"    if \(masked\) \{", "    if (false) {"),
    "keys that bounds without a slope hide are walked": (
        BWD,
        r"const bool none = high < low [^;]*?kfi_attention_behind\(a, begin\)",
        "const bool none = high < low || begin >= a.keys",
    ),
    "some keys of a block are hidden from all queries": (BWD, r"some \? -1", "false ? -1"),
    "the value of a hidden pair reaches its gradient": (
        BWD,
        r"\*d = hidden \? real\(0\) : p \* \(\*d - delta\)",
        "*d = p * (*d - delta)",
    ),
    "a row that a hidden value reached stays": (MMA_FILE, r"in && bad != bad", "false"),
    "a row is recomputed without its query's statistics": (
        MMA_FILE,
        r"\(\(const float \*\)g\.factor\)\[at\]",
        "1.0f",
    ),
    "a stage is read before its copy is complete": (MMA_FILE, r"kfi_fetch_wait<0>\(\);", ""),
    "a stage is refilled while warps read it": (
        MMA_FILE,
        r"__syncthreads\(\);( *// for all threads; the other)",
        r"\1",
    ),
    "statistics behind the last query are read": (
        MMA_FILE,
        r"const bool in = row < a\.queries;\n        kfi_cp",
        "const bool in = true;\n        kfi_cp",
    ),
    "heads of a group have the first one's statistics": (
        MMA_FILE,
        r"in \? row : 0, head, batch",
        "in ? row : 0, 0, batch",
    ),
    "statistics are overwritten while warps read them": (
        SIMT_FILE,
        r"__syncthreads\(\); // the statistics and bits before",
        "//",
    ),
    "rows of a fragment are overwritten while lanes read them": (
        SIMT_FILE,
        r"__syncwarp\(\);( *// the rows of the fragment)",
        r"\1",
    ),
    "a slice is overwritten while warps read it": (
        SIMT_FILE,
        r"(c \+= slice\) \{\n)        __syncthreads\(\);\n",
        r"\1",
    ),
    "every slice has the first columns": (SIMT_FILE, r"col \+ c, from\.dim", "c, from.dim"),
    "queries of a transposed fragment are not its columns": (
        SCORE,
        r"transposed \? kfi_score_key\(i\)",
        "transposed ? 8 * kfi_score_row(i)",
    ),
    "wgmma: a hidden pair has a probability": (
        HOPPER_FILE,
        r"if \(row >= end \|\| row > last",
        "if (row >= end || false && row > last",
    ),
    "wgmma: a key behind the last one has a probability": (
        HOPPER_FILE,
        r"if \(row >= end \|\|",
        "if (",
    ),
    "wgmma: gradients of the other warpgroup's scores are read too early": (
        HOPPER_FILE,
        r"if \(i > 0\)\n        kfi_mbar_wait",
        "if (false) kfi_mbar_wait",
    ),
    "wgmma: a buffer of dQ is refilled while it leaves": (HOPPER_FILE, r"if \(i >= 2\)", "if (0)"),
    "wgmma: dk and dv are staged while dQ leaves": (HOPPER_FILE, r"i < 2 && i < steps", "i < 0"),
    "wgmma: dQ is staged while dk and dv leave": (HOPPER_FILE, r"if \(w->pending\)", "if (false)"),
    "wgmma: a block of keys adds before its turn": (
        LOAD,
        r"kfi_ticket_wait\(a\.added \+ to, turn\);",
        "",
    ),
    "wgmma: sums are passed on before they are in memory": (
        LOAD,
        r"kfi_bulk_wait<0>\(\);\n( *kfi_global)",
        r"\1",
    ),
    "wgmma: the last block of keys is the first of every query": (
        WORK,
        r"kfi_min_i32\(a\.key_blocks - 1, last\) - block",
        "a.key_blocks - 1 - block + 0 * last",
    ),
    "wgmma: tickets are those of the call before": (ROWS, r"\+ block\] = 0;", "+ block] += 0;"),
    "wgmma: a row of dq that a hidden element reached stays": (
        ROWS,
        r"if \(bad\[row\]\)",
        "if (0)",
    ),
    "wgmma: a row of dk that a hidden element reached stays": (
        ROWS,
        r"if \(!reached\[n\]\)",
        "if (1)",
    ),
    "wgmma: dlse is not subtracted": (ROWS, r"if \(g\.dlse\)", "if (false)"),
    "keys of a sequence are counted from its queries": (
        PACKED,
        r"s->key = keys \? first : other",
        "s->key = keys ? other : other",
    ),
}


def passes(dll):
    try:
        for order in ORDERS:
            for case in MMA_CASES + HOPPER_CASES + SIMT_CASES:
                bwd_core.check(dll, case, order)
    except AssertionError as error:
        print(error)
        return False
    return True


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.check
@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    broken = faults.plant(include, tmp_path, *SEEDED[what])
    assert not passes(bwd_core.library(broken, tmp_path)), f"nobody notices {what}"
