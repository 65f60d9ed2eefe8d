# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of the example family: one thread per element."""

import functools

from kfgen.language.emit import emit
from kfgen.model.schedule import Cuda, Instance


def values(k, target):
    """Returns [(lines, text)] of each result's expression."""
    found = [emit(k.graph, [root], target, {k.read.name: "given"}, fixed={}) for root in k.roots]
    return [(lines, text) for lines, [text] in found]


class StencilCuda(Cuda):
    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act",))]

    @functools.cached_property
    def code(self):
        return values(self.k, self.target(frozenset()))

    def listing(self):
        return [line for lines, text in self.code for line in (*lines, text)]
