# SPDX-License-Identifier: Apache-2.0
"""Checks the language of comments and docstrings, private identifiers, width and length."""

import language
import pytest
from kflib import ROOT


def test_all_files(capsys):
    """Every hand-written file passes; `python tests/support/runs/language.py` prints the same."""
    status = language.main([])
    assert status == 0, capsys.readouterr().out[-4000:]


@pytest.mark.parametrize(
    "suffix, text",
    [
        (".py", '"""What a test is for."""\n'),
        (".py", "x = 1  # of a row\n"),
        (".cuh", "// As it lies in memory.\n"),
        (".cuh", "int x; /* by blocks */\n"),
        (".j2", "{# Those of a row. #}\n"),
        (".toml", "# In elements.\n"),
        (".cuh", "// kf/core/act.h: that which runs.\n"),
    ],
)
def test_an_opening_without_a_subject_is_seen(suffix, text):
    assert list(language.openings(ROOT / f"x{suffix}", text))


@pytest.mark.parametrize(
    "suffix, text",
    [
        (".py", '"""Stores a row. In place is allowed."""\n'),
        (".cuh", "// Byte offset of a row.\n"),
        (".cuh", "// In-place outputs.\n"),
        (".py", 'text = "Of a row"\n'),
    ],
)
def test_an_opening_with_a_subject_passes(suffix, text):
    assert not list(language.openings(ROOT / f"x{suffix}", text))


def test_private_identifiers_are_seen():
    for text in ("int kfi_ring_next;", "const int way = 0;", 'auto s = "kfi_pairs";'):
        assert list(language.identifiers(ROOT / "x.cuh", text)), text
    for text in ("// the same way", "int schedule;", "int kfi_pipeline_next;"):
        assert not list(language.identifiers(ROOT / "x.cuh", text)), text


def test_wide_lines_are_seen():
    assert list(language.wide(ROOT / "x.py", "x" * 101))
    assert list(language.wide(ROOT / "x.py", "| " + "x" * 120))
    assert not list(language.wide(ROOT / "x.md", "| " + "x" * 120))
    assert not list(language.wide(ROOT / "x.h", f"kf_result_t kf_add_f32({'x' * 120});"))


def test_tall_files_are_seen():
    assert list(language.tall(ROOT / "x.py", "x\n" * 501))
    assert not list(language.tall(ROOT / "x.py", "x\n" * 500))


def test_scripts_are_among_the_files():
    """Scripts have no suffix; generated files are left out."""
    found = {str(path.relative_to(ROOT)) for path in language.files()}
    assert {".ci/run", "gen/bin/kfgen", "Makefile"} <= found
    assert not any(name.startswith(("docs/reference/", "tests/golden/")) for name in found)
