# SPDX-License-Identifier: Apache-2.0
"""The ops there are, as kfgen wrote them down (ops.json), and what follows for tensors of any number of dimensions: sizes and shapes. No framework:
a shape is any sequence of numbers, symbolic ones included, a dtype is kf's word for it."""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfgen import names

HERE = pathlib.Path(__file__).resolve().parent
WIDE = {
    "f32": "f32",
    "f16": "f32",
    "bf16": "f32",
    "f64": "f64",
    "i32": "f32",
    "i64": "f32",
}  # what is summed, and a row's values
Shape = Sequence[int]


@dataclass(frozen=True)
class Tensor:
    """A tensor argument of a call: its fields are those of kfgen's manifest."""

    name: str
    role: str
    use: str
    of: str
    kind: str
    shape: tuple[str, ...]
    var: str
    absent: float | str | None  # a number, or what stands for it in words
    place_of: str
    same_as: str  # of a gradient: an earlier one that is equal
    unchanged: str  # of a gradient: the incoming one that it is as it is
    strides: tuple[str, ...]
    accumulated: bool
    nullable: bool
    unread: frozenset[str]  # activations whose gradient does not read it
    by_result: frozenset[
        str
    ]  # activations whose gradient may be by their result: of a backward, which has that for its other inputs so marked


@dataclass(frozen=True)
class Value:
    name: str
    default: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, eq=False)
class Call:
    """One direction of an op."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    workspace: bool
    integers: tuple[Value, ...]
    scalars: tuple[Value, ...]
    betas: tuple[
        str, ...
    ]  # how much of what is there results are added to: behind all scalars but p
    shaped_by: tuple[str, ...]  # inputs that say the sizes between them, where it takes several

    @functools.cached_property
    def template(self) -> Tensor:
        """The tensor whose shape the sizes are read from, or of several the one that others are compared with, which is of the op's dtype."""
        if self.shaped_by:
            say = [t for name in reversed(self.shaped_by) for t in self.inputs if t.name == name]
            return next((t for t in say if t.var == "T"), say[0])
        whole = sorted((t for t in self.inputs if t.kind in ("elem", "half")), key=lambda t: t.kind)
        return next((t for t in whole if not t.unread and not t.by_result), whole[0])

    @functools.cached_property
    def results(self) -> list[int]:
        """Numbers of the outputs that callers get: not what is saved, nor what goes to an input's place."""
        return [i for i, t in enumerate(self.outputs) if t.use == "output" and not t.place_of]

    def values(self, given: Sequence[float], dropout: bool, beta: float = 0.0) -> Sequence[float]:
        """Scalars as the launcher takes them. beta: 0 does not read what is there."""
        if not self.betas:
            return given
        end = len(given) - dropout
        return (*given[:end], *[beta] * len(self.betas), *given[end:])


@dataclass(frozen=True, eq=False)
class Op:
    name: str
    pattern: str
    brief: str
    source: str
    family: str
    axis: int | None
    parts: dict[str, str | int]  # {size: what it is the product of}
    dropout: bool
    empty: str
    autocast: str  # float32, promote, same
    activations: tuple[str, ...]
    integer_activations: tuple[str, ...]
    dtypes: frozenset[tuple[str, ...]]
    second: str  # what the second dtype is of: weights, results
    forward: Call
    backward: Call | None
    with_grad: str = (
        ""  # the op that has its results and their gradients in one call, where it has no backward
    )
    scalars: dict[str, tuple[Value, ...]] = field(default_factory=dict)  # of activations
    label: str = ""  # what messages call it, where that is not its name
    own: Any = (
        None  # the library that has its functions, where that is not the package's: _compiled.Own
    )
    rising: dict[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # the numbers of those that may not be negative for a gradient by the result
    formulas: dict[str, list[list[str]]] | None = None  # of own ops: as in formulas.json

    @functools.cached_property
    def has_act(self) -> bool:
        return "{act}" in self.pattern

    @functools.cached_property
    def has_axis(self) -> bool:
        """Whether callers choose the axis: elsewhere it is the last, or that of the channels which groups are made of."""
        return "after" in self.parts.values() and not self.has_groups

    @functools.cached_property
    def has_groups(self) -> bool:
        return "groups" in self.parts.values()

    @functools.cached_property
    def added(self) -> tuple[str, ...]:
        """Operands whose gradients may be added to what is there."""
        return tuple(t.of for t in self.backward.outputs if t.accumulated) if self.backward else ()

    @functools.cached_property
    def act_scalars(self) -> int:
        """The most that one of its activations has."""
        return max(len(s) for s in self.scalars.values())

    def word(self, activation: str) -> str:
        """Its name with this activation, as users call it."""
        return str(names.fill(self.pattern, activation))

    def said(self, activation: str) -> str:
        """How messages begin."""
        return f"kf.{self.label or self.word(activation) or activation}"

    def function(self, activation: str, dtypes: tuple[str, ...], backward: bool) -> str:
        return str(names.function(self.pattern, activation, dtypes, backward))

    def direction(self, backward: bool) -> Call:
        call = self.backward if backward else self.forward
        assert call is not None
        return call

    def expand(self, call: Call, shape: Shape, axis: int, groups: int) -> "Layout":
        return Layout(self, call, shape, axis, groups)


class Layout:
    """How the tensors of one call lie, from the shape of `call.template`, or from that which several make (_sizes.py): what each size is, and the
    shape of each tensor."""

    def __init__(self, op: Op, call: Call, shape: Shape, axis: int, groups: int):
        self.op, self.call, self.groups = op, call, groups
        self.shape = self._elements(tuple(shape), axis)
        n = len(self.shape)
        self.at = (
            axis if op.has_axis or call.shaped_by else op.axis if op.axis is not None else 0
        ) % max(n, 1)
        self.dims: dict[str, tuple[int, ...]] = {
            s: self._of(what, n) for s, what in op.parts.items()
        }

    def _elements(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        """The shape of an "elem"; of a "half" that is twice as long at the axis, which is the last."""
        least = self.least(self.op)
        if len(shape) < least:
            raise ShapeError(self.call.template.name, shape, f"at least {least} dimensions")
        if self.op.has_axis and not -len(shape) <= axis < len(shape):
            raise ShapeError(self.call.template.name, shape, f"a dimension {axis}, the axis")
        if self.call.template.kind != "half":
            return shape
        if shape[-1] % 2:
            raise ShapeError(self.call.template.name, shape, "an even last dimension: two halves")
        return (*shape[:-1], shape[-1] // 2)

    @staticmethod
    def least(op: Op) -> int:
        """Dimensions that a tensor has at least."""
        fixed = [-what for what in op.parts.values() if isinstance(what, int)]
        return max([*fixed, 0 if op.axis is None else op.axis + 1 if op.axis >= 0 else -op.axis])

    def _of(self, what: str | int, n: int) -> tuple[int, ...]:
        """The dimensions that a size is the product of."""
        if isinstance(what, int):
            return (n + what,)
        of: dict[str, Callable[[], range]] = {
            "all": lambda: range(n),
            "before": lambda: range(self.at),
            "axis": lambda: range(self.at, self.at + 1),
            "after": lambda: range(self.at + 1, n),
            "between": lambda: range(self.at, n - 2),
            "all but three": lambda: range(n - 3),
            "one": lambda: range(0),
            "groups": lambda: range(0),
        }
        return tuple(of[what]())

    def size(self, name: str) -> int:
        if self.op.parts[name] == "groups":
            return self.groups
        found = 1
        for d in self.dims[name]:
            found = found * self.shape[d]
        return found

    @property
    def sizes(self) -> list[int]:
        return [self.size(s) for s in self.call.sizes]

    def of(self, tensor: Tensor) -> tuple[int, ...]:
        """A tensor's shape: the dimensions behind each of its extents."""
        found: list[int] = []
        for extent in tensor.shape:
            factor, _, name = extent.rpartition(" * ")
            if self.op.parts[name] == "groups":
                found.append(self.groups)
            else:
                found += [self.shape[d] * int(factor or 1) for d in self.dims[name]]
        return tuple(found)


class ShapeError(ValueError):
    """A tensor, its shape, and what was expected; who reports it adds the op."""

    def __init__(self, tensor: str, shape: Shape, expected: str):
        super().__init__(f"{tensor} has the shape {tuple(shape)}, expected {expected}")


def _call(found: dict[str, Any], shaped_by: Sequence[str]) -> Call:
    made = [
        Tensor(
            **{
                **t,
                "shape": tuple(t["shape"]),
                "strides": tuple(t["strides"]),
                "unread": frozenset(t["unread"]),
                "by_result": frozenset(t["by_result"]),
            }
        )
        for t in found["tensors"]
    ]
    values = {k: tuple(Value(**v) for v in found[k]) for k in ("integers", "scalars")}
    sizes, strides, betas = (tuple(found[k]) for k in ("sizes", "strides", "betas"))
    return Call(
        tuple(t for t in made if t.role == "in"),
        tuple(t for t in made if t.role != "in"),
        sizes,
        strides,
        found["workspace"],
        betas=betas,
        shaped_by=tuple(shaped_by),
        **values,
    )


def entry(
    found: dict[str, Any],
    scalars: dict[str, tuple[Value, ...]],
    rising: dict[str, tuple[int, ...]],
    label: str = "",
    own: Any = None,
    formulas: Any = None,
) -> Op:
    """An op of what kfgen.frontend says of it."""
    same = {
        k: found[k]
        for k in (
            "name",
            "pattern",
            "brief",
            "source",
            "family",
            "axis",
            "dropout",
            "empty",
            "autocast",
            "second",
        )
    }
    return Op(
        **same,
        parts=found["sizes"],
        activations=tuple(found["activations"]),
        integer_activations=tuple(found["integer_activations"]),
        dtypes=frozenset(tuple(d) for d in found["dtypes"]),
        forward=_call(found["forward"], found["shaped_by"]),
        backward=_call(found["backward"], found["shaped_by"]) if found["backward"] else None,
        with_grad=found["with_grad"],
        scalars={a: scalars[a] for a in found["activations"]},
        rising={a: rising[a] for a in found["activations"]},
        label=label,
        own=own,
        formulas=formulas,
    )


@functools.cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "ops.json").read_text())
    return found


@functools.cache
def activations() -> dict[str, int]:
    """{name: id}, as in the ABI."""
    return {name: a["id"] for name, a in _read()["activations"].items()}


@functools.cache
def ops() -> dict[str, Op]:
    """{name: op}"""
    scalars = {
        name: tuple(Value(**v) for v in a["scalars"]) for name, a in _read()["activations"].items()
    }
    rising = {
        name: tuple(i for i, v in enumerate(a["scalars"]) if v["name"] in a["rising"])
        for name, a in _read()["activations"].items()
    }
    return {found["name"]: entry(found, scalars, rising) for found in _read()["ops"]}


@functools.cache
def _formulas() -> dict[str, dict[str, list[list[str]]]]:
    found: dict[str, dict[str, list[list[str]]]] = json.loads((HERE / "formulas.json").read_text())
    return found


def formulas(op: Op, activation: str) -> list[list[str]] | None:
    """The statements of torch of its two directions, where there are such that may be differentiated again."""
    return (op.formulas if op.own else _formulas().get(op.name, {})).get(activation)  # type: ignore[union-attr]


@functools.cache
def functions() -> dict[str, tuple[Op, str]]:
    """{what users call: (op, activation)}"""
    return {op.word(act): (op, act) for op in ops().values() for act in op.activations}


def said_of(function: str) -> str:
    """How messages about a C function begin: as kf.ops has it. Of a call that failed: thousands of names are made."""
    for op in ops().values():
        for activation in op.activations:
            for dtypes in op.dtypes:
                if function in (
                    op.function(activation, dtypes, False),
                    op.function(activation, dtypes, True),
                ):
                    return f"{op.said(activation)}{' (backward)' if function == op.function(activation, dtypes, True) else ''}"
    return "kf"


@functools.cache
def aliases() -> dict[str, dict[str, Any]]:
    """{another spelling: op, activation, arguments, defaults}"""
    return {a["name"]: a for a in _read()["aliases"]}


def abi() -> int:
    version: int = _read()["abi"]
    return version


def generator() -> str:
    """Of all that kernels are generated from, when this package was made."""
    return str(_read()["generator"])


@functools.cache
def find(name: str, activation: str | None = None) -> tuple[Op, str]:
    """An op by its name, its pattern or one of its functions, with an activation."""
    by_pattern = {op.pattern: op for op in ops().values()}
    op = ops().get(name) or by_pattern.get(name)
    if op:
        chosen = activation or ("none" if "none" in op.activations else None)
        if chosen in op.activations:
            return op, chosen
        raise ValueError(
            f"kf.{name}: activation is {activation}, expected one of {', '.join(op.activations)}"
        )
    if name in functions() and activation is None:
        return functions()[name]
    raise ValueError(f"kf: there is no op `{name}`; those there are: {', '.join(ops())}")
