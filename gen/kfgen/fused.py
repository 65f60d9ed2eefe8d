# SPDX-License-Identifier: Apache-2.0
"""An op that a program makes while it runs: the fields of a spec entry, from which the same becomes as from one in a file. Its expressions may also
call kf's activations by name: silu(x + bias), leaky_relu(x, 0.2)."""

import functools

from kfgen import spec as specs
from kfgen.entries import Fields, Spec
from kfgen.expr import ExprError
from kfgen.paths import SPECS
from kfgen.render import Selection
from kfgen.words import PRIMITIVES

FILE = "kf.fuse"  # in place of a file's name, in errors


@functools.cache
def activations():
    """{name: Activation}, of kf's own alone."""
    return specs.load_files([SPECS / "activations.toml"]).activations


def _word(act):
    """What a call of an activation adds to a graph. Its gradient is the activation's own where that has a closed form, as an activation's has
    that stands in an op's name."""

    def build(graph, args):
        if not 1 <= len(args) <= 1 + len(act.scalars):
            wanted = " and, if need be, ".join(["x", *act.scalars])
            raise ExprError(f"calls `{act.name}` with {len(args)} arguments, it takes {wanted}")
        x, *given = args
        scalars = {name: graph.const(said.default) for name, said in act.said.items()} | dict(
            zip(act.scalars, given)
        )
        node = act.build(graph, x, scalars)
        if act.dexpr:
            graph.closed[node] = x, lambda dy: act.build_bwd(graph, x, dy, scalars)
        return node

    return build


@functools.cache
def words():
    """{name: function}; what the language has as a primitive it has already."""
    return {
        name: _word(act)
        for name, act in activations().items()
        if name not in PRIMITIVES and name != "none"
    }


def spec(name, entry):
    """A spec of this one op. entry: the fields of [op.<name>]; a reference is not asked for."""
    found = Spec({"none": activations()["none"]}, {}, [])
    outputs = entry.get("outputs", {})
    data = entry | ({"refs": dict.fromkeys(outputs, "0")} if outputs else {"ref": "0"})
    specs.load_op(found, FILE, name, Fields(FILE, "entry", data), True)
    found.ops[name].words = words()
    specs.finish(found)
    return found


def selection(name, entry, dtypes=None):
    return Selection(spec(name, entry), dtypes=dtypes)
