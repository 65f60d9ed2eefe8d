# SPDX-License-Identifier: Apache-2.0
"""A valid call of one function, to change one argument of. A refused call must return a code and a
message, write nothing and launch nothing. An accepted call may write its outputs alone.

CUDA launchers run over hostcuda.py, whose runtime launches nothing, so their calls never write.
Used by tests/errors and tests/fuzz.
"""

import math

import cases
import checks
import hostcuda
import kflib
import numpy as np
import pytest
import selection
import toolkit

BUILD = kflib.ROOT / "build/tests/errors"
FUNCTIONS = selection.gate()
EXTENTS = {
    "flat": (67,),
    "rows": (5, 13),
    "planes": (2, 3, 11),
    "heads": (2, 2, 3, 5),
    "groups": (2, 3, 2, 4, 5),
}
# A short axis is split and needs a workspace.
PARTS = (
    "-DKFI_REDUCE_PART=16",
    "-DKFI_REDUCE_THREADS=32",
    "-DKFI_REDUCE_LEAST=1",
    "-DKFI_REDUCE_WHOLE=1",
)
CODES = range(15)
(
    SUCCESS,
    NULL_POINTER,
    INVALID_SIZE,
    INVALID_VALUE,
    OVERLAP,
    WORKSPACE,
    UNSUPPORTED,
    NO_KERNEL_IMAGE,
    CUDA,
    OUT_OF_MEMORY,
    MISALIGNED,
    DTYPE,
    SHAPE,
    DEVICE,
    HANDLE,
) = CODES
GAP = 4096  # larger than any tensor here, so a tensor moved onto another touches no third one
POISON = 0xC5
MOST = 2**58  # elements of a tensor
PROBABILITY, SEED, OFFSET = 0.25, 1, 2


def library(backend):
    """Builds the gate's launchers of one backend, cpu or cuda, without optimisation, because
    compiling takes most of the time."""
    if backend == "cpu":
        return kflib.build("cpu", FUNCTIONS, BUILD, ("-O0", *PARTS))
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    return hostcuda.build(kflib.on("cuda", FUNCTIONS), BUILD, flags=PARTS)


def extents(f):
    return (1, 40, 2) if f["family"] == "reduction" else cases.of_form(f, EXTENTS)


def shape_fields(f):
    """Fields of the function's shape struct; none if sizes are arguments."""
    return next((a["fields"] for a in f["arguments"] if a["role"] == "shape"), [])


def tensors_of(f):
    return [a for a in f["arguments"] if "kind" in a]


def unread(a):
    """True if a call with all its tensors does not read this one: it reads the activation's result
    instead."""
    return a["unread"] or a["null"] == "result"


def outputs(f):
    return [a["name"] for a in tensors_of(f) if a["role"] != "in"]


def sums(f):
    return [a["name"] for a in tensors_of(f) if a["role"] == "sum"]


def item(a):
    return kflib.SIZE[a["dtype"]]


COUNTS = {}  # cache: the function is called a million times


def count(f, a, sizes):
    key = tuple(f["sizes"]), tuple(a["shape"]), *sizes
    if key not in COUNTS:
        COUNTS[key] = math.prod(checks.shape_of(f, sizes, a))
    return COUNTS[key]


class Call:
    """A valid call of f in its own arena. `set` changes arguments, `refuses` and `accepts` make the
    call."""

    def __init__(self, lib, f, sizes=None):
        self.lib, self.f, self.sizes = lib, f, sizes or extents(f)
        self.name = f["cpu_name" if lib.backend == "cpu" else "name"]
        self.at, self.bytes, end = {}, {}, GAP
        for a in tensors_of(f):
            self.at[a["name"]], self.bytes[a["name"]] = end, count(f, a, self.sizes) * item(a)
            assert self.bytes[a["name"]] <= GAP, (self.name, a["name"], self.bytes[a["name"]])
            end += -(-self.bytes[a["name"]] // 64) * 64 + GAP
        self.workspace_bytes = lib.workspace_bytes(f, list(self.sizes))
        end = -(-end // 256) * 256
        self.at[":workspace"], self.bytes[":workspace"] = end, self.workspace_bytes
        end += -(-self.workspace_bytes // 64) * 64 + GAP
        self.at[":state"], self.bytes[":state"] = end, 16
        # 0x3C3C... is a small positive number in every float type.
        buffer = np.full(end + 256 + GAP, 0x3C, np.uint8)
        skip = -buffer.ctypes.data % 256
        self.memory = buffer[skip:]
        self.base = self.memory.ctypes.data
        self.memory[self.at[":state"] : self.at[":state"] + 16] = 0
        valid = getattr(cases.own(f), "VALID", {})
        for a in tensors_of(f):
            if a["role"] != "in":
                self.span(a["name"])[:] = POISON
            elif a["kind"] in valid:
                self.span(a["name"]).view(a["dtype"].replace("i", "int"))[:] = valid[a["kind"]]
        self.values = (
            dict(zip(f["sizes"], self.sizes))
            | f["scalars"]
            | {
                "workspace": self.address(":workspace") if self.workspace_bytes else None,
                "workspace_bytes": self.workspace_bytes,
                "p": PROBABILITY,
                **(
                    checks.state_at(self.address(":state"))
                    if f["state"]
                    else {"seed": SEED, "offset": OFFSET}
                ),
            }
        )
        for a in tensors_of(f):
            self.values[a["name"]] = self.address(a["name"])

    def set(self, **changes):
        self.values |= changes
        return self

    def set_all(self, names, value):
        return self.set(**dict.fromkeys(names, value))

    def address(self, name):
        return self.base + self.at[name]

    def span(self, name):
        return self.memory[self.at[name] : self.at[name] + self.bytes[name]]

    def _launches(self):
        return self.lib.seen.count if self.lib.backend == "cuda" else 0

    def _call(self):
        before, launches = self.memory.copy(), self._launches()
        code = self.lib.call(self.f, self.values)
        return code, np.flatnonzero(before != self.memory), self._launches() - launches

    def refuses(self, code, argument, *words):
        """Makes the call and checks its refusal. The message must be `function: argument <value>,
        expected ...` and contain `words`."""
        got, changed, launches = self._call()
        detail = self.lib.detail
        assert got == code, (
            f"{self.name} returned {got}, expected {code} for {argument} {words} "
            f"({detail if got else 'success'})"
        )
        assert detail.startswith(f"{self.name}: {argument} "), (
            f"{self.name}: the message is {detail!r}, expected one about {argument}"
        )
        missing = [w for w in words if str(w) not in detail]
        assert not missing, f"{self.name}: {missing} not in the message {detail!r}"
        assert "expected" in detail and len(detail) < 511, f"{self.name}: the message is {detail!r}"
        assert not changed.size, (
            f"{self.name} refused {argument} {words}, and wrote at byte {changed[0]} of {self.at}"
        )
        assert launches == 0, (
            f"{self.name} refused {argument} {words}, and launched {launches} kernels"
        )

    def accepts(self, what, writes=()):
        """Makes the call and checks its success. writes: names of the outputs that may change;
        without any, no kernel may be launched."""
        code, changed, launches = self._call()
        assert code == SUCCESS, f"{self.name} refused {what}: {code} ({self.lib.detail})"
        allowed = np.zeros(self.memory.size, bool)
        for name in (*writes, ":workspace") if self.lib.backend == "cpu" else ():
            allowed[self.at[name] : self.at[name] + self.bytes[name]] = True
        wrong = changed[~allowed[changed]]
        assert not wrong.size, f"{self.name} with {what} wrote at byte {wrong[0]} of {self.at}"
        if self.lib.backend == "cuda" and writes:
            assert 1 <= launches <= cases.most_launches(self.f), (
                f"{self.name} with {what}: {launches} launches"
            )
