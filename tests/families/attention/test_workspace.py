# SPDX-License-Identifier: Apache-2.0
"""Workspace of long sequences: it does not grow with queries * keys."""

import ctypes
import math
import subprocess

import emulator
import kflib
import pytest
import toolkit

FUNCTIONS = [f for f in kflib.manifest()["functions"] if f["family"] == "attention"]
MOST = 64 << 20
# A backward may also hold a number per element of q, which sums dq.
OF_Q = 4
LONG = 65536
SHAPES = [
    {"batch": 1, "heads": 32, "kv_heads": 8, "queries": LONG, "keys": LONG, "dim": 128},
    {"batch": 1, "heads": 1, "queries": LONG, "keys": LONG, "dim": 64},
    {"batch": 1, "heads": 8, "queries": 1, "keys": LONG, "dim": 256},
    {"batch": 16, "heads": 16, "queries": 4096, "keys": LONG, "dim": 192, "dim_v": 128},
]


def program(functions, header, word, linkage, folder):
    """Compiles {function's name: its workspace}, the launchers excluded."""
    lines = [f'#include "{name}{header}"' for name in dict.fromkeys(f["header"] for f in functions)]
    for f in functions:
        name = f[word]
        lines.append(
            f"{linkage} size_t kft_{f['name']}(const kf_attention_t *shape);\n"
            f"size_t kft_{f['name']}(const kf_attention_t *shape) {{ return {name}(shape); }}"
        )
    source = folder / f"workspace{'.c' if header == '.h' else '.cpp'}"
    first = "" if header == ".h" else "#include <cuda_runtime.h>\n"
    source.write_text(first + "\n".join(lines) + "\n")
    return source


@pytest.mark.check
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_long_sequences(backend, tmp_path):
    own = [kflib.ROOT / "include", kflib.rendered()]
    functions = kflib.on(backend, FUNCTIONS)
    if backend == "cpu":
        command = ["gcc", "-std=c11", "-O0", "-w"]
        source = program(functions, ".h", "cpu_workspace", "", tmp_path)
    else:
        if not toolkit.include():
            pytest.skip("no CUDA headers")
        own = [emulator.HERE / "include", emulator.HERE, *own]
        command = ["g++", "-std=c++17", *emulator.flags("plain"), "-w"]
        source = program(functions, ".cuh", "workspace", 'extern "C"', tmp_path)
    target = tmp_path / "workspace.so"
    objects = [] if backend == "cpu" else [str(emulator.runtime(tmp_path, "plain"))]
    words = ["-shared", "-fPIC", *(f"-I{d}" for d in own), str(source), *objects]
    subprocess.run([*command, *words, "-o", str(target), "-lm"], check=True)
    dll = ctypes.CDLL(str(target))
    assert {f["op"] for f in functions} >= {"attention", "causal_attention", "bias_attention"}
    for f in functions:
        size = getattr(dll, f"kft_{f['name']}")
        size.restype = ctypes.c_size_t
        for shape in SHAPES:
            found = size(kflib.shape_struct(f, shape))
            q = math.prod(shape[s] for s in ("batch", "heads", "queries", "dim"))
            most = MOST + (OF_Q * q if f["bwd"] else 0)
            assert 0 < found <= most, (f["name"], shape, found)
