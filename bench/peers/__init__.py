# SPDX-License-Identifier: Apache-2.0
"""The baselines. A family's are in bench/families/<family>/peers.py, whose tables are by op:

    FORWARD    the user's formula in PyTorch, a function of (act, t, s, drop): the activation, the tensors by name in kf's own shapes, the
               scalars, the dropout; it gives the results in the manifest's order. In float64, with its autograd, it is what kf is checked against.
    BACKWARD   all gradients in closed form, where torch.compile is to make one kernel of them
    GRADIENT   float64 gradients made of what the backward is given, where those of the formula would cancel
    DRAW       {op: {argument: how it is drawn}}, where that is not N(0, 1)
    ONE_PASS   {op: the inputs whose gradients it has} of ops whose forward is the user's forward and backward
    EACH       how many numbers a row has, of sizes, where that is more than those of a tensor that has rows
    OUT        PyTorch's functions that write into given tensors: (op, bwd) -> a call without arguments

A module peers.py of another folder is found by itself, as `peers.<family>`; peers_out.py beside it is `peers.<family>_out`.
"""

import importlib.util
import pathlib
import sys


def _loaded():
    found = {}
    for path in sorted((pathlib.Path(__file__).parents[1] / "families").glob("*/peers*.py")):
        name = path.parent.name + path.stem.removeprefix("peers")
        spec = importlib.util.spec_from_file_location(f"peers.{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = globals()[name] = found[name] = module
        spec.loader.exec_module(module)
    return found


FAMILIES = _loaded()


def of(f):
    """The baselines of a function's family."""
    return FAMILIES[f["family"]]


def known(f):
    """Whether there is a formula: an op without one is timed beside a copy alone, and compared with float64 by the tests alone."""
    return f["op"] in of(f).FORWARD


def forward(f, scalars, drop):
    """fn: the user's formula as a function of {name: tensor}. Returns a list of results."""
    op, act = of(f).FORWARD[f["op"]], FAMILIES["elementwise"].ACTIVATIONS[f["activation"]]
    given = scalars | {"to": FAMILIES["elementwise"].TORCH.get(f["dtypes"][-1])}

    def fn(t):
        found = op(lambda x: act(x, given), t, given, drop)
        return list(found) if isinstance(found, tuple) else [found]

    return fn


def draw(f, name):
    return getattr(of(f), "DRAW", {}).get(f["op"], {}).get(name)
