# SPDX-License-Identifier: Apache-2.0
"""Formulas of ops in PyTorch functions: second derivatives, and decomposition in torch.compile."""

import re

import cases
import kfpython
import pytest
import pytorch

torch = pytorch.load()

import torchops  # noqa: E402
from torchops import case, close, ids  # noqa: E402

kfpython.use()
from kernel_fusion import _table  # noqa: E402

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
EVERY = list(
    {
        (f["op"], f["activation"]): f
        for f in torchops.FUNCTIONS
        if f["backward"] and not f["dropout"] and len(f["dtypes"]) == 1 and not f["integer"]
    }.values()
)


def of(f):
    return next(op for op in _table.ops().values() if op.pattern == f["op"])


def has_formulas(f):
    return _table.formulas(of(f), f["activation"]) is not None


ROUNDED = {"hardsigmoid": 1e-7}  # PyTorch uses 1/6 in float32, even for float64
AGAIN = torchops.PLAIN if cases.LEVEL > 1 else torchops.few(torchops.PLAIN)
# Ops that torch.compile decomposes, with one activation at level 1; none needs the library.
DECOMPOSED = [f for f in EVERY if f["family"] == "elementwise" and has_formulas(f)]
BY_RESULT = [
    f
    for f in DECOMPOSED
    if f["op"] in ("{act}", "bias_{act}") and f["activation"] in ("tanh", "leaky_relu")
]
if cases.LEVEL == 1:
    DECOMPOSED = BY_RESULT + list(
        {f["op"]: f for f in sorted(DECOMPOSED, key=lambda f: f["activation"] == "mish")}.values()
    )


@pytest.mark.parametrize("f", AGAIN, ids=ids)
def test_second_derivatives(kf, f):
    """gradgradcheck; a gradient that reads saved tensors has no second derivative and raises."""
    c = case(f, "f64")
    tensors = [c.tensors[n] for n in c.wanted]

    def call(*given):
        return c.call(kf, **dict(zip(c.wanted, given)))

    if has_formulas(f):
        assert torch.autograd.gradgradcheck(call, tensors)
        return
    found = torch.autograd.grad(
        torchops.results(call(*tensors))[0].square().sum(), tensors, create_graph=True
    )
    with pytest.raises(NotImplementedError, match=f"kf.{c.op.name} has no second derivative"):
        torch.autograd.grad(sum(g.sum() for g in found), tensors)


def test_second_derivatives_by_the_result(kf):
    """Gradients that read the forward's result, a function of the inputs."""
    x, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), 5))
    assert _table.formulas(*_table.find("relu"))[2]
    assert torch.autograd.gradgradcheck(kf.ops.relu, [x]) and torch.autograd.gradgradcheck(
        kf.ops.bias_relu, [x, bias]
    )
    f = kf.fuse("tanh(x + b) * x", x="elem", b="row")
    assert torch.autograd.gradgradcheck(f, [x, bias])
    if kfpython.WHOLE:
        for slope in (0.3, -0.3):
            assert torch.autograd.gradgradcheck(
                lambda x, slope=slope: kf.ops.leaky_relu(x, negative_slope=slope), [x]
            )


def test_which_have_second_derivatives():
    """Elementwise ops, reductions and softmax, and products that save only their factors."""
    without = {of(f).name for f in EVERY if not has_formulas(f)}
    assert (
        not {
            f["op"]
            for f in EVERY
            if f["family"] in ("elementwise", "reduction") and of(f).name in without
        }
        and "softmax" not in without
    )
    assert {"layer_norm", "cross_entropy", "rms_norm", "linear", "linear_act_mul"} <= without
    assert not {"matmul_nn", "matmul_tn", "act_linear", "act_mul_linear"} & without


def test_the_forward_of_a_reduction():
    """Its result has the tensor's dtype, although a type variable of its own."""
    from kernel_fusion.torch import _formula

    x = torch.randn(3, 5).bfloat16()
    got = _formula.make(*_table.find("mean"))[0](x, -1)
    assert torch.equal(got, x.float().mean(-1).bfloat16())


def test_third_derivatives_and_a_penalty_of_gradients(kf):
    x = torch.linspace(-3, 3, 41, dtype=torch.float64, requires_grad=True)
    first, second, third = x, None, None
    [first] = torch.autograd.grad(kf.ops.gelu(x).sum(), [x], create_graph=True)
    [second] = torch.autograd.grad(first.sum(), [x], create_graph=True)
    [third] = torch.autograd.grad(second.sum(), [x])
    density = torch.exp(-x * x / 2) * 0.3989422804014327
    close(second, (2 - x * x) * density, 1e-12)
    close(third, (x**3 - 4 * x) * density, 1e-12)
    y = torch.randn(5, 6, dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(6, dtype=torch.bfloat16, requires_grad=True)
    [g] = torch.autograd.grad(kf.ops.bias_gelu(y, bias).float().sum(), [y], create_graph=True)
    got = torch.autograd.grad(g.float().square().sum(), [y, bias])
    a, b = (t.detach().double().requires_grad_() for t in (y, bias))
    [h] = torch.autograd.grad(torch.nn.functional.gelu(a + b).sum(), [a], create_graph=True)
    for m, t in zip(got, torch.autograd.grad(h.square().sum(), [a, b])):
        assert m.dtype == torch.bfloat16
        close(m, t, 0.06)


@pytest.mark.parametrize("f", DECOMPOSED, ids=ids)
def test_decomposed(kf, f, monkeypatch):
    """Values and gradients of the decomposed functions in eager mode."""
    import kernel_fusion.torch as own

    function = own.function(of(f), f["activation"])
    monkeypatch.setitem(function.__globals__, "compiling", lambda: True)
    monkeypatch.setitem(function.__globals__, "forward", None)
    for dtype in cases.by_level(
        ("bf16",) if f["activation"] == "gelu" else ("f32",), ("f32", "f16", "bf16", "f64")
    ):
        c = case(f, dtype)
        (want, *_), given = c.reference()
        got = function(**c.tensors, **c.kwargs)
        close(got, want, torchops.TOLERANCE[dtype], f"{ids(f)} {dtype}")
        up = torch.randn(
            want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        ).to(got.dtype)
        mine = torch.autograd.grad((got.double() * up).sum(), [c.tensors[n] for n in c.wanted])
        theirs = torch.autograd.grad((want * up.double()).sum(), [given[n] for n in c.wanted])
        for name, m, t in zip(c.wanted, mine, theirs):
            assert m.dtype == c.tensors[name].dtype
            close(
                m,
                t,
                max(8 * torchops.TOLERANCE[dtype], ROUNDED.get(f["activation"], 0)),
                f"{ids(f)} {dtype} d{name}",
            )


def test_a_gradient_at_a_tie_is_kf_s(kf, monkeypatch):
    """kf's gradient, not autograd's of the formula: the clamp of relu6 would give 1 at 6."""
    import kernel_fusion.torch as own

    function = own.function(*_table.find("relu6"))
    monkeypatch.setitem(function.__globals__, "compiling", lambda: True)
    x = torch.tensor([0.0, 3.0, 6.0], requires_grad=True)
    assert torch.autograd.grad(function(x).sum(), [x])[0].tolist() == [0, 1, 0]


def graph_of(function, *args):
    """Returns the functions called by a compiled graph, and its result."""
    found = []

    def backend(module, inputs):
        found.extend(
            node.target
            for m in module.modules()
            if isinstance(m, torch.fx.GraphModule)
            for node in m.graph.nodes
            if node.op == "call_function"
        )
        return module

    torch._dynamo.reset()
    result = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)(*args)
    return {str(t) for t in found}, result


def test_what_torch_compile_sees(kf, monkeypatch):
    x, bias = torch.randn(4, 6), torch.randn(6)

    def call(x, bias):
        return kf.ops.layer_norm(kf.ops.bias_gelu(x, bias) * 2)

    # Before PyTorch 2.13 torch.compile looks like torch.export, which keeps ops with gradients.
    own = "kernel" if TORCH >= (2, 13) else "default"
    ops, formula = {f"kf.layer_norm.{own}", f"kf.bias.{own}"}, {f"kf.layer_norm.{own}"}
    for mode, seen in (
        ("auto", formula if TORCH >= (2, 13) else ops),
        ("decompose", formula),
        ("opaque", ops),
    ):
        monkeypatch.setattr(kf.config, "compile_ops", mode)
        targets, result = graph_of(call, x, bias)
        assert {t for t in targets if t.startswith("kf.")} == seen, mode
        close(result, call(x, bias).double(), 1e-5)
    monkeypatch.setattr(kf.config, "compile_ops", "auto")
    for wrong, text in (
        (torch.randn(1), "bias has the shape (1,), expected"),
        (bias.double(), "bias has the dtype"),
    ):
        with pytest.raises(Exception, match=re.escape(f"kf.bias_gelu: {text}")):
            graph_of(call, x, wrong)
    with pytest.raises(Exception, match="kf.relu: x has the dtype float8_e4m3fn"):
        graph_of(lambda x: kf.ops.relu(x) * 2, x.to(torch.float8_e4m3fn))
    with pytest.raises(Exception, match="kf.add: b has the shape"):
        graph_of(kf.ops.add, x, bias)
    with pytest.raises(
        ValueError,
        match="kf.config.compile_ops: it is set to 'decomposed', expected one of auto, opaque, "
        "decompose",
    ):
        kf.config.compile_ops = "decomposed"
    with pytest.raises(AttributeError, match="kf.config has no `compile_op`; it has compile_ops"):
        kf.config.compile_op = "opaque"
    assert kf.config.compile_ops == "auto"


def test_a_scalar_out_of_bounds_has_one_message(kf, monkeypatch):
    """Calls of arrays and of tensors, the op of a graph and its formula refuse it alike."""
    x = torch.randn(4, 6)

    def call(x, delta):
        return kf.ops.huber(x, x, delta=delta)

    for delta in (-1.0, -2.5, torch.nan):
        text = re.escape(f"kf.huber: delta is {delta}, expected at least 0")
        for given in (x, x.numpy()):
            with pytest.raises(ValueError, match=f"^{text}$"):
                call(given, delta)
        for mode in ("decompose", "opaque"):
            monkeypatch.setattr(kf.config, "compile_ops", mode)
            graph_of(call, x, 2.0)
            with pytest.raises(Exception, match=text):
                graph_of(call, x, delta)


@pytest.mark.parametrize("op", ["clamp", "hardtanh"])
def test_a_scalar_beyond_another_one_has_one_message(kf, monkeypatch, op):
    """Bounds that are scalars of an op or of an activation, too."""
    x = torch.randn(4, 6)

    def call(x, least, most):
        return getattr(kf.ops, op)(x, min_val=least, max_val=most)

    for mode in ("decompose", "opaque"):
        monkeypatch.setattr(kf.config, "compile_ops", mode)
        assert torch.equal(graph_of(call, x, -1.0, 0.5)[1], x.clamp(-1, 0.5)), mode
        for most in (-1.0, torch.nan):
            text = re.escape(f"kf.{op}: max_val is {most}, expected at least min_val = 1.0")
            for run in (graph_of, lambda f, *given: f(*given)):
                with pytest.raises(Exception, match=text):
                    run(call, x, 1.0, most)
            with pytest.raises(ValueError, match=f"^{text}$"):
                call(x.numpy(), 1.0, most)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_result_is_in_the_graph_twice(kf, monkeypatch, dtype):
    """No value is cast to its own dtype: torch.compile of PyTorch 2.11 would lose the gradient."""
    monkeypatch.setattr(kf.config, "compile_ops", "decompose")
    given, graphs = (
        [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((4, 6), (6,))],
        [],
    )
    torch._dynamo.reset()
    torch.compile(
        kf.ops.bias_gelu, fullgraph=True, backend=lambda module, _: graphs.append(module) or module
    )(*given)
    bodies = [
        m.graph
        for module in graphs
        for m in module.modules()
        if isinstance(m, torch.fx.GraphModule)
    ]
    rounds = [
        n for graph in bodies for n in graph.nodes if n.op == "call_method" and n.target == "to"
    ]
    assert len(bodies) > 2 and bool(rounds) == (dtype == torch.bfloat16)
    assert all(
        n.args[0].meta["example_value"].dtype != n.meta["example_value"].dtype for n in rounds
    )


@pytest.mark.level(2)
@pytest.mark.parametrize("mode", ["decompose", "opaque"])
def test_inductor(kf, monkeypatch, mode):
    """Inductor fuses forward and backward with their neighbours, also where "auto" is "opaque"."""
    monkeypatch.setattr(kf.config, "compile_ops", mode)
    x, bias = torch.randn(40, 6, requires_grad=True), torch.randn(6, requires_grad=True)

    def call(x, bias):
        return (kf.ops.gelu_glu(kf.ops.bias_gelu(x * 2, bias)) + 1).sin()

    torch._dynamo.reset()
    got, want = torch.compile(call, fullgraph=True)(x, bias), call(x, bias)
    close(got, want.double(), 1e-5)
    for m, t in zip(*(torch.autograd.grad(r.sum(), [x, bias]) for r in (got, want))):
        close(m, t.double(), 1e-5)
