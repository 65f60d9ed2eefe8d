# SPDX-License-Identifier: Apache-2.0
"""Calls in the spelling of other libraries: each equals its formula, or raises what it says.

The tables are those of docs/familiar_calls.md. After a change: KF_UPDATE=1 pytest
tests/frontends/test_familiar_calls.py -k page
"""

import os
import re

import kflib
import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

PAGE = kflib.ROOT / "docs/familiar_calls.md"
LISTED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.S)
TOLERANCE = 2e-5
# (call, formula in PyTorch)
CALLS = {
    "elementwise": [
        ("kf.ops.elementwise_add_relu(a, b)", "relu(a + b)"),
        ("kf.ops.add_relu(a, b)", "relu(a + b)"),
        ("kf.ops.multiply_relu(a, b)", "relu(a * b)"),
        ("kf.ops.add_sigmoid(a, b)", "sigmoid(a + b)"),
        ("kf.ops.elementwise_mul_tanh(a, b)", "tanh(a * b)"),
        ("kf.ops.fused_bias_gelu(x, bias)", "gelu(x + bias)"),
        ("kf.ops.swish_multiply(x, gate)", "silu(x) * gate"),
        ("kf.ops.swish_multiply(x=x, gate=gate)", "silu(x) * gate"),
        ("kf.ops.mish_scale(x, 1.5)", "mish(x) * 1.5"),
        ("kf.ops.prelu_bias(x, w, bias)", "prelu(x, w) + bias"),
        ("kf.ops.prelu_bias(x, alpha=w, bias=bias)", "prelu(x + bias, w)"),
        ("kf.ops.fused_prelu_bias(x, alpha=w, bias=bias)", "prelu(x, w) + bias"),
        ("kf.kernels.elementwise.add_relu(a, b)", "relu(a + b)"),
    ],
    "norms": [
        (
            "kf.ops.fused_layer_norm_relu(x, normalized_shape=(768,), weight=w, bias=bias)",
            "relu(layer_norm(x, (768,), w, bias))",
        ),
        (
            "kf.ops.fused_layer_norm_relu(x, (768,), w, bias)",
            "relu(layer_norm(x, (768,), w, bias))",
        ),
        ("kf.ops.fused_layer_norm_relu(x, normalized_shape=768)", "relu(layer_norm(x, (768,)))"),
        (
            "kf.ops.fused_layer_norm_relu(x, (4, 768), w2, bias2)",
            "relu(layer_norm(x, (4, 768), w2, bias2))",
        ),
        ("kf.ops.rms_norm_gelu(x, w, 1e-3)", "gelu(rms_norm(x, (768,), w, 1e-3))"),
        (
            "kf.ops.batch_norm_relu(i, weight=c, bias=d, running_mean=mean, running_var=var)",
            "relu(batch_norm(i, mean, var, c, d))",
        ),
        (
            "kf.ops.batch_norm_relu(i, weight=c, bias=d, mean=mean, var=var)",
            "relu(batch_norm(i, mean, var, c, d))",
        ),
        (
            "kf.ops.fused_batch_norm_relu(i, weight=c, bias=d, mean=mean, var=var)",
            "relu(batch_norm(i, mean, var, c, d))",
        ),
        (
            "kf.ops.fused_add_norm(x, residual, w, bias)",
            "(layer_norm(x + residual, (768,), w, bias), x + residual)",
        ),
        (
            "kf.kernels.fusion.layer_norm_relu(x, (768,), w, bias)",
            "relu(layer_norm(x, (768,), w, bias))",
        ),
        ("kf.kernels.fused_layer_norm_relu(x, (768,))", "relu(layer_norm(x, (768,)))"),
    ],
    "dropout": [
        ("kf.ops.fused_gelu_dropout(x, 0.1, False)", "gelu(x)"),
        ("kf.ops.fused_gelu_dropout(x, p=0.1, training=False)", "gelu(x)"),
        ("kf.ops.attention_dropout(scores, 0.1, False)", "softmax(scores, -1)"),
        ("kf.kernels.fused_gelu_dropout(x, 0.1, False)", "gelu(x)"),
    ],
    "products": [
        ("kf.ops.fused_attention_score(q, k, 0.3)", "softmax(q @ k.mT * 0.3, -1)"),
        ("kf.ops.fused_multihead_attention(q1, k1, v1, num_heads=2)", "multihead(q1, k1, v1, 2)"),
        ("kf.ops.fused_linear_activation(p, m, r, 'relu')", "relu(linear(p, m, r))"),
        ("kf.ops.fused_linear_activation(p, m, r, activation='gelu')", "gelu(linear(p, m, r))"),
        ("cpu_fused_attention(q, k, v)", "attention(q, k, v)"),
        ("optimized_cpu_attention(q, k, v, chunk_size=2)", "attention(q, k, v)"),
    ],
    "reductions": [
        ("kf.ops.reduce_sum_squared(x, 1)", "(x * x).sum(1)"),
        ("kf.ops.reduce_sum_squared(x, dim=0)", "(x * x).sum(0)"),
        ("kf.ops.reduce_mean_abs(x, 1)", "x.abs().mean(1)"),
        ("kf.ops.reduce_mean_abs(x, dim=-1)", "x.abs().mean(-1)"),
        ("kf.ops.reduce_sum_squared(x, dim=(0, 1), keepdim=True)", "(x * x).sum((0, 1), True)"),
        ("kf.kernels.reduction.sum_squared(x, dim=-1)", "(x * x).sum(-1)"),
    ],
    "modules": [
        ("kf.nn.FusedGELU()(x)", "gelu(x)"),
        ("kf.nn.FusedReLU()(x)", "relu(x)"),
        ("kf.nn.FusedSwiGLU()(x)", "silu(x[..., :384]) * x[..., 384:]"),
        ("kf.nn.FusedSwiGLU()(x, gate)", "silu(x) * gate"),
        ("kf.nn.FusedLayerNormActivation(768, 'relu')(x)", "relu(layer_norm(x, (768,)))"),
    ],
    "pytorch": [
        ("kf.ops.softmax(x, dim=1)", "softmax(x, 1)"),
        ("kf.ops.log_softmax(x, 0)", "log_softmax(x, 0)"),
        ("kf.ops.softmax(x, dim=-2, dtype='float64')", "softmax(x, -2)"),
        ("kf.ops.cross_entropy(p, int32)", "cross_entropy(p, label, reduction='none')"),
        ("kf.ops.rope(sequences, angles, angles, int32)", "rotated(sequences, angles[label])"),
        (
            "kf.ops.scale_mask_softmax(scores, mask, scale=0.3)",
            "softmax(scores * 0.3 + mask[:, None], -1)",
        ),
        (
            "kf.ops.scale_mask_softmax(scores, of_heads, scale=0.3)",
            "softmax(scores * 0.3 + of_heads, -1)",
        ),
        ("kf.ops.sum(x, dtype='float64')", "x.sum(-1)"),
    ],
    "streams": [
        ("kf.fused_elementwise_add_relu(a, b, stream=kf.Stream(kf.Context()))", "relu(a + b)"),
        ("kernel_fusion_pytorch.fused_add_relu(x, residual)", "relu(x + residual)"),
    ],
    "chains": [
        ("chain(x, Mul(2.0), Add(1.0))", "x * 2 + 1"),
        ("chain(x, Sub(1.0), Div(4.0))", "(x - 1) / 4"),
        ("chain(x, *[Add(0.5)] * 10)", "x + 5"),
        (
            "PyTorchFKL(device=torch.device('cpu')).compose_kernel(Mul(2.0), Add(1.0))(x)",
            "x * 2 + 1",
        ),
    ],
}
ORDERS = (
    r"kf\.batch_norm_relu: 5 arguments are given by position, expected x alone: .*\(x, running_mean"
    r", running_var, weight, bias\) or as \(x, weight, bias, mean, var\)"
)
RAISES = [
    ("kf.ops.batch_norm_relu(i, c, d, mean, var)", TypeError, ORDERS),
    ("kf.ops.fused_batch_norm_relu(i, c, d, mean, var)", TypeError, ORDERS),
    (
        "kf.ops.fused_layer_norm_relu(x, (5,))",
        ValueError,
        r"kf\.fused_layer_norm_relu: normalized_shape is \(5,\), expected the last dimensions of x",
    ),
    (
        "kf.ops.fused_layer_norm_relu(x, (4, 768), w)",
        ValueError,
        r"weight has the shape \(768,\), expected normalized_shape \(4, 768\)",
    ),
    (
        "kf.ops.batch_norm_relu(i, weight=c, bias=d, mean=mean, running_mean=mean, var=var)",
        TypeError,
        "kf.batch_norm_relu: running_mean is given twice",
    ),
    (
        "kf.ops.prelu_bias(x, w, bias, alpha=w)",
        TypeError,
        "kf.prelu_bias: weight is given beside alpha, expected one of them",
    ),
    (
        "optimized_cpu_attention(q, k, v, chunk_size=0)",
        ValueError,
        "kf.optimized_cpu_attention: chunk_size is 0, expected at least 1",
    ),
    ("chain(x, 2.0)", TypeError, "operation 1 is float, expected Mul, Add, Sub or Div"),
    ("chain(x, Mul(float('nan')))", ValueError, "kf.fkl.Mul: nan is given, expected a finite"),
    ("execute_operations(Stream(), Mul(2.0))", TypeError, "the chain begins with TensorRead"),
]
SHAPES = {
    **dict.fromkeys(("a", "b", "x", "gate", "residual"), (3, 4, 768)),
    **dict.fromkeys(("w", "bias"), (768,)),
    **dict.fromkeys(("w2", "bias2"), (4, 768)),
    "i": (2, 5, 3),
    **dict.fromkeys(("c", "d", "mean", "var"), (5,)),
    "scores": (2, 2, 3, 7),
    "mask": (1, 3, 7),
    "of_heads": (1, 2, 1, 7),
    "sequences": (2, 3, 1, 4),
    "angles": (3, 2),
    "q": (2, 2, 5, 4),
    **dict.fromkeys(("k", "v"), (2, 2, 7, 4)),
    "q1": (2, 5, 8),
    **dict.fromkeys(("k1", "v1"), (2, 7, 8)),
    "p": (3, 6),
    "m": (5, 6),
    "r": (5,),
}


def attention(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def rotated(x, t):
    """Rotates the halves of each head by cosine and sine t of the row."""
    a, b = x.chunk(2, -1)
    t = t[:, None]
    return torch.cat((a * t - b * t, b * t + a * t), -1)


def multihead(q, k, v, heads):
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (q, k, v))
    return attention(q, k, v).transpose(-2, -3).flatten(-2)


FORMULAS = {
    "prelu": lambda x, alpha: torch.where(x > 0, x, alpha * x),  # alpha by the last dimension
    **{n: getattr(torch, n) for n in ("relu", "sigmoid", "tanh", "softmax", "log_softmax")},
    **{n: getattr(F, n) for n in ("gelu", "silu", "mish", "linear", "cross_entropy")},
    "rotated": rotated,
    **{n: getattr(F, n) for n in ("layer_norm", "rms_norm", "batch_norm")},
    "attention": attention,
    "multihead": multihead,
}


def tensors(dtype):
    rng = np.random.default_rng(0)
    found = {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in SHAPES.items()}
    found["var"] = found["var"].abs() + 0.5
    label = torch.tensor([1, 0, 2])
    # Both sides read the same rounded numbers.
    return {name: t.to(torch.float32).to(dtype) for name, t in found.items()} | {
        "label": label,
        "int32": label.int(),
    }


@pytest.fixture(scope="module")
def names(kf):
    """Names that a call may use beside its tensors."""
    import fkl_ffi
    import fkl_ffi.pytorch
    import kernel_fusion_pytorch
    from kernel_fusion.fkl import Stream, Tensor, execute_operations, operations
    from kernel_fusion.fkl.pytorch import PyTorchFKL
    from kernel_fusion.kernels.cpu_kernels import cpu_fused_attention, optimized_cpu_attention

    assert fkl_ffi.Stream is Stream and fkl_ffi.pytorch.PyTorchFKL is PyTorchFKL

    def chain(x, *given):
        s, source, out = Stream(), Tensor(x), Tensor(tuple(x.shape))
        read, write = operations.TensorRead(source), operations.TensorWrite(out)
        execute_operations(s, read, *given, write)
        s.sync()
        return out.numpy()

    classes = {n: getattr(operations, n) for n in ("Mul", "Add", "Sub", "Div")}
    return classes | {
        "kf": kf,
        "torch": torch,
        "kernel_fusion_pytorch": kernel_fusion_pytorch,
        "cpu_fused_attention": cpu_fused_attention,
        "optimized_cpu_attention": optimized_cpu_attention,
        "PyTorchFKL": PyTorchFKL,
        "Stream": Stream,
        "execute_operations": execute_operations,
        "chain": chain,
    }


def close(got, want):
    got, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        a = torch.as_tensor(a).detach().double()
        assert a.shape == b.shape and bool(((a - b).abs() <= TOLERANCE * (1 + b.abs())).all())


@pytest.mark.check
@pytest.mark.parametrize("of", ["tensors", "arrays"])
@pytest.mark.parametrize("call, formula", [pair for part in CALLS.values() for pair in part])
def test_calls(names, call, formula, of):
    if of == "arrays" and any(word in call for word in ("kf.nn", "torch", "PyTorch")):
        of = "tensors"  # modules and PyTorch's own spelling take tensors alone
    given = tensors(torch.float32)
    given = {n: t.numpy() for n, t in given.items()} if of == "arrays" else given
    want = eval(formula, FORMULAS | tensors(torch.float64))
    close(eval(call, names | given), want)


@pytest.mark.parametrize("call, error, text", RAISES)
def test_raises(names, call, error, text):
    for given in (
        tensors(torch.float32),
        {n: t.numpy() for n, t in tensors(torch.float32).items()},
    ):
        with pytest.raises(error, match=text):
            eval(call, names | given)


def test_flags_and_devices(kf):
    """Booleans, the CPU's context, and a clear message where there is no GPU."""
    assert kf.CUDA_AVAILABLE in (True, False) and kf.EXTENSION_LOADED in (True, False)
    if not kf.CUDA_AVAILABLE:
        with pytest.raises(RuntimeError, match="device_id is 0, .*: no CUDA device was found"):
            kf.Context(device_id=0)
    else:
        context = kf.Context(device_id=0)
        x = torch.randn(1000, device="cuda:0")
        torch.cuda.synchronize()
        for stream in (kf.Stream(context, priority=1), torch.cuda.Stream()):
            out = kf.fused_elementwise_add_relu(x, x, stream=stream)
            stream.synchronize()
            assert torch.equal(out, torch.relu(x + x))


def test_timing(kf, tmp_path):
    from kernel_fusion.benchmarks import benchmark_kernel
    from kernel_fusion.kernels.cpu_kernels import CPUKernelBenchmark

    given = tensors(torch.float32)
    q, k, v = (given[n] for n in "qkv")
    plot = tmp_path / "one.svg"
    found = benchmark_kernel(attention, [q, k, v], warmup=1, repeat=3, plot=plot)
    assert found.median > 0 and len(found.samples) == 3 and "attention" in plot.read_text()
    other = {"first": attention, "second": lambda q, k, v: attention(q, k, v) + 1}
    table = CPUKernelBenchmark.compare_implementations(other, q, k, v, warmup=0, repeat=2)
    assert "second" in str(table) and abs(table["second"].difference - 1) < 1e-5


def test_chains_have_gradients(names):
    x = torch.randn(5, requires_grad=True)
    chain = names["PyTorchFKL"]("cpu").compose_kernel(names["Mul"](3.0), names["Div"](2.0))
    chain(x).sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 1.5))
    with pytest.raises(TypeError, match="x is list, expected a tensor"):
        chain([1.0])


@pytest.mark.parametrize("rows, keys", [(5, 7), (7, 7), (7, 5)])
def test_causal_attention_by_chunks(names, rows, keys):
    """The last query sees all keys, each query before it one less."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 2, n, 4)).astype("f") for n in (rows, keys, keys))
    seen = np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / 2, -np.inf).astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.nan_to_num(e / e.sum(-1, keepdims=True)) @ v
    for chunk_size in (1, 3, 64):
        got = names["optimized_cpu_attention"](q, k, v, causal=True, chunk_size=chunk_size)
        assert np.abs(got - want).max() <= 1e-5
    assert np.abs(names["cpu_fused_attention"](q, k, v, causal=True) - want).max() <= 1e-5


def test_modules(kf):
    """Embedding and rotary embedding compared with PyTorch."""
    kf.nn.Embedding(5, 4, padding_idx=1)
    with pytest.raises(ValueError, match="kf.nn.Embedding: sparse is True, expected False"):
        kf.nn.Embedding(5, 4, sparse=True)
    with pytest.raises(ValueError, match="kf.nn.RotaryEmbedding: dim is 3, expected an even"):
        kf.nn.RotaryEmbedding(3)


@pytest.mark.check
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(kf, interleaved):
    x = torch.randn(2, 3, 2, 6, dtype=torch.float64)
    got = kf.nn.RotaryEmbedding(4, 16, interleaved=interleaved)(x)
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    want = x.clone()
    for i, (first, second) in enumerate(pairs):
        angle = torch.arange(3, dtype=torch.float64)[:, None] * 10000.0 ** (-i / 2)
        c, s = angle.cos(), angle.sin()
        want[..., first] = x[..., first] * c - x[..., second] * s
        want[..., second] = x[..., second] * c + x[..., first] * s
    assert (got - want).abs().max() <= 1e-6


@pytest.mark.check
def test_embedding(kf):
    own, index = kf.nn.Embedding(5, 4, padding_idx=1), torch.tensor([[1, 2], [0, 1]])
    other = torch.nn.Embedding(5, 4, padding_idx=1)
    other.load_state_dict(own.state_dict())
    for module in (own, other):
        module(index).pow(2).sum().backward()
    assert torch.equal(own(index), other(index))
    assert torch.equal(own.weight.grad, other.weight.grad)


def listed():
    """Returns {name: table of the page}."""
    found = {}
    for part, lines in CALLS.items():
        rows = [f"| `{call}` | `{formula}` |" for call, formula in lines]
        found[part] = "\n".join(["| call | is |", "|:--|:--|", *rows]) + "\n"
    return found


def test_page():
    text, tables = PAGE.read_text(), listed()
    now = LISTED.sub(lambda m: m[1] + tables[m[2]] + m[3], text)
    if os.environ.get("KF_UPDATE"):
        PAGE.write_text(now)
    assert PAGE.read_text() == now, "run KF_UPDATE=1 pytest tests/frontends/test_familiar_calls.py"
    assert [m[1] for m in LISTED.findall(now)] == list(CALLS)
