# SPDX-License-Identifier: Apache-2.0
"""kf.warmup and kf.build_launchers: kernels compiled ahead of time, over a fake driver."""

import json
import os
import re
import subprocess
import sys

import kflib
import kfpython
import launch_steps
import pytest
import toolkit
from kfpython import calls, ready

pytestmark = pytest.mark.skipif(
    not toolkit.include() or not toolkit.nvrtc(), reason="no CUDA headers, or no NVRTC"
)

ADD = ("kf_bias_gelu_f32", [0, 1, 2], [64, 128])
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


def outcomes(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def kernels_of(*functions):
    """Returns {(function, kernel)} that launches may request, according to the manifest."""
    from kfgen.interfaces import packed_cuda

    named = dict(packed_cuda.functions(kflib.manifest()))
    return {(f, k) for f in functions for k in launch_steps.kernels(named[f])}


def call_of(function, sizes):
    [f] = [f for f in kflib.manifest()["functions"] if f["name"] == function]
    return function, ready(f)[1], sizes


@pytest.fixture
def visible(driver, tmp_path):
    """Environment of a process that finds the driver by name."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system/libcuda.so.1").symlink_to(driver)
    return {"LD_LIBRARY_PATH": str(tmp_path / "system")}


@pytest.mark.check
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
    counts = [outcomes(p)[0][:2] for p in both]
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
    again, last = outcomes(start(cache, ("warmup", {**given, "arch": "sm_90"}), ("warmup", twice)))
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
    from kfgen.interfaces import packed

    chosen = {
        (f["op"], f["bwd"]): f["name"]
        for f in packed.functions(kflib.manifest())
        if f["dtypes"][0] in ("f32", "bf16")
        and "cuda" in f["backends"]
        and any(o == kfpython.stem(f) for o in kfpython.OPS)
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
    ({"ops": "relu", "dtypes": "int8"}, TypeError, "dtype is int8, expected one of f32"),
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
            match=r"kf\.warmup: KF_OFFLINE is set, and (\d+) of \1 kernels for sm_80 are not in "
            r".*'s kfk_act_f32<",
        ):
            kf.warmup("relu", dtypes="float32", arch="sm_80")
        if not kfpython.has("mish"):
            with pytest.raises(
                RuntimeError, match="kf.mish for bf16 is not in .*/cache, and KF_OFFLINE is set"
            ):
                kf.warmup("mish", dtypes="bfloat16", arch="sm_90")
    assert not list(tmp_path.iterdir())


BUILT = """
import json, sys
from kernel_fusion import _nvrtc
def missing():
    raise _nvrtc.Missing("there is no NVRTC")
_nvrtc.library, _nvrtc._tops = missing, list
import kernel_fusion as kf
kf.use_launchers(sys.argv[3])
""" + kfpython.LAUNCHES.replace("g = _gpu.Gpu(driver=sys.argv[1])", "g = _gpu.library()")


@pytest.mark.check
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
    [first] = outcomes(start(cache, ("build_launchers", given), KF_WHEEL_CFLAGS="-O0"))
    [again] = outcomes(start(cache, ("build_launchers", given), CXX="/nowhere", PATH="/nowhere"))
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
        match=r"kf.use_launchers: .* lacks launchers.json or libkf_cuda.so, which "
        r"kf.build_launchers writes",
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
        r"kf.use_launchers: launchers are already in use: .*/libkf_cuda.so", kfpython.python(script)
    )
