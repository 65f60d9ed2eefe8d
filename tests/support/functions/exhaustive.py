# SPDX-License-Identifier: Apache-2.0
"""Checks one function of the C backend on every value of a 2-byte type, against the oracle."""

import checks
import numpy as np
import storage


def all_values(dtype):
    """Returns all finite and all non-finite values of f16 or bf16 as storage. f32 gets the values
    of bf16."""
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    if dtype == "f32":
        bits = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(checks.to_float(bits, dtype))
    return bits[finite], bits[~finite]


def call(lib, f, inputs, sizes, scalars=None, drop=()):
    """Calls f on {input: storage} and returns {tensor: storage}. Outputs are poisoned first. drop:
    inputs passed as NULL; missing inputs are NULL too."""
    scalars = {**f["scalars"], **(scalars or {})}
    given = dict(zip(f["sizes"], map(int, sizes))) | scalars
    data = {}
    for a in f["arguments"]:
        if "kind" not in a:
            continue
        name, shape = a["name"], checks.shape_of(f, sizes, a)
        if a["role"] == "in" and name not in inputs:
            given[name] = None
            continue
        if a["role"] == "in":
            data[name] = np.ascontiguousarray(inputs[name]).reshape(shape)
        else:
            data[name] = checks.from_float(np.full(shape, np.nan), a["dtype"])
        given[name] = None if a["unread"] or name in drop else data[name].ctypes.data
    need = lib.workspace_bytes(f, list(map(int, sizes)))
    _held, workspace = storage.workspace(need)
    result = lib.call(f, given | {"workspace": workspace, "workspace_bytes": need})
    if result != 0:
        raise checks.Failure(f"{f['cpu_name']}: returned {result} ({lib.detail})")
    return data


def run(lib, f, inputs, sizes, label="", drop=()):
    """Calls f and checks every element against the oracle's bound."""
    data = call(lib, f, inputs, sizes, drop=drop)
    outputs = {
        a["name"]: data[a["name"]] for a in f["arguments"] if "kind" in a and a["role"] != "in"
    }
    kernel = checks.kernel_of(f["op"], tuple(f["dtypes"]), f["bwd"])
    kind = np.float64 if kernel.dtype.compute == "f64" else np.float32
    env = {
        s.name: checks.spread(checks.to_float(data[s.name], s.dtype.word), sizes, s.kind)
        for s in kernel.operands
    }
    checks.check(
        f,
        kernel,
        checks.spec().activations[f["activation"]],
        sizes,
        env,
        data,
        outputs,
        {k: float(kind(v)) for k, v in f["scalars"].items()},
        0,
        0,
        0.0,
        f"{f['cpu_name']} {label}".rstrip(),
        drop,
        kind,
    )
    return outputs


def run_all_values(lib, f):
    """Runs all values through a function of one operand; a backward gets three kinds of incoming
    gradients."""
    dtype = f["dtypes"][0]
    rng = np.random.default_rng(7)
    # Finite values run separately: beside non-finite ones, 0 * inf may be anything in a gradient.
    for label, x in zip(("finite", "not finite"), all_values(dtype)):
        gradients = (
            [np.ones(x.size), rng.standard_normal(x.size), np.exp2(rng.uniform(-10, 10, x.size))]
            if f["bwd"]
            else [None]
        )
        for dout in gradients:
            inputs = {"x": x} if dout is None else {"x": x, "dout": checks.from_float(dout, dtype)}
            result = checks.result_of(f)
            run(lib, f, inputs, (x.size,), label, (result,) if result else ())
            if result:
                act = checks.spec().activations[f["activation"]]
                made = checks.elements_reference.act_value(
                    act,
                    checks.to_float(x, dtype),
                    {k: float(np.float32(v)) for k, v in f["scalars"].items()},
                )
                run(
                    lib,
                    f,
                    inputs | {result: checks.from_float(made, dtype)},
                    (x.size,),
                    f"{label}, by the result",
                    checks.instead_of(f),
                )
