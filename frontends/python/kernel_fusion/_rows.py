# SPDX-License-Identifier: Apache-2.0
"""Indices of rows: positions that a caller leaves out, labels and indices out of range, offsets of
packed sequences, and lists of blocks."""

from typing import Any

from kernel_fusion._table import Call, Op


def counted(op: Op) -> list[tuple[str, str, int]]:
    """[(input that may be None, tensor with its rows, dimensions of that tensor after the rows)].

    A launcher then numbers all rows. A row of several sequences needs its index in its own one,
    along the last dimension before the others. An input of a fixed number of dimensions has a
    default that knows the sequences, which the launcher computes.
    """
    first, count = op.forward.inputs[0], op.rules.count
    return [
        (t.name, first.name, len(first.extents) - len(t.extents))
        for t in op.forward.inputs
        if isinstance(t.absent, str)
        and any(isinstance(e, str) and not isinstance(count[e], int) for e in t.extents)
    ]


def bounded(call: Call) -> list[tuple[str, str, int]]:
    """[(input of indices, tensor whose dimension bounds them, that dimension from the end)]."""
    found = []
    for t in call.inputs:
        of = next((x for x in call.inputs if t.below in x.extents), None) if t.below else None
        if of is not None:
            found.append((t.name, of.name, of.extents.index(t.below) - len(of.extents)))
    return found


def ignored(call: Call) -> str:
    """The integer argument that an index may equal without being one; empty if there is none."""
    return next((v.name for v in call.integers if v.name == "ignore_index"), "")


def padding(op: Op) -> list[tuple[str, str, int]]:
    """[(row of a table without gradient, the table, its dimension of rows from the end)].

    As in PyTorch, None stands for no row, and a negative number counts from the end. A launcher
    takes any number that is no row for none.
    """
    names = [v.name for v in op.forward.integers if v.name == "padding_idx"]
    return [(name, of, dimension) for name in names for _, of, dimension in bounded(op.forward)[:1]]


def row(where: str, name: str, value: int | None, rows: int) -> int:
    """A row of a table as a launcher takes it."""
    if value is None:
        return -1
    if not -rows <= value < rows:
        raise ValueError(f"{where}: {name} is {value}, expected a row of {rows}, or None")
    return value % rows


def check(where: str, name: str, index: Any, below: int, ignore: int | None) -> None:
    """Refuses an array of indices with one out of range, as PyTorch does on the CPU."""
    if not index.size or 0 <= index.min() and index.max() < below:
        return
    outside = (index < 0) | (index >= below)
    if ignore is not None:
        outside &= index != ignore
    if outside.any():
        import numpy as np  # the package's build, which imports this module, has no NumPy

        at = np.unravel_index(int(outside.argmax()), outside.shape)
        also = "" if ignore is None else f", or ignore_index = {ignore}"
        raise IndexError(
            f"{where}: {name} is {index[at]} at {tuple(map(int, at))}, expected at least 0 and "
            f"less than {below}{also}"
        )


OFFSETS = "_offsets"  # end of the kinds of offsets, which begin with the kind of the packed rows


def offsets(call: Call) -> list[tuple[str, str]]:
    """[(input of offsets of packed sequences, tensor whose first dimension they divide)]."""
    by_kind = {t.kind: t.name for t in reversed(call.inputs)}
    return [
        (t.name, by_kind[t.kind.removesuffix(OFFSETS)])
        for t in call.inputs
        if t.kind.endswith(OFFSETS) and t.kind.removesuffix(OFFSETS) in by_kind
    ]


def check_offsets(where: str, name: str, found: Any, of: str, rows: int) -> None:
    """Refuses an array of offsets that descend or lie outside of the rows of the tensor `of`. The
    plan refuses other shapes.
    """
    if found.ndim != 1 or not found.size:
        return
    if found[0] < 0:
        raise ValueError(f"{where}: {name} begins with {found[0]}, expected at least 0")
    descends = found[1:] < found[:-1]
    if descends.any():
        at = int(descends.argmax()) + 1
        raise ValueError(
            f"{where}: {name} is {found[at]} at {at}, expected at least {found[at - 1]}, the "
            f"offset before it"
        )
    if found[-1] > rows:
        raise ValueError(
            f"{where}: {name} ends with {found[-1]}, expected at most {rows}, the rows of {of}"
        )


LISTS = ("block_offsets", "key_blocks", "block_masks", "key")  # kinds of lists of blocks, and of k


def lists(call: Call) -> tuple[str, ...]:
    """Inputs of the kinds LISTS; empty if there are none."""
    by_kind = {t.kind: t.name for t in call.inputs}
    return tuple(by_kind[kind] for kind in LISTS) if by_kind.keys() >= set(LISTS) else ()


def check_lists(where: str, names: tuple[str, ...], found: Any, masks: Any, key: Any) -> None:
    """Refuses lists whose bounds descend or lie outside, and blocks that are outside of the keys or
    of the masks or do not ascend. The plan refuses other shapes.

    Args:
        names: those of LISTS.
        found: arrays of the bounds and of the blocks.
        masks, key: shapes of the masks and of k.
    """
    bounds, blocks = found
    if bounds.ndim != 3 or blocks.ndim != 2 or len(masks) != 3 or len(key) != 4:
        return
    if 2 != blocks.shape[1] or not masks[1]:
        return
    _check_bounds(where, names, bounds, len(blocks))
    for column, least, most, of in (
        (0, 0, -(-key[1] // masks[1]) - 1, f"the last block of {names[3]}"),
        (1, -1, masks[0] - 1, f"the last of {names[2]}"),
    ):
        number = blocks[:, column]
        wrong = (number < least) | (number > most)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"{where}: {names[1]} is {number[at]} at {(at, column)}, expected {least} to "
                f"{most}, {of}"
            )
    stays = (blocks[1:, 0] <= blocks[:-1, 0]).cumsum()  # counts pairs up to each
    first, last = bounds[..., :-1].reshape(-1), bounds[..., 1:].reshape(-1) - 1
    if not len(stays):
        return
    several = last > first
    before = stays[first[several] - 1] * (first[several] > 0)
    wrong = stays[last[several] - 1] > before
    if wrong.any():
        at = first[several][int(wrong.argmax())]
        raise ValueError(
            f"{where}: {names[1]} does not ascend in the list that begins at {at}, expected each "
            f"block once, in order"
        )


def _check_bounds(where: str, names: tuple[str, ...], bounds: Any, listed: int) -> None:
    """Refuses bounds of lists that descend or lie outside of the blocks."""
    descends = bounds[..., 1:] < bounds[..., :-1]
    outside = (bounds < 0) | (bounds > listed)
    if descends.any() or outside.any():
        import numpy as np  # the package's build, which imports this module, has no NumPy

        wrong = outside if outside.any() else descends
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        if outside.any():
            expected = f"0 to {listed}, the rows of {names[1]}"
        else:
            expected = f"at least {bounds[at]}, the bound before it"
            at = (*at[:2], at[2] + 1)
        raise ValueError(
            f"{where}: {names[0]} is {bounds[at]} at {tuple(map(int, at))}, expected {expected}"
        )
