# SPDX-License-Identifier: Apache-2.0
"""Runs launchers under compute-sanitizer, each tensor in an allocation of exactly its size.

    python3 tests/support/gpu/sanitized.py KIND
    compute-sanitizer --tool memcheck python3 tests/support/gpu/sanitized.py LIBRARY SHARD SHARDS \\
        [KIND]

The first command builds a kind's library and prints its path. Kinds (see KINDS): wgmma, bf16
products compiled for sm_90a; shaped, functions with a shape struct, for sm_90a; portable, the same
without the kernels of sm_90a; lists, functions over lists of tensors; none, a selection of all
others. tests/cuda/test_sanitizers.py starts it.
"""

import ctypes
import dataclasses
import pathlib
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import folders  # noqa: E402

folders.add()

import cases  # noqa: E402
import checks  # noqa: E402
import kflib  # noqa: E402
import numpy as np  # noqa: E402
import selection  # noqa: E402
import wgmma  # noqa: E402
from storage import from_float  # noqa: E402

# Fewer blocks than usual fill the GPU, so tensors of some 10,000 elements reach kernels with
# several vectors per thread.
FLAGS = ("-O3", "-arch=native", "-lineinfo", "-DKFI_MAP_FILL=4")
# Shapes with vectors and single elements, several vectors per thread, odd rows, planes and rows of
# channels, tails, and sums of several parts.
SHAPES = {
    "flat": [((1003,), 0), ((61,), 1), ((32773,), 0)],
    "rows": [((7, 64), 0), ((5, 301), 0), ((9, 67), 1), ((601, 72), 0), ((601, 67), 0)],
    "planes": [
        ((3, 4, 304), 0),
        ((2, 5, 49), 1),
        ((40, 8, 1), 0),
        ((60, 33, 1), 0),
        ((4, 32, 66), 0),
        ((45, 15, 49), 0),
        ((4100, 8, 1), 0),
    ],
    "heads": [((2, 3, 5, 304), 0), ((2, 2, 3, 49), 1)],
    "groups": [
        ((2, 1, 3, 15, 64), 0),
        ((2, 33, 3, 30, 1), 0),
        ((1, 3, 2, 10, 7), 1),
        ((1, 600, 4, 64, 1), 0),
    ],
}
# Shapes of ops over rows: several rows per persistent block of several warps, a cluster, a row
# staged in shared memory.
LONG = [((601, 1000), 0), ((3, 40000), 0), ((3, 40001), 1)]
# Products by wgmma: partial tiles and K-slices, batches, more tiles than SMs; skinny M with
# split-K, and without.
WGMMA_FLAGS = ("-O3", "-gencode=arch=compute_90a,code=sm_90a", "-lineinfo")
WGMMA = [
    ((1, 130, 136, 72), 0),
    ((2, 200, 72, 712), 0),
    ((1, 1000, 2064, 520), 0),
    ((1, 16, 520, 1032), 0),
    ((1, 64, 136, 72), 0),
]
PARTED = [((1, 70001, 1), 0), ((1, 3000, 40), 0)]


# Lengths of lists: empty tensors at every slot, several chunks, a table of many tensors.
LISTS = [((0, 5, 0), 0), ((3, 0, 257, 8192), 1), ((8193, 1, 16385, 64), 0), ((2, 3, 5) * 20, 1)]


def shaped():
    """Functions with a shape struct in bf16, of families that list calls for these tests."""
    return [
        f
        for f in kflib.on("cuda", kflib.of_tensors())
        if any(a["role"] == "shape" for a in f["arguments"])
        and f["dtypes"][0] == "bf16"
        and hasattr(cases.own(f), "SANITIZED")
    ]


def lists():
    """Functions over lists that cover ops, dtypes and schedules."""
    return selection.cover(selection.features, kflib.on("cuda", kflib.of_lists()))


def some(f):
    return cases.of_form(f, SHAPES) + {"rows": cases.rows_of(f, LONG), "reduction": PARTED}.get(
        f["family"], []
    )


def own(f):
    """Calls of a function with a shape struct."""
    return cases.own(f).SANITIZED


@dataclasses.dataclass
class Kind:
    """Functions, their calls, and how they are compiled.

    hopper: the kernels need a device with wgmma.
    """

    functions: typing.Callable
    shapes: typing.Callable
    flags: tuple
    hopper: bool = False
    shards: int = 1


KINDS = {
    "": Kind(lambda: kflib.on("cuda", selection.kernels()), some, FLAGS, shards=4),
    "wgmma": Kind(lambda: wgmma.functions(("bf16",)), lambda f: WGMMA, WGMMA_FLAGS, True),
    "shaped": Kind(shaped, own, (*WGMMA_FLAGS, "-DKF_HEAD_DIMS=1"), True, 2),
    "portable": Kind(shaped, own, (*FLAGS, "-DKF_HEAD_DIMS=1", "-DKF_SCHEDULES=3"), shards=2),
    "lists": Kind(lists, lambda f: LISTS, FLAGS, shards=2),
}


def chosen(which):
    return KINDS[which].functions()


def shapes(f, which=""):
    return KINDS[which].shapes(f)


class Runtime:
    """Allocates each array in exactly its bytes, plus `skip` bytes in front."""

    def __init__(self):
        self.rt = ctypes.CDLL("libcudart.so")

    def call(self, name, *arguments):
        status = getattr(self.rt, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def place(self, size, array=None, skip=0):
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(max(size + skip, 1)))
        if array is not None:
            self.call(
                "cudaMemcpy",
                ctypes.c_void_p(pointer.value + skip),
                ctypes.c_void_p(array.ctypes.data),
                ctypes.c_size_t(size),
                1,
            )
        return pointer.value


def run(lib, runtime, f, sizes, shift):
    call = checks.Layout(lib, f, sizes, shift=shift)
    given, owned = call.given(0), []
    for name, a in call.tensors.items():
        if a["unread"]:
            continue
        array, skip = call.data[name], shift * call.data[name].itemsize
        # Outputs and the workspace stay uninitialised, so that initcheck reports reads of them,
        # except outputs that a call adds to.
        owned.append(
            runtime.place(
                array.nbytes, array if a["role"] == "in" or call.scalars.get("beta") else None, skip
            )
        )
        given[name] = owned[-1] + skip
    if f["state"]:
        owned.append(runtime.place(16, call.image[call.state : call.state + 16].copy()))
        given |= checks.state_at(owned[-1])
    if call.workspace:
        owned.append(runtime.place(call.workspace))
        given["workspace"] = owned[-1]
    result = lib.call(f, given)
    if result:
        raise RuntimeError(f"{call.where}: returned {result} ({lib.detail})")
    runtime.call("cudaDeviceSynchronize")
    for pointer in owned:
        runtime.call("cudaFree", ctypes.c_void_p(pointer))


def tensors_of(rng, f, a, lengths):
    """Draws the tensors of an argument: one per length, or a number that the call needs."""
    if not a["list"]:
        number = 2.0 if a["absent"] is None else a["absent"]
        return [from_float(np.full(1, number), a["dtype"])]
    return [from_float(np.abs(rng.standard_normal(n)) + 0.25, a["dtype"]) for n in lengths]


def run_lists(lib, runtime, f, lengths, shift):
    """Calls a function over lists, each tensor in an allocation of its own."""
    rng, owned, kept = np.random.default_rng(7), [], [(ctypes.c_int64 * len(lengths))(*lengths)]
    given = f["scalars"] | {"lengths": ctypes.addressof(kept[0]), "count": len(lengths)}
    for a in [a for a in f["arguments"] if "kind" in a]:
        at = []
        for x in tensors_of(rng, f, a, lengths):
            skip = shift * x.itemsize if a["list"] else 0
            owned.append(runtime.place(x.nbytes, x, skip))
            at.append(owned[-1] + skip)
        kept.append((ctypes.c_void_p * len(at))(*at))
        given[a["name"]] = ctypes.addressof(kept[-1]) if a["list"] else at[0]
    if f["workspace"]:
        bytes_ = lib.workspace_bytes(f, ())
        owned.append(runtime.place(bytes_))
        given |= {"workspace": owned[-1], "workspace_bytes": bytes_}
    result = lib.call(f, given)
    if result:
        raise RuntimeError(f"{f['name']} lengths={lengths}: returned {result} ({lib.detail})")
    runtime.call("cudaDeviceSynchronize")
    for pointer in owned:
        runtime.call("cudaFree", ctypes.c_void_p(pointer))


def build(which, folder):
    """Compiles a kind's library."""
    return kflib.build("cuda", chosen(which), folder, KINDS[which].flags)


def main(library, shard, shards, which=""):
    lib, runtime, calls = kflib.Lib("cuda", library), Runtime(), 0
    for f in chosen(which)[int(shard) :: int(shards)]:
        for sizes, shift in shapes(f, which):
            (run_lists if kflib.over_lists(f) else run)(lib, runtime, f, sizes, shift)
            calls += 1
    print(f"{calls} calls")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(build(sys.argv[1], ROOT / "build/tests" / f"sanitized_{sys.argv[1]}").path)
    else:
        main(*sys.argv[1:])
