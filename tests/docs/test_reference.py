# SPDX-License-Identifier: Apache-2.0
"""Checks docs/reference: it is current, and its patterns give every function's signature."""

import re

import pytest
import runtime_api
from conftest import ROOT
from kfgen import families
from kfgen.entries import compositions
from kfgen.entries import spec as specs
from kfgen.render import docs
from kfgen.render.render import Selection

FOLDER = ROOT / "docs/reference"
TYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "kf_f16",
    "bf16": "kf_bf16",
    "i32": "int32_t",
    "i64": "int64_t",
}
OVERVIEWS = {
    "README.md",
    "activations.md",
    "family_interface.md",
    "matrix.md",
    "nn.md",
    "runtime.md",
}
SECTION = re.compile(r"^## <a name=\"\w+\"></a>`(\S+)`$((?:(?!^## ).)*?)^\| tensor", re.M | re.S)
PATTERN = re.compile(r"^kf_result_t (kf_\[cpu_\]\S+?)\((.*)\);$", re.M)


def test_the_pages_are_those_of_the_spec():
    found = docs.pages(Selection(specs.load()))
    assert (
        {p.name for p in FOLDER.iterdir()}
        == set(found)
        == {f"{f.name}.md" for f in families.FAMILIES.values()} | OVERVIEWS
    )
    stale = [name for name, text in found.items() if (FOLDER / name).read_text() != text]
    assert not stale, f"{', '.join(stale)}: run gen/bin/kfgen docs"


def filled(name, arguments, act, variables, first):
    """Returns the C signature of a pattern with activation and dtypes; first: the first dtype."""
    t, u, i = variables["T"], variables.get("U", variables["T"]), variables.get("I", "i64")
    name = name.replace("[cpu_]", "cpu_").replace(
        "{act}_" if act == "none" else "{act}", "" if act == "none" else act
    )
    name = re.sub(
        r"_T(_U)?(_I)?\Z",
        f"_{first}" + (f"_{u}" if u != t else "") + (f"_{i}" if i != "i64" else ""),
        name,
    )
    acc = "double" if t == "f64" else "float"
    types = {"T": TYPES[t], "U": TYPES[u], "I": TYPES[i], "acc": acc, "float": acc}
    arguments = re.sub(
        r"\b(T|U|I|acc|float)\b(?= )",
        lambda m: types[m[1]],
        arguments.replace("[, cudaStream_t stream]", ""),
    )
    return f"kf_result_t {name}({arguments})"


@pytest.mark.parametrize("family", [f.name for f in families.FAMILIES.values()])
def test_signature_patterns_are_the_signatures(family, manifest):
    sections = {
        op: PATTERN.findall(text)
        for op, text in SECTION.findall((FOLDER / f"{family}.md").read_text())
    }
    functions = [f for f in manifest["functions"] if f["family"] == family and not f["state"]]
    functions = [f for f in functions if not any(a["role"] == "act_scalar" for a in f["arguments"])]
    assert {f["op"] for f in functions} == set(sections)
    for f in functions:
        name, arguments = next(p for p in sections[f["op"]] if ("_bwd_T" in p[0]) is f["bwd"])
        words = {v["name"]: v["dtype"] for v in f["variables"]}
        assert filled(name, arguments, f["activation"], words, f["dtypes"][0]) == f["cpu_signature"]


def matrix():
    """Yields (op, activation, dtypes, backward, backend) of each function in the matrix."""
    page = (FOLDER / "matrix.md").read_text()
    tables = [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for table in re.findall(r"(?:^\|.*\n)+", page, re.M)
    ]
    (_, _, *dtypes), _, *ops = tables[0]
    (_, *letters), _, *acts = tables[1]
    sets = {
        letter: [re.search(r"`(\w+)`", name)[1] for name, *marks in acts if marks[i]]
        for i, letter in enumerate(letters)
    }
    for name, letter, *cells in ops:
        op = re.search(r"`(\S+)`", name)[1]
        for word, cell in zip(dtypes, cells, strict=True):
            marks, _, only = cell.partition(" ")
            for bwd in (b == "b" for b in marks):
                for backend in [only] if only else ["C", "CUDA"]:
                    for act in sets.get(letter, ["none"]):
                        yield op, act, word, bwd, backend


def test_the_matrix_has_exactly_the_functions(manifest):
    pairs = set(
        re.findall(r"^- \[`(\w+)`\].* for every pair of", (FOLDER / "matrix.md").read_text(), re.M)
    )
    found = list(matrix())
    assert len(found) == len(set(found)) and pairs == {"cast"}
    assert set(found) == {
        (f["op"], f["activation"], "_".join(f["dtypes"]), f["bwd"], backend)
        for f in manifest["functions"]
        for backend, word in (("C", "c"), ("CUDA", "cuda"))
        if word in f["backends"] and f["op"] not in pairs and not f["state"]
    }


def test_the_runtime_page_describes_every_function():
    """Each function, struct and macro of kf/runtime.h is on the page, functions with a meaning."""
    page = (FOLDER / "runtime.md").read_text()
    described = dict(
        (name, meaning)
        for cell, meaning in re.findall(r"^\| `(.*)` \| (.*) \|$", page, re.M)
        for name in re.findall(r"(kf_\w+)\(", cell)
    )
    functions = set(runtime_api.prototypes()) | {"kf_context_create"}
    functions |= {f"kf_fused_{name}" for name in compositions.load()}
    assert set(described) == functions and all(described.values())
    declared = set(re.findall(r"^#define (\w+) ", runtime_api.HEADER.read_text(), re.M))
    assert [n for n in runtime_api.types() | declared if n not in page] == []


def test_every_result_code_is_documented():
    codes = docs.result_codes()
    assert (
        [n for n, _, _ in codes] == list(range(len(codes)))
        and codes[0][1] == "KF_SUCCESS"
        and len(codes) >= 10
    )
    page = (FOLDER / "README.md").read_text()
    assert [
        name for _, name, _ in codes if f"`{name}`" not in page
    ] == [] and "kf_get_error_string" in page


def test_a_page_is_compact():
    """The section of an op stays below 50 lines, however many functions the op has."""
    pages = [(FOLDER / f"{f.name}.md").read_text() for f in families.FAMILIES.values()]
    found = {
        section.split("`")[1]: len(section.splitlines())
        for page in pages
        for section in re.split(r"^(?=## )", page, flags=re.M)[1:]
    }
    assert len(found) > 100 and [op for op, lines in found.items() if lines >= 50] == []
