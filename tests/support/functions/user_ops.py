# SPDX-License-Identifier: Apache-2.0
"""Ops of a user's own spec, written by a test."""

import kflib
from kfgen.entries import spec
from kfgen.interfaces import manifest
from kfgen.render.render import Selection


def selected(path, activations):
    """Selects the spec's own ops, with kf's activations `activations`."""
    loaded = spec.load([path])
    return Selection(
        loaded,
        [o.pattern for o in loaded.ops.values() if not o.builtin],
        activations=list(activations),
    )


def functions(path, activations):
    return manifest.build(selected(path, activations), spec.user_stem([path]))["functions"]


def load(text, folder, name="mine", activations=("silu",)):
    """Writes and renders a spec; returns (its file, its selection, its functions). The headers go
    into `folder`."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    wanted = selected(path, activations)
    return path, wanted, kflib.write(wanted, folder, spec.user_stem([path]))
