# SPDX-License-Identifier: Apache-2.0
import kfpython
import pytest


@pytest.fixture(scope="session")
def kf():
    """The package, with the kernels of few ops at level 1."""
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


@pytest.fixture(scope="session")
def library(kf):
    from kernel_fusion import _library

    return _library.library()
