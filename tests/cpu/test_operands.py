# SPDX-License-Identifier: Apache-2.0
"""Tests C functions of ops with more operands, gradients and dtypes than kf's own ops: their
numbers, and that they write nothing else."""

import os
import re
import subprocess

import cases
import checks
import cprogram
import kflib
import operand_ops
import pytest

ADDRESS = ("-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize(
    "text", [operand_ops.WIDE, operand_ops.MIXED, operand_ops.TYPED], ids=["wide", "mixed", "typed"]
)
def test_numbers(include, tmp_path, text):
    path, functions = operand_ops.load(text, tmp_path, ("f32", "f64"))
    lib = kflib.build(
        "cpu", functions, tmp_path / "lib", flags=("-O1",), include=[*include, tmp_path]
    )
    memory = checks.CpuMemory()
    for f in functions:
        for sizes in cases.of_form(f, operand_ops.SHAPES):
            checks.run(lib, memory, f, sizes, files=(path,))


@pytest.mark.parametrize("text", [operand_ops.WIDE, operand_ops.MIXED], ids=["wide", "mixed"])
def test_address_and_undefined(include, tmp_path, text):
    _, functions = operand_ops.load(text, tmp_path, ("f32", "f64"))
    program = cprogram.build(tmp_path / "program", functions, [*include, tmp_path], ADDRESS)
    for mode in ("one after the other", "chunks"):
        done = subprocess.run(
            [program, mode],
            capture_output=True,
            text=True,
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        assert int(re.match(r"(\d+) calls", done.stdout)[1]) >= len(functions)
