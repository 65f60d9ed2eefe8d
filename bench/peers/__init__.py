# SPDX-License-Identifier: Apache-2.0
"""The baselines of each family, from bench/families/<family>/peers.py. Its tables are by op:

    FORWARD    the formula in PyTorch, a function of (act, t, s, drop): activation, tensors by name
               in kf's shapes, scalars, dropout. It returns the results in the manifest's order.
               In float64 its values and autograd's gradients are the reference for kf's results.
    BACKWARD   all gradients in closed form, for torch.compile to fuse into one kernel
    GRADIENT   float64 gradients from the backward's inputs, if those of the formula cancel
    DRAW       {op: {argument: how it is drawn}}, if not from N(0, 1): a word, or a function of
               the case
    ONE_PASS   {op: inputs whose gradients it returns}, for ops that compute forward and backward
    EACH       values per row, from the sizes, if more than the tensors' rows show
    OUT        PyTorch functions that write into given tensors: (op, bwd) -> call without arguments

A function with a peer's name, such as `flex`, takes (case, data) and returns (call, names of its
results), or None if the peer cannot compute the case.

A module peers.py of another folder is loaded as `peers.<family>`, and peers_out.py beside it as
`peers.<family>_out`.
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
    """True if the op has a formula. Without one, an op is timed beside a copy only, and only the
    tests compare it with float64."""
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
