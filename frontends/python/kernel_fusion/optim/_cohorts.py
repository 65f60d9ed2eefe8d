# SPDX-License-Identifier: Apache-2.0
"""Parameters that have taken the same number of steps, for counts in a GPU's memory.

One call of an op has one count. Reading a count from a GPU waits for it, so each count is read at
most once, when it is first seen; later, parameters stay together while each step has all of them.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_new = itertools.count(1)


class Cohorts:
    """Cohorts of an optimizer's counts.

    A cohort is a number. Parameters that have taken no step in this process are keyed by what they
    read; by nothing, if they are new.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Tensor, Any]] = {}
        self.next: dict[Any, int] = {}

    def begin(self) -> None:
        """Begins a step."""
        self.next = {}

    def advance(self, read: Sequence[Tensor], is_new: bool) -> int:
        """Returns the cohort of a parameter after this step.

        Args:
            read: numbers of its state, the number of steps first.
            is_new: True if this step made them.
        """
        count = read[0]
        found, before = self.known.get(id(count), (None, None))
        if found is not count:
            before = () if is_new else tuple(map(float, read))
        after = self.next.setdefault(before, next(_new))
        self.known[id(count)] = count, after
        return after
