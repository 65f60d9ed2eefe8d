# SPDX-License-Identifier: Apache-2.0
"""Expands entries into kernels: one per op, dtypes, variant and direction, a launcher per
activation.
"""

import itertools

from kfgen import families
from kfgen.model.dtypes import DTYPES
from kfgen.model.names import OF_GRADIENTS


def kernels(op, dtypes=DTYPES):
    """Returns the kernels of an op."""
    family, found = families.of(op), []
    for types in family.forward_types(op, dtypes):
        for variant in _subsets(w for w in op.variants if w not in OF_GRADIENTS):
            found.append(family.forward(op, types, variant))
            if found[-1].has_backward:
                found += [
                    family.backward(op, both, variant + more)
                    for both in family.backward_types(op, types, dtypes)
                    for more in _subsets(w for w in op.variants if w in OF_GRADIENTS)
                ]
    return [kernel for kernel in found if kernel.acts]


def _subsets(words):
    """Returns all subsets of the words, the small ones first."""
    given = tuple(words)
    return [s for n in range(len(given) + 1) for s in itertools.combinations(given, n)]


def counted(launchers):
    """Describes the number of functions per backend of [(kernel, launcher)]."""
    for_c, for_cuda = (sum(word in k.backends for k, _ in launchers) for word in ("c", "cuda"))
    return (
        f"{for_c} functions per backend"
        if for_c == for_cuda
        else f"{for_c} functions for C, {for_cuda} for CUDA"
    )
