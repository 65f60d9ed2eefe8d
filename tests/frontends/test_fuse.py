# SPDX-License-Identifier: Apache-2.0
"""kf.fuse and kf.fuse_row: values and gradients compared with PyTorch and NumPy, and errors."""

import re
import subprocess
import zlib

import cases
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import formulas  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from formulas import DTYPES, EACH, KINDS, ROWS, SHAPE, draw, made, shape_of  # noqa: E402


def close(got, want, tolerance, what):
    error = (got.detach().double() - want.detach()).abs()
    assert got.shape == want.shape and (error <= tolerance * (1 + want.detach().abs())).all(), (
        f"{what}: {error.max()}"
    )


def compare(f, texts, operands, scalars, dtype, shape=SHAPE, seed=0):
    """Compares every result and the gradients of their weighted sum; NumPy arrays give the same
    bits.
    """
    torch_dtype, tolerance = DTYPES[dtype]
    given = draw(operands, shape, torch_dtype, seed)
    exact = {n: t.detach().double().requires_grad_() for n, t in given.items()}
    spread = {
        n: t[:, None]
        if KINDS["per_row"](shape) == t.shape and operands[n] == "per_row"
        else t[:, None]
        if operands[n] == "channel"
        else t
        for n, t in exact.items()
    }
    want = [
        formulas.reference(text, spread | {n: formulas.number(v) for n, v in scalars.items()})
        for text in texts
    ]
    found = f(**given)
    got = found if isinstance(found, tuple) else (found,)
    want = [w.squeeze(-1) if w.dim() == g.dim() + 1 else w for g, w in zip(got, want)]
    ups = [
        torch.randn(w.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(
            torch_dtype
        )
        for w in want
    ]
    for text, g, w in zip(texts, got, want):
        close(g, w, tolerance, text)
    mine = torch.autograd.grad(
        sum((g.double() * u).sum() for g, u in zip(got, ups)), list(given.values())
    )
    theirs = torch.autograd.grad(
        sum((w * u.double()).sum() for w, u in zip(want, ups)),
        list(exact.values()),
        allow_unused=True,
    )
    for n, m, t in zip(given, mine, theirs):
        close(
            m, torch.zeros_like(m).double() if t is None else t, 30 * tolerance, f"d{n} of {texts}"
        )
    if dtype != "bf16":
        arrays = f(**{n: t.detach().numpy() for n, t in given.items()})
        for a, g in zip(arrays if isinstance(arrays, tuple) else (arrays,), got):
            assert a.tobytes() == g.detach().numpy().tobytes()


@pytest.mark.parametrize(
    "text, operands, scalars", EACH + ROWS, ids=[text for text, *_ in EACH + ROWS]
)
def test_values_and_gradients(kf, text, operands, scalars):
    f = made(kf, text, operands, scalars)
    for dtype in cases.by_level(("f32", "bf16") if text == EACH[0][0] else ("f32",), tuple(DTYPES)):
        compare(f, [text], operands, scalars, dtype, shape_of(operands))


def test_several_results_and_saved_values(kf):
    f = kf.fuse_row(
        {"out": "(x - mu) * rstd", "top": "max(x)"},
        saved={"mu": "mean(x)", "rstd": "rsqrt(mean((x - mu) * (x - mu)) + 1e-5)"},
        x="elem",
    )
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    out, top = f(x)
    close(out, F.layer_norm(x, (7,)), 1e-11, "out")
    assert torch.equal(top, x.amax(-1))
    assert torch.autograd.gradcheck(f, [x])


def test_weights_of_another_dtype_and_absent_ones(kf):
    f = kf.fuse_row(
        "x * rsqrt(mean(x * x) + 1e-6) * w", x="elem", w={"kind": "row", "dtype": "U", "absent": 1}
    )
    x, w = torch.randn(SHAPE).bfloat16(), torch.randn(7, requires_grad=True)
    want = F.rms_norm(x.float(), (7,), None, 1e-6)
    close(f(x, w), (want * w).double(), 2e-2, "out")
    close(f(x), want.double(), 2e-2, "without weights")
    assert torch.autograd.grad(f(x, w).float().sum(), [w])[0].dtype == torch.float32


TYPED = {
    "family": "rows",
    "brief": "(x - mean(x)) * w + b",
    "types": {"T": ["f16", "bf16"], "W": ["T", "f32"], "B": ["f32"]},
    "operands": {
        "x": "elem",
        "w": {"kind": "row", "dtype": "W"},
        "b": {"kind": "row", "dtype": "B"},
    },
    "expr": "(x - mean(x)) * w + b",
}


def test_three_type_variables(kf):
    """Functions are found by the variables' names; each tensor has its variable's dtype."""
    from kernel_fusion import _fuse

    f = _fuse._of_entry(TYPED, "typed")
    x, b = torch.randn(SHAPE).half(), torch.randn(7)
    for dtype in (torch.float16, torch.float32):
        given = [t.detach().requires_grad_() for t in (x, torch.randn(7).to(dtype), b)]
        exact = [t.detach().double().requires_grad_() for t in given]
        got = f(*given)
        want = (exact[0] - exact[0].mean(-1, keepdim=True)) * exact[1] + exact[2]
        close(got, want, 2e-2, f"out with w of {dtype}")
        up = torch.randn(SHAPE).half()
        mine = torch.autograd.grad(got, given, up)
        theirs = torch.autograd.grad(want, exact, up.double())
        for name, m, t, of in zip("xwb", mine, theirs, given):
            assert m.dtype == of.dtype
            close(m, t, 2e-2, f"d{name} with w of {dtype}")
        arrays = f(*(t.detach().numpy() for t in given))
        assert arrays.tobytes() == got.detach().numpy().tobytes()
    with pytest.raises(TypeError, match="w has the dtype f64, expected f16 or f32 beside x of f16"):
        f(x, b.double(), b)
    with pytest.raises(TypeError, match="b has the dtype f16, expected f32 beside x of f16"):
        f(x, b, b.half())


def test_a_dropout(kf):
    f = kf.fuse("dropout(silu(x)) + y", x="elem", y="elem")
    x, y = torch.randn(2, 1000, dtype=torch.float64, requires_grad=True).unbind(0)
    kept = f(x, torch.zeros_like(x), p=0.25, rng=(3, 4)) != 0
    assert 600 < kept.sum() < 900
    close(f(x, y, p=0.25, rng=(3, 4)), F.silu(x) * kept / 0.75 + y, 1e-12, "out")
    assert torch.autograd.gradcheck(lambda x, y: f(x, y, p=0.25, rng=(3, 4)), [x[:40], y[:40]])
    assert f(x, y, training=False).equal(f(x, y, p=0))


# ---- random formulas


def _texts(st):
    """Random formulas of x, y and b whose values and derivatives float64 can compare well."""
    leaf = st.sampled_from(["x", "y", "b", "k", "0.5", "3", "-1.25"])

    def grow(inner):
        def call(form, *parts):
            return st.tuples(*parts).map(lambda p: form.format(*p))

        unary = st.sampled_from(
            [
                *(
                    f"{w}({{}})"
                    for w in (
                        "tanh",
                        "sigmoid",
                        "erf",
                        "sin",
                        "cos",
                        "abs",
                        "gelu",
                        "silu",
                        "mish",
                        "softplus",
                        "relu",
                        "hardswish",
                        "elu",
                        "relu6",
                        "gelu_tanh",
                        "softsign",
                    )
                ),
                "exp(min({}, 2))",
                "log(1 + abs({}))",
                "sqrt(abs({}) + 0.5)",
                "rsqrt(abs({}) + 0.5)",
                "(-{})",
            ]
        )
        binary = st.sampled_from(
            [
                "({} + {})",
                "({} - {})",
                "({} * {})",
                "max({}, {})",
                "min({}, {})",
                "({} / (1 + abs({})))",
            ]
        )
        return st.one_of(
            st.tuples(unary, inner).map(lambda p: p[0].format(p[1])),
            st.tuples(binary, inner, inner).map(lambda p: p[0].format(*p[1:])),
            call("where({} > {}, {}, {})", inner, inner, inner, inner),
        )

    return st.recursive(leaf, grow, max_leaves=8)


PARTS = cases.by_level(1, 4)  # takes minutes, so it runs alone


@pytest.mark.check
@pytest.mark.parametrize("part", range(PARTS))
def test_random_formulas(kf, part):
    """Several formulas are the results of one op, compiled once."""
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies

    @hypothesis.settings(
        max_examples=cases.by_level(2, 60),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(_texts(st), min_size=6, max_size=6, unique=True))
    def check(texts):
        if zlib.crc32("".join(texts).encode()) % PARTS != part:
            return
        operands, scalars = {"x": "elem", "y": "elem", "b": "row"}, {"k": 0.75}
        texts = ["x + y + b + k", *(f"tanh({t}) + x" for t in texts)]
        f = kf.fuse({f"r{i}": t for i, t in enumerate(texts)}, **operands, **scalars)
        compare(f, texts, operands, scalars, "f64", seed=len("".join(texts)))
        tried.append(texts)

    tried = []
    check()
    assert tried


# ---- PyTorch integration


def test_torch(kf, monkeypatch):
    """opcheck, gradcheck, torch.compile, torch.export, and one tensor used twice."""
    f = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
    given = draw({"x": "elem", "bias": "row", "gate": "elem"})
    assert torch.autograd.gradcheck(f, list(given.values())) and torch.autograd.gradgradcheck(
        f, list(given.values())
    )
    x, bias = given["x"], given["bias"]
    monkeypatch.setattr(kf.config, "compile_ops", "opaque")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, b: f(x, b, x).sum(), fullgraph=True, backend="aot_eager")
    got, want = (
        torch.autograd.grad(fn(x, bias), [x, bias])
        for fn in (compiled, lambda x, b: f(x, b, x).sum())
    )
    assert all(torch.equal(g, w) for g, w in zip(got, want))
    op = getattr(torch.ops.kf, f.__name__).default
    torch.library.opcheck(op, (x.detach(), bias.detach(), x.detach()))

    class Model(torch.nn.Module):
        def forward(self, x, bias):
            return f(x, bias, x)

    program = torch.export.export(Model(), (x.detach(), bias.detach()))
    assert f"kf.{f.__name__}" in str(program.graph) and torch.equal(
        program.module()(x.detach(), bias.detach()), f(x, bias, x)
    )


def test_autocast_and_strides(kf):
    f = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
    x = torch.randn(6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert f(x.bfloat16(), x[0], x).dtype == torch.float32
    assert torch.equal(
        f(x.t(), x[:, 0], x.t()), f(x.t().contiguous(), x[:, 0].contiguous(), x.t().contiguous())
    )


def test_on_a_gpu_it_says_what_is_missing(kf):
    """A CUDA call without a driver raises; with a driver it reports what the call lacks."""
    from kernel_fusion.torch import WHY_NO_SHIM_ON_GPU

    f = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    x = torch.randn(2, 3)
    for op, more, name in (
        (getattr(torch.ops.kf, f.__name__).default, (x[0], x), "kf.fuse('gelu(x + bias) * gate')"),
        (torch.ops.kf.bias.default, (x[0], 0.0, 0.0, 0), "kf.bias"),
    ):
        missing = NotImplementedError, f"{name}: no kernel for tensors on cuda: "
        error, text = missing if WHY_NO_SHIM_ON_GPU else (RuntimeError, ": x is on another device")
        with pytest.raises(error, match=re.escape(text)):
            op.redispatch(cuda, x, *more)


# ---- errors


def test_source_and_explain(kf, tmp_path):
    """The source compiles without kf's headers."""
    f = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
    f(*(np.ones(s, "f") for s in ((2, 3), 3, (2, 3))))
    text = f.explain()
    assert (
        "dgate = dout * gelu(t0)" in text
        and "out = gelu(x + bias) * gate" in text
        and re.search(r"^f32: .*fused_.*\.so$", text, re.M)
    )
    (tmp_path / "own.c").write_text(
        f.source(backward=True) + f"int main(void) {{ return kf_cpu_{f.__name__}_bwd_f32 == 0; }}\n"
    )
    subprocess.run(["gcc", "-O1", tmp_path / "own.c", "-o", tmp_path / "own", "-lm"], check=True)
    subprocess.run([tmp_path / "own"], check=True)
    assert "__global__" in f.source("bfloat16", target="cuda") and f is kf.fuse(
        "gelu(x + bias) * gate", x="elem", bias="row", gate="elem"
    )


X, BIAS = np.ones((2, 3), "f"), np.ones(3, "f")
REFUSED = [
    (
        lambda kf: kf.fuse("gelu(x", x="elem"),
        ValueError,
        "kf.fuse('gelu(x'): the formula is not an expression: '(' was never closed",
    ),
    (
        lambda kf: kf.fuse("sinh(x)", x="elem"),
        ValueError,
        "kf.fuse('sinh(x)'): the formula calls `sinh`; the functions are: abs, act, cos,",
    ),
    (
        lambda kf: kf.fuse("x + y", x="elem"),
        ValueError,
        "kf.fuse('x + y'): the formula reads `y`, which is not one of: x",
    ),
    (
        lambda kf: kf.fuse("x", x="elm"),
        ValueError,
        "operands x is 'elm'; give it a kind: elem, row, channel, half",
    ),
    (
        lambda kf: kf.fuse("silu(x, 1)", x="elem"),
        ValueError,
        "the formula calls `silu` with 2 arguments, expected x",
    ),
    (
        lambda kf: kf.fuse("mean(x)", x="elem"),
        ValueError,
        "the formula calls `mean`, which this op's family does not have",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row", c="row"),
        ValueError,
        "operands `c` is not read by the expression",
    ),
    (
        lambda kf: kf.fuse("b + 1", b="row"),
        ValueError,
        "operands has no operand with the shape of the result",
    ),
    (
        lambda kf: kf.fuse("x > 0", x="elem"),
        ValueError,
        "the formula is a condition; use where(condition, a, b)",
    ),
    (lambda kf: kf.fuse_row("x + 1", x="elem"), ValueError, "does not call pick(); use kf.fuse"),
    (
        lambda kf: kf.fuse("x + " * 100 + "y", x="elem"),
        ValueError,
        f"kf.fuse('{'x + ' * 14}...): the formula reads `y`",
    ),
    (
        lambda kf: kf.fuse(3, x="elem"),
        TypeError,
        "kf.fuse: the formula is int, expected an expression in quotes",
    ),
    (
        lambda kf: kf.fuse("x", x=None),
        TypeError,
        "kf.fuse('x'): x is NoneType, expected a kind of operand",
    ),
    (
        lambda kf: kf.fuse("x * k", x="elem", k=1.0)(X, k="2"),
        TypeError,
        "kf.fuse('x * k'): k is str, expected a number",
    ),
    (
        lambda kf: kf.fuse("x * k", x="elem", k={"default": 1, "least": 0})(X, k=-2),
        ValueError,
        "kf.fuse('x * k'): k is -2, expected at least 0",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(X),
        TypeError,
        "kf.fuse('x + b')(x, b, *, out=None): missing a required argument: 'b'",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(X, BIAS[:2]),
        ValueError,
        "kf.fuse('x + b'): b has the shape (2,), expected (3,) beside x of the shape (2, 3)",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(X, BIAS.astype("d")),
        TypeError,
        "kf.fuse('x + b'): b has the dtype f64, expected f32 beside x of f32",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(X.astype("i4"), BIAS),
        TypeError,
        "kf.fuse('x + b'): x has the dtype i32, expected one of",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(torch.tensor(X), torch.ones(2)),
        ValueError,
        "kf.fuse('x + b'): b has the shape (2,)",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row")(torch.tensor(X), k=1),
        TypeError,
        "kf.fuse('x + b')() got an unexpected keyword argument 'k'",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row").source("int32"),
        TypeError,
        "kf.fuse('x + b'): dtype is int32, expected one of float32",
    ),
    (
        lambda kf: kf.fuse("x + b", x="elem", b="row").source(target="ptx"),
        ValueError,
        "target is 'ptx', expected 'c' or 'cuda'",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused(kf, number):
    call, error, text = REFUSED[number]
    with pytest.raises(error, match=re.escape(text)):
        call(kf)


def test_gradients_that_are_there_already(kf):
    """Equal gradients are computed once, an unchanged one is passed on; each may be requested
    alone and differentiated again.
    """
    f = kf.fuse("gelu(x + y) + z", x="elem", y="elem", z="elem")
    x, y, z, up = (torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(4))
    calls = recorded_backwards(f, lambda: torch.autograd.grad(f(x, y, z), [x, y, z], up.detach()))
    (dx, dy, dz), masks = calls
    assert dx.data_ptr() == dy.data_ptr() and dz.data_ptr() == up.data_ptr() and masks == [1]
    want = torch.autograd.grad(F.gelu(x + y) + z, [x, y, z], up.detach())
    for i, (got, theirs) in enumerate(zip((dx, dy, dz), want)):
        close(got, theirs, 1e-12, f"gradient {i}")
        given = [t if j == i else t.detach() for j, t in enumerate((x, y, z))]
        [alone], masks = recorded_backwards(
            f, lambda given=given, i=i: torch.autograd.grad(f(*given), [given[i]], up.detach())
        )
        assert torch.equal(alone, got) and masks == ([] if i == 2 else [1])
    assert torch.autograd.gradgradcheck(f, (x, y, z))
    x.grad = None
    f(x, x, x).backward(up.detach())  # the gradients of one tensor used three times are summed
    close(
        x.grad,
        sum(
            want[i] if i == 2 else torch.autograd.grad(F.gelu(2 * x), x, up.detach())[0] / 2
            for i in range(3)
        ),
        1e-12,
        "x three times",
    )


def recorded_backwards(f, call):
    """Returns (result of the call, gradient masks its backwards requested)."""
    masks = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function._schema.name.endswith("_bwd"):
                masks.append(args[-1])
            return function(*args, **(kwargs or {}))

    with Recorder():
        return call(), masks
