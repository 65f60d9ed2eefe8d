# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import kflib  # noqa: E402
import promises  # noqa: E402

BUILD = ROOT / "build/tests"


def pytest_configure(config):
    if not hasattr(config, "workerinput") and not config.option.collectonly:  # where the results of all workers arrive
        config.pluginmanager.register(promises.Recorder())


@pytest.fixture(scope="session")
def manifest():
    return kflib.manifest()


@pytest.fixture(scope="session")
def include():
    """The include directories of the headers, rendered once."""
    return kflib.render(BUILD)
