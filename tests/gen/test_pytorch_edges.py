# SPDX-License-Identifier: Apache-2.0
"""Values and gradients at the edges agree with PyTorch's formulas in float64.

Every op with a formula (bench/families/*/peers.py) is drawn 50 times: NaN, infinities, zeros,
ties, bounds, masked rows, offsets common to a row, single and no elements. The NumPy statements are
printed from the kernels' own graph. A `ref` may share a fault with `expr`; PyTorch does not.
"""

import sys

import cases
import kflib
import numpy as np
import pytest
import pytorch
import scipy.special as sp
import size_rules
from kfgen import families
from kfgen.entries import spec
from kfgen.model import shapes

torch = pytorch.load()
sys.path.append(str(kflib.ROOT / "bench"))
import peers  # noqa: E402

DRAWS = cases.by_level(50, 400)
ACTIVATIONS = ("none", "relu", "gelu")
SHAPES = {  # the last one is empty
    "flat": [(6,), (1,), (0,)],
    "rows": [(3, 5), (4, 1), (0, 5)],
    "planes": [(2, 3, 4), (3, 2, 2), (0, 3, 4)],
    "heads": [(2, 2, 3, 5), (1, 2, 4, 3), (2, 0, 3, 5)],
    "channels": [(3, 2, 4), (4, 3, 2), (3, 0, 4)],
    "axis": [(2, 4, 3), (3, 2, 1), (0, 4, 3)],
}
KEPT = 1.25  # scale of what dropout keeps
NAN, INF = np.nan, np.inf
# Values that replace some elements, or one row, of a tensor.
SPECIAL = (
    (),
    (NAN,),
    (INF,),
    (-INF,),
    (NAN, INF, -INF),
    (0.0, -0.0),
    (1.0,),
    (-3.0, 3.0, 6.0, 0.0, -1.0, 1.25),
)
# Added to whole rows of logits: the largest are float64's masks, beside which scores are lost.
OFFSETS = (1e4, -1e9, 1e17, -1.7e308)
OFFSET_OPS = ("softmax", "cross_entropy", "logsumexp")
# Activations whose gradient at NaN differs between PyTorch's scalar and vector code, or is 0 there.
# kf's is NaN or the incoming gradient, never 0. PyTorch's of |x| is 0; kf's is NaN.
AT_NAN = {"relu6", "hardtanh", "elu", "selu", "hardswish", "hardsigmoid"}
NOT_0_AT_NAN = {"clamp"}  # ops of which the same holds
OF_ABS = {"abs", "l1", "l1_mean", "l1_sum", "mean_abs"}
TOLERANCE = {"hardsigmoid": 1e-7}  # PyTorch's 1/6 is a float32
SCALARS = {"clamp": {"min_val": -3.0, "max_val": 3.0}}  # whose defaults bound nothing
RESULTS = {"argmax": ["index"], "argmin": ["index"]}  # which PyTorch returns


def _logsumexp(x):
    """PyTorch's gradient, exp(x - logsumexp), forgets the sum beside a large offset."""
    top = x.detach().amax(1, keepdim=True) if x.numel() else x[:, :1]
    top = torch.where(top.isfinite(), top, 0.0)
    return [(x - top).exp().sum(1).log() + top.squeeze(1)]


FORMULAS = {  # instead of the benchmarks'
    "logsumexp": lambda t: _logsumexp(t["x"]),
    "nll": lambda t: [
        torch.nn.functional.nll_loss(t["x"], t["label"], t["weight"], reduction="none")
    ],
}
# Ops that PyTorch refuses for empty tensors.
FULL = ("amax", "amin", "argmax", "argmin", "instance_norm_{act}", "batch_norm_train_{act}")


def _in_f64(op):
    return op.types.uniform("f64", op.indexed)


def _functions():
    found = {}
    for op in spec.load().ops.values():
        family = families.of(op)
        known = peers.FAMILIES.get(family.name)
        if known is None or op.types.converts or op.pattern not in known.FORWARD:
            continue
        if family.forward(op, _in_f64(op)).form in SHAPES:
            for act in op.activations:
                # PyTorch multiplies what dropout zeroes by the derivative, which may be infinite.
                some = ACTIVATIONS[:2] if op.dropout else ACTIVATIONS
                if op.pattern == "{act}" or act.name in some:
                    found[f"{op.pattern}-{act.name}"] = op, act, family
    return found


FUNCTIONS = _functions()


class Call:
    """An op with one activation, in float64."""

    def __init__(self, op, act, family):
        self.op, self.act, self.family = op, act, family
        self.forward = family.forward(op, _in_f64(op))
        wanted = any(o.grad for o in op.operands)
        self.backward = family.backward(op, _in_f64(op)) if wanted else None
        f = {"op": op.pattern, "activation": act.name, "family": family.name, "dtypes": ["f64"]}
        self.f = f
        self.scalars = {n: s.default for n, s in (op.scalar_info | act.scalar_info).items()}
        self.scalars |= SCALARS.get(op.pattern, {})
        self.statements = {
            k.bwd: compile("\n".join(family.statements(k, act, "numpy")), op.pattern, "exec")
            for k in (self.forward, self.backward)
            if k
        }

    def draw(self, rng, number):
        shapes = SHAPES[self.forward.form]
        empty = number % 17 == 16 and self.op.pattern not in FULL
        shape = shapes[-1 if empty else number % 4 == 3]
        self.sizes = dict(zip(self.forward.sizes, shape))
        offset = any(word in self.op.pattern for word in OFFSET_OPS) and number % 3 == 2
        given = {s.name: self._input(s, rng, number, offset) for s in self.forward.inputs}
        keep = rng.random(shape) < 0.6
        return given, keep

    def _input(self, s, rng, number, offset):
        shape = tuple(
            size_rules.evaluator.value(shapes.parse(e), self.sizes) for e in self.forward.shape(s)
        )
        word = peers.draw(self.f, s.name)
        if word == "positive":  # edges lie outside of the domain, too
            word = None
        if word == "labels":
            return rng.integers(0, self.sizes["cols"], shape)
        x = rng.standard_normal(shape)
        if word == "seen":
            return (rng.random(shape) < 0.6).astype(np.uint8)
        if word == "distribution":
            x = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        elif word == "uniform" or s.name == "running_var":
            x = sp.expit(x)
        if s.dtype.word == "f64" and x.size and not (word or s.name == "running_var"):
            values = SPECIAL[number % len(SPECIAL)] if rng.random() < 0.7 else ()
            if self.op.pattern.startswith(
                "bce"
            ):  # PyTorch's loss of -inf is NaN, kf's inf * target
                values = [v for v in values if v != -INF]
            if s.kind not in ("elem", "half", "shared"):  # inf * 0: the order of products matters
                values = [v for v in values if np.isnan(v) or np.isfinite(v)]
            self._make_special(x, rng, values, s.kind == "elem" and offset)
        return x

    def _make_special(self, x, rng, values, offset):
        if len(values):
            where = rng.random(x.shape) < 0.3
            if rng.random() < 0.3:
                where[..., :] = rng.random((*x.shape[:-1], 1)) < 0.5
            x[where] = rng.choice(values, where.sum())
        if offset and x.ndim > 1:
            axis = 1 if self.forward.form == "axis" else -1
            of_rows = np.expand_dims(np.take(x, 0, axis), axis).shape
            x += rng.choice(OFFSETS, of_rows)

    def kf(self, given, keep, draw):
        """Returns ({result: value}, {operand: gradient}, {result: its incoming gradient})."""
        names = {"np": np, "sp": sp, "T": np.float64, "keep": keep, "keep_scale": KEPT}
        names |= self.sizes | self.scalars | given
        with np.errstate(all="ignore"):
            exec(self.statements[False], names)
            results = {
                n: np.asarray(names[n]) for n in RESULTS.get(self.op.pattern, self.op.outputs)
            }
            if self.backward is None:
                return results, {}, {}
            douts = {n: draw(v.shape) for n, v in results.items()}
            names |= {f"d{n}": d for n, d in douts.items()}
            exec(self.statements[True], names)
        return results, {s.of: np.asarray(names[s.name]) for s in self.backward.outputs}, douts

    def torch(self, given, keep, douts):
        """Returns ({result: value}, {operand: gradient})."""
        wanted = [s.of for s in self.backward.outputs] if self.backward else []
        tensors = {n: torch.tensor(v) for n, v in given.items()}
        for n, t in tensors.items():
            tensors[n] = t.bool() if t.dtype == torch.uint8 else t.requires_grad_(n in wanted)
        mask = torch.tensor(keep)
        formula = FORMULAS.get(self.op.pattern) or peers.forward(
            self.f, self.scalars, lambda y: torch.where(mask, y * KEPT, 0.0)
        )
        results = dict(zip(RESULTS.get(self.op.pattern, self.op.outputs), formula(tensors)))
        values = {n: r.detach().numpy() for n, r in results.items()}
        if not wanted:
            return values, {}
        found = torch.autograd.grad(
            [results[n] for n in douts],
            [tensors[n] for n in wanted],
            [torch.tensor(d) for d in douts.values()],
            materialize_grads=True,
        )
        return values, {n: g.numpy() for n, g in zip(wanted, found)}

    def expected(self, got, want, given, gradient):
        """Replaces what PyTorch computes in another way by intent."""
        at_nan = self.act.name in AT_NAN or self.op.pattern in NOT_0_AT_NAN
        if gradient and (self.op.pattern in OF_ABS or at_nan):
            with np.errstate(invalid="ignore"):
                x = given["x"] - given.get("target", 0.0)
            known = (got != 0) if at_nan else np.isnan(got)
            want = np.where(np.isnan(x) & known, got, want)
        if self.forward.form == "heads":
            score = given["x"] * self.scalars["scale"]
            mask = given.get("mask")
            if "causal" in self.op.pattern:
                queries, keys = score.shape[-2:]
                seen = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
                score = np.where(seen, score, -INF)
            if mask is not None and mask.dtype == np.uint8:
                score = np.where(mask[:, None] == 0, -INF, score)
            elif mask is not None:
                score = score + mask[:, None]
            # Queries that see nothing: 0. A hidden key beside NaN: NaN.
            hidden = (score == -INF).all(-1, keepdims=True)
            want = np.where(hidden, 0.0, want)
            want = np.where(np.isnan(got) & np.isnan(want).any(-1, keepdims=True), np.nan, want)
        return want


def differs(got, want, tolerance):
    """Returns the first places that differ."""
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        same |= np.abs(got - want) <= tolerance * np.maximum(1.0, np.abs(want))
    return np.argwhere(~same)[:3].tolist()


def failures(name, draws):
    call = Call(*FUNCTIONS[name])
    tolerance = TOLERANCE.get(call.act.name, 1e-9)
    for number in range(draws):
        rng = np.random.default_rng(number)
        given, keep = call.draw(rng, number)
        values, grads, douts = call.kf(given, keep, rng.standard_normal)
        true, true_grads = call.torch(given, keep, douts)
        pairs = [(n, values[n], true[n], False) for n in true]
        pairs += [(f"d{n}", grads[n], true_grads[n], True) for n in true_grads]
        for what, got, want, gradient in pairs:
            at = differs(got, call.expected(got, want, given, gradient), tolerance)
            if at:
                yield number, what, at, got, want, given, douts


@pytest.mark.filterwarnings("ignore:(var|std).*degrees of freedom")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_pytorch(name):
    for number, what, at, got, want, given, douts in failures(name, DRAWS):
        pytest.fail(f"draw {number}: {what} at {at}: {got}, expected {want}; {given}, {douts}")


def test_every_differentiable_op_has_a_formula():
    """A new op that PyTorch can compute belongs to the table; these have a form of their own."""
    patterns = {name.rpartition("-")[0] for name in FUNCTIONS}
    left = {
        op.pattern
        for op in spec.load().ops.values()
        if families.of(op).name in ("elementwise", "rows", "reduction")
        and op.pattern not in patterns
    }
    assert left == {"cast", "group_norm_{act}"}
