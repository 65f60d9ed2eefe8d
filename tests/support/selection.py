# SPDX-License-Identifier: Apache-2.0
"""Smaller sets of functions that still have one of everything, chosen by what the manifest says of them."""

import cases
import kflib


def kinds(dtypes=("f32", "bf16"), activations=("none", "silu")):
    """One function of each kind of argument list and schedule: sizes, direction, sums, dropout by value and by state, halves."""
    found = {}
    for f in kflib.manifest()["functions"]:
        if f["activation"] in activations and f["dtypes"][0] in dtypes:
            halves = any(a.get("kind") == "half" for a in f["arguments"])
            found[f["family"], len(f["sizes"]), f["bwd"], bool(f["workspace"]), f["dropout"], f["state"], halves] = f
    return list(found.values())


def kernels():
    """Every kernel: two activations (one whose gradient reads its argument, one whose does not), and all of them in the op that is
    the activation alone. From level 2 on every function."""
    found, seen = [], {}
    for f in kflib.manifest()["functions"]:
        of = seen.setdefault((f["op"], *f["dtypes"], f["bwd"], f["state"]), set())
        kind = (f["reads_x"], f["activation"] == "none")
        if cases.LEVEL > 1 or f["op"] == "{act}" or kind not in of:
            of.add(kind)
            found.append(f)
    return found
