# SPDX-License-Identifier: Apache-2.0
"""Formulas for kf.fuse and kf.fuse_row, their operands, and their values in PyTorch. Used by tests
of kf.fuse in tests/frontends."""

import ast
import functools

import torch
import torch.nn.functional as F

SHAPE = (5, 7)


def shape_of(operands):
    return (3, 4, 2) if "channel" in operands.values() else SHAPE


KINDS = {
    "elem": lambda s: s,
    "row": lambda s: s[-1:],
    "channel": lambda s: s[1:2],
    "per_row": lambda s: s[:-1],
}
DTYPES = {
    "f32": (torch.float32, 2e-5),
    "f64": (torch.float64, 1e-11),
    "f16": (torch.float16, 4e-3),
    "bf16": (torch.bfloat16, 3e-2),
}


def draw(operands, shape=SHAPE, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        n: torch.randn(
            KINDS[k if isinstance(k, str) else k["kind"]](shape), generator=rng, dtype=torch.float64
        )
        .to(dtype)
        .requires_grad_()
        for n, k in operands.items()
    }


EACH = [
    ("gelu(x + bias) * gate", {"x": "elem", "bias": "row", "gate": "elem"}, {}),
    ("silu(x) * y + mish(y) - leaky_relu(x, 0.3) + leaky_relu(y)", {"x": "elem", "y": "elem"}, {}),
    (
        "t = exp(-abs(x)); where(x > low and y < 1, t * y, softplus(x) - low)",
        {"x": "elem", "y": "elem"},
        {"low": -0.25},
    ),
    ("elu(x * w) + c", {"x": "elem", "w": "channel", "c": "channel"}, {}),
]
ROWS = [
    ("x * rsqrt(mean(x * x) + eps) * (1 + w)", {"x": "elem", "w": "row"}, {"eps": 1e-6}),
    ("e = exp(x - max(x)); silu(e / sum(e)) * s", {"x": "elem", "s": "per_row"}, {}),
    ("sum(gelu(x) * y)", {"x": "elem", "y": "elem"}, {}),
]


def made(kf, text, operands, scalars):
    return (kf.fuse_row if (text, operands, scalars) in ROWS else kf.fuse)(
        text, **operands, **scalars
    )


# ---- a formula in PyTorch

# The primitives of the expression language in PyTorch.
WORDS = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "abs": torch.abs,
    "where": torch.where,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "relu": F.relu,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "selu": F.selu,
    "relu6": F.relu6,
    "leaky_relu": lambda x, slope=0.01: F.leaky_relu(x, float(slope)),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softsign": F.softsign,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(-1, keepdim=True),
}


def _extreme(pair, whole):
    return lambda *a: whole(a[0]) if len(a) == 1 else pair(*a)


WORDS |= {
    "max": _extreme(torch.maximum, lambda x: x.amax(-1, keepdim=True)),
    "min": _extreme(torch.minimum, lambda x: x.amin(-1, keepdim=True)),
}


def number(value):
    return torch.tensor(value, dtype=torch.float64)


class Tensors(ast.NodeTransformer):
    """Rewrites numbers and conditions of a formula for PyTorch."""

    def visit_Constant(self, node):
        return ast.Call(ast.Name("number", ast.Load()), [node], [])

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        return functools.reduce(
            lambda a, b: ast.BinOp(
                a, ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), b
            ),
            node.values,
        )


def reference(text, names):
    *before, value = ast.fix_missing_locations(Tensors().visit(ast.parse(text))).body
    names = {**WORDS, **names, "number": number}
    exec(compile(ast.Module(before, []), text, "exec"), names)
    return eval(compile(ast.Expression(value.value), text, "eval"), names)
