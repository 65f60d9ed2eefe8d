# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA functions of ops with more operands, gradients and dtypes than kf's own ops, run by
the emulator."""

import cases
import checks
import emulator
import operand_ops
import pytest
import toolkit

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.mark.parametrize(
    "text", [operand_ops.WIDE, operand_ops.MIXED, operand_ops.TYPED], ids=["wide", "mixed", "typed"]
)
def test_numbers(include, tmp_path, text):
    path, functions = operand_ops.load(text, tmp_path)
    lib = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[1:])
    for f in functions:
        for sizes in cases.of_form(f, operand_ops.SHAPES):
            checks.run(lib, memory, f, sizes, files=(path,))
