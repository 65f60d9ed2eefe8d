# SPDX-License-Identifier: Apache-2.0
"""What a program may choose.

compile_ops    what torch.compile sees of an op that makes each element of its own: "opaque", the op itself, which calls kf's kernel; "decompose", its
               formula and its gradient's in PyTorch's functions, which Inductor computes together with their neighbours; "auto", the formula in
               torch.compile and the op in torch.export. Of sums, ops over rows and dropout it sees the op."""

import sys
import types

MODES = ("auto", "opaque", "decompose")
compile_ops = "auto"


class _Checked(types.ModuleType):
    """Of this module: a word that is misspelt would be taken for another one's."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "compile_ops" and value not in MODES:
            raise ValueError(
                f"kf.config.compile_ops: it is set to {value!r}, expected one of {', '.join(MODES)}"
            )
        if name != "compile_ops" and not name.startswith("_"):
            raise AttributeError(f"kf.config has no `{name}`; it has compile_ops")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Checked
