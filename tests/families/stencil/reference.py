# SPDX-License-Identifier: Apache-2.0
"""Oracle of the example family: rows of elements with neighbours, which `kfgen check` compares with
the gradient that the family composes of the roles of an element.
"""

import numpy as np
from kfgen.families.reference import Reference

SHAPE = (4, 9)


def before(x):
    """The left neighbour of each element."""
    return np.pad(x, ((0, 0), (1, 0)))[:, :-1]


def after(x):
    """The right neighbour of each element."""
    return np.pad(x, ((0, 0), (0, 1)))[:, 1:]


class StencilReference(Reference):
    pointwise = False  # an element is in three results
    single = False
    elements = result = SHAPE

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        [self.x] = op.operands

    def inputs(self, rng):
        return {self.x.name: rng.standard_normal(SHAPE)}

    def _with_neighbours(self, inputs):
        x = inputs[self.x.name]
        return dict(zip(self.x.values, (before(x), x, after(x))))

    def values(self, inputs, mask):
        return super().values(self._with_neighbours(inputs), mask)

    def gradients(self, inputs, douts, mask):
        terms = super().gradients(self._with_neighbours(inputs), douts, mask)
        left, own, right = (terms[part] for part in self.x.values)
        return {self.x.name: own + after(left) + before(right)}

    def results(self, bwd, env, single=False, by=False):
        found = super().results(bwd, env | self._with_neighbours(env))
        if not bwd:
            return found
        left, own, right = (np.broadcast_to(terms, SHAPE) for terms in found.values())
        return {f"d{self.x.name}": own + after(left) + before(right)}
