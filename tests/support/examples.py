# SPDX-License-Identifier: Apache-2.0
"""How many random examples a test takes, by KF_LEVEL."""

import cases
import hypothesis


def examples(count):
    return hypothesis.settings(max_examples=count * (1, 4, 50)[cases.LEVEL - 1])
