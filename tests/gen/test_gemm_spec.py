# SPDX-License-Identifier: Apache-2.0
"""Entries of products of matrices that are refused, with what to do; and what one that is not makes."""

import pytest
from kfgen import contract, spec
from kfgen.expand import kernels

ENTRY = {"family": '"gemm"', "brief": '"own"', "operands": '{ x = "left", weight = "right", bias = { kind = "row", absent = 0 } }',
         "saved": '{ pre = "acc + bias" }', "expr": '"pre * pre"', "ref": '"(x @ weight.T + bias) ** 2"'}


def entry(tmp_path, **fields):
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(["[op.own]", *(f"{k} = {v}" for k, v in (ENTRY | fields).items() if v)]))
    return path


@pytest.mark.parametrize("fields, said", [
    ({"operands": '{ x = "left", bias = "row" }'}, 'operands: have no "right"'),
    ({"operands": '{ x = "left", weight = "right", bias = { kind = "row", absent = 1 } }'}, "operands: stand for another number than 0"),
    ({"operands": '{ x = "left", weight = "right", other = "right", bias = "row" }'}, "products: are"),
    ({"operands": '{ x = "left", z = "left", weight = "right", bias = "row" }'}, "operands: `z` is not read by the left factor"),
    ({"operands": '{ x = "left", weight = "right", bias = "row", residual = "elem" }'}, "operands: `residual` is not read by the expression"),
    ({"products": '{ acc = "x + weight" }'}, "products: acc is 'x + weight'"),
    ({"products": '{ acc = "weight * x" }'}, "products: acc is 'weight * x'"),
    ({"products": '{ acc = "x * weight", more = "x * weight" }'}, "products: are"),
    ({"products": '{ pre = "x * weight" }'}, "products: the name `pre` cannot be used"),
    ({"products": '{ other = "x * weight" }', "saved": '{ pre = "bias + 1" }'}, "expr: does not read the product `other`"),
    ({"load": '{ value = "x * bias" }'}, "load: reads `bias`, which is not one of"),
    ({"load": '{ a = "x * x", b = "x + x" }'}, "load: makes several factors"),
    ({"load": '{ value = 3 }'}, "load: value is 3"),
    ({"saved": '{ pre = "acc +" }'}, "saved: "),
    ({"saved": "", "expr": '"acc * acc + bias"'}, "saved: does not have what the gradient reads of the product `acc`"),
    ({"layout": '"nx"'}, "layout: is 'nx'"),
    ({"layout": '"tn"', "operands": '{ x = "left", shift = "depth", weight = "right", bias = "row" }', "load": '{ value = "x + shift" }'},
     'layout: is \'tn\' of an op with a "depth"'),
    ({"accumulates": "true"}, "accumulates: belongs to an op with one result"), ({"accumulates": "1"}, "accumulates: is 1"),
    ({"types": '"weights"'}, "types: is 'weights'"), ({"ints": "true"}, "ints: "), ({"operands": '{ acc = "left", weight = "right" }'}, "operands: "),
])
def test_refused(tmp_path, fields, said):
    with pytest.raises(spec.SpecError) as caught:
        spec.load([entry(tmp_path, **fields)])
    assert f"[op.own] {said}" in str(caught.value) and "\n  fix: " in str(caught.value), caught.value


def test_what_it_makes(tmp_path):
    op = spec.load([entry(tmp_path)]).ops["own"]
    found = {(*k.dtypes, k.bwd): k for k in kernels(op)}
    assert set(found) == {(d, bwd) for d in ("f32", "f16", "bf16", "f64") for bwd in (False, True)} | {(d, "f32", True) for d in ("f16", "bf16")}
    forward, backward = found["f32", False], found["bf16", "f32", True]
    assert contract.formulas(forward) == ["acc = x . weight^T", "pre = acc + bias", "out = pre * pre"]
    assert contract.formulas(backward) == ["t0 = dout * pre", "dacc = t0 + t0", "dx = dacc . weight", "dweight = dacc^T . x + beta * dweight",
                                           "dbias = sum over rows of dacc + beta * dbias"]
    assert [(s.word, len(s.reads), len(s.makes)) for s in backward.seams] == [("slopes", 2, 2), ("inputs", 1, 1)]
    assert {s.name: s.dtype.word for s in backward.outputs} == {"dx": "bf16", "dweight": "f32", "dbias": "f32"}


def test_a_user_s_activation_is_there(tmp_path):
    """Of kf's own the heavy ones alone."""
    path = tmp_path / "mine.toml"
    path.write_text('[activation.own]\nbrief = "x"\nexpr = "x + x"\nref = "2 * x"\n')
    loaded = spec.load([path])
    names = [a.name for a in loaded.ops["linear_{act}"].activations]
    assert names[-1] == "own" and "softplus" not in names and len(names) == 13
