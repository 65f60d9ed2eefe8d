# SPDX-License-Identifier: Apache-2.0
"""Sizes and data of the generic tests for functions with lists of blocks of keys (cases.py)."""

import block_lists
import numpy as np


def draw(rng, call, kind, values):
    """Draws a tensor of lists of blocks, which are those of one call for all of its tensors."""
    n = dict(zip(call.f["sizes"], call.sizes))
    names = ("batch", "heads", "queries", "keys", "block_size", "listed_blocks", "partial_blocks")
    lists = block_lists.draw(np.random.default_rng(sum(call.sizes)), *(n[name] for name in names))
    found = lists[block_lists.KINDS.index(kind)]
    if values == "special" and kind == "key_blocks" and len(found):  # wrong ones
        found[rng.integers(len(found)), rng.integers(2)] = rng.choice([-2, 2**31 - 1])
    return found


def given_blocks(n):
    """Each block of keys once, in a list of its own."""
    found = [
        [i % max(-(-n["keys"] // n["block_size"]), 1), i % (n["partial_blocks"] + 1) - 1]
        for i in range(n["listed_blocks"])
    ]
    return np.array(found, np.int32)


# Sizes as above, with the size of blocks, and how many blocks and masks the lists have.
SIZES = {
    "LAUNCHES": 1,
    "SHAPES": [
        [(1, 4, 1, 2, 5, 8, 4, 64, 3, 2), 0],
        [(2, 4, 2, 70, 150, 8, 8, 64, 20, 4), 0],
        [(1, 2, 1, 33, 70, 24, 40, 64, 3, 1), 0],
        [(1, 1, 1, 150, 300, 64, 64, 128, 7, 3), 0],
        [(1, 1, 1, 70, 33, 64, 64, 128, 1, 0), 0],
        [(1, 3, 3, 7, 5, 7, 3, 64, 2, 1), 1],
        [(1, 2, 2, 5, 0, 8, 8, 64, 2, 1), 0],
        [(1, 2, 2, 5, 9, 8, 8, 64, 0, 0), 0],
        [(0, 2, 2, 5, 4, 8, 8, 64, 2, 1), 0],
        [(2, 0, 1, 5, 4, 8, 8, 64, 2, 1), 0],
        [(2, 2, 1, 0, 4, 8, 8, 64, 2, 1), 0],
        [(1, 1, 1, 3, 5, 0, 8, 64, 1, 1), 0],
        [(1, 1, 1, 3, 5, 0, 0, 64, 1, 1), 0],
        [(1, 1, 1, 3, 70, 128, 128, 64, 2, 1), 0],
        [(1, 1, 1, 3, 70, 256, 256, 64, 2, 1), 0],
        [(1, 1, 1, 3, 70, 64, 64, 64, 2, 1), 1],
        [(1, 1, 1, 3, 70, 128, 128, 64, 2, 1), 1],
        [(1, 1, 1, 3, 140, 256, 256, 128, 2, 1), 1],
        [(1, 1, 1, 3, 70, 7, 100, 64, 2, 1), 0],
        [(1, 1, 1, 3, 70, 7, 200, 64, 2, 1), 0],
        [(1, 1, 1, 3, 70, 264, 8, 64, 2, 1), 0],
    ],
    "MORE": [
        [(b, h, 1, q, k, d, d, block, 9, 4), (q + k) % 3]
        for b, h in ((1, 3), (2, 2))
        for q, k, block in ((1, 1, 64), (64, 65, 64), (130, 300, 128))
        for d in (16, 40, 72, 128)
    ],
    "LARGE": (2**20, 2**10, 1, 2**10, 1, 1, 1, 64, 1, 1),
    "OVERFLOWS": [
        ((2**30, 2**28, 1, 1, 1, 3, 1, 64, 1, 1), "q"),
        ((2**30, 1, 1, 1, 2**28, 3, 1, 64, 1, 1), "k"),
        ((1, 1, 1, 1, 1, 1, 1, 64, 2**58, 1), "key_blocks"),
    ],
    "CALLS": (
        [(1, 1, 1, 1, 300, 8, 8, 64, 3, 6), (2, 2, 1, 5, 300, 16, 8, 64, 3, 6)],
        [(2, 3, 1, 70, 300, 64, 64, 64, 3, 6), (1, 1, 1, 130, 700, 40, 24, 128, 3, 6)],
    ),
    "SANITIZED": [
        [(1, 4, 1, 33, 70, 64, 64, 64, 6, 2), 0],
        [(2, 2, 2, 200, 300, 64, 64, 128, 12, 5), 0],
        [(1, 3, 3, 7, 5, 7, 3, 64, 2, 1), 1],
    ],
    "TORCH": (2, 4, 2, 5, 7, 8, 8, 64, 2, 1),
    "GIVEN": {
        "block_offsets": lambda n: np.resize([[0, 1], [1, 2], [0, 0]], (n["batch"], n["heads"], 2)),
        "key_blocks": given_blocks,
        "block_masks": lambda n: np.resize(
            [0x2B, -1, 0x55], (n["partial_blocks"], n["block_size"], n["block_size"] // 32)
        ),
    },
    "EXTENTS": {"block_size": (64,), "listed_blocks": (2,), "partial_blocks": (1,)},
    # Integers of valid calls, and of the program that calls every function: first and step.
    "VALID": {"block_offsets": 0, "key_blocks": 0, "block_masks": -1},
    "INTEGERS": {"block_offsets": (0, 1), "key_blocks": (0, 1), "block_masks": (0, 0)},
    "READS_SOME_ROWS": True,
}
