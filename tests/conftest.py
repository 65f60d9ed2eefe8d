# SPDX-License-Identifier: Apache-2.0
import gc
import os
import pathlib
import sys

import pytest

# This runs before any import of NumPy. OpenBLAS threads spin while they wait, which took a quarter
# of the emulation tests' time, and the workers use all cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.disable()  # until the end of collection: objects made by then stay

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import folders  # noqa: E402

folders.add()

import cases  # noqa: E402
import kflib  # noqa: E402
import ledger  # noqa: E402
import once as once_a_run  # noqa: E402
import promises  # noqa: E402
import seconds  # noqa: E402
import selection  # noqa: E402
import tiers  # noqa: E402

BUILD = ROOT / "build/tests"
SKIPPED = set()  # test files that skip themselves


def pytest_configure(config):
    config.files_skipped = SKIPPED
    try:
        tiers.check_family(sorted({f["family"] for f in kflib.manifest()["functions"]}))
    except ValueError as e:
        raise pytest.UsageError(str(e)) from None
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        gc.enable()  # the main process collects no tests
    # The main process receives the results of all workers.
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(promises.Recorder())
    if not config.option.collectonly:
        seconds.register(config)


def pytest_ignore_collect(collection_path, config):
    """Leaves out files without tests of the tier, whose imports and parameters take seconds."""
    name = collection_path.name
    if name.startswith("test_") and name.endswith(".py"):
        return tiers.has_none(collection_path.relative_to(ROOT).as_posix()) or None
    return None


def pytest_collection_modifyitems(config, items):
    """Deselects tests of higher levels and of the other tier, instead of thousands of skips."""
    level = [not any(mark.args[0] > cases.LEVEL for mark in i.iter_markers("level")) for i in items]
    of_level = [i for i, own in zip(items, level) if own]
    config.ids_of_level = [i.nodeid for i in of_level]  # ids of both tiers
    early = {f["name"] for f in selection.thin_gate()} if tiers.TIER else ()
    kept, others = tiers.split(of_level, ROOT, early, ledger.unchanged)
    left_out = [tiers.of(item, ROOT) for item in others]
    config.files_resting = tiers.resting_files(left_out, ledger.unchanged)
    others += [i for i, own in zip(items, level) if not own]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def pytest_sessionfinish(session):
    """Tells the main process which files rest, which promises.py counts as run."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["files_resting"] = session.config.files_resting


def pytest_terminal_summary(terminalreporter):
    """Files the outcomes of a tier for the sum of both."""
    if tiers.TIER:
        tiers.record(terminalreporter.stats)


def pytest_collection_finish(session):
    """Excludes everything collected so far from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_collectreport(report):
    if report.outcome == "skipped" and report.nodeid.endswith(".py"):
        SKIPPED.add(report.nodeid)


@pytest.fixture(scope="session")
def manifest():
    return kflib.manifest()


@pytest.fixture(scope="session")
def include():
    """Include directories of the headers, rendered once."""
    return kflib.render(BUILD)


@pytest.fixture(scope="session")
def once(request, tmp_path_factory):
    """once(name, make) returns the result of make(folder), computed once per run for all workers
    (support/builds/once.py)."""
    own = tmp_path_factory.getbasetemp()
    return once_a_run.Once((own.parent if hasattr(request.config, "workerinput") else own) / "once")
