# SPDX-License-Identifier: Apache-2.0
"""A family is its folders: no file outside of them may carry its name, so nothing else belongs to
it. Frontends decide by fields of the manifest, not by a family's name."""

import ast
import pathlib
import subprocess

import kflib
import pytest
from kfgen import families

# Folders and pages of a family, those that each has and those that some have.
OWN = (
    "gen/kfgen/families/{0}/",
    "templates/{0}/",
    "include/kf/core/{0}/",
    "bench/families/{0}/",
    "docs/families/{0}.md",
    "docs/reference/{0}.md",
)
SOME = ("tests/families/{0}/", "bench/NOTES/{0}.md")
# Paths that the test covers. Results and charts are called after sets of cases.
COVERED = ("gen/", "templates/", "include/", "tests/", "bench/", "docs/", "examples/", "frontends/")
SETS = ("bench/results/", "docs/img/")
PUBLIC = {"include/kf/core/rope_table.h", "include/kf/rope_table.h"}  # paths that programs include


def files():
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=kflib.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = (
        listed.stdout.split()
        if listed.returncode == 0
        else [str(p.relative_to(kflib.ROOT)) for p in kflib.ROOT.rglob("*.*")]
    )
    return [
        f
        for f in found
        if f.startswith(COVERED)
        and not f.startswith(SETS)
        and f not in PUBLIC
        and (kflib.ROOT / f).is_file()
    ]


def names(path, family):
    """True if a part of the path is the family's name or begins with it. rope_norm is not part of
    rope."""
    parts = [
        part.split(".")[0].removeprefix("test_")
        for part in pathlib.PurePath(path.removeprefix("gen/kfgen/families/")).parts
    ]
    others = set(families.FAMILIES) - {family}
    return any(
        part == family or part.startswith(f"{family}_") for part in parts if part not in others
    )


def outside(paths, family):
    own = tuple(folder.format(family) for folder in OWN + SOME)
    return [path for path in paths if not path.startswith(own) and names(path, family)]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_no_other_file_is_called_like_a_family(family):
    found = files()
    assert len(found) > 100 and outside(found, family) == []
    assert all(any(f.startswith(folder.format(family)) for f in found) for folder in OWN)


def test_a_wrong_name_is_seen():
    """The test above must not pass because it sees nothing."""
    for path in (
        "templates/op/rope.cuh.j2",
        "gen/kfgen/families/rope_tables.py",
        "gen/kfgen/rope/family.py",
        "gen/kfgen/families/rows/rope.py",
    ):
        assert outside([path], "rope") == [path], path
    for path in (
        "templates/rope/kernel.cuh.j2",
        "templates/rope_norm/kernel.cuh.j2",
        "gen/kfgen/families/rope/family.py",
        "gen/kfgen/europe.py",
    ):
        assert outside([path], "rope") == [], path


def compared(text):
    """The places of a Python file that read an op's family or compare something with the name, or
    former name, of a family."""
    known = {*families.FAMILIES, *families.SYNONYMS}
    for node in ast.walk(ast.parse(text)):
        read = {
            ast.Attribute: lambda n: n.attr == "family",
            ast.Subscript: lambda n: getattr(n.slice, "value", "") == "family",
            ast.Call: lambda n: any(getattr(a, "value", "") == "family" for a in n.args),
            ast.Compare: lambda n: known & {getattr(c, "value", "") for c in ast.walk(n)},
            ast.MatchValue: lambda n: getattr(n.value, "value", "") in known,
        }.get(type(node))
        if read and read(node):
            yield ast.unparse(node)


def test_no_frontend_compares_the_name_of_a_family():
    """A family of a user's own has its frontend by the fields of its functions."""
    found = sorted((kflib.ROOT / "frontends").rglob("*.py"))
    assert len(found) > 40
    for path in found:
        assert list(compared(path.read_text())) == [], path
    for path in (kflib.ROOT / "frontends").rglob("native/*.*"):
        assert "family" not in path.read_text(), path


@pytest.mark.parametrize(
    "text",
    [
        "op.family == kind",
        "f['family']",
        "getattr(op, 'family')",
        "kind == 'reduce'",
        "'x' if kind in ('elem', 'rows') else 'y'",
        "match kind:\n    case 'matmul':\n        pass",
    ],
)
def test_a_comparison_is_seen(text):
    assert len(list(compared(text))) == 1


def listed(text):
    """The places of a Python file that hold several names of families, or compare with one."""
    known = {*families.FAMILIES, *families.SYNONYMS}
    words = {"row", "rows", "pairs"}  # kinds, sizes and tables of types have these names, too
    for node in ast.walk(ast.parse(text)):
        literals = (ast.Tuple, ast.List, ast.Set, ast.Dict)
        elements = [*getattr(node, "keys", []), *getattr(node, "elts", [])]
        several = {getattr(e, "value", "") for e in elements} & known
        if isinstance(node, literals) and len(several) > 1 and several - words:
            yield ast.unparse(node)
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if {getattr(c, "value", "") for c in sides} & (known - words):
            yield ast.unparse(node)


def test_no_list_of_families_in_the_generator():
    """Modules outside of a family's folder decide by attributes of `Family`. The built-in families
    are found by their folders; families/__init__.py maps former names to today's."""
    root = kflib.ROOT / "gen/kfgen"
    found = [p for p in sorted(root.rglob("*.py")) if p.parent.parent != root / "families"]
    assert len(found) > 40
    for path in found:
        assert list(listed(path.read_text())) == [], path


@pytest.mark.parametrize(
    "text", ["F = ('elementwise', 'rows')", "F = {'matmul': 1, 'rope': 2}", "op.family == 'matmul'"]
)
def test_a_list_is_seen(text):
    assert len(list(listed(text))) == 1
