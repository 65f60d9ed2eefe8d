# SPDX-License-Identifier: Apache-2.0
"""Random inputs, the same ones in every run of continuous integration; KF_LEVEL=3 draws new ones. And how many a test takes, by KF_LEVEL."""

import cases
import hypothesis
from hypothesis.internal.conjecture import providers

COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": list(hypothesis.HealthCheck),
}
hypothesis.settings.register_profile("bounded", derandomize=True, database=None, **COMMON)
hypothesis.settings.register_profile("long", **COMMON)
hypothesis.settings.load_profile("bounded" if cases.LEVEL < 3 else "long")
if cases.LEVEL < 3:
    # Else one draw in twenty is a constant of those modules of the project that are imported by then: others in each of several workers, and
    # so other inputs. There is no setting for it.
    NONE = providers._local_constants
    providers._get_local_constants = lambda: NONE


def examples(count, at_level_2=None):
    """Level 2 takes four times as many, where nothing else is said, level 3 fifty times."""
    return hypothesis.settings(
        max_examples=(count, at_level_2 or 4 * count, 50 * count)[cases.LEVEL - 1]
    )
