# SPDX-License-Identifier: Apache-2.0
"""kf.ops over GPU arrays: CUDA array interface, DLPack and CuPy, simulated in host memory.

The CPU's functions compute; the fake library records streams, devices and memory.
tests/cuda/test_python.py uses CuPy itself.
"""

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import types

import host_gpu
import kflib
import kfpython
import numpy as np
import pytest

RNG = np.random.default_rng(0)


@pytest.fixture
def gpu(kf, library, monkeypatch):
    from kernel_fusion import _gpu

    # The fake inherits what it does not define.
    host = type("OfHost", (host_gpu.Host, _gpu.Gpu), {})(library)
    monkeypatch.setattr(_gpu, "library", lambda: host)
    return host


class Interface:
    """An array with the CUDA array interface, like Numba's."""

    def __init__(self, array, stream=None, **more):
        self.array, self.told = array, {"stream": stream, **more}

    @property
    def __cuda_array_interface__(self):
        a = self.array
        return {
            "shape": a.shape,
            "typestr": a.dtype.str,
            "data": (a.ctypes.data, not a.flags.writeable),
            "version": 3,
            "strides": None if a.flags.c_contiguous else a.strides,
            **self.told,
        }


class Capsule:
    """An array with DLPack only."""

    def __init__(self, array, device=0):
        self.array, self.device, self.asked = array, device, []

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream):
        from kernel_fusion import _dlpack

        self.asked.append(stream)
        a = self.array
        return _dlpack.give(
            self,
            a.ctypes.data,
            self.device,
            a.shape,
            [s // a.itemsize for s in a.strides],
            a.dtype.name,
        )


def cupy():
    """A fake CuPy over host memory."""
    made = types.ModuleType("cupy")

    class ndarray(Interface):
        dtype = property(lambda self: self.array.dtype)

        def __dlpack_device__(self):
            return 2, 0

    ndarray.__module__ = "cupy"
    made.ndarray = ndarray
    made.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype), stream.ptr or 1)
    made.array = lambda x, order: ndarray(np.array(x.array, order=order), stream.ptr or 1)
    stream = types.SimpleNamespace(ptr=0)
    made.cuda = types.SimpleNamespace(
        Device=lambda device: contextlib.nullcontext(), get_current_stream=lambda: stream
    )
    return made


@pytest.fixture
def of_cupy(monkeypatch):
    made = cupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def host(x):
    """Copies an array's elements to NumPy."""
    if hasattr(x, "array"):
        return x.array
    dtype = np.dtype(x.dtype) if x.dtype != "bfloat16" else np.dtype(np.uint16)
    size = int(np.prod(x.shape)) * dtype.itemsize
    return (
        np.frombuffer((ctypes.c_uint8 * size).from_address(x.address), dtype)
        .reshape(x.shape)
        .copy()
    )


def draw(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


X, ROW, WIDE, LABEL = draw(4, 6), draw(6), draw(4, 9), RNG.integers(0, 6, 4)
CALLS = [
    ("bias_gelu", (X, ROW), {}),
    ("layer_norm_relu", (WIDE[:, 2:8], ROW, ROW), {}),
    ("sum", (X,), {"dim": 0}),
    ("sum", (X,), {"dim": None}),
    ("argmax", (X,), {}),
    ("cross_entropy", (X, LABEL), {}),
    ("relu_glu", (X,), {}),
    ("gelu_dropout", (X,), {"p": 0.5, "rng": (3, 4)}),
    ("layer_norm", (np.broadcast_to(ROW, (4, 6)),), {}),
    ("batch_norm_train", (X,), {}),
    ("cast", (X,), {"dtype": "int32"}),
    ("linear_gelu", (X, draw(5, 6)), {}),
    ("relu", (draw(0, 3),), {}),
    ("relu", (X.astype(np.float16),), {}),
    ("relu", (X.astype(np.float64),), {}),
]


@pytest.mark.parametrize("kind", ["interface", "DLPack", "CuPy"])
def test_values(kf, gpu, of_cupy, kind):
    """Results equal NumPy's to the bit; CuPy arrays give CuPy arrays."""
    make = {"interface": Interface, "DLPack": Capsule, "CuPy": of_cupy.ndarray}[kind]
    for name, arrays, more in CALLS:
        want = getattr(kf.ops, name)(*arrays, **more)
        got = getattr(kf.ops, name)(*map(make, arrays), **more)
        for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            assert isinstance(g, of_cupy.ndarray) == (kind == "CuPy")
            assert (
                host(g).shape == w.shape and host(g).dtype == w.dtype and np.array_equal(host(g), w)
            ), name
    assert len(gpu.log) >= len(CALLS)


def test_bfloat16(kf, gpu):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = X.astype(bfloat16)
    got = kf.ops.gelu(Capsule(x))
    assert np.array_equal(host(got), kf.ops.gelu(x).view(np.uint16)) and got.dtype == "bfloat16"
    assert not hasattr(got, "__cuda_array_interface__") and "float32" in str(
        kf.ops.cast(got, "float32")
    )


def test_places(kf, gpu, of_cupy):
    """out=, and inputs that are updated in place."""
    out, mean, var = (Interface(np.zeros(s, np.float32)) for s in ((4, 6), 6, 6))
    assert kf.ops.relu(Interface(X), out=out) is out and np.array_equal(out.array, np.maximum(X, 0))
    kf.ops.batch_norm_train(Interface(X), mean, var, momentum=1.0)
    assert np.allclose(mean.array, X.mean(0), atol=1e-6) and np.allclose(
        var.array, X.var(0, ddof=1), atol=1e-5
    )
    state = Interface(np.array([3, 4]))
    assert np.array_equal(
        host(kf.ops.gelu_dropout(Interface(X), rng=state)), kf.ops.gelu_dropout(X, rng=(3, 4))
    )


def test_what_does_not_lie_so_is_copied(kf, gpu, of_cupy):
    before = kf.info()["copies"].get("layer_norm", 0)
    got = kf.ops.layer_norm(of_cupy.ndarray(X.T))
    assert (
        np.array_equal(got.array, kf.ops.layer_norm(np.ascontiguousarray(X.T)))
        and kf.info()["copies"]["layer_norm"] == before + 1
    )
    with pytest.raises(
        ValueError,
        match="kf.layer_norm: x has strides that the launcher does not support, .*: make it "
        "contiguous",
    ):
        kf.ops.layer_norm(Interface(X.T))


def test_streams(kf, gpu, of_cupy):
    """A call runs on the first array's stream and waits for the others; memory of a foreign stream
    is freed after synchronisation.
    """
    gc.collect()  # removes arrays of other tests
    gpu.log.clear()
    kf.ops.relu(Interface(X))
    kf.ops.relu(Interface(X, 7))
    row = Capsule(ROW)
    kf.ops.bias_relu(Interface(X, 7), row)
    kf.ops.bias_relu(Interface(X, 7), Interface(ROW, 9))
    gc.collect()
    assert row.asked == [7]
    assert gpu.log == [
        ("call", 0, 1),
        ("free", 0, 1),
        ("call", 0, 7),
        ("free", 0, None),
        ("call", 0, 7),
        ("free", 0, None),
        ("wait", 0, 9),
        ("call", 0, 7),
        ("free", 0, None),
    ]
    of_cupy.cuda.get_current_stream().ptr = 5
    kf.ops.relu(of_cupy.ndarray(X, 5))
    kf.ops.batch_norm_train(Interface(X, 7))  # its workspace is freed after it
    gc.collect()
    assert gpu.log[9] == ("call", 0, 5) and gpu.log[10:] == [
        ("call", 0, 7),
        ("free", 0, 7),
        ("free", 0, None),
    ]
    kf.ops.gelu_dropout(Interface(X, 7), rng=(3, 4))  # likewise the memory of a seed
    gc.collect()
    assert gpu.log[13:] == [("call", 0, 7), ("free", 0, 7), ("free", 0, None)]
    gpu.log.clear()
    # A result of the default stream is not freed in stream order if another stream reads it.
    row = kf.ops.relu(Interface(ROW))
    flat = row.reshaped((int(np.prod(row.shape)),))
    kf.ops.bias_relu(Interface(X, 7), flat)
    del row, flat
    gc.collect()
    assert gpu.log == [
        ("call", 0, 1),
        ("wait", 0, 1),
        ("call", 0, 7),
        ("free", 0, None),
        ("free", 0, None),
    ]
    gpu.log.clear()
    for stream, freed_on in ((1, 1), (None, 1), (7, None), (-1, None)):
        kf.ops.relu(Interface(X)).__dlpack__(stream=stream)
        gc.collect()
        assert gpu.log[-1] == ("free", 0, freed_on)


def test_results_are_read_by_both(kf, gpu):
    """A result is an input through either interface; a capsule keeps its memory alive, imported or
    not.
    """
    y = kf.ops.relu(Interface(X, 7))
    assert y.__cuda_array_interface__ == {
        "shape": (4, 6),
        "typestr": "<f4",
        "data": (y.address, False),
        "version": 3,
        "strides": None,
        "stream": 7,
    }
    assert y.__dlpack_device__() == (2, 0) and "kf array on cuda:0" in repr(y)

    class Given:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream):
            return self.capsule

    gpu.log.clear()
    given = Given()
    given.capsule = y.__dlpack__(stream=7)
    unused, other = y.__dlpack__(stream=-1), y.__dlpack__(stream=8)
    assert gpu.log == [("wait", 0, 7)] and len(gpu.blocks) == 1
    want = host(y)
    del y
    gc.collect()
    z = kf.ops.gelu(given)
    assert np.array_equal(host(z), kf.ops.gelu(want)) and len(gpu.blocks) == 2
    del z, given, unused, other
    gc.collect()
    assert not gpu.blocks
    from kernel_fusion import _dlpack

    assert not _dlpack._alive


class Elsewhere(Interface):
    def __dlpack_device__(self):
        return 2, 1


def readonly(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda kf: kf.ops.bias_relu(Interface(X), ROW),
            TypeError,
            "bias is ndarray, expected an array on a GPU like the others",
        ),
        (
            lambda kf: kf.ops.bias_relu(X, Interface(ROW)),
            ValueError,
            "bias is on a GPU, the first array is not",
        ),
        (
            lambda kf: kf.ops.bias_relu(Interface(X), Elsewhere(ROW)),
            ValueError,
            "bias is on cuda:1, the others on cuda:0",
        ),
        (
            lambda kf: kf.ops.bias_relu(Interface(X), Interface(ROW[:5])),
            ValueError,
            r"bias has the shape \(5,\), expected \(6,\)",
        ),
        (
            lambda kf: kf.ops.relu(Interface(X.astype(np.complex64))),
            TypeError,
            "x has the dtype complex64, expected one of f32",
        ),
        (lambda kf: kf.ops.relu(Interface(X, mask=X)), TypeError, "x has a mask"),
        (
            lambda kf: kf.ops.relu(Interface(X), out=Interface(readonly(X))),
            ValueError,
            "out is an output, expected contiguous, writable memory",
        ),
        (
            lambda kf: kf.ops.relu(Interface(X), out=Interface(X.T)),
            ValueError,
            r"out is float32 with shape \(6, 4\), expected float32 with shape",
        ),
        (
            lambda kf: kf.ops.gelu_dropout(Interface(X), rng=Interface(ROW)),
            ValueError,
            r"rng is float32 with shape \(6,\), expected two int64",
        ),
    ],
)
def test_errors(kf, gpu, call, error, text):
    with pytest.raises(error, match=text):
        call(kf)
    assert not any(what == "call" for what, *_ in gpu.log)


def test_a_formula_of_ones_own(kf, gpu, monkeypatch):
    f = kf.fuse("gelu(x + bias)", x="elem", bias="row")
    monkeypatch.setattr(
        type(f._op.own),
        "on_gpu",
        types.SimpleNamespace(call=lambda *a: gpu.log.append(a[0])),
        raising=False,
    )
    made = f(Interface(X), Interface(ROW))
    assert made.shape == (4, 6) and gpu.log == [f._op.function("none", ("f32",), False)]


DRIVER = """
import ctypes, json, sys
from kernel_fusion import _gpu
g = _gpu.Gpu(driver=sys.argv[1])
at, text = g.allocate(0, 1 << 12, 0x5000), (ctypes.c_char * 8)(*b"12345678")
g.upload(0, at, ctypes.addressof(text), 8, 0x5000)
print(ctypes.string_at(at, 8).decode(), g.device_of(at))
g.wait(0, 0x5000)
g.free(0, at, 0x5000)
g.free(0, g.allocate(0, 64, 1), None)
try:
    g.allocate(0, 1 << 41, 1)
except MemoryError as e:
    print(e)
"""


def test_the_drivers_memory(tmp_path):
    toolkit = pytest.importorskip("toolkit")
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    subprocess.run(
        [
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-isystem",
            str(toolkit.include()),
            str(kflib.ROOT / "tests/support/gpu/fake_libcuda.cpp"),
            "-o",
            str(tmp_path / "libcuda.so"),
        ],
        check=True,
    )
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "libcuda.so")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "12345678 0",
        f"out of memory on cuda:0: {1 << 41} bytes were requested",
    ]
    assert done.stderr.splitlines() == [
        "wait for 0x5000",
        "free on 0x5000",
        "wait for all",
        "free at once",
    ]
