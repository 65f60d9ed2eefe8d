# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for test runs split over processes, calls and machines: it logs outcomes and
selects a share of the tests, or the tests of a list.

    python tests/support/level2/plugin.py --outcomes build/level2/a.jsonl --share 0/4 tests/cuda

Further arguments go to pytest.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import time
import zlib

if __name__ == "__main__":  # not through PYTHONPATH, which child processes of tests would inherit
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import pytest

from level2.logs import plain

TEXT = 3000  # maximum characters of a logged failure


def pytest_addoption(parser):
    group = parser.getgroup("level 2")
    group.addoption(
        "--outcomes",
        metavar="FILE.jsonl",
        help="logs a line per outcome; FILE.ids gets all tests of the files, selected or not",
    )
    group.addoption(
        "--share",
        metavar="I/N",
        help="one of N shares; an xdist_group stays together, tests marked `alone` are in share 0",
    )
    group.addoption(
        "--only", metavar="FILE", help="the tests whose ids, or whose files, are lines of FILE"
    )


def began(config):
    """Returns the first line of a log; runs.py only joins logs of the same commit and functions."""
    import promises

    kind, name = promises.machine()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=promises.ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "begin": [str(a) for a in config.invocation_params.args],
        "time": time.time(),
        "commit": commit,
        "kind": kind,
        "machine": name,
        "processor": promises.processor(),
        "level": int(os.environ.get("KF_LEVEL", "1")),
        "families": promises.had(),
    }


class Log:
    """Writes the log, in the main process, where the results of all workers arrive."""

    def __init__(self, config, path):
        self.path, self.files = path, set()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.say(began(config))

    def say(self, line):
        with open(self.path, "a") as out:
            out.write(json.dumps(line) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        if node.workerinput["workerid"] == "gw0":
            self.say({"collected": len(ids)})

    def pytest_collection_finish(self, session):
        if not session.config.getoption("numprocesses", None):
            self.say({"collected": len(session.items)})

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        line = {
            "id": plain(report.nodeid),
            "when": report.when,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
        }
        self.say(line | why(report))

    def pytest_collectreport(self, report):
        """Logs a file that skips itself or cannot be collected; with xdist each worker reports
        it."""
        if report.nodeid not in self.files and (
            report.outcome == "failed"
            or report.outcome == "skipped"
            and report.nodeid.endswith(".py")
        ):
            self.files.add(report.nodeid)
            self.say(
                {"id": report.nodeid, "when": "collect", "outcome": report.outcome, "seconds": 0}
                | why(report)
            )

    def pytest_sessionfinish(self, exitstatus):
        self.say({"end": int(exitstatus)})


def why(report):
    if report.outcome == "failed":
        text = report.longreprtext
        first = next((w for w in text.splitlines() if w.startswith("E ")), text[-200:])
        return {
            "first": first[:400],
            "text": text
            if len(text) <= TEXT
            else f"{text[: TEXT // 2]}\n...\n{text[-TEXT // 2 :]}",
        }
    if report.outcome == "skipped":
        reason = report.longrepr
        return {
            "reason": str(
                reason[2]
                if isinstance(reason, tuple)
                else getattr(report, "wasxfail", "") or reason
            )[:300]
        }
    return {}


def group(item):
    mark = item.get_closest_marker("xdist_group")
    return str([*mark.args, *mark.kwargs.values()]) if mark else plain(item.nodeid)


def share(items, text):
    """Returns one of N shares. Whole xdist groups rotate, ordered by file and hash, so each share
    has about as many tests of each file and function."""
    i, n = map(int, text.split("/"))
    groups = collections.defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("::")[0], group(item)].append(item)
    order = sorted(groups, key=lambda key: (key[0], zlib.crc32(key[1].encode()), key[1]))
    mine = {id(item) for turn, key in enumerate(order) if turn % n == i for item in groups[key]}
    return [x for x in items if (i == 0 if x.get_closest_marker("alone") else id(x) in mine)]


class Choice:
    """Selects the tests in each worker, after tests/conftest.py has removed tests of higher
    levels."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        log, only, part = (config.getoption(name) for name in ("outcomes", "only", "share"))
        if log and getattr(config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0":
            pathlib.Path(log).with_suffix(".ids").write_text(
                "".join(f"{plain(item.nodeid)}\n" for item in items)
            )
        found = list(items)
        if only:
            wanted = set(pathlib.Path(only).read_text().splitlines())
            found = [
                item
                for item in found
                if {plain(item.nodeid), item.nodeid.partition("::")[0]} & wanted
            ]
        if part:
            found = share(found, part)
        kept = set(map(id, found))
        if len(kept) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = found


@pytest.hookimpl(trylast=True)  # after tests/conftest.py has set the module path
def pytest_configure(config):
    log = config.getoption("outcomes")
    # Read by tests/cuda/conftest.py.
    config.in_parts = bool(log or config.getoption("only") or config.getoption("share"))
    config.pluginmanager.register(Choice())
    if log and not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(Log(config, pathlib.Path(log)))


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-p", "level2.plugin", *sys.argv[1:]]))
