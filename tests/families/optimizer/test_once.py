# SPDX-License-Identifier: Apache-2.0
"""Values that are computed once per call: kfgen check evaluates them far outside their range."""

import math

from kfgen.families.optimizer import once


def test_powers_have_the_results_of_c():
    power, exp = once.FUNCTIONS["pow"], once.FUNCTIONS["exp"]
    assert power(0.75, 3) == 0.421875 and power(2.0, -1) == 0.5
    assert power(0.75, -12199.89) == math.inf and power(0.0, -1) == math.inf
    assert math.isnan(power(-2.0, 0.5)) and exp(1e4) == math.inf
