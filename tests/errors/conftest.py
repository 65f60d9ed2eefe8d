# SPDX-License-Identifier: Apache-2.0
import kflib
import pytest
from refusals import FUNCTIONS, library


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def lib(request):
    """Every launcher of one backend. Refusals take no time, compiling does."""
    return library(request.param)


@pytest.fixture(params=list(dict.fromkeys(f["op"] for f in FUNCTIONS)))
def functions(request, lib):
    """Every function of one op that the backend has: activations, dtypes, forward and backward, _state."""
    return [f for f in kflib.on(lib.backend, FUNCTIONS) if f["op"] == request.param]
