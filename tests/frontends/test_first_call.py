# SPDX-License-Identifier: Apache-2.0
"""CPU functions that are compiled at their first call: cache, processes, compilers, fallback."""

import os
import shutil
import stat
import subprocess
import sys
import time

import cases
import checks
import kflib
import kfpython
import numeric
import pytest
import toolkit
from kfgen.interfaces import packed as packing

np = pytest.importorskip("numpy")

RELU = "_files.cache(); print(kf.ops.relu(np.array([-1, 2], 'f')).tolist())"
BEGIN = "import kernel_fusion as kf, numpy as np\nfrom kernel_fusion import _files\n"
COMPUTED = "[0.0, 2.0]"


@pytest.fixture(scope="module")
def bare(once):
    """The package as `pip install .` makes it, without libraries."""

    def made(folder):
        shutil.copytree(
            kfpython.package() / "kernel_fusion",
            folder / "kernel_fusion",
            ignore=shutil.ignore_patterns("lib", "__pycache__"),
        )
        return folder

    return once("bare package", made)


@pytest.fixture
def run(bare, tmp_path):
    """Runs a program with the package; returns its output and what it wrote to stderr."""

    def run(script, *arguments, fails=False, **environment):
        path = os.pathsep.join([str(bare), str(kflib.ROOT / "gen")])
        own = {"KF_CACHE_DIR": str(tmp_path / "cache"), "KF_WHEEL_CFLAGS": "-O0"}
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + script, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **own, "PYTHONPATH": path, **environment},
        )
        assert fails == (done.returncode != 0), done.stderr
        return done.stdout.strip(), done.stderr.strip()

    return run


def compiler(tmp_path, script):
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def libraries(tmp_path):
    return sorted((tmp_path / "cache").glob("*.so"))


TEN = """
import os
children = []
for _ in range(10):
    child = os.fork()
    if not child:
        found = kf.ops.relu(np.array([-1, 2], "f")).tolist()
        os._exit(found != [0.0, 2.0])
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_ten_processes_compile_once(run, tmp_path):
    """Ten processes wait for one compilation; nothing but the library remains."""
    log = tmp_path / "log"
    count = compiler(tmp_path, f'case "$*" in *-c*) echo >> {log};; esac; exec gcc "$@"')
    assert run(TEN, CC=count)[0] == str([0] * 10)
    assert len(log.read_text().splitlines()) == 3  # forward, backward and the table, each once
    assert [p.name[:9] for p in (tmp_path / "cache").iterdir()] == ["relu_f32-"]


def test_later_processes_compile_nothing(run, tmp_path):
    """Without a compiler, or offline, a cached library serves; another function does not."""
    assert run(RELU)[0] == COMPUTED
    [library] = libraries(tmp_path)
    for environment in ({"CC": "none", "PATH": ""}, {"KF_OFFLINE": "1"}):
        assert run(RELU, **environment)[0] == COMPUTED
    error = run("kf.ops.silu(np.ones(2, 'f'))", fails=True, KF_OFFLINE="1")[1].splitlines()[-1]
    assert error.startswith("RuntimeError: kf.silu for f32 is not in ")
    assert "KF_OFFLINE is set: call it, or kf.warmup with device='cpu', once without" in error
    library.write_bytes(library.read_bytes()[:100])
    assert run(RELU)[0] == COMPUTED and library.stat().st_size > 1000  # a damaged file is replaced
    assert libraries(tmp_path) == [library]


def test_what_the_file_name_depends_on(kf, monkeypatch, tmp_path):
    """Flags, instruction set, generator and compiler give other files, the same inputs the same."""
    from kernel_fusion import _compilers, _first_call, _table

    functions = _first_call.Named()
    functions.set_op(_table.ops()["layer_norm"])
    unit = _first_call.Unit("gelu", ("f32",))

    def name():
        return functions.path(unit, _compilers.c()).name

    found = [name()]
    assert name() == found[0] and found[0].startswith("layer_norm_gelu_f32-")
    for target, attribute, value in (
        (_compilers, "more", lambda: ["-O1"]),
        (_first_call._isa, "runnable", lambda: ("v2",)),
        (_first_call._isa, "processor", lambda: "another"),
        (_first_call, "generator", lambda *files: "another"),
        (_compilers, "version", lambda compiler: "gcc 99 (Free Software Foundation)"),
    ):
        with monkeypatch.context() as m:
            m.setattr(target, attribute, value)
            found.append(name())
    assert len(set(found)) == 6


def test_a_compiler_that_fails(run, tmp_path):
    """NumPy computes the functions, with one warning that says what to install."""
    broken = compiler(tmp_path, "echo no headers >&2; exit 1")
    script = f"{RELU}; print(kf.ops.silu(np.zeros(1, 'f')))"
    for environment, why in (
        ({"CC": broken}, f"{broken} compiles nothing here"),
        ({"CC": "none", "PATH": ""}, "no C compiler was found"),
    ):
        output, warned = run(script, **environment)
        assert output == f"{COMPUTED}\n[0.]" and warned.count("UserWarning") == 1
        assert f"kf.relu: {why}: install gcc (" in warned
    assert not libraries(tmp_path)


@pytest.mark.check
def test_one_pool_of_threads(run):
    """Libraries of several functions share the threads of the first."""
    script = """
import threading, os
x = np.ones((512, 1024), "f")
kf.set_threads(3)
before = len(os.listdir("/proc/self/task"))
for f in (kf.ops.relu, kf.ops.silu, kf.ops.softmax):
    f(x)
print(len(os.listdir("/proc/self/task")) - before, kf.get_threads())
"""
    assert run(script)[0] == "2 3"


WARM = """
import sys
print(*kf.warmup(["relu", "softmax"], dtypes="float32", device="cpu", progress=True)[:2])
print(*kf.warmup(["relu", "softmax"], dtypes="float32", device="cpu")[:2])
"""


@pytest.mark.check
def test_warmup(run, tmp_path):
    """Functions are compiled concurrently with a progress line; later calls compile nothing."""
    output, progress = run(f"import sys; sys.modules['tqdm'] = None\n{WARM}")
    assert (
        output == "2 0\n0 2"
        and progress.endswith("kf.warmup: 2 of 2 compiled, 0 s")
        or (" of 2 compiled" in progress)
    )
    assert run(RELU, KF_OFFLINE="1")[0] == COMPUTED
    error = run(WARM.replace("softmax", "silu"), fails=True, KF_OFFLINE="1")[1]
    assert "RuntimeError: kf.silu for f32 is not in" in error.splitlines()[-1]
    error = run(WARM.replace("softmax", "silu"), fails=True, CC="none", PATH="")[1]
    assert "RuntimeError: kf.silu: no C compiler was found: install gcc" in error.splitlines()[-1]


def test_what_warmup_refuses(kf):
    for given, text in (
        ({"device": "tpu"}, "device is 'tpu', expected 'cpu' or 'cuda'"),
        ({"device": "cpu", "arch": "sm_90"}, "arch is 'sm_90' beside device='cpu'"),
    ):
        with pytest.raises(ValueError, match=f"kf.warmup: {text}"):
            kf.warmup("relu", **given)


class Interpreter(kfpython.Packed):
    """The NumPy fallback of each function, with the interface of kfpython.Packed."""

    def __init__(self):
        super().__init__(None)

    def call(self, f, values):
        from kernel_fusion import _first_call, _table
        from kernel_fusion._interpreted import Interpreted

        op = next(op for op in _table.ops().values() if op.pattern == f["op"])
        functions = _first_call.functions(op)
        self.library = Interpreted(functions.manifest(functions.units[f["name"]]))
        return super().call(f, values)


ALL = packing.functions(
    {"functions": kflib.manifest()["functions"] if cases.LEVEL > 1 else numeric.FUNCTIONS}
)
ONE_OF_EACH = {(f["op"], f["bwd"]): f for f in ALL if f["dtypes"] == ["f32"]}


@pytest.mark.check
@pytest.mark.parametrize("key", ONE_OF_EACH, ids=lambda key: f"{key[0]}{'-bwd' if key[1] else ''}")
def test_numpy_serves_every_op(kf, key):
    """The fallback of each op and direction against the float64 oracle."""
    f = ONE_OF_EACH[key]
    for sizes, values, shift in cases.runs(f, False)[:2]:
        checks.run(Interpreter(), checks.CpuMemory(), f, sizes, values, shift=shift)


@pytest.mark.check
def test_numpy_through_the_shim(kf, run, tmp_path):
    """PyTorch's calls reach the fallback, and its errors reach PyTorch."""
    pytest.importorskip("torch")
    from kernel_fusion import _shim_library

    (tmp_path / "cache").mkdir()
    shutil.copy(_shim_library.find(), tmp_path / "cache")
    script = """
import torch
x = torch.tensor([[0.0, 1.0]], requires_grad=True)
kf.ops.silu(x).sum().backward()
print(kf.info()["torch"], x.grad[0, 0].item())
"""
    assert run(script, CC="none", PATH="")[0] == "shim 0.5"


ON_GPU = """
import ctypes, sys
from kernel_fusion import _compiled, _first_call, _gpu, _table
_compiled.Loader.open = lambda self, path: _gpu.Gpu(path, driver=sys.argv[1])
memory = ctypes.create_string_buffer(1 << 18)
at = -(-ctypes.addressof(memory) // 4096) * 4096
functions = _first_call.functions(_table.functions()["relu"][0]).on_gpu
functions.call("kf_relu_f32", [at, at + 65536], [64], None, [], None, None, 0, 0x5000)
print(kf.warmup("relu", dtypes="float32", arch="sm_90")[1] > 0)
"""


@pytest.mark.check
@pytest.mark.skipif(
    not toolkit.include() or not toolkit.nvrtc(), reason="no CUDA headers, or no NVRTC"
)
def test_launchers_of_a_package_without_them(run, driver, tmp_path):
    """The first call on a GPU compiles the loader and the function's launchers, later ones none."""
    for environment in ({}, {"KF_OFFLINE": "1"}):
        output, launched = run(ON_GPU, driver, **environment)
        assert output == "True" and "kfk_act_f32" in launched and launched.endswith(" on 0x5000")
    assert sorted(p.name[:7] for p in libraries(tmp_path)) == ["loader-", "relu_f3"]


SHOWN = [("", True, True), ("", False, False), ("1", False, True), ("0", True, False)]


@pytest.mark.parametrize("own, is_tty, shown", SHOWN, ids=range(len(SHOWN)))
def test_a_long_compilation_is_told(kf, monkeypatch, capsys, own, is_tty, shown):
    """On a terminal or with KF_PROGRESS=1, one line; nothing for a short one."""
    from kernel_fusion import _progress

    monkeypatch.setenv("KF_PROGRESS", own)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_tty)
    for patience, wait in ((5, 0), (0.01, 0.3)):
        monkeypatch.setattr(_progress, "PATIENCE", patience)
        with _progress.told("kf.gelu for f32"):
            time.sleep(wait)
        expected = "kf.gelu for f32 is compiled at the first call; later calls and processes load"
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (shown and wait > 0) and all(x.startswith(expected) for x in lines)


@pytest.mark.check
def test_a_first_call_tells(tmp_path):
    program = """
import sys
sys.stderr = sys.stdout
from kernel_fusion import _progress
_progress.PATIENCE = 0.01
import kernel_fusion as kf, numpy as np
for _ in range(2):
    kf.ops.mul_softsign(np.ones(3), np.ones(3))
"""
    text = kfpython.python(program, KF_PROGRESS="1", KF_CACHE_DIR=str(tmp_path))
    assert (
        text == "kf.mul_softsign for f64 is compiled at the first call; later calls and "
        "processes load it"
    )
