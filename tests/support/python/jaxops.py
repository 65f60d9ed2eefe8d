# SPDX-License-Identifier: Apache-2.0
"""Calls of kf.jax with the tensors of torchops' cases, and the same calls of kf.ops."""

import jax
import numpy as np
import torch
import torchops
from jax import numpy as jnp
from torchops import case, ids, results

# For jax.shard_map; before anything uses a device.
jax.config.update("jax_num_cpu_devices", 4)
FORWARD = torchops.of_each_op(torchops.FUNCTIONAL)
BOTH = torchops.of_each_op(torchops.PLAIN)


def of_each_family(found):
    """Selects one function per family."""
    return list({f["family"]: f for f in reversed(found)}.values())


def array(t):
    """Converts a tensor, with its bits."""
    t = t.detach().cpu()
    if t.dtype == torch.bfloat16:
        return jnp.asarray(t.view(torch.int16).numpy().view(jnp.bfloat16))
    return jnp.asarray(t.numpy().astype(np.int32) if t.dtype == torch.int64 else t.numpy())


def function(f):
    import kernel_fusion.jax as kj

    return getattr(kj, ids(f))


def arrays(c):
    return {name: array(t) for name, t in c.tensors.items()}


def bits(x):
    """Returns an array's bits, indices as int64."""
    x = np.asarray(array(x) if isinstance(x, torch.Tensor) else x)
    return x.astype(np.int64) if x.dtype.kind == "i" else x.view(f"u{x.dtype.itemsize}")


def same(got, want, what=""):
    assert got.shape == tuple(want.shape), (what, got.shape, want.shape)
    assert np.array_equal(bits(got), bits(want)), (what, got, want)


def equals_pytorch(kf, f, dtype="f32", device="cpu"):
    """Compares results and gradients inside jax.jit with those of PyTorch tensors, by bits."""
    with jax.default_device(jax.devices(device)[0]):
        _equals_pytorch(kf, f, case(f, dtype).on(device))


def _equals_pytorch(kf, f, c):
    given, own = arrays(c), function(f)
    want = results(c.call(kf))
    # PyTorch updates running statistics in place; in JAX they are results.
    want += [c.tensors[t.place_of].clone() for t in c.op.forward.outputs if t.place_of]
    fixed = {n: x for n, x in given.items() if n not in c.wanted}
    leaves = [given[n] for n in c.wanted]

    def call(*values):
        return results(own(**fixed, **dict(zip(c.wanted, values)), **c.kwargs))

    if not c.wanted:
        for g, w in zip(jax.jit(call)(), want, strict=True):
            same(g, w, ids(f))
        return
    pairs = [i for i, w in enumerate(want) if w.requires_grad]
    generator = torch.Generator().manual_seed(1)
    ups = [torch.randn(want[i].shape, generator=generator).to(want[i]) for i in pairs]

    def gradients(*values):
        found, back = jax.vjp(call, *values)
        given_ups = iter(array(u) for u in ups)
        return found, back(
            [
                next(given_ups)
                if i in pairs
                else np.zeros(r.shape, jax.dtypes.float0)
                if r.dtype.kind in "iu"
                else jnp.zeros_like(r)
                for i, r in enumerate(found)
            ]
        )

    got, mine = jax.jit(gradients)(*leaves)
    for g, w in zip(got, want, strict=True):
        same(g, w, ids(f))
    theirs = torch.autograd.grad([want[i] for i in pairs], [c.tensors[n] for n in c.wanted], ups)
    for name, m, t in zip(c.wanted, mine, theirs, strict=True):
        same(m, t, f"{ids(f)}: d{name}")


def close(got, want, what=""):
    got, want = (np.asarray(x).astype(np.float64) for x in (got, want))
    assert got.shape == want.shape, (what, got.shape, want.shape)
    assert np.allclose(got, want, 1e-5, 1e-6, equal_nan=True), (what, np.abs(got - want).max())


def differentiable(c, found):
    """Sum of the results that have a gradient, for jax.grad."""
    return sum(r.sum() for r in found if r.dtype.kind == "f")


def vmapped(f, count=3):
    """Compares jax.vmap with a call per element: all arrays batched, then only the first."""
    own, several = function(f), [case(f, "f32", seed) for seed in range(count)]
    c, given = several[0], [arrays(one) for one in several]
    wanted = [n for n in c.wanted if c.op.backward]

    def call(tensors):
        return results(own(**tensors, **c.kwargs))

    def gradients(tensors):
        fixed = {n: x for n, x in tensors.items() if n not in wanted}
        leaves = {n: tensors[n] for n in wanted}
        return jax.grad(lambda own: differentiable(c, call(fixed | own)))(leaves)

    first = c.op.forward.template.name
    for batched in (list(c.tensors), [first]):
        stacked = {
            n: jnp.stack([one[n] for one in given]) if n in batched else given[0][n]
            for n in c.tensors
        }
        axes = {n: 0 if n in batched else None for n in c.tensors}
        each = [{n: x[i] if n in batched else x for n, x in stacked.items()} for i in range(count)]
        for compute in (call, gradients) if wanted else (call,):
            got = jax.tree.leaves(jax.vmap(compute, (axes,))(stacked))
            want = [jax.tree.leaves(compute(one)) for one in each]
            for i, g in enumerate(got):
                close(g, np.stack([w[i] for w in want]), f"{ids(f)} {batched} {i}")


def check_gradients(f):
    """Compares gradients with finite differences in float64."""
    from jax.test_util import check_grads

    c = case(f, "f64")
    with jax.enable_x64(True):
        given, own = arrays(c), function(f)
        fixed = {n: x for n, x in given.items() if n not in c.wanted}

        def call(*values):
            found = results(own(**fixed, **dict(zip(c.wanted, values)), **c.kwargs))
            # Running statistics, which follow the results, have no gradient.
            return [r for r in found[: len(c.op.forward.results)] if r.dtype.kind == "f"]

        check_grads(call, [given[n] for n in c.wanted], 1, ["rev"], 1e-5, 1e-5, 1e-6)
