# SPDX-License-Identifier: Apache-2.0
"""What the package has done so far, for info()."""

import collections
from collections.abc import Callable, Iterable

_copies: collections.Counter[str] = collections.Counter()
sources: list[Callable[[], Iterable[tuple[str, int]]]] = []  # others that count


def copied(op: str) -> None:
    _copies[op] += 1


def copies() -> dict[str, int]:
    """{op: inputs that were made contiguous}, in either direction."""
    found = collections.Counter(_copies)
    for source in sources:
        for op, count in source():
            found[op] += count
    return {op: count for op, count in found.items() if count}
