# SPDX-License-Identifier: Apache-2.0
"""Schemas of the torch.library ops: tensors, integers and scalars of the op, then call options."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from kernel_fusion._table import Call, Op
from kernel_fusion._table import Tensor as Argument

ALL = -1  # mask of all gradients
KERNEL = "kernel"  # overload without a gradient


class Given(NamedTuple):
    """Arguments of an op, sorted by kind."""

    tensors: Sequence[Tensor | None]
    integers: Sequence[int]
    scalars: Sequence[float]  # the op's, the activation's, then p
    axis: int
    groups: int
    last: bool  # True if the channels are last
    rng: Tensor | None
    activation: str
    dtype: Any
    # Gradients to compute (backward), or non-zero if saved outputs are needed (forward).
    mask: int


class Schema:
    """Schema of one direction of an op."""

    def __init__(self, op: Op, backward: bool):
        self.op, self.backward, self.call = op, backward, op.direction(backward)
        self.name = f"{op.name}_bwd" if backward else op.name
        self.inputs = len(self.call.inputs)
        self.saves = not backward and any(t.use == "saved" for t in self.call.outputs)
        self.arguments = self._arguments()
        # Index of each argument; "scalars" and "act" are the first scalar of each kind.
        self.at = {name: i for i, (_, name) in enumerate(self.arguments)}
        self.at["scalars"] = self.inputs + len(self.call.integers)
        self.at["act"] = self.at["scalars"] + len(self.call.scalars)

    def _arguments(self) -> list[tuple[str, str]]:
        """Returns [(type, name)]."""
        op, call = self.op, self.call
        found = [(_type(t, i), t.name) for i, t in enumerate(call.inputs)]
        found += [("int", v.name) for v in call.integers] + [
            ("float", v.name) for v in call.scalars
        ]
        found += [("float", f"act_{i}") for i in range(op.act_scalars)] + (
            [("float", "p")] if op.dropout else []
        )
        found += [("int", "dim")] if op.has_axis else []
        found += [("int", "groups")] if op.has_groups else []
        found += [("bool", "last")] if op.channels_last else []
        found += [("Tensor", "rng")] if op.dropout else []
        found += [("int", "activation")] if op.has_act else []
        found += [("ScalarType", "dtype")] if op.asked else []
        return found + (
            [("int", "needs")] if self.backward else [("bool", "save")] if self.saves else []
        )

    @property
    def overloads(self) -> tuple[str, ...]:
        """Names: the op that users call, which is PyTorch's default overload, then the kernel. An
        op that overwrites inputs has no gradient, and one name.
        """
        return (self.name,) if self.call.updates else (self.name, f"{self.name}.{KERNEL}")

    @property
    def text(self) -> str:
        """Arguments and results, which follow the name in a schema."""
        results = ["Tensor"] * len(self.call.outputs)
        given = ", ".join(f"{t} {n}" for t, n in self.arguments)
        return f"({given}) -> {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}"

    def sort(self, args: Sequence[Any]) -> Given:
        at, op = self.at, self.op
        activation = op.numbered[args[at["activation"]]] if op.has_act else "none"
        scalars = args[at["scalars"] : at["act"] + len(op.scalars[activation])]
        return Given(
            args[: self.inputs],
            args[self.inputs : at["scalars"]],
            (*scalars, args[at["p"]]) if op.dropout else scalars,
            args[at["dim"]] if op.has_axis else -1,
            args[at["groups"]] if op.has_groups else 1,
            args[at["last"]] if op.channels_last else False,
            args[at["rng"]] if op.dropout else None,
            activation,
            args[at["dtype"]] if "dtype" in at else None,
            args[-1] if self.backward or self.saves else ALL,
        )


def _type(t: Argument, i: int) -> str:
    """Type of input i. A list that is absent is empty: PyTorch functionalises no optional lists."""
    kind = f"Tensor(a{i}!)" if t.role == "inout" else "Tensor"
    return f"{kind}[]" if t.list else f"{kind}{'?' if t.nullable or t.unread else ''}"


def schema(op: Op, backward: bool) -> Schema:
    return _schema(op, backward)


_schema = functools.cache(Schema)


def wanted(call: Call, given: Given, i: int) -> bool:
    """True if an output is computed."""
    t = call.outputs[i]
    if t.use == "gradient":
        return bool(given.mask >> i & 1)
    if t.use == "saved":
        return bool(given.mask)
    if t.place_of:
        return given.tensors[[x.name for x in call.inputs].index(t.place_of)] is not None
    return True
