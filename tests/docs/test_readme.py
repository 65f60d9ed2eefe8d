# SPDX-License-Identifier: Apache-2.0
"""Checks README.md: its code is the examples', its counts and figures are current.

After a change of those: KF_UPDATE=1 pytest tests/docs/test_readme.py
"""

import os
import re
import textwrap

import kflib
import pytest
import runtime_api
from conftest import ROOT
from kfgen import families
from kfgen.entries import compositions
from kfgen.entries import spec as specs
from kfgen.interfaces import runtime
from kfgen.interfaces.clashes import CORE_NAMES

README = ROOT / "README.md"
UPDATE = os.environ.get("KF_UPDATE")


def code(path):
    """Returns an example's text without its licence line, or the part between its marks."""
    text = (ROOT / path).read_text()
    if "/* [readme] */" in text:
        return textwrap.dedent(text.split("/* [readme] */")[1].lstrip("\n")).rstrip() + "\n"
    return text.split("\n", 1)[1].lstrip("\n")


def entry(path):
    """Returns the last op of a spec file."""
    return "[op." + (ROOT / path).read_text().split("[op.")[-1]


def filled(text):
    """Returns README with all quoted code taken anew."""

    def fence(kind, content):
        nonlocal text
        text = re.sub(
            rf"(<!-- {kind}: (\S+) -->\n```\w+\n).*?(```\n)",
            lambda m: m[1] + content(m[2]) + m[3],
            text,
            flags=re.S,
        )

    fence("file", code)
    fence("entry", entry)
    return text


def test_readme_is_the_repository_s_own(manifest):
    text = filled(README.read_text())
    counts = [
        f"{len(found):,}"
        for found in (
            kflib.on("cpu", manifest["functions"]),
            kflib.on("cuda", manifest["functions"]),
        )
    ]
    counts[1] = "all" if counts[0] == counts[1] else counts[1]
    text = re.sub(
        r"(<!-- count -->)[\d,]+( functions for C, )(?:[\d,]+|all)",
        lambda m: m[1] + counts[0] + m[2] + counts[1],
        text,
    )
    if UPDATE:
        README.write_text(text)
    assert README.read_text() == text, "run KF_UPDATE=1 pytest tests/docs/test_readme.py"
    assert [text.count(f"```{word}\n") for word in ("c", "cuda", "python")] == [1, 1, 1]


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in [README, *ROOT.glob("docs/**/*.md")])
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        if "://" not in target:
            to = ((ROOT / page).parent / target).resolve() if target else ROOT / page
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


def anchors(page):
    """Returns the anchors of a page: of headings, as GitHub makes them, and explicit ones."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    headings = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower()
        for h in re.findall(r"^#+ (.*)", text, re.M)
    )
    return {re.sub(r"[^\w\- ]", "", h).strip().replace(" ", "-") for h in headings} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', text)
    )


def test_launchers_of_f32_are_counted(manifest):
    """docs/launchers.md has the current number of f32 launchers."""
    count = sum(f["launchers"] == "kf_launchers_f32" for f in manifest["functions"])
    page = ROOT / "docs/launchers.md"
    text = page.read_text()
    now, found = re.subn(r"\(it has [\d,]+ now\)", f"(it has {count:,} now)", text)
    if UPDATE:
        page.write_text(now)
    assert found == 1 and page.read_text() == now, (
        "run KF_UPDATE=1 pytest tests/docs/test_readme.py"
    )


def own_functions():
    """Returns a pattern of the functions of the ops and activations that pages, examples and the
    example families of the tests add."""
    files = [README, *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.toml")]
    files += ROOT.glob("tests/families/*/ops.toml")
    text = "\n".join(p.read_text() for p in files)
    ops = {a or b for a, b in re.findall(r'^\[op\.(?:"(.+)"|(\w+))\]$', text, re.M)}
    made = {op.replace("{act}_", r"(\w+_)?").replace("_{act}", r"(_\w+)?") for op in ops}
    made |= {rf"(\w+_)?{act}" for act in re.findall(r"^\[activation\.(\w+)\]$", text, re.M)}
    return "|".join(sorted(made))


@pytest.mark.parametrize(
    "page",
    sorted(
        p.relative_to(ROOT).as_posix()
        for p in [README, ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")]
    ),
)
def test_functions_named_in_pages_exist(page, manifest):
    """Every name that looks like a function of kf is one, or an example's own."""
    known = {
        f[n]
        for f in manifest["functions"] + manifest["any"]
        for n in ("name", "cpu_name", "workspace", "cpu_workspace")
        if f[n]
    }
    known |= (
        {f"kf_{name}" for name in CORE_NAMES} | set(runtime_api.prototypes()) | runtime_api.types()
    )
    known.add("kf_context_create")  # inline
    made = runtime.functions(manifest)
    known |= {name for f in made for name in (f.name, f.plain)} | {
        name for name, _, _ in runtime.aliases(manifest, made)
    }
    for header in compositions.headers():
        text = (ROOT / "include/kf/runtime" / header).read_text()
        known |= set(re.findall(r"\b(kf_\w+)[(;]", text))
    known |= {
        a["struct"]
        for f in manifest["functions"]
        for a in f["arguments"]
        if a["role"] in ("strides", "shape")
    }
    acts = [a["name"] for a in manifest["activations"]] + ["logsigmoid"]
    known |= {f"kf_{a}{b}{c}" for a in acts for b in ("", "_bwd") for c in ("", "_double")}
    own = re.compile(rf"kf_(cpu_)?({own_functions()})(_\w+)?\Z")
    for name in set(re.findall(r"\bkf_[a-z0-9_]+\b(?![{*…(]?…)", (ROOT / page).read_text())):
        # a prefix; Meson's variables; a file; tests
        if (
            name.endswith("_")
            or name in ("kf_dep", "kf_targets", "kf_single")
            or name.startswith("kf_emu_")
        ):
            continue
        if re.match(r"kf_(my_)?launchers(_|\Z)", name):  # files, and their own functions
            continue
        name = re.sub(r"_abi\d\Z", "", name)
        assert name in known or own.match(name), f"{page} names {name}"


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_every_family_and_op_is_reachable():
    """README links the reference's index, which links every family's page and lists every op."""
    section = README.read_text().split("## What is in it")[1].split("\n## ")[0]
    assert "](docs/reference/README.md)" in section
    reference = ROOT / "docs/reference"
    index = (reference / "README.md").read_text()
    names = [f.name for f in families.FAMILIES.values()]
    assert [n for n in names if f"]({n}.md)" not in index] == []
    spec = specs.load()
    assert [op.pattern for op in spec.ops.values() if f"[`{op.pattern}`]" not in index] == []
    acts = (reference / "activations.md").read_text()
    assert [a for a in spec.activations if a != "none" and f"`{a}`" not in acts] == []
    shown = re.search(r"\[(\d+)\s+activations\]", section)
    assert shown and int(shown[1]) == len(spec.activations)


def test_figures_come_from_the_filed_results(monkeypatch):
    """All published tables are those of bench/results: python3 bench/report.py"""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import report

    for page in report.PAGES:
        text = page.read_text()
        marks = len(report.MARK.findall(text))
        assert text.count("<!-- table: ") == text.count("<!-- /table -->") == marks
    assert report.stale() == [], "run python3 bench/report.py"
    readme = README.read_text()
    assert all(f"<!-- table: {name}" in readme for name in ("headline", "slow", "compared"))
    bare = re.sub(r"<!-- table.*?<!-- /table -->", "", readme, flags=re.S)
    assert not re.search(r"\d\.\d+x|\d %", bare), "a figure outside of the generated tables"
