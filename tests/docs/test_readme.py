# SPDX-License-Identifier: Apache-2.0
"""README.md says what the repository holds: its code is the examples' code, its tables are the specification's.

After a change of those: KF_UPDATE=1 pytest tests/docs/test_readme.py
"""

import os
import re
import textwrap

import pytest
from conftest import ROOT
from kfgen import spec as specs
from kfgen.manifest import CORE_NAMES

README = ROOT / "README.md"
UPDATE = os.environ.get("KF_UPDATE")


def code(path):
    """An example's text without its licence line."""
    return (ROOT / path).read_text().split("\n", 1)[1].lstrip("\n")


def entry(path):
    """The last op of a spec file."""
    return "[op." + (ROOT / path).read_text().split("[op.")[-1]


def ops_table():
    rows = ["| op | formula | activations |", "|:--|:--|:--|"]
    for op in specs.load().ops.values():
        names = "all" if not op.without else f"all but {', '.join(op.without)}"
        brief = op.brief.replace("|", "\\|")
        rows.append(f"| `{op.pattern}` | {brief} | {names if op.has_act else ''} |")
    return "\n" + "\n".join(rows) + "\n"


def activations():
    words = ", ".join(f"`{a.name}`" + (f" ({', '.join(a.scalars)})" if a.scalars else "") for a in specs.load().activations.values())
    return f"\n{textwrap.fill(words, 120)}\n"


def filled(text):
    """README with everything that is taken from elsewhere taken anew."""
    def fence(kind, content):
        nonlocal text
        text = re.sub(rf"(<!-- {kind}: (\S+) -->\n```\w+\n).*?(```\n)", lambda m: m[1] + content(m[2]) + m[3], text, flags=re.S)

    def between(name, content):
        nonlocal text
        text, found = re.subn(rf"(<!-- {name} -->).*?(<!-- /{name} -->)", lambda m: m[1] + content + m[2], text, flags=re.S)
        assert found == 1, name

    fence("file", code)
    fence("entry", entry)
    between("ops", ops_table())
    between("activations", activations())
    return text


def test_readme_is_the_repository_s_own(manifest):
    text = filled(README.read_text())
    count = f"{len(manifest['functions']):,}"
    text = re.sub(r"(<!-- count -->)[\d,]+", lambda m: m[1] + count, text)
    if UPDATE:
        README.write_text(text)
    assert README.read_text() == text, "run KF_UPDATE=1 pytest tests/docs/test_readme.py"
    assert text.count("```c\n") == text.count("```cuda\n") == 1


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [README, *ROOT.glob("docs/*.md")]))
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [README, ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")]))
def test_functions_named_in_pages_exist(page, manifest):
    """Whatever looks like one of kf's functions is one, or is the walk-throughs' own."""
    known = {f[n] for f in manifest["functions"] for n in ("name", "cpu_name", "workspace", "cpu_workspace") if f[n]}
    known |= {f"kf_{name}" for name in CORE_NAMES}
    acts = [a["name"] for a in manifest["activations"]] + ["logsigmoid"]
    known |= {f"kf_{a}{b}{c}" for a in acts for b in ("", "_bwd") for c in ("", "_double")}
    own = re.compile(r"kf_(cpu_)?((\w+_)?layer_scale|(\w+_)?l1_distance|(\w+_)?logsigmoid|rms_norm_(\w+_)?scale)(_\w+)?\Z")
    for name in set(re.findall(r"\bkf_[a-z0-9_]+\b(?![{*…(]?…)", (ROOT / page).read_text())):
        # a prefix; Meson's variables; a file; tests
        if name.endswith("_") or name in ("kf_dep", "kf_targets", "kf_single") or name.startswith("kf_emu_"):
            continue
        if re.match(r"kf_(my_)?launchers(_|\Z)", name):  # files, and their own functions
            continue
        name = re.sub(r"_abi\d\Z", "", name)
        assert name in known or own.match(name), f"{page} names {name}"


def test_measured_tables_go_between_their_marks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import readme
    text = README.read_text()
    for name in ("h200", "rows", "reduce", "cpu", "cpu_rows"):
        once = readme.filled(text, name, "### a table\n\\1")
        assert once.count("### a table\n\\1") == 1
        assert readme.filled(once, name, "### a table\n\\1") == once
        assert [once.count(mark) for mark in ("<!-- bench:", "<!-- /bench:")] == [5, 5]
