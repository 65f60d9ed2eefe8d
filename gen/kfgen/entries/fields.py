# SPDX-License-Identifier: Apache-2.0
"""The fields of an entry, read one by one."""

import ast
import difflib

from kfgen.model.entries import UNUSABLE, Activation, Op, Scalar, SpecError, usable

NESTING = 200  # levels of the syntax of a `ref`


def depth(tree):
    """Returns the depth of a syntax tree, without recursion, whose limit varies between Pythons."""
    levels, nodes = 0, [tree]
    while nodes:
        levels, nodes = (
            levels + 1,
            [child for node in nodes for child in ast.iter_child_nodes(node)],
        )
    return levels


class Fields:
    """Fields of one entry: typed access, and an error for unknown fields."""

    def __init__(self, file, entry, data):
        self.file, self.entry, self.data, self.left, self.asked = (
            file,
            entry,
            data,
            set(data),
            set(),
        )

    def error(self, field_, problem, fix):
        return SpecError(self.file, self.entry, field_, problem, fix)

    def get(self, name, types, default=None, required=False, what=""):
        self.left.discard(name)
        self.asked.add(name)
        if name not in self.data:
            if required:
                raise self.missing(name, f"add {name} = {what}")
            return default
        value = self.data[name]
        if not isinstance(value, types) or (
            isinstance(value, bool)
            and bool not in (types if isinstance(types, tuple) else (types,))
        ):
            raise self.error(name, f"is {value!r}", f"write {name} = {what}")
        return value

    def missing(self, name, fix):
        """Reports a missing field, or a misspelt one if a similar name is present."""
        known = Activation.__dataclass_fields__.keys() | Op.__dataclass_fields__.keys()
        near = difflib.get_close_matches(name, self.data.keys() - known, n=1, cutoff=0.75)
        return self.error(
            name, "is missing", f"rename `{near[0]}`, which is not a field" if near else fix
        )

    def line(self, name):
        """Reads one line of text, which becomes a comment."""
        text = self.get(name, str, required=True, what='"the formula in words"')
        if not text.strip() or "\n" in text or "*/" in text or text.endswith("\\"):
            raise self.error(name, f"is {text!r}", "write one line of words")
        return text

    def oracle(self, name, text):
        try:
            tree = ast.parse(" ".join(text.split()), name, "eval")
            if depth(tree) > NESTING:
                raise ValueError("nested too deeply")
            return compile(tree, name, "eval") and text
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            fix = (
                "write one expression of np, sp (scipy.special) and expit; to use a value twice: "
                "(t := a + b, 2 * t)[1]"
            )
            raise self.error(name, f"is not one Python expression: {e}", fix) from None

    def done(self):
        if self.left:
            name = sorted(self.left)[0]
            near = difflib.get_close_matches(name, self.asked, n=1)
            near = [word for word in near if word not in self.data]
            raise self.error(
                name,
                "is not a field of this entry",
                f"did you mean `{near[0]}`?" if near else "remove it, or correct its spelling",
            )


def _scalar(f, name, given):
    """Reads a number, or { value, default, least, most, kind }."""
    table = given if isinstance(given, dict) else {"value": given}
    whole = table.get("kind") == "int"
    numbers = {k: v for k, v in table.items() if k != "kind"}
    named = {k: numbers.pop(k) for k in ("least", "most") if isinstance(numbers.get(k), str)}
    fits = all(
        isinstance(v, int if whole else (int, float)) and not isinstance(v, bool)
        for v in numbers.values()
    )
    if (
        not fits
        or "value" not in numbers
        or table.get("kind", "int") != "int"
        or numbers.keys() - Scalar.__dataclass_fields__.keys()
    ):
        fix = (
            f"give {name} a number for tests; for a default and bounds in frontends write "
            f"{name} = {{ value = 0.5, default = 1, least = 0, most = 2 }}; a bound may be the "
            "name of another scalar; for a 64-bit integer "
            f'{name} = {{ kind = "int", value = 1 }}'
        )
        raise f.error("scalars", f"{name} is {given!r}", fix)
    numbers = {k: v if whole else float(v) for k, v in numbers.items()}
    return Scalar(**{"default": numbers["value"], **numbers, **named})


def _check_bounds(f, found):
    """Raises an error for a value or a default outside the bounds of its scalar."""
    for name, scalar in found.items():
        bounds = scalar.least, scalar.most
        odd = [b for b in bounds if isinstance(b, str) and (b not in found or b == name)]
        if odd:
            fix = f"write a number, or one of: {', '.join(n for n in found if n != name) or 'none'}"
            raise f.error("scalars", f"a bound of {name}, `{odd[0]}`, is not another scalar", fix)
        for what in ("value", "default"):
            least, most = (getattr(found[b], what) if isinstance(b, str) else b for b in bounds)
            number = getattr(scalar, what)
            if (least is not None and number < least) or (most is not None and number > most):
                raise f.error(
                    "scalars",
                    f"the {what} of {name}, {number:g}, is outside its bounds",
                    "correct one of them",
                )


def scalars(f, most, own=()):
    """{name: Scalar}."""
    table = f.get("scalars", dict, {}, what="{ name = value for tests, ... }")
    for name in table:
        if not usable(name) or name in own:
            raise f.error("scalars", f"the name `{name}` cannot be used", UNUSABLE)
    if len(table) > most:
        raise f.error("scalars", f"has {len(table)} entries", f"at most {most} are possible")
    found = {name: _scalar(f, name, value) for name, value in table.items()}
    _check_bounds(f, found)
    return found


def values(scalars_):
    """{name: value in tests}."""
    return {name: s.value for name, s in scalars_.items()}


def is_number(text):
    try:
        float(text)
        return True
    except ValueError:
        return False
