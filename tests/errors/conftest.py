# SPDX-License-Identifier: Apache-2.0
import kflib
import pytest
from refusals import FUNCTIONS, library


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def lib(request):
    """All launchers of one backend. Refused calls take no time; compiling does."""
    return library(request.param)


@pytest.fixture(params=list(dict.fromkeys(f["op"] for f in FUNCTIONS)))
def functions(request, lib):
    """All functions of one op on the backend: activations, dtypes, forward and backward, _state."""
    return [f for f in kflib.on(lib.backend, FUNCTIONS) if f["op"] == request.param]
