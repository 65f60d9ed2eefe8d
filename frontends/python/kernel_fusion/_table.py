# SPDX-License-Identifier: Apache-2.0
"""The ops of kf (ops.json, written by kfgen).

Independent of frameworks: a dtype is kf's name; _sizes.py has the sizes and shapes of a call.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfgen import paths
from kfgen.model import names
from kfgen.model import shapes as data

from kernel_fusion._sizes import Layout, Rules, Shape, lines

HERE = pathlib.Path(__file__).resolve().parent
# Dtype of sums and of row values.
WIDE = {"f32": "f32", "f16": "f32", "bf16": "f32", "f64": "f64", "i32": "f32", "i64": "f32"}
INTEGERS = ("i32", "i64")


@dataclass(frozen=True)
class Tensor:
    """A tensor argument of a call, with the fields of kfgen's manifest."""

    name: str
    role: str
    use: str
    of: str
    kind: str
    extents: tuple[Any, ...]  # one per dimension of the function's argument: _sizes.Extent
    lines: tuple[Any, ...]  # _sizes.lines
    var: str
    absent: float | str | None  # a number, or a description
    place_of: str
    same_as: str  # gradients: an earlier gradient that is equal
    unchanged: str  # gradients: the incoming gradient it equals
    strides: tuple[str, ...]
    accumulated: bool
    nullable: bool
    below: str  # indices: the size that bounds them; else empty
    unread: frozenset[str]  # activations whose gradient does not read the tensor
    # Activations whose gradient may use the result: the backward then takes the result instead of
    # its other inputs with this mark.
    by_result: frozenset[str]
    list: bool  # a list of tensors


@dataclass(frozen=True)
class Value:
    """A scalar or integer argument."""

    name: str
    default: float | None
    least: float | None
    most: float | None
    # Other scalars as bounds, where least or most is None; empty without.
    least_of: str = ""
    most_of: str = ""
    changes: str = ""  # "step" or "seed" of a loop, for which a default is no good; else empty
    rsqrt_of: str = ""  # the size n of the default 1 / sqrt(n), which replaces `default`


class Activations(NamedTuple):
    """Properties of activations by name."""

    numbers: dict[str, int]  # ids of the ABI
    scalars: dict[str, tuple[Value, ...]]
    # Indices of scalars that must not be negative for a gradient by the result.
    rising: dict[str, tuple[int, ...]]


IDENTITY = Activations({"none": 0}, {"none": ()}, {"none": ()})


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
    # Factors of the old values of results that are accumulated; they follow all scalars but p.
    betas: tuple[str, ...]
    shaped_by: tuple[str, ...]  # inputs that determine the sizes jointly, if several do
    backends: tuple[str, ...]  # "cuda", "c"

    @functools.cached_property
    def template(self) -> Tensor:
        """Tensor whose shape determines the sizes.

        If several do, the one with the op's dtype, to which errors compare the others.
        """
        if self.shaped_by:
            say = [t for name in reversed(self.shaped_by) for t in self.inputs if t.name == name]
            return next((t for t in say if t.var == "T"), say[0])
        whole = sorted((t for t in self.inputs if t.kind in ("elem", "half")), key=lambda t: t.kind)
        if self.lists:
            return next(t for t in self.inputs if t.list and t.var == "T")
        return next((t for t in whole if not t.unread and not t.by_result), whole[0])

    @functools.cached_property
    def lists(self) -> bool:
        """True if the call takes lists of tensors."""
        return any(t.list for t in self.inputs)

    @functools.cached_property
    def updates(self) -> bool:
        """True if the call overwrites inputs."""
        return any(t.role == "inout" for t in self.inputs)

    @functools.cached_property
    def lse(self) -> int | None:
        """Index of the output that `return_lse` makes a result, if there is one."""
        saved = (i for i, t in enumerate(self.outputs) if (t.name, t.use) == ("lse", "saved"))
        return next(saved, None)

    @functools.cached_property
    def given(self) -> frozenset[str]:
        """Names of the results whose gradients a backward takes."""
        return frozenset(t.of for t in self.inputs if t.use == "gradient")

    @functools.cached_property
    def shaping(self) -> tuple[Tensor, ...]:
        """Inputs whose shapes determine the sizes."""
        named = {t.name: t for t in self.inputs}
        return tuple(named[name] for name in self.shaped_by) or (self.template,)

    @functools.cached_property
    def reads_integers(self) -> bool:
        """True if some extent depends on an integer argument."""
        names = {v.name for v in self.integers}
        return any(
            name in names
            for t in (*self.inputs, *self.outputs)
            for extent in t.extents
            for name in data.names(extent)
        )

    @functools.cached_property
    def results(self) -> list[int]:
        """Indices of the outputs that callers receive."""
        return [i for i, t in enumerate(self.outputs) if t.use == "output" and not t.place_of]

    def kept(self, return_lse: bool) -> list[int]:
        """Indices of the outputs that a call returns."""
        return [*self.results, *([self.lse] if return_lse and self.lse is not None else [])]

    def values(self, given: Sequence[float], dropout: bool, beta: float = 0.0) -> Sequence[float]:
        """Scalars in the launcher's order; beta = 0 does not read the old values."""
        if not self.betas:
            return given
        end = len(given) - dropout
        return (*given[:end], *[beta] * len(self.betas), *given[end:])


@dataclass(frozen=True, eq=False)
class Op:
    """An op, as kfgen.interfaces.frontend describes it."""

    name: str
    pattern: str
    brief: str
    source: str
    reduces: bool  # results lack the axis
    axis_may_be_none: bool  # without an axis, all dimensions are one axis
    decomposes: bool  # torch.compile may see the statements instead of the op
    rules: Rules  # how tensors' dimensions determine the sizes
    any_order: bool  # dimensions may be permuted, but for the axis: the results are the same
    dropout: bool
    empty: str
    beside: dict[str, str]  # {size: another size}: 0 beside a number is refused
    autocast: str  # low, float32, promote or same
    activations: tuple[str, ...]
    integer_activations: tuple[str, ...]
    variables: dict[str, str]  # {type variable: tensors that have it}, T first
    types: tuple[dict[str, str], ...]  # {type variable: dtype} of each forward function
    asked: str  # type variable whose dtype is an argument of calls; empty: none
    forward: Call
    backward: Call | None
    # The op that computes results and their gradients in one call, if this op has no backward.
    with_grad: str = ""
    # {activation: its id, which calls of the PyTorch op have}.
    numbers: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, tuple[Value, ...]] = field(default_factory=dict)  # {activation: its scalars}
    label: str = ""  # name in messages, if not the op's own
    # Library of the functions, if not the package's: _compiled.Own.
    own: Any = None
    # {activation: indices of scalars that must not be negative for a gradient by the result}.
    rising: dict[str, tuple[int, ...]] = field(default_factory=dict)
    formulas: dict[str, list[list[str]]] | None = None  # user-made ops: as in formulas.json
    # The rules of tensors whose last dimension is the axis, if `rules` are not also theirs.
    channels_last: Rules | None = None

    @functools.cached_property
    def has_act(self) -> bool:
        return "{act}" in self.pattern

    @functools.cached_property
    def numbered(self) -> dict[int, str]:
        """Returns {id: activation}."""
        return {number: name for name, number in self.numbers.items()}

    @functools.cached_property
    def axis(self) -> int | None:
        """Default axis."""
        return self.rules.axis

    @functools.cached_property
    def has_axis(self) -> bool:
        """True if callers choose the axis."""
        return self.rules.has_axis

    @functools.cached_property
    def has_groups(self) -> bool:
        return "groups" in self.rules.arguments

    @functools.cached_property
    def is_flat(self) -> bool:
        """True if the only size is the number of elements."""
        return list(self.rules.sizes.values()) == [data.REST]

    @functools.cached_property
    def added(self) -> tuple[str, ...]:
        """Operands whose gradients may be accumulated into an existing tensor."""
        return tuple(t.of for t in self.backward.outputs if t.accumulated) if self.backward else ()

    @functools.cached_property
    def act_scalars(self) -> int:
        """Maximum number of scalars of the op's activations."""
        return max(len(s) for s in self.scalars.values())

    @functools.cached_property
    def dtypes(self) -> frozenset[tuple[str, ...]]:
        """Dtypes in the names of the forward functions."""
        return frozenset(names.words(t) for t in self.types)

    @functools.cached_property
    def further(self) -> tuple[str, ...]:
        """Type variables besides T."""
        return tuple(v for v in self.variables if v != "T")

    def labelled(self, label: str) -> "Op":
        """Returns the op with another name in messages, unless that is empty."""
        return dataclasses.replace(self, label=label) if label else self

    def word(self, activation: str) -> str:
        """Public name of the op with this activation."""
        return str(names.fill(self.pattern, activation))

    def display_name(self, activation: str) -> str:
        """Name that begins an error message."""
        return f"kf.{self.label or self.word(activation) or activation}"

    def function(self, activation: str, dtypes: tuple[str, ...], backward: bool) -> str:
        return str(names.function(self.pattern, activation, dtypes, backward))

    def exists(self, activation: str, dtypes: tuple[str, ...], backward: bool) -> bool:
        """True if there is a function for these; integers have few activations, no gradients."""
        if backward and self.backward is None:
            return False
        integer = dtypes[0] in INTEGERS
        return not integer or (not backward and activation in self.integer_activations)

    def direction(self, backward: bool) -> Call:
        call = self.backward if backward else self.forward
        assert call is not None
        return call

    def lay_out(
        self,
        call: Call,
        shapes: Mapping[str, Shape],
        axis: int = -1,
        groups: int = 1,
        integers: Sequence[int] = (),
        last: bool = False,
    ) -> Layout:
        """Computes sizes and shapes from those of the tensors that determine the sizes.

        Args:
            last: True for the rules of tensors whose channels are last.
        """
        rules = self.channels_last if last and self.channels_last else self.rules
        numbers = {"groups": groups} | {v.name: n for v, n in zip(call.integers, integers)}
        return Layout(
            rules, call.shaping, [shapes.get(t.name) for t in call.shaping], axis, numbers
        )


def _call(found: dict[str, Any], shaped_by: Sequence[str]) -> Call:
    made = [
        Tensor(
            **{
                **t,
                "extents": tuple(t["extents"]),
                "lines": lines(t["extents"], found["sizes"]),
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
        tuple(t for t in made if t.role in ("in", "inout")),
        tuple(t for t in made if t.role not in ("in", "inout")),
        sizes,
        strides,
        found["workspace"],
        betas=betas,
        shaped_by=tuple(shaped_by),
        backends=tuple(found["backends"]),
        **values,
    )


def entry(
    found: dict[str, Any], acts: Activations, label: str = "", own: Any = None, formulas: Any = None
) -> Op:
    """An op of what kfgen.interfaces.frontend says of it."""
    same = {
        k: found[k]
        for k in (
            "name",
            "pattern",
            "brief",
            "source",
            "reduces",
            "axis_may_be_none",
            "any_order",
            "decomposes",
            "dropout",
            "empty",
            "beside",
            "autocast",
            "asked",
        )
    }

    def rules(of: Any) -> Rules:
        sizes = {size: of[size] for size in found["forward"]["sizes"]}
        return Rules(sizes, found["axis"], found["defaults"])

    return Op(
        **same,
        rules=rules(found["rules"]),
        channels_last=rules(found["channels_last"]) if found["channels_last"] else None,
        activations=tuple(found["activations"]),
        integer_activations=tuple(found["integer_activations"]),
        variables={v["name"]: v["of"] for v in found["variables"]},
        types=tuple(found["types"]),
        forward=_call(found["forward"], found["shaped_by"]),
        backward=_call(found["backward"], found["shaped_by"]) if found["backward"] else None,
        with_grad=found["with_grad"],
        numbers={a: acts.numbers[a] for a in found["activations"]},
        scalars={a: acts.scalars[a] for a in found["activations"]},
        rising={a: acts.rising[a] for a in found["activations"]},
        label=label,
        own=own,
        formulas=formulas,
    )


@functools.cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "ops.json").read_text())
    return found


def activations_of(table: dict[str, Any]) -> Activations:
    """Returns the activations of a table that kfgen.interfaces.frontend made."""
    found = table["activations"]
    return Activations(
        {name: a["id"] for name, a in found.items()},
        {name: tuple(Value(**v) for v in a["scalars"]) for name, a in found.items()},
        {
            name: tuple(i for i, v in enumerate(a["scalars"]) if v["name"] in a["rising"])
            for name, a in found.items()
        },
    )


@functools.cache
def activations() -> dict[str, int]:
    """Returns {name: id} of kf's activations, with the ids of the ABI."""
    return activations_of(_read()).numbers


@functools.cache
def ops() -> dict[str, Op]:
    """Returns {name: op}."""
    acts = activations_of(_read())
    return {found["name"]: entry(found, acts) for found in _read()["ops"]}


@functools.cache
def _formulas() -> dict[str, dict[str, list[list[str]]]]:
    found: dict[str, dict[str, list[list[str]]]] = json.loads((HERE / "formulas.json").read_text())
    return found


def formulas(op: Op, activation: str) -> list[list[str]] | None:
    """Returns the PyTorch statements of both directions, or None if they are not differentiable."""
    found = op.formulas if op.own else _formulas().get(op.name, {})
    return found.get(activation)  # type: ignore[union-attr]


@functools.cache
def functions() -> dict[str, tuple[Op, str]]:
    """Returns {public name: (op, activation)}; kf.load adds to it."""
    return {op.word(act): (op, act) for op in ops().values() for act in op.activations}


def display_name_of(function: str) -> str:
    """Name in messages of a C function; slow, for failed calls only."""
    for op in ops().values():
        for activation in op.activations:
            for dtypes in op.dtypes:
                if function in (
                    op.function(activation, dtypes, False),
                    op.function(activation, dtypes, True),
                ):
                    backward = function == op.function(activation, dtypes, True)
                    return f"{op.display_name(activation)}{' (backward)' if backward else ''}"
    return "kf"


@functools.cache
def aliases() -> dict[str, dict[str, Any]]:
    """Returns {alias: op, activation, arguments, defaults}."""
    return {a["name"]: a for a in _read()["aliases"]}


def abi() -> int:
    version: int = _read()["abi"]
    return version


@functools.cache
def generator() -> str:
    """Digest of everything kernels are generated from: at the package's build, which saves reading
    the files again, or of an editable installation's files as they are now.
    """
    return str(_read()["generator"]) if paths.INSTALLED else str(paths.digest())


@functools.cache
def lacks(name: str) -> str:
    """Returns why no function has this name, if only the op's activation is another one."""
    for op in ops().values():
        for activation in activations() if "{act}" in op.pattern else ():
            if names.fill(op.pattern, activation) == name:
                return f"{op.name} has no {activation}; it has: {', '.join(op.activations)}"
    return ""


def find(name: str, activation: str | None = None) -> tuple[Op, str]:
    """Finds an op by name, pattern or function name; returns it with the activation."""
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
    raise ValueError(f"kf: there is no op `{name}`, expected one of {', '.join(ops())}")
