# SPDX-License-Identifier: Apache-2.0
"""Limits the cost of level 1, in processor seconds per group of tests.

A complete level-1 run fails if a group takes a fifth more than TABLE allows. KF_BUDGET=print only
reports it; KF_BUDGET=tests also lists the 30 most expensive files and 60 most expensive tests,
including the fixtures that each made first.

Seconds include child processes and are scaled to the reference machine. Every minute each worker
times a fixed compilation between two tests, and divides by how much slower it ran than there.
"""

import collections
import fnmatch
import os
import resource
import subprocess
import tempfile
import time

import kflib
import pytest

# (group, patterns of its tests (the first match counts), seconds)
TABLE = (
    ("C sanitizers", "tests/cpu/test_sanitizers.py", 80),
    (
        "seeded faults",
        "tests/cpu/test_mutation.py tests/cpu/test_robust_checks.py tests/emu/test_seeded.py "
        "tests/emu/test_device_words.py",
        112,
    ),
    ("threads", "tests/cpu/test_threads.py", 34),
    ("C numbers", "tests/cpu/* tests/families/*/test_cpu*", 266),
    ("emulation sanitizers", "tests/emu/test_sanitizers.py", 101),
    ("emulation numbers", "tests/emu/* tests/families/*/test_emu*", 585),
    ("refusals", "tests/errors/* tests/fuzz/test_arguments.py", 72),
    ("generator", "tests/gen/* tests/families/*/test_gen* tests/fuzz/*", 240),
    ("headers, NVRTC", "tests/headers/test_nvrtc.py tests/headers/test_device.py", 42),
    ("headers", "tests/headers/* tests/families/*/test_headers*", 234),
    ("build", "tests/build/*", 172),
    ("docs", "tests/docs/*", 100),
    ("runtime", "tests/runtime/*", 130),
    ("Python", "tests/frontends/* tests/families/*/test_frontends*", 134),
    ("the rest", "*", 20),
)
OVER = 1.2
REFERENCE = 0.1  # Seconds that `piece` takes on the reference machine.
EVERY = 60  # Seconds between two measurements; each takes a quarter of a second per worker.


def used():
    """Returns the processor seconds of this process and of the children it waited for."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def piece():
    """Returns the processor seconds of a fixed compilation, the smaller of two runs. Most of what
    tests do is compiling."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            begin = used()
            source = kflib.ROOT / "tests/support/builds/every_call.c"
            subprocess.run(
                ["gcc", "-std=gnu11", "-O2", "-c", source, "-o", f"{folder}/piece.o"], check=True
            )
            found.append(used() - begin)
    return min(found)


def group(path):
    return next(
        name
        for name, patterns, _ in TABLE
        if any(fnmatch.fnmatch(path, p) for p in patterns.split())
    )


class Meter:
    """A pytest plugin in each worker: measures the seconds of each test's phases."""

    def __init__(self):
        # The first report includes imports and collection.
        self.last, self.scale, self.next = (0.0, 1.0, 0.0)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        taken = used() - self.last
        if time.monotonic() >= self.next:
            self.scale = piece() / REFERENCE
            self.next = time.monotonic() + EVERY
        report.seconds, report.processor, self.last = taken / self.scale, taken, used()


class Sum:
    """A pytest plugin in the main process: sums the seconds of all reports."""

    def __init__(self, whole):
        self.whole, self.found, self.processor, self.tests = (
            whole,
            {name: 0.0 for name, *_ in TABLE},
            0.0,
            collections.Counter(),
        )

    def pytest_runtest_logreport(self, report):
        self.found[group(report.nodeid.partition("::")[0])] += getattr(report, "seconds", 0.0)
        self.processor += getattr(report, "processor", 0.0)
        self.tests[report.nodeid] += getattr(report, "seconds", 0.0)

    def over(self):
        return (
            [name for name, _, seconds in TABLE if self.found[name] > OVER * seconds]
            if self.whole
            else []
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if (
            os.environ.get("KF_BUDGET") not in ("print", "tests")
            and self.over()
            and session.exitstatus == 0
        ):
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        say, over, took = terminalreporter.write_line, self.over(), sum(self.found.values())
        terminalreporter.section(
            f"processor seconds of the reference machine ({self.processor:.0f} of this one)"
        )
        for name, _, seconds in TABLE:
            if self.found[name] >= 0.5:
                say(
                    f"{name:<24}{self.found[name]:8.1f}"
                    + (
                        f" of {seconds:6.0f}{'  TOO MANY' if name in over else ''}"
                        if self.whole
                        else ""
                    )
                )
        say(
            f"{'in all':<24}{took:8.1f}"
            + (f" of {sum(s for *_, s in TABLE):6.0f}" if self.whole else "")
        )
        files = collections.Counter()
        for name, taken in self.tests.items():
            files[name.partition("::")[0]] += taken
        for name, taken in (
            files.most_common(30) + self.tests.most_common(60)
            if os.environ.get("KF_BUDGET") == "tests"
            else ()
        ):
            say(f"{taken:8.1f}  {name}")


def register(config):
    if not hasattr(config, "workerinput"):
        chosen = (
            config.option.keyword
            or config.option.markexpr
            or getattr(config.option, "lf", False)
            or config.args not in (["tests"], [])
        )
        config.pluginmanager.register(
            Sum(whole=os.environ.get("KF_LEVEL", "1") == "1" and not chosen)
        )
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter())
