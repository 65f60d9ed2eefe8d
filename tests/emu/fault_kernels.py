# SPDX-License-Identifier: Apache-2.0
"""Parts of test_emulation.py: the reports that the emulator must make for kernels of faults.cpp,
and functions that run these kernels, in this process or in another one under a sanitizer."""

import ctypes
import os
import pathlib
import subprocess
import sys

import emulator
import kflib
import numpy as np
from conftest import BUILD

SOURCE = pathlib.Path(__file__).with_name("faults.cpp")
ORDERS = {"forward": emulator.FORWARD, "reversed": emulator.REVERSED, "random": emulator.RANDOM}
# kernel: threads, first line and a later part of the report
REPORTS = {
    "barrier_not_reached": (
        64,
        r"no thread can go on",
        r"threads 0-2, 4-34, 36-60: waits at __syncthreads, .*faults.cpp:(\d+)\n"
        r"  threads 3, 35, 61-63: has returned",
    ),
    "two_barriers": (
        64,
        r"threads meet at different barriers",
        r"threads 0-7: waits at __syncthreads, .*\n  threads 8-63: waits at __syncthreads, ",
    ),
    "lane_is_missing": (
        32,
        r"no thread can go on",
        r"threads 0-8, 10-31: waits at __shfl_xor_sync of lanes ffffffff, .*\n"
        r"  threads 9: has returned",
    ),
    "product_without_a_lane": (
        32,
        r"no thread can go on",
        r"threads 0-8, 10-31: waits at mma of lanes ffffffff, .*\n  threads 9: has returned",
    ),
    "masks_differ": (
        32,
        r"no thread can go on",
        r"threads 0-15: waits at __shfl_sync of lanes ffffffff, .*\n  threads 16-31: has returned",
    ),
    "not_in_its_mask": (
        64,
        r"thread \d+ is not in the mask that it gives",
        r"__shfl_sync of lanes 000000ff",
    ),
    **{
        f"misaligned_{name}": (
            32,
            rf"thread 5 accesses an address that is no multiple of {size} bytes: a GPU refuses it",
            rf"threads 5: is at {what}, .*{file}:\d+\n",
        )
        for name, size, what, file in (
            ("vector", 8, "an access", "copy.cuh"),
            ("store", 4, "a store", "misaligned.h"),
            ("atomic", 4, "an atomic operation", "misaligned.h"),
            ("copy", 16, "cp.async to shared memory", "misaligned.h"),
            ("source", 4, "cp.async from global memory", "misaligned.h"),
            ("rows", 16, "ldmatrix", "misaligned.h"),
        )
    },
}
# The faulting thread, in the list of threads.
SELF = r"  of block \(1, 0, 0\):\n(  threads .*\n)*  threads 5: is at %s, .*faults.cpp:\d+\n"
# kernel: first line and a later part of the report, for launches in clusters
CLUSTER_REPORTS = {
    "not_all_of_the_cluster": (
        r"no thread can go on",
        r"  of block \(0, 0, 0\):\n  threads 0-63: waits at barrier.cluster.wait, "
        r".*faults.cpp:\d+\n"
        r"  of block \(1, 0, 0\):\n  threads 0-31: waits at __syncthreads, .*\n"
        r"  threads 32-63: waits at barrier.cluster",
    ),
    "arrives_twice": (
        r"thread 5 comes to the cluster's barrier twice without a wait between\n",
        SELF % "barrier.cluster.arrive",
    ),
    "waits_first": (
        r"thread 5 waits at the cluster's barrier without having come to it\n",
        SELF % "barrier.cluster.wait",
    ),
    "not_its_memory": (
        r"thread 5 has an address outside of its block's dynamic memory\n",
        SELF % "mapa",
    ),
    "beyond_its_memory": (
        r"thread 5 has an address outside of its block's dynamic memory\n",
        SELF % "mapa",
    ),
    "no_such_block": (
        r"thread 5 wants memory of block 2 of the cluster, which is smaller\n",
        SELF % "mapa",
    ),
    "has_not_begun": (
        r"thread \d+ wants memory of block [01] of the cluster, which need not have begun: no "
        r"barrier came before\n",
        r"is at mapa",
    ),
    "has_ended": (
        r"thread \d+ wants memory of block 0 of the cluster, which has ended\n",
        r"of block \(0, 0, 0\):\n  threads 0-63: has returned\n",
    ),
    "static_in_a_cluster": (r"a kernel wrote to static shared memory", r"kf_emu_dynamic"),
}


def library(variant):
    """Compiles faults.cpp and links it to the emulator."""
    include = [f"-I{d}" for d in (emulator.HERE / "include", emulator.HERE, kflib.ROOT / "include")]
    runtime = emulator.runtime(BUILD / "emu", variant)
    out = BUILD / "emu" / f"faults_{variant}.{os.getpid()}.so"
    command = [
        "g++",
        "-std=c++17",
        "-fPIC",
        "-shared",
        *emulator.flags(variant),
        *include,
        str(SOURCE),
        str(runtime),
        "-o",
        str(out),
    ]
    subprocess.run(command, check=True)
    return out


class Faults:
    def __init__(self, path):
        self.dll = ctypes.CDLL(str(path))
        self.dll.kft_run.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 4, ctypes.c_void_p]
        self.emu = emulator.Emulator(self)

    def run(
        self,
        which,
        threads=64,
        blocks=1,
        cluster=0,
        dynamic=0,
        size=4096,
        order=emulator.FORWARD,
        seed=1,
    ):
        out = np.zeros(size, np.int64)
        self.emu.set(order=order, seed=seed)
        result = self.dll.kft_run(
            which.encode(), threads, blocks, cluster, dynamic, out.ctypes.data
        )
        return result, out


# Runs kernels without NumPy and the imports of Faults, which take seconds under a sanitizer.
SCRIPT = """
import ctypes, sys
path, names, aborts, *numbers = sys.argv[1:]
dll, out = ctypes.CDLL(path), (ctypes.c_int64 * 4096)()
dll.kft_run.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 4, ctypes.c_void_p]
ctypes.c_int.in_dll(dll, "kf_emu_aborts").value = int(aborts)
for which in names.split(","):
    print(dll.kft_run(which.encode(), *map(int, numbers), out))
"""


def in_a_process(path, which, variant=None, aborts=0, threads=64, blocks=2, cluster=0, dynamic=0):
    environment = emulator.sanitizer_environment(variant) if variant else {}
    command = [
        *(emulator.fixed_addresses() if variant == "tsan" else []),
        sys.executable,
        "-c",
        SCRIPT,
        str(path),
        which,
    ]
    command += [str(number) for number in (aborts, threads, blocks, cluster, dynamic)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def line_of(text):
    return next(i for i, line in enumerate(SOURCE.read_text().split("\n"), 1) if text in line)
