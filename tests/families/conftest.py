# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of tests/cuda and tests/frontends available to test_cuda*.py and
test_frontends*.py of a family."""

import importlib.util
import pathlib

import pytest


def conftest(folder):
    """Loads the conftest module of another folder of tests."""
    path = pathlib.Path(__file__).resolve().parents[1] / folder / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"kft_conftest_{folder}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


CUDA, FRONTENDS = conftest("cuda"), conftest("frontends")
kf, library = FRONTENDS.kf, FRONTENDS.library


@pytest.fixture(autouse=True)
def gpu_locks(request):
    """A test on a GPU takes its turn, as those of tests/cuda do."""
    if not request.path.name.startswith("test_cuda"):
        yield
        return
    with CUDA.locks_of(request.node):
        yield
