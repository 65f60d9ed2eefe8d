# SPDX-License-Identifier: Apache-2.0
"""The Python evaluator of size rules (frontends/python/kernel_fusion/_sizes.py), without the
package around it, for functions of the manifest."""

import importlib.util
import pathlib
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "frontends/python/kernel_fusion"
if str(ROOT / "gen") not in sys.path:  # benchmarks
    sys.path.append(str(ROOT / "gen"))


def module(name):
    """Imports a module of the package that imports no other one."""
    alone = f"kf_alone{name}"
    if alone not in sys.modules:
        spec = importlib.util.spec_from_file_location(alone, PACKAGE / f"{name}.py")
        sys.modules[alone] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[alone])
    return sys.modules[alone]


evaluator = module("_sizes")


class Argument(NamedTuple):
    """A tensor argument, as the evaluator reads it."""

    name: str
    extents: tuple
    lines: tuple
    strides: tuple = ()


def argument(f, a):
    lines = evaluator.lines(a["extents"], f["sizes"])
    return Argument(a["name"], a["extents"], lines, tuple(a["strides"]))


def options(f):
    """Returns {option of the shape struct: its default}; empty without such a struct."""
    fields = next((a["fields"] for a in f["arguments"] if a["role"] == "shape"), ())
    return {x["name"]: x["default"] or 0 for x in fields if x["role"] == "option"}


def shape(a, values):
    """Returns the shape of a tensor in a function's arguments from {size: value}."""
    return tuple(evaluator.value(extent, values) for extent in a["extents"])


def template(f):
    """Returns the tensor whose shape determines the sizes, if one does."""
    return next(a for a in f["arguments"] if a.get("kind") in ("elem", "half"))


def lay_out(f, shapes, axis=None, groups=1):
    """Returns the layout of a call from {tensor: shape}, or from the template's shape."""
    named = {a["name"]: a for a in f["arguments"] if "kind" in a}
    names = f["axes"]["shaped_by"] or [template(f)["name"]]
    found = shapes if isinstance(shapes, dict) else {names[0]: shapes}
    default = f["axes"]["axis"]
    return evaluator.Layout(
        evaluator.Rules({size: f["axes"]["sizes"][size] for size in f["sizes"]}, default),
        [argument(f, named[name]) for name in names],
        [found[name] for name in names],
        axis if axis is not None else -1 if default is None else default,
        {"groups": groups},
    )
