# SPDX-License-Identifier: Apache-2.0
"""A call of one direction of an op, and its text for C++ code (native/call.h).

The text has the call as JSON, the C function's name, the name that begins error messages, and then
words and numbers. It is all that a graph of a framework has to keep.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kernel_fusion import _compilers, _layout, _library, _plan, _table
from kernel_fusion._table import Op, Tensor


@dataclasses.dataclass(frozen=True)
class Call:
    """A call without its tensors."""

    op: str
    activation: str
    backward: bool
    given: tuple[bool, ...]  # inputs that have a tensor
    wanted: tuple[bool, ...]  # outputs that are computed
    integers: tuple[int, ...]
    scalars: tuple[float, ...]  # the op's, the activation's, then p
    axis: int = -1
    groups: int = 1
    asked: str | None = None  # dtype of the results, if it is an argument
    label: str = ""  # name of the op in messages, if it is another one

    @property
    def of(self) -> Op:
        return _labelled(find(self.op), self.label)

    @property
    def direction(self) -> _table.Call:
        return self.of.direction(self.backward)

    @property
    def where(self) -> str:
        """Name that begins an error message."""
        return f"{self.of.display_name(self.activation)}{' (backward)' if self.backward else ''}"

    @property
    def present(self) -> list[Tensor]:
        """Inputs that have a tensor."""
        return [t for t, given in zip(self.direction.inputs, self.given) if given]

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self) | {"abi": _table.abi()})


@functools.lru_cache(4096)
def parse(line: str) -> Call:
    """Reads `Call.text`, of a graph that may be another version's.

    Raises:
        ValueError: another version of kf, with other signatures, made the graph.
    """
    found: dict[str, Any] = json.loads(line)
    abi = found.pop("abi")
    if abi != _table.abi():
        raise ValueError(
            f"kf.{found['op']}: the graph has ABI version {abi}, expected {_table.abi()}: trace "
            f"the function and save it again"
        )
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    return Call(**given)


_own: dict[str, Op] = {}  # ops of kf.load


def find(name: str) -> Op:
    found = _table.ops().get(name) or _own.get(name)
    if found is None:  # a saved graph may call an op that this program has not made yet
        from kernel_fusion import _composed

        for function in _composed.OWN_OPS:
            add(_composed.own_op(function).op)
        found = _own.get(name)
    if found is None:
        raise ValueError(f"kf.{name}: the graph's op does not exist here: load it with kf.load")
    return found


_as: dict[tuple[str, str], Op] = {}  # {(op, label): op under the label}


def _labelled(op: Op, label: str) -> Op:
    if label == op.label or not label:
        return op
    found = _as.get((op.name, label))
    if found is None:
        found = _as[op.name, label] = op.labelled(label)
    return found


def add(op: Op) -> None:
    """Makes an op of kf.load known by its name."""
    if op.own:
        _own[op.name] = op


def library_of(line: str, function: str, on_gpu: bool = False) -> Any:
    """Returns the library of a call's function, compiled at its first call.

    Raises:
        RuntimeError: there is no compiler, it failed, or KF_OFFLINE forbids it.
    """
    call = parse(line)
    functions = _library.of(call.of)
    library = (functions.on_gpu if on_gpu else functions).library_of(function)
    if not hasattr(library, "address"):
        raise RuntimeError(
            f"{call.where}: C++ calls compiled functions, and no C compiler was found: "
            f"{_compilers.HOW}"
        )
    return library


def variables_of(call: Call, words: Sequence[str]) -> dict[str, str]:
    """Returns the dtype of each type variable, from the dtypes of the tensors.

    Raises:
        TypeError: a tensor is missing, or the dtypes have no function.
    """
    direction, own = call.direction, iter(words)
    given = [((), next(own)) if has else None for has in call.given]
    _plan.check_present(call.where, direction, call.activation, given)
    found = _plan.variables_of(call.of, call.activation, direction, call.where, given, call.asked)
    _plan.check_dtypes(call.where, direction, given, found)
    return found


def function_of(call: Call, variables: Mapping[str, str]) -> str:
    """Returns the C function's name."""
    return call.of.function(call.activation, _plan.words_of(call.of, variables), call.backward)


def text_of(call: Call, variables: Mapping[str, str]) -> str:
    numbers = " ".join(map(str, _numbers(call, variables)))
    return "\n".join([call.text(), function_of(call, variables), call.where, numbers])


@functools.lru_cache(4096)
def described(call: Call, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Returns (text of the call, dtypes of its results), with its function compiled.

    Args:
        words: dtypes of the tensors.
    """
    variables = variables_of(call, words)
    library_of(call.text(), function_of(call, variables))
    results = [t for t, wanted in zip(call.direction.outputs, call.wanted) if wanted]
    return text_of(call, variables), tuple(variables.get(t.var, t.var) for t in results)


def _numbers(call: Call, variables: Mapping[str, str]) -> list[Any]:
    """Words and numbers in the order of native/call.h."""
    op, direction = call.of, call.direction
    scalars = direction.values(call.scalars, op.dropout)
    codes: list[int] = []
    tensors: list[Any] = []
    for own, there in ((direction.inputs, call.given), (direction.outputs, call.wanted)):
        tensors.append(len(own))
        for t, at in zip(own, _places(there)):
            tensors += _tensor(call, t, at, variables, codes)
    return [
        sum(call.given) if op.dropout else -1,
        int(direction.workspace),
        call.axis if call.of.has_axis else call.of.axis or 0,
        call.groups,
        direction.inputs.index(direction.template),
        *_list([direction.inputs.index(t) for t in direction.shaping]),
        *_list(call.integers),
        *_list([float(x).hex() for x in scalars]),
        *_rules(call, codes),
        len(direction.strides),
        *tensors,
    ]


def _list(values: Sequence[Any]) -> list[Any]:
    return [len(values), *values]


def _places(there: Sequence[bool]) -> list[int]:
    """Returns the index of each tensor among those that are there, or -1."""
    return [sum(there[:i]) if own else -1 for i, own in enumerate(there)]


def _rules(call: Call, codes: Sequence[int]) -> list[int]:
    names = [v.name for v in call.direction.integers]
    found = _layout.rules(call.of.rules, codes, names, call.of.beside)
    defaults = [call.of.rules.defaults.get(name, 0) for name in names]
    return [
        found.sizes,
        *call.of.rules.sizes,
        *found.count[: found.sizes],
        *found.divides[: found.sizes],
        found.least,
        found.has_axis,
        found.joined,
        *_list(codes),
        *_list(defaults if found.defaults else []),
        *_list(found.beside[: found.sizes] if found.beside else []),
    ]


def _tensor(
    call: Call, t: Tensor, at: int, variables: Mapping[str, str], codes: list[int]
) -> list[Any]:
    """Describes a tensor; appends the codes of its extents."""
    direction = call.direction
    layout = _layout.tensor(
        t.extents,
        list(call.of.rules.sizes),
        [v.name for v in direction.integers],
        codes,
        len(t.strides),
        direction.strides.index(t.strides[0]) if t.strides else 0,
    )
    extents = layout.extent[: layout.extents]
    return [
        *(t.name, at, int(call.activation not in t.unread), variables.get(t.var, t.var)),
        *(layout.levels, layout.field, layout.extents),
        *(n for x in extents for n in (x.size, x.factor, x.addend, x.code)),
    ]
