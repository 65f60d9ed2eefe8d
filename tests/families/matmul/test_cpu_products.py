# SPDX-License-Identifier: Apache-2.0
"""Tests matmul in C beyond test_numbers.py: a user's own layers, results that do not depend on
other requested outputs, weight gradients that accumulate, and batches that share a weight."""

import checks
import faults
import kflib
import numpy as np
import pytest
import storage
import user_ops
from conftest import BUILD
from kfgen import check

OWN = """
[op.linear_softcap]
family = "matmul"
brief = "softcap * tanh((x . weight^T + bias) / softcap)"
operands = { x = "left", weight = "right", bias = { kind = "row", absent = 0 } }
scalars = { softcap = 3 }
saved = { pre = "acc + bias" }
expr = "softcap * tanh(pre / softcap)"
ref = "softcap * np.tanh((x @ weight.T + bias) / softcap)"

[op."linear_{act}_layer_scale"]
family = "matmul"
layout = "nn"
brief = "act(x . weight + bias) * gamma + residual"
operands.x = "left"
operands.weight = "right"
operands.bias = { kind = "row", absent = 0 }
operands.gamma = "row"
operands.residual = "elem"
saved = { pre = "acc + bias" }
expr = "act(pre) * gamma + residual"
ref = "act(x @ weight + bias) * gamma + residual"

[op.gated_two]
family = "matmul"
brief = "two results of two products, of what is made of two tensors"
operands.x = "left"
operands.z = "left"
operands.shift = { kind = "depth", absent = 0 }
operands.a = "right"
operands.b = "right"
load = { value = "x * sigmoid(z + shift)" }
products = { first = "value * a", second = "value * b" }
outputs = { total = "first + second", apart = "first * 0.5 - second" }
refs.total = "(x / (1 + np.exp(-z - shift))) @ (a + b).T"
refs.apart = "(x / (1 + np.exp(-z - shift))) @ (0.5 * a - b).T"
"""
NAMES = (
    "kf_linear_gelu_f32",
    "kf_linear_gelu_bwd_bf16_f32",
    "kf_linear_silu_mul_bf16",
    "kf_gelu_linear_bwd_f32",
    "kf_matmul_tn_f32",
    "kf_linear_bwd_f32",
    "kf_linear_f32",
    "kf_linear_relu_bwd_f32",
)
SIZES = (2, 19, 33, 20)


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory(1 << 24)


@pytest.fixture(scope="module")
def lib():
    return kflib.build(
        "cpu", [function(name) for name in NAMES], BUILD / "products", ("-O2", "-fopenmp")
    )


def function(name):
    return next(f for f in kflib.manifest()["functions"] if f["name"] == name)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Returns (spec file, its functions, a library of them)."""
    folder = tmp_path_factory.mktemp("own")
    path, include, functions = user_ops.load(OWN, folder, activations=["none", "gelu"])
    functions = [f for f in functions if f["dtypes"][0] in ("f32", "bf16")]
    return (
        path,
        functions,
        kflib.build(
            "cpu", functions, folder / "lib", ("-O1",), include=[*kflib.render(folder), folder]
        ),
    )


def test_a_user_s_own_are_right(own, memory):
    path, functions, lib = own
    assert {f["op"] for f in functions} == {
        "linear_softcap",
        "linear_{act}_layer_scale",
        "gated_two",
    } and len(functions) == 20
    for op in {f["op"]: storage.spec((path,)).ops[f["op"]] for f in functions}.values():
        failures = []
        check._op(op, op.activations[0], failures)
        assert failures == []
    for f in functions:
        for sizes in (SIZES, (1, 2, 300, 5), (1, 50, 7, 130)):
            checks.run(lib, memory, f, sizes, files=(path,))


def test_results_do_not_depend_on_what_is_saved(lib, memory):
    for name in ("kf_linear_gelu_f32", "kf_linear_silu_mul_bf16"):
        f = function(name)
        saved = tuple(a["name"] for a in f["arguments"] if a.get("use") == "saved")
        whole, alone = (checks.run(lib, memory, f, SIZES, drop=drop) for drop in ((), saved))
        assert saved and checks.same_bits(whole["out"], alone["out"])


def test_gradients_are_added(lib, memory):
    """Weight gradients add beta times the old value; beta 0 does not read it. (Outputs are filled
    with NaN elsewhere.)"""
    for name in ("kf_linear_gelu_bwd_bf16_f32", "kf_gelu_linear_bwd_f32"):
        f = function(name)
        found = {}
        for beta in (0.0, 1.0, -0.5):
            call = checks.Layout(lib, f, (2, 20, 33, 20))
            assert call.scalars["beta"] == 0.5 * (sum(call.sizes) % 2)
            call.scalars["beta"] = beta
            for a in call.tensors.values():
                if a["role"] != "in" and beta:
                    call.put(
                        a["name"],
                        storage.from_float(np.full(call.data[a["name"]].shape, 3.0), a["dtype"]),
                    )
            result, back = memory.run(
                call.image, lambda base, f=f, call=call: lib.call(f, call.given(base))
            )
            assert result == 0, lib.detail
            found[beta] = call.outputs(back)
        for a in (a for a in f["arguments"] if a["role"] in ("out", "sum")):
            fresh, one, half = (
                storage.to_float(found[beta][a["name"]], a["dtype"]) for beta in (0.0, 1.0, -0.5)
            )
            assert np.isfinite(fresh).all()
            added = 3.0 * (a["role"] == "sum")
            for got, want in ((one, fresh + added), (half, fresh - 0.5 * added)):
                assert (np.abs(got - want) <= 1e-5 * (np.abs(want) + 3)).all(), (name, a["name"])


def test_batches_that_share_a_weight_are_one(lib, memory):
    """Batches that share a weight have the bits of one call with all rows, because rows are
    independent."""
    f = function("kf_linear_f32")
    rng = np.random.default_rng(3)
    x, weight, bias = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((3, 50, 20), (1, 33, 20), (1, 33))
    )
    strides = next(a for a in f["arguments"] if a["role"] == "strides")
    shared = np.zeros(len(strides["fields"]), np.int64)
    for field in ("weight_batch", "bias_batch"):
        shared[strides["fields"].index(field)] = -(2**63)
    outs = []
    for sizes, given in (((3, 50, 33, 20), shared), ((1, 150, 33, 20), None)):
        out = np.full((3, 50, 33), np.nan, np.float32)
        held, at = storage.workspace(lib.workspace_bytes(f, sizes))
        values = dict(zip(f["sizes"], sizes)) | {
            "x": x.ctypes.data,
            "weight": weight.ctypes.data,
            "bias": bias.ctypes.data,
            "out": out.ctypes.data,
            "pre": None,
            "workspace": at,
            "workspace_bytes": held.size - 256,
            "strides": None if given is None else given.ctypes.data,
        }
        assert lib.call(f, values) == 0, lib.detail
        outs.append(out)
    assert checks.same_bits(*outs)


def test_one_row_s_nan_stays_there(lib, memory):
    f = function("kf_linear_gelu_f32")
    call = checks.Layout(lib, f, SIZES)
    x = call.data["x"].copy()
    x[1, 7, 3] = np.nan
    call.put("x", x)
    result, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    assert result == 0
    missing = np.isnan(call.outputs(back)["out"])
    assert missing[1, 7].all() and missing.sum() == SIZES[2]


FAULTS = {
    "the first batch's tensors": (
        "kf/core/matmul/seam.h",
        r"return at\[KFI_AXIS_BATCH\] \*",
        "return 0 *",
        "kf_linear_f32",
        SIZES,
    ),
    "the slopes of the row before": (
        "kf/core/matmul/seam.h",
        r"\+ at\[KFI_AXIS_ROWS\]\) \* m->products",
        "+ 0) * m->products",
        "kf_linear_relu_bwd_f32",
        SIZES,
    ),
    "sums of the first part alone": (
        "kf/core/matmul/op.h",
        r"part < count; \+\+part",
        "part < 1; ++part",
        "kf_linear_bwd_f32",
        (1, 70, 20, 5),
    ),
    "what is there is not added": (
        "kf/core/matmul/seam_block.h",
        r"if \(row->beta != 0\)",
        "if (0)",
        "kf_matmul_tn_f32",
        (2, 20, 33, 20),
    ),
    "the second weight is the first": (
        "kf/core/matmul/op.h",
        r"m->weights\[m->products - 1\]",
        "m->weights[0]",
        "kf_linear_silu_mul_bf16",
        SIZES,
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_seeded_fault(include, memory, tmp_path, what):
    file, text, instead, name, sizes = FAULTS[what]
    f = function(name)
    broken = kflib.build(
        "cpu",
        [f],
        tmp_path / "lib",
        ("-O1",),
        include=faults.plant(include, tmp_path, file, text, instead),
    )
    with pytest.raises(checks.Failure):
        for s in (sizes, (2, 20, 33, 20)):
            checks.run(broken, memory, f, s)
