# SPDX-License-Identifier: Apache-2.0
"""Fields of the matmul family: products, load, accumulates, joined."""

import ast

from kfgen.families.family import wrong
from kfgen.model.entries import UNUSABLE, usable

ACC = "acc"  # the product, where an entry names none
JOINED = {
    "right": "two_rights",
    "row": "two_rows",
    "elem": "two_elems",
}  # kinds of arguments that join two tensors


def read(f, op, names):
    """Reads {field: value} of an entry. names: reserved names."""
    found = {
        "products": f.get("products", dict, {}, what='{ acc = "x * weight" }'),
        "load": f.get("load", dict, {}, what='{ value = "act(x)" }'),
        "accumulates": f.get("accumulates", bool, False, what="true or false"),
        "joined": f.get("joined", dict, {}, what='{ weight = ["gate_weight", "up_weight"] }'),
    }
    taken = {*op.scalars, *op.outputs, *op.saved, *(n for o in op.operands for n in o.values)}
    for field in ("products", "load"):
        for name, text in found[field].items():
            if not isinstance(text, str):
                raise f.error(field, f"{name} is {text!r}", "give it an expression, in quotes")
            if name in taken or (name in names and name != ACC):
                raise f.error(
                    field,
                    f"the name `{name}` cannot be used",
                    "choose one that is no operand's, scalar's, result's nor product's",
                )
            taken.add(name)
    _check_joined(f, op, found["joined"], taken, names)
    return found


def _check_joined(f, op, joined, taken, names):
    """Checks that each `joined` names exactly two tensors of the same kind."""
    operands = {o.name: o for o in op.operands}
    for name, members in joined.items():
        if (
            not isinstance(members, list)
            or len(members) != 2
            or not all(isinstance(m, str) for m in members)
        ):
            raise f.error(
                "joined",
                f"{name} is {members!r}",
                'name two tensors: { weight = ["gate_weight", "up_weight"] }',
            )
        if not usable(name) or name in taken or name in names:
            raise f.error("joined", f"the name `{name}` cannot be used", UNUSABLE)
        alike = {(o.kind, o.grad, o.absent, o.positive) for o in map(operands.get, members) if o}
        saved = [m for m in members if m in op.saved]
        fits = len(set(members)) == 2 and (
            len(saved) == 2 or (not saved and all(m in operands for m in members))
        )
        if not fits or len(alike) > 1 or any(kind not in JOINED for kind, *_ in alike):
            raise f.error(
                "joined",
                f"{name} is of {' and '.join(members)}",
                'name two "right", two "row" or two "elem" alike, or two saved',
            )
        taken.add(name)
    members = [m for of in joined.values() for m in of]
    if len(set(members)) < len(members):
        raise f.error("joined", "has a tensor in two places", "name each once")


def products(op):
    """Returns (name of the left factor, {product: its weight})."""
    lefts = [*op.own["load"], *(o.name for o in op.operands if o.kind == "left")]
    rights = [o.name for o in op.operands if o.kind == "right"]
    texts = op.own["products"] or {ACC: f"{lefts[0]} * {rights[0]}"}
    found, factors = {}, []
    for name, text in texts.items():
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = None
        factor = (
            isinstance(tree, ast.BinOp)
            and isinstance(tree.op, ast.Mult)
            and [getattr(side, "id", "") for side in (tree.left, tree.right)]
        )
        if not factor or factor[0] not in lefts or factor[1] not in rights:
            raise wrong(
                op,
                "products",
                f"{name} is {text!r}",
                'write a product of a left factor and a "right": { acc = "x * weight" }',
            )
        factors.append(factor[0])
        found[name] = factor[1]
    if len(set(factors)) > 1 or len(found) > 2 or sorted(found.values()) != sorted(rights):
        raise wrong(
            op,
            "products",
            f"are {texts}",
            'one or two, of one left factor, and a "right" each, of which all are used',
        )
    return factors[0], found
