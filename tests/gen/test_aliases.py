# SPDX-License-Identifier: Apache-2.0
"""Aliases (gen/kfgen/entries/aliases.toml): the manifest, `kfgen list --aliases`, and errors."""

import kflib
import pytest
from kfgen.cli import main
from kfgen.entries import aliases, spec
from kfgen.model.entries import SpecError
from kfgen.render.render import Selection

SELECTION = Selection(spec.load())
FUNCTIONS = kflib.manifest()["functions"]
ADD = {"function": "add_{act}", "arguments": {"a": "a", "b": "b"}}
PRELU = {"function": "prelu_bias", "arguments": {"x": "x", "alpha": "weight", "bias": "bias"}}


def test_those_of_kf():
    assert aliases.problems(FUNCTIONS, SELECTION.ops) == []
    found = {a["name"]: a for a in kflib.manifest()["aliases"]}
    functions = {(f["op"], f["activation"]) for f in FUNCTIONS}
    assert all((a["op"], a["activation"]) in functions for a in found.values())
    for name in (
        "elementwise_add_relu",
        "fused_bias_gelu",
        "fused_gelu_dropout",
        "fused_layer_norm_relu",
        "fused_batch_norm_relu",
        "swish_multiply",
        "fused_mish_scale",
        "fused_prelu_bias",
        "attention_dropout",
        "reduce_sum_squared",
    ):
        assert name in found
    assert [x["of"] for x in found["fused_batch_norm_relu"]["arguments"]] == [
        "x",
        "weight",
        "bias",
        "running_mean",
        "running_var",
    ]
    assert (found["swish_multiply"]["op"], found["swish_multiply"]["activation"]) == (
        "{act}_mul",
        "silu",
    )
    assert found["attention_dropout"]["defaults"] == {"scale": 1.0}


def test_a_users_function_of_that_name(capsys, tmp_path):
    """Is no mistake, and is what is meant."""
    path = tmp_path / "mine.toml"
    path.write_text(
        '[op.swiglu]\nbrief = "a b"\noperands = { a = "elem", b = "elem" }\n'
        'expr = "a * b"\nref = "a * b"\nsource = "here"\n'
    )
    assert main(["check", "--spec", str(path)]) == 0
    capsys.readouterr()
    assert main(["list", "--aliases", "--spec", str(path)]) == 0
    message = capsys.readouterr().out
    assert "geglu(" in message and "swiglu(" not in message


def test_list(capsys):
    assert main(["list", "--aliases", "--ops", "act_mul,prelu_bias", "--activations", "silu"]) == 0
    message = capsys.readouterr().out.splitlines()
    assert (
        "swish_multiply(x = gate, gate = up): silu_mul" in message
        and "fused_prelu_bias(x, alpha = weight, bias): prelu_bias" in message
    )
    assert len(message) == len(set(message)) and not any(
        "relu_mul" in line or "sum" in line for line in message
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"plus": ADD | {"function": "ad"}}, "`ad` is neither a pattern nor a function"),
        ({"plus": ADD}, "`add_{act}` is neither a pattern nor a function"),
        ({"mul_{act}": ADD}, "`mul` is a function"),
        ({"plus_{act}": ADD, "plus_relu": PRELU}, "`plus_relu` is alias.plus_{act} already"),
        ({"Plus": PRELU}, "`Plus` is not a lower-case name"),
        (
            {"leaky": PRELU | {"arguments": {"x": "x", "slope": "slope", "bias": "bias"}}},
            "kf_prelu_bias_f32 has no input or scalar `slope`; it has x, ",
        ),
        (
            {
                "leaky": PRELU
                | {"arguments": {"x": "x", "y": "x", "slope": "weight", "bias": "bias"}}
            },
            "`x` is given twice",
        ),
        (
            {"leaky": PRELU | {"arguments": {"x": "x", "slope": "weight"}}},
            "`bias` is not an argument and has no default",
        ),
        (
            {"leaky": PRELU | {"defaults": {"bias": 1.0}}},
            "the default of `bias` is not a number that kf_prelu_bias_f32 takes",
        ),
        (
            {
                "norm": {
                    "function": "rms_norm",
                    "arguments": {"x": "x"},
                    "defaults": {"eps": "small"},
                }
            },
            "the default of `eps` is not a number",
        ),
        (
            {"drop": {"function": "dropout", "arguments": {"x": "x"}}},
            "`p` is not an argument and has no default",
        ),
    ],
)
def test_what_is_wrong_is_said(found, words):
    message = aliases.problems(FUNCTIONS, SELECTION.ops, found)
    assert message and words in message[0] and message[0].startswith("aliases.toml: alias."), (
        message
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[alias.plus]\nfunction = "add"\n', "arguments: is missing"),
        ("[alias.plus]\nfunction = 3\n", "function: is missing or has the wrong type"),
        (
            '[alias.plus]\nfunction = "add"\narguments = { a = "a" }\norder = 1\n',
            "order: is not known",
        ),
    ],
)
def test_fields(tmp_path, text, words):
    path = tmp_path / "aliases.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match="alias.plus") as caught:
        aliases.load(path)
    assert words in " ".join(str(caught.value).split())
