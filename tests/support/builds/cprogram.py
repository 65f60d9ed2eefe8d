# SPDX-License-Identifier: Apache-2.0
"""Builds a C program that calls each given function (every_call.c), with a test's compiler
flags."""

import math
import pathlib
import subprocess

import cases
import kflib
from kfgen.model import shapes

HERE = pathlib.Path(__file__).parent
DEFAULT_SIZES = 5  # Sizes of every_call.c's own shapes: small_5, large_5.


def literal(f, a):
    """Returns the C text of an argument that is not a tensor."""
    if a["name"] in f["sizes"]:
        return f"n[{f['sizes'].index(a['name'])}]"
    if a["role"] == "shape":
        fields = ", ".join(f".{size} = n[{i}]" for i, size in enumerate(f["sizes"]))
        return f"&(const {a['struct']}){{{fields}}}"
    if a["role"] == "integer":
        return repr(f["scalars"][a["name"]])
    if a["name"] in f["scalars"]:
        return repr(float(f["scalars"][a["name"]])) + ("" if a["ctype"] == "double" else "f")
    return {
        "strides": "NULL",
        "probability": "0.25f" if a["ctype"] == "float" else "0.25",
        "seed": "11",
        "offset": "12",
        "seed_at": "state",
        "offset_at": "state + 1",
        "offset_add": "0",
        "workspace": "workspace" if a["ctype"] == "void *" else "workspace_bytes",
    }[a["role"]]


def extents(f, a):
    """Returns a tensor's number of elements as (bit mask of the sizes to multiply, constant
    factor, addend); None if it is another expression."""
    lines = [shapes.linear(extent) for extent in a["extents"]]
    if None in lines:
        return None
    sizes = {f["sizes"].index(size) for _, size, _ in lines}
    plus = sum(addend for *_, addend in lines)
    assert len(sizes) == len(lines) and (len(lines) == 1 or not plus), f["name"]
    return sum(1 << i for i in sizes), math.prod(factor for factor, *_ in lines), plus


def integers(f, a):
    """Returns (first, step) of a tensor's integers. Those of a family are in its INTEGERS; bounds,
    one more than the things that they separate, ascend; others are arbitrary: (0, 0)."""
    own = getattr(cases.own(f), "INTEGERS", {})
    return own.get(a["kind"], (0, 1 if (extents(f, a) or (0, 0, 0))[2] else 0))


def expression(f, extent):
    """Returns the C text of an extent of positive sizes."""
    if isinstance(extent, str):
        return f"n[{f['sizes'].index(extent)}]"
    if isinstance(extent, int):
        return str(extent)
    sign, left, right = extent
    return f"({expression(f, left)} {sign} {expression(f, right)})"


def files_of(functions, few):
    """Returns {file name: its functions}. A header with fewer than `few` functions shares a file
    with others that are called on the same sizes. The headers of a family cost half the compile
    time of a small file."""
    groups, open_ = {}, {}
    for f in functions:
        groups.setdefault(f["header"], []).append(f)
    found = []
    for members in groups.values():
        like = members[0]["family"], repr(getattr(cases.own(members[0]), "CALLS", None))
        if len(open_.get(like, ())) >= few or like not in open_:
            found.append([])
            open_[like] = found[-1]
        open_[like] += members
    return {f"table_{i}": members for i, members in enumerate(found)}


def table(name, functions):
    """Returns one C file: calls of `functions`, and their descriptions for every_call.c."""
    text = [f'#include "{header}.h"' for header in dict.fromkeys(f["header"] for f in functions)]
    text += ['#include "every_call.h"', "static const uint64_t state[2] = {11, 12};"]
    rows = []
    # (small, large) sizes of a family that needs particular ones.
    own = getattr(cases.own(functions[0]), "CALLS", None)
    for word, sizes in zip(("small", "large"), own or ()):
        text.append(
            f"static const int64_t {word}[][KFT_SIZES] = {{"
            f"{', '.join('{' + ', '.join(map(str, s)) + '}' for s in sizes)}}};"
        )
    sets = f"{{small, large}}, {{{len(own[0])}, {len(own[1])}}}" if own else "{NULL, NULL}, {0, 0}"
    for i, f in enumerate(functions):
        tensors = [a for a in f["arguments"] if "kind" in a]
        words = [
            (f"p[{tensors.index(a)}]" if "kind" in a else literal(f, a)) for a in f["arguments"]
        ]
        counted = {}  # functions of tensors whose elements are no product of sizes
        for k, a in enumerate(tensors):
            if extents(f, a) is None:
                counted[k] = f"elements_{i}_{k}"
                product = " * ".join(expression(f, extent) for extent in a["extents"])
                text.append(f"static int64_t {counted[k]}(const int64_t *n)")
                text.append(f"{{\n    return {product};\n}}")
        text.append(f"static const kft_tensor tensors_{i}[] = {{")
        for k, a in enumerate(tensors):
            reads = a["role"] in ("in", "inout")
            flags = [int(v) for v in (a["role"] != "in", reads, a["unread"], a["positive"])]
            flags = ", ".join(map(str, flags))
            of = ", ".join(map(str, (*(extents(f, a) or (0, 0, 0)), *integers(f, a))))
            of = f"{counted.get(k, 'NULL')}, {of}"
            text.append(f'    {{"{a["name"]}", {of}, KFT_{a["dtype"].upper()}, {flags}}},')
        text.append("};")
        text.append(
            f"static int call_{i}(void *const *p, const int64_t *n, void *workspace, "
            "size_t workspace_bytes)\n{"
        )
        text.append("    (void)state, (void)workspace, (void)workspace_bytes;")
        text.append(f"    return (int){f['cpu_name']}({', '.join(words)});\n}}")
        if f["cpu_workspace"]:
            named = {a["name"]: a for a in f["arguments"]}
            sizes = ", ".join(literal(f, named[name]) for name in f["workspace_arguments"])
            text.append(
                f"static size_t workspace_{i}(const int64_t *n) "
                f"{{ return {f['cpu_workspace']}({sizes}); }}"
            )
        rows.append(
            f'    {{"{f["cpu_name"]}", {len(f["sizes"])}, {len(tensors)}, tensors_{i}, call_{i}, '
            f"{f'workspace_{i}' if f['cpu_workspace'] else 'NULL'}, {sets}}},"
        )
    return "\n".join(
        [
            *text,
            f"extern const kft_function {name}[];",
            f"const kft_function {name}[] = {{",
            *rows,
            "};",
            "",
        ]
    )


def build(folder, functions, include, flags, few=kflib.FEW):
    """Builds the program and returns its path. few: minimum number of functions per file. With 1
    each header has its own file; compilers then inline functions that are called once."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = files_of(functions, few)
    files = {f"{name}.c": table(name, members) for name, members in groups.items()}
    files["tables.c"] = "\n".join(
        [
            '#include "every_call.h"',
            *(f"extern const kft_function {name}[];" for name in groups),
            "const kft_table kft_tables[] = {",
            *(f"    {{{name}, {len(members)}}}," for name, members in groups.items()),
            "};",
            f"const int kft_table_count = {len(groups)};",
            "",
        ]
    )
    files["every_call.c"] = (HERE / "every_call.c").read_text()
    most = max(DEFAULT_SIZES, *(len(f["sizes"]) for f in functions))
    # Without --gc-sections every file's own copy of the error detail would take stack space of each
    # thread; the program uses one.
    command = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-DKFT_SIZES={most}",
        *flags,
        "-pthread",
        "-fdata-sections",
    ]
    made = kflib.objects(command, files, [HERE, *include])
    subprocess.run(
        [
            *command,
            *map(str, made),
            "-o",
            str(folder / "every_call"),
            "-lm",
            "-Wl,-z,now",
            "-Wl,--gc-sections",
        ],
        check=True,
    )
    return folder / "every_call"
