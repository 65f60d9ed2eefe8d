# SPDX-License-Identifier: Apache-2.0
"""kf.load of spec files in programs that use PyTorch."""

import json

import kfpython
import pytest

pytest.importorskip("torch")

SPEC = """
[activation.{name}]
brief = "slope * x"
scalars = {{ slope = 0.5 }}
expr = "slope * x"
ref = "slope * x"
edges = {{ nan = "nan", inf = "inf", "-inf" = "-inf", "-0" = "-0" }}
ulp = {{ f32 = 4, f64 = 4, f16 = 1, bf16 = 1 }}

[op."{{act}}_{name}_scale"]
brief = "gamma * act(x)"
operands = {{ x = "elem", gamma = "row" }}
expr = "gamma * act(x)"
ref = "gamma * act(x)"
"""
OWN = """
[op.{name}_scale]
brief = "gamma * x"
operands = {{ x = "elem", gamma = "row" }}
expr = "gamma * x"
ref = "gamma * x"
"""
# One file is loaded before PyTorch is imported, the other one after it.
PROGRAM = """
import json
import numpy as np
import kernel_fusion as kf
kf.load(FIRST)
import torch
kf.load(SECOND)
found = []
for name in ("first", "second"):
    for act, more in ((name, {"slope": 3.0}), ("relu", {})):
        f = getattr(kf.ops, f"{act}_{name}_scale")
        x = torch.tensor([[-1.0, 2.0]], requires_grad=True)
        gamma = torch.tensor([5.0, 7.0])
        out = f(x, gamma, **more)
        out.sum().backward()
        same = np.array_equal(f(x.detach().numpy(), gamma.numpy(), **more), out.detach().numpy())
        found.append([out.tolist(), x.grad.tolist(), same])
print(json.dumps([kf.info()["torch"], found]))
"""


@pytest.mark.check
@pytest.mark.parametrize("shim", ["1", "0"])
def test_activations_of_ones_own(shim, tmp_path):
    """An op with {act} has the file's own activations, and kf's, in PyTorch and in NumPy."""
    program = PROGRAM
    for word in ("first", "second"):
        path = tmp_path / f"{word}.toml"
        path.write_text(SPEC.format(name=word))
        program = program.replace(word.upper(), repr(str(path)))
    info, found = json.loads(kfpython.python(program, KF_TORCH_SHIM=shim))
    assert info.startswith("shim" if shim == "1" else "ctypes: KF_TORCH_SHIM is 0")
    linear = [[[-15.0, 42.0]], [[15.0, 21.0]], True]
    assert found == 2 * [linear, [[[0.0, 14.0]], [[0.0, 7.0]], True]]


def test_a_file_is_loaded_twice(kf, tmp_path):
    """Unchanged files give the same names, also by another path; a changed one is an error."""
    path, other = tmp_path / "twice.toml", tmp_path / "also.toml"
    path.write_text(OWN.format(name="twice"))
    other.write_text(OWN.format(name="also"))
    assert kf.load(path) == ["twice_scale"]
    function = kf.ops.twice_scale
    assert kf.load(str(tmp_path / "." / path.name)) == ["twice_scale"]
    assert kf.ops.twice_scale is function
    text = rf"kf\.load: kf\.ops has `twice_scale` already, from {path}"
    with pytest.raises(ValueError, match=text):
        kf.load(other, path)
    assert "also_scale" not in dir(kf.ops)
    path.write_text(OWN.format(name="twice").replace("gamma * x", "x * gamma"))
    with pytest.raises(ValueError, match=rf"kf\.load: {path} changed since it was loaded"):
        kf.load(path)
