# SPDX-License-Identifier: Apache-2.0
"""How many random examples a test takes, by KF_LEVEL."""

import cases
import hypothesis


def examples(count, at_level_2=None):
    """Level 2 takes four times as many, where nothing else is said, level 3 fifty times."""
    return hypothesis.settings(max_examples=(count, at_level_2 or 4 * count, 50 * count)[cases.LEVEL - 1])
