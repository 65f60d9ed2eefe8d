# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion.jax for GPUs, over a driver that computes nothing (fake_libcuda.cpp): the program
for XLA, and kernels that are loaded before a call is recorded.
"""

import os
import re
import subprocess
import sys

import kflib
import kfpython
import pytest
import toolkit

pytest.importorskip("jax")
pytestmark = pytest.mark.skipif(
    not toolkit.include() or not toolkit.nvrtc(), reason="no CUDA headers, or no NVRTC"
)
SCRIPT = """
import ctypes, functools, sys
import jax, jax.numpy as jnp
from kernel_fusion import _gpu
_gpu.Gpu = functools.partial(_gpu.Gpu, driver=sys.argv[1])
import kernel_fusion.jax as kj
from kernel_fusion.jax import _native

gradient = jax.jit(jax.grad(lambda b, x: kj.bias_gelu(x, b).sum()))
export = functools.partial(jax.export.export, disabled_checks=kj.EXPORT_CHECKS)
print(export(gradient, platforms=["cuda"])(jnp.ones(64), jnp.ones((512, 64))).mlir_module())

found, number = _native._opened["kf_bias_gelu_bwd_f32", True]
memory = ctypes.create_string_buffer(1 << 20)
at = -(-ctypes.addressof(memory) // 4096) * 4096
tensors = (ctypes.c_void_p * 6)(*(at + 65536 * i for i in range(6)))
sizes, scalars = (ctypes.c_int64 * 2)(8, 16), (ctypes.c_double * 1)()
for name in ("kfp_load_on", "kfp_run_on"):
    call = getattr(found.dll, name)
    call.argtypes = _gpu.ARGUMENTS
    arguments = tensors, sizes, None, scalars, None, at + 65536 * 8, 65536, 0x5000
    print(name, call(0, number, *arguments), flush=True)
    print(name, file=sys.stderr, flush=True)
"""


@pytest.mark.check
def test_the_program_and_its_kernels(driver, tmp_path):
    """The workspace is a result of the call, which XLA allocates. Loading launches nothing."""
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(driver)],
        capture_output=True,
        text=True,
        env={**os.environ, "KF_CACHE_DIR": str(tmp_path), "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    [call] = [line for line in done.stdout.splitlines() if "custom_call @kf(" in line]
    assert "kf_bias_gelu_bwd_f32" in call and "sizes = dense<[512, 64]>" in call, call
    assert re.search(r"-> \(tensor<64xf32>, tensor<\d+xui8>\)", call), call
    assert re.search(r"space = 1 ", call), call
    assert done.stdout.splitlines()[-2:] == ["kfp_load_on 0", "kfp_run_on 0"]
    launched = [line for line in done.stderr.splitlines() if "kfk_" in line or "kfp_" in line]
    assert launched[0] == "kfp_load_on" and launched[-1] == "kfp_run_on", launched
    assert len(launched) > 2 and all(line.endswith(" on 0x5000") for line in launched[1:-1])
