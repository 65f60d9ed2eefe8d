# SPDX-License-Identifier: Apache-2.0
"""Errors of flash_attn_with_kvcache have its own name and the names of its own arguments."""

import frontend
import numpy as np
import pytest
from test_refused import ANGLES, LENGTHS, TABLE, changed, given, refused

OF_FLASH = ("q", "k_cache", "v_cache")
FLASH = {
    "lengths": (
        {"cache_seqlens": LENGTHS.astype(np.int64)},
        TypeError,
        "cache_seqlens has the dtype int64, expected int32",
    ),
    "a list": (
        {"cache_seqlens": [9, 5]},
        TypeError,
        "cache_seqlens is list, expected an array of ",
    ),
    "blocks": (
        {"block_table": TABLE.astype(np.int64)},
        TypeError,
        "block_table has the dtype int64, expected int32",
    ),
    "batch": (
        {"block_table": TABLE[:1]},
        ValueError,
        "block_table has the shape (1, 3), expected [2, pages] beside q",
    ),
    "a length out of range": (
        {"cache_seqlens": changed(LENGTHS, 1, 13)},
        IndexError,
        "cache_seqlens is 13 at (1,), expected 0 to 12: a sequence has 12 rows in k_cache",
    ),
    "a block out of range": (
        {"block_table": changed(TABLE, (0, 1), 7)},
        IndexError,
        "block_table is 7 at (0, 1), expected at least 0 and less than 7, the blocks of k_cache",
    ),
    "a sequence out of range": (
        {"block_table": None, "cache_batch_idx": np.int32([0, 7]), "cache_seqlens": 3},
        IndexError,
        "cache_batch_idx is 7 at (1, 0), expected at least 0 and less than 7, the blocks of k_",
    ),
}
NEW = {"k": np.ones((2, 3, 2, 8), np.float32), "v": np.ones((2, 3, 2, 6), np.float32)}
ROTARY = {f"rotary_{word[:3]}": x[:8] for word, x in ANGLES.items()}
FLASH_THAT_STORES = {
    "a full cache": (
        NEW | {"cache_seqlens": changed(LENGTHS, 0, 12)},
        IndexError,
        "cache_seqlens is 12 at (0,), expected 0 to 9",
    ),
    "a row without angles": (
        NEW | ROTARY | {"causal": True},
        IndexError,
        "cache_seqlens + i is 9 at (0, 0), expected at least 0 and less than 8",
    ),
    "a dtype": (
        NEW | {"v": NEW["v"].astype(np.float64)},
        TypeError,
        "v has the dtype f64, expected f32 beside k of f32",
    ),
}


OF_INT64 = ("lengths", "blocks")  # JAX has none by default
EACH = [
    (which, what)
    for which in frontend.NAMES
    for what in (*FLASH, *FLASH_THAT_STORES)
    if which != "jax" or what not in OF_INT64
]


@pytest.mark.parametrize("which, what", EACH)
def test_flash_attn_with_kvcache(kf, which, what):
    """Messages have the names of its own arguments."""
    call = frontend.Frontend(which, kf)
    if what in FLASH_THAT_STORES and which not in ("numpy", "torch"):
        text = "kf.flash_attn_with_kvcache: k is given, expected None: these arrays are never"
        with pytest.raises(ValueError, match=text):
            call(
                "flash_attn_with_kvcache",
                *map(given(False).get, OF_FLASH),
                **NEW,
                cache_seqlens=LENGTHS,
            )
        return
    changes, kind, text = (FLASH | FLASH_THAT_STORES)[what]
    more = {"cache_seqlens": LENGTHS, "block_table": TABLE} | changes
    more = {word: x for word, x in more.items() if x is not None}
    rows = {word: given(False)[word] for word in OF_FLASH}
    refused(call, "flash_attn_with_kvcache", kind, text, rows | more)
