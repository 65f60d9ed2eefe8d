# SPDX-License-Identifier: Apache-2.0
"""Generates code from the manifest alone (`kfgen list --json`), as a layer above kf would. It
imports nothing of kfgen but the evaluator of size rules; tests/gen/test_manifest_is_enough.py uses
it."""

import size_rules

CTYPES = {
    "f32": "float",
    "f64": "double",
    "f16": "kf_f16",
    "bf16": "kf_bf16",
    "i32": "int32_t",
    "i64": "int64_t",
    "u8": "uint8_t",
}
# {role: C type} of the plain values in a call on tensors. Sizes come from the tensors, workspaces
# from a pool.
VALUES = {
    "integer": "int64_t",
    "scalar": "double",
    "act_scalar": "double",
    "beta": "double",
    "probability": "double",
    "seed": "uint64_t",
    "offset": "uint64_t",
    "seed_at": "const uint64_t *",
    "offset_at": "const uint64_t *",
    "offset_add": "uint64_t",
}


def tensors(f, *roles):
    return [a for a in f["arguments"] if "kind" in a and (not roles or a["role"] in roles)]


# ---- shapes


def sizes_of(f, shape, axis=None, groups=1):
    """Returns the sizes of a call from a tensor's shape of any rank, or from {name: shape} if
    several tensors determine them."""
    values = size_rules.lay_out(f, shape, axis, groups).values
    return {size: values[size] for size in f["sizes"]}


def extents(a, sizes):
    return size_rules.shape(a, sizes)


def fake(f, sizes):
    """Returns {output: (shape, dtype)}, the result of a framework's fake kernel."""
    return {a["name"]: (extents(a, sizes), a["dtype"]) for a in tensors(f, "out", "sum")}


# ---- prototypes


def fused(f):
    """Returns the declaration of a function on tensors that dispatches on their dtypes."""
    words = ["kf_context_t *context"]
    words += [
        f"{'const ' if a['role'] == 'in' else ''}kf_tensor_t *{a['name']}" for a in tensors(f)
    ]
    rules = f["axes"]["sizes"].values()
    words += ["int64_t dimension"] if {"dims": "before axis"} in rules else []
    words += [f"int64_t {rule['argument']}" for rule in rules if "argument" in rule]
    words += [f"int64_t {name}" for name in size_rules.options(f)]
    for a in f["arguments"]:
        if a["role"] in VALUES:
            words.append(f"{VALUES[a['role']]} {a['name']}".replace("* ", "*"))
    name = "_".join(
        w
        for w in ("kf_fused", f["base"], "state" if f["state"] else "", "bwd" if f["bwd"] else "")
        if w
    )
    return f"kf_result_t {name}({', '.join([*words, 'kf_stream_t *stream'])});"


# ---- a composition of calls


def literal(f, a, bytes_):
    """Returns the C text for an argument that is not a tensor."""
    if a["role"] in ("scalar", "integer", "act_scalar"):
        return repr(a["default"])
    if a["role"] == "shape":
        fields = [x["name"] for x in a["fields"] if x["role"] == "size" and not x["unread"]]
        return f"&(const {a['struct']}){{{', '.join(f'.{name} = {name}' for name in fields)}}}"
    return {
        "size": a["name"],
        "strides": "NULL",
        "beta": "0",
        "probability": "0.5",
        "seed": "1",
        "offset": "2",
    }.get(a["role"]) or ("arena" if a["ctype"] == "void *" else bytes_)


def workspace_arguments(f, sizes):
    """Returns the arguments of the workspace function, with numbers for sizes."""
    shape = next((a for a in f["arguments"] if a["role"] == "shape"), None)
    if not shape:
        return [sizes[s] for s in f["workspace_arguments"]]
    fields = ", ".join(f".{name} = {n}" for name, n in sizes.items())
    return [f"&(const {shape['struct']}){{{fields}}}"]


def step(i, f, sizes):
    """Returns the C function of one call, which allocates its tensors."""
    lines = [f"static int step_{i}(void *arena, size_t bytes)", "{"]
    known = sizes | size_rules.options(f)
    lines += [f"    const int64_t {name} = {n};" for name, n in known.items()]
    lines += [f"    (void){name};" for name in size_rules.options(f)]
    for a in tensors(f):
        count = " * ".join(f"({extent})" for extent in a["shape"])
        lines.append(
            f"    {CTYPES[a['dtype']]} *{a['name']} = "
            f"calloc((size_t)({count}), sizeof *{a['name']});"
        )
    words = [a["name"] if "kind" in a else literal(f, a, "bytes") for a in f["arguments"]]
    lines.append(f"    const kf_result_t result = {f['cpu_name']}({', '.join(words)});")
    lines += [f"    free({a['name']});" for a in tensors(f)]
    asked = f"{f['cpu_workspace']}({', '.join(map(str, workspace_arguments(f, sizes)))})"
    return [
        *lines,
        "    return (int)result;",
        "}",
        f"static size_t bytes_{i}(void) {{ return {asked}; }}",
        "",
    ]


def composition(calls):
    """Returns a C program that makes calls [(function, sizes)] in turn with one shared workspace,
    as large as the largest need.

    It prints the result of each call, with the workspace and with one byte less than the call
    needs. It exits with 1 if a byte behind the workspace has changed.
    """
    headers = dict.fromkeys(f["header"] for f, _ in calls)
    text = [f'#include "{h}.h"' for h in headers] + [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        "",
    ]
    for i, (f, sizes) in enumerate(calls):
        text += step(i, f, sizes)
    text += ["int main(void)", "{", "    size_t most = 0;"]
    text += [f"    if (bytes_{i}() > most) most = bytes_{i}();" for i in range(len(calls))]
    text += [
        "    unsigned char *arena = aligned_alloc(256, (most / 256 + 2) * 256);",
        "    memset(arena, 0xa5, (most / 256 + 2) * 256);",
    ]
    for i in range(len(calls)):
        text.append(
            f'    printf("%zu %d %d\\n", bytes_{i}(), step_{i}(arena, most), '
            f"step_{i}(arena, bytes_{i}() - 1));"
        )
    text += [
        "    for (size_t i = most; i < (most / 256 + 2) * 256; ++i)",
        "        if (arena[i] != 0xa5) return 1;",
    ]
    text += ["    free(arena);", "    return 0;", "}", ""]
    return "\n".join(text)


# ---- formulas


def evaluate(manifest, f, names, np, sp):
    """Evaluates the formula's NumPy statements and returns {output: array}. names: inputs, sizes
    and scalars."""
    names = dict(names)
    with np.errstate(all="ignore"):
        exec(
            "\n".join(manifest["statements"][f["statements"]]["numpy"]), {"np": np, "sp": sp}, names
        )
    return {a["name"]: names[a["name"]] for a in tensors(f, "out", "sum")}
