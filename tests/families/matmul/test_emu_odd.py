# SPDX-License-Identifier: Apache-2.0
"""Products whose rows are no multiple of 16 bytes, run by the emulator as on sm_90a. Planted faults
must be noticed."""

import cases
import checks
import emulator
import faults
import odd
import pytest
import strided
import toolkit
from conftest import BUILD
from odd_faults import SEEDED_ODD
from wgmma import TILES

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
# The tiles of kfk_NAME_class.
CLASS_TILES = "WGMMA_128x192_PINGPONG", "WGMMA_128x128_COOPERATIVE"


@pytest.fixture(scope="module")
def lib(include):
    return emulator.build(odd.ALL, BUILD / "emu", include=include)


@pytest.fixture
def emu(lib):
    emu = emulator.Emulator(lib)
    emu.set(hopper=1)
    emu.forget()
    yield emu
    emu.set(hopper=0, gemm_sms=1, gemm_class=64, gemm_tile=-1)


@pytest.fixture
def memory(emu):
    return emulator.Memory(emu, cases.by_level(((emulator.RANDOM, 2),), emulator.RUNS))


def missing(emu, word):
    return [name for name in emu.missing() if word in name]


def check_gradients(lib, emu, memory, f):
    for sizes in odd.ODD_COLS:
        for sms in (1, 3):
            emu.set(gemm_sms=sms)
            checks.run(lib, memory, f, sizes)
    odd.check_nan(lib, memory, f, (1, 130, 75, 40))


@pytest.mark.parametrize("f", odd.GRADIENTS, ids=lambda f: f["name"])
def test_gradients(lib, emu, memory, f):
    """dout has any row pitch: its product with the weight reads it by classes of rows, that with
    the left factor reads a copy."""
    check_gradients(lib, emu, memory, f)
    assert not missing(emu, "_class<") and not missing(emu, "_repack<")
    emu.forget()
    for more in (5, 4):
        sizes = (1, 80, 136, 72)
        call = strided.Call(checks.Layout(lib, f, sizes), odd.pitched(f, sizes, "dout", more))
        got, _ = call.run(lib, memory)
        call.layout.check(got)
    assert not missing(emu, "_class<")


@pytest.mark.parametrize("f", odd.GRADIENTS, ids=lambda f: f["name"])
def test_gradients_by_copies(lib, emu, memory, f):
    """An unaligned dout, and KF_BATCH_INVARIANT, take copies: the sums of aligned rows."""
    odd.check_addresses(lib, memory, f, (1, 130, 131, 72))
    emu.set(gemm_class=0)
    checks.run(lib, memory, f, (1, 130, 131, 72))
    assert missing(emu, "_class<") and not missing(emu, "_repack<")


@pytest.mark.parametrize(
    "f", [*odd.GRADIENTS[:1], *odd.OTHER_GRADIENTS, *odd.COPYING], ids=lambda f: f["name"]
)
def test_copies(lib, emu, memory, f):
    for sizes in odd.ODD_SIZES:
        checks.run(lib, memory, f, sizes)
    checks.run(lib, memory, f, (1, 70, 29, 71), "special")
    assert not missing(emu, "_repack<")
    odd.check_addresses(lib, memory, f, (1, 67, 69, 71))


@pytest.mark.parametrize("f", odd.FORWARDS, ids=lambda f: f["name"])
def test_results(lib, emu, memory, f):
    """A result has any row pitch; both tiles give the bits of kernels that store directly."""
    drop = odd.optional(f)
    for sizes in odd.ODD_COLS:
        found = []
        for tile in CLASS_TILES:
            emu.set(gemm_tile=TILES[tile])
            found.append(checks.run(lib, memory, f, sizes, drop=drop))
        assert all(checks.same_bits(found[0][name], found[1][name]) for name in found[0])
    assert not missing(emu, "_class<")
    sizes = (1, 80, 134, 72)
    for more in (1, 2, 10):
        given = odd.pitched(f, sizes, "out", more)
        call = strided.Call(checks.Layout(lib, f, sizes, drop=drop), given)
        call.layout.check(call.run(lib, memory)[0])
    odd.check_addresses(lib, memory, f, (1, 80, 131, 72), drop)
    odd.check_nan_of_forward(lib, memory, f, (1, 130, 75, 40), drop)
    checks.run(lib, memory, f, (1, 70, 29, 72), "special", drop=drop)
    checks.run(lib, memory, f, (1, 130, 131, 71), drop=drop)  # copied factors


def test_workspace(lib):
    """Copies need room where contiguous rows are no whole vectors."""

    def need(f, *sizes):
        return lib.workspace_bytes(f, sizes)

    def room(rows, pitch):
        return -(-rows * pitch * 2 // 256) * 256

    forward, backward = odd.NAMED["kf_linear_gelu_bf16"], odd.NAMED["kf_linear_bwd_bf16"]
    # Odd columns need nothing else: a copy of dout takes the room of dacc.
    for f in (forward, backward):
        assert need(f, 1, 100, 80, 71) - need(f, 1, 100, 80, 72) == room(100, 72) + room(80, 72)
        assert need(f, 1, 100, 79, 72) <= need(f, 1, 100, 80, 72)
    assert need(forward, 1, 64, 80, 71) == need(forward, 1, 64, 80, 72)


def test_every_fault_has_its_place(include, tmp_path):
    for fault in SEEDED_ODD.values():
        faults.plant(include, tmp_path, *fault)


@pytest.mark.level(2)
@pytest.mark.parametrize("what", SEEDED_ODD)
def test_seeded_fault(include, tmp_path, what):
    gradient, forward = odd.NAMED["kf_linear_bwd_bf16"], odd.NAMED["kf_linear_gelu_bf16"]
    lib = emulator.build(
        [gradient, forward], tmp_path, include=faults.plant(include, tmp_path, *SEEDED_ODD[what])
    )
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, emulator.RUNS)
    emu.set(hopper=1)
    with pytest.raises((checks.Failure, AssertionError)):
        check_gradients(lib, emu, memory, gradient)
        for tile in CLASS_TILES:
            emu.set(gemm_tile=TILES[tile])
            for sizes in odd.ODD_COLS:
                checks.run(lib, memory, forward, sizes, drop=("pre",))
