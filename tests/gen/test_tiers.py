# SPDX-License-Identifier: Apache-2.0
"""Checks how level 1 is split: each test runs in one tier, or belongs to an unchanged family."""

import pathlib

import ledger
import pytest
import tiers
from conftest import ROOT

F = {"name": "kf_add_f32", "family": "elementwise"}
EARLY = {"kf_add_f32"}
TESTS = {
    # (path, parameters, marked `check`): tier
    ("tests/gen/test_cli.py", (), False): "quick",
    ("tests/gen/test_cli.py", (), True): "rest",
    ("tests/fuzz/test_spec.py", (), False): "quick",
    ("tests/fuzz/test_maps.py", (), False): "rest",
    ("tests/build/test_make.py", (), False): "rest",
    ("tests/build/test_launcher_files.py", (), False): "rest",
    ("tests/families/rows/test_gen.py", (), False): "quick",
    ("tests/families/rows/test_emu_odd_rows.py", (), False): "rest",
    ("tests/emu/test_numbers.py", ("kf_add_f32",), False): "quick",
    ("tests/emu/test_numbers.py", ("kf_mul_f32",), False): "rest",
    ("tests/emu/test_numbers.py", (), True): "rest",
    ("tests/cpu/test_strided.py", ("kf_add_f32",), False): "rest",
    ("tests/headers/test_budget.py", (), False): "rest",
}


def runs_in(tier, test, monkeypatch, unchanged=()):
    path, names, check = test
    monkeypatch.setattr(tiers, "TIER", tier)
    monkeypatch.setattr(tiers, "FAMILY", "")
    parameters = {"f": F | {"name": names[0]}} if names else {}
    return tiers.runs(path, parameters, check, EARLY, lambda family: family in unchanged)


@pytest.mark.parametrize("test", TESTS, ids=lambda t: f"{t[0]}-{'-'.join(t[1])}-{t[2]}")
def test_every_test_is_in_one_tier(test, monkeypatch):
    assert [t for t in tiers.TIERS if runs_in(t, test, monkeypatch)] == [TESTS[test]]
    assert runs_in("", test, monkeypatch)


def test_of_an_unchanged_family_only_the_quick_tier_runs(monkeypatch):
    left = {
        test
        for test in TESTS
        if not runs_in(TESTS[test], test, monkeypatch, ["elementwise", "rows"])
    }
    assert left == {
        ("tests/families/rows/test_emu_odd_rows.py", (), False),
        ("tests/emu/test_numbers.py", ("kf_mul_f32",), False),
        ("tests/cpu/test_strided.py", ("kf_add_f32",), False),
    }


LEFT = {
    "all headers": {
        ("tests/emu/test_numbers.py", (), True),
        ("tests/headers/test_budget.py", (), False),
    },
    "build systems": {("tests/build/test_launcher_files.py", (), False)},
}


@pytest.mark.parametrize("group", tiers.GROUPS)
def test_a_group_runs_unless_nothing_has_changed(group, monkeypatch):
    left = {t for t in TESTS if not runs_in(TESTS[t], t, monkeypatch, [group])}
    assert left == LEFT[group]


def test_files_that_rest(monkeypatch):
    monkeypatch.setattr(tiers, "TIER", "rest")
    tests = [(path, {"f": F} if names else {}, check) for path, names, check in TESTS]
    found = tiers.resting_files(tests, lambda name: name in ("elementwise", "build systems"))
    assert found == ["build/test_launcher_files.py", "cpu/test_strided.py", "emu/test_numbers.py"]


@pytest.mark.parametrize(
    "group, path",
    [
        ("all headers", "tests/emu/test_numbers.py"),
        ("all headers", "tests/support/folders.py"),
        ("build systems", "tests/build/conftest.py"),
        ("build systems", "meson.build"),
        ("build systems", "CMakeLists.txt"),
        ("build systems", "gen/bin/kfgen"),
    ],
)
def test_a_group_s_digest_has_its_files(group, path, monkeypatch):
    monkeypatch.setattr(ledger, "digest", lambda family: "")
    monkeypatch.setattr(ledger, "families", list)
    digest = ledger.digest_of_group.__wrapped__
    found, read = digest(group), pathlib.Path.read_text
    monkeypatch.setattr(pathlib.Path, "read_text", lambda p: read(p) + "x" * (p == ROOT / path))
    assert digest(group) != found


def test_files_that_are_not_imported_have_no_quick_test(monkeypatch):
    paths = [p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").glob("**/test_*.py")]
    monkeypatch.setattr(tiers, "TIER", "quick")
    monkeypatch.setattr(tiers, "FAMILY", "")
    for path in paths:
        assert tiers.has_none(path) != any(
            runs_in("quick", (path, names, False), monkeypatch) for names in ((), ("kf_add_f32",))
        )


def test_comments_do_not_change_a_family(tmp_path):
    def digest(text):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h"
        path.write_text(text)
        return ledger._digest_of_code(path, 0)

    same = digest("int a; // one\nint  b; /* two\n */\n")
    assert same == digest("int a;\n  int b;\n")
    assert same != digest("int a; int c;\n")
    assert digest('f("// one");') != digest('f("// two");')
    assert digest("f('\"'); // one\nint b;") == digest("f('\"');\nint b;")
