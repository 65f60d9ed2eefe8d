# SPDX-License-Identifier: Apache-2.0
"""Tests that C results do not depend on the number of threads, on who runs them, or on a fork."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import threading

import cases
import folders
import kflib
import numpy as np
import pytest
import selection
from conftest import BUILD
from hooks import PTHREADS, REVERSED

# Reduced gradients are split from 131,072 elements on.
EXTENTS = {
    "flat": [(100003,)],
    "rows": [(600, 403), (40, 5003), (70000, 3)],
    "planes": [(10, 50, 331), (3, 1000, 64), (3000, 70, 1)],
    "heads": [(5, 4, 30, 403), (1, 2, 20, 5003)],
    "groups": [(5, 1, 20, 60, 403), (3, 500, 8, 80, 1), (2, 7, 5, 1500, 9)],
}
# One function of each schedule: every op, with an activation other than the identity. The dtypes
# share the traversals; 2-byte dtypes are added where rows are read or sums added up.
FUNCTIONS = [
    f
    for f in kflib.of_tensors()
    if f["activation"] == ("silu" if "{act}" in f["op"] else "none")
    and (
        f["dtypes"] in (["f32"], ["f32", "bf16"])
        or (f["dtypes"] == ["bf16"] and (len(f["sizes"]) > 1 or cases.LEVEL > 1))
    )
]
OF_DETAILS = ("kf_cpu_add_silu_f32", "kf_cpu_bias_silu_bf16")
if cases.LEVEL == 1:
    FUNCTIONS = selection.cover(
        lambda f: [selection.schedule(f), f["cpu_name"] in OF_DETAILS and f["cpu_name"]], FUNCTIONS
    )
FLAGS = ("-Og", "-ffp-contract=off")
# A fork changes who runs the chunks: one function for each way to split a call into chunks.
FORKED = list(
    {(f["family"], len(f["sizes"]), f["bwd"], f["scratch"]): f for f in FUNCTIONS}.values()
)

# Prints digests of every output of every function as JSON. OpenMP reads its environment once, so
# this runs in a process of its own.
SCRIPT = """
import ctypes, hashlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
import test_threads as t, kflib
lib = kflib.Lib("cpu", sys.argv[2])
found = {
    f"{f['cpu_name']} {sizes}": t.digest(lib, f, sizes)
    for f in t.FUNCTIONS
    for sizes in t.extents(f)
}
try:
    chunks = ctypes.c_long.in_dll(lib.dll, "kft_chunks").value
except ValueError:
    chunks = None
print(json.dumps([chunks, found]))
"""


def extents(f):
    """Shapes of a function. Reductions have an axis that is split, in last and in other
    position."""
    return (
        [(3, 200001, 1), (2, 5000, 40), (3, 1000, 64)]
        if f["family"] == "reduction"
        else cases.of_form(f, EXTENTS)
    )


@functools.cache
def drawn(number, shape, dtype, positive):
    import checks

    return checks.draw(np.random.default_rng([3, number]), shape, dtype, "normal", positive)


def arguments(f, sizes):
    """Returns (values for Lib.call, {output: array}, objects to keep alive)."""
    import checks

    values, outputs, alive = dict(zip(f["sizes"], sizes)) | f["scalars"], {}, []
    for number, a in enumerate(f["arguments"]):
        if "kind" not in a:
            continue
        shape = checks.shape_of(f, sizes, a)
        if a["role"] == "in":
            array = drawn(number, shape, a["dtype"], a["positive"])
        else:
            array = outputs[a["name"]] = np.full(shape, 7, checks.STORAGE[a["dtype"]])
        alive.append(array)
        values[a["name"]] = None if a["unread"] else array.ctypes.data
    state = np.array([11, 12], np.uint64)
    alive.append(state)
    state_ = checks.state_at(state.ctypes.data) if f["state"] else {"seed": 11, "offset": 12}
    return values | {"p": 0.3, **state_}, outputs, alive


def digest(lib, f, sizes):
    import hashlib

    values, outputs, alive = arguments(f, sizes)
    need = lib.workspace_bytes(f, list(sizes))
    workspace = np.zeros(need + 256, np.uint8)
    values |= {
        "workspace": workspace.ctypes.data + -workspace.ctypes.data % 256,
        "workspace_bytes": need,
    }
    assert lib.call(f, values) == 0, lib.detail
    del alive
    return hashlib.sha256(b"".join(x.tobytes() for x in outputs.values())).hexdigest()[:16]


def build(variant, folder):
    """Builds the library with one way to run the chunks of a call."""
    flags = {"openmp": ("-fopenmp",), "serial": (), "always": ("-fopenmp", "-DKF_OMP_MIN=1")}.get(
        variant
    )
    if flags is None:
        hook = folder / "hook.h"
        hook.write_text({"reversed": REVERSED, "pthreads": PTHREADS}[variant])
        flags = ("-pthread", "-include", str(hook))
    return kflib.build(
        "cpu", FUNCTIONS, (folder if "-include" in flags else BUILD / "cpu"), (*FLAGS, *flags)
    )


def digests(lib, **environment):
    paths = [
        str(pathlib.Path(__file__).parent),
        *folders.PATHS,
        str(kflib.ROOT / "gen"),
        str(kflib.ROOT / "tests"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(paths), str(lib.path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def agree(got, want):
    different = [name for name in want if got[name] != want[name]]
    assert set(got) == set(want) and len(want) > 36
    assert not different, f"{len(different)} of {len(want)} differ, first {different[0]}"


@pytest.fixture(scope="module")
def one_thread(once):
    return once(
        "digests of one thread", lambda folder: digests(build("openmp", None), OMP_NUM_THREADS="1")
    )[1]


@pytest.mark.parametrize("threads", cases.by_level(["5"], ["2", "5"]))
def test_number_of_threads(one_thread, threads):
    agree(
        digests(build("openmp", None), OMP_NUM_THREADS=threads, OMP_DYNAMIC="false")[1], one_thread
    )


def test_repeated_runs(one_thread):
    """A second run with more threads than cores is scheduled differently, and must give the
    same."""
    agree(digests(build("openmp", None), OMP_NUM_THREADS="5")[1], one_thread)


@pytest.mark.parametrize(
    "variant", cases.by_level(["pthreads"], ["serial", "reversed", "pthreads", "always"])
)
def test_other_ways_to_run(one_thread, variant, tmp_path):
    chunks, found = digests(build(variant, tmp_path), OMP_NUM_THREADS="3")
    agree(found, one_thread)
    assert (chunks is not None and chunks > 3 * len(FUNCTIONS)) == (
        variant in ("reversed", "pthreads")
    )


FORK = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[1])
import test_threads as t, kflib
lib = kflib.Lib("cpu", sys.argv[2])
def digest(): return [t.digest(lib, f, t.extents(f)[0]) for f in t.FORKED]
want = digest() if sys.argv[3] == "used" else None  # the parent's OpenMP threads exist from here on
def child(depth):
    pid = os.fork()
    if pid == 0:
        got = [digest(), digest()]
        code = 0 if got[0] == got[1] and (want is None or got[0] == want) else 3
        if depth and code == 0:
            code = child(depth - 1)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
code = child(1)  # and a child of the child
print("done", code, digest() == (want or digest()))
"""


@pytest.mark.parametrize("parent", ["used", "unused"])
def test_fork(parent):
    """A forked child that calls ops on large tensors returns with the same results, whether or not
    the parent had started its threads."""
    paths = [
        str(pathlib.Path(__file__).parent),
        *folders.PATHS,
        str(kflib.ROOT / "gen"),
        str(kflib.ROOT / "tests"),
    ]
    command = [
        sys.executable,
        "-c",
        FORK,
        json.dumps(paths),
        str(build("openmp", None).path),
        parent,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "3"},
    )
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # the forked children too
        pytest.fail(f"the forked child hangs (parent's OpenMP {parent})")
    assert out.strip() == "done 0 True", out + err[-2000:]


FORK_OWN = """
#include <kf/ops/add.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    const int64_t n = 1 << 20;
    float *a = (float *)calloc((size_t)n, sizeof *a), sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += a[i];
    if (fork() == 0) {
        alarm(10);
        _exit(kf_cpu_add_relu_f32(a, a, a, n) != KF_SUCCESS || sum != 0.0f);
    }
    int status = 0;
    wait(&status);
    puts(WIFSIGNALED(status) ? "the child hangs" : WEXITSTATUS(status) ? "failed" : "done");
    return 0;
}
"""


def test_fork_after_the_programs_own_openmp(include, tmp_path):
    """The threads missing in the child may have been started by the program's own OpenMP."""
    (tmp_path / "fork.c").write_text(FORK_OWN)
    command = [
        "gcc",
        "-std=gnu11",
        "-O1",
        "-fopenmp",
        *(f"-I{d}" for d in include),
        str(tmp_path / "fork.c"),
        "-o",
        str(tmp_path / "fork"),
        "-lm",
    ]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(tmp_path / "fork")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "3"},
    )
    assert done.stdout == "done\n"


def test_error_detail_is_the_threads_own():
    lib = build("openmp", None)
    f = {g["cpu_name"]: g for g in FUNCTIONS}
    first, second = (f[name] for name in OF_DETAILS)
    barrier, recorded = threading.Barrier(2), {}

    def work(function, n):
        values, _, alive = arguments(function, (5, 5)[: len(function["sizes"])])
        assert lib.detail == ""  # nothing has failed in this thread
        for i in range(50):
            barrier.wait(timeout=30)
            lib.call(function, values | {function["sizes"][0]: n - i})
            barrier.wait(timeout=30)  # both have failed before either asks
            recorded.setdefault(function["cpu_name"], []).append((n - i, lib.detail))
        del alive

    threads = [threading.Thread(target=work, args=a) for a in ((first, -1), (second, -1000))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(recorded) == 2 and all(len(v) == 50 for v in recorded.values())
    for name, details in recorded.items():
        for n, detail in details:
            assert detail == f"{name}: {f[name]['sizes'][0]} is {n}, expected 0 or more"


def test_calls_from_several_threads(one_thread):
    """Concurrent calls from user threads do not disturb each other (ctypes releases the interpreter
    lock)."""
    lib = build("openmp", None)
    chosen = [f for f in FUNCTIONS if f["dtypes"][0] == "f32"][::4]
    found, failed = {}, []

    def work(part):
        try:
            for f in chosen[part::2] + chosen[::3]:
                for sizes in extents(f):
                    found.setdefault(f"{f['cpu_name']} {sizes}", []).append(digest(lib, f, sizes))
        except BaseException as e:  # noqa: BLE001 (shown by the test itself)
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    assert found and all(set(v) == {one_thread[name]} for name, v in found.items())
