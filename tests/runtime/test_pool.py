# SPDX-License-Identifier: Apache-2.0
"""The pool under threads, DLPack with NumPy, and the definitions in every compiler."""

import ctypes
import re
import subprocess
import sys

import cases
import kflib
import numpy as np
import pytest
import runtime_api
import toolkit
from runtime_api import BF16, NUMPY, WARNINGS

INCLUDE = f"-I{kflib.ROOT / 'include'}"
SOURCE = kflib.ROOT / "tests/support/runtime/pool_threads.c"


@pytest.mark.parametrize(
    ("flags", "allocations"),
    [
        ("-O2", 100000 if cases.LEVEL > 1 else 20000),
        ("-O1 -g -fsanitize=thread", 1500),
        ("-O1 -g -fsanitize=address,undefined", 3000),
    ],
)
def test_threads(tmp_path, flags, allocations):
    program = tmp_path / "threads"
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            *flags.split(),
            *WARNINGS,
            INCLUDE,
            SOURCE,
            "-o",
            program,
            "-lm",
            "-pthread",
        ],
        check=True,
    )
    done = subprocess.run([program, str(allocations)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr[-3000:]
    used, reserved, peak, hits = map(int, re.findall(r"\d+", done.stdout))
    assert used == 0 and reserved <= 1.25 * peak, done.stdout
    assert hits > 0.7 * 8 * allocations, done.stdout


class Managed(ctypes.Structure):
    """DLPack's DLManagedTensorVersioned."""

    _fields_ = [
        *((n, ctypes.c_uint32) for n in ("major", "minor")),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        *((n, ctypes.c_int32) for n in ("device_type", "device_id", "ndim")),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


# A separate handle: every module may set the function types of ctypes.pythonapi.
python = ctypes.PyDLL(None)
python.PyCapsule_GetPointer.restype, python.PyCapsule_GetPointer.argtypes = (
    ctypes.c_void_p,
    [ctypes.py_object, ctypes.c_char_p],
)
python.PyCapsule_New.restype, python.PyCapsule_New.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
VERSIONED = b"dltensor_versioned"


def lent_by_numpy(array):
    """Returns the struct that NumPy lends; its taker must call the deleter."""
    capsule = array.__dlpack__(max_version=(1, 0))
    found = python.PyCapsule_GetPointer(capsule, VERSIONED)
    python.PyCapsule_SetName(capsule, b"used_dltensor_versioned")
    return found


class Lent:
    """An object from which NumPy's from_dlpack takes a capsule."""

    def __init__(self, managed):
        self.managed = managed

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **how):
        return python.PyCapsule_New(self.managed, VERSIONED, None)


@pytest.mark.parametrize("dtype", [d for d in NUMPY if d != BF16])
def test_there_and_back(api, ctx, dtype):
    """Both share the memory, and NumPy's array lives until the last reference is gone."""
    x = np.arange(24).astype(NUMPY[dtype]).reshape(2, 3, 4).transpose(2, 0, 1)
    before = sys.getrefcount(x)
    t = api.tensor_from_dlpack(ctx, lent_by_numpy(x))
    assert (
        t
        and api.tensor_data(t) == x.ctypes.data
        and api.layout(t)[0] == x.shape
        and api.tensor_dtype(t) == dtype
    )
    view = api.tensor_slice(t, 0, 1, 4, 2)
    api.destroy(("tensor", t))
    back = np.from_dlpack(Lent(api.tensor_to_dlpack(view)))
    api.destroy(("tensor", view))
    assert np.array_equal(back, x[1:4:2]) and back.dtype == x.dtype and sys.getrefcount(x) > before
    del back
    assert sys.getrefcount(x) == before


def test_read_only_memory(api, ctx):
    x = np.arange(6, dtype=np.float32)
    x.flags.writeable = False
    t = api.tensor_from_dlpack(ctx, lent_by_numpy(x))
    y = api.create(ctx, (6,))
    assert api.tensor_copy(y, t, None) == 0 and np.array_equal(api.array(y), x)
    assert api.fails(
        api.tensor_copy(t, y, None), "ERROR_INVALID_VALUE", "to is read-only memory of DLPack"
    )
    assert not np.from_dlpack(Lent(api.tensor_to_dlpack(t))).flags.writeable
    row = api.tensor_broadcast_to(
        y, (ctypes.c_int64 * 2)(3, 6), 2
    )  # kf does not write to it either
    for tensor, may_write in ((row, False), (y, True)):
        assert np.from_dlpack(Lent(api.tensor_to_dlpack(tensor))).flags.writeable == may_write
    api.destroy(("tensor", t), ("tensor", y), ("tensor", row))


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"major": 2}, "ERROR_UNSUPPORTED", ["is of DLPack 2.0, expected 1.x"]),
        ({"lanes": 4}, "ERROR_DTYPE", ["code 2 with 32 bits and 4 lanes"]),
        ({"code": 5}, "ERROR_DTYPE", ["code 5"]),
        ({"device_type": 2}, "ERROR_DEVICE", ["of type 2"]),
        ({"ndim": 9}, "ERROR_INVALID_SIZE", ["ndim is 9"]),
        ({"data": None}, "ERROR_NULL_POINTER", ["data is NULL, expected 6 elements"]),
        ({"byte_offset": 2}, "ERROR_MISALIGNED", ["a multiple of 4"]),
        (
            {"strides": "negative"},
            "ERROR_INVALID_VALUE",
            ["strides is [-1], expected no negative number"],
        ),
    ],
)
def test_wrong_structs(api, ctx, change, code, words):
    """Refused structs stay the caller's: the deleter is not called."""
    x, shape, negative = (
        np.arange(6, dtype=np.float32),
        (ctypes.c_int64 * 9)(6),
        (ctypes.c_int64 * 1)(-1),
    )
    m = Managed(
        1, 0, None, 1, 0, x.ctypes.data, 1, 0, 1, 2, 32, 1, ctypes.addressof(shape), None, 0
    )
    for name, number in change.items():
        setattr(m, name, ctypes.addressof(negative) if number == "negative" else number)
    assert api.fails(
        api.tensor_from_dlpack(ctx, ctypes.addressof(m)), code, "kf_tensor_from_dlpack: ", *words
    )
    assert api.fails(api.tensor_from_dlpack(ctx, None), "ERROR_NULL_POINTER", "managed is NULL")
    m = Managed(
        1, 0, None, None, 0, x.ctypes.data, 1, 0, 1, 6, 8, 1, ctypes.addressof(shape), None, 0
    )
    t = api.tensor_from_dlpack(ctx, ctypes.addressof(m))  # bool, and without a deleter
    assert api.tensor_dtype(t) == runtime_api.U8
    api.destroy(("tensor", t))


@pytest.mark.parametrize(
    "compiler",
    ["gcc -std=c11", "gcc -O3", "g++ -std=c++17", "clang -std=c11 -O2", "clang++ -std=c++20"],
)
def test_the_definitions_compile_without_a_word(tmp_path, compiler):
    """Compiles without warnings, beside a file with declarations only: in C with definitions in
    C++, and in C++ with definitions in C.
    """
    other = "gcc -std=c11" if "++" in compiler else "g++ -std=c++17"
    (tmp_path / "definitions.txt").write_text(runtime_api.IMPLEMENTATION)
    calls = "\n".join(
        f"    p[{i}] = (void *){name};" for i, name in enumerate(runtime_api.prototypes())
    )
    body = f"int main(void)\n{{\n{calls}\n    return kf_context_create(-7) != NULL;\n}}\n"
    (tmp_path / "user.txt").write_text(f"#include <kf/runtime.h>\nvoid *p[99];\n{body}")
    objects = []
    for name, words in (("definitions", compiler), ("user", other)):
        language = "c++" if "++" in words else "c"
        objects.append(tmp_path / f"{name}.o")
        extra = [] if language == "c++" or name == "definitions" else ["-Wno-pedantic"]
        subprocess.run(
            [
                *words.split(),
                *WARNINGS,
                *extra,
                INCLUDE,
                "-x",
                language,
                "-c",
                tmp_path / f"{name}.txt",
                "-o",
                objects[-1],
            ],
            check=True,
        )
    subprocess.run(["g++", *objects, "-o", tmp_path / "program", "-lm"], check=True)
    assert subprocess.run([tmp_path / "program"]).returncode == 0


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_a_cu_file_has_both_devices(tmp_path):
    (tmp_path / "runtime.cu").write_text(runtime_api.IMPLEMENTATION)
    words = [
        "-std=c++17",
        "-arch=sm_90",
        "-Xcompiler=-Wall,-Wextra,-Wshadow",
        "-Werror",
        "all-warnings",
        INCLUDE,
    ]
    subprocess.run(
        ["nvcc", *words, "-c", tmp_path / "runtime.cu", "-o", tmp_path / "runtime.o"], check=True
    )
    names = subprocess.run(
        ["nm", "-u", tmp_path / "runtime.o"], capture_output=True, text=True, check=True
    ).stdout
    assert {"cudaMallocFromPoolAsync", "cudaMemcpy2DAsync", "cudaStreamWaitEvent"} <= set(
        names.split()
    )


def test_the_same_struct_sizes(tmp_path):
    """Sizes of the ctypes mirrors; later versions may only append to the structs."""
    sizes = {
        "kf_tensor_desc_t": ctypes.sizeof(runtime_api.Description),
        "kf_memory_desc_t": ctypes.sizeof(runtime_api.Memory),
        "kf_stream_config_t": ctypes.sizeof(runtime_api.StreamConfig),
        "kf_pool_stats_t": ctypes.sizeof(runtime_api.Stats),
        "kf_device_info_t": ctypes.sizeof(runtime_api.DeviceInfo),
    }
    assert sizes == {
        "kf_tensor_desc_t": 32,
        "kf_memory_desc_t": 24,
        "kf_stream_config_t": 12,
        "kf_pool_stats_t": 32,
        "kf_device_info_t": 288,
    }
    checks = "\n".join(
        f'_Static_assert(sizeof({name}) == {size}, "{name}");' for name, size in sizes.items()
    )
    (tmp_path / "sizes.c").write_text(f"#include <kf/runtime.h>\n{checks}\n")
    subprocess.run(
        ["gcc", "-std=c11", INCLUDE, "-c", tmp_path / "sizes.c", "-o", tmp_path / "sizes.o"],
        check=True,
    )


def test_the_page_shows_the_examples():
    """Each block of the page is part of an example, or of a program of the tests."""
    compiled = [f"examples/{name}.c" for name in ("08_tensors", "11_layer", "16_multi_head")]
    compiled.append("tests/runtime/test_each.py")
    page, *examples = ((kflib.ROOT / name).read_text() for name in ("docs/runtime.md", *compiled))
    shown = re.findall(r"```c\n(.*?)```", page, re.S)
    assert (
        len(shown) == 7
        and shown[0] == runtime_api.IMPLEMENTATION
        and all(any(text in e for e in examples) for text in shown[1:])
    )
