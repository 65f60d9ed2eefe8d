# SPDX-License-Identifier: Apache-2.0
"""Reductions over an axis beyond the number tests: a user's entries, and bits that must depend on
axis and inner size only, in C and in the emulation."""

import subprocess

import cases
import checks
import emulator
import faults
import kflib
import numpy as np
import pytest
import storage
import toolkit
import user_ops
from conftest import BUILD

OWN = """
[op."distance_{act}"]
family = "reduction"
brief = "the sum of |act(x - y)|"
operands = { x = "elem", y = "elem" }
expr = "sum(abs(act(x - y)))"
ref = "sum(np.abs(act(x - y)))"
[op.moments]
family = "reduction"
brief = "mean and variance"
operands = { x = "elem" }
outputs = { centre = "mean(x)", spread = "d = x - mean(x); mean(d * d)" }
refs = { centre = "mean(x)", spread = "mean((x - mean(x)) * (x - mean(x)))" }
"""
ARG_CASES = cases.loaded(cases.FAMILIES / "reduction/cases_argreduce.py")
SIZES = [(3, 300, 1), (1, 9000, 1), (2, 70, 9), (1, 900, 20), (2, 0, 3), (2, 3, 130)]


@pytest.fixture(scope="module", params=["cpu", "emu"])
def built(request, include, tmp_path_factory):
    """(library, arena, spec file, functions): the user's ops, and some of kf's."""
    folder = tmp_path_factory.mktemp("own")
    path, _, functions = user_ops.load(OWN + ARG_CASES.OWN, folder, activations=["none", "silu"])
    own = ("distance_{act}", "moments", *ARG_CASES.OWN_OPS)
    functions = [
        f
        for f in functions
        if f["op"] in own and f["dtypes"] in (["f32"], ["bf16"], ["bf16", "i32"])
    ]
    functions += [
        f
        for f in kflib.manifest()["functions"]
        if f["op"] in ("sum", "std", "amax", *ARG_CASES.FUNCTIONS) and f["dtypes"] == ["f32"]
    ]
    functions += [
        f
        for f in kflib.manifest()["functions"]
        if f["op"] in ARG_CASES.FUNCTIONS and f["dtypes"] in (["f16"], ["bf16"])
    ]
    directories = [*include, folder]
    if request.param == "cpu":
        lib = kflib.build(
            "cpu", functions, folder / "lib", ("-O1", "-DKFI_REDUCE_PART=2048"), include=directories
        )
        return lib, checks.CpuMemory(), path, functions
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    lib = emulator.build(functions, folder / "lib", directories)
    return lib, emulator.Memory(emulator.Emulator(lib)), path, functions


def test_own_entries(built):
    lib, memory, path, functions = built
    own = [f for f in functions if f["op"] in ("distance_{act}", "moments")]
    assert {(f["op"], f["bwd"], f["activation"]) for f in own} == {
        (op, bwd, act)
        for op, acts in (("distance_{act}", ("none", "silu")), ("moments", ("none",)))
        for bwd in (False, True)
        for act in acts
    }
    for f in own:
        for i, sizes in enumerate(SIZES):
            checks.run(
                lib, memory, f, sizes, ("normal", "special")[i % 2], shift=i % 3, files=(path,)
            )


def test_own_argreduce(built):
    """argmax and argmin of an expression must be correct, with the value and without."""
    lib, memory, path, functions = built
    own = [f for f in functions if f["op"] in ARG_CASES.OWN_OPS]
    assert {(f["op"], *f["dtypes"]) for f in own} == {
        (op, *d) for op in ARG_CASES.OWN_OPS for d in (("f32",), ("bf16",), ("bf16", "i32"))
    }
    for f in own:
        for i, sizes in enumerate(s for s in SIZES if s[1]):
            checks.run(
                lib, memory, f, sizes, ("normal", "special")[i % 2], shift=i % 3, files=(path,)
            )


@pytest.mark.parametrize(
    "sizes",
    [(3, 300, 1), (1, 9000, 1), (2, 70, 9), (1, 900, 20), (40, 8, 1), (2, 1, 5), (1, 3000, 130)],
)
def test_the_first_of_equals(built, sizes):
    """The first of equal elements must win, whichever lane, thread or part has it. NaN precedes all
    numbers, and 0 equals -0."""
    lib, memory, _, functions = built
    for seed, draws in enumerate(
        (
            [1.0],
            [0.0, -0.0],
            [-np.inf, -np.inf],
            [np.inf, np.nan],
            [1.0, 2.0, -1.0],
            [0.5] * 400 + [np.nan, 0.75, 0.25],
        )
    ):
        rng = np.random.default_rng(seed)
        for f in [f for f in functions if f["op"] in ARG_CASES.FUNCTIONS]:
            call = checks.Layout(lib, f, sizes)
            dtype = f["dtypes"][0]
            call.put("x", storage.from_float(rng.choice(draws, call.data["x"].shape), dtype))
            result, back = memory.run(
                call.image, lambda base, f=f, call=call: lib.call(f, call.given(base))
            )
            assert result == 0, lib.detail
            got, x = call.outputs(back), storage.to_float(call.data["x"], dtype)
            want = np.expand_dims(getattr(np, f["op"])(x, 1), 1)
            assert np.array_equal(got["index"][:, None], want), (f["name"], draws)
            best, value = (
                np.take_along_axis(x, want, 1),
                storage.to_float(got["out"], dtype)[:, None],
            )
            assert np.array_equal(value, best, equal_nan=True), (f["name"], draws)
            assert (np.signbit(value) == np.signbit(best))[~np.isnan(best)].all(), (
                f["name"],
                draws,
            )  # 0 or -0, whichever came first


@pytest.mark.parametrize(
    "axis, inner", [(300, 1), (9000, 1), (9001, 1), (37, 9), (900, 20), (900, 32)]
)
def test_bits(built, axis, inner):
    """A result must have the same bits among many, alone, at another alignment, and as the only one
    of its tensor."""
    lib, memory, _, functions = built
    for f in [f for f in functions if f["op"] in ("sum", "std")]:
        many = checks.Layout(lib, f, (5, axis, inner))
        want = many.outputs(
            memory.run(many.image, lambda base, f=f, many=many: lib.call(f, many.given(base)))[1]
        )
        for shift in (0, 1):
            one = checks.Layout(lib, f, (1, axis, inner), shift=shift)
            for name, a in one.tensors.items():
                if a["role"] == "in":
                    one.put(name, many.data[name][3:4])
            result, back = memory.run(
                one.image, lambda base, f=f, one=one: lib.call(f, one.given(base))
            )
            assert result == 0, lib.detail
            assert all(
                np.array_equal(got[0].view(np.uint8), want[name][3].view(np.uint8))
                for name, got in one.outputs(back).items()
            ), f["name"]


def test_nothing_has_no_largest(built):
    """All but sums, as in PyTorch."""
    lib, memory, _, functions = built
    total, largest = (
        next(f for f in functions if f["op"] == op and not f["bwd"]) for op in ("sum", "amax")
    )
    assert not checks.run(lib, memory, total, (2, 0, 3))["out"].any()
    call = checks.Layout(lib, largest, (2, 0, 3))
    assert (
        lib.call(largest, call.given(memory.base)) == 2
        and "axis is 0, expected 1 or more" in lib.detail
    )
    assert lib.call(largest, call.given(memory.base) | {"outer": 0}) == 0


PLANS = r"""
#include <cstdio>
#include <cuda_runtime.h>
#include <kf/core/reduction/reduction.cuh>
int main()
{
    for (long long outer, axis, vec; scanf("%lld %lld %lld", &outer, &axis, &vec) == 3;) {
        kfi_reduce g, longer;
        kfi_reduce_plan(&g, outer, axis, 1, (int)vec, false, 1);
        longer = g;
        kfi_reduce_use_fewer_threads(&longer, (int)vec, 64);
        kfi_reduce never = g;
        kfi_reduce_use_fewer_threads(&never, (int)vec, 0);
        printf("%d %d %d ", 1 << g.x, 1 << longer.x, 1 << never.x);
        printf("%d %d ", (int)g.parts, (int)longer.parts);
        printf("%d %lld\n", (int)never.parts, (long long)longer.length);
    }
}
"""


def test_threads_of_argreduce(include, tmp_path):
    """argmax uses fewer threads for many long axes and fewer parts for few, very long ones.

    Threads have up to 64 vectors, an axis at least a warp, and threads fill the device. There are
    at least as many parts as resident blocks. Sums, whose bits would change, keep their threads.
    """
    (tmp_path / "plans.cpp").write_text(PLANS)
    headers = [f"-I{d}" for d in (emulator.HERE / "include", emulator.HERE, *include)]
    # The plan of a real device.
    flags = [f for f in emulator.flags("plain") if not f.startswith("-DKFI_")]
    objects = str(emulator.runtime(tmp_path, "plain"))
    subprocess.run(
        ["g++", "-std=c++17", *headers, *flags, "plans.cpp", objects, "-o", "plans"],
        cwd=tmp_path,
        check=True,
    )
    axes = (1, 4096, 8200, 16000, 32000, 131072, 1 << 20, 1 << 24, 1 << 30)
    shapes = [
        (outer, axis, vec)
        for outer in (1, 7, 64, 100, 1024, 4096, 8192, 32768, 1 << 20)
        for axis in axes
        for vec in (4, 8)
    ]
    given = "".join(f"{outer} {axis} {vec}\n" for outer, axis, vec in shapes)
    found = subprocess.run(
        [tmp_path / "plans"], input=given, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    plans = {s: [int(n) for n in line.split()] for s, line in zip(shapes, found, strict=True)}
    assert [
        plans[s][1] for s in ((4096, 32000, 8), (8192, 16000, 8), (1024, 32000, 8), (1, 32000, 8))
    ] == [64, 32, 256, 256]
    assert plans[1, 1 << 30, 4][3:5] == [2110, 396] and plans[100, 1 << 24, 4][4] == 3
    for (outer, axis, vec), (before, longer, never, parts, fewer, as_many, length) in plans.items():
        assert never == before and longer <= before and as_many == parts
        if longer < before:
            assert (
                parts == 1
                and longer >= 32
                and axis <= 64 * vec * longer
                and outer * longer >= 132 * 1024
            )
        assert (
            (fewer == 1) == (parts == 1)
            and fewer <= parts
            and (fewer - 1) * length < axis <= fewer * length
        )


# Axes of one warp, whose chunks several warps share if axes are few; of half a vector more, which
# one warp reduces; and of one block.
FEW_AXES = [96, 1030, 2048, 3072, 4096]
FEW_AXES_NAMES = (
    "kf_sum_bf16",
    "kf_sum_f32",
    "kf_amax_bf16",
    "kf_std_f32",
    "kf_std_bf16",
    "kf_logsumexp_bwd_f32",
    "kf_prod_f64",
)


@pytest.fixture(scope="session")
def few_axes_lib():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    return emulator.build(faults.named(FEW_AXES_NAMES, "cuda"), BUILD / "emu")


@pytest.mark.parametrize("name", FEW_AXES_NAMES)
def test_few_axes(few_axes_lib, name):
    """If axes are few, a block reduces each with as many warps as it has chunks. The bits must be
    those of many axes."""
    (f,) = faults.named((name,), "cuda")
    check_few(few_axes_lib, f)


FEW_AXES_FAULTS = {
    "all warps reduce the first chunk": (
        "kf/core/reduction/reduction.cuh",
        r"first = x \+ \(\(y \* ahead\) << g\.x\)",
        "first = x",
    ),
    "a chunk's result is read from another chunk's warps": (
        "kf/core/reduction/reduction.cuh",
        r"buffer\[\(first \+ w\) \* 32 \+ lane\]\)",
        "buffer[first * 32 + lane])",
    ),
    "a chunk is longer than its warps may have": (
        "kf/core/reduction/reduction.cuh",
        r"if \(g\.y > 0 && at\.loops > ahead\) at\.loops = ahead;",
        "",
    ),
    "the end of an axis is read as a whole vector": (
        "kf/core/reduction/host.cuh",
        r" \|\| g->axis % vec != 0",
        "",
    ),
}


def check_few(lib, f):
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu)
    for axis in FEW_AXES:
        found = []
        try:
            for sms in (132, 1):
                emu.set(sms=sms)
                found.append(checks.run(lib, memory, f, (5, axis, 1)))
        finally:
            emu.set(sms=132)
        for out, array in found[0].items():
            if not checks.same_bits(array, found[1][out]):
                raise checks.Failure(f"{f['name']} {axis}: {out} has other bits in few blocks")


# (axis, columns, SMs, launches): clusters of eight, four and two blocks, of which the last may have
# no part or a shorter one; too few columns, and too many.
CLUSTER_SHAPES = [
    (900, 130, 24, 1),
    (200, 130, 24, 1),
    (130, 130, 12, 1),
    (700, 70, 5, 1),
    (900, 12, 132, 2),
    (900, 130, 2, 2),
]


@pytest.mark.parametrize("name", FEW_AXES_NAMES)
def test_columns_of_a_long_axis(few_axes_lib, name):
    """Their parts are joined in the launch that finds them, by the blocks of a cluster."""
    (f,) = faults.named((name,), "cuda")
    check_clusters(few_axes_lib, f)


def check_clusters(lib, f):
    emu = emulator.Emulator(lib)
    vec = 16 // kflib.SIZE[f["dtypes"][0]]
    for axis, cols, sms, launches in CLUSTER_SHAPES:
        for outer, shift in ((1, 0), (2, 1)):
            memory, before = emulator.Memory(emu, emulator.RUNS[1:]), emu.launches
            try:
                emu.set(sms=sms)
                checks.run(lib, memory, f, (outer, axis, cols * vec // 4), shift=shift)
            finally:
                emu.set(sms=132)
            made = (emu.launches - before) // len(memory.runs)
            assert made == launches or made > launches > 1, (axis, cols, sms, made)


CLUSTER_FAULTS = {
    "all blocks' results are the first one's": (
        "kf/core/reduction/reduction.cuh",
        r"slots\[r \* size",
        "slots[0 * size",
    ),
    "all blocks send their results to one place": (
        "kf/core/reduction/reduction.cuh",
        r"slots \+ rank \* size",
        "slots + 0 * size",
    ),
    "other blocks' results are read without a cluster barrier": (
        "kf/core/reduction/reduction.cuh",
        r"(kfi_cluster_arrive\(\);\n +)kfi_cluster_wait\(\);",
        r"\1",
    ),
}


SEEDED = {
    what: (check, *place)
    for check, found in ((check_few, FEW_AXES_FAULTS), (check_clusters, CLUSTER_FAULTS))
    for what, place in found.items()
}


def test_every_fault_has_its_place(include, tmp_path):
    for _, *place in SEEDED.values():
        faults.plant(include, tmp_path, *place)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    check, *place = SEEDED[what]
    functions = faults.named(("kf_sum_f32",), "cuda")
    broken = emulator.build(functions, tmp_path / "lib", faults.plant(include, tmp_path, *place))
    with pytest.raises(checks.Failure):
        check(broken, functions[0])
