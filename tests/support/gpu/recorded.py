# SPDX-License-Identifier: Apache-2.0
"""Launchers compiled by g++ alone, in two ways: as nvcc compiles their host code, over CUDA's runtime, and as a program does that loads
its kernels, over the driver. In both every launch is written down with its kernel and the bytes of its arguments, and nothing runs."""

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
        """The kernel with the numbers of an activation and a state in the place of their words."""
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
    """The launchers, as kflib.build gives them. architecture: what nvcc would be compiling for; without one they
    are those over the driver. `log` (`seen`, to refusals.py) is what they launched. What the compiler leaves between the members of a struct is 0."""
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
