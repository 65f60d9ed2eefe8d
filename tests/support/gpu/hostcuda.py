# SPDX-License-Identifier: Apache-2.0
"""Runs the host code of CUDA launchers without a GPU, a driver or nvcc.

g++ compiles the unchanged launchers over a runtime that counts launches; kernels are empty. Tests
use it for a launcher's checks and its choice of grid, block and kernel.
"""

import ctypes
import zlib

import kflib
import toolkit

# Linker flags: the library calls its own runtime, even if the process has loaded NVIDIA's, as
# PyTorch does.
OWN = ("-Wl,-Bsymbolic",)
HEADER = kflib.ROOT / "tests/support/gpu/counting_cuda.h"


class Launches(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_longlong),
        ("status", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_longlong),
        ("stream", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("current", ctypes.c_int),
        ("own", ctypes.c_int),
        ("capturing", ctypes.c_int),
        ("raised", ctypes.c_int),
        ("raised_of", ctypes.c_void_p),
    ]


def build(functions, build_dir, architecture=900, flags=()):
    """Builds the launchers and returns a kflib.Lib. Its `seen` has the last launch and the number
    of launches. architecture: the compute capability that nvcc would compile for, times 10."""
    flags = (
        *flags,
        "-O0",
        "-std=c++17",
        "-x",
        "c++",
        "-D__launch_bounds__(...)=",
        f"-D__CUDA_ARCH_LIST__={architecture}",
        f"-DKFT_ARCHITECTURE={architecture}",
        "-DKFI_DEVICE=static inline __attribute__((unused))",
        "-isystem",
        str(toolkit.include()),
        "-include",
        str(HEADER),
        f"-DKFT_RUNTIME={zlib.crc32(HEADER.read_bytes())}",
    )
    lib = kflib.build("cuda", functions, build_dir, flags, compiler="g++", link=OWN)
    lib.seen = Launches.in_dll(lib.dll, "kft_seen")
    return lib
