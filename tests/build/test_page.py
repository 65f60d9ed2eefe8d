# SPDX-License-Identifier: Apache-2.0
"""docs/install.md: each installation method has tests, which exist, and each shown command is run
by one."""

import pathlib
import re
import subprocess
import sys

import ways

PAGE = ways.PAGE.read_text()
TABLE = re.search(r"<!-- ways -->\n(.*?)<!-- /ways -->", PAGE, re.S)[1].strip().splitlines()[2:]


def anchor(title):
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def test_each_way_has_tests_that_are_run():
    """Every method in the page's table must name tests that exist at level 2."""
    named = {}
    for row in TABLE:
        method, _, tests = [c.strip() for c in row.strip("|").split("|")]
        named[method] = re.findall(r"`(tests/\S+\.py::\w+)`", tests)
        assert named[method], f"no test for: {method}"
    files = sorted({t.split("::")[0] for tests in named.values() for t in tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ways.ROOT,
        capture_output=True,
        text=True,
        env={**ways.environment(), "PYTEST_ADDOPTS": "", "KF_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    collected = {line.split("[")[0] for line in done.stdout.splitlines() if "::" in line}
    missing = [
        f"{method}: {t}" for method, tests in named.items() for t in tests if t not in collected
    ]
    assert not missing


def test_each_section_is_in_the_table():
    titles = re.findall(r"^##+ (.*)$", PAGE, re.M)
    linked = re.findall(r"\]\(#([^)]+)\)", "\n".join(TABLE))
    assert set(linked) == {anchor(t) for t in titles}


def test_every_snippet_is_used():
    shown = ways.snippets()
    fences = re.findall(r"^```\w+$", PAGE, re.M)
    assert len(shown) == len(fences), "code without a name is run by no test"
    sources = "".join(p.read_text() for p in pathlib.Path(__file__).parent.glob("*.py"))
    used = set(re.findall(r'(?:snippet|compile_and_run)\(\s*"([^"]+)"', sources))
    assert set(shown) == used


def test_version():
    """The page's file names must have this version, and find_package must request it."""
    assert set(re.findall(r"kf-(\d+\.\d+\.\d+)", PAGE)) == {ways.VERSION}
    assert f"find_package(kf {'.'.join(ways.VERSION.split('.')[:2])} " in PAGE


def test_a_snippet_must_have_what_is_changed():
    try:
        ways.snippet("install", [("no such word", "")])
    except AssertionError as e:
        assert "no such word" in str(e)
    else:
        raise AssertionError("a change of what is not there was accepted")
