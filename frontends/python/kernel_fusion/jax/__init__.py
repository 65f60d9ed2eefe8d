# SPDX-License-Identifier: Apache-2.0
"""kf's ops for JAX by name, such as kernel_fusion.jax.bias_gelu(x, bias).

The functions are those of kf.ops, except for ops that overwrite their arguments. They work inside
jax.jit, jax.grad, jax.vmap, jax.shard_map and jax.export. Each alias also has a name that ends with
_jax, such as fused_bias_gelu_jax. Functions are made on first access. The module defines nothing
else, since names such as `sum` would shadow builtins.
"""

import sys
from collections.abc import Callable
from typing import Any

try:
    import jax as _jax
except ImportError as _e:
    raise ImportError(
        f"kernel_fusion.jax needs JAX: pip install 'kernel_fusion[jax]' ({_e})"
    ) from None

from kernel_fusion import _composed, _dispatch, _table
from kernel_fusion import ops as _ops
from kernel_fusion.jax import _native, _public

__all__ = ["EXPORT_CHECKS", "call", "of", "register"]
_self = sys.modules[__name__]
_SUFFIX = "_jax"
# Argument disabled_checks of jax.export.export.
EXPORT_CHECKS = (_jax.export.DisabledSafetyCheck.custom_call(_native.TARGET),)


def _plain(name: str, label: str = "") -> Callable[..., Any]:
    op, activation = _table.functions()[name]
    return _public.make(op.labelled(label), activation)


def _lookup(name: str) -> Callable[..., Any]:
    if _dispatch.overwrites(name):
        raise AttributeError(
            f"kf.jax has no `{name}`, which overwrites its arguments or takes lists: arrays of JAX "
            f"are constant"
        )
    composed = _composed.over(_self)
    if name in composed:
        return composed[name]
    if name in _table.functions():
        return _plain(name)
    if name in _table.aliases():
        return _dispatch.alias_of(_table.aliases()[name], lambda own: getattr(_self, own), __name__)
    lacks = _table.lacks(name) or f"{_dispatch.near(name)}dir(kf.jax) lists all functions"
    raise AttributeError(f"kf.jax has no `{name}`; {lacks}")


def __getattr__(name: str) -> Callable[..., Any]:
    """Makes the function `name`; _plain_ and __label are as in kf.ops."""
    if name.startswith("__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    short = name.removesuffix(_SUFFIX)
    if name.startswith("_plain_"):
        own, _, label = name.removeprefix("_plain_").partition("__")
        found = _plain(own, label)
    elif short != name and short in _table.aliases():
        found = getattr(_self, short)
    else:
        found = _lookup(name)
    globals()[name] = found
    return found


def call(name: str, *args: Any, activation: str | None = None, **kwargs: Any) -> Any:
    return getattr(_self, _dispatch.word(name, activation))(*args, **kwargs)


call.__doc__ = (_ops.call.__doc__ or "").replace("kf.ops", "kf.jax")


def of(fused: Any) -> Callable[..., Any]:
    """Returns the function for JAX of an op that kf.fuse or kf.fuse_row made.

    Args:
        fused: the result of kf.fuse or kf.fuse_row
    """
    return _public.make(fused.op, "none")


def register() -> None:
    """Registers kf's handlers with XLA, for a deserialised program that uses kf's functions.

    The first call of any function does so, too. The first registration of a version of jaxlib
    compiles the handlers.

    Raises:
        RuntimeError: there is no C++ compiler, or KF_OFFLINE forbids the compilation.
    """
    _native.library()


def __dir__() -> list[str]:
    known = [name for name in _dispatch.names() if not _dispatch.overwrites(name)]
    return sorted([*known, *(n + _SUFFIX for n in known if n in _table.aliases()), *__all__])
