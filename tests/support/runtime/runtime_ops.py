# SPDX-License-Identifier: Apache-2.0
"""Compiles functions on tensors, as `kfgen runtime` writes them, and calls them through ctypes with
tensors of many dimensions."""

import ctypes
import subprocess

import cases
import emulator
import kflib
import numpy as np
import runtime_api
from kfgen.entries import spec as specs
from kfgen.interfaces import manifest, runtime
from kfgen.model import shapes
from kfgen.render.render import Selection

DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3, "i32": 4, "i64": 5, "u8": 6}
KINDS = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "kf_activation_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
}
# {form: {size: extents}}: the dimensions whose product is each size, in the order of the function's
# sizes.
SHAPES = {
    "flat": {"n": (2, 3, 4)},
    "rows": {"rows": (2, 3), "cols": (40,)},
    "axis": {"outer": (2, 3), "axis": (5,), "inner": (2, 2)},
    "planes": {"outer": (2,), "channels": (3,), "inner": (2, 5)},
    "channels": {"outer": (4,), "channels": (3,), "inner": (5, 2)},
    "heads": {"batch": (2, 2), "heads": (2,), "queries": (3,), "keys": (8,)},
    "groups": {"outer": (3,), "length": (), "groups": (2,), "channels": (6,), "inner": (2, 3)},
    **{
        form: {
            "batch": (2,),
            "rows": (2, 3) if form[0] == "n" else (6,),
            "cols": (33,),
            "depth": (20,),
        }
        for form in ("nt", "nn", "tn", "tt")
    },
}


def choose(ops, dtypes, activations):
    return manifest.build(Selection(specs.load(), ops, activations, dtypes))


IMPLEMENTATION = '#define KF_RUNTIME_IMPLEMENTATION\n#include "ops.h"\n'


def include(folder, made):
    (folder / "ops.h").write_text(runtime.render(made, "ops.h"))
    return [f"-I{folder}", "-isystem", str(kflib.render(kflib.ROOT / "build/tests")[1])]


def compile_library(folder, made):
    return runtime_api.compile_library(
        folder, *include(folder, made), text=IMPLEMENTATION, name="ops.c"
    )


def compile_emulated(folder, made, *defined):
    """Compiles the library with a GPU backend whose kernels run in the emulator. defined: further
    compiler flags."""
    own = [
        f"-I{emulator.HERE}/include",
        f"-I{emulator.HERE}",
        *include(folder, made),
        f"-I{kflib.ROOT}/tests/support/emulation",
        *emulator.flags("plain"),
    ]
    link = [emulator.runtime(kflib.ROOT / "build/tests/emu", "plain")]
    return runtime_api.compile_library(
        folder,
        *own,
        "-DKFI_RT_BLOCK_OF_GPU=1000",
        *defined,
        compiler="g++ -std=c++17",
        warnings=(),
        link=link,
        text='#include "emulated_memory.h"\n' + IMPLEMENTATION,
        name="emulated.cpp",
    )


def compile_on_a_gpu(folder, made):
    (folder / "ops.cu").write_text(IMPLEMENTATION)
    flags = [
        "-O2",
        "-arch=native",
        "-DKF_RUNTIME_CPU=0",
        "-Xcompiler",
        "-fPIC",
        "-shared",
        f"-I{kflib.ROOT / 'include'}",
        *include(folder, made),
    ]
    subprocess.run(["nvcc", *flags, folder / "ops.cu", "-o", folder / "libops.so"], check=True)
    return folder / "libops.so"


# Entry points of a function: by its own name, through kf_op_lookup, and through a plan.
ENTRY_POINTS = ("function", "by name", "plan")


class Info(ctypes.Structure):
    class Tensor(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_char_p),
            *((n, ctypes.c_int32) for n in ("dtype", "is_output", "is_required")),
        ]

    _fields_ = [
        *((n, ctypes.c_char_p) for n in ("name", "activation", "launcher")),
        *(
            (n, ctypes.c_int32)
            for n in (
                "activation_id",
                "on_cpu",
                "on_cuda",
                "takes_dim",
                "takes_groups",
                "takes_dropout",
                "takes_beta",
                "tensor_count",
                "integer_count",
                "scalar_count",
                "act_scalar_count",
            )
        ),
        ("tensors", Tensor * 24),
        *(
            (n, ctypes.c_char_p * k)
            for n, k in (("integers", 16), ("scalars", 16), ("act_scalars", 4))
        ),
        ("act_defaults", ctypes.c_double * 4),
    ]


class Arguments(ctypes.Structure):
    _fields_ = [
        ("tensors", ctypes.c_void_p),
        ("integers", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("act_scalars", ctypes.c_void_p),
        ("groups", ctypes.c_int64),
        ("p", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("dim", ctypes.c_int32),
    ]


class Ops(runtime_api.Api):
    """An Api with the functions on tensors, found by op."""

    def __init__(self, path, made):
        super().__init__(path)
        self.functions = {(f.op, f.bwd): f for f in runtime.functions(made)}
        self.ids = {a["name"]: a["id"] for a in made["activations"]}

    def function(self, f):
        """Returns (description, C function) for a function of the manifest."""
        found = self.functions[f["op"], f["bwd"]]
        fn = getattr(self.dll, found.name + ("_with" if found.has_act else ""))
        fn.restype, fn.argtypes = (
            ctypes.c_int,
            [KINDS.get(kind.strip(), ctypes.c_void_p) for kind, _ in found.parameters()],
        )
        return found, fn

    def lookup(self, f, device_type=0, name=None):
        """Returns the op that kf_op_lookup finds for a function of the manifest."""
        dtypes = (ctypes.c_int * len(f["dtypes"]))(*(DTYPES[d] for d in f["dtypes"]))
        found = self.functions[f["op"], f["bwd"]]
        name = name or (found.plain or found.name).removeprefix("kf_fused_")
        return self.op_lookup(
            name.encode(),
            self.ids[f["activation"]],
            ctypes.addressof(dtypes),
            len(dtypes),
            device_type,
        )

    def arguments(self, f, tensors, scalars, rng, p, dim, groups):
        """Returns a kf_op_arguments_t; it keeps the arrays that it points to."""

        def array(kind, numbers):
            return (kind * max(len(numbers), 1))(*numbers)

        handles = [tensors[a.name.decode()] for a in self.info(self.lookup(f)).tensors if a.name]
        roles = [
            [scalars[a["name"]] for a in f["arguments"] if a["role"] == role]
            for role in ("integer", "scalar", "act_scalar")
        ]
        kept = [
            array(ctypes.c_void_p, handles),
            array(ctypes.c_int64, roles[0]),
            array(ctypes.c_double, roles[1]),
            array(ctypes.c_double, roles[2]),
        ]
        made = Arguments(
            *(ctypes.addressof(k) for k in kept),
            groups or 0,
            p,
            scalars.get("beta", 0.0),
            *rng,
            0 if dim is None else dim,
        )
        made.kept = kept
        return made

    def info(self, op):
        found = Info()
        assert self.op_get_info(op, ctypes.addressof(found)) == 0, self.detail
        return found

    def by_name(self, ctx, f, arguments, stream):
        return self.op_call(ctx, self.lookup(f), ctypes.addressof(arguments), stream)

    def by_plan(self, ctx, f, arguments, stream):
        """Creates a plan for these tensors, then runs it with their addresses."""
        plan = self.plan_create(ctx, self.lookup(f), ctypes.addressof(arguments))
        if not plan:
            return "no plan"
        pointers = (ctypes.c_void_p * len(arguments.kept[0]))(
            *(h and self.tensor_data(h) for h in arguments.kept[0])
        )
        code = self.plan_run(plan, ctypes.addressof(pointers), stream)
        self.destroy(("plan", plan))
        return code

    def call(
        self,
        ctx,
        f,
        tensors,
        activation_id,
        scalars,
        rng=(0, 0),
        p=0.0,
        dim=None,
        groups=None,
        stream=None,
        via="function",
    ):
        """Calls f through an entry point. tensors: {name: handle or None}. scalars: {name: number},
        including the activation's."""
        if via != "function":
            arguments = self.arguments(f, tensors, scalars, rng, p, dim, groups)
            return (self.by_name if via == "by name" else self.by_plan)(ctx, f, arguments, stream)
        found, fn = self.function(f)
        own = [scalars[a["name"]] for a in f["arguments"] if a["role"] == "act_scalar"]
        act_scalars = (ctypes.c_double * max(len(own), 1))(*own)
        values = (
            dict(scalars)
            | tensors
            | {
                "ctx": ctx,
                "stream": stream,
                "act": activation_id,
                "act_scalars": ctypes.addressof(act_scalars),
                "p": p,
                "seed": rng[0],
                "offset": rng[1],
                "dim": dim,
                "groups": groups,
            }
        )
        return fn(*[values[name] for _, name in found.parameters()])


def takes_handles(f):
    """Returns whether the arguments of a launcher allow a function on tensors: one of lists has
    nothing but lists, of the same number of tensors each."""
    given = [a for a in f["arguments"] if "use" in a]
    return not any(a["list"] for a in given) or all(a["list"] and not a["null"] for a in given)


def extents(f):
    return SHAPES.get(f["form"]) or cases.own(f).EXTENTS


def sizes(f):
    return [int(np.prod(extents(f)[s], dtype=np.int64)) for s in f["sizes"]]


def shape(f, a):
    """Returns the shape of tensor `a` with those extents."""
    found = []
    for factor, size, addend in map(shapes.linear, a["extents"]):
        whole = factor == 1 and not addend
        count = factor * sizes(f)[f["sizes"].index(size)] + addend
        found += extents(f)[size] if whole else [count]
    return tuple(found)


def dim(f):
    """Returns the axis, counted from the front, if the caller chooses it."""
    return len(extents(f)["outer"]) if f["form"] == "axis" else None
