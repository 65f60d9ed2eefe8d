# SPDX-License-Identifier: Apache-2.0
"""Other spellings of arguments, derived from the aliases of an op (aliases.toml).

- An alias's names of arguments are keywords of the function too.
- Where an alias orders the inputs differently, only the first input may be given by position.
- normalized_shape names the last dimensions, which become one for the call.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _table
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
    return {
        a["name"]: a["of"]
        for alias in _aliases(op, activation)
        for a in alias["arguments"]
        if alias["keywords"] and a["name"] not in own
    }


@functools.cache
def orders(op: Op, activation: str) -> tuple[str, ...]:
    """Returns the orders of the inputs if an alias's differs from the function's, else nothing."""
    own = [t.name for t in sorted(op.forward.inputs, key=lambda t: t.nullable)]
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
        return True
    return isinstance(value, int) and not isinstance(value, bool)


def flattened(where: str, function: Callable[..., Any], shape: Any, given: dict[str, Any]) -> Any:
    """Calls a function over rows with the last dimensions, which `shape` names, as one."""
    x = given["x"]
    try:
        wanted = tuple(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise TypeError(
            f"{where}: {SHAPE} is {shape!r}, expected a whole number or several"
        ) from None
    have = tuple(x.shape)
    if not wanted or have[len(have) - len(wanted) :] != wanted:
        raise ValueError(
            f"{where}: {SHAPE} is {wanted}, expected the last dimensions of x, whose shape is "
            f"{have}"
        )
    for name in ("weight", "bias"):
        t = given.get(name)
        if t is not None and tuple(t.shape) != wanted:
            raise ValueError(
                f"{where}: {name} has the shape {tuple(t.shape)}, expected {SHAPE} {wanted}"
            )
    if len(wanted) == 1:
        return function(**given)
    if given.get("out") is not None:
        raise TypeError(
            f"{where}: out is given, expected None beside several dimensions in {SHAPE}"
        )
    size = 1
    for n in wanted:
        size *= n
    lead = have[: len(have) - len(wanted)]
    rows = {
        name: given[name].reshape(-1) for name in ("weight", "bias") if given.get(name) is not None
    }
    found = function(**given | rows | {"x": x.reshape(*lead, size)})
    return found.reshape(have)
