# SPDX-License-Identifier: Apache-2.0
"""Records launches of launchers compiled by g++ alone, without running them.

Two builds: as nvcc compiles the host code, over the CUDA runtime, and as a program that loads its
kernels, over the driver. Tests compare kernel, launch configuration and argument bytes of both.
"""

import ctypes
import re
import zlib

import hostcuda
import kflib
import toolkit

HEADER = kflib.ROOT / "tests/support/gpu/recorded_launches.h"
PARAMETERS, BYTES, LAUNCHES = 24, 640, 24


class Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char * 256),
        ("act", ctypes.c_int),
        ("from_state", ctypes.c_int),
        *((n, ctypes.c_uint * 3) for n in ("grid", "block")),
        *((n, ctypes.c_uint) for n in ("shared", "cluster", "early", "raised")),
        ("stream", ctypes.c_void_p),
        ("parameters", ctypes.c_int),
        ("sizes", ctypes.c_int * PARAMETERS),
        ("bytes", ctypes.c_ubyte * BYTES * PARAMETERS),
    ]

    def name(self):
        """Returns the kernel's name with the numbers of activation and state in place of their
        parameters."""
        kernel, arguments = self.kernel.decode().split("<")
        arguments = re.sub(r"\bkfi_act\b", str(self.act), arguments)
        return f"{kernel}<" + re.sub(r"\bkfi_from_state\b", str(self.from_state), arguments)

    def arguments(self):
        return [bytes(self.bytes[i])[: self.sizes[i]] for i in range(self.parameters)]

    def shape(self):
        return [
            tuple(self.grid),
            tuple(self.block),
            self.shared,
            self.cluster,
            self.early,
            self.raised,
            self.stream,
        ]


class Record(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int),
        ("of", Launch * LAUNCHES),
        ("raised", ctypes.c_uint),
        *(
            (n, ctypes.c_int)
            for n in (
                "architecture",
                "image",
                "loaded",
                "launched",
                "threads",
                "current",
                "own",
                "capturing",
            )
        ),
    ]


def build(functions, build_dir, architecture=None, flags=()):
    """Builds the launchers and returns a kflib.Lib. architecture: as for nvcc; without it the
    launchers use the driver. `log` (`seen` for refusals.py) records the launches. Padding of
    structs is 0."""
    own = [
        f"-D__CUDA_ARCH_LIST__={architecture}",
        "-D__launch_bounds__(...)=",
        "-DKFI_DEVICE=static inline __attribute__((unused))",
    ]
    flags = (
        *flags,
        "-O0",
        "-std=c++17",
        "-x",
        "c++",
        "-ftrivial-auto-var-init=zero",
        *(own if architecture else ["-DKFT_DRIVER"]),
        "-isystem",
        str(toolkit.include()),
        "-include",
        str(HEADER),
        f"-DKFT_RUNTIME={zlib.crc32(HEADER.read_bytes())}",
    )
    lib = kflib.build("cuda", functions, build_dir, flags, compiler="g++", link=hostcuda.OWN)
    lib.log = lib.seen = Record.in_dll(lib.dll, "kft_log")
    return lib
