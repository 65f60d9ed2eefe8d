# SPDX-License-Identifier: Apache-2.0
"""Ops made at run time from the fields of a spec entry, handled like entries of a file.

Their formulas may also call activations: silu(x + bias), leaky_relu(x, 0.2).
"""

import functools

from kfgen.entries import spec as specs
from kfgen.entries.fields import Fields
from kfgen.language.expr import ExprError
from kfgen.language.primitives import PRIMITIVES
from kfgen.model.entries import Spec
from kfgen.paths import ENTRIES
from kfgen.render.render import Selection

FILE = "kf.fuse"  # file name in errors


@functools.cache
def activations():
    """{name: Activation}, of kf's own alone."""
    return specs.load_files([ENTRIES / "activations.toml"]).activations


def _word(act):
    """Makes the function that inserts an activation into a graph.

    Its gradient is the activation's closed form, if it has one, as for an activation in an op's
    name.
    """

    def build(graph, args):
        if not 1 <= len(args) <= 1 + len(act.scalars):
            wanted = " and, optionally, ".join(["x", *act.scalars])
            raise ExprError(f"calls `{act.name}` with {len(args)} arguments, expected {wanted}")
        x, *given = args
        scalars = {
            name: graph.const(scalar.default) for name, scalar in act.scalar_info.items()
        } | dict(zip(act.scalars, given))
        node = act.build(graph, x, scalars)
        if act.dexpr:
            graph.closed[node] = x, lambda dy: act.build_bwd(graph, x, dy, scalars)
        return node

    return build


@functools.cache
def extra():
    """Returns {name: function} of activations that are not primitives of the language."""
    return {
        name: _word(act)
        for name, act in activations().items()
        if name not in PRIMITIVES and name != "none"
    }


def spec(name, entry):
    """Makes a Spec with this op only.

    Args:
        entry: the fields of [op.<name>], without a reference.
    """
    found = Spec({"none": activations()["none"]}, {}, [])
    outputs = entry.get("outputs", {})
    data = entry | ({"refs": dict.fromkeys(outputs, "0")} if outputs else {"ref": "0"})
    specs.load_op(found, FILE, name, Fields(FILE, "entry", data), True)
    found.ops[name].extra = extra()
    specs.finish(found)
    return found


def selection(name, entry, dtypes=None):
    return Selection(spec(name, entry), dtypes=dtypes)
