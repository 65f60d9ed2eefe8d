# SPDX-License-Identifier: Apache-2.0
"""Base of modules with a fused activation.

PyTorch's tools go by the class or the attributes of a module: they fold a batch norm into the
layer before it, exchange it for SyncBatchNorm, or compute a transformer layer from its weights. A
module with an activation must not be taken for one without. It is therefore a `Fused`, which is no
subclass of torch.nn's class and lacks the attributes that such tools read.
"""

import inspect
from typing import Any

import torch

from kernel_fusion import _dispatch, ops


class _Kind(type):
    """Class of the modules: a call with an activation makes a Fused around the module."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        stands_for = any(c.__module__.startswith("torch.nn.modules.") for c in cls.__mro__[:-2])
        return Fused(made) if made.activation != "none" and stands_for else made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's arguments, which __call__ hides from `inspect`."""
        init: Any = type.__getattribute__(cls, "__init__")
        return inspect.Signature([*inspect.signature(init).parameters.values()][1:])


class Activated(torch.nn.Module, metaclass=_Kind):
    """Base of modules whose op has an activation."""

    op = ""
    activation = "none"
    # Attributes from which a tool would compute the module without its activation.
    hidden: tuple[str, ...] = ()

    def _set_activation(self, activation: str) -> None:
        _dispatch.word(self.op, activation)  # ValueError for an unknown one
        self.activation = activation

    def call(self, *args: Any, op: str = "", **kwargs: Any) -> Any:
        return getattr(ops, _dispatch.word(op or self.op, self.activation))(*args, **kwargs)

    def extra_repr(self) -> str:
        own = super().extra_repr()
        return (
            own
            if self.activation == "none"
            else ", ".join(part for part in (own, f"activation={self.activation}") if part)
        )


def _no_fast_path(module: torch.nn.Module, args: Any) -> None:
    """Forward pre-hook: TransformerEncoderLayer has no fast path with a module that has hooks."""


class Fused(torch.nn.Module):
    """A module of kf.nn with an activation.

    Parameters, buffers, state_dict and attributes are those of the module; `hidden` attributes
    raise. isinstance(m, torch.nn.Linear) is False, and so is isinstance(m, kf.nn.Linear).
    """

    def __init__(self, module: Activated):
        super().__init__()
        put = self.__dict__.__setitem__
        put("_module", module)  # no submodule: it has the same parameters
        put("_version", module._version)
        # One dictionary each, which loading, casting and deleting change for both.
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            put(name, getattr(module, name))
        self.register_forward_pre_hook(_no_fast_path)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._module.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_module":  # while it is being copied
            raise AttributeError(name)
        module = self._module
        if name in module.hidden:
            own = f"kf.nn.{self._get_name()}"
            raise AttributeError(
                f"{own} with activation={module.activation!r} has no `{name}`, by which PyTorch's "
                f"tools would fold it and lose the activation"
            )
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__.get("_module")
        if module is not None and (name == "training" or name in module.__dict__):
            setattr(module, name, value)
            if name != "training":
                return
        super().__setattr__(name, value)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._module._load_from_state_dict(*args)

    def _get_name(self) -> str:
        return str(type(self._module).__name__)

    def extra_repr(self) -> str:
        return str(self._module.extra_repr())
