# SPDX-License-Identifier: Apache-2.0
"""Calls with caches of keys and values: lengths, blocks and positions out of range, and shapes and
absent tensors that no rule of sizes refuses."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kernel_fusion import _rows
from kernel_fusion._table import Call

# {kind of the cache of keys: kind of the rows of a call}
KINDS = {"keys": "query", "key_cache": "new_keys"}
LENGTHS, TABLE, ANGLE, POSITION = "count", "table", "angle", "position"
FARTHEST = 2**40  # beyond all rows; distances without a bound would overflow
Read = Callable[[Any], Any]  # returns a tensor as an array of NumPy, None if it has no values yet


class Names(NamedTuple):
    """Inputs of a call."""

    cache: str
    rows: str  # queries, or new keys
    lengths: str
    table: str
    angles: tuple[str, ...]
    position: str  # empty without
    stores: bool  # True if the rows are stored in the cache


@functools.cache
def of(call: Call) -> Names | None:
    """Returns the inputs of a call with caches, None for other calls."""
    by_kind = {t.kind: t.name for t in call.inputs}
    cache = next((kind for kind in KINDS if kind in by_kind), None)
    if cache is None or not by_kind.keys() >= {LENGTHS, TABLE, KINDS[cache]}:
        return None
    return Names(
        by_kind[cache],
        by_kind[KINDS[cache]],
        by_kind[LENGTHS],
        by_kind[TABLE],
        tuple(t.name for t in call.inputs if t.kind == ANGLE),
        by_kind.get(POSITION, ""),
        any(t.kind == cache and t.role == "inout" for t in call.inputs),
    )


def checked(call: Call) -> tuple[str, ...]:
    """Inputs of integers that `check_values` checks, besides those of _rows.bounded."""
    names = of(call)
    return () if names is None else (names.lengths, names.table)


def check_shapes(
    where: str, call: Call, shapes: Mapping[str, Sequence[Any]], sizes: Mapping[str, Any]
) -> None:
    """Refuses heads that do not divide those of q, a contiguous cache of fewer sequences than the
    call has, and a part of the angles. Symbols are the launcher's.

    Args:
        shapes: of the tensors that are given.
        sizes: of the call.
    """
    names = of(call)
    if names is None:
        return
    given = [name for name in names.angles if name in shapes]
    if 0 < len(given) < len(names.angles):
        lacks = next(name for name in names.angles if name not in shapes)
        raise ValueError(
            f"{where}: {given[0]} is given without {lacks}, expected {' and '.join(names.angles)}, "
            f"or neither"
        )
    kv_heads, heads = sizes.get("kv_heads"), sizes.get("heads")
    if isinstance(kv_heads, int) and isinstance(heads, int) and kv_heads and heads % kv_heads:
        raise ValueError(
            f"{where}: {names.cache} has {kv_heads} heads, expected a divisor of the {heads} of "
            f"{names.rows}"
        )
    blocks, batch = sizes["blocks"], sizes["batch"]
    if names.table in shapes or not (isinstance(blocks, int) and isinstance(batch, int)):
        return
    if blocks < batch:
        raise ValueError(
            f"{where}: {names.cache} has the shape {tuple(shapes[names.cache])}, expected at least "
            f"{batch} sequences, those of {names.rows}, without {names.table}"
        )


def check_values(
    where: str, call: Call, given: Mapping[str, Any], read: Read, integers: Mapping[str, int]
) -> None:
    """Refuses lengths, blocks and positions out of range, where their values are at hand. Elsewhere
    kernels give NaN and store nothing. The plan refuses other shapes.

    Args:
        given: the tensors by name, None for absent ones.
        integers: those of the call by name.
    """
    names = of(call)
    if names is None:
        return
    cache, rows, table = (given[name] for name in (names.cache, names.rows, names.table))
    lengths = read(given[names.lengths])
    if lengths is None or len(cache.shape) != 4 or len(rows.shape) != 4:
        return
    (blocks, size), (batch, new) = cache.shape[:2], rows.shape[:2]
    if lengths.shape != (batch,) or not batch or not new:
        return
    if table is not None and (len(table.shape) != 2 or table.shape[0] != batch):
        return
    room = size * (1 if table is None else table.shape[1])
    _check_lengths(where, names, lengths, room, new)
    blocks_of = None if table is None else read(table)
    if blocks_of is not None and size:
        first, end = _rows_read(names, lengths.astype("int64"), new, integers)
        _check_blocks(where, names, blocks_of, blocks, first // size, -(-end // size))
    if names.angles and given[names.angles[0]] is not None:
        _check_positions(where, names, given, read, lengths, new)


def _check_lengths(where: str, names: Names, lengths: Any, room: int, new: int) -> None:
    """Refuses lengths below 0 and those without room for the rows that a call stores."""
    most = room - new if names.stores else room
    if most < 0:
        raise IndexError(
            f"{where}: {names.rows} has {new} rows of a sequence, expected at most {room}, the "
            f"rows of a sequence in {names.cache}"
        )
    wrong = (lengths < 0) | (lengths > most)
    if wrong.any():
        at = int(wrong.argmax())
        behind = f", with {new} of {names.rows} behind" if names.stores else ""
        raise IndexError(
            f"{where}: {names.lengths} is {lengths[at]} at ({at},), expected 0 to {most}: a "
            f"sequence has {room} rows in {names.cache}{behind}"
        )


def _rows_read(
    names: Names, lengths: Any, new: int, integers: Mapping[str, int]
) -> tuple[Any, Any]:
    """Returns the rows [first, end) of each sequence whose blocks a call needs."""
    if names.stores:
        return lengths, lengths + new
    left, right = (
        max(min(integers.get(name, FARTHEST), FARTHEST), -FARTHEST) for name in ("left", "right")
    )
    end = (lengths + min(right, 0)).clip(0)
    return (lengths - new - left).clip(0), end


def _check_blocks(where: str, names: Names, table: Any, blocks: int, first: Any, end: Any) -> None:
    """Refuses blocks outside of the cache, for pages [first, end) of each sequence; others may have
    any number.
    """
    import numpy as np  # the package's build, which imports this module, has no NumPy

    page = np.arange(table.shape[1])
    used = (page >= first[:, None]) & (page < end[:, None])
    wrong = used & ((table < 0) | (table >= blocks))
    if wrong.any():
        at = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
        raise IndexError(
            f"{where}: {names.table} is {table[at]} at {at}, expected at least 0 and less than "
            f"{blocks}, the blocks of {names.cache}"
        )


def _check_positions(
    where: str, names: Names, given: Mapping[str, Any], read: Read, lengths: Any, new: int
) -> None:
    """Refuses positions without a row of the angles: those given, or the rows of sequences."""
    angle, position = given[names.angles[0]], given[names.position]
    if len(angle.shape) != 2:
        return
    positions = angle.shape[0]
    if position is not None:
        found = read(position)
        if found is not None:
            _rows.check(where, names.position, found, positions, None)
        return
    wrong = lengths > positions - new
    if wrong.any():
        at = int(wrong.argmax())
        raise IndexError(
            f"{where}: {names.lengths} is {lengths[at]} at ({at},), expected at most "
            f"{positions - new}: {names.angles[0]} has {positions} rows, with {new} of "
            f"{names.rows} behind"
        )
