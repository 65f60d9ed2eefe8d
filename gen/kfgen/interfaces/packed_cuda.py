# SPDX-License-Identifier: Apache-2.0
"""CUDA launchers behind packed.py's calling convention, compiled by a C++ compiler.

The library contains all launchers and no kernel: kernels are loaded through the CUDA driver when a
launch requests them (frontends/python/kernel_fusion/native/loader.cpp).
"""

from kfgen.interfaces import packed
from kfgen.paths import version as kf_version
from kfgen.render.environment import environment
from kfgen.render.layout import tidy


def functions(manifest):
    """Returns [(public name, function that is called)].

    For a dropout the `_state` function is called, which reads seed and offset from device memory.
    """

    def key(f):
        return f["op"], f["activation"], tuple(f["dtypes"]), f["bwd"]

    with_state = {key(f): f for f in manifest["functions"] if f["state"]}
    return [
        (f["name"], with_state.get(key(f), f))
        for f in packed.functions(manifest)
        if "cuda" in f["backends"]
    ]


def words(f):
    """Arguments of a CUDA launcher, read from the arrays as in packed.words."""
    arrays = {
        **dict.fromkeys(packed.TENSORS, "t"),
        **dict.fromkeys(packed.NUMBERS, "n"),
        **dict.fromkeys(packed.SCALARS, "s"),
    }
    alone = {
        "seed_at": "r",
        "offset_at": "r + 1",
        "offset_add": "0",
        "workspace": "w",
        "workspace_bytes": "b",
    }
    at, found = dict.fromkeys("tns", 0), []
    at["n"] = packed.shape_numbers(f)
    for a in f["arguments"]:
        array = arrays.get(a["role"])
        if array:
            ctype = packed.pointer(a) if array == "t" else a["ctype"]
            found.append(f"({ctype}){array}[{at[array]}]")
            at[array] += 1
        elif a["role"] == "strides":
            found.append(f"(const {a['struct']} *)(const void *)d")
        elif a["role"] == "shape":
            found.append("&kfi_sizes")
        else:
            found.append(alone[a["name"] if a["role"] == "workspace" else a["role"]])
    return ", ".join([*found, "(cudaStream_t)q"])


def sources(found):
    """Returns {file name: text} of a library with these functions."""
    env = environment()
    env.globals.update(
        version=kf_version(), words=words, space=packed.space, shape_lines=packed.shape_lines
    )
    called = {f["name"]: name for name, f in found}
    texts = {}
    for name, (header, members) in packed.units([f for _, f in found]).items():
        file = f"{name.removesuffix('.c')}.cpp"
        pairs = [(called[f["name"]], f) for f in members]
        texts[file] = env.get_template("python/packed_cuda.cpp.j2").render(
            file=file, header=header, functions=pairs
        )
    ordered = sorted(
        ({"name": name, "workspace": f["workspace"]} for name, f in found), key=lambda f: f["name"]
    )
    texts["packed_table.cpp"] = env.get_template("python/packed_table.c.j2").render(
        file="packed_table.cpp", functions=ordered
    )
    return {name: tidy(text) for name, text in texts.items()}
