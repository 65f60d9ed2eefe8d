# SPDX-License-Identifier: Apache-2.0
"""Calls whose rows are no multiple of 16 bytes: read or stored by classes of rows
(kf/core/matmul/row_class.cuh), or copied to the workspace (repack.cuh). Used by tests/emu and
tests/cuda."""

import cases
import checks
import kflib
import numpy as np
import strided
from storage import to_float

NAMED = {f["name"]: f for f in kflib.on("cuda", kflib.manifest()["functions"])}


def named(first, more=()):
    """Returns the functions of a level: `more` from level 2 on."""
    return [NAMED[name] for name in (*first, *cases.by_level((), more))]


# Gradients whose left factor is `dout` itself, and others.
GRADIENTS = named(
    ["kf_linear_bwd_bf16", "kf_linear_bwd_f16"],
    ["kf_linear_bwd_bf16_f32", "kf_linear_add_bwd_bf16"],
)
OTHER_GRADIENTS = named(
    ["kf_linear_nn_bwd_bf16"],
    ["kf_linear_gelu_bwd_f16", "kf_linear_gelu_mul_bwd_bf16", "kf_gelu_linear_bwd_bf16"],
)
# Forwards in layout nt, whose result may have any row pitch; forwards that copy factors.
FORWARDS = named(
    ["kf_linear_gelu_bf16", "kf_linear_add_f16", "kf_matmul_nt_bf16"],
    ["kf_linear_f16", "kf_linear_elu_bf16", "kf_matmul_nt_f16", "kf_gelu_linear_bf16"],
)
COPYING = named(
    ["kf_matmul_nn_bf16", "kf_matmul_tn_f16"],
    ["kf_matmul_tt_bf16", "kf_linear_gelu_mul_f16", "kf_linear_nn_gelu_bf16"],
)
ALL = [*GRADIENTS, *OTHER_GRADIENTS, *FORWARDS, *COPYING]
# batch, rows, cols, depth. Columns of every residue modulo 8; rows of one class and of several
# tiles; K around the pipeline.
ODD_COLS = [
    (1, 130, 131, 200),
    (1, 67, 65, 8),
    (1, 1030, 77, 136),
    (2, 72, 393, 24),
    *cases.by_level([], [(1, 200, n, 72) for n in (66, 68, 69, 70, 71, 132, 1031)]),
]
# All sizes odd, and each alone.
ODD_SIZES = [
    (1, 131, 75, 69),
    (1, 70, 136, 73),
    *cases.by_level([], [(2, 67, 72, 72), (2, 66, 67, 68), (1, 129, 8, 1)]),
]


def pitched(f, sizes, name, more):
    """Returns strides for which rows of a tensor are `more` elements longer than contiguous ones.
    Matrices begin at multiples of 16 bytes."""
    a = next(a for a in strided.strided_tensors(f) if a["name"] == name)
    extents, length = strided.levels(f, sizes, a)
    ld = length + more
    return {name: [ld, -(-ld * extents[0] // 8) * 8][: len(extents)]}


def left_gradient(f):
    """Returns the name of the left factor's gradient."""
    return "d" + next(a["name"] for a in f["arguments"] if a.get("kind") == "left")


def put(call, name, at, value):
    """Sets elements of a tensor of 2-byte elements."""
    dtype = call.tensors[name]["dtype"]
    data = to_float(call.data[name], dtype)
    data[at] = value
    call.put(name, checks.from_float(data, dtype))


def results(lib, memory, call):
    memory.spans = call.spans()
    result, back = memory.run(call.image, lambda base: lib.call(call.f, call.given(base)))
    assert result == 0, lib.detail
    call.untouched(back)
    return call.outputs(back)


def check_nan(lib, memory, f, sizes):
    """Checks that NaN and infinity of two rows of dout reach those rows of the gradient alone: the
    first box of a row holds the end of the row before."""
    call = checks.Layout(lib, f, sizes)
    dout = next(name for name in call.tensors if name.startswith("dout"))
    put(call, dout, (0, 7), np.nan)
    put(call, dout, (0, sizes[1] - 2, slice(-3, None)), np.inf)
    name = left_gradient(f)
    got = to_float(results(lib, memory, call)[name], call.tensors[name]["dtype"])
    bad = np.flatnonzero(~np.isfinite(got[0]).all(1)).tolist()
    assert bad == [7, sizes[1] - 2], bad


def check_nan_of_forward(lib, memory, f, sizes, drop):
    """Checks that NaN in a row of the left factor stays in that row of the result."""
    call = checks.Layout(lib, f, sizes, drop=drop)
    left = next(a["name"] for a in f["arguments"] if a.get("kind") == "left")
    put(call, left, (0, 9), np.nan)
    got = to_float(results(lib, memory, call)["out"], call.tensors["out"]["dtype"])
    bad = np.flatnonzero(~np.isfinite(got[0]).all(1)).tolist()
    assert bad == [9], bad


def check_addresses(lib, memory, f, sizes, drop=()):
    """Checks tensors that are aligned to 2 bytes only."""
    names = [name for name, a in checks.Layout(lib, f, sizes).tensors.items() if "kind" in a]
    for shift in (1, [i % 8 for i in range(len(names))]):
        checks.run(lib, memory, f, sizes, shift=shift, drop=drop)


def optional(f):
    """Returns the outputs of a forward that may be NULL: classes of rows have one result."""
    return tuple(a["name"] for a in f["arguments"] if a["name"] == "pre")
