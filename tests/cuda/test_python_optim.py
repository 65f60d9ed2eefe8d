# SPDX-License-Identifier: Apache-2.0
"""kf.optim on a GPU: steps as torch.optim's, scaled gradients, CUDA graphs, state on the host."""

import contextlib

import kfpython
import pytest
import pytorch

torch = pytorch.load()

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)
CASES = [
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("AdamW", {"amsgrad": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("RMSprop", {"centered": True}),
]


@pytest.fixture(scope="module")
def kf():
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


def parameters(device="cuda", dtype=torch.float32):
    draw = torch.Generator().manual_seed(7)
    shapes = ((300, 515), (7,), (), (0,), (2, 3, 4, 5), (40, 6), (1 << 20,))
    found = [torch.randn(s, generator=draw).to(device, dtype) for s in shapes]
    found[4] = found[4].to(memory_format=torch.channels_last)
    found[5] = found[5].t()
    return [torch.nn.Parameter(x) for x in found]


def gradients(lists, n, scale=1.0):
    draw = torch.Generator().manual_seed(100 + n)
    for same in zip(*lists):
        drawn = torch.randn(same[0].shape, generator=draw) * scale
        for p in same:
            p.grad = torch.empty_like(p).copy_(drawn)


@contextlib.contextmanager
def no_wait():
    """Makes calls that wait for the GPU errors."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_close(a, b):
    for x, y in zip(a, b):
        torch.testing.assert_close(y.detach(), x.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, given", CASES)
@pytest.mark.parametrize("capturable", [False, True])
def test_steps(kf, name, given, capturable):
    """Twenty steps end where torch's do, with counts on the host and on the GPU."""
    lists = [parameters(), parameters()]
    theirs = getattr(torch.optim, name)(lists[0], **given)
    if capturable and "capturable" in theirs.defaults:
        given = given | {"capturable": True, "lr": torch.tensor(1e-3, device="cuda")}
        theirs = getattr(torch.optim, name)(lists[0], **given)
    own = getattr(kf.optim, name)(lists[1], **given)
    for n in range(20):
        gradients(lists, n)
        theirs.step(), own.step()
    assert_close(*lists)
    for p, q in zip(*lists):
        a, b = theirs.state[p], own.state[q]
        assert [*a] == [*b] and all(a[k].device == b[k].device for k in a)
        assert_close(a.values(), b.values())


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "Lion", "LAMB"])
def test_scaled_gradients(kf, name):
    """A fused step does not wait for the GPU, and leaves all as it is if a gradient is infinite."""
    own, whole = parameters(), parameters()
    fused = getattr(kf.optim, name)(own, fused=True)
    plain = getattr(kf.optim, name)(whole)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    scaler.scale(torch.zeros((), device="cuda"))
    for n in range(5):
        gradients([own], n, scale=scaler.get_scale())
        gradients([whole], n)
        if n == 2:
            own[0].grad[1, 2] = torch.inf
        with no_wait() if n == 4 else contextlib.nullcontext():
            scaler.step(fused)
        scaler.update()
        if n != 2:
            plain.step()
    assert scaler.get_scale() == 128.0
    assert_close(own, whole)
    for p in own if name in ("AdamW", "Adagrad", "LAMB") else ():
        assert float(fused.state[p]["step"]) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capturable", [False, True])
def test_lamb(kf, dtype, capturable):
    """Steps on the GPU are those on the CPU."""
    lists = [parameters(dtype=dtype), parameters("cpu", dtype)]
    given = {"lr": 0.01, "weight_decay": 0.1, "max_trust": 1.5}
    own = kf.optim.LAMB(lists[0], **given, capturable=capturable)
    other = kf.optim.LAMB(lists[1], **given)
    for n in range(5):
        gradients(lists, n)
        own.step(), other.step()
        with torch.no_grad():  # one step from equal tensors
            for p, q in zip(*lists):
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(p.cpu(), q, rtol=4 * eps, atol=eps / 4)
                p.copy_(q)
                for key in ("exp_avg", "exp_avg_sq"):
                    own.state[p][key].copy_(other.state[q][key])


def test_a_graph(kf):
    """Replays of a captured step advance the count, and read the rate."""
    own, eager = parameters(), parameters()
    rate = torch.tensor(1e-3, device="cuda")
    a = kf.optim.AdamW(own, lr=rate, capturable=True)
    b = kf.optim.AdamW(eager, lr=1e-3)
    gradients([own, eager], 0)
    a.step(), b.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.step()
    for n in range(1, 4):
        gradients([eager], n)
        for p, q in zip(own, eager):
            p.grad.copy_(q.grad)
        rate.fill_(1e-3 / n)
        b.param_groups[0]["lr"] = 1e-3 / n
        graph.replay(), b.step()
    assert_close(eager, own)
    assert {float(s["step"]) for s in a.state.values()} == {4.0}
    with pytest.raises(RuntimeError, match=r"capturable of param_groups\[0\] is False"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            b.step()


def test_clipping(kf):
    lists = [parameters(), parameters()]
    gradients(lists, 0)
    want = torch.nn.utils.clip_grad_norm_(lists[0], 1.0)
    with no_wait():
        found = kf.optim.clip_grad_norm_(lists[1], 1.0)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=0)
    assert_close(*[[p.grad for p in mine] for mine in lists])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_state_on_the_host(kf, monkeypatch, fraction, dtype):
    """Bits are those of AdamW where the state is: on the GPU, or on the CPU."""
    from kernel_fusion.optim import _offload

    monkeypatch.setattr(_offload, "CHUNK", 100_000)
    gpu, cpu, mine = parameters(dtype=dtype), parameters("cpu", dtype), parameters(dtype=dtype)
    plain = [kf.optim.AdamW(gpu), kf.optim.AdamW(cpu)]
    own = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=fraction)(mine)
    for n in range(5):
        gradients([gpu, cpu, mine], n)
        plain[0].step(), plain[1].step(), own.step()
    for on_gpu, on_cpu, p in zip(gpu, cpu, mine):
        same, other = (on_cpu.cuda(), plain[1].state[on_cpu]), (on_gpu, plain[0].state[on_gpu])
        same = same if own.on_host(p) else other
        assert torch.equal(p, same[0])
        for key in ("exp_avg", "exp_avg_sq"):
            assert own.state[p][key].is_cuda != own.on_host(p)
            assert torch.equal(own.state[p][key], same[1][key])
    again = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=fraction)(mine)
    again.load_state_dict(own.state_dict())
    for p in mine:
        assert again.state[p]["exp_avg"].device == own.state[p]["exp_avg"].device
