# SPDX-License-Identifier: Apache-2.0
"""Tests the CUDA functions, run by the emulator, against the float64 oracle on the axes of
cases.py. The orders of blocks and threads (emulator.RUNS) must agree bit for bit.

Level 1 runs the gate's functions in two orders or one, of which one has several vectors per thread.
From level 2 on some activations of each op run in three orders, on the shapes of
selection.on_all_emulated_shapes.
"""

import cases
import checks
import emulator
import numeric
import numpy as np
import pytest
import selection
import toolkit
import user_ops
from conftest import BUILD
from kfgen.model import limits

ORDERS = cases.by_level(emulator.RUNS[1:], emulator.RUNS)
LONGER = cases.by_level(16400, 20000)  # columns of a row that exceeds the registers in every dtype
pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture(scope="session")
def lib():
    return emulator.build(numeric.ON_CUDA, BUILD / "emu")


@pytest.fixture(scope="session")
def emu(lib):
    return emulator.Emulator(lib)


@pytest.fixture(scope="session")
def memory(emu):
    return emulator.Memory(emu, ORDERS)


@numeric.each(numeric.ON_CUDA, "name")
def test_numbers(lib, emu, memory, f):
    all_shapes = selection.on_all_emulated_shapes()
    # Long rows take long.
    whole = f["name"] in all_shapes and (
        f["family"] != "rows" or cases.LEVEL == 1 or cases.whole_table(f)
    )
    emu.forget()
    # Independence of the order belongs to the schedule, so a further function runs in one of the
    # two orders, alternately.
    if cases.LEVEL == 1 and not whole:
        memory = emulator.Memory(emu, ORDERS[sum(map(ord, f["name"])) % 2 :][:1])
    numeric.numbers(lib, memory, f, whole=whole, shared=all_shapes)
    # Level 1's orders have few shapes for kernels with one vector per thread.
    if cases.LEVEL == 1 and whole and emu.missing():
        numeric.numbers(lib, emulator.Memory(emu, emulator.RUNS[:1]), f, whole=whole)
    others = selection.calls_others(f)
    assert not whole or others or emu.missing() == [], "kernels that no shape reaches"


@numeric.each(numeric.emulated(numeric.GATE_SKIPPED), "name")
def test_skipped_gradients(lib, memory, f):
    numeric.skipped_gradients(lib, memory, f)


@numeric.each(numeric.emulated(numeric.GATE_IN_PLACE), "name")
def test_in_place(lib, memory, f):
    numeric.in_place(lib, memory, f)


@numeric.probabilities
@numeric.each(numeric.emulated(numeric.GATE_DROPOUT), "name")
def test_dropout_probabilities(lib, memory, f, p):
    numeric.dropout_probability(lib, memory, f, p)


# Sums of several parts, with tiles that end inside the tensor.
TALL = {"rows": [(200, 24), (90, 700)], "planes": [(40, 6, 37), (90, 19, 1), (70, 3, 130)]}


# Summation depends on the accumulator's dtype, not on the tensor's.
PERSISTENT = [f for f in numeric.emulated(numeric.GATE_IN_PLACE) if cases.persistent(f)]
if cases.LEVEL == 1:
    PERSISTENT = selection.cover(
        lambda f: [selection.schedule(f), (f["family"], f["layout"], f["dtypes"][0] == "f64")],
        PERSISTENT,
    )


@numeric.each(PERSISTENT, "name")
def test_multiprocessors(lib, emu, memory, f):
    """A sum is within its bound for any number of blocks; what is not summed keeps its bits."""
    summed = {a["name"] for a in f["arguments"] if a.get("kind") in ("row", "channel", "group")}
    for sizes in (
        [(600, 24), (90, 700), (12, 1504)] if f["family"] == "rows" else cases.of_form(f, TALL)
    ):
        found = []
        try:
            for sms in (132, 5, 1):
                emu.set(sms=sms)
                found.append((lib.workspace_bytes(f, sizes), checks.run(lib, memory, f, sizes)))
        finally:
            emu.set(sms=132)
        assert len({need for need, _ in found}) > 1, (
            "the number of parts does not depend on the device"
        )
        whole = [n for n in found[0][1] if n not in summed]
        assert all(
            checks.same_bits(found[0][1][n], other[n]) for _, other in found[1:] for n in whole
        )


@numeric.each(
    [
        f
        for f in numeric.GATE
        if f["family"] == "rows" and f["activation"] == "none" and not f["scratch"]
    ],
    "name",
)
def test_persistent_blocks(lib, emu, memory, f):
    """A row's bits do not depend on whether a block computes one row or loops over many."""
    for sizes, _ in cases.rows_of(f, [[(12, 3000), 0], [(12, 6000), 0]]):
        try:
            found = [emu.set(sms=sms) or checks.run(lib, memory, f, sizes) for sms in (132, 1)]
        finally:
            emu.set(sms=132)
        assert all(checks.same_bits(found[0][n], found[1][n]) for n in found[0])


@pytest.mark.check
def test_only_an_activation_s_gradient_reads(include, tmp_path):
    """An operand may be NULL if the gradient does not read the activation's argument, in every
    schedule of a row."""
    path, _, functions = user_ops.load(
        """
[op."centred_{act}"]
family = "rows"
brief = "act(x + bias) without the mean of x"
operands = { x = "elem", bias = { kind = "row", grad = false } }
expr = "act(x + bias) - mean(x)"
ref = "act(x + bias) - mean(x)"
""",
        tmp_path,
        activations=["none", "silu"],
    )
    functions = [f for f in functions if f["dtypes"][0] in ("f32", "bf16")]
    assert {
        a["unread"] for f in functions if f["bwd"] for a in f["arguments"] if a["name"] == "bias"
    } == {False, True}
    own = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(emulator.Emulator(own), ORDERS)
    for f in functions:
        for sizes in ((5, 300), (3, 2500), (7, 6000), (2, 20000)):
            checks.run(own, memory, f, sizes, files=(path,))


DROPPED = {
    "reduced": "x * w * r / (1 + sum(abs(dropout(x * y))))",
    "same for a row": "dropout(r * sum(x * y)) * w + x",
    "twice": "act(dropout(x * y) + dropout(w * r)) - mean(x)",
    "nested": "dropout(act(dropout(x * y * w) * r) - mean(x))",
}


@pytest.mark.check
@pytest.mark.parametrize("what", DROPPED)
def test_dropout_anywhere(what, include, tmp_path):
    """All passes and schedules use the same mask: rows of whole vectors and others, in registers
    and read again."""
    expr = DROPPED[what]
    path, _, functions = user_ops.load(
        f"""
[op."masked{"_{act}" if "act(" in expr else ""}"]
family = "rows"
brief = "masked"
operands = {{ x = "elem", y = "elem", w = "row", r = "per_row" }}
expr = "{expr}"
ref = "{expr.replace("abs(", "np.abs(")}"
""",
        tmp_path,
        activations=["none", "silu"],
    )
    functions = [
        f
        for f in functions
        if f["dtypes"][0] in ("f32", "bf16")
        and f["state"] == f["bwd"]
        and (f["activation"] == "silu" or "act(" not in expr)
    ]
    assert len(functions) == 4
    own = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(emulator.Emulator(own), ORDERS)
    for f in functions:
        for k, sizes in enumerate(
            [(5, 300), (5, 256), (3, 2501), (7, 6000), (2, LONGER), (2, LONGER + 1)]
        ):
            checks.run(own, memory, f, sizes, shift=k // 3 % 2 * (k % 2), files=(path,))


@pytest.mark.check
def test_as_many_reductions_as_a_pass_may_have(include, tmp_path):
    """The primitives of core/rows/reduce.cuh support the maximum number of reductions; the last is
    a minimum, where the packed int has its sign bit."""
    words = [*(("sum", "max", "min")[i % 3] for i in range(limits.REDUCTIONS - 1)), "min"]
    terms = " + ".join(f"{word}(x * {i + 2})" for i, word in enumerate(words))
    path, _, functions = user_ops.load(
        f"""
[op.many]
family = "rows"
brief = "many reductions"
operands = {{ x = {{ kind = "elem", grad = false }} }}
expr = "{terms}"
ref = "{terms}"
""",
        tmp_path,
    )
    functions = [f for f in functions if f["dtypes"][0] == "f32"]
    own = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(emulator.Emulator(own))
    for sizes in ((5, 300), (3, 2500), (2, 20000)):
        checks.run(own, memory, functions[0], sizes, files=(path,))


@pytest.mark.parametrize(
    "error, code, text",
    [
        (209, 7, "no kernel image"),
        (98, 7, "invalid device function"),
        (2, 8, "CUDA error 2"),
        (719, 8, "CUDA error 719"),
    ],
)
def test_a_launch_that_fails(lib, emu, error, code, text):
    """The launch's own status is the result, with the function's name. The next call succeeds."""
    f = next(f for f in numeric.GATE if f["sizes"] == ["n"] and f["activation"] != "none")
    array = np.zeros(64, np.float64)
    values = {a["name"]: array.ctypes.data for a in f["arguments"]} | {"n": 8} | f["scalars"]
    emu.set(failure=error)
    assert lib.call(f, values) == code
    assert lib.detail.startswith(f"{f['name']}: launch ") and text in lib.detail, lib.detail
    assert lib.call(f, values) == 0
