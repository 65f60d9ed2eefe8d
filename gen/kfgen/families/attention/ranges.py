# SPDX-License-Identifier: Apache-2.0
"""The fields `first` and `last`: the first and the last key that a query sees, as sums of `query`,
`queries`, `count` and integer scalars.
"""

import ast
from dataclasses import dataclass

from kfgen.language.primitives import COUNT, QUERIES, QUERY

FIELDS = ("first", "last")
TOTALS = {QUERIES: "kfi_p.queries_total", COUNT: "kfi_p.keys_total"}  # fields of the plan


@dataclass(frozen=True)
class Bound:
    """slope * query + the sum of (sign, name or number) in order."""

    text: str
    slope: int
    terms: tuple

    @property
    def names(self):
        return [name for _, name in self.terms if isinstance(name, str)]

    @property
    def queries(self):
        """How often the sum has the number of queries."""
        return sum(sign for sign, term in self.terms if term == QUERIES)

    @property
    def count(self):
        """How often the sum has the number of keys."""
        return sum(sign for sign, term in self.terms if term == COUNT)

    def addend(self, names):
        """C expression of the sum, saturated. names: {integer or size: its text}."""
        names, found = TOTALS | names, ""
        for sign, term in self.terms:
            text = names.get(term, f"{term}")
            if not found and sign > 0:
                found = text
            else:
                word = "add" if sign > 0 else "sub"
                found = f"kfi_attention_{word}({found or '0'}, {text})"
        return found or "0"


def _terms(tree, sign=1):
    """Yields (sign, name or number) of a sum."""
    match tree:
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            yield from _terms(left, sign)
            yield from _terms(right, sign if isinstance(op, ast.Add) else -sign)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -sign)
        case ast.Name(id=name):
            yield sign, name
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield sign, value
        case _:
            raise ValueError


def read(f, field, integers):
    """Reads a bound of an entry, or None."""
    text = f.get(field, str, what='"query + (count - queries)"')
    if text is None:
        return None
    known = (QUERY, QUERIES, COUNT, *integers)
    fix = f"write a sum of {', '.join(known)} and numbers, with `query` once at most"
    try:
        terms = list(_terms(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise f.error(field, f"is {text!r}", fix) from None
    slope = sum(sign for sign, term in terms if term == QUERY)
    odd = [term for _, term in terms if isinstance(term, str) and term not in known]
    if odd or slope not in (0, 1):
        problem = f"reads `{odd[0]}`" if odd else f"has `query` {slope} times"
        raise f.error(field, problem, fix)
    return Bound(text, slope, tuple((sign, term) for sign, term in terms if term != QUERY))
