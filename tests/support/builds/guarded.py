# SPDX-License-Identifier: Apache-2.0
"""Runs C functions with guard pages: each tensor touches an inaccessible page at its start or its
end, and inputs are read-only.

The system kills a call that reads or writes outside, so it runs in a forked child.
"""

import ctypes
import faulthandler
import mmap
import os

import checks
import numpy as np
from kfgen.model import limits

PAGE = mmap.PAGESIZE
PAGES = 64  # initial size of a slot
NONE, READ, WRITE = 0, 1, 2

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def protect(address, size, how):
    if libc.mprotect(address, size, how):
        raise OSError(ctypes.get_errno(), "mprotect")


class Slot:
    """Memory for one tensor, with an inaccessible page on either side."""

    def __init__(self):
        self.reserve(PAGES * PAGE)

    def reserve(self, size):
        """Replaces the memory by whole pages of at least `size` bytes."""
        self.size = -(-size // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.size + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.begin, self.end = start + PAGE, start + PAGE + self.size
        protect(start, PAGE, NONE)
        protect(self.end, PAGE, NONE)

    def place(self, size, at_end, align=1):
        """Returns an address for `size` bytes at the end of the memory (rounded down to `align`),
        or at its beginning."""
        if size > self.size:
            self.reserve(size)
        protect(self.begin, self.size, READ | WRITE)
        return self.end - -(-size // align) * align if at_end else self.begin

    def freeze(self):
        protect(self.begin, self.size, READ)


def view(address, size):
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class Guarded:
    def __init__(self):
        # Tensors, the random state, and the workspace.
        self.slots = [Slot() for _ in range(limits.TENSORS + 2)]

    def run(self, lib, f, call, at_end):
        """Makes one call and returns {output: array}."""
        slots, given, where = iter(self.slots), call.given(0), {}
        for name, a in call.tensors.items():
            if a["unread"]:
                continue
            slot, array = next(slots), call.data[name]
            where[name] = given[name] = slot.place(array.nbytes, at_end)
            view(given[name], array.nbytes)[:] = array.reshape(-1).view(np.uint8)
            if a["role"] == "in":
                slot.freeze()
        if f["state"]:
            state = next(slots)
            given |= checks.state_at(state.place(16, at_end))
            view(given["seed"], 16)[:] = call.image[call.state : call.state + 16]
            state.freeze()
        if call.workspace:
            given["workspace"] = next(slots).place(call.workspace, at_end, 256)
        if lib.call(f, given) != 0:
            raise checks.Failure(f"{call.where}: refused ({lib.detail})")
        return {
            name: view(where[name], call.data[name].nbytes)
            .copy()
            .view(call.data[name].dtype)
            .reshape(call.data[name].shape)
            for name, a in call.tensors.items()
            if a["role"] != "in"
        }


def in_child(work):
    """Runs work(note) in a forked child. The child calls note(text) before each step; if it is
    killed, the last note is reported."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            faulthandler.disable()  # the parent reports the signal
            work(lambda text: os.write(writer, f"{text}\n".encode()))
            code = 0
        except BaseException as e:  # noqa: BLE001 (the parent reports it)
            os.write(writer, f"{type(e).__name__}: {e}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        notes = pipe.read().splitlines()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        raise checks.Failure(
            f"killed by signal {-status} in {notes[-1] if notes else 'its beginning'}"
        )
    if status:
        raise checks.Failure(notes[-1])
    return notes
