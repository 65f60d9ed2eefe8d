# SPDX-License-Identifier: Apache-2.0
"""The promise matrix: every test that promises.toml names exists, its page is what the filed runs say, nothing in it failed."""

import ast
import os
import re
import subprocess
import sys

import promises
import pytest
from conftest import ROOT

PATTERNS = sorted({pattern for promise in promises.load() for pattern in promise["tests"]})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_test_exists(pattern):
    file, _, function = pattern.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}
    assert names and (not function or function in names)


def test_every_promise_is_proven_by_a_run():
    """By a test that ran and passed somewhere."""
    results = promises.filed()
    for promise in promises.load():
        counts = [counts for r in results.values() for test, _, *counts in r["tests"] if any(promises.covers(p, test) for p in promise["tests"])]
        assert not any(failed for _, failed, _ in counts), promise["title"]
        assert sum(passed for passed, _, _ in counts), promise["title"]


def test_the_page_is_what_the_runs_say():
    text = promises.PAGE.read_text()
    assert text == promises.page(promises.filed()), "run: python3 tests/support/promises.py"
    assert len(re.findall(r"^\| \d+ \|", text, re.M)) >= len(PATTERNS)


def test_results_are_counted():
    tests = [["gen/test_abi.py::test_golden", "all", 2, 1, 0], ["gen/test_abi.py::x", "map", 3, 0, 4]]
    run = {"kind": "cpu", "machine": "m", "level": 1, "tests": tests}
    assert promises.cell(run, "gen/test_abi.py", "all") == "2 passed, 1 failed"
    assert promises.cell(run, "gen/test_abi.py", "map") == "3 passed, 4 skipped"
    assert promises.cell(run, "gen/test_ab", "all") == "-"


def test_every_file_of_tests_is_run():
    """pytest leaves out directories of certain names by itself; and level 1 has something of every promise that needs no GPU."""
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"], cwd=ROOT, capture_output=True,
                          text=True, env={**os.environ, "PYTEST_ADDOPTS": "", "KF_LEVEL": "1"})
    assert done.returncode == 0, done.stdout[-3000:]
    found = set(re.findall(r"^(?:SKIPPED \[\d+\] )?(tests/\S+?\.py)\b", done.stdout, re.M))
    assert found == {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").glob("**/test_*.py")}
    run = {line.partition("[")[0].removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}
    assert [p for p in PATTERNS if not p.startswith("cuda/") and not any(promises.covers(p, test) for test in run)] == []
