# SPDX-License-Identifier: Apache-2.0
"""README.md says what the repository holds: its code is the examples' code, its lists are the specification's, its figures the filed results'.

After a change of those: KF_UPDATE=1 pytest tests/docs/test_readme.py
"""

import os
import re
import textwrap

import kflib
import pytest
import runtime_api
from conftest import ROOT
from kfgen import runtime
from kfgen import spec as specs
from kfgen.manifest import CORE_NAMES

README = ROOT / "README.md"
UPDATE = os.environ.get("KF_UPDATE")


def code(path):
    """An example's text without its licence line; what stands between its marks, if it has such."""
    text = (ROOT / path).read_text()
    if "/* [readme] */" in text:
        return textwrap.dedent(text.split("/* [readme] */")[1].lstrip("\n")).rstrip() + "\n"
    return text.split("\n", 1)[1].lstrip("\n")


def entry(path):
    """The last op of a spec file."""
    return "[op." + (ROOT / path).read_text().split("[op.")[-1]


def activations():
    words = ", ".join(
        f"`{a.name}`" + (f" ({', '.join(a.scalars)})" if a.scalars else "")
        for a in specs.load().activations.values()
    )
    return f"\n{textwrap.fill(words, 150)}\n"


def filled(text):
    """README with everything that is taken from elsewhere taken anew."""

    def fence(kind, content):
        nonlocal text
        text = re.sub(
            rf"(<!-- {kind}: (\S+) -->\n```\w+\n).*?(```\n)",
            lambda m: m[1] + content(m[2]) + m[3],
            text,
            flags=re.S,
        )

    def between(name, content):
        nonlocal text
        text, found = re.subn(
            rf"(<!-- {name} -->).*?(<!-- /{name} -->)",
            lambda m: m[1] + content + m[2],
            text,
            flags=re.S,
        )
        assert found == 1, name

    fence("file", code)
    fence("entry", entry)
    between("activations", activations())
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
    """Of a page's headings, as GitHub makes them; and those that it names itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    headings = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).lower()
        for h in re.findall(r"^#+ (.*)", text, re.M)
    )
    return {re.sub(r"[^\w\- ]", "", h).strip().replace(" ", "-") for h in headings} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', text)
    )


def test_launchers_of_f32_are_counted(manifest):
    """Beside what they took to compile when they were fewer."""
    count = sum(f["launchers"] == "kf_launchers_f32" for f in manifest["functions"])
    page = ROOT / "docs/launchers.md"
    text = page.read_text()
    now, found = re.subn(r"\(it has [\d,]+ now\)", f"(it has {count:,} now)", text)
    if UPDATE:
        page.write_text(now)
    assert found == 1 and page.read_text() == now, (
        "run KF_UPDATE=1 pytest tests/docs/test_readme.py"
    )


@pytest.mark.parametrize(
    "page",
    sorted(
        p.relative_to(ROOT).as_posix()
        for p in [README, ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")]
    ),
)
def test_functions_named_in_pages_exist(page, manifest):
    """Whatever looks like one of kf's functions is one, or is the examples' own."""
    known = {
        f[n]
        for f in manifest["functions"] + manifest["any"]
        for n in ("name", "cpu_name", "workspace", "cpu_workspace")
        if f[n]
    }
    known |= (
        {f"kf_{name}" for name in CORE_NAMES} | set(runtime_api.prototypes()) | runtime_api.types()
    )
    made = runtime.functions(manifest)
    known |= {name for f in made for name in (f.name, f.plain)} | {
        name for name, _, _ in runtime.aliases(manifest, made)
    }
    known |= {
        a["struct"] for f in manifest["functions"] for a in f["arguments"] if a["role"] == "strides"
    }
    acts = [a["name"] for a in manifest["activations"]] + ["logsigmoid"]
    known |= {f"kf_{a}{b}{c}" for a in acts for b in ("", "_bwd") for c in ("", "_double")}
    ops = r"(\w+_)?layer_scale|(\w+_)?l1_distance|tempered_softmax|sum_and_difference|(\w+_)?logsigmoid|rms_norm_(\w+_)?scale"
    own = re.compile(rf"kf_(cpu_)?({ops})(_\w+)?\Z")
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
    assert len(README.read_text().splitlines()) <= 200


def test_the_table_of_families_is_of_ops():
    """A new op need not be there: docs/reference has all."""
    section = README.read_text().split("## What is in it")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("| "))
    shown = re.findall(r"`([a-z0-9_{}]+)`", table)
    spec = specs.load()
    ops = {op.pattern for op in spec.ops.values()}
    functions = {op.replace("{act}", a) for op in ops for a in spec.activations}
    assert [op for op in shown if op not in ops | functions | {"_mean", "_sum"}] == []
    missing = [
        op for op in ops if op not in shown and re.sub(r"_(mean|sum)\Z", "", op) not in shown
    ]
    assert 16 * len(missing) <= len(ops), (
        f"README no longer gives an idea of what there is: {missing}"
    )
    assert len(set(shown)) == len(shown), "an op stands in one row"


def test_figures_come_from_the_filed_results(monkeypatch):
    """README's tables, docs/performance.md's and the charts are those of bench/results: python3 bench/report.py"""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import report

    for page in report.PAGES:
        text = page.read_text()
        assert (
            text.count("<!-- table: ")
            == text.count("<!-- /table -->")
            == len(report.MARK.findall(text))
        )
        assert report.filled(text) == text, f"{page.name} is stale: run python3 bench/report.py"
    readme = README.read_text()
    assert "<!-- table: headline -->" in readme and "<!-- table: slow" in readme
    bare = re.sub(r"<!-- table.*?<!-- /table -->", "", readme, flags=re.S)
    assert not re.search(r"\d\.\d+x|\d %", bare), (
        "a measured figure outside of the generated tables"
    )
