# SPDX-License-Identifier: Apache-2.0
"""Tests that gcc -O3 vectorises the strip loops of every op over rows and leaves the outer loops
alone. Two strips jammed into one loop (-floop-unroll-and-jam) are not vectorised, which made
layer_norm's gradient three times slower."""

import platform
import re
import shutil
import subprocess

import cases
import kflib
import pytest

FUNCTIONS = [
    f
    for f in kflib.manifest()["functions"]
    if f["family"] == "rows" and f["activation"] == "none" and f["dtypes"][0] in ("f32", "bf16")
]
OPS = {}  # {header: functions}
for _function in FUNCTIONS:
    OPS.setdefault(_function["header"], []).append(_function)
needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or platform.machine() != "x86_64", reason="asks gcc for AVX2"
)


@needs_gcc
@pytest.mark.parametrize("header", cases.by_level(list(OPS)[::4], OPS))
def test_loops_over_strips(header, include, tmp_path):
    text = "\n".join(
        t for name, t in kflib.sources("cpu", OPS[header]).items() if name != "detail.c"
    )
    (tmp_path / "all.c").write_text(text)
    flags = [f"-I{d}" for d in include]
    done = subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-O3",
            "-march=x86-64-v3",
            *flags,
            "-fopt-info-vec-loop-optimized",
            "-c",
            "all.c",
            "-o",
            "all.o",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    remarks = [line for line in done.stderr.splitlines() if f"{header}.kernels.h:" in line]
    assert not [line for line in remarks if "jam" in line]
    source = (
        next(d / f"{header}.kernels.h" for d in include if (d / f"{header}.kernels.h").exists())
        .read_text()
        .split("\n")
    )
    vectorised = {
        int(m[1])
        for line in remarks
        if (m := re.search(r"\.h:(\d+):\d+: optimized: loop vectorized", line))
    }
    used = {f["cpu_name"].removeprefix("kf_cpu_") for f in OPS[header]}
    loops, of = [], ""
    for i, line in enumerate(source):
        if m := re.match(r"KFI_INLINE void kfi_(?:strip\d?|terms)_(\w+?)\(", line):
            of = m[1]
        elif line == "}":
            of = ""
        if of and source[i - 1].strip() == "KFI_TILE_LOOP":
            loops.append((of, i + 1))
    mine = [(name, number) for name, number in loops if name.replace("_act", "") in used]
    assert mine and not [m for m in mine if m[1] not in vectorised]
