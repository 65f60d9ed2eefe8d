# SPDX-License-Identifier: Apache-2.0
"""Optimizers in kf.ops: 100 steps beside torch.optim, arrays, torch.compile, errors."""

import warnings

import numpy as np
import pytest
import pytorch

torch = pytorch.load()
SHAPES = ((300,), (17, 5), (), (0, 4), (3, 2, 4, 4))


class Own:
    """Lists of tensors, and a function of kf.ops that updates them."""

    def __init__(self, function, params, states, dtype=None, **scalars):
        self.function, self.params, self.scalars, self.t = function, params, scalars, 0
        self.states = {name: [torch.zeros_like(p, dtype=dtype) for p in params] for name in states}

    def step(self, grads, **more):
        self.t += 1
        step = {"step": self.t} if "step" in self.function.__signature__.parameters else {}
        self.function(param=self.params, grad=grads, **self.states, **step, **self.scalars, **more)


def drawn(dtype=torch.float32, seed=0):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made).to(dtype) for shape in SHAPES]


ADAM = ("exp_avg", "exp_avg_sq")
BETAS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
# (function, its state, its scalars, torch's optimizer, its arguments)
CASES = [
    ("adamw", ADAM, BETAS | {"lr": 0.01, "weight_decay": 0.1}, "AdamW",
     {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("adamw", ADAM, {"maximize": 1}, "AdamW", {"maximize": True}),
    ("sgd", (), {"lr": 0.03, "weight_decay": 0.1}, "SGD", {"lr": 0.03, "weight_decay": 0.1}),
    ("sgd_momentum", ("momentum_buffer",), {"momentum": 0.9, "dampening": 0.25, "lr": 0.01},
     "SGD", {"momentum": 0.9, "dampening": 0.25, "lr": 0.01}),
    ("sgd_momentum", ("momentum_buffer",),
     {"momentum": 0.9, "nesterov": 1, "lr": 0.01, "weight_decay": 0.1, "maximize": 1},
     "SGD", {"momentum": 0.9, "nesterov": True, "lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("adam", ADAM, {"weight_decay": 0.1}, "Adam", {"weight_decay": 0.1}),
    ("amsgrad", (*ADAM, "max_exp_avg_sq"), {}, "Adam", {"amsgrad": True}),
    ("amsgradw", (*ADAM, "max_exp_avg_sq"), {}, "AdamW", {"amsgrad": True}),
    ("radam", ADAM, {"lr": 0.01, "weight_decay": 0.1}, "RAdam", {"lr": 0.01, "weight_decay": 0.1}),
    ("radam", ADAM, {"weight_decay": 0.1, "decoupled": 1}, "RAdam",
     {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("adagrad", ("sum_sq",), {"lr_decay": 0.1}, "Adagrad", {"lr_decay": 0.1}),
    ("rmsprop", ("square_avg",), {"weight_decay": 0.1}, "RMSprop", {"weight_decay": 0.1}),
    ("rmsprop_momentum", ("square_avg", "grad_avg", "momentum_buffer"),
     {"momentum": 0.9, "centered": 1, "lr": 1e-3}, "RMSprop",
     {"momentum": 0.9, "centered": True, "lr": 1e-3}),
    ("nadam", ADAM, {"lr": 0.01}, "NAdam", {"lr": 0.01}),
]  # fmt: skip
STATE = {"sum_sq": "sum"}  # names that torch gives otherwise


@pytest.mark.check
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name, states, scalars, other, arguments", CASES)
def test_100_steps_equal_torch(kf, name, states, scalars, other, arguments, dtype):
    own = Own(getattr(kf.ops, name), drawn(dtype), states, **scalars)
    params = [torch.nn.Parameter(p.clone()) for p in own.params]
    beside = getattr(torch.optim, other)(params, **arguments)
    product = torch.ones(())  # float32, as in the state of torch's NAdam
    for t in range(100):
        grads = drawn(dtype, t + 1)
        product *= 0.9 * (1 - 0.5 * 0.96 ** ((t + 1) * 4e-3))
        own.step(grads, **({"mu_product": product.to(dtype)} if name == "nadam" else {}))
        for p, g in zip(params, grads):
            p.grad = g.clone()
        beside.step()
    eps = torch.finfo(dtype).eps
    for got, want in zip(own.params, params):
        torch.testing.assert_close(got, want.detach(), rtol=100 * eps, atol=100 * eps)
    for name_, of in own.states.items():
        for got, p in zip(of, params):
            if p.numel():
                want = beside.state[p][STATE.get(name_, name_)]
                torch.testing.assert_close(got, want, rtol=100 * eps, atol=100 * eps)


def test_master_weights(kf):
    """A call reads the float32 copy in place of the parameter and writes both; the gradients are
    divided by grad_scale.
    """
    params, grads = drawn(torch.bfloat16), drawn(torch.bfloat16, 1)
    master = [p.float() for p in params]
    state = [[torch.zeros_like(m) for m in master] for _ in range(2)]
    want = [torch.nn.Parameter(m.clone()) for m in master]
    beside = torch.optim.AdamW(want, lr=1e-3)
    for t in range(3):
        kf.ops.adamw(params, grads, *state, master, torch.tensor(4.0), step=t + 1)
        for p, g in zip(want, grads):
            p.grad = g.float() / 4
        beside.step()
    for m, w, p in zip(master, want, params):
        torch.testing.assert_close(m, w.detach(), rtol=1e-6, atol=1e-6)
        assert torch.equal(p, m.bfloat16())


@pytest.mark.check
def test_arrays_and_found_inf(kf):
    rng = np.random.default_rng(1)
    param, grad = ([rng.standard_normal(n).astype(np.float32) for n in (5, 0, 300)] for _ in "pg")
    before = [p.copy() for p in param]
    kf.ops.sgd(param, grad, found_inf=np.ones(1, np.float32), lr=0.5)
    assert all((p == b).all() for p, b in zip(param, before))
    kf.ops.sgd(param, grad, found_inf=np.zeros(1, np.float32), lr=0.5)
    assert all(np.allclose(p, b - 0.5 * g) for p, b, g in zip(param, before, grad))


@pytest.mark.check
def test_clipping(kf):
    """The norm and the clipping of torch, over lists of two dtypes."""
    grads = [drawn(), drawn(torch.bfloat16, 1)]
    flat = [torch.nn.Parameter(g.clone()) for g in grads[0] + grads[1]]
    for p, g in zip(flat, grads[0] + grads[1]):
        p.grad = g.clone()
    norm = torch.zeros(())
    for own in grads:
        kf.ops.multi_l2_norm(own, norm)
    found = torch.zeros(1)
    kf.ops.multi_any_nonfinite(grads[0], found)
    assert found.item() == 0
    for own in grads:
        kf.ops.multi_clip(own, norm, max_norm=1.0)
    want = torch.nn.utils.clip_grad_norm_(flat, 1.0)
    torch.testing.assert_close(norm, want.float(), rtol=1e-3, atol=0)
    for g, p in zip(grads[0] + grads[1], flat):
        torch.testing.assert_close(g, p.grad, rtol=1e-2, atol=1e-3)
    grads[0][0][7] = float("nan")
    kf.ops.multi_any_nonfinite(grads[0], found)
    assert found.item() == 1


def test_opcheck(kf):
    param, grad = drawn(), drawn(seed=1)
    state = [[torch.zeros_like(p) for p in param] for _ in range(2)]
    kf.ops.adamw(param, grad, *state)
    torch.library.opcheck(
        torch.ops.kf.adamw.default,
        (param, grad, *state, [], None, torch.zeros(()), 1, 0, 1e-3, 0.9, 0.99, 1e-8, 0.0),
    )
    schema = str(torch.ops.kf.adamw.default._schema)
    assert "Tensor(a4!)[] master, Tensor? grad_scale, Tensor? found_inf, int step" in schema


x = torch.zeros(6)
REFUSED = [
    (([x], [x], [x], []), {}, ValueError, "exp_avg_sq has 0 tensors, expected 1 beside param"),
    (([x], [x], [x], [x]), {"master": x}, TypeError, "master is Tensor, expected a list"),
    (([x], [x], [x], [x]), {"found_inf": x}, ValueError, r"found_inf has the shape \(6,\)"),
    (([x], [x], [x], [x]), {"step": 0}, ValueError, "step is 0, expected at least 1"),
    (([x], [x], [x], [x]), {"lr": -1}, ValueError, "lr is -1"),
    (([x], [x], [x], [x]), {"master": [x.double()]}, TypeError, "master has the dtype f64"),
]


@pytest.mark.parametrize("given, more, kind, message", REFUSED)
def test_refused(kf, given, more, kind, message):
    with pytest.raises(kind, match=message):
        kf.ops.adamw(*given, **more)


UPDATES = [
    ("adamw", {}, "kf.adamw: step is not given, 1 is used: pass the number of the update"),
    ("adamw_stochastic", {"step": 2}, "kf.adamw_stochastic: seed is not given, 0 is used"),
]


@pytest.mark.parametrize("name, more, text", UPDATES, ids=[name for name, *_ in UPDATES])
def test_what_a_loop_changes_has_no_silent_default(kf, name, more, text):
    """Each update would be the first one; a given number, also by position, is no warning."""
    lists = [[torch.ones(3, dtype=torch.bfloat16)] for _ in range(4)]
    function = getattr(kf.ops, name)
    with pytest.warns(UserWarning, match=text):
        function(*lists, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(*lists, **{"step": 1, "seed": 3} if "seed" in text else {"step": 1})
