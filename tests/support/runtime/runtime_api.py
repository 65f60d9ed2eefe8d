# SPDX-License-Identifier: Apache-2.0
"""Loads the runtime (kf/runtime.h) through ctypes: compiles its definitions, declares its
functions' types, and views its tensors as NumPy arrays."""

import ctypes
import re
import subprocess

import kflib
import numpy as np

HEADER = kflib.ROOT / "include/kf/runtime.h"
IMPLEMENTATION = "#define KF_RUNTIME_IMPLEMENTATION\n#include <kf/runtime.h>\n"
ABI = int(re.search(r"KF_RUNTIME_ABI (\d+)", HEADER.read_text())[1])
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Werror".split()
MAX_DIMS = 8
CODES = {
    m[1]: int(m[2])
    for m in re.finditer(r"KF_(\w+) = (\d+)", (kflib.ROOT / "include/kf/core/result.h").read_text())
}
F32, F16, BF16, F64, I32, I64, U8 = range(7)
# bf16 is stored as its bits.
NUMPY = {
    F32: np.float32,
    F16: np.float16,
    BF16: np.uint16,
    F64: np.float64,
    I32: np.int32,
    I64: np.int64,
    U8: np.uint8,
}
CPU, CUDA = 1, 2
INTEGERS = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "kf_result_t": ctypes.c_int,
    "kf_activation_t": ctypes.c_int32,
}


class Description(ctypes.Structure):
    _fields_ = [
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        *((n, ctypes.c_int32) for n in ("ndim", "dtype", "device_type", "device_id")),
    ]


class Memory(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("owns_memory", ctypes.c_int32),
    ]


class StreamConfig(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("priority", "flags", "device_id")]


class Stats(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in ("in_use", "reserved", "peak", "hits")]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 256),
        ("memory", ctypes.c_size_t),
        *(
            (n, ctypes.c_int32)
            for n in ("multiprocessors", "major", "minor", "device_type", "device_id")
        ),
    ]


def prototypes():
    """Returns {name: (result type, [parameter types])} of the functions that the header declares,
    as C text."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    text = re.sub(r"\{\s*return [^{}]*\}", "", text)  # bodies of inline functions
    found = {}
    for result, name, parameters in re.findall(
        r"^([\w ]+?[ *\n]+)(kf_\w+)\(([^()]*)\);", text, re.M
    ):
        found[name] = (
            result.strip(),
            []
            if parameters == "void"
            else [re.sub(r"\w+$", "", p).strip() for p in parameters.split(",")],
        )
    return found


def ctype(word):
    return (
        ctypes.c_char_p
        if word == "const char *"
        else ctypes.c_void_p
        if "*" in word
        else INTEGERS[word]
    )


def types():
    return set(re.findall(r"\b(kf_\w+_t);", HEADER.read_text()))


def compile_library(
    folder,
    *flags,
    compiler="gcc -std=c11",
    text=IMPLEMENTATION,
    name="runtime.c",
    link=(),
    warnings=WARNINGS,
):
    (folder / name).write_text(text)
    library = folder / f"lib{name.split('.')[0]}.so"
    words = [
        "-O1",
        *warnings,
        "-fPIC",
        "-shared",
        *flags,
        f"-I{kflib.ROOT / 'include'}",
        folder / name,
        "-o",
        library,
    ]
    subprocess.run([*compiler.split(), *words, *link, "-lm"], check=True)
    return library


class Api:
    """The library's functions without their prefix. `fails` checks an expected error."""

    def __init__(self, path):
        self.dll = ctypes.CDLL(str(path))
        for name, (result, parameters) in prototypes().items():
            fn = getattr(self.dll, name)
            fn.restype, fn.argtypes = ctype(result), [ctype(p) for p in parameters]
            setattr(self, name.removeprefix("kf_"), fn)

    @property
    def detail(self):
        return self.runtime_error_detail().decode()

    def context(self, device=-1):
        found = self.context_create_abi(device, ABI)
        assert found, self.detail
        return found

    def describe(self, shape, dtype=F32, strides=None, ndim=None, device=(0, 0)):
        """Returns a tensor description; it keeps the arrays that it points to."""
        numbers = [
            None if n is None else (ctypes.c_int64 * max(len(n), 1))(*n) for n in (shape, strides)
        ]
        d = Description(
            numbers[0], numbers[1], len(shape) if ndim is None else ndim, dtype, *device
        )
        d.kept = numbers
        return d

    def create(self, ctx, shape, dtype=F32, strides=None):
        found = self.tensor_create(ctx, ctypes.byref(self.describe(shape, dtype, strides)))
        assert found, self.detail
        return found

    def over(self, ctx, array, dtype):
        """Creates a tensor over an array's memory, with its shape and strides; the array must
        outlive it."""
        strides = [s // array.itemsize for s in array.strides]
        memory = Memory(array.ctypes.data, 0, 0)
        found = self.tensor_create_from_memory(
            ctx, ctypes.byref(memory), ctypes.byref(self.describe(array.shape, dtype, strides))
        )
        assert found, self.detail
        return found

    def layout(self, tensor):
        n = self.tensor_ndim(tensor)
        return tuple(self.tensor_size(tensor, i) for i in range(n)), tuple(
            self.tensor_stride(tensor, i) for i in range(n)
        )

    def array(self, tensor):
        """Returns a NumPy view of a CPU tensor."""
        shape, strides = self.layout(tensor)
        dtype = np.dtype(NUMPY[self.tensor_dtype(tensor)])
        if 0 in shape:
            return np.zeros(shape, dtype)
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(self.tensor_data(tensor))
        return np.lib.stride_tricks.as_strided(
            np.frombuffer(memory, dtype), shape, [s * dtype.itemsize for s in strides]
        )

    def destroy(self, *objects):
        for kind, handle in objects:
            assert getattr(self, f"{kind}_destroy")(handle) == 0, self.detail

    def fails(self, result, code, *words):
        """Checks that a call failed with `code` and a message with `words`. result: the call's
        error code, or its NULL pointer."""
        assert result in (None, CODES[code]), (result, self.detail)
        for word in words:
            assert word in self.detail, self.detail
        return True
