# SPDX-License-Identifier: Apache-2.0
"""Checks docs/promises.md: its tests exist and passed, and it matches the filed runs."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import folders
import ledger
import promises
import pytest
from conftest import ROOT

PATTERNS = sorted({pattern for promise in promises.load() for pattern in promise["tests"]})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_test_exists(pattern):
    file, _, function = pattern.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    names = {
        n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
    }
    assert names and (not function or function in names)


def test_every_promise_is_proven_by_a_run():
    """A test of each promise ran and passed somewhere, and none failed."""
    results = promises.filed()
    for promise in promises.load():
        counts = [
            counts
            for r in results.values()
            for test, _, *counts in r["tests"]
            if any(promises.covers(p, test) for p in promise["tests"])
        ]
        assert not any(failed for _, failed, _ in counts), promise["title"]
        assert sum(passed for passed, _, _ in counts), promise["title"]


def test_the_page_is_what_the_runs_say():
    text = promises.PAGE.read_text()
    assert text == promises.page(promises.filed()), "run: python3 tests/support/runs/promises.py"
    assert len(re.findall(r"^\| \w+ \| `tests/", text, re.M)) >= len(PATTERNS)
    assert len(re.findall(r"^## \d+\. ", text, re.M)) == len(promises.load())


def test_results_are_counted():
    tests = [
        ["gen/test_abi.py::test_golden", "all", 2, 1, 0],
        ["gen/test_abi.py::x", "map", 3, 0, 4],
    ]
    run = {"kind": "cpu", "machine": "m", "level": 1, "tests": tests}
    assert promises.cell(run, "gen/test_abi.py", "all") == "2 passed, 1 failed"
    assert promises.cell(run, "gen/test_abi.py", "map") == "3 passed, 4 skipped"
    assert promises.cell(run, "gen/test_ab", "all") == "-"


def collected(session):
    """Returns (files, tests) of a whole run of this level, of both tiers; collects again if pytest
    runs a part."""
    option = session.config.option
    if session.config.args in ([str(ROOT / "tests")], ["tests"]) and not (
        option.keyword or option.markexpr or option.ignore
    ):
        ids = session.config.ids_of_level
        return {i.partition("::")[0] for i in ids} | session.config.files_skipped, {
            i.partition("[")[0] for i in ids
        }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": "", "KF_TIER": "", "KF_FAMILY": ""},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    lines = done.stdout.splitlines()
    return set(re.findall(r"^(?:SKIPPED \[\d+\] )?(tests/\S+?\.py)\b", done.stdout, re.M)), {
        i.partition("[")[0] for i in lines if "::" in i
    }


@pytest.mark.check
def test_every_file_of_tests_is_run(request):
    """pytest skips some directories by name; each level tests every promise without a GPU."""
    files, tests = collected(request.session)
    assert files == {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").glob("**/test_*.py")}
    run = {test.removeprefix("tests/") for test in tests}
    assert [
        p
        for p in PATTERNS
        if not p.startswith("cuda/") and not any(promises.covers(p, test) for test in run)
    ] == []


def test_modules_have_names_of_their_own():
    """A process imports only one of two modules on sys.path that share a name."""
    files = (p for folder in folders.PATHS for p in pathlib.Path(folder).glob("*.py"))
    names = [p.stem for p in files if not p.stem.startswith("test_")]
    by_path = {"cases", "family", "reference", "c", "cuda"}  # modules of families
    assert {n for n in names if names.count(n) > 1} - by_path == set()


@pytest.mark.check
def test_the_ledger(tmp_path, monkeypatch):
    """A family is unchanged while its digest is the filed one; a whole run misses nothing."""
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "families.json")
    family, *others = ledger.families()
    ledger.unchanged.cache_clear()
    assert not ledger.unchanged(family)
    ledger.write({family: ledger.digest(family)} | {other: "of other sources" for other in others})
    ledger.unchanged.cache_clear()
    assert ledger.unchanged(family) and not any(map(ledger.unchanged, others))
    ledger.unchanged.cache_clear()
    files = [
        p.relative_to(ROOT / "tests").as_posix() for p in (ROOT / "tests").glob("**/test_*.py")
    ]
    run = {
        "files": files[1:],
        "tests": [["a.py::b", "all", 1, 0, 0]],
        "families": {family: {"content": ledger.digest(family)}},
    }
    rest = run | {"files": files[:1]}
    assert promises.is_whole([run, rest]) == [family] and promises.is_whole([run]) == []
    for test, of, found in (
        ("cpu", "all", []),
        ("cpu", family, []),
        ("build", "all", [family]),
        ("emu", others[0], [family]),
    ):
        assert (
            promises.is_whole([run, rest | {"tests": [[f"{test}/a.py::c", of, 1, 1, 0]]}]) == found
        )
    assert (
        promises.is_whole([run, rest | {"families": {family: {"content": "of other sources"}}}])
        == []
    )


def test_a_family_keeps_its_results_where_another_one_is_run_again():
    def run(**counts):
        return {
            "kind": "cpu",
            "machine": "m",
            "level": 2,
            "families": {f: {"functions": 1} for f in counts},
            "tests": [
                ["gen/test_abi.py::test_golden", family, n, 0, 0] for family, n in counts.items()
            ],
        }

    assert promises.joined(run(map=1, row=2), run(row=5))["tests"] == run(map=1, row=5)["tests"]
    assert (
        promises.joined(run(map=1, row=2) | {"level": 1}, run(row=5))["tests"]
        == run(row=5)["tests"]
    )
