# SPDX-License-Identifier: Apache-2.0
"""The package's C library: functions against the float64 oracle, and threads."""

import subprocess

import cases
import checks
import kflib
import kfpython
import numeric
import pytest
from kfgen.interfaces import packed as packing
from storage import Failure

NATIVE = kfpython.SOURCE / "kernel_fusion/native"
FUNCTIONS = packing.functions(
    {"functions": kflib.manifest()["functions"] if cases.LEVEL > 1 else numeric.FUNCTIONS}
)
GROUPS = {}
for _function in FUNCTIONS:
    GROUPS.setdefault((_function["header"], _function["bwd"]), []).append(_function)


@pytest.fixture(scope="session")
def packed(library):
    return kfpython.Packed(library)


@pytest.mark.parametrize(
    "header, bwd", GROUPS, ids=[f"{h}{'-bwd' if b else ''}" for h, b in GROUPS]
)
def test_numbers(packed, header, bwd):
    """Each function on a shape that is split into chunks and on one that is not."""
    memory = checks.CpuMemory()
    there = [f for f in GROUPS[header, bwd] if packed.has(f)]
    for f in there:
        for sizes, values, shift in cases.runs(f, False)[:2]:
            checks.run(packed, memory, f, sizes, values, shift=shift)
    assert bool(there) == (kfpython.WHOLE or header.split("/")[-1] in kfpython.OPS), header


def test_a_wrong_function_is_noticed(packed):
    """The tests detect a call of another function's kernel."""
    relu, gelu = (
        next(f for f in FUNCTIONS if f["name"] == f"kf_{name}_f32") for name in ("relu", "gelu")
    )
    with pytest.raises(Failure):
        checks.run(packed, checks.CpuMemory(), {**relu, "name": gelu["name"]}, (1000,))


def test_errors_are_kf_s_own(library):
    error = "^kf_cpu_relu_f32: a size is negative, too large or .*: n is -1, expected 0 or more$"
    with pytest.raises(ValueError, match=error):
        library.call("kf_relu_f32", [0, 0], [-1], None, [])


def test_threads_change_no_bits(kf):
    """Runs in a process without PyTorch, whose threads would be used."""
    output = kfpython.python("""
import numpy as np, kernel_fusion as kf
rng = np.random.default_rng(1)
x, weight = rng.normal(size=(700, 403)).astype(np.float32), rng.normal(size=403).astype(np.float32)
before, found, most = kf.get_threads(), [], []
for threads in (1, 2, 5):
    kf.set_threads(threads)
    most.append(kf.get_threads())
    found.append((kf.ops.layer_norm_gelu(x, weight).tobytes(), kf.ops.sum(x, dim=0).tobytes()))
kf.set_threads(2**32 + 1)
most.append(kf.get_threads() > 1)
kf.set_threads(0)
print(most, kf.get_threads() == before, len(set(found)))
""")
    assert output == "[1, 2, 5, True] True 1"
    for wrong in (-1, "two", 1.5, True):
        with pytest.raises(
            ValueError,
            match=f"kf.set_threads: threads is {wrong!r}, expected a whole number, 0 or more",
        ):
            kf.set_threads(wrong)


@pytest.mark.parametrize(
    "flags, argument",
    [((), ()), (("-fsanitize=thread",), ("no fork",)), (("-fsanitize=address,undefined",), ())],
    ids=["plain", "thread", "address"],
)
def test_pool(tmp_path, flags, argument):
    """Each chunk runs once: with four concurrent callers, in a forked child, and in the host's
    loop.
    """
    source = kflib.ROOT / "tests/frontends/pool.c"
    command = [
        "gcc",
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags,
        f"-I{NATIVE}",
        source,
        NATIVE / "pool.c",
        "-o",
        tmp_path / "pool",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [tmp_path / "pool", *argument], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout == "0 wrong, host 1, 1 threads\n", (
        done.stdout + done.stderr
    )
