# SPDX-License-Identifier: Apache-2.0
"""Import time, selection of the library, installation options, caches."""

import os
import shutil
import subprocess

import kflib
import kfpython
import pytest
from kfpython import python


def test_import_is_light():
    """Imports no framework, template engine or library; takes under 0.3 s of processor time (best
    of three).
    """
    script = """
import time; begin = time.process_time()
import kernel_fusion, sys
took = time.process_time() - begin
modules = [m for m in ("torch", "numpy", "jinja2", "jax") if m in sys.modules]
print(took, *modules, "libkf" in open("/proc/self/maps").read())
"""
    found = [python(script).split() for _ in range(3)]
    assert {tuple(words) for _, *words in found} == {("False",)}
    assert min(float(took) for took, *_ in found) < 0.3


def test_the_build_needs_no_numpy():
    """pip builds the package where only jinja2 is installed."""
    script = """
import sys; sys.modules["numpy"] = None
from kernel_fusion import _build, _stubs
print(len(_stubs.text()) > 10**5, len(_stubs.modules()) > 10**3)
"""
    assert python(script).split() == ["True", "True"]


def test_flags_are_read_when_asked_for():
    output = python(
        "import kernel_fusion as kf; print(kf.EXTENSION_LOADED, kf.CUDA_AVAILABLE in (True, "
        "False), kf.__version__)"
    )
    assert output.startswith("True True 0.")


def test_instruction_sets(kf, monkeypatch):
    from kernel_fusion import _isa

    monkeypatch.delenv("KF_ISA", raising=False)
    flags = set().union(*_isa.FLAGS.values())
    monkeypatch.setattr(_isa.platform, "machine", lambda: "x86_64")
    for has, found in (
        (flags, ("v4", "v3", "v2")),
        (flags - {"avx512vl"}, ("v3", "v2")),
        (flags - {"fma"}, ("v2",)),
        (set(), ()),
    ):
        monkeypatch.setattr(_isa, "_flags", lambda has=has: has)
        assert _isa.runnable() == found
    monkeypatch.setenv("KF_ISA", "v2")
    assert _isa.runnable() == ("v2",)
    monkeypatch.setenv("KF_ISA", "sse")
    with pytest.raises(ValueError, match="KF_ISA is sse, expected one of v4, v3, v2"):
        _isa.runnable()
    monkeypatch.delenv("KF_ISA")
    monkeypatch.setattr(_isa.platform, "machine", lambda: "aarch64")
    assert _isa.runnable() == _isa.known() == ("native",)


def test_nothing_is_compiled_unless_asked(kf, monkeypatch):
    """A variable that would have no effect is refused."""
    from kernel_fusion import _build

    monkeypatch.delenv("KF_WHEEL_OPS", raising=False)
    monkeypatch.delenv("KF_WHEEL_ACTIVATIONS", raising=False)
    assert _build.selection() is None
    monkeypatch.setenv("KF_WHEEL_OPS", "none")
    assert _build.selection() is None
    monkeypatch.setenv("KF_WHEEL_OPS", "")
    monkeypatch.setenv("KF_WHEEL_ACTIVATIONS", "gelu")
    with pytest.raises(ValueError, match="KF_WHEEL_ACTIVATIONS is set, and KF_WHEEL_OPS is not"):
        _build.selection()
    monkeypatch.setenv("KF_WHEEL_OPS", "all")
    assert {a.name for a in _build.selection().activations} == {"none", "gelu"}
    assert len(_build.selection().ops) > 80


@pytest.mark.parametrize(
    "name, word, text",
    [
        (
            "KF_WHEEL_OPS",
            "layernorm",
            "KF_WHEEL_OPS: there is no `layernorm`; did you mean `layer_norm`[?] `kfgen list",
        ),
        (
            "KF_WHEEL_OPS",
            "layer_norm_gelu",
            "KF_WHEEL_OPS: `layer_norm_gelu` is the op layer_norm with activation gelu: "
            "KF_WHEEL_OPS=layer_norm "
            "KF_WHEEL_ACTIVATIONS=gelu",
        ),
        (
            "KF_WHEEL_ACTIVATIONS",
            "gellu",
            "there is no `gellu`; did you mean `gelu`[?] expected some of: elu, ",
        ),
        ("KF_WHEEL_ISA", "v9", "there is no `v9`; expected some of: v4, v3, v2|native"),
    ],
)
def test_what_an_installation_refuses(kf, monkeypatch, tmp_path, name, word, text):
    """Errors name the environment variable, and nothing is written."""
    from kernel_fusion import _build

    monkeypatch.setenv("KF_WHEEL_OPS", "bias")
    monkeypatch.setenv(name, word)
    with pytest.raises(ValueError, match=text):
        _build.build(tmp_path)
    assert not any(tmp_path.iterdir())


COMPRESSED = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
import kernel_fusion as kf, numpy as np
try:
    print(kf.ops.relu(np.ones(3, np.float32)).sum(), kf.info()["library"])
except ImportError as e:
    print(e)
"""


def test_a_compressed_library(tmp_path, library):
    """The library is unpacked once, or per process without a writable cache."""
    shutil.copytree(
        kfpython.package() / "kernel_fusion",
        tmp_path / "kernel_fusion",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    shutil.copy(library.path, tmp_path / "kernel_fusion/lib")
    path = os.pathsep.join([str(tmp_path), str(kflib.ROOT / "gen")])
    lies = tmp_path / "kernel_fusion/lib" / library.path.name
    python(
        f"import pathlib; from kernel_fusion import _compressed; "
        f"_compressed.compress(pathlib.Path({str(lies)!r}))",
        PYTHONPATH=path,
    )
    assert [p.name for p in (tmp_path / "kernel_fusion/lib").iterdir()] == [
        f"{library.path.name}.xz"
    ]

    def output(cache, *hidden, **environment):
        return python(
            COMPRESSED.replace("sys.argv[1:]", repr(hidden)),
            PYTHONPATH=path,
            KF_CACHE_DIR=str(cache),
            TMPDIR=str(tmp_path),
            **environment,
        )

    assert "was built without lzma" in output(tmp_path / "cache", "lzma") and not list(
        tmp_path.glob("cache/*/*")
    )
    first = output(tmp_path / "cache")
    [kept] = tmp_path.glob("cache/*/*")
    assert first == f"3.0 {kept}" and kept.read_bytes() == library.path.read_bytes()
    assert output(tmp_path / "cache", "lzma") == first  # already unpacked
    (tmp_path / "file").touch()
    assert output(tmp_path / "file/cache").startswith(
        f"3.0 {tmp_path}/kernel_fusion-"
    ) and not list(tmp_path.glob("kernel_fusion-*"))


def test_the_cache_directory(tmp_path, monkeypatch):
    """Independent of the working directory; the error for a user without a home names
    KF_CACHE_DIR.
    """
    from kernel_fusion import _files

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KF_CACHE_DIR", ".")
    assert _files.cache() == tmp_path
    monkeypatch.delenv("KF_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "mine")
    assert _files.cache() == tmp_path / "mine/kernel_fusion"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(
        _files.pathlib.Path,
        "home",
        lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory.")),
    )
    with pytest.raises(
        OSError, match="no home directory was found for the cache: set KF_CACHE_DIR"
    ):
        _files.cache()


def test_a_library_of_another_abi(kf, monkeypatch, library):
    from kernel_fusion import _library, _table

    monkeypatch.setattr(_table, "abi", lambda: 999)
    with pytest.raises(
        ImportError, match="has ABI version .*, expected 999: install the package again"
    ):
        _library.Library(library.path)


def test_the_name_in_messages(kf):
    from kernel_fusion import _table

    name = _table.display_name_of("kf_layer_norm_gelu_bwd_bf16_f32")
    assert name == "kf.layer_norm_gelu (backward)"


def test_info(kf, library):
    found = kf.info()
    assert (
        found["library"] == str(library.path)
        and found["functions"] == library.count > 100
        and found["threads"] >= 1
    )


@pytest.mark.level(2)
def test_include(kf, tmp_path, monkeypatch):
    """Headers are generated at the first request."""
    monkeypatch.setenv("KF_CACHE_DIR", str(tmp_path))
    assert kf.get_include() == kf.get_include() and kf.get_include().startswith(str(tmp_path))
    source = kflib.ROOT / "examples/00_cpu.c"
    subprocess.run(
        ["gcc", "-O2", "-isystem", kf.get_include(), source, "-o", tmp_path / "program", "-lm"],
        check=True,
    )
    assert subprocess.check_output([tmp_path / "program"]).split()


def test_a_broken_driver(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    script = (
        "import kernel_fusion as kf, numpy as np; print(kf.CUDA_AVAILABLE, "
        "kf.ops.relu(np.ones(2, 'f')).tolist())"
    )
    assert python(script, LD_LIBRARY_PATH=str(tmp_path)) == "False [1.0, 1.0]"
