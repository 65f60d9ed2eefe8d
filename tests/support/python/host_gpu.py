# SPDX-License-Identifier: Apache-2.0
"""A GPU library in host memory, for arrays that claim to be on a GPU."""

import ctypes
import pathlib

import numpy as np


class Host:
    """A fake GPU library, which calls the CPU's functions and records requests."""

    path = pathlib.Path("the host")  # kf.info() reports it on a GPU
    built = None  # it has no kernels of kf.build_launchers

    def __init__(self, library):
        self.cpu, self.log, self.blocks = library, [], {}
        self.find = library.find

    def call(self, function, tensors, sizes, strides, scalars, rng, space, device, stream):
        self.log.append(("call", device, stream))
        held = space(4096) if space else None
        assert held is None or held[1] % 16 == 0
        self.cpu.call(function, tensors, sizes, strides, scalars, rng, space is not None)

    def allocate(self, device, size, stream):
        block = np.full(size + 256, 0x7F, np.uint8)
        at = -(-block.ctypes.data // 256) * 256
        self.blocks[at] = block
        return at

    def free(self, device, memory, stream):
        self.log.append(("free", device, stream))
        del self.blocks[memory]

    def upload(self, device, to, address, size, stream):
        ctypes.memmove(to, address, size)

    def wait(self, device, stream):
        self.log.append(("wait", device, stream))

    def device_of(self, memory):
        return 0
