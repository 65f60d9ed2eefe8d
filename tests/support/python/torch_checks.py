# SPDX-License-Identifier: Apache-2.0
"""Checks of one op on a device: values, gradients, opcheck, gradcheck, torch.compile."""

import torch
import torchops
from torchops import TOLERANCE, case, close, ids


def values_and_gradients(kf, f, device):
    """Compares each dtype with the formula in float64."""
    for dtype in sorted(
        {g["dtypes"][0] for g in torchops.FUNCTIONS if g["op"] == f["op"]} & set(TOLERANCE)
    ):
        want, given = case(f, dtype).reference()
        c = case(f, dtype).on(device)
        got = torchops.results(c.call(kf))
        for i, (g, w) in enumerate(zip(got, want)):
            assert g.device.type == device
            close(g.cpu(), w, TOLERANCE[dtype], f"{ids(f)} {dtype} result {i}")
        pairs = [(g, w) for g, w in zip(got, want) if g.is_floating_point() and g.requires_grad]
        ups = [
            torch.randn(
                w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
            ).to(g.dtype)
            for g, w in pairs
        ]
        mine = torch.autograd.grad(
            [g for g, _ in pairs], [c.tensors[n] for n in c.wanted], [u.to(device) for u in ups]
        )
        theirs = torch.autograd.grad(
            [w for _, w in pairs], [given[n] for n in c.wanted], [u.double() for u in ups]
        )
        for name, m, t in zip(c.wanted, mine, theirs):
            assert m.device.type == device and m.dtype == c.tensors[name].dtype
            close(m.cpu(), t, 8 * TOLERANCE[dtype], f"{ids(f)} {dtype} d{name}")


UNDEFINED = ("cross_entropy_soft",)  # Without classes kf gives NaN and PyTorch 0.


def of_no_elements(kf, f):
    """Compares shapes with each size 0 in turn, and all, with PyTorch's formula, if it
    is defined.
    """
    whole = torchops.sizes_of(f)
    for shape in (
        *(tuple(0 if i == at else n for i, n in enumerate(whole)) for at in range(len(whole))),
        (0,) * len(whole),
    ):
        c = case(f, "f32", shape=shape)
        # Labels without classes, an empty maximum, or formulas that PyTorch defines for some
        # inputs only.
        try:
            want, given = c.reference()
        except (IndexError, RuntimeError):
            want, given = None, None
        try:
            got = torchops.results(c.call(kf))
        except ValueError as e:
            sizes = dict(zip(c.op.rules.sizes, shape))
            refused = any(sizes[n] == 0 != sizes[other] for n, other in c.op.beside.items())
            assert want is None or refused, (ids(f), shape)
            assert "has no elements" in str(e), (ids(f), shape)
            continue
        except IndexError as e:  # an index into nothing, which PyTorch refuses as well
            assert want is None and "expected at least 0 and less than 0" in str(e), (ids(f), shape)
            continue
        pairs = [(i, g) for i, g in enumerate(got) if g.is_floating_point() and g.requires_grad]
        mine = torch.autograd.grad(
            [g for _, g in pairs],
            [c.tensors[n] for n in c.wanted],
            [torch.ones_like(g) for _, g in pairs],
        )
        if want is None or f["op"] in UNDEFINED and not shape[-1]:
            continue
        theirs = torch.autograd.grad(
            [want[i] for i, _ in pairs],
            [given[n] for n in c.wanted],
            [torch.ones_like(want[i]) for i, _ in pairs],
        )
        for m, t in (*zip(got, want), *zip(mine, (t.nan_to_num(nan=0.0) for t in theirs))):
            assert m.shape == t.shape and torch.allclose(
                m.double(), t.double(), 1e-4, 1e-4, equal_nan=True
            ), (ids(f), shape)


def opcheck(kf, f, device):
    """Runs opcheck on the directions of a function's calls."""
    from kernel_fusion.torch._schema import schema

    c, calls = torchops.recorded(kf, f, device)
    from kernel_fusion.torch import _formula

    directions = (
        (False, True) if f["backward"] and not _formula.spreads(c.op, f["activation"]) else (False,)
    )
    names = [schema(c.op, backward).overloads[-1] for backward in directions]
    assert [str(function) for function, _ in calls] == [
        f"kf.{name}" if "." in name else f"kf.{name}.default" for name in names
    ]
    for function, args in calls:
        torch.library.opcheck(function, args)
        whole = getattr(torch.ops.kf, function._schema.name.removeprefix("kf::")).default
        torch.library.opcheck(whole, args)
    if f["backward"]:
        function, args = calls[0]
        torch.library.opcheck(getattr(torch.ops.kf, c.op.name).default, leaves(c, args))


def leaves(c, args):
    """Returns an op's arguments, with gradients required where possible."""
    return [
        a.clone().requires_grad_() if t.name in c.wanted and a is not None else a
        for t, a in zip(c.op.forward.inputs, args)
    ] + [*args[len(c.op.forward.inputs) :]]


def of_the_op_itself(kf, f, device):
    """Checks direct calls of the torch op, also if told not to save for the backward."""
    c, calls = torchops.recorded(kf, f, device)
    args, s = leaves(c, calls[0][1]), c.op.forward
    want = torchops.results(c.call(kf))
    ups = [
        torch.randn(w.shape, generator=torch.Generator().manual_seed(1)).to(w)
        for w in want
        if w.requires_grad
    ]
    theirs = torch.autograd.grad(
        [w for w in want if w.requires_grad], [c.tensors[n] for n in c.wanted], ups
    )
    own = getattr(torch.ops.kf, c.op.name)
    for given in (args, [*args[:-1], False] if isinstance(args[-1], bool) else args):
        found = torchops.results(own(*given))
        got = [found[i] for i in s.results]
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
        mine = torch.autograd.grad(
            [g for g in got if g.requires_grad],
            [a for t, a in zip(s.inputs, args) if t.name in c.wanted],
            ups,
        )
        assert all(torch.equal(m, t) for m, t in zip(mine, theirs, strict=True)), ids(f)


def gradcheck(kf, f, device):
    c = case(f, "f64").on(device)
    tensors = [c.tensors[n] for n in c.wanted]
    assert torch.autograd.gradcheck(lambda *t: c.call(kf, **dict(zip(c.wanted, t))), tensors)


def compiled(kf, f, device, backend):
    """Checks that one graph with dynamic shapes gives the bits of eager mode, with opaque ops."""
    torch._dynamo.reset()
    own, kwargs = getattr(kf.ops, ids(f)), case(f).kwargs

    def call(tensors):
        return torchops.results(own(**tensors, **kwargs))

    graph = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    for seed, more in ((0, 0), (1, 2)):
        shape = torchops.sizes_of(f)
        c = case(f, "f32", seed, (shape[0] + more, *shape[1:])).on(device)
        got, want = graph(c.tensors), call(c.tensors)
        leaves = [c.tensors[n] for n in c.wanted]
        assert all(torch.equal(g, w) for g, w in zip(got, want))
        for g, w in zip(
            *(
                torch.autograd.grad(sum(r.sum() for r in found if r.requires_grad), leaves)
                for found in (got, want)
            )
        ):
            assert torch.equal(g, w)
