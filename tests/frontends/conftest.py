# SPDX-License-Identifier: Apache-2.0
import subprocess

import kflib
import kfpython
import pytest
import toolkit


@pytest.fixture(scope="session")
def kf():
    """The package, with the kernels of few ops at level 1."""
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


@pytest.fixture(scope="session")
def library(kf):
    from kernel_fusion import _library

    return _library.prebuilt()


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A CUDA driver that computes nothing, compiled from fake_libcuda.cpp."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so"
    subprocess.run(
        [
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-isystem",
            str(toolkit.include()),
            str(kflib.ROOT / "tests/support/gpu/fake_libcuda.cpp"),
            "-o",
            str(path),
        ],
        check=True,
    )
    return path
