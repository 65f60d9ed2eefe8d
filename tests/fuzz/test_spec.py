# SPDX-License-Identifier: Apache-2.0
"""Spec files with random mistakes: each must load, or be refused by an error with file, entry,
field and fix. Loaded ones must expand. Nothing else may be raised."""

import copy
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kfgen.entries import expand, spec
from kfgen.interfaces import clashes, manifest
from kfgen.render.render import Selection

from examples import examples

MESSAGE = re.compile(r"[^\n]*: \[[^\n]*\] [^\n]+: .+\n  fix: .+\Z", re.S)
ENTRIES = {
    "activation": {"twice": {"brief": "twice x", "expr": "2 * x", "ref": "2 * x"}},
    "op": {
        "plus_{act}": {
            "brief": "a + b",
            "operands": {"a": "elem", "b": "row"},
            "expr": "act(a + b)",
            "ref": "act(a + b)",
            "scalars": {"knee": 0.5},
        },
        "share_{act}": {
            "family": "rows",
            "brief": "a share of a row",
            "types": "weights",
            "scalars": {"gain": 0.5},
            "operands": {
                "a": "elem",
                "b": {"kind": "row", "dtype": "U", "absent": 1},
                "r": {"kind": "per_row", "dtype": "acc"},
            },
            "saved": {"s": "sum(a * r)"},
            "expr": "act(a * b / s) * gain",
            "ref": "act(a * b / sum(a * r)) * gain",
            "grads": {"a": "dout * out - sum(dout)"},
        },
        "typed": {
            "family": "rows",
            "brief": "weights of two type variables",
            "types": {"T": ["f16", "bf16"], "W": ["T", "f32"], "B": ["acc"]},
            "operands": {
                "a": "elem",
                "b": {"kind": "row", "dtype": "W"},
                "r": {"kind": "row", "dtype": "B"},
            },
            "expr": "a * b / sum(a) + r",
            "ref": "a * b / sum(a) + r",
        },
        "two": {
            "brief": "two",
            "operands": {
                "a": {"kind": "half", "parts": ["gate", "h"]},
                "b": {"kind": "row", "grad": False, "dtype": "acc"},
            },
            "outputs": {"lower": "gate + b", "upper": "h * b"},
            "refs": {"lower": "gate + b", "upper": "h * b"},
        },
    },
}
ENTRIES["activation"]["twice"] |= {
    "dexpr": "2 * dy",
    "edges": {"nan": "nan", "0": 0.0},
    "ulp": {"f32": 4, "f64": 4},
    "scalars": {"bend": 1.0},
    "ints": False,
}

WORDS = [
    "x",
    "a",
    "dy",
    "act",
    "out",
    "n",
    "",
    "-",
    "T",
    "acc",
    "elem",
    "half",
    "row",
    "per_row",
    "channel",
    "U",
    "weights",
    "count",
    "sum(a)",
    "max(a) - a",
    "mean(s)",
    "relu",
    "exp(",
    "where(x > 0, x, 0)",
    "x +",
    "lambda: x",
    "a\nb",
    "*/",
    "x.y",
    "x[0]",
    "1 if x else 2",
    "x := 2",
    "f'{x}'",
    "()",
    "a; b",
    "not x",
    "x < a < 2",
    "max(*x)",
    "exp(a=x)",
    "1e999",
    "1e39 * x",
    "9" * 400 + " * x",
    "-" * 3000 + "x",
    "nan",
    "é",
    "0x",
    "\\",
]
FIELDS = [
    "id",
    "brief",
    "expr",
    "dexpr",
    "ref",
    "dref",
    "scalars",
    "edges",
    "dedges",
    "ulp",
    "ints",
    "rounding",
    "budget",
    "source",
    "since",
    "operands",
    "outputs",
    "refs",
    "without",
    "types",
    "variants",
    "layouts",
    "family",
    "saved",
    "grads",
    "unheard",
]
leaves = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), inner, max_size=3),
    ),
    max_leaves=4,
)


def toml(value):
    """Returns a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return (
            '"'
            + "".join(
                c if c.isalnum() and c.isascii() or c in " _+-*/().,<>=" else f"\\U{ord(c):08x}"
                for c in value
            )
            + '"'
        )
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(repr(value), repr(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return str(value)


def text_of(entries):
    return "\n".join(
        f"[{section}.{toml(key)}]\n"
        + "".join(f"{toml(k)} = {toml(v)}\n" for k, v in fields.items())
        for section, table in entries.items()
        for key, fields in table.items()
    )


@st.composite
def spoiled(draw):
    """Draws the entries above with one to three changes anywhere in them."""
    entries = copy.deepcopy(ENTRIES)
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from(sorted(entries)))
        key = draw(st.sampled_from(sorted(entries[section])))
        place, name = entries[section][key], draw(st.sampled_from(FIELDS))
        match draw(st.integers(0, 4)):
            case 0:
                place[name] = draw(values)
            case 1:
                place.pop(draw(st.sampled_from(sorted(place))), None)
                if not place:
                    place["brief"] = "what is left"
            case 2:  # a table of the entry
                tables = sorted(k for k, v in place.items() if isinstance(v, dict))
                if tables:
                    inner = place[draw(st.sampled_from(tables))]
                    inner[draw(st.sampled_from([*inner, *WORDS]))] = draw(values)
            case 3:  # another name
                odd = st.sampled_from(
                    [
                        "add_{act}",
                        "gelu",
                        "{act}",
                        "{act}_{act}",
                        "a__b",
                        "A",
                        "1x",
                        "x_",
                        "kf",
                        "int",
                    ]
                )
                new = draw(st.one_of(odd, st.text(max_size=5)))
                entries[section][new] = entries[section].pop(key)
            case 4:  # an expression of the language's primitives, well-formed or not
                parts = draw(
                    st.lists(
                        st.sampled_from(
                            [
                                "x",
                                "a",
                                "b",
                                "gate",
                                "2",
                                "0.5",
                                "+",
                                "*",
                                "/",
                                "-",
                                "(",
                                ")",
                                "exp(",
                                "max(",
                                "where(",
                                ",",
                                ">",
                                "sum(",
                                "mean(",
                                "stop(",
                                "r",
                                "s",
                                "out",
                                "dout",
                                " and ",
                                " not ",
                                "act(",
                                "dropout(",
                                "t = ",
                                ";",
                                "\n",
                                "**",
                                "knee",
                                "dy",
                            ]
                        ),
                        max_size=9,
                    )
                )
                if "saved" in place and draw(st.booleans()):
                    place[draw(st.sampled_from(["saved", "grads"]))] = {
                        draw(st.sampled_from(["a", "b", "r", "s"])): "".join(parts)
                    }
                else:
                    place["dexpr" if "dexpr" in place and draw(st.booleans()) else "expr"] = (
                        "".join(parts)
                    )
    return text_of(entries)


def check(text, path):
    path.write_text(text)
    try:
        loaded = spec.load([path])
    except spec.SpecError as e:
        assert MESSAGE.match(str(e)) and str(e).startswith(f"{path}: ["), str(e)
        return False
    # Expands what loads, as far as names and expressions.
    clashes.find(Selection(loaded))
    for op in loaded.ops.values():
        if not op.builtin:
            for k in expand.kernels(op, ("f32", "bf16", "i32")):
                assert k.cuda.listing()
                assert all(k.c.listing(a) for a in k.acts if a.name in ("none", "relu", "twice"))
                assert manifest.function(k.launchers[0])["name"]
    return True


def test_the_entries_are_right(tmp_path):
    assert (
        check(text_of(ENTRIES), tmp_path / "mine.toml")
        and tomllib.loads(text_of(ENTRIES)) == ENTRIES
    )


@pytest.mark.check
@examples(80, 1000)
@given(text=spoiled())
def test_spoiled_entries(tmp_path_factory, text):
    check(text, tmp_path_factory.getbasetemp() / "spoiled.toml")


@examples(60, 480)
@given(data=st.data())
def test_spoiled_text(tmp_path_factory, data):
    """Removes, inserts and doubles characters."""
    text = text_of(ENTRIES)
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
        put = [
            "",
            text[at : at + length] * 2,
            '"',
            "[",
            "]",
            "=",
            "\n",
            "{",
            "}",
            "#",
            "'",
            "\0",
            "é",
            "9",
            "(",
            "_",
        ]
        text = text[:at] + data.draw(st.sampled_from(put)) + text[at + length :]
    check(text, tmp_path_factory.getbasetemp() / "text.toml")


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"", b"[op", b"\xef\xbb\xbf[op.x]"])
def test_bytes(tmp_path, raw):
    path = tmp_path / "raw.toml"
    path.write_bytes(raw)
    try:
        spec.load([path])
        assert raw == b""
    except spec.SpecError as e:
        assert MESSAGE.match(str(e))
