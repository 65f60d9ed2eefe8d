# SPDX-License-Identifier: Apache-2.0
"""Calls of kf.ops with random tensors, and references: the benchmarks' formulas in float64."""

import functools
import sys
from dataclasses import dataclass

import cases
import kflib
import kfpython
import numpy as np
import torch
from kfgen.interfaces import packed

sys.path.append(str(kflib.ROOT / "bench"))
import peers  # noqa: E402

kfpython.use()
from kernel_fusion import _table  # noqa: E402
from kernel_fusion._sizes import value  # noqa: E402

FUNCTIONS = [f for f in packed.functions(kflib.manifest()) if not f["bwd"]]
FORMS = {
    "flat": (6,),
    "rows": (3, 5),
    "planes": (2, 3, 4),
    "heads": (2, 2, 3, 5),
    "groups": (2, 6, 4),
    "channels": (3, 2, 4),
    "axis": (2, 4, 3),
    **dict.fromkeys(("nt", "nn", "tn", "tt"), (2, 3, 5, 4)),
}  # batch, rows, cols, depth
DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
}
DROPPED = {"p": 0.4, "rng": (3, 4)}  # dropouts
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2, "f64": 1e-9}
# References, functions of tensors and scalars, where the benchmarks' formula lacks a part: class
# weights, -1 as an invalid row index, NaN that a mask or dropout hides. `drop` of the scalars is
# the function of dropout.
OWN = {
    "nll": lambda t, s: [
        torch.nn.functional.nll_loss(
            t["x"], t["label"], t["weight"].to(t["x"].dtype), reduction="none"
        )
    ],
    **cases.merged("REFERENCES"),
}


def formula(f, scalars, drop):
    """Returns PyTorch's formula of an op, a function of its tensors."""
    own = OWN.get(f["op"])
    return (lambda t: own(t, scalars | {"drop": drop})) if own else peers.forward(f, scalars, drop)


def sizes_of(f):
    """Returns the shape parameters of an op's tensors."""
    return FORMS.get(f["form"]) or cases.own(f).TORCH


def chosen(function):
    """True if the library has the function; at level 2 three activations per op."""
    some = ("none", "gelu", "leaky_relu" if kfpython.WHOLE else "relu")
    acts = [a for a in _table.ops()[_name(function)].activations if a in some and kfpython.has(a)]
    return (kfpython.WHOLE or _name(function) in kfpython.OPS) and function["activation"] in acts


def _name(function):
    return next(op.name for op in _table.ops().values() if op.pattern == function["op"])


def forward(function):
    """Returns the package's description of a function."""
    return _table.ops()[_name(function)].forward


# One function per op and activation, with the first dtypes; `case` draws no lists.
ALL = list(
    {
        (f["op"], f["activation"]): f
        for f in reversed(FUNCTIONS)
        if chosen(f) and len(f["dtypes"]) == 1 and not forward(f).lists
    }.values()
)[::-1]
# Functions of JAX and TensorFlow, whose arrays are constant.
FUNCTIONAL = [f for f in ALL if not forward(f).updates]
PLAIN = [f for f in ALL if not f["dropout"] and f["backward"]]


def of_each_op(found):
    """Selects one function per op, with a non-trivial activation if possible."""
    order = sorted(found, key=lambda f: f["activation"] != "gelu")
    names = {id(f) for f in {f["op"]: f for f in reversed(order)}.values()}
    return [f for f in found if id(f) in names]


def few(found):
    return found if cases.LEVEL > 1 else of_each_op(found)


def ids(f):
    return _table.ops()[_name(f)].word(f["activation"])


@dataclass
class Case:
    f: dict
    op: object
    tensors: dict  # {name: tensor of the dtype}
    kwargs: dict
    scalars: dict

    def call(self, kf, **tensors):
        given = self.tensors | tensors
        return getattr(kf.ops, ids(self.f))(**given, **self.kwargs)

    def on(self, device):
        """Returns the case with its tensors on a device."""
        for name, t in self.tensors.items():
            self.tensors[name] = t.detach().to(device).requires_grad_(t.requires_grad)
        return self

    @property
    def wanted(self):
        return [n for n, t in self.tensors.items() if t.requires_grad]

    def reference(self, drop=lambda x: x):
        """Returns (results, {input: gradient of the first result's sum weighted by `up`}) in
        float64.
        """
        given = {
            n: t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
            for n, t in self.tensors.items()
        }
        groups = self.f["form"] == "groups"
        found = formula(self.f, self.scalars, drop)(
            given | {"x": given["x"].unsqueeze(1)} if groups else given
        )
        return [r.squeeze(1) for r in found] if groups else found, given


def given(f, a, sizes):
    """Returns the integers that the family's cases give a tensor, None if it is drawn.

    sizes: of the call, by name
    """
    found = getattr(cases.own(f), "GIVEN", {}).get(a["kind"])
    return found(sizes) if found else None


def given_integers(f, op):
    """Returns the integers that the family's cases give; their defaults may have no effect."""
    own = getattr(cases.own(f), "TORCH_INTEGERS", {})
    return {v.name: own[v.name] for v in op.forward.integers if v.name in own}


def _draw(f, a, shape, dtype, rng, sizes):
    masks = "seen" if a["dtype"] == "u8" else "positive" if a["positive"] else "normal"
    word = peers.draw(f, a["name"]) or masks
    found = given(f, a, dict(zip(f["sizes"], sizes)))
    if found is not None:
        return torch.as_tensor(found, dtype=dtype).reshape(shape)
    if a["index"]:
        return torch.randint(
            0, dict(zip(f["sizes"], sizes_of(f)))[a["index"]["below"]], shape, generator=rng
        )
    if word == "words":
        return torch.randint(0, sizes_of(f)[1], shape, generator=rng)
    if word == "labels":
        return torch.randint(0, sizes_of(f)[-1], shape, generator=rng)
    if word == "seen":
        return torch.rand(shape, generator=rng) > 0.4
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    x = {
        "normal": lambda: x,
        "mask": lambda: x,
        "uniform": lambda: torch.sigmoid(x) * 0.8 + 0.1,
        "positive": lambda: x.abs() + 0.1,
        "distribution": lambda: x.softmax(-1),
        "near_one": lambda: 1 + x / 8,
        "small": lambda: x / 8,
    }[word]()
    return x.to(dtype)


def case(f, dtype="f64", seed=0, shape=None, grad=True):
    rng = torch.Generator().manual_seed(seed)
    op = _table.ops()[_name(f)]
    shape = shape or sizes_of(f)
    axis, groups = (1, 3 if op.has_groups else 1)
    template = op.forward.template
    first = (*shape[:-1], 2 * shape[-1]) if template.kind == "half" else shape
    given = {template.name: first}
    if op.forward.shaped_by:  # every size has one dimension
        at = dict(zip(op.rules.sizes, shape))
        given = {t.name: [value(e, at) for e in t.extents] for t in op.forward.shaping}
    layout = op.lay_out(op.forward, given, axis, groups)
    tensors = {}
    read = [a for a in f["arguments"] if a["role"] in ("in", "inout")]
    for a, t in zip(read, op.forward.inputs):
        own = {"T": dtype, "U": dtype, "acc": _table.WIDE[dtype]}.get(t.var, t.var)
        x = _draw(f, a, layout.of(t), DTYPES.get(own), rng, shape)
        tensors[t.name] = (
            x.requires_grad_() if grad and x.is_floating_point() and gradient(op, t.name) else x
        )
    scalars = {
        v.name: v.default
        for v in (*op.forward.integers, *op.forward.scalars, *op.scalars[f["activation"]])
    } | {"groups": groups}
    # Given are integers of the family's cases, and defaults that the shapes determine: oracles and
    # other languages have the entry's.
    given = given_integers(f, op)
    scalars |= given
    kwargs = (
        given
        | {v.name: v.default for v in op.forward.scalars if v.rsqrt_of}
        | ({"dim": axis} if op.has_axis else {})
        | ({"groups": groups} if op.has_groups else {})
        | (DROPPED if f["dropout"] else {})
    )
    return Case(f, op, tensors, kwargs, scalars)


def gradient(op, name):
    return op.backward is not None and any(t.of == name for t in op.backward.outputs)


def results(found):
    """Returns the tensors of a call's result, which is None if it overwrites its inputs."""
    if found is None:
        return []
    return list(found) if isinstance(found, tuple) else [found]


def close(got, want, tolerance, what=""):
    assert got.shape == want.shape, (what, got.shape, want.shape)
    error = (got.detach().double() - want.detach().double()).abs()
    assert not error.numel() or (error <= tolerance * (1 + want.detach().double().abs())).all(), (
        f"{what}: {error.max()}"
    )


@functools.cache
def few_of_each_family():
    """Selects one op per family, for slow checks such as torch.compile."""
    return list(
        {
            f["family"]: f
            for f in reversed(few(PLAIN))
            if f["op"] in ("bias_{act}", "layer_norm_{act}", "sum")
        }.values()
    )


def recorded(kf, f, device="cpu", dtype="f32"):
    """Returns (case, [(op, arguments)]) of the calls its directions make."""
    calls = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "kf":
                calls.append(
                    (
                        function,
                        tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args),
                    )
                )
            return function(*args, **(kwargs or {}))

    c = case(f, dtype).on(device)
    with Recorder():
        torch.manual_seed(0)
        found = [r for r in results(c.call(kf)) if r.requires_grad]
        if found:
            sum((r * torch.randn(r.shape).to(r)).sum() for r in found).backward()
    return c, calls


def draw(*shape):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape) + sum(shape))
    ).requires_grad_()


def same(call, reference, *tensors):
    """Compares a call over tensors with gradients with one over arrays."""
    got, want = call(*tensors), reference(*tensors)
    assert got.shape == want.shape and torch.allclose(got, want, 1e-11, 1e-11)
    for m, t in zip(*(torch.autograd.grad(r.square().sum(), tensors) for r in (got, want))):
        assert torch.allclose(m, t, 1e-9, 1e-10)
    arrays = call(*(t.detach().numpy() for t in tensors))
    assert np.allclose(arrays, want.detach().numpy(), 1e-11, 1e-11)
