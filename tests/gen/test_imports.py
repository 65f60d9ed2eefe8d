# SPDX-License-Identifier: Apache-2.0
"""Who imports whom in the generator: a module knows those of its own layer and of the layers below, and no circle of them."""

import ast

import pytest
from kflib import ROOT

KFGEN = ROOT / "gen/kfgen"
LAYERS = (
    (
        "",
        "dtypes",
        "limits",
        "names",
        "paths",
        "stamp",
        "words",
        "expr",
        "gradient",
        "emit",
    ),  # words, and expressions
    # what entries say, and what follows from it
    (
        "entries",
        "inside",
        "derive",
        "activation",
        "passes",
        "oracle",
        "row_oracle",
        "product_oracle",
        "formulas",
    ),
    ("contract", "chosen", "signature", "kernel", "schedule"),  # a kernel, of whatever family
    ("families",),
    ("spec_checks", "spec", "expand", "check", "notes"),  # all entries together
    (
        "aliases",
        "abi",
        "launchers",
        "render",
        "manifest",
        "docs",
        "source",
        "package",
        "packed",
        "packed_cuda",
        "fused",
        "single",
        "frontend",
        "runtime",
        "explain",
    ),
    ("cli", "__main__"),
)


def modules():
    """{name: text}"""
    return {
        ".".join(p.relative_to(KFGEN).with_suffix("").parts)
        .removesuffix("__init__")
        .rstrip("."): p.read_text()
        for p in KFGEN.rglob("*.py")
    }


def imports(text, known):
    """The modules of kfgen that a text imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {
                f"{node.module}.{a.name}"
                if f"{node.module}.{a.name}".removeprefix("kfgen.") in known
                else node.module
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError("a relative import: say what it is of")
    return {
        name.removeprefix("kfgen").lstrip(".") for name in found if name.split(".")[0] == "kfgen"
    }


def layer(name):
    [found] = [i for i, names in enumerate(LAYERS) if name.split(".")[0] in names]
    return found


def upward(graph):
    return sorted((a, b) for a, below in graph.items() for b in below if layer(b) > layer(a))


def circle(graph):
    """The names along one, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        path.append(name)
        found = None if name in done else next(filter(None, map(visit, sorted(graph[name]))), None)
        done.add(path.pop())
        return found

    return next(filter(None, map(visit, sorted(graph))), None)


@pytest.fixture(scope="module")
def graph():
    found = modules()
    made = {name: imports(text, found) for name, text in found.items()}
    made["families"] |= {
        name for name in found if name.startswith("families.")
    }  # which it lists by their folder
    return made


def test_every_module_has_a_layer(graph):
    assert len(graph) > 40 and {name for names in LAYERS for name in names} == {
        name.split(".")[0] for name in graph
    }
    assert all(below <= set(graph) for below in graph.values())


def test_no_arrow_from_a_lower_module_up(graph):
    assert upward(graph) == []


def test_no_circle(graph):
    assert circle(graph) is None
    assert circle(graph | {"families.map": {"families"}})  # that lists them


@pytest.mark.parametrize(
    "line",
    [
        "import kfgen.spec",
        "from kfgen import spec",
        "from kfgen.spec import load",
        "def f():\n    from kfgen.families import of",
    ],
)
def test_a_wrong_import_is_seen(graph, line):
    own = imports(line, graph)
    assert own in ({"spec"}, {"families"}) and upward(graph | {"expr": own}) == [("expr", *own)]
    assert circle(graph | {"expr": own})
