# SPDX-License-Identifier: Apache-2.0
"""Fills the published pages with the filed measurements and draws the charts.

    python3 bench/report.py             fill all pages and draw stale charts (needs matplotlib)
    python3 bench/report.py --check     list stale pages and charts, change nothing
    python3 bench/report.py --every bench/results/h200/compile.json     print one row per case

README.md, docs/performance.md and docs/why.md have marks, <!-- table: slow 5 --> ... <!-- /table
-->, that name a function of tables.py and its arguments. Pages below docs/performance/ are
generated whole (set_pages.py). A test compares all of them with bench/results.
"""

import argparse
import os
import pathlib
import re

import filed
import set_pages
import tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "docs/performance.md", "docs/why.md")]
MARK = re.compile(r"(<!-- table: (?P<what>\w+)(?P<words>[^>]*?) -->\n).*?(<!-- /table -->)", re.S)


def linked(text, page):
    """Makes links that begin at the repository's root (`@/`) relative to the page."""
    root = os.path.relpath(ROOT, page.parent)
    return text.replace("](@/", "](" if root == "." else f"]({root}/")


def filled(page):
    """Returns the text of a page with marks, every marked table generated anew."""

    def table(m):
        return linked(f"{m[1]}{tables.TABLES[m['what']](*m['words'].split())}{m[4]}", page)

    return MARK.sub(table, page.read_text())


def texts():
    """Returns {path: text} of all published pages as they should be."""
    generated = {page: linked(text, page) for page, text in set_pages.pages().items()}
    return {page: filled(page) for page in PAGES} | generated


def stale():
    """Lists the names of pages and charts that differ from the filed results."""
    import charts

    found = [p for p, text in texts().items() if not p.exists() or p.read_text() != text]
    unknown = set(set_pages.FOLDER.glob("*.md")) - set(set_pages.pages())
    return [p.name for p in found] + [f"{p.name} (no set)" for p in unknown] + charts.stale()


def fill():
    """Writes all pages and draws stale charts; prints what was stale."""
    import charts

    names = stale()
    set_pages.FOLDER.mkdir(exist_ok=True)
    for page, text in texts().items():
        page.write_text(text)
    charts.draw(charts.stale())
    print(f"made anew: {', '.join(names) or 'nothing'}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true")
    p.add_argument("--every", type=pathlib.Path, metavar="FILE")
    args = p.parse_args()
    if args.every:
        which = args.every.resolve().relative_to(filed.RESULTS).with_suffix("").as_posix()
        return print(tables.every(which))
    if not args.check:
        return fill()
    names = stale()
    raise SystemExit(f"stale: {', '.join(names)}" if names else None)


if __name__ == "__main__":
    main()
