# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks of keys and the boolean masks that they stand for, block by block."""

import numpy as np

KINDS = ("block_offsets", "key_blocks", "block_masks")


def lists_of(mask, block, whole=False):
    """Returns (offsets, entries, masks) of a mask [batch, heads, queries, keys].

    whole: lists all blocks, each with its mask.
    """
    batch, heads, queries, keys = mask.shape
    rows, cols = -(-queries // block), -(-keys // block)
    padded = np.zeros((batch, heads, rows * block, cols * block), bool)
    padded[:, :, :queries, :keys] = mask
    offsets = np.zeros((batch, heads, rows + 1), np.int32)
    entries, masks = [], []
    for b, h in np.ndindex(batch, heads):
        offsets[b, h, 0] = len(entries)
        for i in range(rows):
            for j in range(cols):
                part = padded[b, h, i * block : (i + 1) * block, j * block : (j + 1) * block]
                inside = part[: queries - i * block, : keys - j * block]
                if not whole and not inside.any():
                    continue
                full = not whole and inside.all()
                entries.append((j, -1 if full else len(masks)))
                if not full:
                    masks.append(words(part))
            offsets[b, h, i + 1] = len(entries)
    return (
        offsets,
        np.array(entries, np.int32).reshape(-1, 2),
        np.array(masks, np.int32).reshape(-1, block, block // 32),
    )


def words(part):
    """Bits of a block, the first key in the lowest one."""
    bits = part.reshape(len(part), -1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
    return bits.sum(-1).astype(np.uint32).view(np.int32)


def mask_of(offsets, entries, masks, queries, keys):
    """Returns the mask [batch, heads, queries, keys] of lists.

    A list that is wrong gives None in place of a row's mask: those rows are -1, others 0 and 1.
    """
    block = masks.shape[1]
    columns = -(-keys // block)
    batch, heads, rows = offsets.shape[0], offsets.shape[1], offsets.shape[2] - 1
    found = np.zeros((batch, heads, rows * block, columns * block), np.int8)
    every = np.ones((block, block), np.int8)
    bits = (masks[..., None].view(np.uint32) >> np.arange(32, dtype=np.uint32)) & 1
    bits = bits.reshape(len(masks), block, block)
    for b, h, i in np.ndindex(batch, heads, rows):
        begin, end = np.clip(offsets[b, h, i : i + 2], 0, len(entries))
        own = found[b, h, i * block : (i + 1) * block]
        listed = entries[begin:end]
        inside = (listed >= [0, -1]) & (listed < [columns, len(masks)])
        if len(listed) > columns or not inside.all():
            own[:] = -1
            continue
        for key, mask in listed:
            own[:, key * block : (key + 1) * block] = every if mask < 0 else bits[mask]
    return found[:, :, :queries, :keys]


def draw(rng, batch, heads, queries, keys, block, listed, masks):
    """Draws lists of all blocks in turn, and of some, with masks of any bits."""
    rows, columns = -(-queries // block), -(-keys // block)
    entries = np.full((listed, 2), -1, np.int32)
    entries[:, 0] = np.arange(listed) % max(columns, 1)
    entries[:, 1] = rng.integers(-1, masks, listed)
    offsets = np.zeros((batch, heads, rows + 1), np.int32)
    for b, h in np.ndindex(batch, heads) if columns else ():
        offsets[b, h, 0] = at = rng.integers(0, listed + 1) // columns * columns
        for i in range(rows):  # a list is within one turn
            most = min(listed, (at // columns + 1) * columns)
            offsets[b, h, i + 1] = at = rng.integers(at, most + 1)
    bits = rng.integers(-(2**31), 2**31, (masks, block, block // 32)).astype(np.int32)
    return offsets, entries, bits
