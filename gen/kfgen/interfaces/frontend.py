# SPDX-License-Identifier: Apache-2.0
"""Data of frontends, derived from the manifest: one entry per op with what its functions share.

`forward` and `backward` of an entry are calls: tensors in order, sizes, fields of strides,
integers and scalars, as in a function's arguments. Data that depends on the activation is stored
once per activation:
- its scalars
- `unread`: the inputs that its backward does not read
- `by_result`: whether its backward takes the activation's result instead of the inputs with this
  mark
"""

import json

from kfgen import paths
from kfgen.interfaces import manifest, packed
from kfgen.model import names
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.types import ACC, INDEX_VARIABLE, RESULTS

TENSOR = (
    "name",
    "role",
    "use",
    "of",
    "kind",
    "extents",
    "var",
    "absent",
    "place_of",
    "same_as",
    "unchanged",
    "strides",
    "accumulated",
    "list",
)
VALUE = ("name", "default", "least", "most")
SOME = ("least_of", "most_of", "changes")  # fields that are left out where they are empty


def _call(members):
    """One direction of an op, from functions that differ by activation and dtypes."""
    f = members[0]
    found = {
        "tensors": [],
        "sizes": f["sizes"],
        "strides": [],
        "workspace": f["workspace"] is not None,
        "integers": [],
        "scalars": [],
        "betas": [a["name"] for a in f["arguments"] if a["role"] == "beta"],
        "backends": f["backends"],
    }
    for i, a in enumerate(f["arguments"]):
        if "use" in a:
            plain = [m for m in members if m["dtypes"] == f["dtypes"]]
            unread = [m["activation"] for m in plain if m["arguments"][i]["unread"]]
            instead = [m["activation"] for m in plain if m["arguments"][i]["null"] == "result"]
            given = [m["activation"] for m in plain if m["arguments"][i]["null"] == "inputs"]
            # The dtype is the same in all functions here.
            var = a["dtype"] if a["var"] == INDEX_VARIABLE else a["var"]
            found["tensors"].append(
                {k: a[k] for k in TENSOR}
                | {
                    "var": var,
                    "nullable": a["absent"] is not None
                    or a["null"] == "skipped"
                    or bool(instead or given),
                    "below": a["index"]["below"] if a["index"] else "",
                    "unread": unread,
                    "by_result": instead or given,
                }
            )
        elif a["role"] == "strides":
            found["strides"] = a["fields"]
        elif a["role"] == "shape":
            found["integers"] += [_option(field) for field in packed.options(f)]
        elif a["role"] in ("integer", "scalar"):
            of = f["rsqrt_defaults"].get(a["name"])
            own = _value(a) | ({"rsqrt_of": of} if of else {})
            found["integers" if a["role"] == "integer" else "scalars"].append(own)
    return found


def _value(argument):
    """A scalar or integer argument."""
    return {k: argument[k] for k in VALUE} | {k: argument[k] for k in SOME if argument.get(k)}


def _option(field):
    """An option of a shape struct as an argument; a default of 0 stands for another field."""
    default = field["default"] if isinstance(field["default"], int) else 0
    return {"name": field["name"], "default": default, "least": min(default, 1), "most": None}


def _named(variable):
    """True for type variables in a function's name; integers are always i64 here."""
    return variable["name"] not in (INDEX_VARIABLE, ACC)


def _asked(forward):
    """Type variable whose dtype is an argument of calls: that of a cast's results. Reductions
    return their tensors' dtype; functions with other results are left out (packed.py).
    """
    if any(len(m["dtypes"]) == 1 for m in forward):
        return ""
    return next((v["name"] for v in forward[0]["variables"] if v["of"] == RESULTS), "")


def _entry(pattern, op, members, with_grad):
    """Entry of an op.

    Args:
        with_grad: the op that computes results and gradients in one call, if this op has no
            gradient.
    """
    forward, backward = ([f for f in members if f["bwd"] is bwd] for bwd in (False, True))
    f, axes = forward[0], packed.axes(forward[0])
    assert all(m["sizes"] == f["sizes"] for m in members), pattern
    variables = {v["name"]: v["of"] for m in members for v in m["variables"] if _named(v)}
    return {
        "name": names.stem(pattern),
        "pattern": pattern,
        "brief": op["brief"],
        "source": op["source"],
        **{word: f[word] for word in manifest.OF_FRONTENDS},
        "any_order": f["any_order"],
        "axis": axes["axis"],
        "rules": axes["sizes"],
        "channels_last": axes.get("channels_last"),
        "defaults": packed.defaults(f),
        "beside": packed.beside(f),
        "shaped_by": axes["shaped_by"],
        "dropout": f["dropout"],
        "empty": f["empty"],
        "autocast": f["autocast"],
        "activations": list(dict.fromkeys(m["activation"] for m in forward)),
        "integer_activations": list(
            dict.fromkeys(m["activation"] for m in forward if m["dtypes"][0] in INT_DTYPES)
        ),
        "variables": [{"name": name, "of": of} for name, of in variables.items()],
        "types": [
            {v["name"]: v["dtype"] for v in m["variables"] if _named(v)}
            for m in {tuple(m["dtypes"]): m for m in forward}.values()
        ],
        "asked": _asked(forward),
        "forward": _call(forward),
        "backward": _call(backward) if backward else None,
        "with_grad": "" if backward else with_grad,
    }


def table(made):
    """Returns the table of a manifest: {"abi", "ops": entries, "activations": {name: id, scalars,
    scalars that must not be negative by_result}, "aliases"}.
    """
    groups, scalars, rising = {}, {}, {}
    for f in packed.functions(made):
        groups.setdefault(f["op"], []).append(f)
        scalars.setdefault(
            f["activation"], [_value(a) for a in f["arguments"] if a["role"] == "act_scalar"]
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
    """Returns {op: {activation: PyTorch statements of forward, backward, backward by the result}}.

    Only for ops whose gradient depends on operands and results alone, so that a framework can
    differentiate it again. Excluded are gradients that read saved tensors, masks or row indices.
    """
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
    """Returns {path in the package: text}."""
    made = manifest.build(selection)
    found = {
        "ops.json": table(made) | {"generator": paths.digest()},
        "formulas.json": formulas(made),
    }
    return {
        name: json.dumps(what, separators=(",", ":"), sort_keys=True) + "\n"
        for name, what in found.items()
    }
