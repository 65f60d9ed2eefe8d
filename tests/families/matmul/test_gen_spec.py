# SPDX-License-Identifier: Apache-2.0
"""Spec entries of matrix products: refused ones with their messages and fixes, and the kernels of
an accepted one."""

import pytest
from kfgen.entries import spec
from kfgen.entries.expand import kernels
from kfgen.model import contract

ENTRY = {
    "family": '"matmul"',
    "brief": '"own"',
    "operands": '{ x = "left", weight = "right", bias = { kind = "row", absent = 0 } }',
    "saved": '{ pre = "acc + bias" }',
    "expr": '"pre * pre"',
    "ref": '"(x @ weight.T + bias) ** 2"',
}


def entry(tmp_path, **fields):
    path = tmp_path / "mine.toml"
    path.write_text(
        "\n".join(["[op.own]", *(f"{k} = {v}" for k, v in (ENTRY | fields).items() if v)])
    )
    return path


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"operands": '{ x = "left", bias = "row" }'}, 'operands: have no "right"'),
        (
            {"operands": '{ x = "left", weight = "right", bias = { kind = "row", absent = 1 } }'},
            "operands: stand for another number than 0",
        ),
        (
            {"operands": '{ x = "left", weight = "right", other = "right", bias = "row" }'},
            "products: are",
        ),
        (
            {"operands": '{ x = "left", z = "left", weight = "right", bias = "row" }'},
            "operands: `z` is not read by the left factor",
        ),
        (
            {"operands": '{ x = "left", weight = "right", bias = "row", residual = "elem" }'},
            "operands: `residual` is not read by the expression",
        ),
        ({"products": '{ acc = "x + weight" }'}, "products: acc is 'x + weight'"),
        ({"products": '{ acc = "weight * x" }'}, "products: acc is 'weight * x'"),
        ({"products": '{ acc = "x * weight", more = "x * weight" }'}, "products: are"),
        ({"products": '{ pre = "x * weight" }'}, "products: the name `pre` cannot be used"),
        (
            {"products": '{ other = "x * weight" }', "saved": '{ pre = "bias + 1" }'},
            "expr: does not read the product `other`",
        ),
        ({"load": '{ value = "x * bias" }'}, "load: reads `bias`, which is not one of"),
        ({"load": '{ a = "x * x", b = "x + x" }'}, "load: makes several factors"),
        ({"load": "{ value = 3 }"}, "load: value is 3"),
        ({"saved": '{ pre = "acc +" }'}, "saved: "),
        (
            {"saved": "", "expr": '"acc * acc + bias"'},
            "saved: does not have what the gradient reads of the product `acc`",
        ),
        ({"layout": '"nx"'}, "layout: is 'nx'"),
        (
            {
                "layout": '"tn"',
                "operands": '{ x = "left", shift = "depth", weight = "right", bias = "row" }',
                "load": '{ value = "x + shift" }',
            },
            "layout: is 'tn' of an op with a \"depth\"",
        ),
        ({"joined": '{ both = ["weight", "bias"] }'}, "joined: both is of weight and bias"),
        ({"joined": '{ both = ["bias", "pre"] }'}, "joined: both is of bias and pre"),
        ({"joined": '{ both = ["pre", "pre"] }'}, "joined: both is of pre and pre"),
        ({"joined": '{ both = ["bias"] }'}, "joined: both is ['bias']"),
        ({"joined": '{ pre = ["weight", "bias"] }'}, "joined: the name `pre`"),
        (
            {
                "operands": '{ x = "left", weight = "right", bias = "row", more = "row" }',
                "saved": '{ pre = "acc + bias + more" }',
                "ref": '"(x @ weight.T + bias + more) ** 2"',
                "joined": '{ a = ["bias", "more"], b = ["bias", "more"] }',
            },
            "joined: has a tensor in two places",
        ),
        (
            {
                "operands": '{ x = "left", weight = "right", bias = "row", '
                'more = { kind = "row", grad = false } }',
                "saved": '{ pre = "acc + bias + more" }',
                "ref": '"(x @ weight.T + bias + more) ** 2"',
                "joined": '{ both = ["bias", "more"] }',
            },
            "joined: both is of bias and more",
        ),
        ({"accumulates": "true"}, "accumulates: belongs to an op with one result"),
        ({"accumulates": "1"}, "accumulates: is 1"),
        ({"types": '"weights"'}, "types: is 'weights'"),
        ({"ints": "true"}, "ints: "),
        ({"operands": '{ acc = "left", weight = "right" }'}, "operands: "),
    ],
)
def test_refused(tmp_path, fields, message):
    with pytest.raises(spec.SpecError) as caught:
        spec.load([entry(tmp_path, **fields)])
    assert f"[op.own] {message}" in str(caught.value) and "\n  fix: " in str(caught.value), (
        caught.value
    )


def test_what_it_makes(tmp_path):
    op = spec.load([entry(tmp_path)]).ops["own"]
    found = {(*k.dtypes, k.bwd): k for k in kernels(op)}
    assert set(found) == {
        (d, bwd) for d in ("f32", "f16", "bf16", "f64") for bwd in (False, True)
    } | {(d, "f32", True) for d in ("f16", "bf16")} | {("tf32", bwd) for bwd in (False, True)}
    forward, backward = found["f32", False], found["bf16", "f32", True]
    assert contract.formulas(forward) == [
        "acc = x . weight^T",
        "pre = acc + bias",
        "out = pre * pre",
    ]
    assert contract.formulas(backward) == [
        "t0 = dout * pre",
        "dacc = t0 + t0",
        "dx = dacc . weight",
        "dweight = dacc^T . x + beta * dweight",
        "dbias = sum over rows of dacc + beta * dbias",
    ]
    assert [(s.word, len(s.reads), len(s.makes)) for s in backward.seams] == [
        ("dacc", 2, 2),
        ("inputs", 1, 1),
    ]
    assert {s.name: s.dtype.word for s in backward.outputs} == {
        "dx": "bf16",
        "dweight": "f32",
        "dbias": "f32",
    }
    assert {s.dtype.word for s in found["tf32", True].streams} == {"f32"} and found[
        "tf32", True
    ].backends == ("cuda",)
    assert "TF32" in contract.arithmetic(
        found["tf32", False]
    ) and "TF32" not in contract.arithmetic(forward)


def test_two_tensors_in_one(tmp_path):
    """Two tensors joined in one are one argument, in the first one's position; both products must
    read their half."""
    row = '{ kind = "row", absent = 0 }'
    fields = {
        "operands": f'{{ x = "left", first = "right", bias = {row}, '
        f'second = "right", more = {row} }}',
        "products": '{ a = "x * first", b = "x * second" }',
        "saved": '{ pre = "a + bias", other = "b + more" }',
        "expr": '"pre * other"',
        "joined": '{ weight = ["first", "second"], both = ["bias", "more"], '
        'kept = ["pre", "other"] }',
        "layout": '"nn"',
        "ref": '"(x @ first + bias) * (x @ second + more)"',
    }
    found = {
        (*k.dtypes, k.bwd): k for k in kernels(spec.load([entry(tmp_path, **fields)]).ops["own"])
    }
    forward, backward = found["f32", False], found["f32", True]
    assert [
        (s.name, k.shape(s)[1:], s.reads) for k in (forward, backward) for s in k.inputs + k.outputs
    ] == [
        ("x", ["rows", "depth"], "always"),
        ("weight", ["depth", "2 * cols"], "always"),
        ("both", ["2 * cols"], "always"),
        ("out", ["rows", "cols"], "always"),
        ("kept", ["rows", "2 * cols"], "always"),
        ("x", ["rows", "depth"], "always"),
        ("weight", ["depth", "2 * cols"], "always"),
        ("both", ["2 * cols"], "never"),
        ("kept", ["rows", "2 * cols"], "always"),
        ("dout", ["rows", "cols"], "always"),
        ("dx", ["rows", "depth"], "always"),
        ("dweight", ["depth", "2 * cols"], "always"),
        ("dboth", ["2 * cols"], "always"),
    ]
    assert forward.c.shapes == "rd dw w rc rw" and [s.name for s in forward.ins] == [
        "x",
        "first",
        "bias",
        "second",
        "more",
    ]
    assert [(s.of, s.absent, s.required) for s in backward.outputs] == [
        ("x", None, False),
        ("weight", None, False),
        ("both", None, False),
    ]
    assert contract.formulas(forward)[:2] == [
        "first, second = halves(weight)",
        "bias, more = halves(both)",
    ]
    assert contract.formulas(backward)[-2:] == [
        "dweight = both(dfirst, dsecond) + beta * dweight",
        "dboth = both(dbias, dmore) + beta * dboth",
    ]
    assert backward.stride_fields == forward.stride_fields and len(
        set(forward.stride_fields)
    ) == len(forward.stride_fields)


def test_a_user_s_activation_is_there(tmp_path):
    """A user's activation is added to matmul's list, which otherwise has the 12 default ones."""
    path = tmp_path / "mine.toml"
    path.write_text('[activation.own]\nbrief = "x"\nexpr = "x + x"\nref = "2 * x"\n')
    loaded = spec.load([path])
    names = [a.name for a in loaded.ops["linear_{act}"].activations]
    assert names[-1] == "own" and "softplus" not in names and len(names) == 13
