# SPDX-License-Identifier: Apache-2.0
"""The library of CUDA launchers over a driver that computes nothing (fake_libcuda.cpp): requested
kernels, compilation, cache and errors.

tests/cuda/test_python.py compares numbers.
"""

import json
import os
import re
import subprocess
import sys
import types

import kflib
import kfpython
import pytest
import toolkit

pytestmark = pytest.mark.skipif(
    not toolkit.include() or not toolkit.nvrtc(), reason="no CUDA headers, or no NVRTC"
)

SCRIPT = """
import ctypes, json, os, sys
STREAM = 0x5000
from kernel_fusion import _gpu
g = _gpu.Gpu(driver=sys.argv[1])
memory = ctypes.create_string_buffer(1 << 20)
at = -(-ctypes.addressof(memory) // 4096) * 4096
def call(function, tensors, sizes, scalars=(), rng=None):
    try:
        there = [None if t is None else at + 65536 * t for t in tensors]
        g.call(function, there, sizes, None, scalars, rng and at, lambda n: (None, at + 65536 * 14), 0, STREAM)
        return "ok"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
print(json.dumps([call(*c) for c in json.loads(sys.argv[2])]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    subprocess.run(
        [
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-isystem",
            str(toolkit.include()),
            str(kflib.ROOT / "tests/support/fake_libcuda.cpp"),
            "-o",
            str(path),
        ],
        check=True,
    )
    return path


def calls(driver, cache, *found, script=SCRIPT, more=(), **environment):
    """Runs calls in a new process; returns ([their outcomes], [launched kernels with block
    sizes]).
    """
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", script, str(driver), json.dumps(found), *map(str, more)],
        capture_output=True,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(cache), "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


OWN = """
import ctypes, os, sys
import kernel_fusion as kf
from kernel_fusion import _compiled, _gpu
opened = _compiled.OwnOnGpu.open
_compiled.OwnOnGpu.open = lambda self, path: _gpu.Gpu(path, driver=sys.argv[1], text=self.text)
memory = ctypes.create_string_buffer(1 << 20)
at = -(-ctypes.addressof(memory) // 4096) * 4096
for f in (kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem"), kf.fuse_row("x * rsqrt(mean(x * x) + eps)", x="elem", eps=1e-6)):
    for direction in (f._op.forward, f._op.backward):
        function = f._op.function("none", ("bf16",), direction is f._op.backward)
        tensors = [at + 65536 * i for i in range(len(direction.inputs) + len(direction.outputs))]
        f._own.on_gpu.call(function, tensors, [8, 16], None, [1e-6] * len(direction.scalars), None, lambda n: (None, at + 65536 * 14), 0, 0x5000)
        print(function)
    print(f.explain("bfloat16").splitlines()[-1])
"""


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
_kernels.REASON["cpu"], _cuda.why_not = _cuda.reason, lambda: None if _gpu.opened() else "nobody opened it"
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
print(described(lambda: torch.ops.kf.bias(x.double(), w.double(), 0.0, 0.0, _table.activations()["relu"])))
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
SPACE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(lambda function, sizes: 2**50)
_gpu.library().dll.kfp_space = SPACE
print(described(lambda: kf.ops.batch_norm_train(x.float(), torch.zeros(64), torch.ones(64))))
"""
STREAM_OF = """
extern "C" int aoti_torch_get_current_cuda_stream(int, void **stream) { return *stream = (void *)0x5000, 0; }
"""


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
    assert (
        output[4] == "ok"
        if kfpython.has("mish")
        else output[4].startswith("NotImplementedError: kf.bias_mish: kf_bias_mish_bf16 is not in")
    )
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


def ready(f):
    """Arguments of a call of a manifest's function, with distinct tensors."""
    tensors = [a for a in f["arguments"] if a["role"] in ("in", "out", "sum")]
    sizes = {s: n for s, n in zip(f["sizes"], (8, 16, 4, 4, 8, 8))} | (
        {"pairs": 2} if "pairs" in f["sizes"] else {}
    )
    scalars = [
        a.get("default") or 0.5
        for a in f["arguments"]
        if a["role"] in ("scalar", "act_scalar", "beta", "probability")
    ]
    integers = [0 for a in f["arguments"] if a["role"] == "integer"]
    return f["name"], list(range(len(tensors))), [*sizes.values(), *integers], scalars, f["dropout"]


def test_kernels_are_the_launchers_own(driver, tmp_path):
    """Each launched kernel is one that the manifest lists for the function."""
    kfpython.use()
    from kfgen import packed, packed_cuda

    named = {name: f for name, f in packed_cuda.functions(kflib.manifest())}
    chosen = {
        (f["op"], f["bwd"]): f
        for f in packed.functions(kflib.manifest())
        if f["dtypes"] == ["f32"]
        and f["activation"] in ("none", "gelu")
        and any(o == _stem(f) for o in kfpython.OPS)
        and f["name"] in named
    }
    assert len(chosen) > 20
    given = [ready(f) for f in chosen.values()]
    output, launched = calls(driver, tmp_path, *given)
    assert not [(g[0], s) for g, s in zip(given, output) if s != "ok"]
    kernels = {
        k.partition("<")[0]
        for f in chosen.values()
        for stage in named[f["name"]]["stages"]
        for k in stage
    }
    seen = {re.match(r"_Z\d+(kfk_\w+?)(?:I\w|\b)", line)[1] for line in launched}
    assert (
        len(launched) >= len(chosen)
        and seen <= kernels
        and all(line.endswith(" on 0x5000") for line in launched)
    )


def _stem(f):
    return f["header"].rsplit("/", 1)[-1]


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
    lacks = "NotImplementedError: kf.mish: kf_mish_f32 is not in libkf_cuda.so, which was built for fewer"
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
    script = "from kernel_fusion import _gpu\ntry:\n    _gpu.Gpu(driver='/nowhere/libcuda.so.1')\nexcept ImportError as e:\n    print(e)"
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


AHEAD = """
import json, sys
import kernel_fusion as kf
if len(sys.argv) > 2:
    from kernel_fusion import _gpu
    _gpu._opened.append(_gpu.Gpu(driver=sys.argv[2]))
for name, given in json.loads(sys.argv[1]):
    print(json.dumps(getattr(kf, name)(**given)), flush=True)
"""


def start(cache, *found, driver=None, **environment):
    """Starts a process that calls functions by name.

    `driver` is the path of a GPU's driver: NVRTC itself loads libcuda.so.1 and needs more of it.
    """
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    return subprocess.Popen(
        [sys.executable, "-c", AHEAD, json.dumps(found), *([str(driver)] if driver else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(cache), "PYTHONPATH": path, **environment},
    )


def said_by(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def kernels_of(*functions):
    """Returns {(function, kernel)} that launches may request, according to the manifest."""
    from kfgen import packed_cuda

    named = dict(packed_cuda.functions(kflib.manifest()))
    return {(f, k) for f in functions for stage in named[f]["stages"] for k in stage}


def call_of(function, sizes):
    [f] = [f for f in kflib.manifest()["functions"] if f["name"] == function]
    return function, ready(f)[1], sizes


@pytest.fixture
def visible(driver, tmp_path):
    """Environment of a process that finds the driver by name."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system/libcuda.so.1").symlink_to(driver)
    return {"LD_LIBRARY_PATH": str(tmp_path / "system")}


def test_warmup(driver, tmp_path):
    """Two processes warm up concurrently, for an absent and for the present GPU; later calls
    compile nothing.
    """
    cache, given = tmp_path / "cache", {"ops": "bias_gelu", "dtypes": "float32"}
    wanted = len(kernels_of("kf_bias_gelu_f32", "kf_bias_gelu_bwd_f32"))
    both = [
        start(cache, ("warmup", {**given, "arch": "sm_90"})),
        start(cache, ("warmup", given), driver=driver),
    ]
    counts = [said_by(p)[0][:2] for p in both]
    assert (
        wanted > 4
        and [sum(c) for c in counts] == [wanted, wanted]
        and sum(compiled for compiled, _ in counts) >= wanted
    )
    kept = sorted(cache.iterdir())
    assert len(kept) == wanted and all(
        re.fullmatch(r"kfk_\w+-sm_90a-[0-9a-f]{24}\.cubin", p.name) for p in kept
    )
    kept[0].write_bytes(b"not a cubin")
    twice = {"ops": ["bias_gelu", "bias_gelu"], "dtypes": "float32", "arch": ["sm_90a"]}
    again, last = said_by(start(cache, ("warmup", {**given, "arch": "sm_90"}), ("warmup", twice)))
    assert again[:2] == [1, wanted - 1] and last[:2] == [0, wanted]
    found = [
        call_of(f, s)
        for f in ("kf_bias_gelu_f32", "kf_bias_gelu_bwd_f32")
        for s in ([64, 128], [3, 7], [65, 128])
    ]
    output, launched = calls(
        driver, cache, *found, call_of("kf_bias_relu_f32", [64, 128]), KF_OFFLINE="1"
    )
    assert output[:6] == ["ok"] * 6 and len({k.split()[0] for k in launched}) > 4
    assert re.match(
        r"RuntimeError: kf_bias_relu_f32: .*call it or kf.warmup once without", output[6]
    )


def test_every_kernel_that_is_launched_is_warmed():
    """Covers every op and direction of the package, dropout with seeds in device
    memory included.
    """
    kfpython.use()
    from kernel_fusion import _gpu
    from kfgen import packed

    chosen = {
        (f["op"], f["bwd"]): f["name"]
        for f in packed.functions(kflib.manifest())
        if f["dtypes"][0] in ("f32", "bf16")
        and "cuda" in f["backends"]
        and any(o == _stem(f) for o in kfpython.OPS)
    }
    assert len(chosen) > 20 and any("dropout" in name for name in chosen.values())
    for name in chosen.values():
        assert {(name, k) for k in _gpu.kernels(name)} == kernels_of(name)


REFUSED = [
    ({"ops": "nonsense"}, ValueError, "there is no op `nonsense`, expected one of "),
    (
        {"ops": "layer_norm", "activations": "nonsense"},
        ValueError,
        "activations has 'nonsense', expected some of .*relu",
    ),
    ({"ops": "act"}, ValueError, "act: activation is None, expected one of .*gelu"),
    ({"ops": [len]}, TypeError, "ops has a builtin_function_or_method, expected names of kf.ops"),
    ({"ops": []}, ValueError, r"ops=\[\] and activations=None select no function"),
    ({"ops": "relu", "dtypes": "int8"}, TypeError, "dtype is int8, expected one of float32"),
    (
        {"ops": "layer_norm", "dtypes": "int32"},
        ValueError,
        "layer_norm has no function for dtypes='int32', only for float32, float16",
    ),
    ({"ops": "relu", "arch": "sm_9"}, ValueError, "arch is 'sm_9', expected one of .*sm_90"),
    ({"ops": "relu", "arch": 90}, ValueError, "arch is 90, expected one of .*sm_90"),
    ({"ops": "relu", "jobs": 0}, ValueError, "jobs is 0, expected a whole number of at least 1"),
]


@pytest.mark.parametrize("name", ["warmup", "build_launchers"])
def test_what_cannot_be_compiled_ahead(kf, name, tmp_path, monkeypatch):
    monkeypatch.setenv("KF_CACHE_DIR", str(tmp_path / "cache"))
    where = [tmp_path / "built"] if name == "build_launchers" else []
    for given, kind, text in REFUSED:
        with pytest.raises(kind, match=rf"^kf\.{name}: {text}"):
            getattr(kf, name)(*where, **{"arch": "sm_90", **given})
    monkeypatch.setenv("KF_OFFLINE", "1")
    if name == "build_launchers":
        with pytest.raises(
            RuntimeError,
            match=r"kf\.build_launchers: KF_OFFLINE is set, and .*/built/libkf_cuda.so is missing",
        ):
            kf.build_launchers(*where, "relu", dtypes="float32", arch="sm_90")
    else:
        with pytest.raises(
            RuntimeError,
            match=r"kf\.warmup: KF_OFFLINE is set, and (\d+) of \1 kernels for sm_80 are not in .*'s kfk_act_f32<",
        ):
            kf.warmup("relu", dtypes="float32", arch="sm_80")
        if not kfpython.has("mish"):
            with pytest.raises(
                NotImplementedError,
                match="kf.mish: kf_mish_bf16 is not in libkf_cuda.so, .*kf.build_launchers",
            ):
                kf.warmup("mish", arch="sm_90")
    assert not list(tmp_path.iterdir())


BUILT = """
import json, sys
from kernel_fusion import _nvrtc
def missing():
    raise _nvrtc.Missing("there is no NVRTC")
_nvrtc.library, _nvrtc._tops = missing, list
import kernel_fusion as kf
kf.use_launchers(sys.argv[3])
""" + SCRIPT.replace("g = _gpu.Gpu(driver=sys.argv[1])", "g = _gpu.library()")


def test_launchers_built_ahead(driver, visible, tmp_path):
    """A folder for a machine with only the driver launches the package's kernels, and an
    activation that the package may lack.
    """
    folder, cache = tmp_path / "built", tmp_path / "cache"
    functions = [
        f"kf_{act}_{direction}f32" for act in ("gelu", "mish") for direction in ("", "bwd_")
    ]
    given = {
        "path": str(folder),
        "ops": "act",
        "activations": ["gelu", "mish"],
        "dtypes": ["float32"],
        "arch": "sm_90",
    }
    [first] = said_by(start(cache, ("build_launchers", given), KF_WHEEL_CFLAGS="-O0"))
    [again] = said_by(start(cache, ("build_launchers", given), CXX="/nowhere", PATH="/nowhere"))
    wanted = len(kernels_of(*functions))
    assert first[:2] == [wanted, 0] and again[:2] == [0, wanted] and not cache.exists()
    assert (
        len(list(folder.iterdir())) == wanted + 2
        and json.loads((folder / "launchers.json").read_text())["functions"] == functions
    )
    found = [
        call_of(f, [n])
        for f, n in (
            ("kf_gelu_f32", 4096),
            ("kf_mish_f32", 7),
            ("kf_mish_bwd_f32", 4096),
            ("kf_relu_f32", 8),
        )
    ]
    output, launched = calls(
        driver, cache, *found, script=BUILT, more=[folder], PATH="/nowhere", **visible
    )
    assert (
        output[:3] == ["ok"] * 3
        and len(launched) == 3
        and output[3].startswith("NotImplementedError: kf.relu: kf_relu_f32 is not in")
    )
    assert calls(driver, cache, found[0]) == (["ok"], launched[:1])


def test_folders_that_have_no_launchers(kf, tmp_path):
    with pytest.raises(
        ImportError,
        match=r"kf.use_launchers: .* lacks launchers.json or libkf_cuda.so, which kf.build_launchers writes",
    ):
        kf.use_launchers(tmp_path)
    (tmp_path / "launchers.json").write_text('{"generator": "another"}')
    (tmp_path / "libkf_cuda.so").touch()
    with pytest.raises(ImportError, match=r"kf.use_launchers: .* belongs to another version of kf"):
        kf.use_launchers(tmp_path)


def test_launchers_are_chosen_once(driver, tmp_path):
    script = (
        f"from kernel_fusion import _gpu, _table\nimport json, kernel_fusion as "
        f"kf\n_gpu._opened.append(_gpu.Gpu(driver={str(driver)!r}))\n"
        f"open({str(tmp_path / 'launchers.json')!r}, "
        f"'w').write(json.dumps(dict(generator=_table.generator())))\n"
        f"open({str(tmp_path / 'libkf_cuda.so')!r}, 'w').close()\n"
        f"try:\n    kf.use_launchers({str(tmp_path)!r})\nexcept RuntimeError as e:\n    print(e)"
    )
    assert re.fullmatch(
        r"kf.use_launchers: launchers are in use already, .*/libkf_cuda.so", kfpython.python(script)
    )
