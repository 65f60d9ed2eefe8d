# SPDX-License-Identifier: Apache-2.0
"""kf.Context, kf.Stream, and kf.fused_<op> with a stream."""

import inspect
import re

import kfpython
import numpy as np
import pytest


def test_calls_with_a_stream(kf):
    context = kf.Context(device_id=-1)
    stream = kf.Stream(context, priority=1)
    x, bias = np.array([[-1, 2], [3, -4]], np.float32), np.array([0.5, 1], np.float32)
    for given in ({}, {"stream": None}, {"stream": stream}):
        assert np.array_equal(kf.fused_bias_relu(x, bias, **given), np.maximum(x + bias, 0))
    out = np.empty_like(x)
    assert kf.fused_relu(x, out=out, stream=stream) is out and (out == np.maximum(x, 0)).all()
    stream.synchronize()
    context.synchronize()
    assert repr(stream) == "kf.Stream(kf.Context(device_id=-1), priority=1)"


def test_tensors(kf):
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    stream = kf.Stream(kf.Context())
    out = kf.fused_linear_gelu(x, weight, stream=stream)
    assert torch.equal(out, kf.ops.linear_gelu(x, weight))
    out.sum().backward()
    compiled = torch.compile(
        lambda x, w: kf.fused_linear_gelu(x, w, stream=stream), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x, weight), out) and weight.grad is not None


def test_every_function_of_ops(kf):
    """Every function is available under one fused_ name."""
    from kernel_fusion import _streams

    names = _streams.names()
    assert {
        "fused_elementwise_add_relu",
        "fused_layer_norm",
        "fused_linear_activation",
        "fused_linear",
        "fused_gelu",
    } <= set(names)
    for name in names:
        function = getattr(kf, name)
        assert (
            function.__name__ == name
            and "stream" in inspect.signature(function).parameters
            and "kf.ops." in function.__doc__
        )
    assert kf.fused_bias_relu is kf.fused_bias_relu
    if kfpython.WHOLE:
        assert (kf.fused_elementwise_add_relu(np.ones(3, "f"), np.ones(3, "f")) == 2).all()


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda kf: kf.Context(device_id=-2),
            ValueError,
            "kf.Context: device_id is -2, expected -1 (the CPU) or a GPU's number",
        ),
        (
            lambda kf: kf.Context("cpu"),
            TypeError,
            "kf.Context: device_id is str, expected a whole number",
        ),
        (
            lambda kf: kf.Context(0),
            RuntimeError,
            "kf.Context: device_id is 0, expected -1 (the CPU): ",
        ),
        (lambda kf: kf.Stream(-1), TypeError, "kf.Stream: context is int, expected a kf.Context"),
        (
            lambda kf: kf.Stream(kf.Context(), priority=0.5),
            TypeError,
            "kf.Stream: priority is float, expected a whole number",
        ),
        (
            lambda kf: kf.fused_relu(np.ones(3), stream=1),
            TypeError,
            "kf.fused_relu: stream is int, expected a kf.Stream, or a stream of PyTorch or CuPy",
        ),
        (
            lambda kf: kf.fused_nothing,
            AttributeError,
            "'kernel_fusion' has no attribute 'fused_nothing': kf.ops has neither it nor `nothing`",
        ),
        (
            lambda kf: kf.fused_bias_relu(np.ones((2, 3), "f"), np.ones(4, "f"), stream=None),
            ValueError,
            "kf.bias_relu: bias has the shape (4,)",
        ),
    ],
    ids=range(8),
)
def test_what_is_refused(kf, call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call(kf)
