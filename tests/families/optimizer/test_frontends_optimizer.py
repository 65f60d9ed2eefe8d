# SPDX-License-Identifier: Apache-2.0
"""Optimizers in kf.ops: 100 steps beside torch.optim, arrays, torch.compile, errors."""

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
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name, states, scalars, other, arguments", CASES)
def test_100_steps_equal_torch(kf, name, states, scalars, other, arguments, dtype):
    own = Own(getattr(kf.ops, name), drawn(dtype), states, **scalars)
    params = [torch.nn.Parameter(p.clone()) for p in own.params]
    beside = getattr(torch.optim, other)(params, **arguments)
    for t in range(100):
        grads = drawn(dtype, t + 1)
        own.step(grads)
        for p, g in zip(params, grads):
            p.grad = g.clone()
        beside.step()
    eps = torch.finfo(dtype).eps
    for got, want in zip(own.params, params):
        torch.testing.assert_close(got, want.detach(), rtol=100 * eps, atol=100 * eps)
    for name_, of in own.states.items():
        for got, p in zip(of, params):
            if p.numel():
                want = beside.state[p][name_]
                torch.testing.assert_close(got, want, rtol=100 * eps, atol=10 * eps)
