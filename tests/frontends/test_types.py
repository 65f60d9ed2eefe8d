# SPDX-License-Identifier: Apache-2.0
"""mypy --strict on the package, and on a user program against the generated stubs."""

import importlib
import inspect
import os
import subprocess
import sys

import kflib
import kfpython
import pytest

pytest.importorskip("mypy")
PROGRAM = """
import kernel_fusion as kf
import numpy as np
import torch
from numpy.typing import NDArray
from typing import Any

array, tensor = np.ones((2, 3)), torch.ones(2, 3)
a: NDArray[Any] = kf.ops.layer_norm_gelu(array, eps=1e-5)
t: torch.Tensor = kf.ops.fused_layer_norm_gelu(tensor, torch.nn.Parameter(tensor[0]))
both: tuple[torch.Tensor, torch.Tensor] = kf.ops.add_rms_norm(tensor, tensor)
kf.ops.sum(array, dim=None)
kf.ops.sum(tensor, dim=(0, 1), keepdim=True)
norm = kf.nn.LayerNorm(8, activation="gelu")
module: torch.nn.Module = torch.nn.Sequential(norm, kf.nn.ELU(alpha=2.0), kf.nn.QuickGELU())
optimizer: torch.optim.Optimizer = kf.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
kf.ops.layer_norm_gelu(array, epsilon=1e-5)
kf.ops.bias_relu(array)
kf.ops.add(array, tensor)
wrong: int = kf.ops.relu(tensor)
"""
EXPECTED = {
    16: 'Unexpected keyword argument "epsilon" for "layer_norm_gelu"',
    17: 'Missing positional argument "bias" in call to "bias_relu"',
    18: 'Value of type variable "A" of "add" cannot be',
    19: "Incompatible types in assignment",
}


@pytest.mark.check
def test_mypy(tmp_path):
    """One run checks both, since reading torch is slow."""
    (tmp_path / "program.py").write_text(PROGRAM.lstrip())
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        kflib.ROOT / "pyproject.toml",
        "--cache-dir",
        kflib.ROOT / "build/tests/mypy",
    ]
    done = subprocess.run(
        [*command, "-p", "kernel_fusion", "-p", "kernel_fusion_tensorflow", "-m", "program"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": path},
    )
    found = {
        int(line.split(":")[1]): line
        for line in done.stdout.splitlines()
        if line.startswith("program.py") and ": error: " in line
    }
    others = [
        line
        for line in done.stdout.splitlines()
        if ": error: " in line and line not in found.values()
    ]
    assert not others and not done.stderr, done.stdout + done.stderr
    assert set(found) == set(EXPECTED) and all(EXPECTED[n] in line for n, line in found.items()), (
        found
    )


def test_stubs_are_the_functions(kf):
    """Stubs have the arguments, order and defaults of inspect.signature."""
    stub = (kfpython.package() / "kernel_fusion/ops.pyi").read_text()
    names = {"torch": importlib.import_module("types").SimpleNamespace(Tensor=object)}
    exec(compile(stub.replace("import torch\n", ""), "ops.pyi", "exec"), names)
    for name in (n for n in kfpython.packaged(kf) if n != "call"):
        own, wanted = (
            inspect.signature(f).parameters for f in (names[name], getattr(kf.ops, name))
        )
        if [p.kind for p in wanted.values()] != [
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ]:
            assert [(p.name, p.kind, p.default) for p in own.values()] == [
                (p.name, p.kind, p.default) for p in wanted.values()
            ], name


def test_stubs_of_jax_are_its_functions(kf):
    """The same for kernel_fusion.jax, which has every function but those that overwrite."""
    pytest.importorskip("jax")
    import jax
    import kernel_fusion.jax as kj

    stub = (kfpython.package() / "kernel_fusion/jax/__init__.pyi").read_text()
    names = {"jax": jax}
    exec(compile(stub, "__init__.pyi", "exec"), names)
    for name in (n for n in kfpython.packaged(kf, kj) if n not in kj.__all__):
        own, wanted = (inspect.signature(f).parameters for f in (names[name], getattr(kj, name)))
        if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):  # an alias
            assert [*own] and name.removesuffix("_jax") in dir(kf.ops)
            continue
        assert [(p.name, p.kind, p.default) for p in own.values()] == [
            (p.name, p.kind, p.default) for p in wanted.values()
        ], name
