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
import edges  # noqa: E402

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
RESULTS = {"argmax": ["index"], "argmin": ["index"]}  # which PyTorch returns


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
        self.pattern, self.activation = op.pattern, act.name
        self.forward = family.forward(op, _in_f64(op))
        self.form = self.forward.form
        wanted = any(o.grad for o in op.operands)
        self.backward = family.backward(op, _in_f64(op)) if wanted else None
        f = {"op": op.pattern, "activation": act.name, "family": family.name, "dtypes": ["f64"]}
        self.f = f
        self.scalars = {n: s.default for n, s in (op.scalar_info | act.scalar_info).items()}
        self.scalars |= edges.SCALARS.get(op.pattern, {})
        self.statements = {
            k.bwd: compile("\n".join(family.statements(k, act, "numpy")), op.pattern, "exec")
            for k in (self.forward, self.backward)
            if k
        }

    def draw(self, rng, number):
        shapes = SHAPES[self.forward.form]
        empty = number % 17 == 16 and self.op.pattern not in edges.FULL
        shape = shapes[-1 if empty else number % 4 == 3]
        self.sizes = dict(zip(self.forward.sizes, shape))
        offset = edges.has_offset(self.op.pattern, number)
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
            values = edges.values(self.op.pattern, s.kind, rng, number)
            axis = 1 if self.forward.form == "axis" else -1
            edges.make_special(x, rng, values, axis if s.kind == "elem" and offset else None)
        return x

    def kf(self, given, keep, draw):
        """Returns ({result: value}, {operand: gradient}, {result: its incoming gradient})."""
        names = {"np": np, "sp": sp, "T": np.float64, "keep": keep, "keep_scale": edges.KEPT}
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
        formula = edges.FORMULAS.get(self.op.pattern) or peers.forward(
            self.f, self.scalars, lambda y: torch.where(mask, y * edges.KEPT, 0.0)
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


def failures(name, draws):
    call = Call(*FUNCTIONS[name])
    tolerance = edges.TOLERANCE.get(call.act.name, 1e-9)
    for number in range(draws):
        rng = np.random.default_rng(number)
        given, keep = call.draw(rng, number)
        values, grads, douts = call.kf(given, keep, rng.standard_normal)
        true, true_grads = call.torch(given, keep, douts)
        pairs = [(n, values[n], true[n], False) for n in true]
        pairs += [(f"d{n}", grads[n], true_grads[n], True) for n in true_grads]
        for what, got, want, gradient in pairs:
            want = edges.expected(call, got, want, given, gradient)
            at = edges.differs(got, want, tolerance)
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
