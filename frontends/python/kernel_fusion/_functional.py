# SPDX-License-Identifier: Apache-2.0
"""Functions and signatures for frameworks whose results are new tensors."""

import functools
import inspect

from kernel_fusion import _arguments, _table
from kernel_fusion._table import Op

PREFIX = "fused_"


def left_out(op: Op) -> tuple[str, ...]:
    """Arguments of kf.ops that overwrite or add to existing memory, or return statistics."""
    lse = ("return_lse",) if op.forward.lse is not None else ()
    return ("out", "grads", *lse, *op.forward.betas)


@functools.cache
def signature(op: Op, activation: str) -> inspect.Signature:
    found = _arguments.signature(op, activation)
    kept = [p for name, p in found.parameters.items() if name not in left_out(op)]
    return found.replace(parameters=kept)


def has(name: str) -> bool:
    """True if a function exists: ops that overwrite inputs have none."""
    return name in _table.functions() and not _table.functions()[name][0].forward.updates


def target(alias: str) -> str | None:
    """Returns the function that an alias calls, or None if there is none."""
    found = _table.aliases().get(alias)
    if found is None:
        return None
    op, activation = _table.find(found["op"], found["activation"])
    return op.word(activation) if has(op.word(activation)) else None


def names() -> list[str]:
    """Names of all functions and aliases."""
    return sorted({*filter(has, _table.functions()), *filter(target, _table.aliases())})


def spelled(name: str) -> str | None:
    """Returns the function or alias of a name that may begin with fused_, or None."""
    own = (name, name.removeprefix(PREFIX))
    return next((n for n in own if has(n) or target(n)), None)
