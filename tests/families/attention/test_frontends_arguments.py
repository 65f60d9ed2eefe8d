# SPDX-License-Identifier: Apache-2.0
"""Arguments of attention in Python: defaults, in every frontend."""

import inspect

import frontend
import numpy as np
import pytest


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scaled():
    """Functions with a scalar whose default follows from a size."""
    from kernel_fusion import _table

    found = _table.functions().items()
    return {name for name, (op, _) in found if any(v.rsqrt_of for v in op.forward.scalars)}


OFFSETS = np.array([0, 2, 5])
CALLS = [
    ("attention", (draw(2, 5, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 8))),
    ("causal_attention_varlen", (draw(5, 4, 16), draw(5, 2, 16), draw(5, 2, 8), OFFSETS, OFFSETS)),
]


@frontend.parametrize()
@pytest.mark.parametrize("name, given", CALLS, ids=[name for name, _ in CALLS])
def test_scale_is_that_of_the_dimension(kf, which, name, given):
    """Without `scale`, and with None, it is 1 / sqrt(dim)."""
    call = frontend.Frontend(which, kf)
    want = call(name, *given, scale=0.25)
    for more in ({}, {"scale": None}):
        assert np.array_equal(call(name, *given, **more), want)
    assert not np.array_equal(call(name, *given, scale=1.0), want)


def test_all_of_the_family_scale_by_the_dimension(kf, manifest):
    """The default of every function of the family; those of users' entries follow from it too."""
    family = {f["base"] for f in manifest["functions"] if f["family"] == "attention"}
    names = scaled()
    assert names == family & set(dir(kf.ops)) and len(names) > 10
    for name in names:
        function = getattr(kf.ops, name)
        assert inspect.signature(function).parameters["scale"].default is None
        assert "default 1 / sqrt(dim)" in function.__doc__


def test_a_graph_has_the_default(kf):
    """torch.compile traces it, with dimensions that are symbols too."""
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(draw(2, 5, 4, 16))
    want = kf.ops.attention(q, q, q, scale=0.25)
    for dynamic in (False, True):
        whole = torch.compile(kf.ops.attention, backend="eager", fullgraph=True, dynamic=dynamic)
        assert torch.equal(whole(q, q, q), want)
