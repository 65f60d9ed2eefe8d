# SPDX-License-Identifier: Apache-2.0
"""Results keep the memory format of their inputs, as PyTorch's do, and nothing is copied."""

import random

import kfpython
import pytest
import pytorch

torch = pytorch.load()

import memory  # noqa: E402
import torchops  # noqa: E402

kfpython.use()
from kernel_fusion.torch import _order  # noqa: E402
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm  # noqa: E402

nn = torch.nn
LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


def ordered():
    """Returns functions whose dimensions may have any order: the package's, and one of each form
    that it lacks, which the first call compiles.
    """
    every = [f for f in torchops.FUNCTIONS if torchops._table.ops()[torchops._name(f)].any_order]
    names = {id(f) for f in torchops.ALL}
    found = [f for f in every if id(f) in names]
    there = {f["form"] for f in found}
    more = {f["form"]: f for f in every if f["activation"] == "relu" and f["form"] not in there}
    return [*found, *more.values()]


ORDERED = ordered()
# Shapes of the tensor that determines the sizes; the channels are dimension 1.
SHAPES = {LAST: (2, 6, 3, 4), LAST_3D: (2, 6, 3, 2, 4)}


@pytest.fixture
def copies(kf):
    """Returns a function that counts the tensors copied since the test began."""
    before = sum(kf.info()["copies"].values())
    return lambda: sum(kf.info()["copies"].values()) - before


def case(f, shape, memory_format):
    """A case of an op whose whole tensors have the memory format."""
    own = torchops.case(f, "f32", shape=torchops.sizes_of(f))
    op, generator = own.op, torch.Generator().manual_seed(1)
    first = (*shape[:-1], 2 * shape[-1]) if op.forward.template.kind == "half" else shape
    layout = op.lay_out(op.forward, {op.forward.template.name: first}, 1, 3)
    for t in op.forward.inputs:
        old = own.tensors[t.name]
        new = torch.rand(layout.of(t), generator=generator) + 0.5
        new = (new > 1 if old.dtype == torch.bool else new).to(old.dtype)
        if t.kind in ("elem", "half"):
            new = new.contiguous(memory_format=memory_format)
        own.tensors[t.name] = new.requires_grad_(old.requires_grad)
    return own


@pytest.mark.parametrize("memory_format", SHAPES, ids=str)
@pytest.mark.parametrize("f", ORDERED, ids=torchops.ids)
def test_gradients_and_results_of_ops(kf, copies, f, memory_format):
    """Values equal those of contiguous tensors; only values per column need a copy."""
    c = case(f, SHAPES[memory_format], memory_format)
    if f["dropout"]:
        c.kwargs["training"] = False
    got = torchops.results(c.call(kf))
    plain = {n: t.detach().contiguous() for n, t in c.tensors.items()}
    plain = {n: t.requires_grad_(c.tensors[n].requires_grad) for n, t in plain.items()}
    want = torchops.results(c.call(kf, **plain))
    like = memory.like(c.op, c.tensors)
    for g, w in zip(got, want):
        assert (g.stride(), w.is_contiguous()) == (like.stride(), True)
        torch.testing.assert_close(g, w)
    if not c.wanted or not got[0].requires_grad:
        return
    up = torch.randn(got[0].shape).contiguous(memory_format=memory_format)
    mine = torch.autograd.grad(got[0], [c.tensors[n] for n in c.wanted], up)
    theirs = torch.autograd.grad(want[0], [plain[n] for n in c.wanted], up)
    takes = memory.takes(c.op, c.tensors) or bool(c.op.channels_last)
    for n, m, t in zip(c.wanted, mine, theirs):
        torch.testing.assert_close(m, t)
        if takes and c.tensors[n].dim() > 1:
            assert m.stride() == c.tensors[n].stride(), n
    if takes:  # `plain` and its gradients are contiguous, but for `up`
        assert copies() <= 1


def test_ops_over_channels_and_values_per_column_are_among_them():
    forms = {f["form"] for f in ORDERED}
    assert forms == {"flat", "rows", "planes", "groups", "channels"}


def strided(generator, shape):
    """Returns a tensor of the shape in a random layout."""
    order = [*range(len(shape))]
    generator.shuffle(order)
    gaps = [n * generator.choice((1, 1, 2)) for n in shape]
    found = torch.empty([gaps[i] for i in order])[tuple(slice(0, shape[i]) for i in order)]
    found = found.permute([order.index(d) for d in range(len(shape))])
    if generator.random() < 0.2 and shape:
        d = generator.randrange(len(shape))
        found = found.narrow(d, 0, 1).expand(shape)
    return found


def test_order_is_that_of_tensoriterator():
    """Draws mixed, sliced and expanded layouts, too."""
    generator = random.Random(1)
    moved = 0
    for _ in range(2000):
        shape = [generator.choice((1, 2, 3, 4)) for _ in range(generator.randrange(1, 6))]
        given = [strided(generator, shape) for _ in range(generator.randrange(1, 4))]
        if all(t.is_contiguous() for t in given):
            continue
        got = _order.in_memory(shape, [t.stride() for t in given])
        perm = compute_elementwise_output_logical_to_physical_perm(*given)[0]

        def sizes(p, shape=shape):
            return [d for d in p if shape[d] > 1]

        assert sizes(got) == sizes(perm), (shape, [t.stride() for t in given])
        moved += sizes(got) != sorted(sizes(got))
    assert moved > 500


@pytest.mark.parametrize(
    "mine, theirs, memory_format",
    [
        ("BatchNorm2d(6)", "BatchNorm2d(6)", LAST),
        ("BatchNorm3d(6)", "BatchNorm3d(6)", LAST_3D),
        ("BatchNorm2d(6).eval()", "BatchNorm2d(6).eval()", LAST),
        ("GroupNorm(3, 6)", "GroupNorm(3, 6)", LAST),
        ("GELU()", "GELU()", LAST_3D),
        ("Dropout(0.0)", "Dropout(0.0)", LAST),
        ("GroupNorm(3, 6, activation='relu')", "Sequential(nn.GroupNorm(3, 6), nn.ReLU())", LAST),
        ("InstanceNorm2d(6)", "InstanceNorm2d(6)", LAST),
    ],
)
def test_modules(kf, copies, mine, theirs, memory_format):
    x = torch.randn(SHAPES[memory_format]).contiguous(memory_format=memory_format)
    x.requires_grad_()
    own, other = eval(f"kf.nn.{mine}", {"kf": kf}), eval(f"nn.{theirs}", {"nn": nn})
    got, want = own(x), other(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    up = torch.randn(got.shape).contiguous(memory_format=memory_format)
    [dx], [dy] = torch.autograd.grad(got, x, up), torch.autograd.grad(want, x, up)
    torch.testing.assert_close(dx, dy)
    if "Instance" not in mine:
        assert (dx.stride(), copies()) == (dy.stride(), 0)


def test_mixed_layouts(kf, copies):
    """The first tensor decides; the other one is copied."""
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=LAST)
    y = torch.randn(2, 3, 4, 5)
    for a, b in ((x, y), (y, x), (x, y.transpose(2, 3).contiguous().transpose(2, 3))):
        got, want = kf.ops.add_relu(a, b), torch.relu(a + b)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    assert copies() == 3


def test_transposed_heads_beside_a_bias_are_not_copied(kf, copies):
    x = torch.randn(2, 5, 3, 4).transpose(1, 2)
    bias = torch.randn(4)
    got = kf.ops.bias_gelu(x, bias)
    assert got.stride() == x.stride() and not copies()
    torch.testing.assert_close(got, nn.functional.gelu(x + bias))


def test_the_mask_of_a_dropout_follows_memory(kf):
    x = torch.ones(2, 3, 4, 5)
    plain = kf.ops.dropout(x, p=0.5, rng=(1, 2))
    last = kf.ops.dropout(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), p=0.5, rng=(1, 2))
    assert last.is_contiguous(memory_format=LAST)
    assert torch.equal(last.permute(0, 2, 3, 1).flatten(), plain.flatten())


def args(kf):
    weight = torch.rand(6, requires_grad=True)
    zeros = torch.zeros(6)
    ops = kf.ops

    def run(x):
        normed = ops.batch_norm_relu(
            x, running_mean=zeros, running_var=zeros + 1, weight=weight, bias=zeros
        )
        rows = ops.bias_gelu(x, weight[: x.shape[-1]])
        return normed, rows, ops.group_norm(x, weight, None, groups=3), ops.add(x, normed)

    return run, torch.randn(SHAPES[LAST]).contiguous(memory_format=LAST).requires_grad_()


@pytest.mark.parametrize("mode", ["auto", "opaque", "decompose"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(kf, monkeypatch, mode, dynamic):
    """torch.compile and fake tensors find the strides of eager calls."""
    monkeypatch.setattr(kf.config, "compile_ops", mode)
    run, x = args(kf)
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for given in (x, x.detach().contiguous().requires_grad_()):
        got, want = compiled(given), run(given)
        for g, w in zip(got, want):
            assert g.stride() == w.stride()
            torch.testing.assert_close(g, w)
        both = [torch.autograd.grad(sum(map(torch.sum, r)), given)[0] for r in (got, want)]
        assert both[0].stride() == both[1].stride()
        torch.testing.assert_close(*both)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = run(mode.from_tensor(x))
    assert [t.stride() for t in fake] == [t.stride() for t in run(x)]


def test_exported(kf):
    run, x = args(kf)

    class Module(nn.Module):
        def forward(self, x):
            return run(x.relu())

    made = torch.export.export(Module(), (x.detach(),)).module()
    for g, w in zip(made(x.detach()), run(x.detach().relu())):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w)


def test_opcheck_of_channels_that_are_last(kf):
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    weight = torch.rand(6, requires_grad=True)
    op = torch.ops.kf.group_norm
    for overload in (op.default, op.kernel):
        given = (x, weight, None) if overload is op.default else (x.detach(), weight.detach(), None)
        torch.library.opcheck(overload, (*given, 1e-5, 0.0, 0.0, 3, True, 0, False))


def test_transforms_of_torch_func(kf):
    _, x = args(kf)
    torch.testing.assert_close(torch.vmap(kf.ops.relu)(x), torch.relu(x))
    grad = torch.func.grad(lambda x: kf.ops.gelu(x).sum())(x)
    torch.testing.assert_close(grad, torch.func.grad(lambda x: nn.functional.gelu(x).sum())(x))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda ops, x, w: ops.group_norm(x, w[:5], None, groups=3), ValueError, "(2, 6, 3, 4)"),
        (
            lambda ops, x, w: ops.batch_norm_train(x, w[:5], w, w, w, dim=1),
            ValueError,
            "running_mean has the shape (5,), expected (6,) beside x of the shape (2, 6, 3, 4)",
        ),
        (lambda ops, x, w: ops.add(x, x[..., :2]), ValueError, "b has the shape (2, 6, 3, 2)"),
        (lambda ops, x, w: ops.add(x, 3), TypeError, "kf.add: b is int, expected a tensor"),
        (lambda ops, x, w: ops.relu(x.to_sparse()), TypeError, "x is a sparse tensor"),
        (
            lambda ops, x, w: ops.batch_norm_train(x, w, w, w, w, dim=4),
            ValueError,
            "expected a dimension 4",
        ),
    ],
)
def test_errors_have_the_shapes_of_the_call(kf, call, error, text):
    x = torch.randn(SHAPES[LAST]).contiguous(memory_format=LAST)
    with pytest.raises(error) as e:
        call(kf.ops, x, torch.zeros(6))
    assert text in str(e.value)


def test_without_the_shim():
    kfpython.python(
        """
import torch, kernel_fusion as kf
x = torch.randn(2, 6, 3, 4).to(memory_format=torch.channels_last).requires_grad_()
module, other = kf.nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6)
got, want = module(x), other(x)
assert got.stride() == want.stride() and torch.allclose(got, want, atol=1e-6)
up = torch.randn_like(got)
[dx], [dy] = torch.autograd.grad(got, x, up), torch.autograd.grad(want, x, up)
assert dx.stride() == dy.stride() and torch.allclose(dx, dy, atol=1e-6)
assert not kf.info()["copies"] and kf.info()["torch"] != "shim", kf.info()
""",
        KF_TORCH_SHIM="0",
    )
