# SPDX-License-Identifier: Apache-2.0
"""What frontends read, made of the manifest alone: an entry for each op, with what its functions have in common, and type stubs.

An entry's `forward` and `backward` are calls: tensors in their order, sizes, the fields of strides, integers and scalars, as a function's arguments
are. What differs by activation is said once for each activation: its scalars, which inputs a backward does not read, and (`by_result`) for which
activations it takes the activation's result, an input too, in place of the others that are so marked.
"""

import json

from kfgen import manifest, names, packed, paths
from kfgen.dtypes import INT_DTYPES

TENSOR = (
    "name",
    "role",
    "use",
    "of",
    "kind",
    "shape",
    "var",
    "absent",
    "place_of",
    "same_as",
    "unchanged",
    "strides",
    "accumulated",
)
VALUE = ("name", "default", "least", "most")


def _call(members):
    """Of functions that differ by activation and dtypes."""
    f = members[0]
    found = {
        "tensors": [],
        "sizes": f["sizes"],
        "strides": [],
        "workspace": f["workspace"] is not None,
        "integers": [],
        "scalars": [],
        "betas": [a["name"] for a in f["arguments"] if a["role"] == "beta"],
    }
    for i, a in enumerate(f["arguments"]):
        if "use" in a:
            plain = [m for m in members if m["dtypes"] == f["dtypes"]]
            unread = [m["activation"] for m in plain if m["arguments"][i]["unread"]]
            instead = [m["activation"] for m in plain if m["arguments"][i]["null"] == "result"]
            given = [m["activation"] for m in plain if m["arguments"][i]["null"] == "inputs"]
            var = a["dtype"] if a["var"] == "I" else a["var"]  # which is one, of all functions here
            found["tensors"].append(
                {k: a[k] for k in TENSOR}
                | {
                    "var": var,
                    "nullable": a["absent"] is not None
                    or a["null"] == "skipped"
                    or bool(instead or given),
                    "unread": unread,
                    "by_result": instead or given,
                }
            )
        elif a["role"] == "strides":
            found["strides"] = a["fields"]
        elif a["role"] in ("integer", "scalar"):
            found["integers" if a["role"] == "integer" else "scalars"].append(
                {k: a[k] for k in VALUE}
            )
    return found


def _entry(pattern, op, members, with_grad):
    """with_grad: the op that has its results and gradients in one call, where it has no gradient of its own."""
    forward, backward = ([f for f in members if f["bwd"] is bwd] for bwd in (False, True))
    f, axes = forward[0], packed.axes(forward[0])
    of_u = {v["of"] for m in forward for v in m["variables"] if v["name"] == "U"}
    # A cast asks for its result's dtype; reductions, which have float32 results of 2-byte tensors too (packed.py), give that of their tensors.
    second = (
        "weights"
        if "weights" in of_u
        else "results"
        if of_u and all(len(m["dtypes"]) > 1 for m in forward)
        else ""
    )
    return {
        "name": names.stem(pattern),
        "pattern": pattern,
        "brief": op["brief"],
        "source": op["source"],
        "family": f["family"],
        "axis": axes["axis"],
        "sizes": axes["sizes"],
        "shaped_by": axes["shaped_by"],
        "dropout": f["dropout"],
        "empty": f["empty"],
        "autocast": f["autocast"],
        "activations": list(dict.fromkeys(m["activation"] for m in forward)),
        "integer_activations": list(
            dict.fromkeys(m["activation"] for m in forward if m["dtypes"][0] in INT_DTYPES)
        ),
        "dtypes": [list(d) for d in dict.fromkeys(tuple(m["dtypes"]) for m in forward)],
        "second": second,
        "forward": _call(forward),
        "backward": _call(backward) if backward else None,
        "with_grad": "" if backward else with_grad,
    }


def table(made):
    """Of a manifest: {"ops": entries, "activations": {name: id, scalars, those that may not be negative by_result}, "aliases": as there}."""
    groups, scalars, rising = {}, {}, {}
    for f in packed.functions(made):
        groups.setdefault(f["op"], []).append(f)
        scalars.setdefault(
            f["activation"],
            [{k: a[k] for k in VALUE} for a in f["arguments"] if a["role"] == "act_scalar"],
        )
        rising[f["activation"]] = f["rising"] or rising.get(f["activation"], [])
    ops = {op["pattern"]: op for op in made["ops"]}

    def with_grad(pattern):
        return names.stem(f"{pattern}_with_grad") if f"{pattern}_with_grad" in groups else ""

    return {
        "abi": made["abi_version"],
        "ops": [
            _entry(pattern, ops[pattern], members, with_grad(pattern))
            for pattern, members in groups.items()
        ],
        "activations": {
            a["name"]: {"id": a["id"], "scalars": scalars[a["name"]], "rising": rising[a["name"]]}
            for a in made["activations"]
            if a["name"] in scalars
        },
        "aliases": made["aliases"],
    }


def formulas(made):
    """{op: {activation: the statements of torch of forward and backward, and of a backward by the result}}, of a manifest's ops that have a gradient
    which is one of the operands and results alone: a framework may differentiate it again. Not where it reads what a forward saved, a mask, or rows
    by their numbers."""
    found, other = {}, set()
    for f in (f for f in packed.functions(made) if not f["integer"]):
        name = names.stem(f["op"])
        if (
            f["dropout"]
            or f["backward"] is None
            or not f["axes"]
            or any(a.get("use") == "saved" and a["role"] == "in" for a in f["arguments"])
        ):
            other.add(name)
        lines = found.setdefault(name, {}).setdefault(f["activation"], [None, None, None])
        lines[f["bwd"]] = made["statements"][f["statements"]]["torch"]
        if f["bwd"] and f["statements_by_result"]:
            lines[2] = made["statements"][f["statements_by_result"]]["torch"]
    return {name: lines for name, lines in found.items() if name not in other}


def files(selection):
    """{path in the package: text}"""
    made = manifest.build(selection)
    found = {
        "ops.json": table(made) | {"generator": paths.digest()},
        "formulas.json": formulas(made),
    }
    return {
        name: json.dumps(what, separators=(",", ":"), sort_keys=True) + "\n"
        for name, what in found.items()
    }
