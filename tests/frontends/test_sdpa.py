# SPDX-License-Identifier: Apache-2.0
"""kf.nn.sdpa: PyTorch's scaled_dot_product_attention is computed by kf inside."""

import threading
import warnings

import pytest
import pytorch

torch = pytorch.load()

F, nn = torch.nn.functional, torch.nn


@pytest.fixture(autouse=True)
def quiet(kf):
    """Ignores that gradients are PyTorch's, which the first call says."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no backward kernel", UserWarning)
        yield


def heads(*shape, keys=7, value_dim=6, groups=None):
    rng = torch.Generator().manual_seed(sum(shape))
    *lead, rows, dim = shape
    own = lead if groups is None else [*lead[:-1], groups]
    shapes = (shape, (*own, keys, dim), (*own, keys, value_dim))
    return [torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes]


CALLS = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"attn_mask": torch.arange(35).reshape(5, 7) % 3 > 0},
    {"attn_mask": torch.arange(35, dtype=torch.float64).reshape(5, 7) / 9},
]


@pytest.mark.parametrize("more", CALLS, ids=str)
def test_equals_pytorch(kf, more):
    given = heads(2, 4, 5, 8)
    want = F.scaled_dot_product_attention(*given, **more)
    with kf.nn.sdpa() as calls:
        got = F.scaled_dot_product_attention(*given, **more)
        grads = torch.autograd.grad(got.square().sum(), given)
    torch.testing.assert_close(got, want)
    for g, w in zip(grads, torch.autograd.grad(want.square().sum(), given)):
        torch.testing.assert_close(g, w)
    assert calls == {"kf": 1}


def test_groups_of_heads_and_keywords(kf):
    q, k, v = heads(2, 4, 5, 8, groups=2)
    with kf.nn.sdpa() as calls:
        got = F.scaled_dot_product_attention(query=q, key=k, value=v, enable_gqa=True)
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(got, want)
    assert calls == {"kf": 1}


def test_fallbacks_are_counted_by_their_reason(kf):
    q, k, v = (t.detach() for t in heads(2, 4, 5, 8))
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    mask = torch.ones(5, 7, dtype=torch.bool)
    with kf.nn.sdpa() as calls:
        with pytest.raises(RuntimeError, match="is_causal"):
            F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
        with pytest.raises(RuntimeError):  # PyTorch's error
            F.scaled_dot_product_attention(q, k[..., :3], v)
        F.scaled_dot_product_attention(*(t.to("meta") for t in (q, k, v)))
        F.scaled_dot_product_attention(*[nested.transpose(1, 2)] * 3)
    assert calls == {
        "attn_mask is given beside is_causal": 1,
        "kf.scaled_dot_product_attention: key has the shape (2, 4, 7, 3), expected "
        "('...', 'any', 8)": 1,
        "query is on meta": 1,
        "query is nested or sparse": 1,
    }


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, CALLS[-1]], ids=str)
def test_dropout_and_its_gradients(kf, more):
    """They are those of kf.ops, though the backward runs inside."""
    given, found = heads(2, 4, 5, 8), []
    for function in (F, kf.ops):
        torch.manual_seed(1)
        with kf.nn.sdpa() as calls:
            out = function.scaled_dot_product_attention(*given, dropout_p=0.5, **more)
            found.append([out, *torch.autograd.grad(out.square().sum(), given)])
        assert calls == ({"kf": 1} if function is F else {})
    for got, want in zip(*found):
        assert torch.equal(got, want)
    plain = F.scaled_dot_product_attention(*given, **more)
    assert not torch.allclose(found[0][0], plain)


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "recomputed"])
def test_transforms_inside(kf, monkeypatch, has_kernel):
    """PyTorch's function, where kf calls it, is not handed back to kf."""
    from kernel_fusion.torch import _recomputed

    if not has_kernel:
        monkeypatch.setattr(_recomputed, "_has_kernel", lambda q: False)
    q, k, v = (t.detach() for t in heads(2, 4, 5, 8))

    def loss(q):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum()

    want = torch.func.grad(loss)(q)
    with kf.nn.sdpa() as outer, kf.nn.sdpa() as inner:
        torch.testing.assert_close(torch.func.grad(loss)(q), want)
        assert inner == {"kf": 1}
        q.requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(loss(q), q)[0], want)
    assert (outer, inner) == ({}, {"kf": 2})


def test_holds_inside_alone(kf):
    given = heads(1, 2, 3, 4)
    with kf.nn.sdpa() as outer:
        with kf.nn.sdpa() as inner:
            F.scaled_dot_product_attention(*given)
            F.scaled_dot_product_attention(*(t.to("meta") for t in given))
        F.scaled_dot_product_attention(*given)
        with pytest.raises(ZeroDivisionError), kf.nn.sdpa():
            raise ZeroDivisionError
    F.scaled_dot_product_attention(*given)
    assert (inner, outer) == ({"kf": 1, "query is on meta": 1}, {"kf": 1})
    assert not torch.overrides._get_current_function_mode_stack()


def test_decorates_functions(kf):
    manager, depth = kf.nn.sdpa(), []

    @manager
    def run(n):
        depth.append(len(torch.overrides._get_current_function_mode_stack()))
        return run(n - 1) if n else F.scaled_dot_product_attention(*heads(1, 2, 3, 4))

    want = F.scaled_dot_product_attention(*heads(1, 2, 3, 4))
    torch.testing.assert_close(run(2), want)
    assert depth == [1, 1, 1] and not torch.overrides._get_current_function_mode_stack()


def test_belongs_to_its_thread(kf):
    """One manager, entered in one thread of two, and then in both."""
    manager, found = kf.nn.sdpa(), {}
    inside, done = threading.Barrier(2), threading.Barrier(2)

    def other():
        inside.wait()
        found["modes"] = len(torch.overrides._get_current_function_mode_stack())
        with manager as calls:
            for _ in range(3):
                F.scaled_dot_product_attention(*heads(1, 2, 3, 4))
        found["calls"] = calls
        done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with manager as calls:
        inside.wait()
        F.scaled_dot_product_attention(*heads(1, 2, 3, 4))
        done.wait()
    thread.join()
    assert (found, calls) == ({"modes": 0, "calls": {"kf": 3}}, {"kf": 1})


LAYERS = {
    "encoder": lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
    "decoder": lambda: nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(16, 4, batch_first=True),
}


def forward(layer, x):
    if isinstance(layer, nn.MultiheadAttention):
        return layer(x, x, x, need_weights=False)[0]
    return layer(x, x) if isinstance(layer, nn.TransformerDecoderLayer) else layer(x)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_pytorch(kf, name, train):
    torch.manual_seed(1)
    layer = LAYERS[name]().double().train(train)
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    given = [x, *layer.parameters()]
    want = forward(layer, x)
    with kf.nn.sdpa() as calls:
        got = forward(layer, x)
    torch.testing.assert_close(got, want)
    assert calls == {"kf": 2 if name == "decoder" else 1}
    mine, theirs = (torch.autograd.grad(t.square().sum(), given) for t in (got, want))
    for m, t in zip(mine, theirs):
        torch.testing.assert_close(m, t)


def test_a_layer_with_dropout(kf):
    """PyTorch's layer drops all weights of attention in training, none in evaluation."""
    layer = nn.MultiheadAttention(16, 4, dropout=1.0, batch_first=True).double()
    nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    with kf.nn.sdpa() as calls:
        train, evaluation = (forward(layer.train(on), x) for on in (True, False))
    torch.testing.assert_close(train, layer.out_proj.bias.expand_as(train))
    torch.testing.assert_close(evaluation, forward(layer, x))
    assert calls == {"kf": 2}


def test_a_default_device_is_no_obstacle(kf):
    layer, x = LAYERS["encoder"](), torch.randn(2, 5, 16)
    with torch.device("cpu"), kf.nn.sdpa() as calls:
        layer(x)
    assert calls == {"kf": 1}


def test_checkpoint_and_backward_inside(kf):
    """Recomputed calls are kf's, too, and the backward of kf's function does not call kf again."""
    layer = LAYERS["encoder"]().double()
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    with kf.nn.sdpa() as calls:
        found = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        [got] = torch.autograd.grad(found.square().sum(), x)
    [want] = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(got, want)
    assert calls == {"kf": 2}


def test_compiled_models_call_kf_inside(kf):
    layer, x, seen = LAYERS["encoder"]().double(), torch.randn(2, 5, 16).double(), []

    def backend(graph, _):
        seen.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend)
    with torch.no_grad():
        want = layer(x)
        torch.testing.assert_close(compiled(x), want)
        with kf.nn.sdpa():
            torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(compiled(x), want)
    assert ["kf.attention.kernel" in names for names in seen] == [False, True]
