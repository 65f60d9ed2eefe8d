# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion.tvm_ffi: bits of both directions of each op, strides, errors."""

import importlib

import cases
import kfpython
import numpy as np
import pytest
import pytorch

tvm_ffi = pytest.importorskip("tvm_ffi")
torch = pytorch.load()

import torchops  # noqa: E402
from torchops import case, ids  # noqa: E402


@pytest.fixture(scope="module")
def kf_tvm(kf):
    return importlib.import_module("kernel_fusion.tvm_ffi")


def one_of_each_family():
    found = {(f["family"], f["dropout"]): f for f in torchops.of_each_op(torchops.ALL)[::-1]}
    return list(found.values())


def call(kf_tvm, c, name, given):
    """Calls a registered function with arguments by name; numbers have the case's values."""
    numbers = c.scalars | c.kwargs | {"beta": 0.0}
    if "rng" in c.kwargs:
        numbers |= dict(zip(("seed", "offset"), c.kwargs["rng"]))
    arguments = [given[n] if n in given else numbers[n] for n in kf_tvm.arguments(name)]
    kf_tvm.get(name)(*arguments)


@pytest.mark.parametrize("f", torchops.ALL if cases.LEVEL > 1 else one_of_each_family(), ids=ids)
def test_bits_of_both_directions(kf, kf_tvm, f):
    dtype = f["dtypes"][0]
    names = kf_tvm.register([ids(f)], [dtype])
    name = f["name"].removeprefix("kf_")
    assert f"kf.{name}" in names
    c = case(f, dtype)
    given = {n: t.detach().clone() for n, t in c.tensors.items()}
    results = torchops.results(c.call(kf))
    op = c.op
    axis, groups = (1, 3 if op.has_groups else 1)
    shapes = {t.name: tuple(given[t.name].shape) for t in op.forward.shaping}
    layout = op.lay_out(op.forward, shapes, axis, groups)
    at = {op.forward.outputs[i].name: r for i, r in zip(op.forward.results, results)}
    variables = {"T": dtype, "acc": torchops._table.WIDE[dtype]}
    for t in op.forward.outputs:
        if t.place_of:
            given[t.name] = given[t.place_of]
        else:
            word = variables.get(t.var, dtype if t.var in op.further else t.var)
            own = {**torchops.DTYPES, "u8": torch.uint8}[word]
            given[t.name] = torch.empty(layout.of(t), dtype=own)
    call(kf_tvm, c, name, given)
    for n, want in at.items():
        assert torch.equal(given[n].view(torch.uint8), want.detach().view(torch.uint8)), n
    if f["backward"]:
        _check_backward(kf_tvm, c, f["backward"].removeprefix("kf_"), given, at)


def _check_backward(kf_tvm, c, name, given, results):
    ups = {n: torch.randn(r.shape).to(r.dtype) for n, r in results.items() if r.requires_grad}
    wanted = torch.autograd.grad(
        [results[n] for n in ups], [c.tensors[n] for n in c.wanted], [*ups.values()]
    )
    gradients = {f"d{n}": torch.empty_like(c.tensors[n].detach()) for n in c.wanted}
    # Gradients of results that autograd does not pass on, such as lse.
    absent = {t.name: None for t in c.op.backward.inputs if t.nullable and t.name not in given}
    call(kf_tvm, c, name, given | absent | {f"d{n}": up for n, up in ups.items()} | gradients)
    for n, want in zip(c.wanted, wanted):
        got = gradients[f"d{n}"]
        unchanged = next(t.unchanged for t in c.op.backward.outputs if t.of == n)
        same = got if not unchanged else ups[unchanged.removeprefix("d")]
        assert torch.equal(same, want) or torch.equal(same.isnan(), want.isnan()), n


def test_strided_rows_and_numpy(kf, kf_tvm):
    kf_tvm.register(["layer_norm_gelu"], ["float32"])
    norm = tvm_ffi.get_global_func("kf.layer_norm_gelu_f32")
    wide, out = torch.randn(4, 16), np.empty((4, 8), np.float32)
    norm(wide[:, 4:12], None, None, out, None, None, 1e-5)
    assert (out == kf.ops.layer_norm_gelu(wide[:, 4:12]).numpy()).all()


def test_errors(kf_tvm):
    kf_tvm.register(["layer_norm_gelu"], ["float32"])
    norm = kf_tvm.get("layer_norm_gelu_f32")
    x, w, out = torch.randn(4, 8), torch.ones(8), torch.empty(4, 8)
    for given, kind, text in (
        ((x, w, None, out, None, None, "a"), TypeError, "eps is no number, expected one"),
        ((x,), TypeError, "weight is missing"),
        ((None, w, None, out, None, None, 1e-5), ValueError, "x is missing"),
        ((1, w), TypeError, "x is no tensor, expected one, or None"),
        (
            (x, w[:3], None, out, None, None, 1e-5),
            ValueError,
            r"weight has the shape \(3,\), expected \(8,\) beside x of the shape \(4, 8\)",
        ),
        (
            (x.double(), w, None, out, None, None, 1e-5),
            TypeError,
            "x has the dtype float64, expected float32",
        ),
        (
            (x, w, None, out[:2], None, None, 1e-5),
            ValueError,
            r"out has the shape \(2, 8\), expected \(4, 8\)",
        ),
        (
            (x.t().contiguous().t(), w, None, out, None, None, 1e-5),
            ValueError,
            "x has strides that the function does not support: make it contiguous",
        ),
        ((x, w, None, out, None, None, -1.0), ValueError, "eps is -1, expected 0 or more"),
        ((x, w, None, out, None, None, 1e-5, 3), TypeError, "8 arguments are given, expected 7"),
    ):
        with pytest.raises(kind, match=f"kf.layer_norm_gelu: .*{text}"):
            norm(*given)
    with pytest.raises(ValueError, match="kf.nothing: there is no op|there is no op `nothing`"):
        kf_tvm.register(["nothing"])
    with pytest.raises(ValueError, match="kf.tvm_ffi: nothing_f32 is not registered"):
        kf_tvm.get("nothing_f32")


@pytest.mark.check
def test_all_functions_are_registered():
    """Every differentiable function of the package has both directions."""
    count = kfpython.python(
        "from kernel_fusion import _table, tvm_ffi as kf_tvm\n"
        "names = kf_tvm.register(dtypes=['float32'])\n"
        "own = [(op, a) for op, a in _table.functions().values() if not op.forward.updates]\n"
        "wanted = sum(1 + (op.backward is not None) for op, a in own if ('f32',) in op.dtypes)\n"
        "print(len(names) >= wanted > 1000, len(names) == len(set(names)))"
    )
    assert count == "True True"
