# SPDX-License-Identifier: Apache-2.0
"""kf.ops over PyTorch tensors on a GPU: dropout, CUDA graphs, streams, threads, other arrays,
caches.

test_python_ops.py tests each op.
"""

import threading

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

from formulas import DTYPES, EACH, ROWS, draw, made, shape_of  # noqa: E402
from torchops import close  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)


@pytest.fixture(scope="module")
def kf():
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


def test_rows_apart(kf):
    """Strided rows give the bits of a copy, and are not copied."""
    kf_copies = dict(kf.info()["copies"])
    wide = torch.randn(64, 1000, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(
        kf.ops.layer_norm(wide[:, 100:900]), kf.ops.layer_norm(wide[:, 100:900].contiguous())
    )
    assert kf.info()["copies"] == kf_copies


def test_dropout(kf):
    """The mask equals the CPU's and follows manual_seed; each replay of a graph draws again."""
    x = torch.rand(10000) + 1
    assert torch.equal(
        kf.ops.dropout(x.cuda(), p=0.3, rng=(5, 6)).cpu() == 0,
        kf.ops.dropout(x, p=0.3, rng=(5, 6)) == 0,
    )
    x, found = x.cuda(), []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(kf.ops.dropout(x, p=0.3))
    assert torch.equal(*found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kf.ops.dropout(x, p=0.3)
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(y.clone())
    assert not torch.equal(*drawn) and all(0.25 < (d == 0).float().mean() < 0.35 for d in drawn)


IN_A_GRAPH = """
import torch, kernel_fusion as kf
x = torch.ones(3, 5, device="cuda")
kf.ops.relu(x)
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        kf.ops.bias_relu(x, x[0])
except RuntimeError as e:
    print(e)
print(kf.ops.bias_relu(x, x[0]).sum().item())
"""


def test_nothing_is_compiled_in_a_graph(kf, tmp_path):
    output = kfpython.python(IN_A_GRAPH, KF_CACHE_DIR=str(tmp_path))
    assert (
        "kf_bias_relu_f32: its kernel kfk_bias_f32<" in output
        and "is not compiled yet, and the stream is being captured" in output
    )
    assert output.endswith("30.0")


def test_streams_and_threads(kf):
    """Calls are stream-ordered; new threads use the device's context."""
    x, side = torch.randn(1 << 22, device="cuda"), torch.cuda.Stream()
    want, found = kf.ops.gelu(x * 2), []
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        y = x * 2
        found.append(kf.ops.gelu(y))
    side.synchronize()

    def work():
        with torch.cuda.stream(side):
            found.append(kf.ops.gelu(x * 2))
            side.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(found) == 5 and all(torch.equal(f, want) for f in found)


@pytest.mark.parametrize("mode", ["decompose", "opaque"])
def test_compile(kf, monkeypatch, mode):
    monkeypatch.setattr(kf.config, "compile_ops", mode)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, w: kf.ops.layer_norm_gelu(x, w) + kf.ops.bias_relu(x, w), fullgraph=True
    )
    x, w = (
        torch.randn(64, 256, device="cuda", requires_grad=True),
        torch.randn(256, device="cuda", requires_grad=True),
    )
    got, want = compiled(x, w), kf.ops.layer_norm_gelu(x, w) + kf.ops.bias_relu(x, w)
    close(got, want, 1e-5)
    for g, t in zip(
        torch.autograd.grad(got.sum(), [x, w]), torch.autograd.grad(want.sum(), [x, w])
    ):
        close(g, t, 1e-4)


def test_another_process_compiles_nothing(kf):
    script = (
        "import torch, kernel_fusion as kf\nx = torch.ones(3, 5, "
        "device='cuda')\nprint(kf.ops.bias_relu(x, x[0]).sum().item())"
    )
    assert kfpython.python(script) == kfpython.python(script, KF_OFFLINE="1") == "30.0"


AHEAD = """
import torch, kernel_fusion as kf
x = torch.linspace(-3, 3, 24 * 40, device="cuda").reshape(24, 40).requires_grad_()
y = kf.ops.bias_gelu(x, x[0].detach())
y.backward(y.detach())
print([t.detach().cpu().numpy().tobytes().hex() for t in (y, x.grad)])
"""


def test_ahead_of_time(kf, tmp_path):
    """A process that may not compile runs with kernels of kf.warmup or kf.build_launchers, with
    the same bits.
    """
    built, asked = tmp_path / "built", "'bias_gelu', dtypes='float32'"
    kfpython.python(
        f"import torch, kernel_fusion as kf; kf.warmup({asked}); "
        f"kf.build_launchers({str(built)!r}, {asked})",
        KF_CACHE_DIR=str(tmp_path),
    )
    from_cache = kfpython.python(AHEAD, KF_CACHE_DIR=str(tmp_path), KF_OFFLINE="1")
    use = f"import kernel_fusion as kf\nkf.use_launchers({str(built)!r})\n"
    from_folder = kfpython.python(use + AHEAD, KF_CACHE_DIR=str(tmp_path / "empty"), KF_OFFLINE="1")
    assert from_cache == from_folder == kfpython.python(AHEAD)


@pytest.mark.parametrize(
    "text, operands, scalars", EACH + ROWS, ids=[e[0][:12] for e in EACH + ROWS]
)
def test_fuse(kf, text, operands, scalars):
    """User-made ops compared with the CPU; their launchers are compiled here."""
    f, shape = made(kf, text, operands, scalars), shape_of(operands)
    for dtype, tolerance in DTYPES.values():
        given = draw(operands, shape, dtype)
        there = {n: t.detach().cuda().requires_grad_() for n, t in given.items()}
        want, got = f(**given), f(**there)
        assert got.is_cuda
        close(got.cpu(), want, tolerance)
        up = torch.randn(want.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        theirs, mine = (
            torch.autograd.grad(want, list(given.values()), up),
            torch.autograd.grad(got, list(there.values()), up.cuda()),
        )
        for name, m, t in zip(given, mine, theirs):
            close(m.cpu(), t, 30 * tolerance, f"d{name}")
    assert " on a GPU: " in f.explain()


def test_gradients_are_added(kf):
    """Gradients accumulate in strided tensors, in float32 for 2-byte weights."""
    rng = torch.Generator().manual_seed(1)
    x, w, up = (
        torch.randn(shape, generator=rng).bfloat16() for shape in ((64, 96), (80, 96), (64, 80))
    )
    found = []
    for place in ("cpu", "cuda"):
        to = torch.ones(80, 128, device=place)
        given = [t.clone().to(place).requires_grad_() for t in (x, w)]
        kf.ops.linear_gelu(*given, grads={"weight": to[:, :96]}).backward(up.to(place))
        assert given[1].grad is None and (to[:, 96:] == 1).all()
        found.append((to[:, :96].cpu(), given[0].grad.cpu()))
    for ours, theirs in zip(*found):
        close(theirs, ours, 2e-2)


def lying_on(cupy, x):
    """Returns {kind: array}: CuPy; CUDA array interface only; DLPack only."""
    own = cupy.asarray(x)

    class Interface:
        __cuda_array_interface__ = property(lambda self: own.__cuda_array_interface__)

    class Capsule:
        def __dlpack_device__(self):
            return own.__dlpack_device__()

        def __dlpack__(self, *, stream):
            return own.__dlpack__(stream=stream)

    return {"CuPy": own, "interface": Interface(), "DLPack": Capsule()}


@pytest.mark.parametrize("kind", ["CuPy", "interface", "DLPack"])
def test_other_arrays(kf, kind):
    """CuPy arrays and others run on their streams; CuPy reads kf's results."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(1)
    x, w, label = (
        rng.normal(size=(64, 1000)).astype(np.float32),
        rng.normal(size=1000).astype(np.float32),
        rng.integers(0, 1000, 64),
    )
    calls = [
        ("bias_gelu", (x, w), {}),
        ("layer_norm_relu", (x, w, w), {}),
        ("sum", (x,), {"dim": 0}),
        ("cross_entropy", (x, label), {}),
        ("batch_norm_train", (x,), {}),
        ("gelu_dropout", (x,), {"p": 0.5, "rng": (3, 4)}),
        ("relu", (x.astype(np.float16),), {}),
    ]
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for name, arrays, more in calls:
                want = getattr(kf.ops, name)(*arrays, **more)
                got = getattr(kf.ops, name)(*(lying_on(cupy, a)[kind] for a in arrays), **more)
                for g, w in zip(
                    *((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True
                ):
                    assert isinstance(g, cupy.ndarray) == (kind == "CuPy")
                    for read in (cupy.asarray, cupy.from_dlpack):
                        np.testing.assert_allclose(
                            cupy.asnumpy(read(g)), w, 2e-5, 2e-5, err_msg=name
                        )
            del got, g
    theirs = torch.from_dlpack(kf.ops.relu(lying_on(cupy, x)[kind]))
    assert theirs.is_cuda and torch.equal(theirs.cpu(), torch.from_numpy(x).relu())


def test_memory_lasts_as_long_as_what_reads_it(kf):
    """The memory of seeds and discarded results outlives long-running work on a stream."""
    cupy = pytest.importorskip("cupy")
    x = np.linspace(-2, 2, 64 * 1000, dtype=np.float32).reshape(64, 1000)
    with cupy.cuda.Stream(non_blocking=True):
        before, there = cupy.ones(1 << 26, np.float32), lying_on(cupy, x)
        dropped, chained = [], []
        for _ in range(50):
            kf.ops.relu(before)
            dropped.append(kf.ops.gelu_dropout(there["CuPy"], p=0.5, rng=(3, 4)))
            chained.append(cupy.asarray(kf.ops.relu(kf.ops.relu(there["interface"]))))
        dropped, chained = [cupy.asnumpy(y) for y in dropped], [cupy.asnumpy(y) for y in chained]
    assert all(np.array_equal(y, dropped[0]) for y in dropped) and all(
        np.array_equal(y, np.maximum(x, 0)) for y in chained
    )


def test_bfloat16_by_dlpack(kf):
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)

    class Capsule:
        def __dlpack_device__(self):
            return x.__dlpack_device__()

        def __dlpack__(self, *, stream):
            return x.__dlpack__(stream=stream)

    assert torch.equal(torch.from_dlpack(kf.ops.gelu(Capsule())), kf.ops.gelu(x))


def test_out_of_memory(kf):
    """Results and copies raise PyTorch's exception; the next call works."""
    x = torch.randn(1, 64, device="cuda")
    rows = x.expand(2**40, 64)
    for call in (
        lambda: kf.ops.layer_norm(rows),
        lambda: torch.ops.kf.layer_norm(rows, None, None, 1e-5, 0.0, 0.0, 0, False),
        lambda: kf.ops.gelu(x[:, :1].expand(2**22, 2**22)),
    ):
        with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
            call()
    close(kf.ops.layer_norm(x), torch.nn.functional.layer_norm(x, (64,)), 1e-5)


def test_errors(kf):
    x = torch.randn(4, 8, device="cuda")
    with pytest.raises(ValueError, match="bias is on cpu, the others on cuda"):
        kf.ops.bias_relu(x, torch.zeros(8))
    with pytest.raises(ValueError, match="kf.bias_relu: bias has the shape"):
        kf.ops.bias_relu(x, x[0, :7])
