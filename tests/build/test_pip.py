# SPDX-License-Identifier: Apache-2.0
"""The generator and the Python package, installed by pip, need nothing of their checkout."""

import os
import shutil
import sys
import sysconfig
import venv
import zipfile

import cases
import checks
import kflib
import kfpython
import pytest
import toolkit
import ways
from ways import run

pytest.importorskip("setuptools", reason="no setuptools")


@pytest.fixture(scope="module")
def environment(once):
    """A virtual environment with kf. jinja2, numpy and setuptools are those of the tests, so
    nothing is downloaded."""
    return once("pip", installed)


@pytest.mark.check
def test_a_wrong_variable_is_told_without_a_traceback(tmp_path):
    command = (sys.executable, "setup.py", "-q", "build_py", "-d", tmp_path)
    output = run(*command, cwd=kflib.ROOT, fails=True, KF_WHEEL_OPS="layernorm")
    message = "kf: KF_WHEEL_OPS: there is no `layernorm`; did you mean `layer_norm`?"
    assert f"\n{message}" in f"\n{output}"
    assert "Traceback" not in output


def made(folder):
    """Makes a virtual environment; returns its `pip`, with which a build finds no NumPy."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    [packages] = (folder / "venv/lib").glob("python3*/site-packages")
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (folder / "hidden").mkdir()
    (folder / "hidden/numpy.py").write_text("raise ImportError('pip builds without NumPy')\n")

    def pip(command):
        return (
            f"PYTHONPATH={folder}/hidden {sys.executable} -m pip --python "
            f"{folder}/venv/bin/python {command} --no-index --no-deps --no-build-isolation"
        )

    return pip


def installed(folder):
    source, pip = ways.copy(folder / "checkout"), made(folder)
    ways.shell(ways.snippet("pip", [("pip install", pip("install"))]), source)
    shutil.rmtree(source)
    assert not [*folder.rglob("libkf*")], "the installation compiled functions"
    return folder / "venv"


def kfgen(environment, *arguments, **kwargs):
    return run(environment / "bin/kfgen", *arguments, **kwargs)


def test_install(environment, tmp_path, home):
    """The page's commands, in an empty directory, must install the same files as `make install`,
    and a user's own."""
    shutil.copy(ways.ROOT / "examples/my_ops.toml", tmp_path)
    lines = ways.snippet(
        "pip-use",
        [(f"kfgen {word}", f"{environment}/bin/kfgen {word}") for word in ("install", "render")],
    )
    ways.shell(lines, tmp_path, tmp_path / "home")
    mine, theirs = (
        {
            p.relative_to(h / ".local").as_posix(): p.read_bytes()
            for p in (h / ".local").rglob("*")
            if p.is_file()
        }
        for h in (tmp_path / "home", home)
    )
    assert {k: v for k, v in mine.items() if k in theirs} == theirs
    assert (
        all("my_ops" in path for path in set(mine) - set(theirs))
        and "include/kf/my_ops.cuh" in mine
    )
    run(
        "gcc",
        "-O2",
        "-isystem",
        tmp_path / "home/.local/include",
        ways.ROOT / "examples/04_own_ops.c",
        "-o",
        tmp_path / "own",
        "-lm",
    )
    assert "largest error" in run(tmp_path / "own")


def test_commands(environment, tmp_path):
    where = run(
        environment / "bin/python", "-c", "import kfgen.paths as p; print(p.ROOT)", cwd=tmp_path
    )
    assert where.startswith(str(environment))
    assert len(kfgen(environment, "list", cwd=tmp_path).splitlines()) > 2000
    assert "families/elementwise/ops.toml" in kfgen(
        environment, "explain", "kf_add_relu_f16", cwd=tmp_path
    )
    kfgen(environment, "docs", "--out", "docs", cwd=tmp_path)
    (tmp_path / "one.c").write_text(
        kfgen(environment, "source", "kf_cpu_add_relu_f32", cwd=tmp_path)
    )
    run("gcc", "-std=c11", "-fsyntax-only", tmp_path / "one.c")


CALL = """
import kernel_fusion as kf, numpy as np
found = kf.ops.bias_gelu(np.zeros((2, 3), np.float32), np.ones(3, np.float32))
print(found.astype(float).round(4).tolist(), kf.info()["functions"], kf.__file__)
"""


def test_package(environment, tmp_path):
    """The first call compiles its function; the second process only loads it."""
    for more in ({}, {"KF_OFFLINE": "1"}):
        output = run(
            environment / "bin/python", "-c", CALL, cwd=tmp_path, KF_CACHE_DIR=tmp_path, **more
        )
        assert output.startswith(f"{[[0.8413] * 3] * 2} 0 {environment}"), output
    assert [p.name[:14] for p in tmp_path.glob("*.so")] == ["bias_gelu_f32-"]
    pytest.importorskip("torch")
    output = run(
        environment / "bin/python",
        ways.ROOT / "examples/00_python.py",
        cwd=tmp_path,
        KF_CACHE_DIR=tmp_path,
    )
    assert output == "torch.Size([8, 16]) float32\n"


def called(tmp_path):
    """Calls a function in the environment of `made`; returns the number of libraries in the cache,
    and the package's file."""
    cache = tmp_path / "cache"
    output = run(tmp_path / "venv/bin/python", "-c", CALL, cwd=tmp_path, KF_CACHE_DIR=cache)
    values, _, path = output.rpartition(" 0 ")
    assert values == str([[0.8413] * 3] * 2), output
    return len([*cache.glob("*.so")]), path.strip()


@pytest.mark.check
def test_editable(tmp_path):
    """An editable installation uses the checkout's templates, also after an edit."""
    source, pip = ways.copy(tmp_path / "checkout"), made(tmp_path)
    ways.shell(ways.snippet("pip-editable", [("pip install", pip("install"))]), source)
    package = str(source / "frontends/python/kernel_fusion/__init__.py")
    assert called(tmp_path) == (1, package) and called(tmp_path) == (1, package)
    with (source / "templates/elementwise/kernel.h.j2").open("a") as template:
        template.write("/* edited */\n")
    assert called(tmp_path) == (2, package)


@pytest.mark.check
def test_offline(tmp_path):
    """Wheels of a folder install the package."""
    source, pip = ways.copy(tmp_path / "checkout"), made(tmp_path)
    lines = ways.snippet(
        "pip-offline", [(f"pip {word}", pip(word)) for word in ("wheel", "install")]
    )
    ways.shell(lines, source)
    shutil.rmtree(source)
    count, path = called(tmp_path)
    assert count == 1 and path.startswith(str(tmp_path / "venv"))


def wheel(tmp_path, folder, **chosen):
    """Builds a wheel; returns (path, {file: size}, metadata)."""
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path / "wheels",
        folder,
        **chosen,
    )
    [found] = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(found) as z:
        metadata = z.read(next(n for n in z.namelist() if n.endswith("METADATA"))).decode()
        return found, {i.filename: i.compress_size for i in z.infolist()}, metadata


@pytest.mark.level(2)
@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_wheel(tmp_path, source):
    """A wheel without kernels must be small, contain no compiled file and run on every platform. It
    is built from a checkout and from a source distribution."""
    folder = ways.copy(tmp_path / "checkout")
    if source == "sdist":
        run(
            sys.executable,
            "-c",
            f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})",
            cwd=folder,
        )
        [folder] = tmp_path.glob("*.tar.gz")
    found, files, metadata = wheel(tmp_path, folder, KF_WHEEL_OPS="none")
    assert (
        found.name == f"kernel_fusion-{ways.VERSION}-py3-none-any.whl"
        and found.stat().st_size < 1e6
    )
    required = [
        line
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert required == ["Requires-Dist: jinja2>=3.1", "Requires-Dist: numpy>=1.24"]
    wanted = {
        f"kfgen/data/{p.relative_to(ways.ROOT).as_posix()}"
        for folder, pattern in (("templates", "*.j2"), ("include/kf", "*.*h*"))
        for p in (ways.ROOT / folder).rglob(pattern)
    }
    assert {n for n in files if n.startswith("kfgen/data/")} == wanted
    entries = {
        p.relative_to(ways.ROOT / "gen").as_posix()
        for p in (ways.ROOT / "gen/kfgen").rglob("*.toml")
    }
    assert len(entries) > 10 and {n for n in files if n.endswith(".toml")} == entries
    assert not [
        n
        for n in files
        if not n.startswith(
            ("kfgen/", "kernel_fusion/", f"kernel_fusion-{ways.VERSION}.dist-info/")
        )
    ]
    assert {
        f"kernel_fusion/{n}"
        for n in (
            "ops.json",
            "ops.pyi",
            "py.typed",
            "native/packed.h",
            "native/jax_ffi.cpp",
            "native/torch_shim.cpp",
            "jax/__init__.py",
            "jax/__init__.pyi",
            "torch/__init__.py",
        )
    } <= set(files)
    assert any(n.endswith("LICENSE") for n in files) and not any(n.endswith(".so") for n in files)


@pytest.mark.check
def test_wheel_of_few_functions(tmp_path):
    """A wheel holds the functions of KF_WHEEL_OPS and the shim, which need no compiler."""
    found, files, _ = wheel(
        tmp_path,
        ways.copy(tmp_path / "checkout"),
        KF_WHEEL_OPS="bias",
        KF_WHEEL_ACTIVATIONS="gelu",
        KF_WHEEL_CUDA="0",
    )
    assert found.name.startswith(f"kernel_fusion-{ways.VERSION}-py3-none-linux_")
    made = sorted(n.rpartition("/")[2] for n in files if "/lib/" in n)
    assert [n[:10] for n in made] == ["libkf_cpu_", "torch_shim"], made
    with zipfile.ZipFile(found) as z:
        z.extractall(tmp_path / "wheel")
    output = run(
        sys.executable,
        "-c",
        CALL,
        cwd=tmp_path,
        PYTHONPATH=tmp_path / "wheel",
        KF_CACHE_DIR=tmp_path / "cache",
        CC="none",
    )
    assert output.startswith(f"{[[0.8413] * 3] * 2} 16 {tmp_path}"), output
    assert not (tmp_path / "cache").exists()
    pytest.importorskip("torch")
    output = run(
        sys.executable,
        "-c",
        "import torch, kernel_fusion as kf; kf.ops.gelu; print(kf.info()['torch'])",
        cwd=tmp_path,
        PYTHONPATH=tmp_path / "wheel",
        KF_CACHE_DIR=tmp_path / "cache",
    )
    assert output == "shim\n" and not (tmp_path / "cache").exists()


@pytest.mark.level(2)
def test_whole_wheel(tmp_path, monkeypatch):
    """A wheel of all ops for three instruction sets must stay below 8 MB (bench/NOTES.md)."""
    kfpython.use()
    from kernel_fusion import _shim_library

    found, files, _ = wheel(
        tmp_path,
        ways.copy(tmp_path / "checkout"),
        KF_WHEEL_OPS="all",
        KF_WHEEL_ISA="v2,v3,v4",
        KF_WHEEL_JOBS=os.cpu_count(),
    )
    assert found.name == f"kernel_fusion-{ways.VERSION}-py3-none-linux_x86_64.whl"
    # This needs CUDA's headers, but no nvcc.
    cuda = {"kernel_fusion/lib/libkf_cuda.so"} if toolkit.include() else set()
    shim = {f"kernel_fusion/lib/{_shim_library.name()}"}
    assert {n for n in files if "/lib/" in n} == {
        f"{n}.xz"
        for n in cuda
        | shim
        | {f"kernel_fusion/lib/libkf_cpu_{isa}.so" for isa in ("v2", "v3", "v4")}
    }
    assert found.stat().st_size < 8e6, files
    with zipfile.ZipFile(found) as z:
        z.extractall(tmp_path / "wheel")
    monkeypatch.setenv("KF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "wheel")
    every_function(tmp_path / "wheel/kernel_fusion/lib")


def every_function(folder):
    """Compares every function of each library that this processor runs with the float64 oracle:
    instruction sets round differently."""
    from kernel_fusion import _compressed, _isa, _library

    memory = checks.CpuMemory()
    for isa in _isa.runnable():
        library = kfpython.Packed(
            _library.Library(_compressed.find(folder / f"libkf_cpu_{isa}.so"))
        )
        there = [f for f in kflib.manifest()["functions"] if not f["state"] and library.has(f)]
        assert len(there) == library.library.count > 1500
        for f in there:
            checks.run(library, memory, f, *cases.runs(f, False)[0][:2])
