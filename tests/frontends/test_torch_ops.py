# SPDX-License-Identifier: Apache-2.0
"""opcheck, gradcheck, torch.compile and torch.export: one op per family at level 1, all at level
2.
"""

import cases
import kfpython
import pytest
import pytorch

torch = pytorch.load()

import torch_checks  # noqa: E402
import torchops  # noqa: E402
from torchops import case, close, ids  # noqa: E402

each = pytest.mark.parametrize(
    "f", torchops.PLAIN if cases.LEVEL > 1 else torchops.few(torchops.PLAIN), ids=ids
)
of_each_family = pytest.mark.parametrize(
    "f", torchops.PLAIN if cases.LEVEL > 1 else torchops.few_of_each_family(), ids=ids
)


@pytest.mark.parametrize(
    "f", torchops.ALL if cases.LEVEL > 1 else torchops.of_each_op(torchops.ALL), ids=ids
)
def test_opcheck(kf, f):
    torch_checks.opcheck(kf, f, "cpu")


@each
def test_gradcheck(kf, f):
    torch_checks.gradcheck(kf, f, "cpu")


@each
def test_the_op_itself_has_its_gradient(kf, f):
    torch_checks.of_the_op_itself(kf, f, "cpu")


def test_what_the_op_itself_refuses(kf):
    """A missing derivative raises, as in kf.ops: treating the result as a constant
    would be wrong.
    """
    import kernel_fusion.torch  # noqa: F401, which registers them
    from kernel_fusion import _table
    from torch.autograd import forward_ad

    x, w = torch.randn(3, 4, requires_grad=True), torch.ones(4)

    def norm(x):
        return torch.ops.kf.layer_norm(x, w, None, 1e-5, 0.0, 0.0, 0, False)[0]

    [first] = torch.autograd.grad(norm(x).square().sum(), [x], create_graph=True)
    up = torch.ones(3, 4, requires_grad=True)
    directly = torch.ops.kf.layer_norm_bwd(
        x,
        w,
        None,
        None,
        *torch.ops.kf.layer_norm(x, w, None, 1e-5, 0.0, 0.0, 0, True)[1:],
        up,
        1e-5,
        0.0,
        0.0,
        0,
        1,
    )[0]
    for call, why in (
        (lambda: torch.autograd.grad(first.sum(), [x]), "kf.layer_norm has no second derivative"),
        (
            lambda: torch.autograd.grad(directly.sum(), [up]),
            "kf.layer_norm has no second derivative",
        ),
        (
            lambda: torch.func.grad(lambda x: norm(x).sum())(x.detach()),
            "kf.layer_norm has no derivative inside transforms",
        ),
        (
            lambda: torch.func.jvp(norm, (x.detach(),), (x.detach(),)),
            "kf.layer_norm has no forward-mode derivative",
        ),
        (lambda: torch.ops.kf.cast(x, torch.float64).sum().backward(), "kf.cast has no gradient"),
    ):
        with pytest.raises(NotImplementedError, match=why):
            call()
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="kf.layer_norm has no forward-mode derivative"),
    ):
        norm(forward_ad.make_dual(x.detach(), w.expand(3, 4)))
    each_row, [want] = torch.func.vmap(norm)(x), torch.autograd.grad(norm(x).square().sum(), [x])
    assert torch.equal(torch.autograd.grad(each_row.square().sum(), [x])[0], want)
    relu = _table.activations()["relu"]
    grad = torch.ops.kf.act_bwd(x, None, up, 0.0, 0.0, relu, 1)  # this op has a second derivative
    assert torch.equal(torch.autograd.grad(grad.sum(), [up])[0], (x > 0).float())
    with pytest.raises(RuntimeError, match="no activation of this number"):
        torch.ops.kf.act(x, 0.0, 0.0, -1)


def test_gradcheck_of_a_dropout(kf):
    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: kf.ops.gelu_dropout(x, p=0.4, rng=(3, 4)), [x])


@of_each_family
def test_compile(kf, f, monkeypatch):
    monkeypatch.setattr(kf.config, "compile_ops", "opaque")
    torch_checks.compiled(kf, f, "cpu", "aot_eager")


def test_compile_of_a_model(kf):
    """Inductor's partitioner; dropout follows manual_seed; running statistics are updated."""
    norm = torch.nn.Parameter(torch.ones(8))

    def model(x, mean, var):
        h = kf.ops.gelu_dropout(kf.ops.layer_norm_gelu(x, norm), p=0.5)
        return kf.ops.batch_norm_train(h, mean, var)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, found = torch.randn(16, 8), []
    for fn in (compiled, compiled, model):
        torch.manual_seed(2)
        mean, var = torch.zeros(8), torch.ones(8)
        fn(x, mean, var).sum().backward()
        found.append(mean)
        assert (mean != 0).all() and (var != 1).all()
    assert torch.equal(found[0], found[1]) and norm.grad is not None


def test_autocast_compiled(kf):
    torch._dynamo.reset()
    fn = torch.compile(kf.ops.layer_norm_relu, fullgraph=True, backend="aot_eager")
    w, g = torch.randn(8, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = fn(torch.randn(4, 8) @ w, g)
    out.sum().backward()
    assert out.dtype == torch.float32 and w.grad.dtype == g.grad.dtype == torch.float32


@of_each_family
def test_export(kf, f):
    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return c.call(kf, **dict(zip(c.tensors, tensors)))

    c = case(f, "f32", grad=False)
    tensors = tuple(c.tensors.values())
    program = torch.export.export(Model(), tensors)
    for programme in (program, program.run_decompositions()):
        assert f"kf.{c.op.name}.default" in str(programme.graph)
        for g, w in zip(
            torchops.results(programme.module()(*tensors)), torchops.results(Model()(*tensors))
        ):
            close(g, w, 0)
        leaves = [t.clone().requires_grad_(n in case(f).wanted) for n, t in c.tensors.items()]
        found = [
            torchops.results(call(*leaves))[0].square().sum()
            for call in (programme.module(), Model())
        ]
        for m, t in zip(
            *(torch.autograd.grad(x, [t for t in leaves if t.requires_grad]) for x in found),
            strict=True,
        ):
            close(m, t, 0)


def test_every_op_is_registered(kf):
    """Both directions, with schemas that mark optional tensors."""
    from kernel_fusion import _table

    for op in _table.ops().values():
        for name in [op.name, *([f"{op.name}_bwd"] if op.backward else [])]:
            found = torch.ops.kf.__getattr__(name).default._schema
            arguments = [a.name for a in found.arguments]
            assert found.name == f"kf::{name}" and len(set(arguments)) == len(arguments), (
                found
            )  # an operand may have any name
            # The first overload, which has the gradient, is the default; updates have none.
            overloads = ["default"] if op.forward.updates else ["default", "kernel"]
            assert torch.ops.kf.__getattr__(name).overloads() == overloads
    text = str(torch.ops.kf.layer_norm.default._schema)
    assert (
        text
        == (
            "kf::layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, float act_0, float "
            "act_1, int activation, bool save) "
            "-> (Tensor, Tensor, Tensor)"
        )
        and kfpython.OPS
    )
