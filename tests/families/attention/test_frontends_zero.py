# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements whose size of 0 stands for another one in C: each path to the launchers
refuses them, since a call would write results that tensors have no room for."""

import importlib

import numpy as np
import pytest
import runtime_ops

SHAPES = {
    "q": (2, 5, 4, 16),
    "k": (2, 7, 2, 16),
    "v": (2, 7, 2, 8),
    "out": (2, 5, 4, 8),
    "lse": (2, 4, 5),
    "row_max": (2, 4, 5),
    "log_sum": (2, 4, 5),
}
# Changed shapes, the size of 0 and the size beside it.
WRONG = [
    ({"v": (2, 7, 2, 0), "out": (2, 5, 4, 0)}, "dim_v", "16 dim"),
    ({"k": (2, 7, 0, 16), "v": (2, 7, 0, 8)}, "kv_heads", "4 heads"),
]
FORWARD = {"dim_v": "v", "kv_heads": "k"}  # the first input with the size
wrong = pytest.mark.parametrize("change, size, beside", WRONG, ids=["columns", "heads"])


def refused(named, size, beside):
    return f"{named} has no elements: {size} is 0, expected 1 or more beside {beside}"


@pytest.fixture(scope="module")
def runtime_library(tmp_path_factory):
    made = runtime_ops.choose(["attention"], ["f32"], ["none"])
    path = runtime_ops.compile_library(tmp_path_factory.mktemp("attention"), made)
    return runtime_ops.Ops(path, made), made["functions"]


@pytest.mark.parametrize("bwd", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("via", runtime_ops.ENTRY_POINTS)
@wrong
def test_functions_on_tensors(runtime_library, change, size, beside, via, bwd):
    ops, functions = runtime_library
    f = next(f for f in functions if f["bwd"] == bwd and not f["state"])
    ctx, shapes = ops.context(), SHAPES | change
    tensors, scalars = {}, {}
    for a in f["arguments"]:
        if "use" in a:
            of = a["name"].removeprefix("d") if a["name"] not in SHAPES else a["name"]
            tensors[a["name"]] = ops.create(ctx, shapes[of])
        elif a["role"] == "shape":
            scalars |= {x["name"]: 0 for x in a["fields"]}
        elif a["role"] == "scalar":
            scalars[a["name"]] = 1.0
    named = next(a["name"] for a in f["arguments"] if size in a.get("extents", ()))
    result = ops.call(ctx, f, tensors, 0, scalars, via=via)
    result = None if result == "no plan" else result
    assert ops.fails(result, "ERROR_INVALID_SIZE", refused(named, size, beside))
    ops.destroy(*(("tensor", t) for t in tensors.values()))
    assert ops.context_destroy(ctx) == 0


def arrays(change):
    rng, shapes = np.random.default_rng(0), SHAPES | change
    return [rng.standard_normal(shapes[n]).astype(np.float32) for n in "qkv"]


@wrong
def test_torch_ops(kf, change, size, beside):
    """The op itself, whose C++ code computes the sizes."""
    torch = pytest.importorskip("torch")
    import kernel_fusion.torch as own

    assert own.WHY_NO_SHIM is None
    kf.ops.attention(*map(torch.from_numpy, arrays({})))
    op = torch.ops.kf.attention.default
    given = dict(zip("qkv", map(torch.from_numpy, arrays(change))))
    rest = {a.name: 0 for a in op._schema.arguments if a.name not in given}
    with pytest.raises(RuntimeError, match="kf.*has a shape that the op does not support"):
        op(**given, **rest)


@wrong
def test_tvm_ffi(kf, change, size, beside):
    pytest.importorskip("tvm_ffi")
    kf_tvm = importlib.import_module("kernel_fusion.tvm_ffi")
    kf_tvm.register(["attention"], ["float32"])
    given = dict(zip("qkv", arrays(change)))
    given["out"] = np.empty((SHAPES | change)["out"], np.float32)
    known = {"scale": 1.0} | dict.fromkeys(("lse", "row_max", "log_sum"))
    words = [given[n] if n in given else known.get(n, 0) for n in kf_tvm.arguments("attention_f32")]
    text = refused(FORWARD[size], size, beside)
    with pytest.raises(ValueError, match=f"kf.attention: {text}"):
        kf_tvm.get("attention_f32")(*words)


@wrong
def test_tensorflow_graphs(kf, change, size, beside):
    """The shapes of a graph are known when it runs."""
    tf = pytest.importorskip("tensorflow")
    ops = importlib.import_module("kernel_fusion_tensorflow")
    unknown = [tf.TensorSpec([None] * 4, tf.float32)] * 3
    call = tf.function(lambda *qkv: ops.attention(*qkv, scale=1.0), input_signature=unknown)
    text = refused(FORWARD[size], size, beside)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        call(*map(tf.constant, arrays(change)))
