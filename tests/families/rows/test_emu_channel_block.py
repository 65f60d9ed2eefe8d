# SPDX-License-Identifier: Apache-2.0
"""Tests user-defined ops over channels in channel blocks (core/rows/channel_block.cuh): every kind
of reduction, passes other than moments, many tensors and per-channel results; and ops that cannot
use channel blocks."""

import cases
import checks
import emulator
import kflib
import launch_steps
import numpy as np
import pytest
import toolkit
import user_ops

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
SHAPES = [
    ((3, 5, 64), 0),
    ((3, 2, 2048), 1),
    ((5, 8, 9), 0),
    ((75, 9, 9), 0),
    ((40, 13, 1), 1),
    ((600, 16, 1), 0),
    ((0, 3, 8), 0),
    ((2, 3, 800), 0),
    ((2, 3, 2400), 1),
    ((40, 260, 1), 0),
]
OPS = {
    "extremes": (
        'x = "elem", y = "elem", z = "elem", w = { kind = "per_row", absent = 1 }',
        "w * x * y + z - max(x - z) + min(y) * sum(z)",
    ),
    "product": ('x = { kind = "elem", grad = false }', "x * prod(1 + x * 0.001)"),
    "spread": ('x = { kind = "elem", grad = false }', "x - sum(abs(x - mean(x))) / count"),
    "centred": ('x = "elem"', "(x - mean(x)) * rsqrt(mean((x - mean(x)) * (x - mean(x))) + 1)"),
    "channel": ('x = "elem", y = "elem"', "sum(x * y) + max(x)"),
}


@pytest.mark.parametrize("what", OPS)
def test_own(what, include, tmp_path):
    operands, expr = OPS[what]
    ref = expr.replace("rsqrt(", "1 / np.sqrt(").replace("abs(", "np.abs(")
    path, _, functions = user_ops.load(
        f"""
[op.{what}]
family = "rows"
layout = "channels"
brief = "{what} of a channel"
operands = {{ {operands} }}
expr = "{expr}"
ref = "{ref}"
""",
        tmp_path,
    )
    functions = [f for f in functions if f["dtypes"][0] in ("f32", "bf16", "f64")]
    assert functions and all(
        any("BAND" in kernel for kernel in launch_steps.kernels(f)) for f in functions
    )
    own = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(
        emulator.Emulator(own), cases.by_level(emulator.RUNS[1:], emulator.RUNS)
    )
    for f in functions:
        for sizes, shift in SHAPES:
            checks.run(own, memory, f, sizes, shift=shift, files=(path,))


def test_without_bands(tmp_path):
    """Ops that read an element's index in its row, or replace an operand that others may still
    read, must not use channel blocks."""
    for expr, more in (
        ("x - mean(x) + column + r", ""),
        ("x - mean(x) + r", 'updates = { r = "r + mean(x)" }\nrefs = { r = "r + mean(x)" }'),
    ):
        _, _, functions = user_ops.load(
            f"""
[op.odd]
family = "rows"
layout = "channels"
brief = "odd"
operands.x = {{ kind = "elem", grad = false }}
operands.r = {{ kind = "per_row", dtype = "acc", grad = false }}
expr = "{expr}"
ref = "{expr}"
{more}
""",
            tmp_path,
        )
        assert functions and not any(
            "BAND" in kernel for f in functions for kernel in launch_steps.kernels(f)
        )


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_value_far_from_the_others(dtype, tmp_path):
    """An outlier at any position must not spoil the variance, even as the first element of a
    thread. It would, if squares were taken about it."""
    functions = [
        f for f in kflib.manifest()["functions"] if f["name"] == f"kf_batch_norm_train_{dtype}"
    ]
    lib = emulator.build(functions, tmp_path / "lib")
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[:1])
    for sizes in ((600, 16, 1), (75, 9, 9), (1, 3, 2400), (2, 3, 800)):
        for at in range(4):
            call = checks.Layout(lib, functions[0], sizes)
            x = np.ones(sizes, np.float32 if dtype == "f32" else np.float64)
            x[0, :, min(at, sizes[2] - 1)] = x[at % sizes[0], :, 0] = 1e4
            call.put("x", x)
            memory.spans = call.spans()
            result, back = memory.run(
                call.image, lambda base, call=call: lib.call(functions[0], call.given(base))
            )
            assert result == 0
            call.check(call.outputs(back))
