# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors, as `kfgen runtime` writes them, as a library for ctypes; and calls of them with tensors of many dimensions."""

import ctypes

import kflib
import numpy as np
import runtime_api
from kfgen import manifest, runtime
from kfgen import spec as specs
from kfgen.render import Selection

DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3, "i32": 4, "i64": 5, "u8": 6}
KINDS = {"int": ctypes.c_int, "int64_t": ctypes.c_int64, "double": ctypes.c_double, "kf_activation_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64}
# What each size is made of: {form: {size: extents}}; the sizes' own order is the function's.
SHAPES = {
    "flat": {"n": (2, 3, 4)}, "rows": {"rows": (2, 3), "cols": (40,)}, "axis": {"outer": (2, 3), "axis": (5,), "inner": (2, 2)},
    "planes": {"outer": (2,), "channels": (3,), "inner": (2, 5)}, "channels": {"outer": (4,), "channels": (3,), "inner": (5, 2)},
    "heads": {"batch": (2, 2), "heads": (2,), "queries": (3,), "keys": (8,)},
    "groups": {"outer": (3,), "length": (), "groups": (2,), "channels": (6,), "inner": (2, 3)}}


def choose(ops, dtypes, activations):
    return manifest.build(Selection(specs.load(), ops, activations, dtypes))


def compile_library(folder, made):
    (folder / "ops.h").write_text(runtime.render(made, "ops.h"))
    include = [f"-I{folder}", "-isystem", str(kflib.render(kflib.ROOT / "build/tests")[1])]
    text = '#define KF_RUNTIME_IMPLEMENTATION\n#include "ops.h"\n'
    return runtime_api.compile_library(folder, *include, text=text, name="ops.c")


class Ops(runtime_api.Api):
    """An Api whose functions on tensors are known too, by name."""

    def __init__(self, path, made):
        super().__init__(path)
        self.functions = {(f.op, f.bwd): f for f in runtime.functions(made)}

    def function(self, f):
        """The one for a function of the manifest, and what it is called by."""
        found = self.functions[f["op"], f["bwd"]]
        fn = getattr(self.dll, found.name + ("_with" if found.has_act else ""))
        fn.restype, fn.argtypes = ctypes.c_int, [KINDS.get(kind.strip(), ctypes.c_void_p) for kind, _ in found.parameters()]
        return found, fn

    def call(self, ctx, f, tensors, activation_id, scalars, rng=(0, 0), p=0.0, dim=None, groups=None, stream=None):
        """tensors: {name: handle or None}. scalars: {name: number}, the activation's among them."""
        found, fn = self.function(f)
        own = [scalars[a["name"]] for a in f["arguments"] if a["role"] == "act_scalar"]
        act_scalars = (ctypes.c_double * max(len(own), 1))(*own)
        values = dict(scalars) | tensors | {"ctx": ctx, "stream": stream, "act": activation_id, "act_scalars": ctypes.addressof(act_scalars), "p": p,
                                            "seed": rng[0], "offset": rng[1], "dim": dim, "groups": groups}
        return fn(*[values[name] for _, name in found.parameters()])


def extents(f):
    return SHAPES[f["form"]]


def sizes(f):
    return [int(np.prod(extents(f)[s], dtype=np.int64)) for s in f["sizes"]]


def shape(f, a):
    """Of a tensor with those extents."""
    found = []
    for extent in a["shape"]:
        factor, _, size = extent.rpartition(" * ")
        dims = list(extents(f)[size])
        if factor:
            dims[-1] *= int(factor)
        found += dims
    return tuple(found)


def dim(f):
    """The axis, counted from the front, where callers choose it."""
    return len(extents(f)["outer"]) if f["form"] == "axis" else None
