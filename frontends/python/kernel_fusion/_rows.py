# SPDX-License-Identifier: Apache-2.0
"""Indices of rows: positions that a caller leaves out, labels and indices out of range, and offsets
of packed sequences."""

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
