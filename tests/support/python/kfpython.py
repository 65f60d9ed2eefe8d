# SPDX-License-Identifier: Apache-2.0
"""Builds the Python package beside the checkout, with few ops at level 1, all from level 2."""

import ctypes
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest.mock

import cases
import kflib
import size_rules
from kfgen.interfaces import packed

SOURCE = kflib.ROOT / "frontends/python"
# Covers every family and operand layout of the frontend's code with few functions.
OPS = (
    "act",
    "bias",
    "act_glu",
    "act_dropout",
    "layer_norm",
    "cross_entropy",
    "sum",
    "batch_norm_train",
    "cast",
    "scale_mask_softmax",
    "scale_bool_mask_softmax",
    "scale_causal_softmax",
    "linear",
    "linear_act_glu",
    "act_linear",
    "linear_dropout_add",
    "matmul_nn",
    "matmul_nt",
    "matmul_tn",
    *cases.listed("PACKAGED"),
)
ACTIVATIONS = ("none", "relu", "gelu")
WHOLE = cases.LEVEL > 1
# From level 2 on the environment may reduce this: all activations take an hour to compile.
CHOSEN = {
    "KF_WHEEL_OPS": "all" if WHOLE else ",".join(OPS),
    "KF_WHEEL_ACTIVATIONS": os.environ.get("KF_WHEEL_ACTIVATIONS", "all")
    if WHOLE
    else ",".join(ACTIVATIONS),
    # Level 1 compiles without optimisation, in a third of the time; test_pip and level 2 use wheel
    # flags.
    "KF_WHEEL_CFLAGS": "" if WHOLE else "-O0",
}


def has(activation):
    """True if the package has the activation."""
    return CHOSEN["KF_WHEEL_ACTIVATIONS"] == "all" or activation in CHOSEN[
        "KF_WHEEL_ACTIVATIONS"
    ].split(",")


def _digest():
    found = hashlib.sha256(repr(CHOSEN).encode())
    for path in sorted(
        [
            *SOURCE.rglob("*.*"),
            *(kflib.ROOT / "gen").rglob("*.py"),
            *(kflib.ROOT / "templates/python").rglob("*.j2"),
        ]
    ):
        if path.is_file() and path.suffix != ".pyc":
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def in_few_files(compile_):
    """Wraps _build._compile to join a dozen files: parsing headers takes most of the time."""

    def together(path, chosen, command, texts, *more):
        names = sorted(n for n in texts if not n.startswith("packed_table."))
        joined = {
            f"joined_{i}_{names[i]}": "\n".join(texts[n] for n in names[i : i + 12])
            for i in range(0, len(names), 12)
        }
        compile_(
            path,
            chosen,
            command,
            joined | {n: text for n, text in texts.items() if n not in names},
            *more,
        )

    return together


def package():
    """Returns the folder that contains the package.

    At level 1 its source files are compiled a dozen together; test_pip and level 2 compile them
    separately.
    """
    folder = kflib.ROOT / "build/tests/python" / f"{kflib.rendered().name}-{_digest()}"
    with kflib.locked(folder.parent):
        if not (folder / "whole").exists():
            shutil.copytree(
                SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
            sys.path.insert(0, str(folder))
            from kernel_fusion import _build

            before = {k: os.environ.get(k) for k in CHOSEN}
            os.environ.update({**CHOSEN, "KF_WHEEL_JOBS": str(os.cpu_count())})
            with unittest.mock.patch.object(
                _build, "_compile", _build._compile if WHOLE else in_few_files(_build._compile)
            ):
                _build.build(folder / "kernel_fusion")
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            sys.path.remove(str(folder))
            # The first call compiles the shim, as it does in a package installed from a checkout.
            for shim in folder.glob("kernel_fusion/lib/torch_shim-*"):
                shim.unlink()
            (folder / "whole").touch()
    return folder


CACHE = kflib.ROOT / "build/tests/python/cache"


def packaged(kf, frontend=None):
    """Names of a frontend (kf.ops if None) except those that a test has loaded into this process by
    kf.load.
    """
    functions = sys.modules["kernel_fusion._table"].functions()
    return [n for n in dir(frontend or kf.ops) if n not in functions or not functions[n][0].own]


def use():
    """Makes `import kernel_fusion` find the package, with a cache directory of its own.

    Builds the libraries, since kernel_fusion.torch decides at its import whether to use the shim.
    """
    os.environ.setdefault("KF_CACHE_DIR", str(CACHE))
    folder = str(package())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return pathlib.Path(folder)


def python(script, **environment):
    """Runs a program in a new process that finds the package; returns its output."""
    path = os.pathsep.join([str(package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(CACHE), "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Packed:
    """The package's library with the interface of kflib.Lib: arguments by name, addresses of
    memory.
    """

    backend = "cpu"

    def __init__(self, library):
        self.library, self.detail = library, ""

    def has(self, f):
        return self.library.find(f["name"]) >= 0

    def call(self, f, values):
        def of(*roles):
            return [values[a["name"]] for a in f["arguments"] if a["role"] in roles]

        rng = (ctypes.c_uint64 * 2)(values.get("seed") or 0, values.get("offset") or 0)
        strides = values.get("strides")
        try:
            self.library.call(
                f["name"],
                of("in", "inout", "out", "sum"),
                [values[name] for name in packed.numbers(f)],
                strides,
                of("scalar", "act_scalar", "beta", "probability"),
                ctypes.addressof(rng),
                f["workspace"] is not None,
            )
        except ValueError as e:
            self.detail = str(e)
            return 1
        return 0

    def workspace_bytes(self, f, sizes):
        return 0  # the package's library


# Calls of launchers in a new process over a driver that computes nothing (fake_libcuda.cpp).
LAUNCHES = """
import ctypes, json, os, sys
STREAM = 0x5000
from kernel_fusion import _gpu
g = _gpu.Gpu(driver=sys.argv[1])
memory = ctypes.create_string_buffer(1 << 20)
at = -(-ctypes.addressof(memory) // 4096) * 4096
def call(function, tensors, sizes, scalars=(), rng=None):
    try:
        there = [None if t is None else at + 65536 * t for t in tensors]
        space = lambda n: (None, at + 65536 * 14)
        g.call(function, there, sizes, None, scalars, rng and at, space, 0, STREAM)
        return "ok"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
print(json.dumps([call(*c) for c in json.loads(sys.argv[2])]))
"""


def calls(driver, cache, *found, script=LAUNCHES, more=(), **environment):
    """Runs calls in a new process; returns ([their outcomes], [launched kernels with block
    sizes]).
    """
    path = os.pathsep.join([str(package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", script, str(driver), json.dumps(found), *map(str, more)],
        capture_output=True,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(cache), "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


def ready(f):
    """Arguments of a call of a manifest's function, with distinct tensors."""
    tensors = [a for a in f["arguments"] if a["role"] in ("in", "inout", "out", "sum")]
    sizes = dict(zip(f["sizes"], (8, 16, 4, 4, *[8] * 6), strict=False))
    sizes |= {size: n for size, n in (("pairs", 2), ("block_size", 64)) if size in sizes}
    assert len(sizes) == len(f["sizes"]), f["name"]
    scalars = [
        a.get("default") or 0.5
        for a in f["arguments"]
        if a["role"] in ("scalar", "act_scalar", "beta", "probability")
    ]
    integers = [0 for a in f["arguments"] if a["role"] == "integer"]
    given = [*sizes.values(), *size_rules.options(f).values(), *integers]
    return f["name"], list(range(len(tensors))), given, scalars, f["dropout"]


def stem(f):
    """Name of the header of a manifest's function."""
    return f["header"].rsplit("/", 1)[-1]
