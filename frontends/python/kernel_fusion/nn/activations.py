# SPDX-License-Identifier: Apache-2.0
"""A module per activation, generated from the op table, with the stub activations.pyi."""

import inspect
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _classes, _dispatch, _table
from kernel_fusion._table import Value


def only(module: str, **given: Any) -> None:
    """Refuses values of arguments that kf does not support.

    Args:
        given: {name: (value, supported values...)}.
    """
    for name, (value, *known) in given.items():
        if value not in known:
            raise ValueError(
                f"kf.nn.{module}: {name} is {value}, expected {' or '.join(map(str, known))}"
            )


def _attribute(base: type[torch.nn.Module], activation: str, scalar: str) -> str:
    """Returns torch.nn's name of a scalar: elu_alpha is ELU's alpha."""
    return (
        scalar
        if scalar in inspect.signature(base).parameters
        else scalar.removeprefix(f"{activation}_")
    )


def _torch_subclass(
    name: str, activation: str, scalars: tuple[Value, ...]
) -> type[torch.nn.Module]:
    """Makes a subclass of torch.nn's module of that name."""
    base: Any = getattr(torch.nn, name)
    function, names = (
        _dispatch.lookup(activation),
        {s.name: _attribute(base, activation, s.name) for s in scalars},
    )
    fixed = {
        p.name: p.default
        for p in inspect.signature(base).parameters.values()
        if p.name not in (*names.values(), "inplace")
        and p.kind is p.POSITIONAL_OR_KEYWORD
        and p.default is not p.empty
    }

    class Module(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            # Hardtanh's min_value, an alias of min_val, is no attribute.
            only(name, **{n: (getattr(self, n, default), default) for n, default in fixed.items()})

        def forward(self, input: Tensor) -> Any:
            return function(
                input, **{scalar: float(getattr(self, own)) for scalar, own in names.items()}
            )

    return Module


def _module(name: str, activation: str, scalars: tuple[Value, ...]) -> type[torch.nn.Module]:
    """Makes a module of an activation that torch.nn lacks."""
    function, defaults = _dispatch.lookup(activation), {s.name: s.default for s in scalars}

    class Module(torch.nn.Module):
        def __init__(self, **kwargs: float):
            super().__init__()
            unknown = kwargs.keys() - defaults
            if unknown:
                raise TypeError(
                    f"kf.nn.{name} has no {sorted(unknown)[0]}; its arguments: "
                    f"{', '.join(defaults) or 'none'}"
                )
            self.scalars = defaults | kwargs

        def forward(self, input: Tensor) -> Any:
            return function(input, **self.scalars)

        def extra_repr(self) -> str:
            return ", ".join(f"{n}={v}" for n, v in self.scalars.items())

    return Module


def _gelu() -> type[torch.nn.Module]:
    functions = {"none": _dispatch.lookup("gelu"), "tanh": _dispatch.lookup("gelu_tanh")}

    class Module(torch.nn.GELU):
        def __init__(self, approximate: str = "none"):
            super().__init__(approximate)
            only("GELU", approximate=(approximate, *functions))

        def forward(self, input: Tensor) -> Any:
            return functions[self.approximate](input)

    return Module


def _make(name: str, activation: str) -> type[torch.nn.Module]:
    scalars = _table.find("act", activation)[0].scalars[activation]
    made = (
        _gelu()
        if name == "GELU"
        else (_torch_subclass if hasattr(torch.nn, name) else _module)(name, activation, scalars)
    )
    made.__name__ = made.__qualname__ = name
    made.__module__ = __name__
    instead = f", a replacement of torch.nn.{name}" if hasattr(torch.nn, name) else ""
    made.__doc__ = f"kf.ops.{activation} as a module{instead}."
    return made


globals().update(
    {name: _make(name, activation) for name, activation in _classes.activations().items()}
)
__all__ = list(_classes.activations())
