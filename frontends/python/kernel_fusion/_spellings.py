# SPDX-License-Identifier: Apache-2.0
"""Other spellings of arguments, derived from the aliases of an op (aliases.toml).

- An alias's names of arguments are keywords of the function too.
- Where an alias orders the inputs differently, only the first input may be given by position.
- axis, keepdims and num_groups are keywords for dim, keepdim and groups.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _axes, _table
from kernel_fusion._table import Op

SHAPE = "normalized_shape"


@functools.cache
def _by_target() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns {(pattern, activation): aliases}."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for alias in _table.aliases().values():
        found.setdefault((alias["op"], alias["activation"]), []).append(alias)
    return found


def _aliases(op: Op, activation: str) -> list[dict[str, Any]]:
    return [] if op.own else _by_target().get((op.pattern, activation), [])


def keywords(op: Op, activation: str) -> dict[str, str]:
    """Returns {other keyword: argument}, without the function's own names."""
    own = {t.name for t in op.forward.inputs}
    values = (*op.forward.integers, *op.forward.scalars, *op.scalars[activation])
    own |= {v.name for v in values} | {"dim", "p", "training", SHAPE}
    found = {"axis": "dim"} if op.has_axis else {}
    found |= {"keepdims": "keepdim"} if _axes.applies(op) else {}
    found |= {"num_groups": "groups"} if op.has_groups else {}
    return {n: of for n, of in found.items() if n not in own} | {
        a["name"]: a["of"]
        for alias in _aliases(op, activation)
        for a in alias["arguments"]
        if alias["keywords"] and a["name"] not in own
    }


@functools.cache
def orders(op: Op, activation: str) -> tuple[str, ...]:
    """Returns the orders of the inputs if an alias's differs from the function's, else nothing."""
    own = [t.name for t in ordered(op)]
    found = []
    for alias in _aliases(op, activation):
        words = [(a["name"], a["of"]) for a in alias["arguments"] if a["of"] in own]
        if [of for _, of in words] != [n for n in own if n in dict(words).values()]:
            found.append(", ".join(word for word, _ in words))
    return (", ".join(own), *found) if found else ()


def refuse_positions(op: Op, activation: str) -> Callable[[Sequence[Any]], None] | None:
    """Returns a check of positional arguments, or None if their order is not ambiguous."""
    known = orders(op, activation)
    if not known:
        return None
    where, first = op.display_name(activation), op.forward.inputs[0].name

    def check(args: Sequence[Any]) -> None:
        if len(args) > 1:
            raise TypeError(
                f"{where}: {len(args)} arguments are given by position, expected {first} alone: "
                f"libraries order the others as ({') or as ('.join(known)}); name them"
            )

    return check


def is_shape(value: Any) -> bool:
    """True for a whole number or a sequence of them, which no tensor is."""
    if isinstance(value, (tuple, list)):
        return all(hasattr(n, "__index__") for n in value)
    return isinstance(value, int) and not isinstance(value, bool)


def ordered(op: Op) -> list[_table.Tensor]:
    """Inputs in the order of the function's arguments."""
    return sorted(op.forward.inputs, key=lambda t: t.nullable)
