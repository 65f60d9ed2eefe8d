# SPDX-License-Identifier: Apache-2.0
"""Checks docs/manifest.md: it has exactly the manifest's fields, with right types and examples."""

import json
import re

import kflib
from conftest import ROOT

PAGE = (ROOT / "docs/manifest.md").read_text()
TABLE = re.compile(r"<!-- table: (\w+) -->\n\| field .*\n\|:--.*\n((?:\|.*\n)+)")


def is_extent(v):
    if isinstance(v, list):
        return len(v) == 3 and v[0] in ("+", "-", "*", "/") and all(map(is_extent, v[1:]))
    return type(v) in (str, int)


TYPES = {
    "text": lambda v: isinstance(v, str),
    "bool": lambda v: isinstance(v, bool),
    "table": lambda v: isinstance(v, dict),
    "whole": lambda v: type(v) is int,
    "number": lambda v: type(v) in (int, float),
    "null": lambda v: v is None,
    "texts": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "lists": lambda v: isinstance(v, list) and all(isinstance(x, (list, tuple)) for x in v),
    "tables": lambda v: isinstance(v, list) and all(isinstance(x, dict) for x in v),
    "extents": lambda v: isinstance(v, list) and all(map(is_extent, v)),
}


def things():
    """Returns {name of a table: all entries of the manifest that it describes}."""
    m = kflib.manifest()
    arguments = [a for f in m["functions"] for a in f["arguments"]]
    tensors = [a for a in arguments if "kind" in a]
    steps = [step for f in m["functions"] for step in f["steps"]]
    return {
        "manifest": [m],
        "function": m["functions"],
        "tensor": tensors,
        "argument": [a for a in arguments if "kind" not in a],
        "step": steps,
        "launch": [launch for step in steps for launch in step["launches"]],
        "index": [a["index"] for a in tensors if a["index"]],
        "variable": [v for f in m["functions"] for v in f["variables"]],
        "axes": [f["axes"] for f in m["functions"] if f["axes"]],
        "rule": [r for f in m["functions"] if f["axes"] for r in f["axes"]["sizes"].values()],
        "statements": list(m["statements"].values()),
        "tolerance": [f["tolerance"] for f in m["functions"] if f["tolerance"]],
        "cost": [f["cost"] for f in m["functions"]],
        "activation": m["activations"],
        "op": m["ops"],
        "alias": m["aliases"],
        "any": m["any"],
    }


def documented():
    """Returns {table: [(fields of a line, its types, its example)]}."""
    found = {}
    for name, rows in TABLE.findall(PAGE):
        for row in rows.splitlines():
            fields, types, _, example = (cell.strip() for cell in row[1:-1].split("|"))
            found.setdefault(name, []).append(
                (fields.split(", "), types.split(" or "), example.strip("`"))
            )
    return found


def test_every_field():
    described, there = documented(), things()
    assert described.keys() == there.keys()
    for name, rows in described.items():
        fields = [field for of_row, _, _ in rows for field in of_row]
        assert sorted(fields) == sorted({key for thing in there[name] for key in thing}), name


def test_types_and_examples():
    there = things()
    for name, rows in documented().items():
        for fields, types, example in rows:
            values = [thing[field] for field in fields for thing in there[name] if field in thing]
            wrong = next((v for v in values if not any(TYPES[t](v) for t in types)), None)
            assert wrong is None, (name, fields, types, wrong)
            assert [t for t in types if not any(map(TYPES[t], values))] == [], (name, fields)
            assert not example or json.loads(example) in values, (name, fields, example)


def test_every_role():
    """The manifest has no other words of a role than those that the page lists in quotes."""
    there = things()
    for name, rows in TABLE.findall(PAGE):
        for row in rows.splitlines():
            field, types, meaning, _ = (cell.strip() for cell in row[1:-1].split("|"))
            listed = {*re.findall(r'`"([^"`]*)"`', meaning)}
            if field in ("role", "use", "null", "memory", "outside") and types == "text":
                values = {thing[field] for thing in there[name] if field in thing}
                assert listed and values <= listed | {""}, (name, field, values - listed)
