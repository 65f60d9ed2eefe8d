# SPDX-License-Identifier: Apache-2.0
"""Oracle of copies to another layout: NumPy's exchange of two axes."""

import numpy as np

from kfgen.families.reference import Reference

SHAPE = (2, 4, 3)


def exchanged(values):
    """Exchanges the last two axes of each array of a dictionary."""
    return {name: np.swapaxes(value, 1, 2) for name, value in values.items()}


class TransposeReference(Reference):
    pointwise = False  # results have another shape
    single = False
    elements = SHAPE
    result = (2, 3, 4)

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        [self.x] = op.operands

    def inputs(self, rng):
        return {self.x.name: rng.standard_normal(SHAPE)}

    def points(self, inputs, want):
        return exchanged(inputs)

    def values(self, inputs, mask):
        return exchanged(super().values(inputs, mask))

    def gradients(self, inputs, douts, mask):
        return super().gradients(inputs, exchanged(douts), mask)

    def results(self, bwd, env, single=False, by=False):
        return exchanged(super().results(bwd, env))
