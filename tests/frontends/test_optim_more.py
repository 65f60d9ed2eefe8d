# SPDX-License-Identifier: Apache-2.0
"""kf.optim beyond torch.optim: Lion, LAMB, clipping, state on the host, DTensors."""

import copy
import math
import pickle

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

kfpython.use()

import kernel_fusion as kf  # noqa: E402


def parameters(dtype=torch.float32):
    draw = torch.Generator().manual_seed(7)
    shapes = ((3, 5), (7,), (), (0,), (2, 3, 4, 5), (6, 4))
    found = [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes]
    found[4] = found[4].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(x) for x in (*found[:5], found[5].t())]


def gradients(lists, n):
    draw = torch.Generator().manual_seed(100 + n)
    for same in zip(*lists):
        drawn = torch.randn(same[0].shape, generator=draw, dtype=torch.float64)
        for p in same:
            p.grad = drawn.to(p.dtype, copy=True)


def assert_same(a, b, **tolerance):
    for x, y in zip(a, b):
        torch.testing.assert_close(y.detach(), x.detach(), **tolerance)


def lion(p, g, state, lr, betas, weight_decay):
    """Chen et al. 2023, algorithm 2, in float64."""
    m = state.setdefault("exp_avg", torch.zeros_like(p))
    update = (betas[0] * m + (1 - betas[0]) * g).sign()
    state["exp_avg"] = betas[1] * m + (1 - betas[1]) * g
    return p - lr * (update + weight_decay * p)


def lamb(p, g, state, lr, betas, eps, weight_decay, bias_correction=True, most=math.inf):
    """You et al. 2020, algorithm 2, in float64 of NumPy."""
    p, g = p.numpy(), g.numpy()
    m, v, step = (
        state.get("exp_avg", 0.0 * p),
        state.get("exp_avg_sq", 0.0 * p),
        state.get("step", 0),
    )
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    state |= {"exp_avg": m, "exp_avg_sq": v, "step": step + 1}
    fix = [1 - b ** (step + 1) if bias_correction else 1 for b in betas]
    u = m / fix[0] / (np.sqrt(v / fix[1]) + eps) + weight_decay * p
    ratio = np.linalg.norm(p.ravel()) / np.linalg.norm(u.ravel()) if p.any() and u.any() else 1.0
    return torch.from_numpy(np.asarray(p - lr * min(ratio, most) * u))


def clipped(p, g, state, trust_clip=False, max_trust=math.inf, **given):
    return lamb(p, g, state, most=min(max_trust, 1.0 if trust_clip else math.inf), **given)


_LAMB = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
OWN = [
    ("LAMB", clipped, _LAMB),
    ("LAMB", clipped, _LAMB | {"weight_decay": 0.0, "bias_correction": False}),
    ("LAMB", clipped, _LAMB | {"trust_clip": True}),
    ("LAMB", clipped, _LAMB | {"max_trust": 1.5}),
    ("Lion", lion, {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.0}),
    ("Lion", lion, {"lr": 1e-2, "betas": (0.5, 0.75), "weight_decay": 0.1}),
]


@pytest.mark.parametrize("name, formula, given", OWN, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("maximize", [False, True])
def test_formulas(name, formula, given, maximize):
    own = parameters()
    wide, states = [p.detach().double() for p in own], [{} for _ in own]
    optimizer = getattr(kf.optim, name)(own, **given, maximize=maximize)
    for n in range(20):
        gradients([own], n)
        optimizer.step()
        sign = -1 if maximize else 1
        wide = [
            formula(p, sign * q.grad.double(), s, **given) for p, q, s in zip(wide, own, states)
        ]
    assert_same(wide, [p.double() for p in own], rtol=2e-5, atol=2e-6)
    for p, s in zip(own, states):
        for key, x in s.items():
            found = optimizer.state[p][key].double()
            torch.testing.assert_close(found, torch.as_tensor(x).double(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, _, given", OWN, ids=lambda x: x if isinstance(x, str) else "")
def test_state_dict_of_own(name, _, given):
    first, second = parameters(), parameters()
    a, b = (getattr(kf.optim, name)(mine, **given) for mine in (first, second))
    for n in range(2):
        gradients([first, second], n)
        a.step()
        if n == 0:
            b.load_state_dict(copy.deepcopy(a.state_dict()))
            for p, q in zip(first, second):
                q.data.copy_(p.detach())
    b.step()
    assert_same(first, second, rtol=0, atol=0)


def test_arguments_of_lamb():
    p = [torch.nn.Parameter(torch.zeros(3))]
    for given, message in (
        ({"eps": -1.0}, "eps is -1.0, expected at least 0"),
        ({"max_trust": 0.0}, "max_trust is 0.0, expected more than 0"),
    ):
        with pytest.raises(ValueError, match=f"kf.optim.LAMB: {message}"):
            kf.optim.LAMB(p, **given)


def test_low_precision_of_lamb():
    """bfloat16 parameters train with bfloat16 state, and zeros with a ratio of 1."""
    own = parameters(torch.bfloat16)
    own[1].data.zero_()
    wide = [p.detach().double() for p in own]
    gradients([own], 0)
    optimizer = kf.optim.LAMB(own, lr=2**-4)
    optimizer.step()
    assert {optimizer.state[p]["exp_avg"].dtype for p in own} == {torch.bfloat16}
    given = {"lr": 2**-4, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
    want = [clipped(p, q.grad.double(), {}, **given) for p, q in zip(wide, own)]
    assert_same(want, [p.double() for p in own], rtol=2**-8, atol=2**-10)


def test_arguments_of_own():
    p = [torch.nn.Parameter(torch.zeros(3))]
    for name, _, _ in OWN:
        make = getattr(kf.optim, name)
        for given, message in (
            ({"lr": -1.0}, "lr is -1.0, expected at least 0"),
            ({"lr": torch.ones(2)}, r"lr has the shape \(2,\), expected one number"),
            ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0, expected at least 0 and below 1"),
            ({"weight_decay": -1.0}, "weight_decay is -1.0, expected at least 0"),
            ({"differentiable": True}, "differentiable is True, expected False"),
            ({"fused": True, "foreach": True}, "fused and foreach are True, expected one of them"),
        ):
            with pytest.raises(ValueError, match=f"kf.optim.{name}: {message}"):
                make(p, **given)


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_clipping(kind):
    for most in (0.5, 1e4):
        lists = [[*parameters(), *parameters(torch.float64)] for _ in range(2)]
        if kind == float("inf"):  # PyTorch has no such norm of an empty tensor
            lists[0] = [p for p in lists[0] if p.numel()]
            lists[1] = [p for p in lists[1] if p.numel()]
        gradients(lists, 0)
        lists[0][0].grad = lists[1][0].grad = None
        want = torch.nn.utils.clip_grad_norm_(lists[0], most, kind)
        found = kf.optim.clip_grad_norm_(lists[1], most, kind)
        torch.testing.assert_close(found.double(), want.double())
        assert_same(*[[p.grad for p in mine[1:]] for mine in lists])
    assert float(kf.optim.clip_grad_norm_([], 1.0)) == 0.0


def test_clipping_of_what_is_not_finite():
    [p] = parameters()[:1]
    gradients([[p]], 0)
    p.grad[1, 1] = torch.inf
    before = p.grad.clone()
    with pytest.raises(RuntimeError, match="kf.optim.clip_grad_norm_: the norm .* is inf"):
        kf.optim.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert torch.equal(before, p.grad)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_state_on_the_host(fraction):
    """Bits equal the optimizer's own; the state continues in either class."""
    lists = [parameters() for _ in range(3)]
    plain = kf.optim.AdamW(lists[0])
    made = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=fraction)
    own = made(lists[1])
    assert isinstance(own, kf.optim.AdamW) and isinstance(own, torch.optim.AdamW)
    for n in range(4):
        gradients(lists, n)
        if n == 2:
            lists[0][1].data += 1
            lists[1][1].data += 1
        plain.step(), own.step()
    assert_same(*lists[:2], rtol=0, atol=0)
    host = sum(p.numel() for p in lists[1] if own.on_host(p))
    whole = sum(p.numel() for p in lists[1])
    assert (1 - fraction) * whole <= host <= max((1 - fraction) * whole + 120, 0) * (fraction < 1)
    other = made(lists[2])
    other.load_state_dict(plain.state_dict())
    for p, q in zip(lists[0], lists[2]):
        q.data.copy_(p.detach())
    gradients(lists, 4)
    plain.load_state_dict(own.state_dict())
    plain.step(), other.step()
    assert_same(lists[0], lists[2], rtol=0, atol=0)


def test_offload_is_copied():
    """Copies and pickles of a class that no module has continue where the original does."""
    lists = [parameters()]
    own = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=0.5)(lists[0], lr=0.1)
    gradients(lists, 0)
    own.step()
    made = [copy.deepcopy(own), pickle.loads(pickle.dumps(own))]
    copied = [m.param_groups[0]["params"] for m in made]
    gradients([*lists, *copied], 1)
    for optimizer in (own, *made):
        optimizer.step()
    for m, p in zip(made, copied):
        assert m.gpu_fraction == 0.5 and "Offload(AdamW)" in repr(type(m))
        assert_same(lists[0], p, rtol=0, atol=0)


def test_chunks(monkeypatch):
    """Chunks of parameters that are copied together do not change bits."""
    from kernel_fusion.optim import _offload

    monkeypatch.setattr(_offload, "CHUNK", 20)
    test_state_on_the_host(0.0)


def test_offload_refuses():
    p = [torch.nn.Parameter(torch.zeros(3))]
    with pytest.raises(ValueError, match="gpu_fraction is 2, expected at least 0 and at most 1"):
        kf.optim.Offload(kf.optim.AdamW, gpu_fraction=2)
    with pytest.raises(TypeError, match="expected a class of kf.optim"):
        kf.optim.Offload(torch.optim.AdamW, gpu_fraction=0.5)
    made = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=0.5)
    with pytest.raises(ValueError, match=r"kf.optim.Offload\(AdamW\): capturable is True"):
        made(p, capturable=True)


def test_counts_on_a_gpu():
    """Parameters share a call while they take the same steps; a count is read once."""
    from kernel_fusion.optim._cohorts import Cohorts

    class Count:
        def __init__(self, value):
            self.value, self.reads = value, 0

        def __float__(self):
            self.reads += 1
            return float(self.value)

    a, b, c, d = Count(0), Count(3), Count(3), Count(0)
    cohorts = Cohorts()

    def step(*given):
        cohorts.begin()
        return [cohorts.advance([x], x.value == 0 and x.reads == 0) for x in given]

    first = step(a, b, c)
    assert first[1] == first[2] != first[0]
    second = step(b, c, d)  # d is new, a misses a step
    assert second[0] == second[1] and len({*second, *first}) == 4
    third = step(a, d)
    assert third[0] != third[1]  # a has taken one step, d two
    assert step(b)[0] != step(c)[0]
    assert [x.reads for x in (a, b, c, d)] == [0, 1, 1, 0]


@pytest.mark.check
def test_compiled():
    """A compiled function leaves the step as it is."""

    def train(layer, optimizer):
        layer(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 3) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    made = [kf.optim.AdamW(layer.parameters(), lr=0.1) for layer in layers]
    compiled = torch.compile(train, backend="eager")
    for _ in range(3):
        train(layers[0], made[0]), compiled(layers[1], made[1])
    assert_same(*[layer.parameters() for layer in layers])
    assert {float(s["step"]) for s in made[1].state.values()} == {3.0}


DISTRIBUTED = """
import os, torch, torch.distributed as dist
import torch.multiprocessing as mp

def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    import kernel_fusion as kf
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = [torch.randn(5, 4), torch.randn(3), torch.randn(2, 6)]
    places = [[Shard(0)], [Replicate()], [Shard(1)]]
    plain = [torch.nn.Parameter(x.clone()) for x in whole]
    own = [torch.nn.Parameter(distribute_tensor(x, mesh, p)) for x, p in zip(whole, places)]
    a, b = kf.optim.AdamW(plain, lr=0.1), kf.optim.AdamW(own, lr=0.1)
    for n in range(3):
        for p, q in zip(plain, own):
            p.grad = torch.randn(p.shape)
            places = [Replicate()] if n == 1 else q.placements
            q.grad = distribute_tensor(p.grad.clone(), mesh, places)
        want = torch.nn.utils.clip_grad_norm_(plain, 1.0)
        found = kf.optim.clip_grad_norm_(own, 1.0)
        torch.testing.assert_close(found.full_tensor(), want)
        a.step(), b.step()
    for p, q in zip(plain, own):
        average = b.state[q]["exp_avg"]
        assert isinstance(average, DTensor) and average.placements == q.placements
        torch.testing.assert_close(q.detach().full_tensor(), p.detach())
    if rank == 0:
        print("equal")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (PATH,), nprocs=2)
"""


@pytest.mark.check
def test_shards(tmp_path):
    """Two processes update the shards of their parameters as one does the whole."""
    script = tmp_path / "program.py"
    script.write_text(DISTRIBUTED.replace("PATH", repr(str(tmp_path / "store"))))
    assert (
        kfpython.python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
        == "equal"
    )
