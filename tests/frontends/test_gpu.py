# SPDX-License-Identifier: Apache-2.0
"""The library of CUDA launchers over a driver that computes nothing (fake_libcuda.cpp): requested
kernels, compilation, cache and errors.

tests/cuda/test_python.py compares numbers.
"""

import os
import re
import subprocess
import sys
import types

import kflib
import kfpython
import launch_steps
import pytest
import toolkit
from kfpython import calls, ready

pytestmark = pytest.mark.skipif(
    not toolkit.include() or not toolkit.nvrtc(), reason="no CUDA headers, or no NVRTC"
)

OWN = """
import ctypes, os, sys
import kernel_fusion as kf
from kernel_fusion import _compiled, _gpu
opened = _compiled.OwnOnGpu.open
_compiled.OwnOnGpu.open = lambda self, path: _gpu.Gpu(path, driver=sys.argv[1], text=self.text)
memory = ctypes.create_string_buffer(1 << 20)
at = -(-ctypes.addressof(memory) // 4096) * 4096
gate = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
norm = kf.fuse_row("x * rsqrt(mean(x * x) + eps)", x="elem", eps=1e-6)
for f in (gate, norm):
    for direction in (f._op.forward, f._op.backward):
        function = f._op.function("none", ("bf16",), direction is f._op.backward)
        tensors = [at + 65536 * i for i in range(len(direction.inputs) + len(direction.outputs))]
        scalars, space = [1e-6] * len(direction.scalars), lambda n: (None, at + 65536 * 14)
        f._own.on_gpu.call(function, tensors, [8, 16], None, scalars, None, space, 0, 0x5000)
        print(function)
    print(f.explain("bfloat16").splitlines()[-1])
"""


@pytest.mark.check
def test_ops_of_the_program(driver, tmp_path):
    """Launchers of a kf.fuse op are compiled once, and launch kernels of their own formula."""
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    for offline in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", OWN, str(driver)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "KF_CACHE_DIR": str(tmp_path),
                "PYTHONPATH": path,
                "KF_OFFLINE": offline,
            },
        )
        assert done.returncode == 0, done.stderr
        output = done.stdout.splitlines()
        assert (
            len(output) == 6
            and output[2].startswith("bf16 on a GPU: ")
            and output[2].endswith(".so")
        )
        kernels = [name for name in output if name.startswith("kf_")]
        launched = [k for k in done.stderr.splitlines() if "kfk_fused_" in k]
        assert (
            len(kernels) == 4
            and len(launched) >= 4
            and all(k.endswith(" on 0x5000") for k in launched)
        )
    assert len(list(tmp_path.glob("fused_*.so"))) == 2


SHIM = """
import sys, torch, ctypes
import kernel_fusion as kf
import kernel_fusion.torch as own
from kernel_fusion import _gpu, _table
from kernel_fusion.torch import _cuda, _kernels, _shim
stub = ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
x, w = torch.randn(8, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
_shim.register_gpu([s for s in own._ALL if _shim.covers(s)], sys.argv[2], "CPU", "cpu")
_kernels.REASON["cpu"] = _cuda.reason
_cuda.why_not = lambda: None if _gpu.opened() else "nobody opened it"
def described(f):
    try:
        f()
        return "ok"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
kernel, _gpu.PATH = _gpu.PATH, "/nowhere"
library, _gpu.library = _gpu.library, lambda: _gpu.Gpu(__import__("pathlib").Path("/nowhere"))
print(described(lambda: kf.ops.bias_gelu(x, w)))
_gpu.library = library
_gpu._opened.append(_gpu.Gpu(kernel, driver=sys.argv[1]))
g = x.clone().requires_grad_()
print(described(lambda: kf.ops.gelu(g).backward(x)))
print(described(lambda: kf.ops.layer_norm(g, w).backward(x)))
print(described(lambda: kf.ops.bias_gelu(x, w[:5])))
print(described(lambda: kf.ops.bias_gelu(x, torch.randn(64))))
print(described(lambda: kf.ops.bias_mish(x, w)))
import os
os.environ["KF_OFFLINE"] = "1"
print(described(lambda: kf.ops.bias_relu(x.double(), w.double())))
relu = _table.activations()["relu"]
print(described(lambda: torch.ops.kf.bias(x.double(), w.double(), 0.0, 0.0, relu)))
rows = x[:1].expand(2**44, 64)
os.environ.pop("KF_OFFLINE")
f = kf.fuse("x * gate + 1", x="elem", gate="elem")
from kernel_fusion import _compiled
_compiled.OwnOnGpu.open = lambda self, path: _gpu.Gpu(path, driver=sys.argv[1], text=self.text)
print("without a driver of its own" if own.WHY_NO_SHIM_ON_GPU else "with a driver", file=sys.stderr)
f(x, x)
_shim.register_own([s for s in _shim._schemas if s.op is f._op], on_gpu=True)
print(described(lambda: f(g, x).backward(x)))
os.environ["KF_OFFLINE"] = "1"
print(described(lambda: f(x.double(), x.double())))
print(described(lambda: kf.ops.layer_norm(rows)))
print(described(lambda: torch.ops.kf.layer_norm(rows, None, None, 1e-5, 0.0, 0.0, 0, False)))
print(described(lambda: kf.ops.gelu(x[:1, :1].expand(2**25, 2**25))))
SIZE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
SPACE = SIZE(lambda function, sizes: 2**50)
_gpu.library().dll.kfp_space = SPACE
print(described(lambda: kf.ops.batch_norm_train(x.float(), torch.zeros(64), torch.ones(64))))
"""
STREAM_OF = """
extern "C" int aoti_torch_get_current_cuda_stream(int, void **stream)
{
    return *stream = (void *)0x5000, 0;
}
"""


@pytest.mark.check
def test_without_python(driver, tmp_path):
    """The shim's GPU calls, with CPU tensors in place of GPU tensors: kernels, streams, workspaces
    and errors.
    """
    (tmp_path / "stream.cpp").write_text(STREAM_OF)
    stub = tmp_path / "libtorch_cuda.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", str(tmp_path / "stream.cpp"), "-o", str(stub)], check=True
    )
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", SHIM, str(driver), str(stub)],
        capture_output=True,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout.splitlines()
    assert output[0].startswith(
        "NotImplementedError: kf.bias_gelu: no kernel for tensors on cuda: nobody opened it"
    )
    assert output[1] == "ok" and (
        output[2] == "ok" or "workspace is 0x" in output[2]
    )  # the CPU's allocator aligns less strictly
    output = output[1:]
    assert output[2].startswith("ValueError: kf.bias_gelu: bias has the shape") and output[
        3
    ].startswith("TypeError: ")
    # The package lacks mish at level 1, so that its launchers are compiled.
    launchers = list((tmp_path / "cache").glob("bias_mish_bf16-*.so"))
    assert output[4] == "ok" and len(launchers) == (not kfpython.has("mish"))
    offline = "kf_bias_relu_f64: its kernel kfk_bias_f64<"
    assert (
        output[5].startswith(f"RuntimeError: {offline}")
        and "KF_OFFLINE is set" in output[5]
        and "kf.bias: " in output[6]
        and "KF_OFFLINE" in output[6]
    )
    assert output[7] == "ok" and re.match(
        r"RuntimeError: kf.fuse\('x \* gate \+ 1'\) for f64 is not in .*KF_OFFLINE is "
        r"set",
        output[8],
    )
    for line, what in zip(
        output[9:], ("layer_norm: ", "layer_norm: ", "act: ", "batch_norm_train: "), strict=True
    ):
        assert line.startswith("OutOfMemoryError: kf." + what) and (
            "out of memory" in line or "can't allocate memory" in line
        ), line
    launched = [k for k in done.stderr.splitlines() if "kfk_act" in k]
    fused = [
        k for k in done.stderr.splitlines() if "kfk_fused_" in k
    ]  # with a driver, the first call registers GPU kernels too
    assert [sum("_bwd_" in k for k in fused), all(k.endswith(" on 0x5000") for k in fused)] == [
        1,
        True,
    ]
    assert len(fused) == 2 + ("with a driver" in done.stderr.splitlines())
    assert (
        len(launched) >= 2
        and any("bwd" in k for k in launched)
        and all(k.endswith(" on 0x5000") for k in launched)
    )


ADD = ("kf_bias_gelu_f32", [0, 1, 2], [64, 128])


@pytest.mark.check
def test_kernels_are_the_launchers_own(driver, tmp_path):
    """Each launched kernel is one that the manifest lists for the function."""
    kfpython.use()
    from kfgen.interfaces import packed, packed_cuda

    named = {name: f for name, f in packed_cuda.functions(kflib.manifest())}
    chosen = {
        (f["op"], f["bwd"]): f
        for f in packed.functions(kflib.manifest())
        if f["dtypes"] == ["f32"]
        and f["activation"] in ("none", "gelu")
        and any(o == kfpython.stem(f) for o in kfpython.OPS)
        and f["name"] in named
    }
    assert len(chosen) > 20
    given = [ready(f) for f in chosen.values()]
    output, launched = calls(driver, tmp_path, *given)
    assert not [(g[0], s) for g, s in zip(given, output) if s != "ok"]
    kernels = {
        k.partition("<")[0] for f in chosen.values() for k in launch_steps.kernels(named[f["name"]])
    }
    seen = {re.match(r"_Z\d+(kfk_\w+?)(?:I\w|\b)", line)[1] for line in launched}
    assert (
        len(launched) >= len(chosen)
        and seen <= kernels
        and all(line.endswith(" on 0x5000") for line in launched)
    )


def test_compiled_once_and_kept(driver, tmp_path):
    """The cache key includes the NVRTC, which CUDA_HOME may change."""
    nowhere = {"CUDA_HOME": "/nowhere"}
    output, launched = calls(driver, tmp_path, ADD, ADD, **nowhere)
    assert output == ["ok", "ok"] and len(launched) == 2 and launched[0] == launched[1]
    [kept] = tmp_path.iterdir()
    assert re.fullmatch(r"kfk_bias_f32-sm_90a-[0-9a-f]{24}\.cubin", kept.name)
    before = kept.read_bytes()
    assert calls(driver, tmp_path, ADD, KF_OFFLINE="1", **nowhere) == (["ok"], launched[:1])
    kept.write_bytes(b"not a cubin")
    assert (
        calls(driver, tmp_path, ADD, **nowhere)[0] == ["ok"]
        and kept.read_bytes()[:9] == before[:9]
        and len(list(tmp_path.iterdir())) == 1
    )


def test_offline(driver, tmp_path):
    [output], launched = calls(driver, tmp_path, ADD, KF_OFFLINE="1")
    assert (
        re.match(
            r"RuntimeError: kf_bias_gelu_f32: its kernel kfk_bias_f32<.*> for sm_90a is not in "
            r".*KF_OFFLINE",
            output,
        )
        and not launched
    )


def test_errors(driver, tmp_path):
    name, tensors, sizes = ADD
    output, launched = calls(
        driver,
        tmp_path,
        (name, [None, 1, 2], sizes),
        (name, tensors, [-1, 128]),
        ("kf_mish_f32", [0, 1], [4]),
    )
    assert output[0].startswith("Refused: kf_bias_gelu_f32: a required pointer is NULL: x is NULL")
    assert (
        output[1].startswith("Refused: kf_bias_gelu_f32: a size is negative")
        and ": rows is -1" in output[1]
    )
    lacks = "NotImplementedError: kf.mish: kf_mish_f32 is not in libkf_cuda.so, which was built for"
    assert (
        (output[2], len(launched)) == ("ok", 1)
        if kfpython.has("mish")
        else output[2].startswith(lacks) and not launched
    )


def test_an_interrupt_while_a_kernel_is_compiled(kf):
    """The callback reports a failure to C, and the call raises the exception."""
    from kernel_fusion import _gpu

    def interrupted(*given):
        raise KeyboardInterrupt

    own = types.SimpleNamespace(
        made=interrupted,
        architecture=str,
        now=_gpu.Thread(),
        dll=types.SimpleNamespace(kfp_give_reason=id),
    )
    assert _gpu.Gpu._make(own, b"kf_relu_f32", 0, None, b"kfk_act_f32<7>", None, None) == 1
    assert isinstance(_gpu.Gpu.failed(own), KeyboardInterrupt) and _gpu.Gpu.failed(own) is None


def test_no_driver(tmp_path):
    script = (
        "from kernel_fusion import _gpu\ntry:\n    "
        "_gpu.Gpu(driver='/nowhere/libcuda.so.1')\nexcept ImportError as e:\n    print(e)"
    )
    assert kfpython.python(script) == "no CUDA driver was found (libcuda.so.1)"


def test_what_does_not_compile_is_said():
    kfpython.use()
    from kernel_fusion import _nvrtc

    with pytest.raises(
        RuntimeError, match=r"failed to compile kernel<1> for sm_90a:\n(.|\n)*nonsense"
    ):
        _nvrtc.compile_kernel(
            "template <int n> __global__ void kernel(int *p) { nonsense; }", "kernel<1>", "sm_90a"
        )
    cubin, name = _nvrtc.compile_kernel(
        "template <int n> __global__ void kernel(int *p) { *p = n; }", "kernel<1>", "sm_90a"
    )
    assert cubin.startswith(b"\x7fELF") and name in cubin
