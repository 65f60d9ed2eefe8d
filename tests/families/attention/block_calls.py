# SPDX-License-Identifier: Apache-2.0
"""Calls of launchers that take lists of blocks of keys. The oracle is attention with the mask."""

import dataclasses

import launcher
import numpy as np
from block_lists import lists_of
from launcher import BROADCAST


@dataclasses.dataclass
class Case(launcher.Case):
    """mask: [batch or 1, heads or 1, queries, keys]."""

    block_size: int = 64
    mask: np.ndarray | None = None
    whole: bool = False
    given: tuple = ()  # lists of the call instead of the mask's

    @property
    def lists(self):
        return self.given or lists_of(self.mask, self.block_size, self.whole)

    @property
    def listed_blocks(self):
        return len(self.lists[1])

    @property
    def partial_blocks(self):
        return len(self.lists[2])


class Call(launcher.Call):
    NAMES = ("block_offsets", "key_blocks", "block_masks")

    def __init__(self, f, case):
        case.more = {}
        super().__init__(f, case)
        self.more = dict(zip(self.NAMES, case.lists))

    def stored(self, name, x):
        return x

    def strides(self):
        """Batches and heads may share the lists."""
        shared, self.more = self.more, {"": np.zeros(0)}
        found = super().strides()
        self.more = shared
        fields = next(a for a in self.f["arguments"] if a["role"] == "strides")["fields"]
        offsets = shared["block_offsets"]
        for word, n, step in zip(("batch", "head"), offsets.shape, offsets.strides):
            found[fields.index(f"block_offsets_{word}")] = BROADCAST if n == 1 else step // 4
        return found

    def check_mask(self, lib, memory):
        """Compares a call with the mask."""
        scale = self.case.scalars["scale"]
        return self.check(lib, memory, lambda s: s * scale, self.case.mask)
