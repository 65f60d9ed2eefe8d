# SPDX-License-Identifier: Apache-2.0
"""The promise matrix: which test proves which promise (promises.toml), for which family, and how the last runs ended.

Every pytest run writes build/promises.json. `python3 tests/support/promises.py build/promises.json` files it as one of
bench/results/promises/*.json, one a kind of machine, and writes docs/promises.md from all of them.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/promises"
PAGE = ROOT / "docs/promises.md"
OUTCOMES = ("passed", "failed", "skipped")
HEAD = """# What kf promises, and what proves it

Written by `tests/support/promises.py` from test runs; nothing here is filled in by hand. A row is a promise (the numbers are
the project's own), a family of functions ("all": what concerns every header), and a test. What was skipped names what that
machine lacks; a promise that only a GPU can prove has its results in the GPU's column.
"""


def load():
    return tomllib.loads((ROOT / "tests/support/promises.toml").read_text())["promise"]


def machine():
    """gpu or cpu, and its name."""
    import kflib
    if kflib.has_gpu():
        import subprocess
        name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout
        return "gpu", name.split("\n")[0]
    words = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M) if os.path.exists("/proc/cpuinfo") else None
    return "cpu", words[1] if words else platform.machine()


class Recorder:
    """Counts outcomes as (test, family). Runs in the process that pytest was started in."""

    def __init__(self):
        import kflib
        self.families = {f[name]: f["family"] for f in kflib.manifest()["functions"] for name in ("name", "cpu_name")}
        self.counts = collections.defaultdict(collections.Counter)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed" and report.when == "setup":
            test, _, parameters = report.nodeid.removeprefix("tests/").partition("[")
            function = re.search(r"\bkf_\w+", parameters)
            family = self.families.get(function[0], "all") if function else "all"
            self.counts[test, family][report.outcome] += 1

    def pytest_collectreport(self, report):
        if report.outcome == "skipped" and report.nodeid.endswith(".py"):  # a file that skips itself
            self.counts[report.nodeid.removeprefix("tests/"), "all"]["skipped"] += 1

    def pytest_sessionfinish(self):
        kind, name = machine()
        found = {"kind": kind, "machine": name, "level": int(os.environ.get("KF_LEVEL", "1")),
                 "tests": [[test, family, *(counter[o] for o in OUTCOMES)] for (test, family), counter in sorted(self.counts.items())]}
        if kind == "cpu":  # on a GPU every level has all
            import selection
            found["functions"] = f"{len(selection.gate()):,} of {len(selection.FUNCTIONS):,}"
        out = ROOT / "build/promises.json"
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(found, indent=0) + "\n")


def covers(pattern, test):
    return test == pattern or test.startswith(pattern + "::")


def cell(result, pattern, family):
    """What one run says about one test."""
    total = [0, 0, 0]
    for test, of, *counts in result["tests"]:
        if of == family and covers(pattern, test):
            total = [a + b for a, b in zip(total, counts)]
    words = [f"{n:,} {o}" for n, o in zip(total, OUTCOMES) if n]
    return ", ".join(words) or "-"


def page(results):
    kinds = [k for k in ("cpu", "gpu") if k in results]
    lines = [HEAD] + [f"- {'Without a GPU' if k == 'cpu' else 'With a GPU'}: {results[k]['machine']}, KF_LEVEL={results[k]['level']}"
                     + (f", {results[k]['functions']} functions" if "functions" in results[k] else "") for k in kinds]
    lines += ["", "| | promise | family | proven by | " + " | ".join("without a GPU" if k == "cpu" else "with a GPU" for k in kinds) + " |",
              "| --: | :-- | :-- | :-- |" + " :-- |" * len(kinds)]
    for promise in load():
        for pattern in promise["tests"]:
            families = sorted({of for r in results.values() for test, of, *_ in r["tests"] if covers(pattern, test)} - {"all"}) or ["all"]
            for family in families:
                cells = [cell(results[k], pattern, family) for k in kinds]
                if family != "all":  # a file that was skipped as a whole names no function
                    cells = [cell(results[k], pattern.partition("::")[0], "all") if c == "-" else c for k, c in zip(kinds, cells)]
                lines.append(f"| {promise['number']} | {promise['title']} | {family} | `tests/{pattern}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filed():
    return {p.stem: json.loads(p.read_text()) for p in sorted(RESULTS.glob("*.json"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=pathlib.Path, nargs="*")
    wanted = [pattern for promise in load() for pattern in promise["tests"]]
    runs = {}
    for path in parser.parse_args().runs:  # several of one kind, of different tests, make one
        run = json.loads(path.read_text())
        tests = [t for t in run["tests"] if any(covers(pattern, t[0]) or t[0] == pattern.partition("::")[0] for pattern in wanted)]
        runs.setdefault(run["kind"], run | {"tests": []})["tests"] += tests
    for kind, run in runs.items():
        RESULTS.mkdir(parents=True, exist_ok=True)
        head = json.dumps({k: v for k, v in run.items() if k != "tests"})[:-1]
        (RESULTS / f"{kind}.json").write_text(head + ', "tests": [\n' + ",\n".join(map(json.dumps, sorted(run["tests"]))) + "\n]}\n")
    PAGE.write_text(page(filed()))


if __name__ == "__main__":
    import sys
    sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]
    main()
