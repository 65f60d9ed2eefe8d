# SPDX-License-Identifier: Apache-2.0
"""Spec files with mistakes, and the error messages that they give."""

from spec_errors import activations, ops, rows, rows_expressions

GROUPS = [module.CASES for module in (activations, ops, rows, rows_expressions)]
CASES = {name: case for group in GROUPS for name, case in group.items()}
assert len(CASES) == sum(map(len, GROUPS))
