# SPDX-License-Identifier: Apache-2.0
"""kf.nn compared with torch.nn, with the same state_dict: values, gradients, statistics, errors."""

import copy
import inspect
import itertools
import pickle
import re

import cases
import kflib
import kfpython
import pytest
import pytorch

torch = pytorch.load()

kfpython.use()

import kernel_fusion.nn as own  # noqa: E402
from kernel_fusion import _classes, _table  # noqa: E402
from torch import nn  # noqa: E402

OPS = set(_table.ops()) if kfpython.WHOLE else set(kfpython.OPS)
ACTIVATIONS = set(_table.activations()) if kfpython.WHOLE else set(kfpython.ACTIVATIONS)


def draw(*shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


X, LABELS = draw(4, 6), torch.tensor([1, 5, -100, 0])
P = draw(4, 6).softmax(-1)
# (class, arguments, keywords, inputs, op)
NORMS = [
    ("LayerNorm", (6,), {}, [X], "layer_norm"),
    ("LayerNorm", ((2, 6),), {"eps": 1e-3}, [draw(3, 2, 6)], "layer_norm"),
    ("LayerNorm", (6,), {"bias": False}, [X], "layer_norm"),
    ("LayerNorm", (6,), {"elementwise_affine": False}, [X], "layer_norm"),
    ("RMSNorm", (6,), {}, [X], "rms_norm"),
    ("RMSNorm", ((2, 6),), {"eps": 1e-3}, [draw(3, 2, 6)], "rms_norm"),
    ("GroupNorm", (2, 6), {}, [draw(3, 6, 5)], "group_norm"),
    ("GroupNorm", (3, 6), {"affine": False}, [draw(2, 6, 2, 2)], "group_norm"),
    ("InstanceNorm1d", (3,), {"affine": True}, [draw(2, 3, 5)], "instance_norm"),
    ("InstanceNorm2d", (3,), {}, [draw(3, 4, 5)], "instance_norm"),
    ("InstanceNorm3d", (3,), {}, [draw(2, 3, 2, 2, 2)], "instance_norm"),
    ("BatchNorm1d", (6,), {}, [X], "batch_norm_train"),
    ("BatchNorm2d", (3,), {"momentum": None}, [draw(2, 3, 2, 2)], "batch_norm_train"),
    ("BatchNorm3d", (3,), {"affine": False}, [draw(2, 3, 2, 2, 2)], "batch_norm_train"),
    ("BatchNorm1d", (6,), {"track_running_stats": False}, [X], "batch_norm_train"),
    ("BatchNorm2d", (3,), {}, [draw(0, 3, 2, 2)], "batch_norm_train"),
    ("LayerNorm", (6,), {}, [draw(0, 6)], "layer_norm"),
    ("InstanceNorm1d", (3,), {}, [draw(2, 3, 0)], "instance_norm"),
    ("GroupNorm", (2, 6), {}, [draw(0, 6, 5)], "group_norm"),
]
LAYERS = [
    ("Linear", (6, 3), {}, [X], "linear"),
    ("Linear", (6, 3), {"bias": False}, [draw(2, 3, 6)], "linear"),
    ("Linear", (6, 3), {}, [X[0]], "linear"),
    ("PReLU", (), {}, [X], "prelu_bias"),
    ("PReLU", (6,), {}, [X], "prelu_bias"),
    ("PReLU", (3, 0.1), {}, [draw(2, 3, 2, 4)], "prelu_bias"),
    ("PReLU", (), {}, [draw(2, 3, 4)], "prelu_bias"),
    ("PReLU", (), {}, [draw()], "prelu_bias"),
    ("GLU", (), {}, [X], "act_mul"),
    ("GLU", (1,), {}, [draw(2, 4, 3)], "act_mul"),
    ("Softmax", (-1,), {}, [X], "softmax"),
    ("Softmax", (1,), {}, [draw(2, 4, 3)], "softmax"),
    ("LogSoftmax", (0,), {}, [X], "log_softmax"),
    ("Softmax", (0,), {}, [draw()], "softmax"),
    ("LogSoftmax", (-1,), {}, [draw()], "log_softmax"),
    ("Softmax", (0,), {}, [draw(0, 3)], "softmax"),
]
ELEMENTS = [
    (name, (), {**k, "reduction": r}, [X, draw(6, 4).t().contiguous()], op)
    for name, k, op in (
        ("MSELoss", {}, "mse"),
        ("L1Loss", {}, "l1"),
        ("HuberLoss", {"delta": 0.5}, "huber"),
        ("SmoothL1Loss", {"beta": 0.5}, "huber"),
        ("SmoothL1Loss", {"beta": 0}, "l1"),
        ("BCEWithLogitsLoss", {}, "bce_with_logits"),
    )
    for r in ("none", "mean", "sum")
]
KL = [
    ("KLDivLoss", (), {"reduction": r}, [p.log(), q.softmax(-1)], "kl_div")
    for r in ("none", "mean", "sum", "batchmean")
    for p, q in ((P, draw(4, 6)), (P[0, 0], draw()))
]
KL += [
    ("KLDivLoss", (), {"reduction": r, "log_target": True}, [P.log(), (2 * X).log_softmax(-1)], op)
    for r in ("none", "batchmean")
    for op in ("kl_div",)
]
WEIGHT = draw(6).abs()
BCE = [
    ("BCEWithLogitsLoss", (), {**k, "reduction": r}, [9 * x, x.sigmoid()], "bce_with_logits")
    for r in ("none", "mean")
    for k, x in (
        ({"pos_weight": 3 * WEIGHT}, X),
        ({"pos_weight": torch.tensor([2.0], dtype=X.dtype), "weight": WEIGHT}, X),
        ({"pos_weight": WEIGHT[:, None]}, draw(2, 6, 3)),
        ({"weight": WEIGHT}, X),
    )
]
ROWS = [
    (name, (), {**k, "reduction": r}, [x, label], op)
    for r in ("none", "mean", "sum")
    for name, k, x, label, op in (
        ("CrossEntropyLoss", {}, X, LABELS, "cross_entropy"),
        ("CrossEntropyLoss", {"label_smoothing": 0.1}, X, LABELS, "cross_entropy"),
        (
            "CrossEntropyLoss",
            {"weight": WEIGHT, "ignore_index": 5},
            X,
            LABELS.clamp(0),
            "cross_entropy_weighted",
        ),
        (
            "CrossEntropyLoss",
            {},
            draw(2, 6, 3),
            torch.tensor([[1, 2, 3], [5, 0, -100]]),
            "cross_entropy",
        ),
        ("CrossEntropyLoss", {}, X, P, "cross_entropy_soft"),
        *(
            ("CrossEntropyLoss", {**k, "label_smoothing": 0.1}, X, target, op)
            for k, target, op in (
                ({"weight": WEIGHT}, LABELS, "cross_entropy_soft"),
                ({"weight": WEIGHT, "ignore_index": 5}, LABELS.clamp(0), "cross_entropy_soft"),
                ({"weight": WEIGHT}, P, "cross_entropy_soft"),
                ({}, P, "cross_entropy_soft"),
            )
        ),
        ("CrossEntropyLoss", {"weight": WEIGHT}, X, P, "cross_entropy_soft"),
        ("NLLLoss", {}, X, LABELS, "nll"),
        ("NLLLoss", {"weight": WEIGHT}, X, LABELS, "nll"),
    )
]
SCALARS = {
    "leaky_relu": {"negative_slope": 0.3},
    "elu": {"alpha": 1.5},
    "hardtanh": {"min_val": -0.5, "max_val": 2.0},
}
ACTS = [
    (name, (), k, [X], "act")
    for name, act in _classes.activations().items()
    if hasattr(nn, name) and act in ACTIVATIONS
    for k in ({}, *([SCALARS[act]] if act in SCALARS else []))
]
ACTS += [("GELU", (), {"approximate": "tanh"}, [X], "act")] if "gelu_tanh" in ACTIVATIONS else []
TWINS = [c for c in (*NORMS, *LAYERS, *ELEMENTS, *KL, *BCE, *ROWS, *ACTS) if c[4] in OPS]


def pair(name, args, kwargs):
    """Returns PyTorch's and kf's module with the same random parameters."""
    theirs = getattr(nn, name)(*args, **copy.deepcopy(kwargs)).double()
    mine = getattr(own, name)(*args, **copy.deepcopy(kwargs)).double()
    for i, p in enumerate(theirs.parameters()):
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(i))
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


# PyTorch's hardsigmoid gradient uses 1/6 in float32, even for float64.
ROUNDED = {"Hardsigmoid": 1e-8}


def same(got, want, tolerance=1e-10):
    assert got.shape == want.shape and ((got - want).abs() <= tolerance * (1 + want.abs())).all()


def test_every_activation_s_module_is_made():
    """Includes activations without kernels in the package."""
    for name in _classes.activations():
        assert isinstance(getattr(own, name)(), getattr(nn, name, nn.Module))


@pytest.mark.parametrize(
    "name, args, kwargs, inputs, op", TWINS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(TWINS)]
)
def test_twins(name, args, kwargs, inputs, op):
    modules = pair(name, args, kwargs)
    for training in (
        (True, False) if op in ("batch_norm_train",) and "batch_norm" in OPS else (True,)
    ):
        found = []
        for module in modules:
            module.train(training)
            given = [
                t.clone().requires_grad_() if t.is_floating_point() and i == 0 else t
                for i, t in enumerate(inputs)
            ]
            for _ in range(2 if training else 1):  # statistics are updated twice
                out = module(*given)
            leaves = [given[0], *module.parameters()]
            found.append(
                [
                    out,
                    *torch.autograd.grad((out * out).sum(), leaves),
                    *module.state_dict().values(),
                ]
            )
        for got, want in zip(found[1], found[0], strict=True):
            same(got, want, ROUNDED.get(name, 1e-10))
    assert isinstance(modules[1], getattr(nn, name)) and repr(modules[1]) == repr(modules[0])


def test_an_activation_behind_a_norm():
    x = draw(4, 6)
    made = [
        own.LayerNorm(6, activation="relu"),
        own.BatchNorm1d(6, activation="relu"),
        own.Linear(6, 3, activation="gelu"),
    ]
    made += (
        [own.RMSNorm(6, activation="gelu"), own.GroupNorm(2, 6, activation="silu")]
        if kfpython.WHOLE
        else []
    )
    for module in made:
        module.double()
        plain, act = copy.deepcopy(module), getattr(torch.nn.functional, module.activation)
        plain.activation = "none"
        same(module(x), act(plain(x)))
        assert f"activation={module.activation}" in repr(module)
    dropout = own.Dropout(0.5, activation="relu")
    assert (dropout(x.abs()) == 0).any() and torch.equal(dropout.eval()(x), torch.relu(x))


def test_a_linear_layer_adds_its_gradients_to_main_grad():
    """Accumulates over two batches, also in float32 for bfloat16; grad stays None, and without the
    flag main_grad is unused.
    """
    for dtype, wide, tolerance in (
        (torch.float64, torch.float64, 1e-12),
        (torch.bfloat16, torch.float32, 2e-2),
    ):
        layer = own.Linear(6, 3, activation="relu", fuse_wgrad_accumulation=True).to(dtype)
        layer.weight.main_grad = torch.zeros(3, 6, dtype=wide)
        base = nn.Linear(6, 3).double()
        base.load_state_dict({n: t.double() for n, t in layer.state_dict().items()})
        for seed in (1, 2):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
            (layer(x) * 2).sum().backward()
            (torch.relu(base(x.double())) * 2).sum().backward()
        assert layer.weight.grad is None
        assert (layer.weight.main_grad.double() - base.weight.grad).abs().max() <= tolerance * 20
        assert (
            layer.bias.grad.double() - base.bias.grad
        ).abs().max() <= tolerance * 20 and layer.bias.grad.dtype == dtype
    layer.bias.main_grad = torch.zeros(3)
    before = layer.bias.grad.clone()
    layer(x).sum().backward()
    assert torch.equal(layer.bias.grad, before) and layer.bias.main_grad.abs().sum() > 0
    layer.bias.requires_grad_(False)  # frozen parameters
    added = layer.bias.main_grad.clone()
    layer(x).sum().backward()
    assert torch.equal(layer.bias.main_grad, added)
    with torch.no_grad():
        assert not layer(x).requires_grad
    del layer.weight.main_grad
    with pytest.raises(
        ValueError,
        match="kf.nn.Linear: weight has no main_grad, expected a tensor that accumulates its "
        "gradient",
    ):
        layer(x)


def test_a_module_that_has_a_fused_function_is_copied(kf):
    """A module with a kf.fuse op can be copied and pickled."""
    f = kf.fuse("gelu(x + bias) * scale", x="elem", bias="row", scale=2.0)
    assert copy.deepcopy(f) is f and copy.copy(f) is f and pickle.loads(pickle.dumps(f)) is f
    output = kfpython.python(
        f"import pickle, numpy as np; print(pickle.loads({pickle.dumps(f)!r})(np.zeros((2, 3)), "
        f"np.ones(3)).shape)"
    )
    assert output == "(2, 3)"


@pytest.mark.level(2)
def test_modules_of_kf_alone():
    x, r = draw(4, 6), draw(4, 6).flip(0)
    for module, base in (
        (own.AddLayerNorm(6), nn.LayerNorm(6)),
        (own.AddRMSNorm(6), nn.RMSNorm(6, eps=None)),
    ):
        out, added = module.double()(x, r)
        same(added, x + r)
        same(out, base.double()(x + r))
    gemma = own.GemmaRMSNorm(6).double()
    gemma.weight.data.normal_()
    same(gemma(x), nn.functional.rms_norm(x, (6,), 1 + gemma.weight, 1e-6))
    for module, act in (
        (own.SwiGLU(), nn.functional.silu),
        (own.GEGLU(), nn.functional.gelu),
        (own.ReGLU(), torch.relu),
    ):
        same(module(x), act(x[:, :3]) * x[:, 3:])
    same(own.ReLUSquared()(x), torch.relu(x) ** 2)
    same(own.QuickGELU()(x), x * torch.sigmoid(1.702 * x))


def test_a_norm_of_no_channels():
    """An empty channel dimension is accepted; PyTorch's gradient of it fails."""
    assert own.BatchNorm1d(0).double()(draw(4, 0)).shape == (4, 0)


def test_lower_dtypes():
    """A bfloat16 module computes its statistics in float32."""
    x = draw(64, 6).bfloat16()
    theirs, mine = nn.BatchNorm1d(6).bfloat16(), own.BatchNorm1d(6).bfloat16()
    assert (
        torch.allclose(mine(x).float(), theirs(x).float(), atol=0.05)
        and mine.running_mean.dtype == torch.bfloat16
    )
    assert torch.allclose(mine.running_mean.float(), theirs.running_mean.float(), atol=1e-2)
    out = own.LayerNorm(6)(x)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: own.Softplus(beta=2), ValueError, "kf.nn.Softplus: beta is 2, expected 1.0"),
        (
            lambda: own.GELU("erf"),
            ValueError,
            "kf.nn.GELU: approximate is erf, expected none or tanh",
        ),
        (
            lambda: own.QuickGELU(alpha=1),
            TypeError,
            "kf.nn.QuickGELU has no alpha; its arguments: none",
        ),
        (
            lambda: own.LayerNorm(6, activation="swish"),
            ValueError,
            "kf.layer_norm: activation is swish, expected one of none, relu,",
        ),
        (
            lambda: own.Linear(6, 3, activation="elu"),
            ValueError,
            "kf.linear: activation is elu, expected one of none, relu,",
        ),
        (
            lambda: own.PReLU(5)(draw(4, 6)),
            ValueError,
            "kf.nn.PReLU: the input has the shape (4, 6), expected 5 in dimension 1",
        ),
        (
            lambda: own.GLU()(draw(4, 1)),
            ValueError,
            "kf.nn.GLU: the input has the shape (4, 1), expected an even dimension -1",
        ),
        (
            lambda: own.MSELoss()(draw(4, 1), draw(4)),
            ValueError,
            "kf.mse_mean: target has the shape (4,), expected (4, 1) beside x of that shape",
        ),
        (
            lambda: own.LayerNorm(6)(draw(4, 5)),
            ValueError,
            "kf.nn.LayerNorm: the input has the shape (4, 5), expected (..., 6)",
        ),
        (
            lambda: own.InstanceNorm1d(3, track_running_stats=True),
            ValueError,
            "kf.nn.InstanceNorm1d: track_running_stats is True, expected False",
        ),
        (
            lambda: own.BatchNorm1d(3)(draw(1, 3)),
            ValueError,
            "expected more than one value per channel",
        ),
        (
            lambda: own.BatchNorm1d(3, affine=False)(draw(4, 0)),
            ValueError,
            "kf.batch_norm_train: running_mean has the shape (3,), expected (0,)",
        ),
        (
            lambda: own.InstanceNorm1d(3)(draw(2, 3, 1)),
            ValueError,
            "kf.nn.InstanceNorm1d: the input has the shape (2, 3, 1), expected more than one "
            "value per channel",
        ),
        (
            lambda: own.InstanceNorm2d(3).eval()(draw(3, 1, 1)),
            ValueError,
            "kf.nn.InstanceNorm2d: the input has the shape (1, 3, 1, 1), expected more than "
            "one value",
        ),
        (
            lambda: own.GroupNorm(6, 6)(draw(1, 6)),
            ValueError,
            "kf.nn.GroupNorm: the input has the shape (1, 6), expected more than one value per "
            "group",
        ),
        (
            lambda: own.GLU()(draw()),
            ValueError,
            "kf.nn.GLU: the input has the shape (), expected an even dimension -1",
        ),
        (
            lambda: own.Softmax(1)(draw()),
            ValueError,
            "kf.softmax: dim is 1, expected a dimension of x",
        ),
        (lambda: own.Softmax()(X), ValueError, "kf.nn.Softmax: dim is None, expected a dimension"),
    ],
    ids=itertools.count(),
)
def test_what_is_refused(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


def test_compile_of_a_model():
    """A model compiles into one graph; its state_dict loads into the other library's modules."""

    def model(kind):
        return torch.nn.Sequential(
            kind.Linear(6, 3), kind.LayerNorm(3), kind.ReLU(), kind.BatchNorm1d(3)
        )

    torch._dynamo.reset()
    theirs, mine = model(nn).double(), model(own).double()
    mine.load_state_dict(theirs.state_dict())
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    found = []
    for module in (compiled, theirs):
        out = module(X)
        found.append(
            [
                out,
                *torch.autograd.grad(
                    own.CrossEntropyLoss()(out, torch.tensor([0, 1, 2, 1])),
                    list(module.parameters()),
                ),
            ]
        )
    for got, want in zip(*found):
        same(got, want)
    same(mine[3].running_var, theirs[3].running_var)


def test_every_name_is_there():
    assert set(own.__all__) >= set(_classes.activations()) and all(
        isinstance(getattr(own, n), type) for n in own.__all__
    )
    if cases.LEVEL > 1:
        assert {n for n in _classes.TORCH.values() if not hasattr(nn, n)} == set()


def test_the_reference_page_has_every_module():
    """docs/reference/nn.md has the arguments, docstring and base of each module."""
    page = (kflib.ROOT / "docs/reference/nn.md").read_text()
    found = {
        cells[0].strip("`").removeprefix("kf.nn."): [c.strip("`") for c in cells[1:]]
        for cells in (line[2:-2].split(" | ") for line in page.splitlines() if "| `kf.nn." in line)
    }
    assert set(found) == set(own.__all__)
    for name, (arguments, replaced, text) in found.items():
        module = getattr(own, name)
        theirs = getattr(nn, name, None)
        assert replaced == (f"torch.nn.{name}" if theirs else ""), name
        assert theirs is None or issubclass(module, theirs)
        if not text.startswith("kf.ops."):
            words = " ".join(module.__doc__.partition("Args:")[0].split())
            assert text.replace("`", "").startswith(words.replace("`", "")), name
        given = [word.partition("=")[0] for word in re.split(r", (?=[\w*])", arguments) if word]
        names = {w for w in given if not w.startswith("*")}
        known = set(inspect.signature(module).parameters)
        known |= set(inspect.signature(theirs).parameters) if theirs else set()
        assert names <= known, name
