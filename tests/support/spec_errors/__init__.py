# SPDX-License-Identifier: Apache-2.0
"""Spec files with mistakes, and the error messages that they give."""

from spec_errors import activations, ops, row_expressions, row_ops, type_variables

GROUPS = [module.CASES for module in (activations, ops, row_expressions, row_ops, type_variables)]
CASES = {name: case for group in GROUPS for name, case in group.items()}
assert len(CASES) == sum(map(len, GROUPS))
