# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA functions with a run-time activation (kf/any), run by the emulator: they must equal
the functions with that activation, bit for bit."""

import cases
import checks
import chosen
import emulator
import kflib
import pytest
import toolkit
import user_ops
from conftest import BUILD
from kfgen.entries import spec
from kfgen.interfaces import manifest

# One op and dtype per schedule; the primitives are shared with C.
OPS = [
    (op, dtype) for op, dtype in chosen.SOME if op != "{act}_glu" and dtype not in ("i32", "f64")
]
PAIRS = chosen.chosen(OPS)
FIRST = list({f["name"]: (f, g) for f, g in PAIRS}.values())
FALLING = [(f, g) for f, g in PAIRS if g["activation"] == "leaky_relu" and checks.result_of(g)]
pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture(scope="module")
def lib():
    return emulator.build(chosen.library_of(PAIRS), BUILD / "emu_chosen")


@pytest.fixture(scope="module")
def memory(lib):
    return emulator.Memory(emulator.Emulator(lib), emulator.RUNS[1:])


@pytest.mark.parametrize(("f", "g"), PAIRS, ids=[g["name"] for _, g in PAIRS])
def test_same_bits(lib, memory, f, g):
    chosen.compare(lib, memory, f, g)


@pytest.mark.parametrize(("f", "g"), FIRST, ids=[f["name"] for f, _ in FIRST])
def test_what_there_is_not(lib, memory, f, g):
    chosen.refuses(lib, memory, f, g)


@pytest.mark.parametrize(("f", "g"), FALLING, ids=[g["name"] for _, g in FALLING])
def test_a_slope_below_zero(lib, memory, f, g):
    chosen.refuses_falling(lib, memory, f, g)


def test_a_user_s_reduction(include, tmp_path):
    """A user's reduction may have a run-time activation, in C too; none of kf's reductions has
    one."""
    path, selected, functions = user_ops.load(
        """
[op."summed_{act}"]
family = "reduction"
brief = "what an activation leaves of a distance from the mean"
operands = { x = "elem", y = "elem" }
expr = "sum(act((x - mean(x)) * y))"
ref = "sum(act((x - mean(x)) * y))"
""",
        tmp_path,
        activations=["none", "leaky_relu"],
    )
    dtypes = cases.by_level(["f32"], ["f32", "bf16"])
    known = {f["name"]: f for f in functions if f["dtypes"][0] in dtypes and len(f["dtypes"]) == 1}
    pairs = [
        (f, known[name])
        for f in manifest.build(selected, spec.user_stem([path]))["any"]
        for name in f["functions"].values()
        if name in known
    ]
    assert len(pairs) == 4 * len(dtypes)
    headers, own = [*include, tmp_path], chosen.library_of(pairs)
    emulated = emulator.build(own, tmp_path / "emu", headers)
    compiled = kflib.build(
        "cpu", own, tmp_path / "cpu", ("-O1", "-Wall", "-Wextra", "-Werror"), include=headers
    )
    for lib, memory in (
        (emulated, emulator.Memory(emulator.Emulator(emulated), emulator.RUNS[1:])),
        (compiled, checks.CpuMemory()),
    ):
        for f, g in pairs:
            chosen.compare(lib, memory, f, g, files=(path,))
