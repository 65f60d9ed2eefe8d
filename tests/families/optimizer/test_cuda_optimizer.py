# SPDX-License-Identifier: Apache-2.0
"""Optimizers on a GPU: numbers by the oracle, from lists of a few tensors to thousands."""

import checks
import kflib
import optimizer_calls as calls
import pytest

pytestmark = pytest.mark.skipif(not kflib.has_gpu(), reason="no GPU")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimizer")
    return kflib.build("cuda", calls.functions(), folder, ("-O3", "-arch=native"))


def test_numbers(library):
    calls.numbers(library, checks.CudaMemory(1 << 22), calls.functions())


def test_a_list_of_thousands(library):
    call = calls.Call(calls.of("adamw", "bf16", "f32"), tuple(i % 5 for i in range(10000)), 3)
    calls.run(library, checks.CudaMemory(1 << 22), call)
