# SPDX-License-Identifier: Apache-2.0
"""AMX from Python: allowed when a library is loaded."""

import os
import pathlib
import shutil
import subprocess
import sys

import kflib
import pytest

SUBNORMAL = """
import torch, kernel_fusion as kf

x, weight = torch.zeros(2, 16, 32, dtype=torch.bfloat16)
x[0, 0], weight[0, 0] = 2.0**-127, 2.0**126
print(kf.ops.linear(x, weight)[0, 0].item())
"""


@pytest.mark.check
def test_python_allows_amx(kf, tmp_path):
    """Library.__init__ allows AMX, unless KF_AMX is 0: by a double of its instructions, which count
    a subnormal element as 0."""
    shutil.copytree(
        pathlib.Path(kf.__file__).parent,
        tmp_path / "kernel_fusion",
        ignore=shutil.ignore_patterns("lib", "__pycache__"),
    )
    own = {
        "KF_CACHE_DIR": str(tmp_path / "cache"),
        "KF_WHEEL_CFLAGS": f"-O0 -I{kflib.ROOT / 'tests/families/matmul/tiles'}",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(kflib.ROOT / "gen")]),
    }
    found = {
        allowed: subprocess.run(
            [sys.executable, "-c", SUBNORMAL],
            capture_output=True,
            text=True,
            env={**os.environ, **own, "KF_AMX": allowed},
        )
        for allowed in ("1", "0")
    }
    assert {allowed: done.stdout.strip() for allowed, done in found.items()} == {
        "1": "0.0",
        "0": "0.5",
    }, found
