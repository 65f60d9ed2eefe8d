# SPDX-License-Identifier: Apache-2.0
"""Overwritten tensors and lists of tensors, by a family of a user's own (tests/families/updates):
numbers in C and in the emulation, launches of long lists, refusals, NVRTC, and what is said of it.
"""

import ctypes
import json
import subprocess

import checks
import emulator
import kflib
import lists
import numpy as np
import nvrtc
import pytest
import toolkit
from kfgen import families
from kfgen.entries import spec
from kfgen.render.render import Selection

pytestmark = pytest.mark.xdist_group("lists")  # whose headers are made once
CUDA = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
STRICT = ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
# A table of 4,096 bytes at most and two CTAs a launch, so that short lists take several launches.
SMALL = ("-DKF_LIST_BYTES=3584", "-DKFI_LIST_BLOCKS=2")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """(functions, include directories)."""
    include = lists.rendered(tmp_path_factory.mktemp("lists"))
    listed = json.loads(kflib.kfgen("list", "--json", *lists.WORDS).stdout)
    return [f for f in listed["functions"] if f["family"] == "updates"], include


def of(own, *ops):
    return [f for f in own[0] if f["op"] in ops]


@pytest.fixture(scope="module")
def library(own, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    return kflib.build("cpu", own[0], folder, STRICT, include=own[1])


def emulated(own, folder, functions, more=()):
    lib = emulator.build(functions, folder, include=own[1], more=more)
    return lib, emulator.Memory(emulator.Emulator(lib), size=1 << 22)


def run(lib, memory, call, expected, arguments):
    code, back = memory.run(call.image, lambda base: lib.call(call.f, arguments(base)))
    assert code == 0, lib.detail
    call.check(back, expected)


def numbers(lib, memory, functions):
    for f in functions:
        for k, lengths in enumerate(lists.LENGTHS):
            call = lists.Call(f, lengths, k, shift=k % 3)
            if f["op"] == "momentum":
                run(lib, memory, call, lists.momentum, call.arguments)
            elif len(lengths) == 1:
                run(lib, memory, call, lists.moving_average, call.single)


def test_numbers_in_c(own, library):
    words = {(f["op"], *f["dtypes"]) for f in own[0]}
    alone = {
        (op, d) for op in ("momentum", "moving_average") for d in ("f32", "f16", "bf16", "f64")
    }
    assert words == alone | {("momentum", d, "f32") for d in ("f16", "bf16")}
    numbers(library, checks.CpuMemory(1 << 22), own[0])


@CUDA
@pytest.mark.check
@pytest.mark.parametrize("more", [(), SMALL], ids=["one launch", "several"])
def test_numbers_in_the_emulation(own, tmp_path, more):
    functions = own[0] if not more else of(own, "momentum")[:1]
    lib, memory = emulated(own, tmp_path, functions, more)
    memory.emulator.forget()
    numbers(lib, memory, functions)
    # A list that exceeds the small table.
    lengths = (1, 2) * 50 if not more else (40000,)
    call = lists.Call(functions[0], lengths, 9)
    before = memory.emulator.launches
    run(lib, memory, call, lists.momentum, call.arguments)
    # The emulation repeats each call in three orders.
    assert (memory.emulator.launches - before) == 3 * (1 if not more else 3)
    small = [k for k in memory.emulator.missing() if "KFI_LIST_SMALL" in k]
    assert not small, small


@CUDA
@pytest.mark.check
def test_a_list_of_thousands(own, tmp_path):
    """8,193 tensors: 13 launches of 641 in the emulation's tables, one of 17 windows in C."""
    [f] = [f for f in of(own, "momentum") if f["dtypes"] == ["bf16", "f32"]]
    lib, memory = emulated(own, tmp_path, [f])
    call = lists.Call(f, tuple(i % 5 for i in range(8193)), 3)
    before = memory.emulator.launches
    run(lib, memory, call, lists.momentum, call.arguments)
    room = (32256 - 16) // (8 * 3 + 12)
    filled = sum(1 for n in call.lengths if n)
    assert memory.emulator.launches - before == 3 * -(-filled // room)
    code = kflib.build("cpu", [f], tmp_path, STRICT, include=own[1])
    run(code, checks.CpuMemory(1 << 22), call, lists.momentum, call.arguments)


REFUSED = [
    ({"count": -1}, 2, "count is -1, expected 0 or more"),
    ({"lengths": None}, 1, "lengths is NULL, expected an array of 3 numbers"),
    ({"lengths": (4, -1, 6)}, 2, "lengths[1] is -1, expected 0 or more"),
    (
        {"lengths": (4, 2**58, 6)},
        2,
        f"lengths[1] is {2**58}, expected at most 2^58 elements in all",
    ),
    ({"lengths": (4, 2**63 - 1, 6)}, 2, "expected at most 2^58 elements in all"),
    ({"grad": None}, 1, "grad is NULL, expected an array of 3 pointers"),
    ({"grad": {1: None}}, 1, "grad[1] is NULL, expected a pointer to 5 elements"),
    ({"param": {2: 2}}, 10, "param[2] is 0x"),
    ({"velocity": {2: ("param", 2)}}, 4, "velocity[2] at 0x"),
    ({"param": {0: ("param", 2)}}, 4, "param[2] at 0x"),
    ({"param": {0: ("grad", 1)}}, 4, "param[0] at 0x"),
]


@pytest.mark.parametrize("change, code, message", REFUSED)
def test_refused(own, library, change, code, message):
    """Nothing is written, and the message names function, list and index."""
    [f] = [f for f in of(own, "momentum") if f["dtypes"] == ["f32"]]
    call = lists.Call(f, (4, 5, 6), 1)
    memory = checks.CpuMemory(1 << 16)

    def changed(base):
        given, held = call.arguments(base), []
        for name, value in change.items():
            if isinstance(value, dict):
                [[i, to]] = value.items()
                places = [base + at for at in call.at[name]]
                places[i] = (
                    None if to is None else places[i] + to if isinstance(to, int)
                    else base + call.at[to[0]][to[1]]
                )  # fmt: skip
                value = lists.table(places)
            elif isinstance(value, tuple):
                value = lists.table(value, ctypes.c_int64)
            held.append(value)
            is_array = isinstance(value, ctypes.Array)
            given[name] = ctypes.addressof(value) if is_array else value
        call.changed = held
        return given

    got, back = memory.run(call.image, lambda base: library.call(f, changed(base)))
    assert got == code and message in library.detail, library.detail
    assert library.detail.startswith("kf_cpu_momentum_f32: ")
    assert (back == call.image).all()


@pytest.mark.parametrize("many, shuffled", [(3, False), (2500, False), (2500, True)])
def test_any_overlap_is_found(own, library, many, shuffled):
    """One of `many` tensors, at any place, overlaps the last element of another one.

    2,500 ascending addresses are one run; shuffled ones are more runs than KFI_LIST_RUNS.
    """
    [f] = [f for f in of(own, "momentum") if f["dtypes"] == ["f32"]]
    call, rng = lists.Call(f, (2,) * many, 1), np.random.default_rng(many)
    memory = checks.CpuMemory(1 << 18)
    for name in lists.LISTS if shuffled else ():
        rng.shuffle(call.at[name])
    for _ in range(8):
        one, other = rng.choice(many, 2, replace=False)
        a, b = rng.choice(lists.LISTS, 2)
        if a == b == "grad":
            continue
        kept, call.at[a][one] = call.at[a][one], call.at[b][other] + 4
        got, _ = memory.run(call.image, lambda base: library.call(f, call.arguments(base)))
        call.at[a][one] = kept
        assert got == 4 and f"{a}[{one}]" in library.detail and f"{b}[{other}]" in library.detail
    call.at["grad"][0] = call.at["grad"][1]  # inputs may overlap
    got, _ = memory.run(call.image, lambda base: library.call(f, call.arguments(base)))
    assert got == 0, library.detail


def test_a_tensor_that_is_overwritten_shares_no_memory(own, library):
    [f] = [f for f in of(own, "moving_average") if f["dtypes"] == ["f32"]]
    call = lists.Call(f, (6,), 1)
    call.at["x"] = call.at["average"]
    got, back = checks.CpuMemory(1 << 16).run(
        call.image, lambda base: library.call(f, call.single(base))
    )
    assert got == 4 and "overlaps" in library.detail and (back == call.image).all()


@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
@pytest.mark.check
def test_nvrtc_compiles_every_kernel(own):
    families.load(lists.FOLDER)
    made = Selection(spec.load([lists.FOLDER / "ops.toml"]))
    for op in ("momentum", "moving_average"):
        kernels = made.kernels(made.spec.ops[op])
        asked = [e for k in kernels for e in nvrtc.kernels_of(k)]
        text = f"#include <kf/user/updates/{op}.cuh>\n"
        for arch in (nvrtc.ARCH, "sm_75"):
            _, lowered, log = nvrtc.compile_text(text, asked, own[1], arch, nvrtc.quick())
            assert len(set(lowered)) == 2 * len(kernels) and "warning" not in log, log[:2000]


def test_c_linkage(own, tmp_path):
    """A C compiler reads the launchers' prototypes, which have lists as the headers have them."""
    program = """
    #include <kf/kf_updates_launchers.h>
    kf_result_t step(float *const *p, const float *const *g, float *const *v, const int64_t *n)
    {
        kf_result_t (*const f)(float *const *, const float *const *, float *const *,
                               const int64_t *, int64_t, float, float, struct CUstream_st *) =
            kf_momentum_f32;
        return f(p, g, v, n, 2, 0.1f, 0.9f, 0);
    }"""
    (tmp_path / "program.c").write_text(program)
    words = ["gcc", "-std=c11", *STRICT, *(f"-I{d}" for d in own[1])]
    subprocess.run([*words, "-c", tmp_path / "program.c", "-o", tmp_path / "o"], check=True)


def test_what_is_said_of_it(own):
    f = next(f for f in own[0] if f["name"] == "kf_momentum_bf16_f32")
    roles = {a["name"]: (a["role"], a.get("list"), a["memory"]) for a in f["arguments"][:4]}
    assert roles == {
        "param": ("inout", True, "device"),
        "grad": ("in", True, "device"),
        "velocity": ("inout", True, "device"),
        "lengths": ("lengths", None, "host"),
    }
    assert f["arguments"][4] == {
        "name": "count", "role": "count", "ctype": "int64_t", "least": 0
    }  # fmt: skip
    assert f["cost"]["bytes"] == "14 * length" and f["bytes"] == 14
    assert f["backward"] is None and f["sizes"] == [] and f["axes"]["sizes"] == {}
    found = kflib.kfgen("check", *lists.WORDS)
    assert "2 ops with" in found.stdout and found.returncode == 0, found.stderr
    found = kflib.kfgen("explain", *lists.WORDS, "kf_momentum_f32")
    assert "velocity_out = decay * velocity + grad; param_out = param - rate" in found.stdout
    assert "i/o  param[i]: [lengths[i]] f32; read, then replaced by param_out" in found.stdout


@pytest.mark.parametrize(
    "change, message",
    [
        (('param = "list"', 'param = { kind = "list", grad = true }'), "no gradient"),
        (('param = "param - rate', 'rate = "param - rate'), "not an operand that can be updated"),
        (('grad = "list"', 'grad = "elem"'), "mixes lists and tensors"),
        (('grad = "list"', 'lengths = "list"'), "the name `lengths` cannot be used"),
        (("velocity = \"velocity * decay + grad\"", ""), "has no reference for `velocity`"),
    ],
)  # fmt: skip
def test_entries_refused(change, message, tmp_path):
    text = (lists.FOLDER / "ops.toml").read_text().replace("op.momentum", "op.mine")
    assert change[0] in text
    (tmp_path / "mine.toml").write_text(text.replace(*change))
    found = kflib.kfgen("list", *lists.WORDS, "--spec", tmp_path / "mine.toml")
    assert message in found.stderr, found.stderr
