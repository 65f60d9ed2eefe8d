# SPDX-License-Identifier: Apache-2.0
"""CUDA launchers without a GPU, a driver or nvcc: g++ compiles their host code as it stands, over a runtime that counts
launches. What a launcher checks and decides before it launches is tested by it; kernels are empty."""

import ctypes
import zlib

import kflib
import toolkit

# Words for the linker: the library's calls reach its own runtime, though CUDA's may be there for all to find, as PyTorch loads it.
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
    """The launchers, as kflib.build gives them; `seen` is what was launched last, and how often in all. architecture: what nvcc
    would be compiling for."""
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
