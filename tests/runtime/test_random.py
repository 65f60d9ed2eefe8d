# SPDX-License-Identifier: Apache-2.0
"""Random calls (2,000 per class of ops at level 2) against NumPy: tensors permuted, stepped, with
gaps after rows, broadcast, in place; on the CPU, on the emulation, on a GPU.
"""

import cases
import kflib
import layouts
import pytest
import runtime_ops
import toolkit

MADE = {
    of: runtime_ops.choose(ops, layouts.DTYPES, ["none", "relu"]) for of, ops in layouts.OPS.items()
}
PARTS = 1 if cases.LEVEL == 1 else 40
EACH = 20 if cases.LEVEL == 1 else 50


@pytest.fixture(scope="session")
def libraries(once):
    """(device, class of ops) -> library, compiled on first use."""
    builds = {
        "cpu": runtime_ops.compile_library,
        "emulated": runtime_ops.compile_emulated,
        "gpu": runtime_ops.compile_on_a_gpu,
    }
    return lambda device, of: once(
        f"random calls of {of}, {device}", lambda folder: builds[device](folder, MADE[of])
    )


DEVICES = [
    pytest.param("cpu"),
    pytest.param(
        "emulated", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
    ),
    pytest.param("gpu", marks=pytest.mark.skipif(not kflib.has_gpu(), reason="no GPU")),
]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("of", layouts.OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_against_numpy(libraries, device, of, part):
    ops = runtime_ops.Ops(libraries(device, of), MADE[of])
    functions = [f for f in MADE[of]["functions"] if not f["state"]]
    ctx = ops.context(-1 if device == "cpu" else 0)
    memory = layouts.Managed() if device == "gpu" else layouts.Host()
    for seed in range(part * EACH, (part + 1) * EACH):
        layouts.Case(ops, memory, of, functions, seed).run(ctx, runtime_ops.ENTRY_POINTS[seed % 3])
    assert ops.context_destroy(ctx) == 0
