# SPDX-License-Identifier: Apache-2.0
"""What the package has done so far, for info()."""

import collections

copies: collections.Counter[str] = collections.Counter()  # {op: inputs that were made contiguous}


def copied(op: str) -> None:
    copies[op] += 1
