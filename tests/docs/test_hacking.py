# SPDX-License-Identifier: Apache-2.0
"""Checks docs/hacking.md: quoted code stands in the named files (also of nvrtc.md, contributing.md
and expressions.md), the tree names every folder, and every named identifier exists."""

import re

import kflib
from conftest import ROOT
from kfgen import families
from kfgen.entries import spec as specs
from kfgen.model import contract
from kfgen.render.render import Selection

PAGE = (ROOT / "docs/hacking.md").read_text()
QUOTE = re.compile(r"<!-- (in|explain): (\S+) -->\n```\w*\n(.*?)```\n", re.S)


def squeezed(text):
    return "".join(text.split())


def test_quotes(include):
    found = [
        quote
        for page in ("hacking", "nvrtc", "contributing", "expressions")
        for quote in QUOTE.findall((ROOT / f"docs/{page}.md").read_text())
    ]
    assert len(found) >= 8
    kernels = {
        launcher.name: k for k in Selection(specs.load()).all_kernels() for launcher in k.launchers
    }
    for kind, where, text in found:
        if kind == "explain":
            source = " ".join(contract.lines(kernels[where]))
        else:
            source = next(d / where for d in [ROOT, *include] if (d / where).is_file()).read_text()
        assert squeezed(text) in squeezed(source), f"{where} no longer has:\n{text}"


def test_the_tree_is_whole():
    """The tree names every folder of code; a family's own folders stand for all families'."""
    tree = PAGE.split("## Where things are")[1].split("\n## ")[0]
    own = {f.name for f in families.FAMILIES.values()} | {"<family>", "build", "__pycache__"}
    folders = [
        p.name
        for parent in (
            "",
            "gen",
            "gen/kfgen",
            "include/kf",
            "include/kf/core",
            "templates",
            "tests",
        )
        for p in (ROOT / parent).iterdir()
        if p.is_dir() and not p.name.startswith((".", "build")) and "egg-info" not in p.name
    ]
    assert [n for n in folders if n not in own and f"{n}/" not in tree] == []


def test_each_family_has_a_page():
    """Each page has all forms of the family's tensors and the sections that a reader expects."""
    pages = {p.stem: p.read_text() for p in (ROOT / "docs/families").glob("*.md")}
    assert set(pages) == set(families.FAMILIES)
    for family in families.FAMILIES.values():
        text = pages[family.name]
        assert f"](families/{family.name}.md)" in PAGE
        schedules = ["## Schedules in CUDA"] * ("cuda" in family.backends) + ["## Schedules in C\n"]
        assert [w for w in (*schedules, "## Invariants", "## Traps") if w not in text] == []
        if len(family.forms) > 1:
            assert [form for form in family.forms if f"\n| {form} |" not in text] == []


def test_internal_names_exist(include):
    """Internal names on these pages exist in the sources, so a rename updates the pages."""
    sources = [
        p
        for folder in (
            ROOT / "include",
            ROOT / "templates",
            ROOT / "gen",
            ROOT / "tests",
            include[1] / "kf/ops",
        )
        for p in folder.rglob("*")
        if p.suffix in (".h", ".cuh", ".j2", ".py", ".cpp") and p.name != "test_hacking.py"
    ]
    known = set(re.findall(r"\bkf[ik]_\w+|\bKFI_\w+", "\n".join(p.read_text() for p in sources)))
    for page in [ROOT / "docs/hacking.md", *(ROOT / "docs/families").glob("*.md")]:
        named = set(re.findall(r"\b(?:kf[ik]|KFI)_\w+\b(?!…|<)", page.read_text()))
        assert [n for n in sorted(named) if n not in known and not n.endswith("_")] == [], page.name


def test_contracts_are_short():
    for k in Selection(specs.load()).all_kernels():
        lines = contract.lines(k)
        most = max(16, 10 + len(k.tensors))
        if k.lists:
            most = 12 + len(k.inputs) + 2 * k.has_workspace
        assert len(lines) <= most and max(map(len, lines)) <= 97, k.name
    assert "*/" not in contract.safe("a */ b") and kflib.ROOT == ROOT
