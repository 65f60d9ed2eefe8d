# SPDX-License-Identifier: Apache-2.0
"""Settings for hypothesis: repeatable inputs below KF_LEVEL=3, random ones there, and the number of
examples per level."""

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
    # hypothesis draws one value in twenty from constants of the imported modules. These differ
    # between workers, so inputs would too. No public setting turns this off.
    NONE = providers._local_constants
    providers._get_local_constants = lambda: NONE


def examples(count, at_level_2=None):
    """Returns settings with `count` examples at level 1, four times as many at level 2 unless
    given, and fifty times at level 3."""
    return hypothesis.settings(
        max_examples=(count, at_level_2 or 4 * count, 50 * count)[cases.LEVEL - 1]
    )
