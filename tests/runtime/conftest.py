# SPDX-License-Identifier: Apache-2.0
import pytest
import runtime_api


@pytest.fixture(scope="session")
def runtime_library(once):
    return once("runtime library", lambda folder: runtime_api.compile_library(folder))


@pytest.fixture
def api(runtime_library):
    return runtime_api.Api(runtime_library)


@pytest.fixture
def ctx(api):
    """A context of the CPU whose destroyed handles are kept, so that a wrong use of one is an error."""
    made = api.context()
    assert api.set_debug_mode(made, 1) == 0
    yield made
    assert api.context_destroy(made) == 0
