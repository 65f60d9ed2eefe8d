# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops: each dispatches on its first argument to PyTorch, a GPU array, or NumPy."""

import difflib
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

from kernel_fusion import _adapted, _arguments, _docs, _norms, _spellings, _table

# torch.Tensor and kf's functions for it, once both are imported. A program that has not imported
# torch passes no tensors.
TENSOR: Any = ()
TORCH: Any = None


def look_for_torch() -> None:
    global TENSOR, TORCH
    if TORCH is None and "torch" in sys.modules:
        found = importlib.import_module("kernel_fusion.torch")
        TENSOR = sys.modules["torch"].Tensor
        # Assigned last: another thread that sees TORCH reads TENSOR.
        TORCH = found


def module_of(x: Any) -> Any:
    """Returns the module whose functions take an array; None for arrays that only kf reads."""
    if isinstance(x, TENSOR):
        return TORCH.torch
    name = type(x).__module__.partition(".")[0]
    return sys.modules[name] if name in ("numpy", "cupy") and hasattr(x, "dtype") else None


def _is_tensor(x: Any) -> bool:
    """True for torch.Tensor and its subclasses, before kernel_fusion.torch is imported."""
    return isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ()))


def _arrays(op: _table.Op, activation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the op for NumPy arrays or for GPU arrays, whichever the first array is."""
    from kernel_fusion import _gpu_array, _gpu_calls, _numpy, _updates

    arguments = _arguments.bind(op, activation, args, kwargs)
    if op.forward.updates:
        return _updates.call(op, activation, arguments)
    return (_gpu_calls if _gpu_array.is_one(arguments.tensors[0]) else _numpy).call(
        op, activation, arguments
    )


def make(op: _table.Op, activation: str) -> Callable[..., Any]:
    leading, where = op.forward.inputs[0], op.display_name(activation)
    first, is_list = leading.name, leading.list
    of_torch = TORCH.function(op, activation) if TORCH else None
    spelled = _spellings.keywords(op, activation)
    check = _spellings.refuse_positions(op, activation)
    forgotten = _forgotten(op, activation)
    adapt, reorder = _adapted.of(op, module_of), _norms.reader(op, activation)

    def function(*args: Any, **kwargs: Any) -> Any:
        nonlocal of_torch
        if check:
            check(args)
        if spelled and kwargs:
            kwargs = renamed(where, spelled, kwargs)
        if reorder:
            args, kwargs, shape = reorder(args, kwargs)
            if shape is not None:
                given = _norms.named(op, activation, args, kwargs)
                return _norms.flattened(op, where, function, given, shape)
        if forgotten:
            forgotten(args, kwargs)
        if adapt:
            args, kwargs, shape = adapt(args, kwargs)
            if shape is not None:
                return function(*args, **kwargs).reshape(shape)
        x = args[0] if args else kwargs.get(first)
        if is_list and isinstance(x, (list, tuple)):
            x = x[0] if x else None
        if isinstance(x, TENSOR):
            if of_torch is None:
                of_torch = TORCH.function(op, activation)
            return of_torch(*args, **kwargs)
        if TORCH is None and _is_tensor(x):
            look_for_torch()
            return function(*args, **kwargs)
        return _arrays(op, activation, args, kwargs)

    function.__name__ = function.__qualname__ = op.word(activation)
    function.__module__ = "kernel_fusion.ops"
    function.__doc__ = _docs.of(op, activation)
    function.__signature__ = _arguments.signature(op, activation)  # type: ignore[attr-defined]
    return function


# {role of a number that a loop of updates changes (Value.changes): what callers pass}.
CHANGING = {"step": "the number of the update, from 1 on", "seed": "a number of your own"}


def _forgotten(
    op: _table.Op, activation: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], None] | None:
    """Makes the function that warns of a default that makes all updates of a loop the first one."""
    values = [v for v in op.forward.integers if v.changes]
    if not (op.forward.updates and op.forward.lists and values):
        return None
    where, placed = (
        op.display_name(activation),
        list(_arguments.signature(op, activation).parameters),
    )

    def warn(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if TORCH is not None and TORCH.torch.compiler.is_compiling():
            return
        for v in values:
            if v.name not in kwargs and len(args) <= placed.index(v.name):
                text = f"{where}: {v.name} is not given, {v.default:g} is used: pass"
                warnings.warn(f"{text} {CHANGING[v.changes]}", stacklevel=3)

    return warn


def renamed(where: str, of: dict[str, str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments under the function's own names."""
    found: dict[str, Any] = {}
    for name, value in kwargs.items():
        own = of.get(name, name)
        if own in found:
            raise TypeError(f"{where}: {own} is given twice, once under another name")
        found[own] = value
    return found


def alias_of(
    found: dict[str, Any],
    of: Callable[[str], Callable[..., Any]],
    module: str = "kernel_fusion.ops",
) -> Callable[..., Any]:
    """Makes a function of another spelling, with its own argument names and order.

    Args:
        of: returns a function by its name.
        module: the alias's module.
    """
    op, activation = _table.find(found["op"], found["activation"])
    function, words = (of(op.word(activation)), [(a["name"], a["of"]) for a in found["arguments"]])
    names, meant, where = [w for w, _ in words], dict(words), f"kf.{found['name']}"
    shape = names.index(_spellings.SHAPE) if _spellings.SHAPE in names else None
    check = _spellings.refuse_positions(op, activation)

    def alias(*args: Any, **kwargs: Any) -> Any:
        if check:
            check(args)
        if shape is not None and len(args) > shape and not _spellings.is_shape(args[shape]):
            args = (*args[:shape], None, *args[shape:])
        if len(args) > len(names) or any(n in kwargs for n in names[: len(args)]):
            raise TypeError(f"{where} takes {', '.join(names)}, each once")
        given = renamed(where, meant, dict(zip(names, args)) | kwargs)
        named = given.pop(_spellings.SHAPE, None) if shape is not None else None
        given = {**found["defaults"], **given}
        if named is None or "x" not in given:
            return function(**given)
        return _norms.flattened(op, where, function, given, named)

    alias.__name__ = alias.__qualname__ = found["name"]
    alias.__module__ = module
    alias.__doc__ = (
        f"{op.word(activation)}({', '.join(f'{o}={n}' for n, o in words)}).\n\n{function.__doc__}"
    )
    return alias


_made: dict[str, Callable[..., Any]] = {}


def composed() -> dict[str, Callable[..., Any]]:
    """Returns {name: function} of _composed.py."""
    functions: dict[str, Callable[..., Any]] = importlib.import_module(
        "kernel_fusion._composed"
    ).FUNCTIONS
    return functions


def plain(name: str, label: str = "") -> Callable[..., Any]:
    """Returns the function of one op.

    Args:
        label: name of the op in error messages.
    """
    look_for_torch()
    op, activation = _table.functions()[name]
    return make(op.labelled(label), activation)


def near(name: str) -> str:
    """Returns a question that names the most similar function; empty without one."""
    found = difflib.get_close_matches(name, names(), n=1)
    return f"did you mean `{found[0]}`? " if found else ""


def lookup(name: str) -> Callable[..., Any]:
    """Returns a function of kf.ops by its name or an alias."""
    if name not in _made:
        if name in composed():
            _made[name] = composed()[name]
        elif name in _table.functions():
            _made[name] = plain(name)
        elif name in _table.aliases():
            _made[name] = alias_of(_table.aliases()[name], lookup)
        else:
            lacks = _table.lacks(name) or f"{near(name)}dir(kf.ops) lists all functions"
            raise AttributeError(f"kf.ops has no `{name}`; {lacks}")
    return _made[name]


def overwrites(name: str) -> bool:
    """True if a function, or that of an alias, overwrites its arguments or takes lists of them."""
    found = _table.aliases().get(name)
    op = _table.find(found["op"], found["activation"])[0] if found else None
    op = op or (_table.functions()[name][0] if name in _table.functions() else None)
    return op is not None and (op.forward.updates or op.forward.lists)


def names() -> list[str]:
    return sorted({*_table.functions(), *_table.aliases(), *composed(), "call"})


def word(name: str, activation: str | None = None) -> str:
    """Returns the name of a kf.ops function, given any name of its op and an activation."""
    op, act = _table.find(name, activation)
    return op.word(act)


def has(name: str, activation: str) -> bool:
    """True if the op has functions with this activation."""
    return activation in _table.ops()[name].activations


# torch.compile calls these functions instead of tracing them: they are constant for given names.
for _constant in (word, has):
    setattr(_constant, "_dynamo_marked_constant", True)  # noqa: B010
