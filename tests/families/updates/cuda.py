# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of the example family: one CTA per chunk of a tensor, vectors of 16 bytes."""

import functools

from kfgen.language.emit import emit
from kfgen.model.schedule import Cuda, Instance


def values(k, target):
    """Returns (lines, [text of each next value])."""
    read = {s.name: f"{s.name}_f[e]" for s in k.inputs}
    return emit(k.graph, k.roots, target, read, fixed={})


class UpdatesCuda(Cuda):
    @property
    def instances(self):
        sizes = ("KFI_LIST_SMALL", "KFI_LIST_LARGE")
        return [Instance(f"kfk_{self.k.name}", ("act", size)) for size in sizes]

    @functools.cached_property
    def code(self):
        return values(self.k, self.target(frozenset()))

    @property
    def vec(self):
        """Elements of a vector: 16 bytes of the widest tensor."""
        return 16 // max(s.dtype.size for s in self.k.inputs)

    def listing(self):
        return [*self.code[0], *self.code[1]]
