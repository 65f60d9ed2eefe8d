# SPDX-License-Identifier: Apache-2.0
"""kf.optim compared with torch.optim: steps, state in both directions, groups, schedulers, scaled
gradients, errors.
"""

import copy
import io
import pickle

import kfpython
import pytest
import pytorch

torch = pytorch.load()

kfpython.use()

import kernel_fusion as kf  # noqa: E402

# (class, arguments)
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"betas": (0.5, 0.75), "eps": 1e-3, "amsgrad": True}),
    ("NAdam", {}),
    ("NAdam", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("RAdam", {"weight_decay": 0.1, "betas": (0.9, 0.5)}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]
IDS = [f"{name}-{'-'.join(given)}" for name, given in CASES]
# One case of each class.
FIRST = [next(c for c in CASES if c[0] == name) for name in dict.fromkeys(c[0] for c in CASES)]


def some(cases, names):
    """Leaves all cases but the first of these classes to the second tier."""
    chosen = [next(c for c in cases if c[0] == name) for name in names]
    return [c if c in chosen else pytest.param(*c, marks=pytest.mark.check) for c in cases]


SHAPES = ((3, 5), (), (0,), (7,), (2, 3, 4, 5))


def parameters(dtype=torch.float32, shapes=SHAPES):
    """Returns parameters; the last one is channels_last, one is transposed, one has gaps."""
    draw = torch.Generator().manual_seed(5)
    found = [torch.randn(shape, generator=draw, dtype=dtype) for shape in shapes]
    found[-1] = found[-1].to(memory_format=torch.channels_last)
    found += [torch.randn(4, 6, generator=draw, dtype=dtype).t()]
    found += [torch.randn(5, 8, generator=draw, dtype=dtype)[:, :3]]
    return [torch.nn.Parameter(x) for x in found]


def pair(name, given, dtype=torch.float32, **others):
    """Returns torch's optimizer, kf's and their parameters."""
    theirs, own = parameters(dtype), parameters(dtype)
    return (
        getattr(torch.optim, name)(theirs, **given),
        getattr(kf.optim, name)(own, **given, **others),
        theirs,
        own,
    )


def gradients(lists, n, scale=1.0):
    """Sets the gradients of step n to the same values in each list of parameters."""
    draw = torch.Generator().manual_seed(100 + n)
    for same in zip(*lists):
        drawn = torch.randn(same[0].shape, generator=draw, dtype=torch.float64) * scale
        for p in same:
            p.grad = drawn.to(p.dtype, copy=True)


def assert_same(theirs, own, **tolerance):
    for a, b in zip(theirs, own):
        torch.testing.assert_close(b.detach(), a.detach(), **tolerance)


def assert_same_state(theirs, own, **tolerance):
    """Compares names and their order, dtypes and values of the states of two optimizers."""
    a, b = theirs.state_dict(), own.state_dict()
    assert a["param_groups"] == b["param_groups"] and a["state"].keys() == b["state"].keys()
    for i, found in a["state"].items():
        assert [*found] == [*b["state"][i]]
        for key, x in found.items():
            torch.testing.assert_close(b["state"][i][key], x, **tolerance)


def train(theirs, own, lists, steps):
    for n in steps:
        gradients(lists, n)
        theirs.step(), own.step()


@pytest.mark.parametrize("name, given", some(CASES, ["SGD", "AdamW", "RMSprop"]), ids=IDS)
def test_steps(name, given):
    """A hundred steps end where torch's do, and ascend with maximize."""
    for maximize in (False, True):
        theirs, own, *lists = pair(name, given | {"maximize": maximize})
        train(theirs, own, lists, range(100))
        assert_same(*lists, rtol=2e-5, atol=2e-6)
        assert_same_state(theirs, own, rtol=2e-5, atol=2e-6)


@pytest.mark.check
@pytest.mark.parametrize("name, given", CASES, ids=IDS)
def test_steps_in_double_precision(name, given):
    theirs, own, *lists = pair(name, given, torch.float64)
    train(theirs, own, lists, range(100))
    assert_same(*lists, rtol=1e-12, atol=1e-12)
    assert_same_state(theirs, own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name, given", some(CASES, ["SGD", "Adam"]), ids=IDS)
def test_state_of_the_other(name, given):
    """Each continues from what the other saved."""
    theirs, own, *lists = pair(name, given)
    train(theirs, own, lists, range(3))
    for source, other in ((theirs, own), (own, theirs)):
        saved = io.BytesIO()
        torch.save(source.state_dict(), saved)
        saved.seek(0)
        fresh = type(other)(
            [torch.nn.Parameter(p.detach().clone()) for p in source.param_groups[0]["params"]],
            **given,
        )
        fresh.load_state_dict(torch.load(saved))
        kept = [torch.nn.Parameter(p.detach().clone()) for p in source.param_groups[0]["params"]]
        continued = type(source)(kept, **given)
        continued.load_state_dict(copy.deepcopy(source.state_dict()))
        train(continued, fresh, (kept, fresh.param_groups[0]["params"]), range(3, 6))
        assert_same(kept, fresh.param_groups[0]["params"], rtol=2e-5, atol=2e-6)
        assert_same_state(continued, fresh, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, given", some(FIRST, ["AdamW"]))
def test_schedulers(name, given):
    """Schedulers set the rate, also one that is a tensor."""
    for rate in (float, torch.tensor):
        theirs, own, *lists = pair(name, given)
        for optimizer in (theirs, own):
            optimizer.param_groups[0]["lr"] = rate(0.1)
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (theirs, own)]
        for n in range(5):
            train(theirs, own, lists, [n])
            for s in schedulers:
                s.step()
        assert float(own.param_groups[0]["lr"]) == pytest.approx(0.025)
        assert_same(*lists, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, given", some(FIRST, ["AdamW"]))
def test_groups(name, given):
    """Groups differ in options and dtypes; a parameter without a gradient stays as it is."""

    def groups(mine):
        return [
            {"params": mine[0][:3], "lr": 0.5},
            {"params": [*mine[0][3:], *mine[1]], "weight_decay": 0.25},
            {"params": mine[2], "maximize": True},
        ]

    lists = [
        [parameters(), parameters(torch.float64), parameters(shapes=[(2, 3, 2, 2)])]
        for _ in range(2)
    ]
    # Adagrad of PyTorch 2.11 has no state for groups that are added later.
    theirs = getattr(torch.optim, name)(groups(lists[0]), **given)
    *first, added = groups(lists[1])
    own = getattr(kf.optim, name)(first, **given)
    own.add_param_group(added)
    flat = [[p for some in mine for p in some] for mine in lists]
    for n in range(6):
        gradients(flat, n)
        for mine in flat:
            for p in mine[n % 3 :: 3]:
                p.grad = None
        before = [mine[n % 3].detach().clone() for mine in flat]
        theirs.step(), own.step()
        assert (before[1] == flat[1][n % 3]).all()
    assert_same(*flat, rtol=2e-5, atol=2e-6)
    assert_same_state(theirs, own, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, given", some(FIRST, ["AdamW"]))
def test_low_precision(name, given):
    """bfloat16 computes in float32 and rounds each tensor once: within one unit of a step of
    float32 from the same tensors."""
    own = parameters(torch.bfloat16)
    optimizer = getattr(kf.optim, name)(own, **given)
    for n in range(3):
        wide = [torch.nn.Parameter(p.detach().float()) for p in own]
        reference = getattr(torch.optim, name)(wide, **given)
        reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # not the same counts
        gradients([own], n)
        for p, q in zip(own, wide):
            q.grad = p.grad.float()
        optimizer.step(), reference.step()
        assert_same([q.detach().bfloat16() for q in wide], own, rtol=2**-7, atol=1e-30)
    assert {p.dtype for p in own} == {torch.bfloat16}
    dtypes = {x.dtype for s in optimizer.state.values() for k, x in s.items() if k != "step"}
    assert dtypes <= {torch.bfloat16, torch.float32}


@pytest.mark.parametrize(
    "name",
    [
        "AdamW",
        *(pytest.param(n, marks=pytest.mark.check) for n in ("SGD", "Adam", "Adagrad", "RMSprop")),
    ],
)
def test_scaled_gradients(name):
    """GradScaler skips a step with an infinite gradient; a fused optimizer unscales by itself."""
    for fused in [None] if name == "RMSprop" else [None, True]:
        given = {} if fused is None else {"fused": fused}
        _, own, *lists = pair(name, given)
        # PyTorch's fused step reads memory in its own order: only contiguous parameters.
        lists[0] = [torch.nn.Parameter(p.detach().contiguous()) for p in lists[0]]
        theirs = getattr(torch.optim, name)(lists[0], **given)
        scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) for _ in lists]
        for n in range(5):
            gradients(lists, n, scale=float(scalers[0].get_scale()))
            if n == 2:
                for mine in lists:
                    mine[0].grad[1, 2] = torch.inf
            for scaler, optimizer in zip(scalers, (theirs, own)):
                scaler.scale(torch.zeros(()))  # makes the scale a tensor
                scaler.step(optimizer)
                scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale() == 128.0
        assert_same(*lists, rtol=2e-5, atol=2e-6)
        assert_same_state(theirs, own, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, given", some(FIRST, ["AdamW"]))
def test_numbers_in_memory(name, given, monkeypatch):
    """Ops that read rate, counts and scaling from memory, as on a GPU: the same steps, and a step
    with an infinite gradient leaves the counts as they are."""
    from kernel_fusion.optim import _step

    theirs, own, *lists = pair(name, given | {"lr": torch.tensor(0.01)})
    for n in range(4):
        gradients(lists, n)
        theirs.step()
        with monkeypatch.context() as m:
            m.setattr(_step, "on_gpu", lambda x: isinstance(x, torch.Tensor))
            own.step()
            if "fused" in own.defaults:
                own.found_inf = torch.ones(())
                own.step()
                del own.found_inf
    assert_same(*lists, rtol=2e-5, atol=2e-6)
    assert_same_state(theirs, own, rtol=2e-5, atol=2e-6)


def test_closures_and_hooks():
    theirs, own, *lists = pair("AdamW", {})
    seen = []
    own.register_step_pre_hook(lambda *a: seen.append("before"))
    own.register_step_post_hook(lambda *a: seen.append("after"))
    for optimizer, mine in zip((theirs, own), lists):

        def loss(optimizer=optimizer, mine=mine):
            optimizer.zero_grad()
            found = sum((p * p).sum() for p in mine)
            found.backward()
            return found

        assert optimizer.step(loss) > 0
    assert_same(*lists)
    assert seen == ["before", "after"]


def test_copies():
    """Copies and pickles continue where the original does."""
    _, own, _, mine = pair("AdamW", {})
    gradients([mine], 0)
    own.step()
    for made in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        copied = made.param_groups[0]["params"]
        gradients([mine, copied], 1)
        before = [p.detach().clone() for p in mine]
        saved = copy.deepcopy(own.state_dict())
        made.step(), own.step()
        assert_same(mine, copied, rtol=0, atol=0)
        own.load_state_dict(saved)
        for p, x in zip(mine, before):
            p.data.copy_(x)


def test_copies_that_unscale():
    """A copy of a fused optimizer leaves scaling to the kernels, as the original does."""
    for name in ("SGD", "AdamW", "Adagrad", "Lion"):
        for fused in (None, True):
            own = getattr(kf.optim, name)(parameters(), fused=fused)
            for made in (own, copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
                assert getattr(made, "_step_supports_amp_scaling", False) == bool(fused)


@pytest.mark.check
def test_complex_parameters():
    for name, given in FIRST:
        lists = [
            [torch.nn.Parameter(torch.complex(*torch.ones(2, 3, 4).unbind()))] for _ in range(2)
        ]
        theirs, own = [
            getattr(module, name)(mine, **given)
            for module, mine in zip((torch.optim, kf.optim), lists)
        ]
        for _ in range(3):
            drawn = torch.randn(3, 4, dtype=torch.complex64)
            for [p] in lists:
                p.grad = drawn.clone()
            theirs.step(), own.step()
        assert_same(*lists, rtol=2e-5, atol=2e-6)


def refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("name", dict.fromkeys(c[0] for c in CASES))
def test_refused(name):
    make = getattr(kf.optim, name)
    p = torch.nn.Parameter(torch.zeros(3))
    where = f"kf.optim.{name}"
    refused(lambda: make([p], lr=-1.0), ValueError, "learning rate: -1.0")
    refused(
        lambda: make([p], differentiable=True),
        ValueError,
        f"{where}: differentiable is True, expected False",
    )
    if "capturable" in make([p]).defaults:
        capturable = make([p], capturable=True)
        p.grad = torch.ones(3)
        refused(capturable.step, ValueError, rf"{where}: capturable is True and params\[0\] is on")
    p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,), check_invariants=True)
    refused(make([p]).step, RuntimeError, rf"{where}: params\[0\] has a sparse gradient")
    assert (p == 0).all()


def test_nothing_is_written_before_all_checks():
    params = parameters()
    gradients([params], 0)
    params[3].grad = torch.sparse_coo_tensor([[1]], [1.0], (7,), check_invariants=True)
    optimizer = kf.optim.AdamW(params)
    before = [p.detach().clone() for p in params]
    refused(optimizer.step, RuntimeError, r"params\[3\] has a sparse gradient")
    assert_same(before, params, rtol=0, atol=0)
