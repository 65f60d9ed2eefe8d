# SPDX-License-Identifier: Apache-2.0
import kflib
import multi_head
import pytest
import runtime_api
import runtime_ops
from runtime_calls import FUNCTIONS, MADE


@pytest.fixture(scope="session")
def runtime_library(once):
    return once("runtime library", lambda folder: runtime_api.compile_library(folder))


@pytest.fixture
def api(runtime_library):
    return runtime_api.Api(runtime_library)


@pytest.fixture
def ctx(api):
    """A CPU context that keeps destroyed handles, so that a wrong use of one is an error."""
    made = api.context()
    assert api.set_debug_mode(made, 1) == 0
    yield made
    assert api.context_destroy(made) == 0


@pytest.fixture(scope="session")
def library(once):
    return once("functions on tensors", lambda folder: runtime_ops.compile_library(folder, MADE))


@pytest.fixture
def ops(library):
    return runtime_ops.Ops(library, MADE)


@pytest.fixture(scope="session")
def launchers():
    return kflib.build("cpu", FUNCTIONS, kflib.ROOT / "build/tests/runtime", ("-O1",))


@pytest.fixture(scope="session")
def library_of_heads(once):
    made = runtime_ops.choose(multi_head.OPS, None, ["none"])
    return once("multi-head attention", lambda folder: runtime_ops.compile_library(folder, made))


@pytest.fixture
def heads(library_of_heads):
    return multi_head.Heads(library_of_heads)
