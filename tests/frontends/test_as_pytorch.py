# SPDX-License-Identifier: Apache-2.0
"""Calls of kf.ops agree with PyTorch's formulas in float64, values and gradients.

Each op with a formula (bench/families/*/peers.py) is drawn with edge values (edges.py): NaN,
infinities, zeros, ties, hidden keys and whole hidden rows, offsets common to a row, ignored labels,
empty tensors, and further dimensions. Tensors are transposed, sliced, channels-last, broadcast or
off their alignment. tests/gen/test_pytorch_edges.py compares the kernels' graphs in NumPy; this
file compares the compiled functions, their strides and the derived gradients behind autograd.
"""

import functools
import types
from unittest import mock

import cases
import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import edges  # noqa: E402
import memory  # noqa: E402
import torchops  # noqa: E402
from torchops import peers  # noqa: E402

kfpython.use()
from kernel_fusion import _table  # noqa: E402

DRAWS, FEW = cases.by_level(50, 200), 20
# Shapes of the tensor that determines the sizes. Forms of several dimensions per size also get
# more of them; channels-last needs four. The last one is empty.
SHAPES = {
    "flat": [(6,), (2, 3, 2, 2), (1,), (2, 0, 3)],
    "rows": [(3, 5), (2, 2, 3, 4), (4, 1), (2, 0, 5)],
    "planes": [(2, 3, 4), (2, 3, 2, 2), (3, 2, 2), (0, 3, 4)],
    "heads": [(2, 2, 3, 5), (1, 2, 4, 3), (2, 1, 2, 2, 3), (2, 0, 3, 5)],
    "groups": [(2, 6, 4), (2, 6, 2, 2), (1, 3, 2), (0, 6, 4)],
    "channels": [(3, 2, 4), (3, 2, 2, 2), (4, 3, 2), (3, 0, 4)],
    "axis": [(2, 4, 3), (2, 3, 2, 2), (3, 2), (0, 4, 3)],
    **dict.fromkeys(
        ("nt", "nn", "tn", "tt"), [(2, 3, 5, 4), (1, 2, 3, 1), (3, 1, 2, 3), (2, 0, 3, 4)]
    ),
}
AXIS, GROUPS, P, RNG = 1, 3, 1 - 1 / edges.KEPT, (3, 4)
IGNORED = -100
HIDDEN = (-np.inf, -1e9, -1.7e308)
INDEX = ("argmax", "argmin")  # PyTorch's formula returns their second result
MATMUL = ("left", "right", "two_rights", "depth")


def functions():
    """Returns one function per op and activation with a formula: all activations of `{act}`."""
    found = {}
    for f in torchops.FUNCTIONS:
        # PyTorch multiplies what dropout zeroes by the derivative, which may be infinite.
        some = ("none", "relu" if f["dropout"] else "gelu")
        if set(f["dtypes"]) == {"f64"} and peers.known(f):
            if f["op"] == "{act}" or f["activation"] in some:
                found[torchops.ids(f)] = f
    return found


EVERY = functions()
# Ops that the tests' package has compiled.
PACKAGED = {name: f for name, f in EVERY.items() if torchops.chosen(f)}


def strided(x, number):
    """Returns a tensor of x's values in another layout."""
    t = torch.from_numpy(x)
    kind = number % 6
    if kind == 1:  # innermost dimension first
        return t.permute(*reversed(range(t.ndim))).contiguous().permute(*reversed(range(t.ndim)))
    if kind == 2 and t.ndim:  # every second element
        room = t.new_full((*t.shape[:-1], 2 * t.shape[-1]), torch.nan if x.dtype == float else 0)
        room[..., ::2] = t
        return room[..., ::2]
    if kind == 3 and t.ndim == 4:
        return t.contiguous(memory_format=torch.channels_last)
    if kind == 3 and t.ndim > 1:  # rows with a distance
        room = t.new_zeros((*t.shape[:-1], t.shape[-1] + 3))
        room[..., : t.shape[-1]] = t
        return room[..., : t.shape[-1]]
    if kind == 4:  # 8 bytes off
        room = t.new_zeros(t.numel() + 1)
        room[1:] = t.reshape(-1)
        return room[1:].view(t.shape)
    if kind == 5 and t.ndim > 1 and t.shape[0] > 1:
        return t[:1].expand(t.shape)
    return t


class Call:
    """One draw of an op."""

    def __init__(self, f, number):
        self.f, self.number, self.rng = f, number, np.random.default_rng(number)
        self.op = _table.ops()[torchops._name(f)]
        self.pattern, self.activation, self.form = f["op"], f["activation"], f["form"]
        self.scalars = torchops.case(f, grad=False).scalars | edges.SCALARS.get(self.pattern, {})
        self.layout = self._layout()
        layout = number + 2 * (number // 6)  # each one with each shape
        self.tensors = {
            n: strided(x, layout + 5 * i) for i, (n, x) in enumerate(self._inputs().items())
        }
        self.wanted = [n for n in self.tensors if self._has_gradient(n)]
        for n in self.wanted:
            self.tensors[n] = self.tensors[n].requires_grad_()

    def _has_gradient(self, name):
        if self.op.with_grad:
            return name in peers.of(self.f).ONE_PASS[self.op.with_grad]
        return torchops.gradient(self.op, name)

    def _layout(self):
        known = SHAPES.get(self.form)
        if known is None:
            own = torchops.sizes_of(self.f)
            known = [own, own, (1, *own[1:]), (0, *own[1:])]
        empty = self.number % 17 == 16 and self.pattern not in edges.FULL
        shape = known[3 if empty else self.number // 2 % 3]
        forward = self.op.forward
        first = shape
        if forward.template.kind == "half":
            first = (*shape[:-1], 2 * shape[-1])
        given = {forward.template.name: first}
        if forward.shaped_by:
            at = dict(zip(self.op.rules.sizes, shape))
            given = {t.name: [torchops.value(e, at) for e in t.extents] for t in forward.shaping}
        return self.op.lay_out(forward, given, AXIS, GROUPS if self.op.has_groups else 1)

    def _inputs(self):
        arguments = [a for a in self.f["arguments"] if a["role"] == "in"]
        found = {t.name: self._input(t, a) for t, a in zip(self.op.forward.inputs, arguments)}
        # kf's gradient of an ignored row is 0; PyTorch's is 0 times the softmax, which may be NaN.
        if "label" in found and IGNORED in found["label"]:
            for n, x in found.items():
                found[n] = np.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0)
        return found

    def _input(self, t, a):
        shape, rng = self.layout.of(t), self.rng
        found = torchops.given(self.f, a, self.layout.values)
        if found is not None:
            return np.asarray(found, a["dtype"].replace("i", "int")).reshape(shape)
        word = peers.draw(self.f, a["name"])
        if t.below or word in ("labels", "words"):
            # Positions whose angles are computed have no bound.
            found = rng.integers(0, self.layout.values.get(t.below or "cols", 7), shape)
            ignores = "ignore_index" in self.scalars and not t.below
            return np.where(rng.random(shape) < 0.2 * ignores, IGNORED, found)
        if word == "seen":
            seen = rng.random(shape) < 0.6
            return seen & (rng.random((*shape[:-1], 1)) < 0.8) if a["name"] == "mask" else seen
        x = np.asarray(rng.standard_normal(shape))
        if word == "mask":
            hidden = rng.random(shape) < 0.3
            hidden |= rng.random((*shape[:-1], 1)) < 0.2
            return np.where(hidden, rng.choice(HIDDEN), x)
        if word == "distribution":
            return np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        if a["positive"] or word in ("uniform", "near_one"):
            return 1 / (1 + np.exp(-x))
        if x.size:
            kind = "elem" if t.kind in MATMUL else t.kind
            offset = t.kind == "elem" and edges.has_offset(self.pattern, self.number)
            axis = (AXIS if self.op.has_axis else -1) if offset else None
            edges.make_special(x, rng, edges.values(self.pattern, kind, rng, self.number), axis)
        return x

    def kf(self, kf):
        """Returns the results of kf."""
        names = {v.name for v in (*self.op.forward.scalars, *self.op.scalars[self.activation])}
        names |= set(torchops.given_integers(self.f, self.op))
        kwargs = {n: v for n, v in self.scalars.items() if n in names}
        kwargs |= {"dim": AXIS} if self.op.has_axis else {}
        kwargs |= {"groups": GROUPS} if self.op.has_groups else {}
        kwargs |= {"p": P, "rng": RNG} if self.f["dropout"] else {}
        found = torchops.results(getattr(kf.ops, torchops.ids(self.f))(**self.tensors, **kwargs))
        return found[1:] if self.pattern in INDEX else found

    def formula(self, kf):
        """Returns PyTorch's results in kf's shapes, and the inputs that they are computed from."""
        inputs = {t.name: t for t in self.op.forward.inputs}
        given = {
            n: t.detach().reshape(self.layout.flat(inputs[n])).clone()
            for n, t in self.tensors.items()
        }
        for n in self.wanted:
            given[n].requires_grad_()
        formula = edges.FORMULAS.get(self.pattern)
        with mock.patch.dict(
            peers.FAMILIES["elementwise"].ACTIVATIONS, gelu=lambda x, s: Gelu.apply(x)
        ):
            formula = formula or torchops.formula(
                self.f, self.scalars, functools.partial(dropped, kf, self)
            )
        return formula(given), given


class Gelu(torch.autograd.Function):
    """PyTorch's own is 0 below -8.3, where its product with an infinity is NaN."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * torch.special.erfc(-x * 0.5**0.5)

    @staticmethod
    def backward(ctx, dout):
        [x] = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return dout * (0.5 * torch.special.erfc(-x * 0.5**0.5) + x * density)


def dropped(kf, call, y):
    """Dropout of PyTorch with kf's mask, which depends on the index of an element in memory."""
    ones = torch.ones(y.shape, dtype=y.dtype)
    if call.op.any_order and memory.takes(call.op, call.tensors):
        ones = memory.like(call.op, call.tensors).fill_(1.0).to(y.dtype)
    kept = kf.ops.dropout(ones, p=P, rng=RNG) != 0
    return torch.where(kept.reshape(y.shape), y * edges.KEPT, 0.0)


def compared(kf, f, number):
    """Yields (what, kf's array, PyTorch's, call) of one draw."""
    call = Call(f, number)
    want, given = call.formula(kf)
    got = call.kf(kf)
    if call.op.any_order:
        wanted = memory.like(call.op, call.tensors)
        for g in got:
            yield "strides", memory.strides(g), memory.strides(wanted), call
    pairs = [(g, w) for g, w in zip(got, want) if w.requires_grad]
    arrays = {n: t.detach().numpy() for n, t in given.items()}
    arrays = {n: x.astype(np.uint8) if x.dtype == bool else x for n, x in arrays.items()}
    for i, (g, w) in enumerate(zip(got, want)):
        mine, theirs = g.detach().numpy().reshape(w.shape), w.detach().numpy()
        yield f"result {i}", mine, edges.expected(call, mine, theirs, arrays, False), call
    if not call.wanted:
        return
    ups = [torch.from_numpy(call.rng.standard_normal(w.shape)) for _, w in pairs]
    mine = torch.autograd.grad(
        [g for g, _ in pairs],
        [call.tensors[n] for n in call.wanted],
        [up.reshape(g.shape) for up, (g, _) in zip(ups, pairs)],
    )
    theirs = torch.autograd.grad(
        [w for _, w in pairs], [given[n] for n in call.wanted], ups, materialize_grads=True
    )
    for n, g, w in zip(call.wanted, mine, theirs):
        g, w = g.numpy().reshape(w.shape), w.numpy()
        yield f"d{n}", g, edges.expected(call, g, w, arrays, True), call


def check(kf, f, draws):
    for number in range(draws):
        for what, got, want, call in compared(kf, f, number):
            at = edges.differs(got, want, edges.TOLERANCE.get(f["activation"], 1e-9))
            if at:
                layouts = {n: (tuple(t.shape), t.stride()) for n, t in call.tensors.items()}
                pytest.fail(
                    f"{torchops.ids(f)}, draw {number}: {what} at {at}: {got}, expected {want}; "
                    f"{layouts}, {call.tensors}"
                )


@pytest.mark.filterwarnings("ignore:(var|std).*degrees of freedom")
@pytest.mark.parametrize("name", PACKAGED)
def test_some_draws(kf, name):
    check(kf, PACKAGED[name], FEW)


@pytest.mark.check
@pytest.mark.filterwarnings("ignore:(var|std).*degrees of freedom")
@pytest.mark.parametrize("name", EVERY)
def test_every_draw(kf, name):
    check(kf, EVERY[name], DRAWS)


def test_every_op_with_a_formula_is_drawn():
    """A new op belongs to the table as soon as it has a formula in float64."""
    drawn = {f["op"] for f in EVERY.values()}
    known = {f["op"] for f in torchops.FUNCTIONS if peers.known(f) and f["dtypes"][0] == "f64"}
    assert known - drawn == {"cast"} and len(drawn) > 100


def _forgets_nan(t):
    return torch.where(t.isnan(), 0.0, t)


def _forgets_strides(t):
    dense = torch.empty(t.shape, device="meta").stride()
    return t if 0 in t.stride() else t.as_strided(t.shape, dense)


@pytest.mark.parametrize("fault", [_forgets_nan, _forgets_strides, torch.relu, torch.neg])
def test_a_fault_is_seen(kf, fault):
    """The tests above fail if a function reads other values, or contiguous memory."""

    class Faulty:
        ops = types.SimpleNamespace(gelu=lambda x: kf.ops.gelu(fault(x)))

    with pytest.raises(pytest.fail.Exception, match="gelu, draw"):
        check(Faulty, PACKAGED["gelu"], FEW)
