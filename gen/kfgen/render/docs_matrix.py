# SPDX-License-Identifier: Apache-2.0
"""Values of the reference's matrix: which op exists for which activation, dtype, backend."""

import string
from dataclasses import dataclass, field

BACKENDS = {"c": "C", "cuda": "CUDA"}


@dataclass
class Row:
    """Kernels of an op that have the same activations."""

    op: object
    activations: tuple
    kernels: list = field(default_factory=list)

    def cell(self, words):
        """Returns `f` for a forward, `b` for a backward, and the backend if there is only one."""
        found = [k for k in self.kernels if k.words == words]
        letters = "".join(letter for bwd, letter in ((0, "f"), (1, "b")) if self.has(found, bwd))
        backends = {name for k in found for name in k.backends}
        return " ".join([letters, *(BACKENDS[b] for b in backends if len(backends) == 1)])

    @staticmethod
    def has(kernels, bwd):
        return any(bool(k.bwd) == bool(bwd) for k in kernels)


def rows(selection):
    """Returns one row per op and set of activations, in the order of the entries."""
    found = {}
    for op in selection.ops:
        for k in selection.kernels(op):
            acts = tuple(a.name for a in k.acts) if op.has_act else ()
            found.setdefault((op.pattern, acts), Row(op, acts)).kernels.append(k)
    return list(found.values())


def values(selection):
    """Returns the variables of templates/docs/matrix.md.j2."""
    every = rows(selection)
    shown = [r for r in every if not r.op.types.converts]
    words = list(dict.fromkeys(k.words for r in shown for k in r.kernels))
    words.sort(key=lambda w: (w.count("_"), w.endswith("_i32")))
    sets = dict.fromkeys(r.activations for r in every if r.activations)
    letters = dict(zip(sets, string.ascii_uppercase))
    return {
        "words": words,
        "rows": [(r.op, letters.get(r.activations, ""), [r.cell(w) for w in words]) for r in shown],
        "pairs": [r.op for r in every if r.op.types.converts],
        "letters": list(letters.values()),
        "acts": [(a.name, [a.name in found for found in sets]) for a in selection.activations],
    }
