# SPDX-License-Identifier: Apache-2.0
"""Runs every kernel (support/gpu/sanitized.py) under compute-sanitizer's four tools: nothing is
reported, except planted faults."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import kflib
import pytest
import sanitized
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LOGS = BUILD / "sanitizers"
SANITIZER = shutil.which("compute-sanitizer") or next(
    (p for p in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(p)), None
)
if not SANITIZER:
    pytest.skip("compute-sanitizer is not installed", allow_module_level=True)


def under(tool, log, *command):
    """Returns (exit status, text of the log, the program's output)."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [
            SANITIZER,
            "--tool",
            tool,
            "--error-exitcode",
            "99",
            "--log-file",
            str(log),
            *map(str, command),
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, log.read_text() if log.exists() else "", done.stdout + done.stderr


def reported(text):
    """Number of errors or hazards in the tool's summary, None if there is no summary."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", text)
    return sum(map(int, found)) if found else None


@pytest.fixture(scope="session")
def libraries():
    """Returns a function from kind to library, built once."""
    built = {}

    def get(which):
        if which not in built:
            built[which] = sanitized.build(
                which, BUILD / (f"sanitized_{which}" if which else "sanitized")
            )
        return built[which]

    return get


def clean(lib, tool, shard, shards, which=""):
    script = pathlib.Path(sanitized.__file__)
    status, log, output = under(
        tool,
        LOGS / f"{tool}_{which}{shard}.log",
        sys.executable,
        script,
        lib.path,
        shard,
        shards,
        which,
    )
    first = "\n".join(line for line in log.splitlines() if line.strip("= "))[:3000]
    assert status == 0, f"{tool} ended with {status}\n{output[-2000:]}\n{first}"
    assert reported(log) == 0, first
    calls = sum(len(sanitized.shapes(f, which)) for f in sanitized.chosen(which)[shard::shards])
    assert f"{calls} calls" in output  # all calls were made


RUNS = [(which, shard) for which, kind in sanitized.KINDS.items() for shard in range(kind.shards)]


@pytest.mark.parametrize(("which", "shard"), RUNS)
@pytest.mark.parametrize("tool", TOOLS)
def test_clean(libraries, tool, which, shard):
    """Tests a selection of all functions, and others by kind: bf16 products with their TMA copies,
    functions with a shape struct, functions over lists."""
    kind = sanitized.KINDS[which]
    if kind.hopper and kflib.capability() != (9, 0):
        pytest.skip("the device has no wgmma")
    clean(libraries(which), tool, shard, kind.shards, which)


@pytest.mark.parametrize("tool", TOOLS)
def test_planted(tool, tmp_path):
    program = tmp_path / "planted"
    subprocess.run(
        [
            "nvcc",
            "-O1",
            "-arch=native",
            str(pathlib.Path(__file__).with_name("planted.cu")),
            "-o",
            str(program),
        ],
        check=True,
    )
    status, log, output = under(tool, LOGS / f"planted_{tool}.log", program, tool)
    assert reported(log) and status != 0, f"{tool} does not see the fault\n{output}\n{log[-3000:]}"
