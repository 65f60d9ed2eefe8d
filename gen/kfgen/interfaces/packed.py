# SPDX-License-Identifier: Apache-2.0
"""C launchers behind one calling convention, as sources of a shared library for frontends.

This module defines the contents of each argument array, so that frontends need no code per
function. frontends/python/kernel_fusion/native/packed.h is its C side.
"""

import pathlib

from kfgen.model import shapes
from kfgen.model.dtypes import DTYPE, INDEX, ROUNDED
from kfgen.model.types import INDEX_VARIABLE, RESULTS
from kfgen.paths import version as kf_version
from kfgen.render.environment import environment
from kfgen.render.layout import tidy
from kfgen.render.render import Selection
from kfgen.render.source import reduced

MANY = 12  # maximum number of functions per file; a build waits for the longest file
TENSORS = ("in", "inout", "out", "sum", "lengths")
NUMBERS = ("size", "count", "integer")
SCALARS = ("scalar", "act_scalar", "beta", "probability")


def axes(f):
    """Returns how tensors of any number of dimensions become a function's sizes.

    Without rules in the manifest, the inputs with a size that no earlier input has determine the
    sizes (shapes.named). None: inputs' shapes do not determine all sizes.
    """
    if f["axes"]:
        return f["axes"]
    known, shaped_by = set(), []
    for a in f["arguments"]:
        own = {line[1] for line in map(shapes.linear, a.get("extents", ())) if line}
        own &= set(f["sizes"])
        if a["role"] == "in" and a["absent"] is None and own - known:
            shaped_by.append(a["name"])
            known |= own
    rules = shapes.named(f["sizes"])
    return (
        {"axis": None, "sizes": rules, "shaped_by": shaped_by} if known == set(f["sizes"]) else None
    )


def functions(manifest):
    """Selects the functions of a library.

    Left out are:
    - `_state` functions, since `rng` is always read from memory
    - 32-bit integers
    - results of another dtype than the tensors', if a function with the same dtype exists
    - TF32 products
    - variants of other functions (`variant`)
    - functions whose sizes do not follow from tensors' shapes
    """
    plain = {f["op"] for f in manifest["functions"] if len(f["dtypes"]) == 1}

    def left_out(f, v):
        other = v["of"] == RESULTS and f["op"] in plain and v["dtype"] != f["dtypes"][0]
        index = v["name"] == INDEX_VARIABLE and v["dtype"] != INDEX[0]
        return other or index or f["dtypes"][0] in ROUNDED or f["variant"]

    return [
        f
        for f in manifest["functions"]
        if not f["state"] and axes(f) and not any(left_out(f, v) for v in f["variables"])
    ]


def pointer(a):
    """C type of an argument that is read from the array of tensors."""
    if a["role"] == "lengths":
        return a["ctype"]
    one = f"{'const ' if a['role'] == 'in' else ''}{DTYPE[a['dtype']].ctype} *"
    return f"{one}const *" if a["list"] else one


def shape_argument(f):
    """Returns the shape struct among a function's arguments, or None."""
    return next((a for a in f["arguments"] if a["role"] == "shape"), None)


def options(f):
    """Returns the fields of the shape struct that callers give; tensors determine the others."""
    shape = shape_argument(f)
    fields = shape["fields"] if shape else []
    return [x for x in fields if x["role"] == "option" and not x["unread"]]


def defaults(f):
    """Returns {option: the number that its 0 stands for}, without defaults of 0."""
    found = {field["name"]: field["default"] for field in options(f)}
    return {name: n for name, n in found.items() if isinstance(n, int) and n}


def beside(f):
    """Returns {size: the earlier size that its 0 stands for}: frontends refuse 0 beside another
    number."""
    fields = [x for a in f["arguments"] if a["role"] == "shape" for x in a["fields"]]
    found = {x["name"]: x["default"] for x in fields if x["role"] == "size"}
    return {name: other for name, other in found.items() if other in f["sizes"]}


def numbers(f):
    """Names of the array of sizes and integers: sizes, options of the shape struct, the number of
    tensors of lists, integers.
    """
    count, integers = (
        [a["name"] for a in f["arguments"] if a["role"] == role] for role in ("count", "integer")
    )
    return [*f["sizes"], *(field["name"] for field in options(f)), *count, *integers]


def shape_lines(f):
    """Lines that declare kfi_sizes, the shape struct of a call, if the function has one."""
    shape = shape_argument(f)
    if not shape:
        return []
    at = {name: f"n[{i}]" for i, name in enumerate(numbers(f))}
    fields = ", ".join(at.get(field["name"], "0") for field in shape["fields"])
    return [f"const {shape['struct']} kfi_sizes = {{{fields}}};"]


def shape_numbers(f):
    """Number of values in the array of sizes and integers that the shape struct has."""
    return len(f["sizes"]) + len(options(f)) if shape_argument(f) else 0


def words(f, typed=False):
    """Arguments of a C launcher, read from the arrays.

    The order within the arrays is: tensors, then the lengths of lists; sizes, the number of tensors
    of lists, then integers (`numbers`); strides; the op's scalars, the activation's, beta, p; seed
    and offset; workspace. A list is the address of its array of pointers.

    Args:
        typed: for functions on kf_tensor_t: typed pointers for C++; beta and p at fixed indices.
    """
    order = {
        **dict.fromkeys(TENSORS, "t"),
        **dict.fromkeys(NUMBERS, "n"),
        **dict.fromkeys(SCALARS, "s"),
    }
    at, found = dict.fromkeys("tns", 0), []
    at["n"] = shape_numbers(f)
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
                cast = f"({pointer(a)})"
            found.append(f"{cast}{array}[{at[array]}]")
            at[array] += 1
        elif a["role"] == "strides":
            found.append(f"(const {a['struct']} *)d")
        elif a["role"] == "shape":
            found.append("&kfi_sizes")
        else:
            found.append(
                alone.get(a["role"]) or {"workspace": "w", "workspace_bytes": "b"}[a["name"]]
            )
    return ", ".join(found)


def space(f):
    """Arguments of a launcher's workspace function."""
    if shape_argument(f):
        return "&kfi_sizes"
    return ", ".join(f"n[{f['sizes'].index(s)}]" for s in f["workspace_arguments"])


def one(spec, pattern, activation, dtypes):
    """Selects an op's kernels with one activation and exactly these dtypes, in both directions.

    Returns None if there are none.
    """
    whole = Selection(spec, [pattern], [activation], list(dict.fromkeys(dtypes)))
    act = spec.activations[activation]
    kernels = [
        k
        for k in whole.kernels(spec.ops[pattern])
        if tuple(k.dtypes) == tuple(dtypes) and act in k.acts
    ]
    return reduced(whole, kernels, act) if kernels else None


def units(found, many=MANY):
    """Returns {file name: (header, functions)}: one file per header and dtypes, or several of
    `many` functions.
    """
    groups = {}
    for f in found:
        groups.setdefault((f["header"], "_".join(f["dtypes"])), []).append(f)
    files = {}
    for (header, dtypes), members in groups.items():
        for i in range(0, len(members), many):
            files[f"{pathlib.Path(header).name}_{dtypes}_{i // many}.c"] = (
                header,
                members[i : i + many],
            )
    return files


def sources(found, many=MANY):
    """Returns {file name: text} of a library with these functions, including a table of their
    names.

    Args:
        many: maximum number of functions per file.
    """
    env = environment()
    env.globals.update(version=kf_version(), words=words, space=space, shape_lines=shape_lines)
    texts = {
        name: env.get_template("python/packed.c.j2").render(
            file=name, header=header, functions=members
        )
        for name, (header, members) in units(found, many).items()
    }
    ordered = sorted(found, key=lambda f: f["name"])
    texts["packed_table.c"] = env.get_template("python/packed_table.c.j2").render(
        file="packed_table.c", functions=ordered
    )
    return {name: tidy(text) for name, text in texts.items()}
