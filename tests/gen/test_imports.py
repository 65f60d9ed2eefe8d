# SPDX-License-Identifier: Apache-2.0
"""Imports in the generator: a package is a layer and imports itself and lower layers, without
cycles.
"""

import ast

import pytest
from kflib import ROOT

KFGEN = ROOT / "gen/kfgen"
# Layers from lowest to highest. "" has the modules of kfgen itself, except paths.py, which imports
# nothing and is below all.
LAYERS = ("language", "model", "families", "entries", "render", "interfaces", "")


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


def package(name):
    return name.partition(".")[0] if name.partition(".")[0] in LAYERS else ""


def layer(name):
    return -1 if name == "paths" else LAYERS.index(package(name))


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


def grouped(graph, group):
    """The graph of groups of modules; group: of a module, None for one that is in none."""
    found = {}
    for a, below in graph.items():
        found.setdefault(group(a), set()).update(map(group, below))
    return {a: below - {a, None} for a, below in found.items() if a is not None}


def family(name):
    """The folder of a module of a family."""
    parts = name.split(".")
    return parts[1] if parts[0] == "families" and len(parts) > 2 else None


@pytest.fixture(scope="module")
def graph():
    found = modules()
    made = {name: imports(text, found) for name, text in found.items()}
    made["families"] |= {
        name for name in found if name.startswith("families.") and name.endswith(".family")
    }  # which it finds by their folders
    return made


def test_every_package_is_a_layer(graph):
    folders = {p.parent.name for p in KFGEN.glob("*/__init__.py")}
    assert folders == set(LAYERS[:-1]) and {layer(name) for name in graph} == set(range(-1, 7))
    assert len(graph) > 60 and all(below <= set(graph) for below in graph.values())


def test_no_arrow_from_a_lower_package_up(graph):
    assert upward(graph) == []


def test_no_circle(graph):
    assert circle(graph) is None
    assert circle(graph | {"families.rows.family": {"families"}})  # `families` imports it


def test_no_circle_of_families(graph):
    found = grouped(graph, family)
    assert circle(found) is None and len(found) >= 9
    assert circle(found | {"rows": {"reduction"}})  # reduction imports rows


@pytest.mark.parametrize(
    "line",
    [
        "import kfgen.entries.spec",
        "from kfgen.entries import spec",
        "from kfgen.entries.spec import load",
        "def f():\n    from kfgen.families import of",
    ],
)
def test_a_wrong_import_is_seen(graph, line):
    own = imports(line, graph)
    assert own in ({"entries.spec"}, {"families"})
    assert upward(graph | {"language.expr": own}) == [("language.expr", *own)]
    assert circle(graph | {"language.expr": own})
