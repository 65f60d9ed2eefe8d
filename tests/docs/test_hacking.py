# SPDX-License-Identifier: Apache-2.0
"""The code that docs/hacking.md quotes stands in the files that it names; its map of files misses none of the generator's and core's."""

import re

import kflib
from conftest import ROOT
from kfgen import contract
from kfgen import spec as specs
from kfgen.expr import WORDS
from kfgen.render import Selection

PAGE = (ROOT / "docs/hacking.md").read_text()
QUOTE = re.compile(r"<!-- (in|explain): (\S+) -->\n```\w*\n(.*?)```\n", re.S)


def squeezed(text):
    return "".join(text.split())


def test_quotes(include):
    found = QUOTE.findall(PAGE)
    assert len(found) >= 6
    kernels = {launcher.name: k for k in Selection(specs.load()).all_kernels() for launcher in k.launchers}
    for kind, where, text in found:
        if kind == "explain":
            source = " ".join(contract.lines(kernels[where]))
        else:
            source = next(d / where for d in [ROOT, *include] if (d / where).is_file()).read_text()
        assert squeezed(text) in squeezed(source), f"{where} no longer has:\n{text}"


def test_the_map_is_whole():
    names = [p.name for folder in ("gen/kfgen", "include/kf/core") for p in (ROOT / folder).iterdir() if p.is_file() and not p.name.startswith("__")]
    assert [n for n in names if n not in PAGE] == []
    folders = [p.name for folder in ("", "tests", "templates", "gen") for p in (ROOT / folder).iterdir() if p.is_dir()]
    skip = {"build", "__pycache__"}
    assert [n for n in folders if n not in PAGE and n not in skip and not n.startswith((".", "build")) and n != "kfgen.egg-info"] == []


def test_every_word_is_in_the_language_reference():
    reference = PAGE.split("## The expression language")[1].split("\n## ")[0]
    assert [w for w in WORDS if not re.search(rf"\b{w}\b", reference)] == []


def test_contracts_are_short():
    for k in Selection(specs.load()).all_kernels():
        lines = contract.lines(k)
        assert len(lines) <= (16 if len(k.tensors) < 10 else 19) and max(map(len, lines)) <= 97, k.name
    assert "*/" not in contract.safe("a */ b") and kflib.ROOT == ROOT
