# SPDX-License-Identifier: Apache-2.0
"""Ops of a user's own spec, written by a test."""

from kfgen import manifest, spec
from kfgen.render import Renderer, Selection, write_all


def load(text, folder, name="mine", activations=("silu",)):
    """(the file of the spec, what it selects, its functions), with their headers rendered into `folder`."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    loaded, stem = spec.load([path]), spec.user_stem([path])
    wanted = Selection(loaded, [o.pattern for o in loaded.ops.values() if not o.builtin], activations=list(activations))
    renderer = Renderer(wanted, stem)
    write_all(renderer.render(), folder, renderer.dependencies())
    return path, wanted, manifest.build(wanted, stem)["functions"]
