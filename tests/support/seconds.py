# SPDX-License-Identifier: Apache-2.0
"""What level 1 costs in processor seconds, by groups of tests: the table that a whole run of it is held against, so that it stays
a matter of minutes. A group that takes a fifth more than it may fails the run; with KF_BUDGET=print it is only named.

Processor seconds, of tests and of all that they start: what else a machine does hardly counts. They are those of the machine that the
table was measured on; another one's are divided by how much longer it takes for a fixed piece of work.
"""

import fnmatch
import os
import pathlib
import resource
import subprocess
import tempfile

import pytest

# (group, its tests, the first that fits, seconds)
TABLE = (
    ("C sanitizers", "tests/cpu/test_sanitizers.py", 80),
    ("seeded faults", "tests/cpu/test_mutation.py tests/cpu/test_robust_checks.py tests/emu/test_seeded.py tests/emu/test_device_words.py", 140),
    ("threads", "tests/cpu/test_threads.py", 60),
    ("C numbers", "tests/cpu/*", 150),
    ("emulation sanitizers", "tests/emu/test_sanitizers.py", 120),
    ("emulation numbers", "tests/emu/*", 220),
    ("refusals", "tests/errors/* tests/fuzz/test_arguments.py", 80),
    ("generator", "tests/gen/* tests/fuzz/*", 130),
    ("headers, NVRTC", "tests/headers/test_nvrtc.py tests/headers/test_device.py", 50),
    ("headers", "tests/headers/*", 180),
    ("build", "tests/build/*", 120),
    ("docs", "tests/docs/*", 60),
    ("the rest", "*", 20),
)
OVER = 1.2
REFERENCE = 0.1  # seconds that `piece` takes on that machine


def used():
    """By this process and by what it has started and waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def piece():
    """The least of three: a compilation, as most of what tests do."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            begin = used()
            source = pathlib.Path(__file__).with_name("every_call.c")
            subprocess.run(["gcc", "-std=gnu11", "-O2", "-c", source, "-o", f"{folder}/piece.o"], check=True)
            found.append(used() - begin)
    return min(found)


def group(path):
    return next(name for name, patterns, _ in TABLE if any(fnmatch.fnmatch(path, p) for p in patterns.split()))


class Meter:
    """In each process that runs tests: how much each report's part took."""

    def __init__(self):
        self.last = 0.0  # the first has what came before it: imports, collection

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        now = used()
        report.seconds, self.last = now - self.last, now


class Sum:
    """In the process that pytest was started in, where all reports arrive."""

    def __init__(self, whole):
        self.whole, self.found, self.scale = whole, {name: 0.0 for name, *_ in TABLE}, piece() / REFERENCE

    def pytest_runtest_logreport(self, report):
        self.found[group(report.nodeid.partition("::")[0])] += getattr(report, "seconds", 0.0)

    def over(self):
        return [name for name, _, seconds in TABLE if self.found[name] > OVER * seconds * self.scale] if self.whole else []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        self.scale = max(1.0, self.scale, piece() / REFERENCE)
        if os.environ.get("KF_BUDGET") != "print" and self.over() and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        say, over = terminalreporter.write_line, self.over()
        terminalreporter.section(f"processor seconds (this machine takes {self.scale:.2f} times as long as the table's)")
        for name, _, seconds in TABLE:
            if self.found[name] >= 0.5:
                allowed = f" of {seconds * self.scale:6.0f}{'  TOO MANY' if name in over else ''}" if self.whole else ""
                say(f"{name:<24}{self.found[name]:8.1f}{allowed}")
        say(f"{'in all':<24}{sum(self.found.values()):8.1f}" + (f" of {sum(s for *_, s in TABLE) * self.scale:6.0f}" if self.whole else ""))


def register(config):
    if not hasattr(config, "workerinput"):
        chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "lf", False) or config.args not in (["tests"], [])
        config.pluginmanager.register(Sum(whole=os.environ.get("KF_LEVEL", "1") == "1" and not chosen))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter())
