# SPDX-License-Identifier: Apache-2.0
"""The baselines. A family is a file, whose tables are by op:

    FORWARD    the user's formula in PyTorch, a function of (act, t, s, drop): the activation, the tensors by name in kf's own shapes, the
               scalars, the dropout; it gives the results in the manifest's order. In float64, with its autograd, it is what kf is checked against.
    BACKWARD   all gradients in closed form, where torch.compile is to make one kernel of them
    GRADIENT   float64 gradients made of what the backward is given, where those of the formula would cancel
    DRAW       {op: {argument: how it is drawn}}, where that is not N(0, 1)
    ONE_PASS   {op: the inputs whose gradients it has} of ops whose forward is the user's forward and backward
    EACH       how many numbers a row has, of sizes, where that is more than those of a tensor that has rows
    OUT        PyTorch's functions that write into given tensors: (op, bwd) -> a call without arguments

Another family is another file.
"""

import importlib
import pathlib

from kfgen.families import SYNONYMS

from peers import map as map_family

FAMILIES = {
    p.stem: importlib.import_module(f"peers.{p.stem}")
    for p in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py"))
}


FORMER = {name: former for former, name in SYNONYMS.items()}  # what its files are called


def of(f):
    return FAMILIES[FORMER[f["family"]]]


def known(f):
    """Whether there is a formula: an op without one is timed beside a copy alone, and compared with float64 by the tests alone."""
    return f["op"] in of(f).FORWARD


def forward(f, scalars, drop):
    """fn: the user's formula as a function of {name: tensor}. Returns a list of results."""
    op, act = of(f).FORWARD[f["op"]], map_family.ACTIVATIONS[f["activation"]]
    given = scalars | {"to": map_family.TORCH.get(f["dtypes"][-1])}

    def fn(t):
        found = op(lambda x: act(x, given), t, given, drop)
        return list(found) if isinstance(found, tuple) else [found]

    return fn


def draw(f, name):
    return getattr(of(f), "DRAW", {}).get(f["op"], {}).get(name)
