# SPDX-License-Identifier: Apache-2.0
"""Runs kf.ops on PyTorch's sample inputs: scalars, empty tensors, views, unusual values.

Compares values and gradients with PyTorch's function; skips samples that kf does not support
(broadcasting, several axes, other reductions).
"""

import cases
import torch

LEFT_OUT = object()


def unary(name):
    return lambda ops, x, a, k: LEFT_OUT if a or k else getattr(ops, name)(x)


def gelu(ops, x, a, k):
    return ops.gelu_tanh(x) if k.get("approximate") == "tanh" else ops.gelu(x)


def binary(name):
    """Calls of functions of two tensors of one shape."""

    def call(ops, x, a, k):
        return (
            LEFT_OUT
            if k or not isinstance(a[0], torch.Tensor) or a[0].shape != x.shape
            else getattr(ops, name)(x, a[0])
        )

    return call


def softmax(name):
    return lambda ops, x, a, k: (
        LEFT_OUT if k or x.dim() == 0 or a[0] % x.dim() != x.dim() - 1 else getattr(ops, name)(x)
    )


def reduction(name):
    def call(ops, x, a, k):
        dim, keep = (
            k.get("dim", a[0] if a else None),
            k.get("keepdim", a[1] if len(a) > 1 else False),
        )
        dim = dim[0] if isinstance(dim, tuple) and len(dim) == 1 else dim
        if (
            set(k) - {"dim", "keepdim"}
            or len(a) > 2
            or isinstance(dim, tuple)
            or dim is None
            and keep
            or dim is not None
            and x.dim() == 0
        ):
            return LEFT_OUT
        found = getattr(ops, name)(x, dim=dim)
        return found.unsqueeze(dim) if keep else found

    return call


def layer_norm(ops, x, a, k):
    return LEFT_OUT if len(a[0]) != 1 or k.get("eps", 0) < 0 else ops.layer_norm(x, *a[1:], **k)


def rms_norm(ops, x, a, k):
    eps = k.get("eps", torch.finfo(x.dtype).eps)
    return LEFT_OUT if len(a[0]) != 1 or eps < 0 else ops.rms_norm(x, *a[1:], eps=eps)


def group_norm(ops, x, a, k):
    return LEFT_OUT if k.get("eps", 0) < 0 else ops.group_norm(x, groups=a[0], **k)


def batch_norm(ops, x, a, k):
    momentum = k.get("momentum", 0.1)
    if (
        not 0 <= momentum <= 1
        or x.dim() < 2
        or k.get("eps", 0) < 0
        or any(t is None for t in a[:2])
    ):
        return LEFT_OUT
    more = {name: k[name] for name in ("eps", "weight", "bias") if name in k}
    a = [t if t is None else t.detach().clone() for t in a[:2]] + list(a[2:])
    return ops.batch_norm_train(x, *a, momentum=momentum, **more) if k.get("training") else LEFT_OUT


def cross_entropy(ops, x, a, k):
    label, weight = a[0], k.get("weight")
    if (
        x.dim() != 2
        or label.dtype != torch.int64
        or weight is not None
        or k.get("reduction") != "none"
    ):
        return LEFT_OUT
    return ops.cross_entropy(
        x, label, **{n: k[n] for n in ("ignore_index", "label_smoothing") if n in k}
    )


def nll(ops, x, a, k):
    other = (
        set(k) - {"weight", "reduction", "ignore_index"}
        or x.dim() != 2
        or k.get("reduction") != "none"
    )
    return (
        LEFT_OUT
        if other
        else ops.nll(x, a[0], k.get("weight"), **{n: k[n] for n in ("ignore_index",) if n in k})
    )


def loss(name):
    """Calls of an elementwise loss, whose mean and sum are functions of their own."""

    def call(ops, x, a, k):
        reduction = k.get("reduction", "mean")
        other = (
            set(k) - {"reduction", "delta", "log_target"}
            or k.get("log_target")
            or reduction not in ("none", "mean", "sum")
        )
        if other or a[0].shape != x.shape:
            return LEFT_OUT
        more = {"delta": k["delta"]} if "delta" in k else {}
        return (
            getattr(ops, name)(x, a[0], **more)
            if reduction == "none"
            else getattr(ops, f"{name}_{reduction}")(x, a[0], dim=None, **more)
        )

    return call


def glu(ops, x, a, k):
    """PyTorch gates by its second half, kf by its first."""
    dim = (a[0] if a else k.get("dim", -1)) % x.dim()
    return LEFT_OUT if dim != x.dim() - 1 else ops.sigmoid_glu(torch.cat(x.chunk(2, -1)[::-1], -1))


def scaled_dot_product_attention(ops, x, a, k):
    """Dropout has other random numbers."""
    return LEFT_OUT if k["dropout_p"] else ops.scaled_dot_product_attention(x, *a, **k)


F = "nn.functional."
LEVEL_1 = {
    f"{F}scaled_dot_product_attention": scaled_dot_product_attention,
    f"{F}relu": unary("relu"),
    f"{F}layer_norm": layer_norm,
    f"{F}cross_entropy": cross_entropy,
    "sum": reduction("sum"),
    f"{F}batch_norm": batch_norm,
}
LEVEL_2 = {
    f"{F}gelu": gelu,
    **{
        name: unary(name.removeprefix(F))
        for name in (f"{F}silu", f"{F}mish", f"{F}elu", "sigmoid", "tanh")
    },
    **{name: binary(name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "softmax": softmax("softmax"),
    "log_softmax": softmax("log_softmax"),
    **{
        name: reduction(name)
        for name in ("mean", "amax", "amin", "prod", "var", "std", "logsumexp")
    },
    f"{F}rms_norm": rms_norm,
    f"{F}group_norm": group_norm,
    f"{F}nll_loss": nll,
    f"{F}glu": glu,
    **{
        f"{F}{word}": loss(name)
        for word, name in (
            ("mse_loss", "mse"),
            ("l1_loss", "l1"),
            ("huber_loss", "huber"),
            ("kl_div", "kl_div"),
            ("binary_cross_entropy_with_logits", "bce_with_logits"),
        )
    },
}
CALLS = cases.by_level(LEVEL_1, LEVEL_1 | LEVEL_2)


def check(kf, name, device):
    """Checks every supported sample of one PyTorch function."""
    from torch.testing._internal.common_methods_invocations import op_db  # slow to import

    op = next(op for op in op_db if op.name == name)
    called = 0
    for sample in op.sample_inputs(device, torch.float32, requires_grad=True):
        got = CALLS[name](kf.ops, sample.input, sample.args, sample.kwargs)
        if got is LEFT_OUT:
            continue
        called += 1
        want = op(sample.input, *sample.args, **sample.kwargs)
        where = f"{name} {tuple(sample.input.shape)} {sample.args} {sample.kwargs}"
        assert got.device == want.device and got.device.type == device, where
        assert torch.allclose(got, want, 2e-5, 2e-5, equal_nan=True) and got.shape == want.shape, (
            where
        )
        if want.requires_grad and want.numel():
            up = torch.randn_like(want)
            mine, theirs = (torch.autograd.grad(r, [sample.input], up)[0] for r in (got, want))
            assert torch.allclose(mine, theirs, 1e-4, 1e-4, equal_nan=True), where
    assert called, f"of {name} nothing was called"
