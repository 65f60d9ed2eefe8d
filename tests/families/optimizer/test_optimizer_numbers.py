# SPDX-License-Identifier: Apache-2.0
"""Optimizers in C and in the emulation: numbers by the oracle, long lists, refusals, NVRTC, and the
entry of the family's page.
"""

import json
import re
import subprocess
import sys

import checks
import emulator
import kflib
import numpy as np
import nvrtc
import optimizer_calls as calls
import pytest
import toolkit
from kfgen.entries import spec
from kfgen.render.render import Selection

pytestmark = pytest.mark.xdist_group("optimizer")  # whose libraries are built once
CUDA = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
STRICT = ("-O2", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
ALL = calls.functions()
# Functions of the first tier: of each kind of function one, in two mixes of dtypes.
OPS = ("adamw", "adamw_device", "adamw_stochastic", "sgd", "lamb", "multi_clip", "multi_l2_norm")
FEW = [f for f in ALL if f["op"] in OPS and f["dtypes"] in (["f32"], ["bf16"], ["bf16", "f32"])]
# Few partial sums, for the emulation, whose blocks are slow; and slots of several chunks.
SLOTS = ("-DKFI_SUM_SLOTS=3", "-DKFI_TENSOR_SLOTS=2", "-DKFI_TENSOR_SLOTS_ALL=64")


def numbers(lib, memory, functions):
    calls.numbers(lib, memory, functions)
    calls.sums(lib, memory, [f for f in functions if calls.is_sum(f)])
    for f in functions:
        if f["op"].startswith("adamw_stochastic") and f["dtypes"] == ["bf16"]:
            calls.run_at_random(lib, memory, f)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return kflib.build("cpu", FEW, tmp_path_factory.mktemp("optimizer"), STRICT)


def test_numbers_in_c(library):
    numbers(library, checks.CpuMemory(1 << 22), FEW)


@pytest.mark.check
def test_all_functions_in_c(tmp_path):
    found = [f for f in ALL if f not in FEW]
    numbers(kflib.build("cpu", found, tmp_path), checks.CpuMemory(1 << 22), found)


@CUDA
@pytest.mark.check
@pytest.mark.parametrize("dtypes", [("f32",), ("bf16", "f32"), ("bf16",), ("f64",)], ids=str)
def test_numbers_in_the_emulation(dtypes, tmp_path):
    found = [f for f in ALL if tuple(f["dtypes"]) == dtypes]
    lib = emulator.build(found, tmp_path, more=SLOTS)
    memory = emulator.Memory(emulator.Emulator(lib), size=1 << 22)
    memory.emulator.forget()
    numbers(lib, memory, found)
    assert not memory.emulator.missing(), memory.emulator.missing()


@CUDA
@pytest.mark.check
def test_a_list_of_ten_thousand(tmp_path):
    """17 launches of at most 620 tensors."""
    f = calls.of("adamw", "bf16", "f32")
    lib = emulator.build([f], tmp_path)
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[:1], size=1 << 22)
    call = calls.Call(f, tuple(1 + i % 5 for i in range(10000)), 3)
    calls.run(lib, memory, call)
    assert memory.emulator.launches == -(-10000 // 620) == 17


@CUDA
@pytest.mark.check
def test_passes_over_ten_thousand(tmp_path):
    """Two launches for each table of 620 tensors."""
    f = calls.of("lamb", "f32")
    lib = emulator.build([f], tmp_path)
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[:1], size=1 << 22)
    calls.run(lib, memory, calls.Call(f, tuple(1 + i % 5 for i in range(10000)), 3))
    assert memory.emulator.launches == 34


def lamb(library, lengths=(5, 0, 300), zeros=(), **changed):
    """Returns a call of lamb_f32 without decay, and the memory after it."""
    given = {"weight_decay": 0.0, "max_trust": 0.0, "maximize": 0}
    f, absent = calls.of("lamb", "f32"), ("master", "grad_scale", "found_inf")
    call = calls.Call(f, lengths, 1, 0, absent, given | changed)
    for name in zeros:
        for x, at in zip(call.given[name], call.at[name]):
            x[...] = 0
            call.image[at : at + x.nbytes] = 0
    return call, calls.called(library, checks.CpuMemory(1 << 20), call)


def test_trust_ratios(library):
    """A step is lr times the norm of its tensor. The ratio is 1 where a norm is 0, and at most
    max_trust."""

    def moved(call, back, i):
        return call.stored(back, "param", i) - call.given["param"][i].astype(np.float64)

    call, back = lamb(library, lr=0.5)
    for i in (0, 2):
        norm = np.linalg.norm(call.given["param"][i].astype(np.float64))
        assert np.isclose(np.linalg.norm(moved(call, back, i)), 0.5 * norm, rtol=1e-6)
    state = ("exp_avg", "exp_avg_sq")
    first = {"step": 1, "beta1": 0.5, "beta2": 0.5, "eps": 0.0, "lr": 0.5}
    call, back = lamb(library, zeros=("param", *state), **first)
    assert np.allclose(np.abs(moved(call, back, 2)), 0.5, rtol=1e-6)
    call, back = lamb(library, zeros=("grad", "exp_avg"), lr=0.5)
    assert not moved(call, back, 2).any()
    call, back = lamb(library, zeros=state, **first, max_trust=0.25)
    assert np.allclose(np.abs(moved(call, back, 2)), 0.125, rtol=1e-6)


def test_slots_of_several_chunks(tmp_path):
    """Sums over a tensor take its slots in order, and tables end between tensors."""
    f = calls.of("lamb", "f32")
    lib = kflib.build("cpu", [f], tmp_path, SLOTS)
    calls.run(lib, checks.CpuMemory(1 << 22), calls.Call(f, (16385, 3) * 3 + (0, 40000), 3))
    calls.run(lib, checks.CpuMemory(1 << 22), calls.Call(f, (7,) * 200, 4))


REFUSED = [
    ({"step": 0}, 3, "step is 0, expected 1 or more"),
    ({"beta1": 1.5}, 3, "beta1 is 1.5, expected 1 or less"),
    ({"lr": float("nan")}, 3, "lr is nan, expected 0 or more"),
    ({"maximize": 2}, 3, "maximize is 2, expected 1 or less"),
    ({"count": -1}, 2, "count is -1, expected 0 or more"),
    ({"exp_avg": None}, 1, "exp_avg is NULL, expected an array of 3 pointers"),
    ({"found_inf": 2}, 10, "found_inf is 0x"),
    ({"grad_scale": ("param", 1)}, 4, "param[1] at 0x"),
    ({"master": ("grad", 0)}, 4, "master[0] at 0x"),
]


@pytest.mark.parametrize("change, code, message", REFUSED)
def test_refused(library, change, code, message):
    """Nothing is written, and the message names function, argument and values."""
    f = calls.of("adamw", "f32")
    call, memory = calls.Call(f, (4, 5, 6), 1), checks.CpuMemory(1 << 16)
    [(name, to)] = change.items()
    if isinstance(to, tuple):
        call.at[name][to[1] if name == "master" else 0] = call.at[to[0]][to[1]]

    def arguments(base):
        given = call.arguments(base)
        moved = name == "found_inf"
        return given if isinstance(to, tuple) else given | {name: given[name] + to if moved else to}

    got, back = memory.run(call.image, lambda base: library.call(f, arguments(base)))
    assert got == code and message in library.detail, library.detail
    assert library.detail.startswith("kf_cpu_adamw_f32: ")
    assert (back == call.image).all()


def test_refused_workspace(library):
    f = calls.of("multi_l2_norm", "f32")
    call = calls.Call(f, (4,), 1)
    given = {"workspace": None, "workspace_bytes": 0}
    got, back = checks.CpuMemory(1 << 16).run(
        call.image, lambda base: library.call(f, call.arguments(base) | given)
    )
    assert got == 5 and "kf_cpu_multi_l2_norm_f32_workspace_bytes" in library.detail
    assert (back == call.image).all()


@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
@pytest.mark.check
@pytest.mark.parametrize(
    "op", ["adamw_stochastic_device", "sgd_momentum", "multi_l2_norm", "lamb_device"]
)
def test_nvrtc_compiles_every_kernel(op):
    made = Selection(spec.load())
    asked = [e for k in made.kernels(made.spec.ops[op]) for e in nvrtc.kernels_of(k)]
    include = [kflib.ROOT / "include", kflib.rendered()]
    text = f"#include <kf/ops/{op}.cuh>\n"
    for arch in (nvrtc.ARCH, "sm_75"):
        _, lowered, log = nvrtc.compile_text(text, asked, include, arch, nvrtc.quick())
        assert len(set(lowered)) == len(asked) and "warning" not in log, log[:2000]


def kfgen(*words):
    command = [sys.executable, kflib.ROOT / "gen/bin/kfgen", *words]
    return subprocess.run(command, capture_output=True, text=True)


def page_entry():
    """The entry of the family's page."""
    text = (kflib.ROOT / "docs/families/optimizer.md").read_text()
    [entry] = re.findall(r"```toml\n(\[op\..*?)```", text, re.S)
    return entry


def test_an_own_optimizer(tmp_path):
    """The entry of the page has functions, and its expressions agree with its references."""
    path = tmp_path / "mine.toml"
    path.write_text(page_entry())
    listed = kfgen("list", "--json", "--spec", path)
    assert listed.returncode == 0, listed.stderr
    own = [f["name"] for f in json.loads(listed.stdout)["functions"] if f["op"] == "signum"]
    assert own == ["kf_signum_f32", "kf_signum_bf16", "kf_signum_bf16_f32"]
    done = kfgen("check", "--spec", path)
    assert "2 ops with" in done.stdout and done.returncode == 0, done.stdout + done.stderr
    assert "note" not in done.stdout + done.stderr  # numbers in memory are no lists


@pytest.mark.parametrize(
    "change, message",
    [
        (('gradient = "grad"', 'gradient = "x"'), "gradient: is 'x'"),
        (('master = "param"', 'master = "grad"'), "`grad` has no update"),
        (('device = ["lr"]', 'device = ["rate"]'), "device: has 'rate'"),
        (('weight = "1 - momentum"', 'lr = "1 - momentum"'), "the name `lr` cannot be used"),
        (('weight = "1 - momentum"', 'weight = "sin(momentum)"'), "calls `sin`"),
        (('weight = "1 - momentum"', 'weight = "pow(momentum, lr)"'), "calls `pow`"),
        (("weight * grad", "weight * master"), "reads `master`"),
        (('momentum_buffer = { kind =', 'master = { kind ='), "`master` cannot be used"),
    ],
)  # fmt: skip
def test_entries_refused(change, message, tmp_path, capsys):
    from kfgen.cli import main

    text = page_entry()
    assert change[0] in text
    (tmp_path / "mine.toml").write_text(text.replace(*change))
    assert main(["list", "--spec", str(tmp_path / "mine.toml")]) == 1
    assert message in capsys.readouterr().err


def test_bias_correction_is_computed_in_float64(library):
    """The first step of Adam is lr / (1 + eps) whatever the gradient, also for betas near 1."""
    f = calls.of("adamw", "f32")
    changed = {"beta1": 0.999999, "beta2": 0.9999999, "step": 1, "lr": 0.5, "weight_decay": 0.0}
    call = calls.Call(
        f, (1000,), 1, 0, ("master", "grad_scale", "found_inf"), changed | {"eps": 0.0}
    )
    for name in ("exp_avg", "exp_avg_sq"):
        call.given[name][0][...] = 0
        call.image[call.at[name][0] :][: 4 * 1000] = 0
    code, back = checks.CpuMemory(1 << 20).run(
        call.image, lambda base: library.call(f, call.arguments(base))
    )
    got = back[call.at["param"][0] :][: 4 * 1000].view(np.float32)
    moved = np.abs(got.astype(np.float64) - call.given["param"][0].astype(np.float64))
    assert code == 0 and (np.abs(moved - 0.5) < 2e-6).all()
