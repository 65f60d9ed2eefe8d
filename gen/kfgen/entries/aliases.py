# SPDX-License-Identifier: Apache-2.0
"""Aliases of functions (aliases.toml), for all frontends. Headers have no aliases, and an alias
renames no operand.
"""

import tomllib

from kfgen.model import names
from kfgen.model.entries import NAME, SpecError
from kfgen.paths import ENTRIES

PATH = ENTRIES / "aliases.toml"
FIELDS = {"function": str, "arguments": dict, "defaults": dict, "keywords": bool}
OPTIONAL = {"defaults": {}, "keywords": True}
# Roles of arguments that an alias may have; frontends draw seed and offset from their generator.
GIVEN = ("in", "integer", "scalar", "act_scalar", "probability")
SHAPE = "normalized_shape"


def load(path=PATH):
    """Loads {alias or its pattern: fields}."""
    found = tomllib.loads(path.read_text()).get("alias", {})
    for key, entry in found.items():
        for field, kind in FIELDS.items():
            if not isinstance(entry.get(field, OPTIONAL.get(field)), kind):
                raise SpecError(
                    path.name,
                    f"alias.{key}",
                    field,
                    "is missing or has the wrong type",
                    f"write a {kind.__name__}",
                )
        if unknown := set(entry) - set(FIELDS):
            raise SpecError(
                path.name,
                f"alias.{key}",
                sorted(unknown)[0],
                "is not known",
                f"the fields are {', '.join(FIELDS)}",
            )
    return found


def named(ops):
    """Returns {function without prefix and dtypes: (op, activation)}."""
    return {names.fill(op.pattern, act.name): (op, act) for op in ops for act in op.activations}


def expanded(found, ops):
    """Yields (alias, entry, pattern, (op, activation) or None for an unknown function)."""
    functions, patterns = named(ops), {op.pattern: op for op in ops}
    for key, entry in found.items():
        op = patterns.get(entry["function"]) if "{act}" in key else None
        if op:
            for act in op.activations:
                yield names.fill(key, act.name), entry, key, (op, act)
        else:
            yield key, entry, key, functions.get(entry["function"])


def targets(ops):
    """Returns [(op, activation)] of kf's aliases; `problems` needs their functions."""
    return [target for *_, target in expanded(load(), ops) if target]


def of(functions, ops, found=None):
    """Returns the manifest's records of the aliases of `functions`: op and activation, arguments in
    order, defaults. A user's function of the same name hides an alias.
    """
    known = {(f["op"], f["activation"]) for f in functions}
    every = [
        (alias, entry, *target)
        for alias, entry, _, target in expanded(load() if found is None else found, ops)
        if target
    ]
    return [
        {
            "name": alias,
            "op": op.pattern,
            "activation": act.name,
            "defaults": entry.get("defaults", {}),
            "keywords": entry.get("keywords", True),
            "arguments": [
                {"name": word, "of": argument} for word, argument in entry["arguments"].items()
            ],
        }
        for alias, entry, op, act in every
        if (op.pattern, act.name) in known and alias not in named(ops)
    ]


def problems(functions, ops, found=None):
    """Returns the errors of the aliases, one line each. functions: of the manifest, at least those
    of `targets`.
    """
    taken, wrong = dict.fromkeys(named(ops), "a function"), []
    forward = {
        (f["op"], f["activation"]): f
        for f in reversed(functions)
        if not f["bwd"] and not f["state"]
    }
    for alias, entry, key, target in expanded(load() if found is None else found, ops):
        where = f"{PATH.name}: alias.{key}"
        if not target:
            function = entry["function"]
            wrong.append(f"{where}: function `{function}` is neither a pattern nor a function")
            continue
        if not NAME.match(alias) or alias in taken:
            problem = taken.get(alias, "not a lower-case name")
            wrong.append(f"{where}: `{alias}` is {problem}; choose another name")
        taken[alias] = f"alias.{key} already"
        wrong += [
            f"{where}: `{alias}`: {text}"
            for text in _arguments(entry, forward[target[0].pattern, target[1].name])
        ]
    return wrong


def frontend_arguments(f):
    """Returns the arguments that f has in Python alone, which is given a shape for sizes."""
    inputs = [a for a in f["arguments"] if a["role"] == "in"]
    has_row = f["family"] == "rows" and any(a["name"] == "weight" for a in inputs)
    named = {
        "dim": any(a["name"] == "axis" for a in f["arguments"]),
        "training": any(a["role"] == "probability" for a in f["arguments"]),
        SHAPE: has_row and inputs[0]["name"] == "x",
    }
    return {name: {"role": "frontend", "null": True} for name, found in named.items() if found}


def _arguments(entry, f):
    """Returns the errors of an alias's arguments for the function f."""
    has = {a["name"]: a for a in f["arguments"] if a["role"] in GIVEN} | frontend_arguments(f)
    given, defaults = list(entry["arguments"].values()), entry.get("defaults", {})
    wrong = [
        f"{f['name']} has no input or scalar `{a}`; it has {', '.join(has)}"
        for a in [*given, *defaults]
        if a not in has
    ]
    wrong += [f"`{a}` is given twice" for a in sorted({a for a in given if given.count(a) > 1})]
    for name, a in has.items():
        default = defaults.get(name, a.get("default"))
        if name not in given and not a.get("null") and default is None:
            wrong.append(f"`{name}` is not an argument and has no default")
        if name in defaults and (a["role"] in ("in", "frontend") or not _within(default, a)):
            wrong.append(f"the default of `{name}` is not a number that {f['name']} takes")
    return wrong


def _within(value, a):
    least, most = a.get("least"), a.get("most")
    return (
        isinstance(value, (int, float))
        and (least is None or value >= least)
        and (most is None or value <= most)
    )
