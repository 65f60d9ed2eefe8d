# SPDX-License-Identifier: Apache-2.0
"""Executes docs/contributing.md: writes its files, runs its commands, expects its outputs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

STEP = re.compile(r"<!-- (file: (?P<file>\S+)|run|output) -->\n```\w*\n(?P<text>.*?)```\n", re.S)
NVCC = shutil.which("nvcc") or next(
    (str(p) for p in [pathlib.Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    copy = tmp_path_factory.mktemp("clone")
    for part in ("gen", "include", "templates"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("Makefile", "requirements.txt"):
        shutil.copy(ROOT / part, copy / part)
    return copy


def shell(line, cwd):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    environment["PATH"] = os.pathsep.join(
        [str(pathlib.Path(sys.executable).parent), environment["PATH"]]
    )
    done = subprocess.run(
        ["bash", "-c", line], cwd=cwd, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.check
def test_the_page_works(checkout):
    printed, outputs = "", 0
    for step in STEP.finditer((ROOT / "docs/contributing.md").read_text()):
        text = step["text"]
        if step["file"]:
            (checkout / step["file"]).write_text(text)
        elif step[1] == "run":
            printed = "".join(shell(line, checkout) for line in text.splitlines())
        else:
            outputs += 1
            assert " ".join(text.split()) in " ".join(printed.split()), (
                f"expected\n{text}in\n{printed}"
            )
    assert outputs == 7, "the page has lost its marks"
    page = (ROOT / "docs/contributing.md").read_text()
    assert page.index("pip install jinja2 numpy scipy") < page.index("kfgen check"), (
        "a fresh clone has neither"
    )
    if NVCC:  # the same entries for CUDA
        (checkout / "both.cu").write_text("""
#include <kf/my_ops.cuh>
#include <kf/my_acts.cuh>
kf_result_t op(const kf_bf16 *x, kf_bf16 *out)
{ return kf_gelu_layer_scale_bf16(x, x, x, out, 2, 2, 0); }
kf_result_t act(const float *x, float *out) { return kf_add_logsigmoid_f32(x, x, out, 2, 0); }
__global__ void own(float *x) { *x = kf_logsigmoid(*x); }
""")
        shell(f"{NVCC} -arch=sm_90 -Werror all-warnings -I prefix/include -c both.cu", checkout)
