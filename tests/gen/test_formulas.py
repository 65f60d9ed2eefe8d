# SPDX-License-Identifier: Apache-2.0
"""The manifest's NumPy and PyTorch statements agree with the `ref` fields, which share no code.

Functions over lists update tensors in place; their families' own tests check them.
"""

import ast

import cases
import checks
import kflib
import numpy as np
import pytest
import pytorch
import scipy.special as sp
from storage import STORAGE, from_float, to_float

MANIFEST, OF_TENSORS = kflib.manifest(), kflib.of_tensors()
# A function per formula: in f64, or else in its first dtypes.
BY_FORMULA = {
    f["statements"]: f for f in reversed(OF_TENSORS) if f["dtypes"] == ["f64"] and not f["state"]
}
# Formulas of gradients from an activation's result.
BY_RESULT = {f["statements_by_result"]: f for f in BY_FORMULA.values() if f["statements_by_result"]}
# Every op in both directions, and every activation.
SAMPLE = [
    name
    for name, f in BY_FORMULA.items()
    if f["activation"] in ("none", "gelu") or f["op"] in ("{act}", "layer_norm_{act}")
]
SAMPLE += [name for name, f in BY_RESULT.items() if f["op"] in ("{act}", "bias_{act}")]
ALL = [*BY_FORMULA, *BY_RESULT]
TORCH = {
    "abs",
    "amax",
    "amin",
    "arange",
    "as_tensor",
    "broadcast_to",
    "cat",
    "clamp",
    "cos",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "float64",
    "full",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "prod",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "sum",
    "take_along_dim",
    "tanh",
    "where",
    "zeros",
}
METHODS = {"reshape", "to", "dtype", "device", "index_add", "swapaxes"}


class NoLibrary:
    backend = "cpu"

    def workspace_bytes(self, f, sizes):
        return 0


def call_of(name):
    """Draws inputs of a shape whose sizes mostly differ."""
    f = BY_FORMULA.get(name) or BY_RESULT[name]
    drop = (
        checks.instead_of(f)
        if name in BY_RESULT
        else (checks.result_of(f),)
        if checks.result_of(f)
        else ()
    )
    whole = [sizes for sizes, _ in cases.shapes(f, whole=False) if all(sizes)]
    shapes = [sizes for sizes in whole if np.prod(sizes) < 4000] or [min(whole, key=np.prod)]
    return checks.Layout(
        NoLibrary(), f, max(shapes, key=lambda s: (len(set(s)), np.prod(s))), drop=drop
    )


def environment(call):
    """Returns the values that the statements read."""
    f = call.f
    found = (
        dict(zip(f["sizes"], call.sizes))
        | dict(call.scalars)
        | dict(zip(("keep", "keep_scale"), mask_of(call)))
    )
    for name, a in call.tensors.items():
        read = a["role"] in ("in", "inout") and not a["unread"] and name not in call.drop
        if read or call.scalars.get("beta"):
            whole = STORAGE[a["dtype"]] not in (np.uint16, np.float32, np.float64)
            found[name] = call.data[name] if whole else to_float(call.data[name], a["dtype"])
    return found


def mask_of(call):
    """Returns a tensor's shape from the sizes, or from the family's rule for results."""
    return [
        m.reshape(call.sizes)
        if np.ndim(m) and m.size == np.prod(call.sizes) and not hasattr(call.own, "result")
        else m
        for m in call.mask()
    ]


def stored(call, values):
    """The outputs as the function would store them, of the shapes that the manifest has."""
    found = {}
    for name, a in call.tensors.items():
        if a["role"] != "in":
            value = np.asarray(values[name])
            assert value.shape == call.data[name].shape, (call.where, name, value.shape)
            found[name] = (
                value.astype(STORAGE[a["dtype"]])
                if a["dtype"][0] == "i"
                else from_float(value.astype(np.float64), a["dtype"])
            )
    return found


def test_every_function_has_them():
    by = {f["statements_by_result"] for f in MANIFEST["functions"]} - {None}
    assert {f["statements"] for f in MANIFEST["functions"]} | by == set(
        MANIFEST["statements"]
    ) and len(by) > 30
    assert {f["statements"] for f in OF_TENSORS} - set(BY_FORMULA) == {
        "cast"
    }  # which has no f64 alone


@pytest.mark.parametrize("name", cases.by_level(SAMPLE, ALL))
def test_numpy(name):
    call = call_of(name)
    names = environment(call) | {"T": np.float64}
    with np.errstate(all="ignore"):
        exec("\n".join(MANIFEST["statements"][name]["numpy"]), {"np": np, "sp": sp}, names)
    call.check(stored(call, names))


@pytest.mark.parametrize("name", cases.by_level(SAMPLE, ALL))
def test_torch(name):
    torch = pytorch.load()
    call = call_of(name)
    arrays = {
        n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
        for n, v in environment(call).items()
    }
    names = arrays | {"T": torch.float64}
    exec("\n".join(MANIFEST["statements"][name]["torch"]), {"torch": torch}, names)
    call.check(
        stored(call, {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in names.items()})
    )


def test_words_of_torch():
    """Without torch: the statements are Python and call only these functions."""
    seen = set()
    for name, of in MANIFEST["statements"].items():
        for node in ast.walk(ast.parse("\n".join(of["torch"]))):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value)
                assert node.attr in (TORCH if owner == "torch" else METHODS), (
                    name,
                    ast.unparse(node),
                )
                seen |= {node.attr} if owner == "torch" else set()
            assert not isinstance(node, (ast.Import, ast.Lambda, ast.FunctionDef)), name
    assert len(seen) > 20 and seen <= TORCH
