# SPDX-License-Identifier: Apache-2.0
"""kf.ops over PyTorch tensors: values and gradients against float64, dropout, autocast, errors."""

import os
import signal

import cases
import kfpython
import pytest
import pytorch

torch = pytorch.load()

import torch_checks  # noqa: E402
import torchops  # noqa: E402
from torchops import TOLERANCE, case, close, ids  # noqa: E402

each = pytest.mark.parametrize("f", torchops.PLAIN, ids=ids)


@each
def test_values_and_gradients(kf, f):
    torch_checks.values_and_gradients(kf, f, "cpu")


def test_the_comparison_bites(kf):
    """The tests detect a wrong formula and a gradient of another input."""
    f = next(f for f in torchops.PLAIN if ids(f) == "bias_gelu")
    c = case(f, "f32")
    want = c.reference()[0][0]
    with pytest.raises(AssertionError):
        close(c.call(kf) * (1 + 2e-4), want, TOLERANCE["f32"])


@each
def test_each_gradient_alone(kf, f):
    """A gradient requested alone equals the one requested with all; others are not computed."""
    c = case(f, "f32")
    x = {n: t.detach() for n, t in c.tensors.items()}
    both = torch.autograd.grad(
        torchops.results(c.call(kf))[0].sum(), [c.tensors[n] for n in c.wanted]
    )
    for name, want in zip(c.wanted, both):
        alone = x[name].clone().requires_grad_()
        [got] = torch.autograd.grad(
            torchops.results(c.call(kf, **{**x, name: alone}))[0].sum(), [alone]
        )
        assert torch.equal(got, want), name


@each
def test_of_no_elements(kf, f):
    torch_checks.of_no_elements(kf, f)


@pytest.mark.level(2)
def test_derivatives_of_reductions_of_nothing(kf):
    """The gradient of an empty mean does not divide by zero."""
    for name, operands in (("mean", 1), ("mse_mean", 2), ("logsumexp", 1), ("var", 1)):
        given = [torch.randn(2, 0, 3, requires_grad=True) for _ in range(operands)]
        first = torch.autograd.grad(
            getattr(kf.ops, name)(*given, dim=1).sum(), given, create_graph=True
        )
        up = torch.ones(2, 3, requires_grad=True)
        again = torch.autograd.grad(
            getattr(kf.ops, name)(*given, dim=1), given, up, create_graph=True
        )
        [of_up] = torch.autograd.grad(again, [up], [torch.ones_like(t) for t in again])
        assert all(t.shape == (2, 0, 3) for t in first) and torch.equal(of_up, torch.zeros(2, 3))


def test_absent_operands(kf):
    x = torch.randn(4, 6, requires_grad=True)
    bias = torch.randn(6, requires_grad=True)
    got, want = kf.ops.layer_norm(x, bias=bias), torch.nn.functional.layer_norm(x, (6,), None, bias)
    close(got, want, 1e-5)
    up = torch.randn_like(got)
    for m, t in zip(
        torch.autograd.grad(got, [x, bias], up), torch.autograd.grad(want, [x, bias], up)
    ):
        close(m, t, 1e-5)
    half = x.detach().bfloat16().requires_grad_()
    assert (
        torch.autograd.grad(kf.ops.layer_norm(half, bias=bias).float().sum(), [bias])[0].dtype
        == torch.float32
    )


def test_what_is_kept_for_the_backward(kf):
    """Tensors that a gradient does not read are not saved: a sum needs only the shape."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(tuple(t.shape)) or t, lambda t: t
    ):
        x = torch.randn(50, 7, requires_grad=True)
        kf.ops.sum(x, dim=0).sum().backward()
        assert torch.equal(x.grad, torch.ones_like(x)) and (50, 7) not in kept
        kf.ops.layer_norm(x)
        assert kept.count((50, 7)) == 1


def test_no_zeros_for_what_nobody_differentiates(kf):
    """Unread gradients of saved outputs (mean, rstd, pre-activation) are not filled with zeros."""

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    for call in (
        lambda: kf.ops.layer_norm_gelu(x, w[0]),
        lambda: kf.ops.linear_gelu(x, w),
        lambda: kf.ops.scale_causal_softmax(x.view(1, 1, 4, 6)),
        lambda: kf.ops.sum(x.bfloat16(), dim=1),
    ):
        called, out = [], call()
        up = torch.ones_like(out)
        with Recorder():
            out.backward(up)
        assert called and not [
            name
            for name in called
            if "zero" in name
            or "fill" in name
            or "_to_copy" in name
            and out.dtype != torch.bfloat16
        ], called
    # The gradient does not exist at all.
    out = kf.ops.layer_norm(x)
    assert Nothing.apply(out).requires_grad and torch.autograd.grad(
        Nothing.apply(out), [x], torch.ones(4, 6), allow_unused=True
    ) == (None,)


class Nothing(torch.autograd.Function):
    """Function that passes on no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, up):
        return None


def test_a_sum_s_gradient_is_a_view(kf):
    """No memory is written (as in PyTorch), for any dtype and axis."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(4, 6, 5, dtype=dtype, requires_grad=True)
        for dim in (0, 1, -1, None):
            got, want = kf.ops.sum(x, dim=dim), x.sum(dim)
            up = torch.randn(want.shape).to(dtype)
            [mine], [theirs] = (torch.autograd.grad(r, [x], up) for r in (got, want))
            assert (
                torch.equal(mine, theirs)
                and mine.stride() == theirs.stride()
                and mine.untyped_storage().nbytes() <= 30 * dtype.itemsize
            )


def test_a_gradient_by_the_result_keeps_the_result(kf):
    """The result is saved instead of the inputs, except for a negative slope, where it is
    ambiguous.
    """
    x, bias = torch.randn(50, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    calls = [
        (lambda: kf.ops.bias_relu(x, bias), lambda: torch.relu(x + bias), False),
        (lambda: kf.ops.bias_gelu(x, bias), lambda: torch.nn.functional.gelu(x + bias), True),
    ]
    for slope in cases.by_level((), (0.25, -0.25)):  # the level 1 library lacks leaky_relu
        calls.append(
            (
                lambda slope=slope: kf.ops.bias_leaky_relu(x, bias, negative_slope=slope),
                lambda slope=slope: torch.nn.functional.leaky_relu(x + bias, slope),
                slope < 0,
            )
        )
    for call, formula, inputs in calls:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t.data_ptr()) or t, lambda t: t
        ):
            out = call()
        assert {x.data_ptr(), out.data_ptr()} & set(kept) == {(x if inputs else out).data_ptr()}
        up = torch.randn_like(out)
        for mine, theirs in zip(
            torch.autograd.grad(out, [x, bias], up), torch.autograd.grad(formula(), [x, bias], up)
        ):
            close(mine, theirs, 1e-5)


def test_without_a_gradient_nothing_is_saved(kf):
    """Outputs that only a backward reads have no elements."""
    op = torch.ops.kf.layer_norm.default
    x = torch.randn(3, 4)
    assert [tuple(t.shape) for t in op(x, None, None, 1e-5, 0.0, 0.0, 0, False)] == [
        (3, 4),
        (0,),
        (0,),
    ]
    assert [tuple(t.shape) for t in op(x, None, None, 1e-5, 0.0, 0.0, 0, True)] == [
        (3, 4),
        (3,),
        (3,),
    ]
    with torch.no_grad():
        assert not kf.ops.layer_norm(x.requires_grad_()).requires_grad


def test_second_derivatives_that_are_refused(kf):
    x = torch.randn(3, 4, requires_grad=True)
    [first] = torch.autograd.grad(kf.ops.layer_norm(x).square().sum(), [x], create_graph=True)
    with pytest.raises(NotImplementedError, match="kf.layer_norm has no second derivative"):
        torch.autograd.grad(first.sum(), [x])
    with pytest.raises(NotImplementedError, match="kf.cast has no gradient"):
        kf.ops.cast(x, torch.float64).sum().backward()


def test_dropout(kf):
    x = torch.randn(5000, requires_grad=True)
    torch.manual_seed(5)
    a = kf.ops.gelu_dropout(x, p=0.25)
    torch.manual_seed(5)
    b = kf.ops.gelu_dropout(x, p=0.25)
    assert (
        torch.equal(a, b)
        and not torch.equal(a, kf.ops.gelu_dropout(x, p=0.25))
        and abs((a == 0).float().mean() - 0.25) < 0.03
    )
    kept = a != 0
    close(a[kept], (torch.nn.functional.gelu(x) / 0.75)[kept], 1e-5)
    [got] = torch.autograd.grad(a.sum(), [x])
    [want] = torch.autograd.grad((torch.nn.functional.gelu(x) * kept / 0.75).sum(), [x])
    close(got, want, 1e-5)
    rng = torch.tensor([3, 4])
    assert torch.equal(kf.ops.gelu_dropout(x, rng=rng), kf.ops.gelu_dropout(x, rng=(3, 4)))
    assert (
        kf.ops.gelu_dropout(x, rng=(3, 4)).detach().numpy().tobytes()
        == kf.ops.gelu_dropout(x.detach().numpy(), rng=(3, 4)).tobytes()
    )
    assert torch.equal(
        kf.ops.gelu_dropout(x, rng=rng), kf.ops.gelu_dropout(x, rng=torch.tensor([3, 0, 4])[::2])
    )
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    kf.ops.gelu_dropout(x, training=False)
    # Without dropout the generator does not advance.
    assert torch.equal(torch.rand(3), want)
    large = (2**64 - 7, -9)  # 64 bits, signed or unsigned
    assert (
        kf.ops.gelu_dropout(x, rng=large).detach().numpy().tobytes()
        == kf.ops.gelu_dropout(x.detach().numpy(), rng=large).tobytes()
    )
    close(kf.ops.gelu_dropout(x, training=False), torch.nn.functional.gelu(x), 1e-5)


def test_running_statistics(kf):
    x = torch.randn(4, 3, 5)
    mean, var, want = torch.zeros(3), torch.ones(3), (torch.zeros(3), torch.ones(3))
    got = kf.ops.batch_norm_train(x.requires_grad_(), mean, var)
    close(got, torch.nn.functional.batch_norm(x, *want, training=True), 1e-5)
    close(mean, want[0], 1e-6)
    close(var, want[1], 1e-6)
    got.sum().backward()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_autocast(kf, weights):
    """Follows each op's policy in the manifest; casts are differentiated, so each leaf's gradient
    has its dtype.
    """
    w, x = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8)
    g = torch.ones(8, dtype=weights, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        h = x @ w
        out = kf.ops.layer_norm_relu(h, g)
        assert h.dtype == torch.bfloat16 and out.dtype == torch.float32
        assert kf.ops.bias_relu(h, torch.zeros(8)).dtype == torch.float32
        assert kf.ops.bias_relu(h, h[0]).dtype == kf.ops.relu(h).dtype == torch.bfloat16
        assert kf.ops.layer_norm(h.double(), g).dtype == torch.float64
    with pytest.raises(
        TypeError, match="kf.bias_relu: bias has the dtype f32, expected bf16 beside x of bf16"
    ):
        kf.ops.bias_relu(h, torch.zeros(8))
    out.sum().backward()
    assert w.grad.dtype == torch.float32 and g.grad.dtype == weights


def test_strides(kf):
    x = torch.randn(6, 5, 8)
    for view, copies in (
        (x[..., :4], 0),
        (x[:, 2], 0),
        (x[::2], 1),
        (x.transpose(0, 2), 1),
        (x.expand(2, 6, 5, 8), 1),
        (x[0, :1].expand(9, 8), 0),
    ):
        before = kf.info()["copies"].get("layer_norm", 0)
        close(kf.ops.layer_norm(view), torch.nn.functional.layer_norm(view, view.shape[-1:]), 1e-5)
        assert kf.info()["copies"].get("layer_norm", 0) - before == copies, view.stride()
    z = torch.randn(4, dtype=torch.complex64).conj().imag  # a lazily negated view
    close(kf.ops.relu(z), torch.relu(z), 0)


def test_any_number_of_dimensions(kf):
    x = torch.randn([2] + [1] * 40 + [3]).requires_grad_()
    for got, want in (
        (kf.ops.relu(x), torch.relu(x)),
        (kf.ops.sum(x), x.sum(-1)),
        (kf.ops.layer_norm(x), torch.nn.functional.layer_norm(x, (3,))),
    ):
        close(got, want, 1e-5)
        close(torch.autograd.grad(got.sum(), [x])[0], torch.autograd.grad(want.sum(), [x])[0], 1e-5)


def test_numbers_without_bounds(kf):
    """NaN is accepted for scalars without bounds, as for NumPy arrays."""
    x = torch.randn(3, 5)
    assert (
        kf.ops.matmul(x, x.t(), alpha=float("nan")).isnan().all()
        and kf.ops.matmul(x.numpy(), x.numpy().T, alpha=float("nan")).max() != 0
    )


def test_a_parameter_given_to_a_function_that_is_older_than_torch():
    """The function was made before PyTorch was imported."""
    output = kfpython.python("""
import kernel_fusion as kf
relu = kf.ops.relu
import torch
print(relu(torch.nn.Parameter(torch.ones(2))).requires_grad)
""")
    assert output == "True"


@pytest.mark.check
def test_an_op_made_by_many_threads_at_once():
    """The op is registered once, whether by its formula or by a call with a tensor."""
    output = kfpython.python("""
import sys, threading
import kernel_fusion as kf
older = kf.fuse("x * x + 7", x="elem")
import torch
sys.setswitchinterval(1e-6)
wrong, start = [], threading.Barrier(8)
def call(i):
    try:
        start.wait()
        kf.fuse("x * x + 5", x="elem")(torch.ones(3))
        older(torch.ones(3))
    except Exception as e:
        wrong.append(e)
threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(wrong)
""")
    assert output == "[]"


def test_threads_are_torch_s(kf):
    import kernel_fusion.torch as own

    assert own.THREADS_SHARED
    x, threads, found = torch.randn(700, 403), torch.get_num_threads(), []
    for n in (1, 2):
        torch.set_num_threads(n)
        found.append(kf.ops.layer_norm_gelu(x))
        assert kf.get_threads() == kf.info()["threads"] == n
    torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_after_a_fork(kf):
    """A DataLoader worker has none of PyTorch's threads; it may set its threads or
    load libraries.
    """
    x, squared = torch.randn(700, 403), kf.fuse("x * x", x="elem")
    want, product = (
        kf.ops.layer_norm_gelu(x).numpy().tobytes(),
        (x * x).numpy().tobytes(),
    )  # PyTorch computes before the fork

    def normed(threads):
        return kf.get_threads() == threads and kf.ops.layer_norm_gelu(x).numpy().tobytes() == want

    for call in (
        lambda: normed(1),
        lambda: kf.set_threads(2) or normed(2),
        lambda: squared(x).numpy().tobytes() == product,
    ):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(not call())
        assert os.waitpid(child, 0)[1] == 0
