# SPDX-License-Identifier: Apache-2.0
"""Reports the cost of a run in processor seconds, per group of tests and per family. It fails
nothing.

Seconds include child processes and what a test made first for others. KF_SECONDS=1 also lists the
30 most expensive files and the 60 most expensive tests.
"""

import collections
import fnmatch
import os
import pathlib
import resource

import pytest
import tiers

ROOT = pathlib.Path(__file__).resolve().parents[3]

# (group, patterns of its tests): the first match counts.
GROUPS = (
    ("C sanitizers", "tests/cpu/test_sanitizers.py"),
    (
        "seeded faults",
        "tests/cpu/test_mutation.py tests/cpu/test_robust_checks.py tests/emu/test_seeded.py "
        "tests/emu/test_device_words.py",
    ),
    ("threads", "tests/cpu/test_threads.py"),
    ("C numbers", "tests/cpu/* tests/families/*/test_cpu*"),
    ("emulation sanitizers", "tests/emu/test_sanitizers.py"),
    ("emulation numbers", "tests/emu/* tests/families/*/test_emu*"),
    ("refusals", "tests/errors/* tests/fuzz/test_arguments.py"),
    (
        "generator",
        "tests/gen/* tests/families/*/test_gen* tests/families/*/test_fuzz* tests/fuzz/*",
    ),
    ("headers, NVRTC", "tests/headers/test_nvrtc.py tests/headers/test_device.py"),
    ("headers", "tests/headers/* tests/families/*/test_headers*"),
    ("build", "tests/build/*"),
    ("docs", "tests/docs/*"),
    ("runtime", "tests/runtime/*"),
    ("Python", "tests/frontends/* tests/families/*/test_frontends*"),
    ("the rest", "*"),
)


def used():
    """Returns the processor seconds of this process and of the children it waited for."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def group(path):
    """Returns the group of a test's file."""
    return next(
        name for name, patterns in GROUPS if any(fnmatch.fnmatch(path, p) for p in patterns.split())
    )


class Meter:
    """A pytest plugin in each worker: measures the processor seconds of each test's phases."""

    def __init__(self):
        self.last = 0.0  # the first report includes imports and collection

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        now = used()
        path, parameters, _ = tiers.of(item, ROOT)
        report.seconds, report.family = now - self.last, tiers.family(path, parameters)
        self.last = now


class Sum:
    """A pytest plugin in the main process: sums the seconds of all reports."""

    def __init__(self):
        self.groups, self.families, self.tests = (collections.Counter() for _ in range(3))

    def pytest_runtest_logreport(self, report):
        taken = getattr(report, "seconds", 0.0)
        self.groups[group(report.nodeid.partition("::")[0])] += taken
        self.families[getattr(report, "family", "")] += taken
        self.tests[report.nodeid] += taken

    def pytest_terminal_summary(self, terminalreporter):
        def table(title, rows):
            terminalreporter.section(title)
            for name, taken in rows:
                if taken >= 0.5:
                    terminalreporter.write_line(f"{taken:8.1f}  {name}")

        named = [(name, self.groups[name]) for name, _ in GROUPS]
        table("processor seconds", [*named, ("in all", sum(self.groups.values()))])
        table("of one family", [(n, s) for n, s in self.families.most_common() if n])
        if os.environ.get("KF_SECONDS"):
            files = collections.Counter()
            for name, taken in self.tests.items():
                files[name.partition("::")[0]] += taken
            table("files", files.most_common(30))
            table("tests", self.tests.most_common(60))


def register(config):
    """Adds the plugins that this process needs."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sum())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter())
