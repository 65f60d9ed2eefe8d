# SPDX-License-Identifier: Apache-2.0
"""The fastest PyTorch eager code on the CPU: preallocated tensors, out= and in-place forms.

build(f, t, outs, p) -> a function without arguments that fills `outs`. Intermediates have the op's
dtype. The call allocates if PyTorch has no out= form (noted).
"""

import functools

import torch
from peers.elementwise import FUNCTIONS, SELU_ALPHA, SELU_SCALE, aten

nn = torch._C._nn  # the out= forms of torch.nn.functional


def _quick_gelu(x, out, tmp, s):
    torch.mul(x, 1.702, out=tmp).sigmoid_()
    torch.mul(x, tmp, out=out)


def _softsign(x, out, tmp, s):
    torch.abs(x, out=tmp).add_(1)
    torch.div(x, tmp, out=out)


ACT = {
    "none": lambda x, out, tmp, s: None if out is x else out.copy_(x),
    "relu": lambda x, out, tmp, s: torch.clamp_min(x, 0, out=out),
    "leaky_relu": lambda x, out, tmp, s: nn.leaky_relu(x, s["negative_slope"], out=out),
    "relu6": lambda x, out, tmp, s: torch.clamp(x, 0, 6, out=out),
    "relu_squared": lambda x, out, tmp, s: torch.clamp_min(x, 0, out=out).square_(),
    "elu": lambda x, out, tmp, s: nn.elu(x, s["elu_alpha"], out=out),
    "selu": lambda x, out, tmp, s: nn.elu(x, SELU_ALPHA, SELU_SCALE, out=out),
    "gelu": lambda x, out, tmp, s: nn.gelu(x, out=out),
    "gelu_tanh": lambda x, out, tmp, s: nn.gelu(x, approximate="tanh", out=out),
    "quick_gelu": _quick_gelu,
    "silu": lambda x, out, tmp, s: nn.silu(x, out=out),
    "sigmoid": lambda x, out, tmp, s: torch.sigmoid(x, out=out),
    "hardsigmoid": lambda x, out, tmp, s: nn.hardsigmoid(x, out=out),
    "hardswish": lambda x, out, tmp, s: nn.hardswish(x, out=out),
    "tanh": lambda x, out, tmp, s: torch.tanh(x, out=out),
    "hardtanh": lambda x, out, tmp, s: torch.clamp(x, s["min_val"], s["max_val"], out=out),
    "softplus": lambda x, out, tmp, s: nn.softplus(x, out=out),
    "softsign": _softsign,
    "mish": lambda x, out, tmp, s: nn.mish(x, out=out),
}


def _through(x, d, out, tmp, act, act_bwd):
    """A derivative that PyTorch states in terms of the activation's value."""
    act(x, out=tmp)
    act_bwd(d, tmp, grad_input=out)


def _relu_squared_bwd(x, d, out, tmp, s):
    torch.clamp_min(x, 0, out=tmp)
    torch.addcmul(tmp.new_zeros(()), tmp, d, value=2, out=out)


def _quick_gelu_bwd(x, d, out, tmp, s):
    torch.mul(x, 1.702, out=tmp)  # quick_gelu(x) is silu(1.702 x) / 1.702
    aten.silu_backward.grad_input(d, tmp, grad_input=out)


def _softsign_bwd(x, d, out, tmp, s):
    torch.abs(x, out=tmp).add_(1).square_()
    torch.div(d, tmp, out=out)


# x and out may be one tensor; tmp is neither.
ACT_BWD = {
    "none": lambda x, d, out, tmp, s: None if out is d else out.copy_(d),
    "relu": lambda x, d, out, tmp, s: aten.threshold_backward.grad_input(d, x, 0, grad_input=out),
    "leaky_relu": lambda x, d, out, tmp, s: aten.leaky_relu_backward.grad_input(
        d, x, s["negative_slope"], False, grad_input=out
    ),
    "relu6": lambda x, d, out, tmp, s: aten.hardtanh_backward.grad_input(
        d, x, 0.0, 6.0, grad_input=out
    ),
    "relu_squared": _relu_squared_bwd,
    "elu": lambda x, d, out, tmp, s: aten.elu_backward.grad_input(
        d, s["elu_alpha"], 1.0, 1.0, False, x, grad_input=out
    ),
    "selu": lambda x, d, out, tmp, s: aten.elu_backward.grad_input(
        d, SELU_ALPHA, SELU_SCALE, 1.0, False, x, grad_input=out
    ),
    "gelu": lambda x, d, out, tmp, s: aten.gelu_backward.grad_input(d, x, grad_input=out),
    "gelu_tanh": lambda x, d, out, tmp, s: aten.gelu_backward.grad_input(
        d, x, approximate="tanh", grad_input=out
    ),
    "quick_gelu": _quick_gelu_bwd,
    "silu": lambda x, d, out, tmp, s: aten.silu_backward.grad_input(d, x, grad_input=out),
    "sigmoid": lambda x, d, out, tmp, s: _through(
        x, d, out, tmp, torch.sigmoid, aten.sigmoid_backward.grad_input
    ),
    "hardsigmoid": lambda x, d, out, tmp, s: aten.hardsigmoid_backward.grad_input(
        d, x, grad_input=out
    ),
    "hardswish": lambda x, d, out, tmp, s: aten.hardswish_backward.out(
        d, x, out=out
    ),  # allocates, then copies
    "tanh": lambda x, d, out, tmp, s: _through(
        x, d, out, tmp, torch.tanh, aten.tanh_backward.grad_input
    ),
    "hardtanh": lambda x, d, out, tmp, s: aten.hardtanh_backward.grad_input(
        d, x, s["min_val"], s["max_val"], grad_input=out
    ),
    "softplus": lambda x, d, out, tmp, s: aten.softplus_backward.grad_input(
        d, x, 1.0, 20.0, grad_input=out
    ),
    "softsign": _softsign_bwd,
    "mish": lambda x, d, out, tmp, s: out.copy_(aten.mish_backward(d, x)),  # no out= form
}


class _Eager:
    """Tensors of one case: inputs and outputs by name, scratch tensors of the result's shape."""

    def __init__(self, f, t, outs, p):
        self.t, self.o, self.s, self.p = t, outs, f["scalars"], p
        self.act = functools.partial(ACT[f["activation"]], s=self.s)
        self.act_bwd = functools.partial(ACT_BWD[f["activation"]], s=self.s)
        self.plain = f["activation"] == "none"
        elem = next(a["name"] for a in f["arguments"] if a.get("kind") == "elem")
        self.like, self.scratch_ = t[elem] if elem in t else outs[elem], {}
        self.zero = self.like.new_zeros(())
        self.half = self.like.new_full((), 0.5)

    def scratch(self, name):
        """Allocates on first use, before the timing."""
        if name not in self.scratch_:
            self.scratch_[name] = torch.empty_like(self.like)
        return self.scratch_[name]

    def apply(self, x, out):
        self.act(x, out, self.scratch("act"))

    def apply_bwd(self, x, d, out):
        self.act_bwd(x, d, out, self.scratch("act"))

    def drop(self, y, out):
        mask = self.scratch("mask").bernoulli_(1 - self.p)
        torch.addcmul(self.zero, mask, y, value=1 / (1 - self.p), out=out)

    def into(self, name):
        """The gradient's tensor, or scratch if it is not wanted."""
        return self.o[name] if name in self.o else self.scratch(name)


def _binary(op):
    def run(e):
        op(e, e.o["out"])
        e.apply(e.o["out"], e.o["out"])

    return run


def _axpby(e, out):
    torch.mul(e.t["a"], e.s["alpha"], out=out).add_(e.t["b"], alpha=e.s["beta"])


def _bias_add(e):
    torch.add(e.t["x"], e.t["bias"], out=e.o["out"])
    e.apply(e.o["out"], e.o["out"])
    e.o["out"].add_(e.t["residual"])


def _scale(e):
    if e.plain:
        torch.mul(e.t["x"], e.s["scale"], out=e.o["out"])
    else:
        e.apply(e.t["x"], e.o["out"])
        e.o["out"].mul_(e.s["scale"])


def _prelu(e):
    torch.add(
        torch.nn.functional.prelu(e.t["x"], e.t["weight"]), e.t["bias"], out=e.o["out"]
    )  # prelu has no out= form


def _gated(e, gate, up):
    e.apply(gate, e.o["out"])
    e.o["out"].mul_(up)


def _batch_norm(e):
    t = e.t
    none = torch.empty(0, dtype=t["running_mean"].dtype)
    aten.native_batch_norm.out(
        t["x"],
        t["weight"],
        t["bias"],
        t["running_mean"],
        t["running_var"],
        False,
        0.0,
        e.s["eps"],
        out=e.o["out"],
        save_mean=none,
        save_invstd=none.clone(),
    )
    e.apply(e.o["out"], e.o["out"])


def _dropout(e):
    x = e.t["x"]
    if not e.plain:
        e.apply(x, e.o["out"])
        x = e.o["out"]
    e.drop(x, e.o["out"])


def _bias_dropout(e):
    torch.add(e.t["x"], e.t["bias"], out=e.o["out"])
    e.apply(e.o["out"], e.o["out"])
    e.drop(e.o["out"], e.o["out"])


def _bias_dropout_add(e):
    torch.add(e.t["x"], e.t["bias"], out=e.o["out"])
    mask = e.scratch("mask").bernoulli_(1 - e.p)
    torch.addcmul(e.t["residual"], mask, e.o["out"], value=1 / (1 - e.p), out=e.o["out"])


def _bce(e):
    """max(x, 0) - x * target + log(1 + exp(-|x|)): PyTorch's own has no out= form."""
    x, out = e.t["x"], e.o["out"]
    torch.abs(x, out=out).neg_().exp_().log1p_()
    torch.clamp_min(x, 0, out=e.scratch("z"))
    out.add_(e.scratch("z")).addcmul_(x, e.t["target"], value=-1)


def _kl(e):
    torch.xlogy(e.t["target"], e.t["target"], out=e.o["out"]).addcmul_(
        e.t["target"], e.t["x"], value=-1
    )


def _called(function):
    return lambda e: function(*e.t.values(), out=e.o["out"])


FORWARD = {word: _called(function) for word, function in FUNCTIONS.items()} | {
    "{act}": lambda e: e.apply(e.t["x"], e.o["out"]),
    "add_{act}": _binary(lambda e, out: torch.add(e.t["a"], e.t["b"], out=out)),
    "sub_{act}": _binary(lambda e, out: torch.sub(e.t["a"], e.t["b"], out=out)),
    "mul_{act}": _binary(lambda e, out: torch.mul(e.t["a"], e.t["b"], out=out)),
    "div_{act}": _binary(lambda e, out: torch.div(e.t["a"], e.t["b"], out=out)),
    "maximum_{act}": _binary(lambda e, out: torch.maximum(e.t["a"], e.t["b"], out=out)),
    "minimum_{act}": _binary(lambda e, out: torch.minimum(e.t["a"], e.t["b"], out=out)),
    "axpby_{act}": _binary(_axpby),
    "bias_{act}": _binary(lambda e, out: torch.add(e.t["x"], e.t["bias"], out=out)),
    "bias_{act}_add": _bias_add,
    "{act}_scale": _scale,
    "prelu_bias": _prelu,
    "{act}_mul": lambda e: _gated(e, e.t["gate"], e.t["up"]),
    "{act}_glu": lambda e: _gated(e, *e.t["x"].chunk(2, dim=-1)),
    "batch_norm_{act}": _batch_norm,
    "{act}_dropout": _dropout,
    "bias_{act}_dropout": _bias_dropout,
    "bias_dropout_add": _bias_dropout_add,
    "cast": lambda e: e.o["out"].copy_(e.t["x"]),
    "mse": lambda e: aten.mse_loss.out(e.t["x"], e.t["target"], 0, out=e.o["out"]),
    "l1": lambda e: torch.sub(e.t["x"], e.t["target"], out=e.o["out"]).abs_(),
    "huber": lambda e: aten.huber_loss.out(
        e.t["x"], e.t["target"], 0, e.s["delta"], out=e.o["out"]
    ),
    "bce_with_logits": _bce,
    "kl_div": _kl,
}


def _through_binary(op, split):
    """z = op(a, b), dz through the activation, then the gradients of op."""

    def run(e):
        z, dz = e.scratch("z"), e.scratch("dz")
        if e.plain:
            dz = e.t["dout"]
        else:
            op(e, z)
            e.apply_bwd(z, e.t["dout"], dz)
        split(e, dz, z)

    return run


def _add_bwd(e):
    dz = e.into("da")
    torch.add(e.t["a"], e.t["b"], out=dz)
    e.apply_bwd(dz, e.t["dout"], dz)
    if "db" in e.o:
        e.o["db"].copy_(dz)


def _sub_bwd(e):
    dz = e.t["dout"]
    if not e.plain:
        dz = e.into("da")
        torch.sub(e.t["a"], e.t["b"], out=dz)
        e.apply_bwd(dz, e.t["dout"], dz)
    elif "da" in e.o:
        e.o["da"].copy_(dz)
    torch.neg(dz, out=e.o["db"])


def _mul_split(e, dz, z):
    torch.mul(dz, e.t["b"], out=e.o["da"])
    torch.mul(dz, e.t["a"], out=e.o["db"])


def _div_split(e, dz, z):
    if e.plain:
        torch.div(e.t["a"], e.t["b"], out=z)
    torch.div(dz, e.t["b"], out=e.o["da"])
    torch.addcmul(e.zero, e.o["da"], z, value=-1, out=e.o["db"])


def _extremum_split(larger):
    def split(e, dz, z):
        a, b = (e.t["a"], e.t["b"]) if larger else (e.t["b"], e.t["a"])
        side = torch.heaviside(torch.sub(a, b, out=z), e.half, out=z)  # 1, 0, or 0.5 at a tie
        torch.mul(dz, side, out=e.o["da"])
        torch.sub(dz, e.o["da"], out=e.o["db"])

    return split


def _axpby_split(e, dz, z):
    torch.mul(dz, e.s["alpha"], out=e.o["da"])
    torch.mul(dz, e.s["beta"], out=e.o["db"])


def _bias_bwd(dropout):
    def run(e):
        d = e.t["dout"]
        if dropout:
            d = e.into("dx") if e.plain else e.scratch("d")
            e.drop(e.t["dout"], d)
        if not e.plain:
            dx = e.into("dx")
            torch.add(e.t["x"], e.t["bias"], out=dx)
            e.apply_bwd(dx, d, dx)
            d = dx
        elif "dx" in e.o and d is not e.o["dx"]:
            d = e.o["dx"].copy_(d)
        torch.sum(d, 0, out=e.o["dbias"])
        if "dresidual" in e.o:
            e.o["dresidual"].copy_(e.t["dout"])

    return run


def _scale_bwd(e):
    dx = e.o["dx"]
    torch.mul(e.t["dout"], e.s["scale"], out=dx)
    if not e.plain:
        e.apply_bwd(e.t["x"], dx, dx)


def _prelu_bwd(e):
    dx, dweight = aten._prelu_kernel_backward(e.t["dout"], e.t["x"], e.t["weight"])  # no out= form
    e.o["dx"].copy_(dx)
    torch.sum(dweight, 0, out=e.o["dweight"])
    torch.sum(e.t["dout"], 0, out=e.o["dbias"])


def _gated_bwd(e, gate, up, dgate, dup):
    z = e.scratch("z")
    torch.mul(e.t["dout"], up, out=z)
    e.apply_bwd(gate, z, dgate)
    e.apply(gate, dup)
    dup.mul_(e.t["dout"])


def _batch_norm_bwd(e):
    t, dz = e.t, e.t["dout"]
    none = torch.empty(0, dtype=t["running_mean"].dtype)
    if not e.plain:
        z, dz = e.scratch("z"), e.scratch("dz")
        aten.native_batch_norm.out(
            t["x"],
            t["weight"],
            t["bias"],
            t["running_mean"],
            t["running_var"],
            False,
            0.0,
            e.s["eps"],
            out=z,
            save_mean=none,
            save_invstd=none.clone(),
        )
        e.apply_bwd(z, t["dout"], dz)
    # No out= form; it is what autograd calls.
    dx, dweight, dbias = aten.native_batch_norm_backward(
        dz,
        t["x"],
        t["weight"],
        t["running_mean"],
        t["running_var"],
        none,
        none,
        False,
        e.s["eps"],
        [True] * 3,
    )
    for name, gradient in (("dx", dx), ("dweight", dweight), ("dbias", dbias)):
        e.o[name] = gradient


def _dropout_bwd(e):
    dx = e.o["dx"]
    e.drop(e.t["dout"], dx)
    if not e.plain:
        e.apply_bwd(e.t["x"], dx, dx)


def _of_both(fill):
    """Gradients of a loss of x - target, which are each other's negatives."""

    def run(e):
        fill(e, e.into("dx"))
        if "dtarget" in e.o:
            torch.neg(e.into("dx"), out=e.o["dtarget"])

    return run


def _l1_bwd(e, dx):
    torch.sub(e.t["x"], e.t["target"], out=dx)
    torch.sign(dx, out=dx).mul_(e.t["dout"])


def _bce_bwd(e):
    torch.sigmoid(e.t["x"], out=e.o["dx"]).sub_(e.t["target"]).mul_(e.t["dout"])


BACKWARD = {
    "{act}": lambda e: e.apply_bwd(e.t["x"], e.t["dout"], e.o["dx"]),
    "add_{act}": _add_bwd,
    "sub_{act}": _sub_bwd,
    "mul_{act}": _through_binary(lambda e, z: torch.mul(e.t["a"], e.t["b"], out=z), _mul_split),
    "div_{act}": _through_binary(lambda e, z: torch.div(e.t["a"], e.t["b"], out=z), _div_split),
    "maximum_{act}": _through_binary(
        lambda e, z: torch.maximum(e.t["a"], e.t["b"], out=z), _extremum_split(True)
    ),
    "minimum_{act}": _through_binary(
        lambda e, z: torch.minimum(e.t["a"], e.t["b"], out=z), _extremum_split(False)
    ),
    "axpby_{act}": _through_binary(_axpby, _axpby_split),
    "bias_{act}": _bias_bwd(False),
    "bias_{act}_add": _bias_bwd(False),
    "{act}_scale": _scale_bwd,
    "prelu_bias": _prelu_bwd,
    "{act}_mul": lambda e: _gated_bwd(e, e.t["gate"], e.t["up"], e.o["dgate"], e.o["dup"]),
    "{act}_glu": lambda e: _gated_bwd(e, *e.t["x"].chunk(2, dim=-1), *e.o["dx"].chunk(2, dim=-1)),
    "batch_norm_{act}": _batch_norm_bwd,
    "{act}_dropout": _dropout_bwd,
    "bias_{act}_dropout": _bias_bwd(True),
    "bias_dropout_add": _bias_bwd(True),
    "mse": _of_both(
        lambda e, dx: aten.mse_loss_backward.grad_input(
            e.t["dout"], e.t["x"], e.t["target"], 0, grad_input=dx
        )
    ),
    "l1": _of_both(_l1_bwd),
    "huber": _of_both(
        lambda e, dx: aten.huber_loss_backward.out(
            e.t["dout"], e.t["x"], e.t["target"], 0, e.s["delta"], grad_input=dx
        )
    ),
    "bce_with_logits": _bce_bwd,
    "kl_div": lambda e: torch.mul(e.t["target"], e.t["dout"], out=e.o["dx"]).neg_(),
}


def build(f, t, outs, p):
    """A function that fills `outs`, {name: tensor}, or None if PyTorch has no such form; missing
    gradients are not wanted.
    """
    run = (BACKWARD if f["bwd"] else FORWARD).get(f["op"])
    e = _Eager(f, t, outs, p) if run else None
    return run and (lambda: run(e))
