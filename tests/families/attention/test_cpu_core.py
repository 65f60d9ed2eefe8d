# SPDX-License-Identifier: Apache-2.0
"""The C driver kf/core/attention/attention.h by direct calls (cpu_core.c): numbers against the
float64 oracle for every vector width; the bits of a row do not depend on threads, on other rows or
on the batch; the stack of a thread."""

import os
import subprocess
import sys

import attention_cpu as cpu
import cases
import kflib
import numpy as np
import pytest
from attention_cpu import Case
from compilers import CLANG, WARNINGS

INCLUDE = [kflib.ROOT / "include"]
BUILDS = {"gcc -std=c11 -O2 -march=native -fopenmp": 64}
MORE_BUILDS = {
    "gcc -std=c11 -O1 -fsanitize=undefined -fno-sanitize-recover=all": 64,
    "gcc -std=c11 -O2 -DKFI_GEMM_WIDEST=0": 4,
    "gcc -std=c11 -O2 -DKFI_GEMM_WIDEST=16": 16,
    "g++ -std=c++17 -x c++ -O2 -mavx2 -mfma": 32,
    "clang -std=c11 -O2": 64,
}
STACK = 32 << 10

# Row and key counts around strips, blocks and jobs; dims around tiles; head groups.
SIZES = [
    Case(),
    Case(queries=1, keys=1, dim=1),
    Case(queries=13, keys=17, dim=8, dim_v=3, heads=2, batch=2),
    Case(queries=49, keys=513, dim=40, dim_v=24, heads=4, kv_heads=2, batch=2),
    Case(queries=97, keys=31, dim=72, heads=7, kv_heads=1, packed=True),
    Case(queries=3, keys=1030, dim=96, heads=8, kv_heads=2, gap=3),
    Case(queries=400, keys=520, dim=64, heads=2, kv_heads=1),
    Case(queries=20, keys=200, dim=192, dim_v=128),
    Case(queries=10, keys=70, dim=300, dim_v=520),
    Case(queries=0, keys=5),
    Case(queries=5, keys=0),
    Case(queries=5, keys=9, dim=0, dim_v=4),
]
RANGES = [
    Case(queries=70, keys=70, right=0),
    Case(queries=100, keys=300, right=0, heads=2),
    Case(queries=300, keys=100, right=0),  # the first 200 queries see no key
    Case(queries=70, keys=90, right=0, shift=0),  # top left
    Case(queries=90, keys=600, left=30, right=5),
    Case(queries=90, keys=90, left=0, right=0),
    Case(queries=60, keys=80, left=-3, right=20),
    Case(queries=60, keys=80, right=-70),
    Case(queries=300, keys=280, right=0, hidden_nan=True),
    Case(queries=300, keys=580, left=30, right=5, hidden_nan=True, type="bf16"),
]
SCORES = [
    Case(score="softcap", keys=130),
    Case(score="bias", heads=3, batch=2, keys=77),
    Case(score="bias", heads=3, batch=2, shared=True, right=0, type="bf16"),
    Case(score="mask", heads=2, keys=530, queries=50),
    Case(score="mask", heads=2, sink=True, type="f64"),
    Case(score="alibi", heads=4, right=0, kv_heads=2),
    Case(sink=True, heads=3, right=0, shift=-20),
    Case(p=0.3, heads=2, keys=301),
    Case(p=1.0),
    Case(size=30.0),
    Case(scale=-0.3),
    Case(scale=0.0),
]
LARGE = [
    Case(queries=900, keys=2100, heads=3, kv_heads=1, batch=2, right=0),
    Case(queries=100, keys=9000, dim=256, heads=2, kv_heads=1, type="f64"),  # too long to share
]


def typed(found):
    """Gives the cases the four types in turn."""
    return [
        Case(**{**vars(c), "type": kind if c.type == "f32" else c.type, "seed": i})
        for i, c in enumerate(found)
        for kind in cases.by_level([list(cpu.TYPES)[i % 4]], list(cpu.TYPES))
    ]


CASES = typed([*SIZES, *RANGES, *SCORES])


def build(flags, folder):
    compiler, *options = flags.split()
    if compiler == "clang" and not CLANG:
        pytest.skip("no clang")
    return cpu.library(
        INCLUDE, folder, CLANG if compiler == "clang" else compiler, *options, *WARNINGS
    )


@pytest.fixture(scope="module")
def dll(tmp_path_factory):
    return build(next(iter(BUILDS)), tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(dll, case):
    cpu.check(dll, case)


@pytest.mark.check
@pytest.mark.parametrize("flags", MORE_BUILDS)
def test_widths(flags, tmp_path):
    lib = build(flags, tmp_path)
    assert lib.attention_width() <= MORE_BUILDS[flags]
    for case in CASES:
        cpu.check(lib, case)


@pytest.mark.check
@pytest.mark.parametrize("case", LARGE, ids=range(len(LARGE)))
def test_large(dll, case):
    cpu.check(dll, case)


def bits(found):
    return [np.ascontiguousarray(x).view(np.uint8) for x in found]


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_row_has_the_same_bits_alone(dll, kind):
    """A row among all rows, heads and batches has the bits of a call of its own."""
    whole = Case(type=kind, batch=2, heads=4, kv_heads=2, queries=60, keys=700, dim=40, right=0)
    inputs = cpu.draw(whole)
    together = cpu.run(dll, whole, inputs)
    for b, h, i in ((0, 0, 0), (1, 3, 59), (1, 2, 31)):
        one = Case(
            type=kind, queries=1, keys=700, dim=40, shift=700 - 60 + i, right=0, scale=40**-0.5
        )
        own = {
            "q": inputs["q"][b : b + 1, h : h + 1, i : i + 1].copy(),
            **{n: inputs[n][b : b + 1, h // 2 : h // 2 + 1].copy() for n in "kv"},
        }
        alone = cpu.run(dll, one, own)
        for x, y in zip(alone, together):
            assert np.array_equal(*bits((x[0, 0, 0], y[b, h, i]))), (b, h, i)


@pytest.mark.check
def test_threads(dll, tmp_path):
    """The same bits by 1 and 3 threads, each in its own process."""
    program = (
        "import sys, ctypes, hashlib; sys.path[:0] = sys.argv[2:]\n"
        "import attention_cpu as cpu\n"
        "dll = ctypes.CDLL(sys.argv[1]); dll.attention_bytes.restype = ctypes.c_size_t\n"
        "case = cpu.Case(heads=6, kv_heads=3, queries=130, keys=900, dim=64, right=0)\n"
        "print(hashlib.sha256(b''.join(x.tobytes() for x in cpu.run(dll, case))).hexdigest())"
    )
    found = set()
    for threads in (1, 3):
        command = [sys.executable, "-c", program, dll._name, *sys.path]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.parametrize("at_end", [True, False], ids=["behind", "before"])
def test_nothing_outside_is_touched(dll, at_end):
    """Tensors and workspace end, or begin, at inaccessible pages; the system kills the child."""
    child = os.fork()
    if child == 0:
        for case in (
            Case(queries=5, keys=21, dim=7, dim_v=5, heads=2),
            Case(queries=60, keys=700, dim=40, score="bias", type="bf16", right=0),
            Case(queries=30, keys=33, score="mask", type="f16", sink=True),
        ):
            cpu.run(dll, case, allocate=cpu.fenced(at_end))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.check
def test_the_stack_is_small(tmp_path):
    """The driver's functions together, and each function of core/matmul that they call, have half
    of a thread's stack."""
    command = ["gcc", "-std=c11", "-O2", "-fstack-usage", f"-I{INCLUDE[0]}", "-c", str(cpu.SOURCE)]
    subprocess.run([*command, "-o", "core.o"], check=True, cwd=tmp_path)
    [report] = tmp_path.glob("*.su")
    frames = [line.split("\t") for line in report.read_text().splitlines()]
    assert all(kind.startswith("static") or "bounded" in kind for _, _, kind in frames)
    assert 0 < sum(int(n) for name, n, _ in frames if "attention" in name) < STACK // 2
    assert max(int(n) for _, n, _ in frames) < STACK // 2
