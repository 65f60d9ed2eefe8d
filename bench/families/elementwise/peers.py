# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops and activations in PyTorch, and their gradients in closed form.

torch.compile turns a gradient into one kernel that reads and writes the tensors of kf's backward.
"""

import torch
import torch.nn.functional as F

aten = torch.ops.aten
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

ACTIVATIONS = {
    "none": lambda x, s: x,
    "relu": lambda x, s: F.relu(x),
    "leaky_relu": lambda x, s: F.leaky_relu(x, s["negative_slope"]),
    "relu6": lambda x, s: F.relu6(x),
    "relu_squared": lambda x, s: F.relu(x).square(),
    "elu": lambda x, s: F.elu(x, s["elu_alpha"]),
    "selu": lambda x, s: F.selu(x),
    "gelu": lambda x, s: F.gelu(x),
    "gelu_tanh": lambda x, s: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x, s: x * torch.sigmoid(1.702 * x),
    "silu": lambda x, s: F.silu(x),
    "sigmoid": lambda x, s: torch.sigmoid(x),
    "hardsigmoid": lambda x, s: F.hardsigmoid(x),
    "hardswish": lambda x, s: F.hardswish(x),
    "tanh": lambda x, s: torch.tanh(x),
    "hardtanh": lambda x, s: F.hardtanh(x, s["min_val"], s["max_val"]),
    "softplus": lambda x, s: F.softplus(x),
    "softsign": lambda x, s: F.softsign(x),
    "mish": lambda x, s: F.mish(x),
}


def _quick_gelu_bwd(x, d, s):
    y = torch.sigmoid(1.702 * x)
    return d * (y + 1.702 * x * y * (1 - y))


def _sigmoid_bwd(x, d, s):
    y = torch.sigmoid(x)
    return d * (y * (1 - y))


def _tanh_bwd(x, d, s):
    y = torch.tanh(x)
    return d * (1 - y * y)


def _softsign_bwd(x, d, s):
    r = 1 / (1 + x.abs())
    return d * r * r


ACTIVATIONS_BWD = {
    "none": lambda x, d, s: d,
    "relu": lambda x, d, s: aten.threshold_backward(d, x, 0),
    "leaky_relu": lambda x, d, s: aten.leaky_relu_backward(d, x, s["negative_slope"], False),
    "relu6": lambda x, d, s: aten.hardtanh_backward(d, x, 0.0, 6.0),
    "relu_squared": lambda x, d, s: d * (2 * F.relu(x)),
    "elu": lambda x, d, s: aten.elu_backward(d, s["elu_alpha"], 1.0, 1.0, False, x),
    "selu": lambda x, d, s: aten.elu_backward(d, SELU_ALPHA, SELU_SCALE, 1.0, False, x),
    "gelu": lambda x, d, s: aten.gelu_backward(d, x),
    "gelu_tanh": lambda x, d, s: aten.gelu_backward(d, x, approximate="tanh"),
    "quick_gelu": _quick_gelu_bwd,
    "silu": lambda x, d, s: aten.silu_backward(d, x),
    "sigmoid": _sigmoid_bwd,
    "hardsigmoid": lambda x, d, s: aten.hardsigmoid_backward(d, x),
    "hardswish": lambda x, d, s: aten.hardswish_backward(d, x),
    "tanh": _tanh_bwd,
    "hardtanh": lambda x, d, s: aten.hardtanh_backward(d, x, s["min_val"], s["max_val"]),
    "softplus": lambda x, d, s: aten.softplus_backward(d, x, 1.0, 20.0),
    "softsign": _softsign_bwd,
    "mish": lambda x, d, s: aten.mish_backward(d, x),
}


def _glu(act, t, s, drop):
    gate, up = t["x"].chunk(2, dim=-1)
    return act(gate) * up


# Ops that are one function of PyTorch, with the operands in order.
FUNCTIONS = {
    word: getattr(torch, word)
    for word in (
        *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "abs", "neg", "where"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    )
}


def _called(function):
    return lambda act, t, s, drop: function(*t.values())


FORWARD = {word: _called(function) for word, function in FUNCTIONS.items()} | {
    "clamp": lambda act, t, s, drop: torch.clamp(t["x"], s["min_val"], s["max_val"]),
    "lerp": lambda act, t, s, drop: torch.lerp(t["start"], t["end"], s["weight"]),
    "{act}": lambda act, t, s, drop: act(t["x"]),
    "add_{act}": lambda act, t, s, drop: act(t["a"] + t["b"]),
    "sub_{act}": lambda act, t, s, drop: act(t["a"] - t["b"]),
    "mul_{act}": lambda act, t, s, drop: act(t["a"] * t["b"]),
    "div_{act}": lambda act, t, s, drop: act(t["a"] / t["b"]),
    "maximum_{act}": lambda act, t, s, drop: act(torch.maximum(t["a"], t["b"])),
    "minimum_{act}": lambda act, t, s, drop: act(torch.minimum(t["a"], t["b"])),
    "axpby_{act}": lambda act, t, s, drop: act(s["alpha"] * t["a"] + s["beta"] * t["b"]),
    "bias_{act}": lambda act, t, s, drop: act(t["x"] + t["bias"]),
    "bias_{act}_add": lambda act, t, s, drop: act(t["x"] + t["bias"]) + t["residual"],
    "{act}_scale": lambda act, t, s, drop: act(t["x"]) * s["scale"],
    "prelu_bias": lambda act, t, s, drop: F.prelu(t["x"], t["weight"]) + t["bias"],
    "{act}_mul": lambda act, t, s, drop: act(t["gate"]) * t["up"],
    "{act}_glu": _glu,
    "batch_norm_{act}": lambda act, t, s, drop: act(_batch_norm(t, s)),
    "{act}_dropout": lambda act, t, s, drop: drop(act(t["x"])),
    "bias_{act}_dropout": lambda act, t, s, drop: drop(act(t["x"] + t["bias"])),
    "bias_dropout_add": lambda act, t, s, drop: drop(t["x"] + t["bias"]) + t["residual"],
    "cast": lambda act, t, s, drop: t["x"].to(s["to"]),
    "mse": lambda act, t, s, drop: F.mse_loss(t["x"], t["target"], reduction="none"),
    "l1": lambda act, t, s, drop: F.l1_loss(t["x"], t["target"], reduction="none"),
    "huber": lambda act, t, s, drop: F.huber_loss(
        t["x"], t["target"], reduction="none", delta=s["delta"]
    ),
    "bce_with_logits": lambda act, t, s, drop: F.binary_cross_entropy_with_logits(
        t["x"], t["target"], reduction="none"
    ),
    "kl_div": lambda act, t, s, drop: F.kl_div(t["x"], t["target"], reduction="none"),
}


def _both(da, db):
    return {"da": da, "db": db}


def _extremum_bwd(larger, act_bwd, t, d):
    """A tie gives each half of the gradient."""
    a, b = t["a"], t["b"]
    dz = act_bwd(torch.maximum(a, b) if larger else torch.minimum(a, b), d)
    first, second = (a > b, a < b) if larger else (a < b, a > b)
    half = dz * 0.5
    return _both(
        torch.where(first, dz, torch.where(second, 0, half)),
        torch.where(second, dz, torch.where(first, 0, half)),
    )


def _div_bwd(act, act_bwd, t, s, drop, d):
    z = t["a"] / t["b"]
    da = act_bwd(z, d) / t["b"]
    return _both(da, -da * z)


def _mul_bwd(act, act_bwd, t, s, drop, d):
    dz = act_bwd(t["a"] * t["b"], d)
    return _both(dz * t["b"], dz * t["a"])


def _axpby_bwd(act, act_bwd, t, s, drop, d):
    dz = act_bwd(s["alpha"] * t["a"] + s["beta"] * t["b"], d)
    return _both(s["alpha"] * dz, s["beta"] * dz)


def _add_bwd(act, act_bwd, t, s, drop, d):
    dz = act_bwd(t["a"] + t["b"], d)
    return _both(dz, dz)


def _sub_bwd(act, act_bwd, t, s, drop, d):
    dz = act_bwd(t["a"] - t["b"], d)
    return _both(dz, -dz)


def _bias_bwd(act, act_bwd, t, s, drop, d):
    dz = act_bwd(t["x"] + t["bias"], drop(d))
    return {"dx": dz, "dbias": dz.sum(0), "dresidual": d}


def _prelu_bwd(act, act_bwd, t, s, drop, d):
    x, positive = t["x"], t["x"] > 0
    return {
        "dx": torch.where(positive, d, t["weight"] * d),
        "dweight": torch.where(positive, 0, x * d).sum(0),
        "dbias": d.sum(0),
    }


def _gated(act, act_bwd, gate, up, d):
    return act_bwd(gate, d * up), act(gate) * d


def _mul_gated_bwd(act, act_bwd, t, s, drop, d):
    dgate, dup = _gated(act, act_bwd, t["gate"], t["up"], d)
    return {"dgate": dgate, "dup": dup}


def _glu_bwd(act, act_bwd, t, s, drop, d):
    return {"dx": torch.cat(_gated(act, act_bwd, *t["x"].chunk(2, dim=-1), d), dim=-1)}


def _batch_norm(t, s):
    return F.batch_norm(
        t["x"], t["running_mean"], t["running_var"], t["weight"], t["bias"], False, 0.0, s["eps"]
    )


def _batch_norm_bwd(act, act_bwd, t, s, drop, d):
    mean, weight, bias = (t[n][None, :, None] for n in ("running_mean", "weight", "bias"))
    rstd = torch.rsqrt(t["running_var"] + s["eps"])[None, :, None]
    xhat = (t["x"] - mean) * rstd
    dz = act_bwd(xhat * weight + bias, d)
    return {"dx": dz * (rstd * weight), "dweight": (dz * xhat).sum((0, 2)), "dbias": dz.sum((0, 2))}


def _of_both(dx):
    return {"dx": dx, "dtarget": -dx}


def _of_x(derivative):
    return lambda act, act_bwd, t, s, drop, d: {"dx": d * derivative(t["x"])}


def _clamp_bwd(act, act_bwd, t, s, drop, d):
    return {"dx": torch.where((t["x"] < s["min_val"]) | (t["x"] > s["max_val"]), 0, d)}


def _where_bwd(act, act_bwd, t, s, drop, d):
    return _both(torch.where(t["condition"] != 0, d, 0), torch.where(t["condition"] != 0, 0, d))


BACKWARD = {
    "exp": _of_x(torch.exp),
    "expm1": _of_x(torch.exp),
    "log": _of_x(torch.reciprocal),
    "log1p": _of_x(lambda x: 1 / (1 + x)),
    "sqrt": _of_x(lambda x: 0.5 * torch.rsqrt(x)),
    "rsqrt": _of_x(lambda x: -0.5 * torch.rsqrt(x) / x),
    "reciprocal": _of_x(lambda x: -1 / (x * x)),
    "abs": _of_x(torch.sign),
    "neg": _of_x(lambda x: -1.0),
    "clamp": _clamp_bwd,
    "lerp": lambda act, act_bwd, t, s, drop, d: {
        "dstart": d * (1 - s["weight"]),
        "dend": d * s["weight"],
    },
    "where": _where_bwd,
    "{act}": lambda act, act_bwd, t, s, drop, d: {"dx": act_bwd(t["x"], d)},
    "add_{act}": _add_bwd,
    "sub_{act}": _sub_bwd,
    "mul_{act}": _mul_bwd,
    "div_{act}": _div_bwd,
    "maximum_{act}": lambda act, act_bwd, t, s, drop, d: _extremum_bwd(True, act_bwd, t, d),
    "minimum_{act}": lambda act, act_bwd, t, s, drop, d: _extremum_bwd(False, act_bwd, t, d),
    "axpby_{act}": _axpby_bwd,
    "bias_{act}": _bias_bwd,
    "bias_{act}_add": _bias_bwd,
    "{act}_scale": lambda act, act_bwd, t, s, drop, d: {"dx": act_bwd(t["x"], d * s["scale"])},
    "prelu_bias": _prelu_bwd,
    "{act}_mul": _mul_gated_bwd,
    "{act}_glu": _glu_bwd,
    "batch_norm_{act}": _batch_norm_bwd,
    "{act}_dropout": lambda act, act_bwd, t, s, drop, d: {"dx": act_bwd(t["x"], drop(d))},
    "bias_{act}_dropout": _bias_bwd,
    "bias_dropout_add": _bias_bwd,
    "mse": lambda act, act_bwd, t, s, drop, d: _of_both(2 * (t["x"] - t["target"]) * d),
    "l1": lambda act, act_bwd, t, s, drop, d: _of_both(torch.sign(t["x"] - t["target"]) * d),
    "huber": lambda act, act_bwd, t, s, drop, d: _of_both(
        (t["x"] - t["target"]).clamp(-s["delta"], s["delta"]) * d
    ),
    "bce_with_logits": lambda act, act_bwd, t, s, drop, d: {
        "dx": (torch.sigmoid(t["x"]) - t["target"]) * d
    },
    "kl_div": lambda act, act_bwd, t, s, drop, d: {"dx": -t["target"] * d},
}

TORCH = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.bool,
}  # conditions: a byte each, which PyTorch's masks are
DRAW = dict.fromkeys(("bce_with_logits", "kl_div"), {"target": "uniform"})
DRAW |= dict.fromkeys(("log", "log1p", "sqrt", "rsqrt"), {"x": "positive"})
DRAW |= {"where": {"condition": "seen"}}


def no_drop(y):
    return y


def torch_dropout(p):
    return lambda y: F.dropout(y, p, training=True)


def random_mask(p):
    """Dropout of a closed-form gradient: draws the mask again, like kf, instead of reading it."""
    scale = 1.0 / (1.0 - p)
    return lambda d: torch.where(torch.rand_like(d) >= p, d * scale, 0)


def backward(f, outputs, scalars, drop=no_drop):
    """fn: {name: tensor} -> the gradients `outputs` (entries of the manifest).

    Computes in float32 and rounds once. Inputs that the derivative does not read are passed too:
    the compiler drops them.
    """
    act, act_bwd, op = (
        ACTIVATIONS[f["activation"]],
        ACTIVATIONS_BWD[f["activation"]],
        BACKWARD[f["op"]],
    )
    wanted = [(a["name"], TORCH[a["dtype"]]) for a in outputs]

    def fn(given):
        t = {n: x.float() for n, x in given.items()}
        found = op(
            lambda x: act(x, scalars),
            lambda x, d: act_bwd(x, d, scalars),
            t,
            scalars,
            drop,
            t["dout"],
        )
        return [_fresh(found[n], t["dout"]).to(dtype) for n, dtype in wanted]

    return fn


def _fresh(gradient, dout):
    return gradient.clone() if gradient is dout else gradient
