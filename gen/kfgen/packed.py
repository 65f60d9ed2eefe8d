# SPDX-License-Identifier: Apache-2.0
"""C launchers behind one calling convention, as sources of a shared library that frontends load: which of the arrays holds what is said once,
here, and frontends need no code for each function. frontends/python/kernel_fusion/native/packed.h is the C side of it."""

import pathlib

from kfgen.dtypes import DTYPE, ROUNDED
from kfgen.render import environment, tidy
from kfgen.render import version as kf_version

MANY = 12  # functions of one file: the longest file is what a build waits for
SCALARS = ("scalar", "act_scalar", "beta", "probability")


def axes(f):
    """How tensors of any number of dimensions become a function's sizes, as the manifest says. Where it says nothing, the first size is what a tensor
    has dimensions of beside its others, and the inputs that say them are those which have one that no input before has. None: they do not say all."""
    if f["axes"]:
        return f["axes"]
    first, *others = f["sizes"]
    known, shaped_by = set(), []
    for a in f["arguments"]:
        own = {extent.rpartition(" * ")[2] for extent in a.get("shape") or ()}
        if a["role"] == "in" and a["absent"] is None and own - known:
            shaped_by.append(a["name"])
            known |= own
    sizes = {first: "before", **{size: i - len(others) for i, size in enumerate(others)}}
    return (
        {"axis": None, "sizes": sizes, "shaped_by": shaped_by} if known == set(f["sizes"]) else None
    )


def functions(manifest):
    """Those that a library may have: a `_state` twin is one that reads seed and offset where they lie, as `rng` is read for all. Of whole numbers
    frameworks have 64 bits; results are of their tensors' dtype where there are such, and of tensors in float32 products are as exact as that is.
    Without those whose sizes do not follow from tensors' shapes: nobody could call them by tensors alone."""
    plain = {f["op"] for f in manifest["functions"] if len(f["dtypes"]) == 1}

    def left_out(f, v):
        other = v["of"] == "results" and f["op"] in plain and v["dtype"] != f["dtypes"][0]
        return other or (v["name"] == "I" and v["dtype"] != "i64") or f["dtypes"][0] in ROUNDED

    return [
        f
        for f in manifest["functions"]
        if not f["state"] and axes(f) and not any(left_out(f, v) for v in f["variables"])
    ]


def words(f, typed=False):
    """The arguments of a C launcher, read from the arrays: tensors in their order; sizes, then integers; strides; scalars, the activation's,
    beta and p behind the op's; seed and offset; the workspace. typed: of functions on tensors: pointers as C++ takes them, beta and p in
    places of their own."""
    order = {
        "in": "t",
        "out": "t",
        "sum": "t",
        "size": "n",
        "integer": "n",
        **dict.fromkeys(SCALARS, "s"),
    }
    at, found = dict.fromkeys("tns", 0), []
    places = {"probability": "KFI_RT_P", "beta": "KFI_RT_BETA"}
    alone = {
        "seed": "r[0]",
        "offset": "r[1]",
        "activation": "a",
        "activation_scalars": "kfi_of_act",
    }
    for a in f["arguments"]:
        array = order.get(a["role"])
        if array:
            cast = "(float)" if a.get("ctype") == "float" else ""
            if typed and a["role"] in places:
                found.append(f"{cast}s[{places[a['role']]}]")
                continue
            if typed and array == "t":
                cast = f"({'const ' if a['role'] == 'in' else ''}{DTYPE[a['dtype']].ctype} *)"
            found.append(f"{cast}{array}[{at[array]}]")
            at[array] += 1
        elif a["role"] == "strides":
            found.append(f"(const {a['struct']} *)d")
        else:
            found.append(
                alone.get(a["role"]) or {"workspace": "w", "workspace_bytes": "b"}[a["name"]]
            )
    return ", ".join(found)


def space(f):
    """How much workspace it needs, of the same sizes."""
    return ", ".join(f"n[{f['sizes'].index(s)}]" for s in f["workspace_arguments"])


def units(found):
    """{file name: (header, functions)}: one file for a header and dtypes, or several where those are many."""
    groups = {}
    for f in found:
        groups.setdefault((f["header"], "_".join(f["dtypes"])), []).append(f)
    files = {}
    for (header, dtypes), members in groups.items():
        for i in range(0, len(members), MANY):
            files[f"{pathlib.Path(header).name}_{dtypes}_{i // MANY}.c"] = (
                header,
                members[i : i + MANY],
            )
    return files


def sources(found):
    """{file name: text} of a library that has these functions. It knows their names, so that a caller can ask which it has."""
    env = environment()
    env.globals.update(version=kf_version(), words=words, space=space)
    texts = {
        name: env.get_template("python/packed.c.j2").render(
            file=name, header=header, functions=members
        )
        for name, (header, members) in units(found).items()
    }
    ordered = sorted(found, key=lambda f: f["name"])
    texts["packed_table.c"] = env.get_template("python/packed_table.c.j2").render(
        file="packed_table.c", functions=ordered
    )
    return {name: tidy(text) for name, text in texts.items()}
