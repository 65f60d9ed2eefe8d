# SPDX-License-Identifier: Apache-2.0
"""Dtypes and devices of functions on tensors: KF_RUNTIME_DTYPES and KF_RUNTIME_CPU leave out
others, and the errors name them.
"""

import re
import subprocess

import numpy as np
import pytest
import runtime_api
import runtime_ops
import toolkit

MADE = runtime_ops.choose(
    ["add", "cast", "cross_entropy", "sum"], ["f32", "bf16", "i32"], ["none", "relu"]
)
WHOLE = {runtime_api.F32: "f32", runtime_ops.DTYPES["bf16"]: "bf16"}


def functions(dtypes):
    """Functions of the manifest with these element dtypes, whatever the dtype of an index."""
    return {
        f["name"]
        for f in MADE["functions"]
        if not f["state"]
        and {v["dtype"] for v in f["variables"] if v["name"] in ("T", "U")} <= dtypes
    }


def build(folder, *words):
    return runtime_api.compile_library(
        folder,
        *runtime_ops.include(folder, MADE),
        *words,
        text=runtime_ops.IMPLEMENTATION,
        name="ops.c",
    )


@pytest.mark.parametrize(
    ("mask", "dtypes"),
    [
        ("(1 << KF_DTYPE_FLOAT32)", {"f32"}),
        ("(1 << KF_DTYPE_BFLOAT16 | 1 << KF_DTYPE_FLOAT32)", {"f32", "bf16"}),
        ("(1 << KF_DTYPE_INT32)", {"i32"}),
        ("0", set()),
        ("(-1)", {"f32", "bf16", "i32"}),
    ],
    ids=["f32", "f32, bf16", "i32", "none", "all"],
)
def test_left_out(tmp_path, mask, dtypes):
    path = build(tmp_path, f"-DKF_RUNTIME_DTYPES={mask}")
    ops = runtime_ops.Ops(path, MADE)
    assert {ops.info(ops.op_at(i)).launcher.decode() for i in range(ops.op_count())} == functions(
        dtypes
    )
    compiled = set(
        re.findall(
            r"kfi_tile_add_(?:bwd_)?(\w+?)_\w+",
            subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout,
        )
    )
    assert compiled == dtypes
    assert not {"f32"} <= dtypes or {
        "kf_cross_entropy_f32",
        "kf_cross_entropy_f32_i32",
    } < functions(dtypes)
    ctx = ops.context()
    for dtype, word in WHOLE.items():
        x = ops.create(ctx, (5,), dtype)
        f = next(
            f
            for f in MADE["functions"]
            if f["op"] == "add_{act}"
            and f["dtypes"] == [word]
            and f["activation"] == "relu"
            and not f["bwd"]
        )
        code = ops.call(ctx, f, {"a": x, "b": x, "out": x}, ops.ids["relu"], {})
        text = (
            f"has {word} with activation relu, which this program does not have "
            "(kfgen runtime --dtypes, KF_RUNTIME_DTYPES)"
        )
        assert code == 0 if word in dtypes else ops.fails(code, "ERROR_DTYPE", text)
        assert bool(ops.lookup(f)) == (word in dtypes)
        if dtypes == {"f32"} and word not in dtypes:
            assert ops.fails(
                ops.lookup(f),
                "ERROR_DTYPE",
                f"dtypes are {word}, which add does not have in this program",
            )
            assert "KF_RUNTIME_DTYPES" in ops.detail
        ops.destroy(("tensor", x))
    ops.destroy(("context", ctx))


def test_all_that_an_op_has(tmp_path):
    """Launchers of products that round their factors have no function on tensors: their dtypes are
    those of the exact ones.
    """
    made = runtime_ops.choose(["matmul_nn"], None, ["none"])
    assert {d for f in made["functions"] for d in f["dtypes"]} == {
        "f32",
        "f16",
        "bf16",
        "f64",
        "tf32",
    }
    ops = runtime_ops.Ops(runtime_ops.compile_library(tmp_path, made), made)
    there = {ops.info(ops.op_at(i)).launcher.decode() for i in range(ops.op_count())}
    assert there == {f["name"] for f in made["functions"] if "tf32" not in f["dtypes"]}


def test_an_enumerator_is_refused(tmp_path):
    """The preprocessor evaluates KF_BF16 as 0, which would select f32."""
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path, "-DKF_RUNTIME_DTYPES=(1 << KF_BF16)")


@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_on_a_gpu_alone(tmp_path):
    """A library with one dtype and without functions of the CPU still has tensors of the CPU."""
    words = (
        "-DKF_RUNTIME_DTYPES=(1 << KF_DTYPE_BFLOAT16)",
        "-DKF_RUNTIME_FAST=(1 << KF_ACTIVATION_RELU)",
        "-DKF_RUNTIME_CPU=0",
    )
    path = runtime_ops.compile_emulated(tmp_path, MADE, *words)
    symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    kernels = set(re.findall(r"kfk_(?:add|sum)\w*", symbols))
    assert {"kfk_add_bf16", "kfk_add_activation_bf16", "kfk_add_activation_bwd_bf16"} < kernels
    assert all("_bf16" in name for name in kernels), kernels
    assert "kfi_tile_add" not in symbols and "kf_cpu_add" not in symbols
    ops = runtime_ops.Ops(path, MADE)
    f = next(f for f in MADE["functions"] if f["name"] == "kf_add_relu_bf16")
    for ctx, on_cpu in ((ops.context(), True), (ops.context(0), False)):
        x = np.array([0x3F80, 0xBF80], np.uint16)  # 1, -1
        handle = ops.over(ctx, x, runtime_ops.DTYPES["bf16"])
        code = ops.call(ctx, f, {"a": handle, "b": handle, "out": handle}, ops.ids["relu"], {})
        if on_cpu:
            assert ops.fails(
                code,
                "ERROR_UNSUPPORTED",
                "is of a CPU, and kf_add_relu_bf16 was compiled for the other device alone "
                "(KF_RUNTIME_CPU)",
            )
        else:
            assert code == 0 and x.tolist() == [0x4000, 0], ops.detail
        ops.destroy(("tensor", handle), ("context", ctx))
