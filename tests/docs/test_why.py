# SPDX-License-Identifier: Apache-2.0
"""Checks docs/why.md: each ratio and each figure of memory is in the filed page that it links."""

import re

from conftest import ROOT

PAGE = ROOT / "docs/why.md"
FIGURE = re.compile(
    r"(?<![\w.])(?:\d\.\d{2,3}|\d{1,3}(?:,\d{3})?(?= MiB)|(?<=kf took )\d+)(?![\w.])"
)


def sentences():
    """Yields each sentence or list item without generated tables."""
    text = re.sub(r"<!-- table.*?<!-- /table -->", "", PAGE.read_text(), flags=re.S)
    for item in re.split(r"\n\n|\n- ", text):
        yield from re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(item.split()))


def test_figures_are_filed():
    found = 0
    for sentence in sentences():
        for figure in FIGURE.findall(sentence):
            pages = re.findall(r"\]\((performance/\w+\.md)\)", sentence)
            assert pages, f"{figure}: no filed page is linked in: {sentence}"
            filed = "\n".join((ROOT / "docs" / page).read_text() for page in pages)
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.])", filed), figure
            found += 1
    assert found >= 8


def test_every_library_has_a_section():
    text = PAGE.read_text()
    linked = re.findall(r"^\| \[[^\]]+\]\(#([\w-]+)\)", text, re.M)
    headings = {
        re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-")
        for h in re.findall(r"^## (.*)", text, re.M)
    }
    assert len(linked) == 7 and set(linked) <= headings
