# SPDX-License-Identifier: Apache-2.0
"""The activations and kernels of functions on tensors: one kernel for all activations, or one each
for some; masks leave out others.
"""

import re
import subprocess

import numpy as np
import pytest
import runtime_ops
import toolkit

MADE = runtime_ops.choose(["add"], ["f32"], ["none", "relu", "gelu"])
FORWARD = {f["activation"]: f for f in MADE["functions"] if not f["bwd"]}
pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture
def library(once, request):
    defined = request.param
    return once(
        f"functions of activations {defined}",
        lambda folder: runtime_ops.compile_emulated(folder, MADE, *defined),
    )


def kernels(path):
    symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"kfk_add\w*<\d+", symbols))


def result(ops, activation):
    """Returns the code of a call on a GPU's tensors, and whether the result is relu's sum or
    another's.
    """
    ctx = ops.context(0)
    x, out = np.linspace(-2, 2, 37, dtype=np.float32), np.zeros(37, np.float32)
    handles = {"a": ops.over(ctx, x, 0), "b": ops.over(ctx, x, 0), "out": ops.over(ctx, out, 0)}
    code = ops.call(ctx, FORWARD["none"], handles, ops.ids[activation], {})
    ops.destroy(*(("tensor", h) for h in handles.values()), ("context", ctx))
    return code, out


ALL = {
    f"kfk_add_activation{bwd}_f32{apart}<2147483647"
    for bwd in ("", "_bwd")
    for apart in ("", "_apart")
}


@pytest.mark.parametrize(
    ("library", "made"),
    [
        ((), ALL),
        (
            ("-DKF_RUNTIME_FAST=(1<<KF_ACTIVATION_GELU)",),
            ALL | {"kfk_add_f32<7", "kfk_add_bwd_f32<7"},
        ),
    ],
    ids=["one for all", "gelu has its own"],
    indirect=["library"],
)
def test_kernels(library, made):
    assert kernels(library) == made
    ops = runtime_ops.Ops(library, MADE)
    for activation in FORWARD:
        code, out = result(ops, activation)
        assert code == 0 and out[-1] > 3.9 and (out[0] == -4) == (activation == "none"), (
            activation,
            ops.detail,
        )


@pytest.mark.parametrize(
    "library",
    [("-DKF_RUNTIME_ACTIVATIONS=(1<<KF_ACTIVATION_NONE|1<<KF_ACTIVATION_RELU)",)],
    ids=[""],
    indirect=True,
)
def test_left_out(library):
    """The CPU library also lacks it."""
    ops = runtime_ops.Ops(library, MADE)
    assert result(ops, "relu")[0] == 0
    for ctx in (ops.context(0), ops.context()):
        x = ops.create(ctx, (5,))
        handles = {"a": x, "b": x, "out": x}
        code = ops.call(ctx, FORWARD["none"], handles, ops.ids["gelu"], {})
        assert ops.fails(
            code,
            "ERROR_UNSUPPORTED",
            "kf_fused_add_activation: activation is 7, which this program does not have",
        )
        assert ops.call(ctx, FORWARD["none"], handles, ops.ids["relu"], {}) == 0
        ops.destroy(("tensor", x), ("context", ctx))
    assert not ops.op_lookup(b"add", ops.ids["gelu"], None, 0, 0) and ops.op_lookup(
        b"add", ops.ids["relu"], None, 0, 0
    )
    assert (
        "kf_cpu_add_gelu_f32"
        not in subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    )
