# SPDX-License-Identifier: Apache-2.0
"""Block patterns of boolean masks: the lists that attention over blocks of keys reads."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

BLOCKS = (64, 128)
BITS = 32  # keys per number of a mask


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BlockMask:
    """Lists of the blocks of keys that blocks of queries see; unpacks to its three arrays.

    Attributes:
        block_offsets: [batch or 1, heads or 1, query blocks + 1], int32: list i of a batch and
            head has the rows from offset i to offset i + 1 of key_blocks, that one excluded
        key_blocks: [listed, 2], int32: a block of keys, ascending in a list, and the index of its
            mask, -1 if all of its keys are visible
        block_masks: [partial, block_size, block_size / 32], int32: a row per query, bit j of number
            w for key 32 w + j of the block
        shape: that of the mask, [batch or 1, heads or 1, queries, keys]
    """

    block_offsets: Any
    key_blocks: Any
    block_masks: Any
    shape: tuple[int, ...]

    @property
    def block_size(self) -> int:
        """Queries, and keys, of a block."""
        return int(self.block_masks.shape[1])

    @property
    def share(self) -> float:
        """Blocks that are computed, of all blocks: 0 to 1."""
        batch, heads, queries, keys = self.shape
        blocks = batch * heads * -(-queries // self.block_size) * -(-keys // self.block_size)
        return int(self.key_blocks.shape[0]) / max(blocks, 1)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.block_offsets, self.key_blocks, self.block_masks))

    def __repr__(self) -> str:
        return (
            f"BlockMask({list(self.shape)}, block_size={self.block_size}, "
            f"share={self.share:.3g}, partial_blocks={int(self.block_masks.shape[0])})"
        )


def block_mask_from(mask: Any, block_size: int = 64) -> BlockMask:
    """Finds the block pattern of a boolean mask: full, partial and empty blocks.

    Args:
        mask: [queries, keys], [heads, queries, keys] or [batch, heads, queries, keys], bool, True
            where a query sees a key; batch and heads may be 1, for all. Arrays of PyTorch stay on
            their device, others are read by NumPy
        block_size: queries, and keys, of a block: 64 or 128

    Returns:
        BlockMask: block_offsets, key_blocks and block_masks of block_sparse_attention, and the
        share of blocks that it computes

    Raises:
        TypeError: the mask is not boolean.
        ValueError: the mask has another number of dimensions, or there are no such blocks.
    """
    where = "kf.block_mask_from"
    if block_size not in BLOCKS:
        raise ValueError(f"{where}: block_size is {block_size}, expected 64 or 128")
    of_torch = type(mask).__module__.partition(".")[0] == "torch"
    xp: Any = importlib.import_module("torch" if of_torch else "numpy")
    mask = mask if of_torch else xp.asarray(mask)
    if mask.dtype != (xp.bool if of_torch else bool):
        raise TypeError(f"{where}: mask has the dtype {mask.dtype}, expected bool")
    if not 2 <= len(mask.shape) <= 4:
        raise ValueError(
            f"{where}: mask has the shape {tuple(mask.shape)}, expected [queries, keys], [heads, "
            f"queries, keys] or [batch, heads, queries, keys]"
        )
    shape = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    return BlockMask(*_lists(xp, mask.reshape(shape), block_size), shape)


def _lists(xp: Any, mask: Any, block: int) -> tuple[Any, Any, Any]:
    """Returns block_offsets, key_blocks and block_masks of a mask of four dimensions."""
    more: dict[str, Any] = {"device": mask.device} if xp.__name__ == "torch" else {}
    *lead, queries, keys = mask.shape
    rows, cols = -(-queries // block), -(-keys // block)
    padded = xp.zeros((*lead, rows * block, cols * block), dtype=mask.dtype, **more)
    padded[:, :, :queries, :keys] = mask
    parts = padded.reshape(*lead, rows, block, cols, block).swapaxes(3, 4)
    seen = parts.sum((4, 5))
    inside = [
        (n - xp.arange(count, **more) * block).clip(None, block)
        for n, count in ((queries, rows), (keys, cols))
    ]
    some = seen > 0
    partial = some & (seen < inside[0][:, None] * inside[1])
    number = xp.where(partial, partial.reshape(-1).cumsum(0).reshape(partial.shape) - 1, -1)
    column = xp.broadcast_to(xp.arange(cols, **more), some.shape)
    counts = some.sum(3)
    ends = counts.reshape(-1).cumsum(0).reshape(counts.shape)
    offsets = xp.zeros((*lead, rows + 1), dtype=xp.int32, **more)
    offsets[:, :, 1:] = ends
    if rows:
        offsets[:, :, 0] = ends[:, :, 0] - counts[:, :, 0]
    blocks = xp.stack((column[some], number[some]), 1)
    return offsets, _int32(xp, blocks), _words(xp, parts[partial], more)


def _words(xp: Any, parts: Any, more: dict[str, Any]) -> Any:
    """Bits of blocks [count, block, block] as numbers of 32 keys."""
    count, block, _ = parts.shape
    bits = _long(xp, parts.reshape(count, block, block // BITS, BITS))
    words = (bits << xp.arange(BITS, **more)).sum(3)
    return _int32(xp, words - ((words >> (BITS - 1)) << BITS))


def _long(xp: Any, x: Any) -> Any:
    return x.to(xp.int64) if xp.__name__ == "torch" else x.astype(xp.int64)


def _int32(xp: Any, x: Any) -> Any:
    return x.to(xp.int32) if xp.__name__ == "torch" else x.astype(xp.int32)


FUNCTIONS: tuple[Callable[..., Any], ...] = (block_mask_from,)
# Type stub for ops.pyi.
STUBS = ("def block_mask_from(mask: Any, block_size: int = 64) -> Any: ...",)
