# SPDX-License-Identifier: Apache-2.0
"""Parts of test_seeded.py: faults of channel blocks and reductions, the checks that must notice
faults, and functions that execute the barriers of the core headers."""

import cases
import checks
import emulator
import samples
from conftest import ROOT

ORDERS = {"forward": emulator.FORWARD, "reversed": emulator.REVERSED, "random": emulator.RANDOM}
CORE = ROOT / "include/kf/core"
BARRIER = "__syncthreads();"

# file, pattern, replacement, functions, sanitizers that must report it
MORE_FAULTS = {
    "an element of a channel block uses the next channel's value": (
        "kf/core/rows/channel_block.cuh",
        r"return form == KFI_BAND_TWO \? \(e < split \?",
        "return form == KFI_BAND_TWO ? (e < split + 1 ?",
        ("kf_batch_norm_train_f32", "kf_batch_norm_train_bwd_bf16"),
        (),
    ),
    "a channel block's sum leaves out the last warp": (
        "kf/core/rows/channel_block.cuh",
        r"if \(lane < warps\) own = buffer",
        "if (lane < warps - 1) own = buffer",
        ("kf_batch_norm_train_bwd_f32",),
        (),
    ),
    "a channel block's sum leaves out the last row": (
        "kf/core/rows/channel_block.cuh",
        r"w\.row < g\.rows; kfi_band_next\(&w\)\) +\\\n +own =",
        "w.row < g.rows - 1; kfi_band_next(&w)) own =",
        ("kf_batch_norm_train_bwd_f32",),
        (),
    ),
    "joined moments leave out the distance of the means": (
        "kf/core/rows/channel_block.cuh",
        r"return number \* d \* d;",
        "return 0 * d * d;",
        ("kf_batch_norm_train_f32", "kf_batch_norm_train_f64"),
        (),
    ),
    "a channel's moments leave out the last block": (
        "kf/core/rows/channel_block.cuh",
        r"i < g\.parts; i \+= 32\) own = ",
        "i < g.parts - 1; i += 32) own = ",
        ("kf_batch_norm_train_f32", "kf_batch_norm_train_bwd_bf16"),
        (),
    ),
    "a channel block's columns are read as if they were contiguous": (
        "kf/core/rows/channel_block.cuh",
        r"\* \(p\.gap \+ g\.inner\) \+ u\.first",
        "* g.inner + u.first",
        ("kf_batch_norm_train_f32",),
        (),
    ),
    "a thread's reduction leaves out half of its chunk": (
        "kf/core/reduction/reduction.cuh",
        r"more\[e\] = kfi_join\(word, more\[e\], more\[e \+ by\]\)",
        "more[e] = more[e + by]",
        ("kf_sum_f32", "kf_amax_bf16"),
        (),
    ),
    "the reversed order of blocks skips one and repeats another": (
        "kf/core/reduction/reduction.cuh",
        r"gridDim\.x - 1 - blockIdx\.x : blockIdx\.x\) >> g\.cluster;(\s+)const unsigned rest",
        r"gridDim.x - 1 - (gridDim.x > 1 && !blockIdx.x ? 1 : blockIdx.x) : blockIdx.x) >> "
        r"g.cluster;\1const unsigned rest",
        ("kf_var_f32", "kf_amax_bwd_f32"),
        (),
    ),
    "a reversed sweep leaves out the last vectors": (
        "kf/ops/amax.device.cuh",
        r"\(at\.loops - 1\) & -ahead",
        "(at.loops - 1 - ahead) & -ahead",
        ("kf_amax_bwd_f32", "kf_amax_bwd_bf16"),
        (),
    ),
    "the last vector of an axis is read as a whole one": (
        "kf/core/reduction/reduction.cuh",
        r"i < at\.loops \? at\.last : 0",
        "i < at.loops ? at.left : 0",
        ("kf_sum_bwd_f32", "kf_amax_bwd_bf16"),
        (),
    ),
}

# Each barrier of the schedules is removed in turn (device.cuh: test_device_words.py). Barriers of
# sums are tested with one function of each accumulator and schedule; all ops over rows share code.
SUMS = [
    f
    for f in samples.MANIFEST
    if f["scratch"]
    and f["dtypes"][0] in ("f32", "f64")
    and f["activation"] == "none"
    and not f["dropout"]
    and (f["family"] == "elementwise" or f["op"] == "layer_norm_{act}")
]
# Reductions over an axis, one of which joins twice in a kernel, and one argreduce.
PLACES = [
    f["op"]
    for f in samples.MANIFEST
    if f["family"] == "reduction" and any(a.get("var") == "I" for a in f["arguments"])
][:1]
# Argreduce has its own kernel for 2-byte elements.
REDUCED = [
    f
    for f in samples.MANIFEST
    if f["op"] in ("sum", "amax", "var", *PLACES)
    and not f["bwd"]
    and f["dtypes"][0] in ("f32", "f64", *["bf16"] * (f["op"] in PLACES))
]
BANDS = [
    f
    for f in samples.MANIFEST
    if f["op"] == "batch_norm_train_{act}"
    and f["dtypes"] in (["f32"], ["f64"])
    and f["activation"] == "none"
]
# Two gradients summed over rows. test_emu_core.py tests the barriers of the products themselves.
PRODUCTS = [
    f
    for f in samples.MANIFEST
    if f["op"] == "linear_{act}_mul"
    and f["bwd"]
    and f["activation"] == "none"
    and f["dtypes"] in (["f32"], ["f64"])
]
SITES = [
    (path, i)
    for path in [
        CORE / "sums.cuh",
        *(
            p
            for folder in ("elementwise", "rows", "reduction")
            for p in sorted((CORE / folder).glob("*.cuh"))
        ),
        CORE / "matmul/sum.cuh",
    ]
    for i in range(path.read_text().count(BARRIER))
]


def users(path):
    """Functions that execute the barriers of a file."""
    folder = path.parent.name
    if folder == "matmul":
        return PRODUCTS
    if folder == "reduction":
        return [f for f in REDUCED if (f["op"] in PLACES) == (path.name != "reduction.cuh")]
    if path.name == "channel_block.cuh":
        return BANDS
    return [f for f in SUMS if (f["family"] == "rows") == (folder == "rows")]


def caught(include, folder, functions, sanitizers, orders=tuple(ORDERS)):
    """Returns the checks that notice a fault: thread orders and sanitizers. At KF_LEVEL=1 the first
    thread order that notices ends the search."""
    lib = emulator.build(functions, folder / "lib", include=include)
    emu = emulator.Emulator(lib)
    found = set()
    for order in orders:
        if found and cases.LEVEL < 2:
            break
        memory = emulator.Memory(emu, ((ORDERS[order], emulator.FILL), (ORDERS[order], 1)))
        try:
            for f in functions:
                rows = f["family"] == "rows"  # a persistent block needs several rows
                emu.set(sms=1 if rows else 132)
                for sizes, values, shift in cases.runs(f) + (
                    [(cases.rows_of(f, [[(40, 1000), 0]])[0][0], "normal", 0)] if rows else []
                ):
                    checks.run(lib, memory, f, sizes, values, shift=shift)
                # More rows than one launch adds up.
                if f["form"] == "rows" and f["family"] == "elementwise" and f["scratch"]:
                    checks.run(lib, memory, f, (200, 24))
                if rows:  # one block of columns computes all of a few rows
                    emu.set(sms=132)
                    checks.run(lib, memory, f, cases.rows_of(f, [[(40, 1000), 0]])[0][0])
        except checks.Failure:
            found.add(order)
    for sample in sanitizers:
        sanitized = emulator.library(
            functions, folder / "lib", samples.SAMPLES[sample].variant, include
        )
        if (
            samples.run(sanitized, sample, [f["name"] for f in functions], first=True).returncode
            == 66
        ):
            found.add(sample)
    return found
