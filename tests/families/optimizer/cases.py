# SPDX-License-Identifier: Apache-2.0
"""Optimizers: the data of this family that generic tests read."""

# A function for tests/headers/test_compile_cost.py, and the tokens that its header may have.
COMPILED = {"optimizer": ("kf_adamw_bf16", 34000)}
