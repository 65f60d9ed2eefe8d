# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import kflib  # noqa: E402

BUILD = ROOT / "build/tests"


@pytest.fixture(scope="session")
def manifest():
    return kflib.manifest()


@pytest.fixture(scope="session")
def include():
    """The include directories of the headers, rendered once."""
    return kflib.render(BUILD)
