# SPDX-License-Identifier: Apache-2.0
"""Counters that kf.info() reports."""

import collections
from collections.abc import Callable, Iterable

_copies: collections.Counter[str] = collections.Counter()
sources: list[Callable[[], Iterable[tuple[str, int]]]] = []  # other counters, such as the shim's


def copied(op: str) -> None:
    _copies[op] += 1


def copies() -> dict[str, int]:
    """Returns how many inputs were copied to be contiguous, per op, gradients' included."""
    found = collections.Counter(_copies)
    for source in sources:
        for op, count in source():
            found[op] += count
    return {op: count for op, count in found.items() if count}
