# SPDX-License-Identifier: Apache-2.0
"""Checks docs/troubleshooting.md: the messages that it explains are those of the sources."""

import re

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SOURCES = [
    p
    for folder in ("include/kf", "gen/kfgen", "templates", "frontends/python/kernel_fusion")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in (".h", ".cuh", ".py", ".j2", ".cpp")
]
# Words before a message of another program.
OTHERS = ("gcc: ", "ld: ", "ptxas: ", "CMake: ")
OWN_OF_PYTHON = "takes from … positional arguments but"  # TypeError of Python itself


def joined(text):
    """Returns a source's text with adjacent string literals and broken lines joined."""
    text = re.sub(r"\\\n", "", text)
    text = re.sub(r"\"\s*f?\"", "", text)
    return " ".join(text.split())


TEXT = "\n".join(joined(p.read_text()) for p in SOURCES)


def messages():
    """Returns the quoted messages of first cells: those with several words."""
    cells = re.findall(r"^\| ([^|]*) \|", PAGE, re.M)
    quoted = [
        m
        for cell in cells
        if not cell.startswith(OTHERS)
        for m in re.findall(r"`([^`]+)`", cell)
        if " " in m
    ]
    return [m for m in quoted if m != OWN_OF_PYTHON]


@pytest.mark.parametrize("message", messages())
def test_the_message_exists(message):
    parts = [part for part in re.split(r"…", message) if len(part.strip()) > 3]
    assert parts
    for part in parts:
        assert part.strip() in TEXT, part


def test_the_page_explains_every_refusal_of_the_compiler():
    """Each #error of the headers that begins with `kf: ` is on the page."""
    errors = re.findall(r"#error \"(kf: [^\"]{20})", joined_headers())
    assert len(errors) >= 6
    assert [e for e in errors if e not in PAGE] == []


def joined_headers():
    headers = (ROOT / "include/kf").rglob("*.*h")
    return "\n".join(re.sub(r"\s+", " ", p.read_text().replace("\\\n", "")) for p in headers)
