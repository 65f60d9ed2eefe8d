# SPDX-License-Identifier: Apache-2.0
"""PyTorch's sample inputs of scaled_dot_product_attention for kf's function of that name: results,
gradients, and what dropout keeps."""

import torch
import torch.nn.functional as F

NAME = "nn.functional.scaled_dot_product_attention"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def samples(device, dtype):
    from torch.testing._internal.common_methods_invocations import op_db  # slow to import

    op = next(op for op in op_db if op.name == NAME)
    return list(op.sample_inputs(device, dtype, requires_grad=True))


def near(got, want, dtype, where):
    limit = TOLERANCE[dtype]
    assert got.shape == want.shape and got.dtype == dtype, where
    error = (got.double() - want.double()).abs()
    assert bool((error <= limit * (1 + want.double().abs())).all()), (where, error.max())


def where_of(sample):
    shapes = [tuple(t.shape) for t in (sample.input, *sample.args)]
    return shapes, {name: getattr(x, "shape", x) for name, x in sample.kwargs.items()}


def exact(sample):
    """PyTorch's result in float64."""
    given = [t.detach().double() for t in (sample.input, *sample.args)]
    more = {n: x.double() if torch.is_tensor(x) else x for n, x in sample.kwargs.items()}
    return F.scaled_dot_product_attention(*given, **more)


def exact_gradients(sample, out, up):
    """Returns the float64 gradients of a backward that reads `out` as stored.

    The gradient of a score is p * (dp - delta) with delta = sum(up * out), and `out` has been
    rounded to the dtype, here as in FlashAttention. An error of delta acts as a gradient of lse,
    whose derivative by a score is p.
    """
    given = [t.detach().double() for t in (sample.input, *sample.args)]
    mask = sample.kwargs.get("attn_mask")
    given += [] if mask is None else [mask.detach().double()]
    q, k, v, *mask = (t.requires_grad_() for t in given)
    score = q @ k.mT * q.shape[-1] ** -0.5 + sum(mask)
    if sample.kwargs["is_causal"]:
        seen = torch.ones(score.shape[-2:], dtype=torch.bool, device=q.device).tril()
        score = score.masked_fill(~seen, -torch.inf)
    want, up = score.softmax(-1) @ v, up.double()
    error = (up * (want - out.double())).sum(-1).detach()
    return torch.autograd.grad([want, score.logsumexp(-1)], given, [up, error])


def near_gradient(got, want, dtype, where):
    """Compares with a limit relative to the largest gradient: sums of large terms cancel."""
    assert got.shape == want.shape and got.dtype == dtype, where
    error = float((got.double() - want).abs().amax())
    limit = TOLERANCE[dtype] * max(1.0, float(want.abs().amax()))
    assert error <= limit, (where, error, limit)


def check(sdpa, device, dtype):
    """Compares results and gradients with float64. Returns the number of samples without and with
    dropout."""
    compared, dropped = 0, 0
    torch.manual_seed(0)
    for sample in samples(device, dtype):
        if sample.kwargs["dropout_p"]:
            check_dropout(sdpa, sample, dtype)
            dropped += 1
            continue
        where, given = where_of(sample), [sample.input, *sample.args]
        out = sdpa(*given, **sample.kwargs)
        near(out, exact(sample), dtype, where)
        given += [x for x in sample.kwargs.values() if torch.is_tensor(x)]
        up = torch.randn_like(out)
        found = torch.autograd.grad(out, given, up)
        wanted = exact_gradients(sample, out.detach(), up)
        for name, *pair in zip(("dq", "dk", "dv", "dmask"), found, wanted, strict=False):
            near_gradient(*pair, dtype, (name, where))
        compared += 1
    return compared, dropped


def check_dropout(sdpa, sample, dtype):
    """Values of an identity matrix show the weights: 0, or those without dropout / (1 - p). Small
    queries give weights that are not 0 in any dtype."""
    where = where_of(sample)
    q, k = sample.input.detach() / 64, sample.args[0].detach()
    more = dict(sample.kwargs)
    p = more.pop("dropout_p")
    v = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-2], -1, -1)
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **more)
    got = sdpa(q, k, v, dropout_p=p, **more).double()
    assert got.shape == want.shape, where
    kept = got != 0
    limit = TOLERANCE[dtype]
    error = ((1 - p) * got - want)[kept].abs()
    assert bool((error <= limit).all()), (where, error.max())
    share = float(kept[want != 0].double().mean())
    assert abs(share - (1 - p)) < 0.35, (where, share)
    out = sdpa(sample.input, *sample.args, **sample.kwargs)
    assert out.dtype == dtype and bool(out.isfinite().all()), where
