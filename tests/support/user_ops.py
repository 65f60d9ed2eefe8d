# SPDX-License-Identifier: Apache-2.0
"""Ops of a user's own spec, written by a test."""

import kflib
from kfgen import spec
from kfgen.render import Selection


def load(text, folder, name="mine", activations=("silu",)):
    """(the file of the spec, what it selects, its functions), with their headers rendered into `folder`."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    loaded = spec.load([path])
    wanted = Selection(loaded, [o.pattern for o in loaded.ops.values() if not o.builtin], activations=list(activations))
    return path, wanted, kflib.write(wanted, folder, spec.user_stem([path]))
