# SPDX-License-Identifier: Apache-2.0
"""Checks docs/README.md, the map of the pages: it names every page that people write."""

import re

from conftest import ROOT

DOCS = ROOT / "docs"
MAP = (DOCS / "README.md").read_text()
# Pages of every family and every measurement, which their overviews list.
LISTED = {
    "families": "hacking.md",
    "performance": "performance.md",
    "reference": "reference/README.md",
}


def linked(page):
    """Returns the files that a page links."""
    found = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    return {(page.parent / target).resolve() for target in found if "://" not in target}


def test_the_map_names_every_page():
    named = linked(DOCS / "README.md")
    assert [p.name for p in DOCS.glob("*.md") if p.name != "README.md" and p not in named] == []
    own = {f.name for f in (DOCS / "families").glob("*.md")}
    overviews = [p for p in (DOCS / "reference").glob("*.md") if p.name not in own]
    assert [p.name for p in overviews if p not in named] == []


def test_every_page_of_a_folder_is_in_its_overview():
    for folder, overview in LISTED.items():
        found = linked(DOCS / overview)
        pages = [p for p in (DOCS / folder).glob("*.md") if p != DOCS / overview]
        assert pages and [p.name for p in pages if p not in found] == []


def test_the_front_page_links_the_map():
    assert DOCS / "README.md" in linked(ROOT / "README.md")


def test_a_line_says_what_a_page_is_for():
    items = re.findall(r"^- (.*(?:\n  .*)*)", MAP, re.M)
    assert len(items) > 20
    assert [i for i in items if not re.match(r"\[[^\]]+\]\([^)]+\): \S", i)] == []


def test_pages_that_people_write_are_short():
    new = ("README", "why", "from_pytorch", "which_function", "troubleshooting", "expressions")
    generated = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->\n", re.S)
    texts = {n: generated.sub("", (DOCS / f"{n}.md").read_text()) for n in new}
    assert {n for n, text in texts.items() if len(text.splitlines()) > 250} == set()
