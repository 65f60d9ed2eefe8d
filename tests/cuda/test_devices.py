# SPDX-License-Identifier: Apache-2.0
"""Tests two GPUs: launches on the second one, and a stream of a device that is not current."""

import ctypes

import cases
import checks
import gpu as gpus
import kflib
import pytest
import robust
import selection
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

FUNCTIONS = kflib.on("cuda", selection.launches())
DEVICE = 13


@pytest.fixture(scope="module")
def second(gpu, libraries):
    """Yields (library, a Gpu on device 1), with device 1 current."""
    if gpu.device_count() < 2:
        pytest.skip("there is no second CUDA device")
    lib = libraries("default")
    set_device(gpu, lib, 1)
    there = gpus.Gpu(gpus.build_helpers(BUILD / "cuda"))
    yield lib, there
    there.close()
    set_device(gpu, lib, 0)


def set_device(gpu, lib, device):
    gpu.set_device(device)
    # The launchers have their own copy of the runtime.
    assert lib.dll.kft_set_device(ctypes.c_int(device)) == 0


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_second_device(second, f):
    lib, there = second
    for sizes, shift in cases.of_form(f, robust.SHAPES):
        checks.run(lib, there, f, sizes, shift=shift)
        robust.graph(there, lib, f, sizes, shift)


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_a_stream_of_another_device(gpu, second, f):
    """The call is refused with both devices in the message; nothing is written, and the next call
    works."""
    lib, there = second
    sizes, shift = cases.of_form(f, robust.SHAPES)[0]
    call = checks.Layout(lib, f, sizes, shift=shift)
    there.upload(call.image)
    assert lib.call(f, call.given(there.base), gpu.side) == DEVICE
    assert f["name"] in lib.detail and "device 1" in lib.detail and "device 0" in lib.detail, (
        lib.detail
    )
    there.synchronize()
    assert (there.download(call.image.size) == call.image).all()
    checks.run(lib, there, f, sizes, shift=shift)
