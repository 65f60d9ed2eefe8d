# SPDX-License-Identifier: Apache-2.0
"""Tests which CUDA runtime functions a launcher's object refers to: the launch, and none that
allocates or waits. Needs no GPU; tests/cuda/test_robust.py counts the calls on one."""

import ctypes
import pathlib
import subprocess
import sys

import cases
import checks
import counting
import kflib
import pytest
import selection
from compilers import quick

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from instructions import NVCC  # noqa: E402

pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")
KINDS = kflib.on("cuda", selection.kinds(("bf16",)))
if cases.LEVEL == 1:
    # linear_cross_entropy makes the calls of products and losses.
    KINDS = selection.cover(
        lambda f: [(f["family"], f["bwd"]), (f["layout"],), (f["scratch"], f["state"])],
        [f for f in KINDS if f["family"] != "linear_cross_entropy"],
    )


@pytest.fixture(scope="module")
def objects(include, once):
    """Builds {name: object} of launchers of every kind and of the counters, linked together in
    `lib`."""
    return once("runtime calls", lambda folder: compiled(include, folder))


def compiled(include, folder):
    parts = kflib.sources("cuda", KINDS)
    files = {
        "detail.cu": parts.pop("detail.cu"),
        "launchers.cu": "\n".join(parts.values()),
    } | counting.source()
    command = [
        NVCC,
        "-arch=sm_90",
        *(quick() or ("-Xptxas", "-O0")),
        "-Xcompiler",
        "-fPIC",
        *(f"-I{d}" for d in include),
        "-c",
    ]
    for name, text in files.items():
        (folder / name).write_text(text)
        subprocess.run([*command, str(folder / name), "-o", str(folder / f"{name}.o")], check=True)
    found = {name: folder / f"{name}.o" for name in files}
    subprocess.run(
        [NVCC, "-shared", *counting.LINK, *map(str, found.values()), "-o", str(folder / "lib.so")],
        check=True,
    )
    return found | {"lib": folder / "lib.so"}


def asked_for(path):
    """Undefined symbols of the CUDA runtime, except those by which nvcc registers kernels."""
    done = subprocess.run(["nm", "-u", str(path)], capture_output=True, text=True, check=True)
    return {
        word
        for line in done.stdout.splitlines()
        for word in line.split()[-1:]
        if word.startswith("cuda")
    }


def test_only_the_launch(objects):
    assert counting.LAUNCH in asked_for(objects["launchers.cu"]) <= counting.ALLOWED


def test_what_allocates_is_seen(objects):
    assert {"cudaMalloc", "cudaFree", "cudaStreamSynchronize"} <= asked_for(
        objects["counting.cu"]
    ) - counting.ALLOWED


def test_calls_are_counted(objects):
    """The counters see the library's own calls; a refused or empty call makes none."""
    lib = kflib.Lib("cuda", objects["lib"])
    lib.dll.kft_planted(ctypes.c_void_p(0))
    assert counting.take(lib) == {
        "cudaMalloc": 1,
        "cudaMemsetAsync": 1,
        "cudaStreamSynchronize": 1,
        "cudaFree": 1,
    }
    for f in KINDS:
        sizes = cases.of_form(
            f,
            {
                "flat": (67,),
                "rows": (5, 13),
                "planes": (2, 3, 11),
                "heads": (2, 2, 3, 5),
                "groups": (2, 3, 2, 4, 5),
            },
        )
        given = checks.Layout(lib, f, sizes).given(4096)
        assert lib.call(f, given | {s: 0 for s in f["sizes"]}) == 0, lib.detail
        assert lib.call(f, given | {f["sizes"][0]: -1}) != 0
        assert counting.take(lib) == {}
        if not kflib.has_gpu():  # with a GPU the addresses would be used
            assert lib.call(f, given) == 8 and counting.take(lib) == {counting.LAUNCH: 1}
            assert lib.detail.startswith(f"{f['name']}: launch of ") and "CUDA error" in lib.detail
