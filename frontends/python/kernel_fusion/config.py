# SPDX-License-Identifier: Apache-2.0
"""Settings of the package.

compile_ops: what torch.compile sees of an elementwise op. Reductions, ops over rows and dropout
are always opaque.

- "opaque": the op itself, which calls kf's kernel
- "decompose": the formulas of result and gradient in PyTorch functions, which Inductor fuses with
  their neighbours
- "auto" (default): "decompose" in torch.compile, "opaque" in torch.export
"""

import sys
import types

MODES = ("auto", "opaque", "decompose")
compile_ops = "auto"


class _Checked(types.ModuleType):
    """Type of this module: refuses unknown settings and values."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "compile_ops" and value not in MODES:
            raise ValueError(
                f"kf.config.compile_ops: it is set to {value!r}, expected one of {', '.join(MODES)}"
            )
        if name != "compile_ops" and not name.startswith("_"):
            raise AttributeError(f"kf.config has no `{name}`; it has compile_ops")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Checked
