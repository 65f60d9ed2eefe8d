# SPDX-License-Identifier: Apache-2.0
"""Random inputs, the same ones in every run of continuous integration; KF_LEVEL=3 draws new ones, and many more."""

import cases
import hypothesis

COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("bounded", derandomize=True, database=None, **COMMON)
hypothesis.settings.register_profile("long", **COMMON)
hypothesis.settings.load_profile("bounded" if cases.LEVEL < 3 else "long")
