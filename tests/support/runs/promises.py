# SPDX-License-Identifier: Apache-2.0
"""The promise matrix: which tests prove which promise (promises.toml), for which family, and their
last results.

Every pytest run writes build/promises.json, of a tier build/promises-<tier>.json.
`python3 tests/support/runs/promises.py build/promises.json` files a level-2 run in
bench/results/promises/, one file per kind of machine, and writes docs/promises.md from all of them.
Runs that together cover every test file, both tiers of level 1 or level 2, also update the ledger
(ledger.py) for each family without failures. `make level2` does both.
"""

import argparse
import collections
import functools
import json
import os
import pathlib
import platform
import re
import textwrap
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
RESULTS = ROOT / "bench/results/promises"
PAGE = ROOT / "docs/promises.md"
OUTCOMES = ("passed", "failed", "skipped")
HEAD = """# What kf promises, and what proves it

Each promise with the tests that prove it and the results of the last whole test runs. The page is
for users who depend on a promise and for contributors who change code behind one.
`python3 tests/support/runs/promises.py` writes it from the filed runs; do not edit it.

- *family*: the functions that a row is about; "all" concerns every header.
- *skipped*: that machine lacked something, such as a GPU, clang or valgrind.
- *-*: the filed run did not have that test. A row with nothing else is not proven yet.
"""


def load():
    return tomllib.loads((ROOT / "tests/support/runs/promises.toml").read_text())["promise"]


def processor():
    words = (
        re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
        if os.path.exists("/proc/cpuinfo")
        else None
    )
    return words[1] if words else platform.machine()


def machine():
    """Returns ("gpu" or "cpu", the name of the machine's device)."""
    import kflib

    if kflib.has_gpu():
        import subprocess

        name = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        ).stdout
        return "gpu", name.split("\n")[0]
    return "cpu", processor()


class Counts:
    """Counts outcomes per (test, family)."""

    def __init__(self):
        import kflib

        self.families = {
            f[name]: f["family"]
            for f in kflib.manifest()["functions"]
            for name in ("name", "cpu_name")
        }
        self.counts = collections.defaultdict(collections.Counter)

    def add(self, nodeid, outcome):
        """Adds one outcome. nodeid: id of a test, or of a file that was skipped as a whole."""
        test, _, parameters = nodeid.removeprefix("tests/").partition("[")
        function = re.search(r"\bkf_\w+", parameters)
        self.counts[test, self.families.get(function[0], "all") if function else "all"][
            outcome
        ] += 1

    def tests(self):
        return [
            [test, family, *(counter[o] for o in OUTCOMES)]
            for (test, family), counter in sorted(self.counts.items())
        ]

    def files(self):
        return sorted({test.partition("::")[0] for test, _ in self.counts})


def had(whole=True):
    """Returns {family: the functions that this run has of it}. whole: the run had all tests of its
    families, so the ledger may use it."""
    import ledger
    import selection

    functions = collections.Counter(f["family"] for f in selection.gate())
    return {
        f: {"functions": n, "names": ledger.names(f), "content": ledger.digest(f) if whole else ""}
        for f, n in functions.items()
    }


class Recorder:
    """A pytest plugin in the main process that writes build/promises.json."""

    def __init__(self):
        self.counts = Counts()
        self.resting = set()  # files with tests of unchanged families or groups, left out

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_testnodedown(self, node):
        self.resting |= set(getattr(node, "workeroutput", {}).get("files_resting", ()))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed" and report.when == "setup":
            self.counts.add(report.nodeid, report.outcome)

    def pytest_collectreport(self, report):
        if report.outcome == "skipped" and report.nodeid.endswith(
            ".py"
        ):  # a file that skips itself
            self.counts.add(report.nodeid, "skipped")

    def pytest_sessionfinish(self, session):
        import tiers

        kind, name = machine()
        level, option = int(os.environ.get("KF_LEVEL", "1")), session.config.option
        whole = (level > 1 or tiers.TIER) and not (
            option.keyword
            or option.markexpr
            or getattr(option, "lf", False)
            or any("::" in a for a in session.config.args)
        )
        found = {
            "kind": kind,
            "machine": name,
            "level": level,
            "families": had(whole),
            "files": sorted({*self.counts.files(), *self.resting}) if whole else [],
            "tests": self.counts.tests(),
        }
        out = ROOT / f"build/{'promises-' + tiers.TIER if tiers.TIER else 'promises'}.json"
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(found, indent=0) + "\n")


@functools.cache
def built_in():
    """Returns the names of kf's own families."""
    return {path.parent.name for path in (ROOT / "gen/kfgen/families").glob("*/family.py")}


def covers(pattern, test):
    return test == pattern or test.startswith(pattern + "::")


def family_of(pattern):
    """Returns the family whose folder has a pattern's tests, else "all"."""
    found = re.match(r"families/(\w+)/", pattern)
    return found[1] if found and found[1] in built_in() else "all"


def cell(result, pattern, family):
    """Returns the table cell of one run, test pattern and family."""
    own = {family} | ({"all"} if family == family_of(pattern) else set())
    total = [0, 0, 0]
    for test, of, *counts in result["tests"]:
        if of in own and covers(pattern, test):
            total = [a + b for a, b in zip(total, counts)]
    words = [f"{n:,} {o}" for n, o in zip(total, OUTCOMES) if n]
    return ", ".join(words) or "-"


def rows(results, kinds, pattern):
    """Returns the table rows of one test pattern, one per family."""
    families = {
        of for r in results.values() for test, of, *_ in r["tests"] if covers(pattern, test)
    } - {"all"}
    lines = []
    for family in sorted(families) or [family_of(pattern)]:
        cells = [cell(results[k], pattern, family) for k in kinds]
        if family != "all":  # a file that was skipped as a whole names no function
            cells = [
                cell(results[k], pattern.partition("::")[0], "all") if c == "-" else c
                for k, c in zip(kinds, cells)
            ]
        lines.append(f"| {family} | `tests/{pattern}` | {' | '.join(cells)} |")
    return lines


def page(results):
    kinds = [k for k in ("cpu", "gpu") if k in results]
    had = {
        k: ", ".join(
            f"{r['functions']:,} {family}" for family, r in sorted(results[k]["families"].items())
        )
        for k in kinds
    }
    lines = [HEAD]
    for k in kinds:
        where = "Without a GPU" if k == "cpu" else "With a GPU"
        text = (
            f"{where}: {results[k]['machine']}, KF_LEVEL={results[k]['level']}, {had[k]} functions."
        )
        lines += textwrap.wrap(text, 100, initial_indent="- ", subsequent_indent="  ")
    without = sorted(built_in() - {f for k in kinds for f in results[k]["families"]})
    if without:
        text = (
            f"No filed run yet has the functions of: {', '.join(without)}. The tests of all "
            f"functions have them, too."
        )
        lines += textwrap.wrap(text, 100, initial_indent="- ", subsequent_indent="  ")
    columns = ["without a GPU" if k == "cpu" else "with a GPU" for k in kinds]
    for promise in load():
        lines += ["", f"## {promise['number']}. {promise['title']}", ""]
        lines += [
            f"| family | proven by | {' | '.join(columns)} |",
            "| :-- | :-- |" + " :-- |" * len(kinds),
        ]
        for pattern in promise["tests"]:
            lines += rows(results, kinds, pattern)
    return "\n".join(lines) + "\n"


def filed():
    return {p.stem: json.loads(p.read_text()) for p in sorted(RESULTS.glob("*.json"))}


def joined(filed, run):
    """Merges a run into the filed results of its kind of machine. Families that the run did not
    have keep theirs."""
    wanted = [pattern for promise in load() for pattern in promise["tests"]]
    tests = [
        t
        for t in run["tests"]
        if any(covers(pattern, t[0]) or t[0] == pattern.partition("::")[0] for pattern in wanted)
    ]
    old = (
        filed
        if filed and filed["level"] == run["level"] and filed["machine"] == run["machine"]
        else {"families": {}, "tests": []}
    )
    rows = {tuple(t[:2]): t for t in [*old["tests"], *tests]}
    return {k: run[k] for k in ("kind", "machine", "level")} | {
        "families": old["families"] | run["families"],
        "tests": sorted(rows.values()),
    }


def kind_of(test):
    """Returns a test's folder; for test_<kind>*.py of tests/families/<family> the kind."""
    found = re.match(r"families/\w+/test_([a-z]+)", test)
    return found[1] if found else test.partition("/")[0]


def is_whole(runs):
    """Returns the families to put into the ledger: unchanged since all runs, and without a failure.

    The runs must cover every test file together. A failure in a test that belongs to no single
    family keeps the whole ledger unchanged.
    """
    import ledger
    import tiers

    there = {
        p.relative_to(ROOT / "tests").as_posix()
        for p in (ROOT / "tests").glob("**/test_*.py")
        # Level 1 leaves out the tests of what is unchanged.
        if not ledger.unchanged(
            p.parent.name
            if p.parent.parent.name == "families"
            else tiers.group(p.relative_to(ROOT).as_posix())
        )
    }
    missing = there - {f for run in runs for f in run["files"]}
    failed = {
        (family, test) for run in runs for test, family, _, failures, _ in run["tests"] if failures
    }
    shared = [
        test
        for family, test in failed
        if family == "all" and kind_of(test) in ("cpu", "emu", "errors")
    ]
    if missing or shared:
        print(
            "the ledger stays as it is:",
            f"failed: {shared[:5]}" if shared else f"not run whole: {sorted(missing)[:5]}",
        )
        return []
    whole = [
        f
        for f in ledger.families()
        if all(run["families"].get(f, {}).get("content") == ledger.digest(f) for run in runs)
    ]
    return [f for f in whole if f not in {family for family, _ in failed}]


def main():
    import ledger
    import tiers

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=pathlib.Path, nargs="*", help="of different tests or families")
    results, runs = filed(), [json.loads(path.read_text()) for path in parser.parse_args().runs]
    for run in runs:
        if run["level"] == 1:
            continue
        kind = run["kind"]
        results[kind] = joined(results.get(kind), run)
        RESULTS.mkdir(parents=True, exist_ok=True)
        head = json.dumps({k: v for k, v in results[kind].items() if k != "tests"})[:-1]
        (RESULTS / f"{kind}.json").write_text(
            head + ', "tests": [\n' + ",\n".join(map(json.dumps, results[kind]["tests"])) + "\n]}\n"
        )
    PAGE.write_text(page(results))
    if runs and all(run["kind"] == "cpu" for run in runs):
        whole = {family: ledger.digest(family) for family in is_whole(runs)}
        if len(whole) == len(ledger.families()):
            whole |= {name: ledger.digest_of_group(name) for name in tiers.GROUPS}
        ledger.write(whole)


if __name__ == "__main__":
    import sys

    sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]
    import folders

    folders.add()
    main()
