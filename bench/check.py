# SPDX-License-Identifier: Apache-2.0
"""Checks a result against float64 PyTorch and its autograd before it is timed.

Elementwise ops: the first and last rows, and a block of columns over all rows for reduced
gradients. Rows and reductions: every row, in parts whose reduced gradients are summed; with
dropout the first and last rows. Every element must be written. Tests compare fully, by bounds.
"""

import functools
import math

import numpy as np
import peers
import torch
from data import unwritten
from kfgen.model import shapes
from peers.elementwise import no_drop

# Relative to the result: a few roundings in f32, one ulp in 2 bytes. ABSOLUTE allows cancellation.
RELATIVE = {"f32": 2e-5, "f16": 2.0**-10, "bf16": 2.0**-7}
ABSOLUTE = 5e-6
OVER_ROWS = {
    "f32": 1e-4,
    "tf32": 4e-3,
    "f16": 4e-3,
    "bf16": 2e-2,
}  # ops over rows: relative to the result and to the mean magnitude
SMALL, COLS, PART = (
    1 << 16,
    16,
    1 << 25,
)  # elements of a part at an end; columns of a block; elements of a part if all are compared


class Wrong(AssertionError):
    pass


def outermost(case):
    """Returns the size along which results are independent."""
    return "channels" if case.f["form"] == "channels" else case.f["sizes"][0]


def _spans(n, step):
    return [(i, min(n, i + step)) for i in range(0, n, step)]


def parts(case):
    """Returns ([({size: slice}, whether sums are complete)], whether the parts cover the call)."""
    name = outermost(case)
    n = dict(zip(case.f["sizes"], case.sizes))[name]
    each = max(case.elements // n, getattr(peers.of(case.f), "EACH", lambda sizes: 0)(case.sizes))
    if case.f["family"] != "elementwise" and not case.f["dropout"]:
        return [({name: slice(*s)}, False) for s in _spans(n, max(1, PART // each))], True
    if case.f["form"] == "heads":  # with dropout: two heads, since the CPU draws the bits
        ends = [
            {size: slice(i, i + 1) for size, i in zip(case.f["sizes"][:2], at)}
            for at in ((0, 0), (n - 1, case.sizes[1] - 1))
        ]
        return [(end, False) for end in ends], False
    few = max(1, min(n, SMALL // each))
    found = [({name: slice(0, few)}, few == n), ({name: slice(n - few, n)}, few == n)]
    if len(case.sizes) == 1:
        middle = (n - few) // 2 // 8 * 8
        found.append(({name: slice(middle, middle + few)}, few == n))
    elif case.f["family"] == "elementwise" and any(a["role"] == "sum" for a in case.outputs):
        across, wide = case.f["sizes"][1], case.sizes[1]
        cols = min(wide, COLS if len(case.sizes) == 2 else 2)
        found += [
            ({across: slice(start, start + cols)}, True) for start in sorted({0, wide - cols})
        ]
    return found, False


def cut(tensor, a, part):
    """Cuts a tensor along each extent that is a size of the part, or twice one (packed)."""
    for axis, extent in enumerate(a["extents"]):
        for size, span in part.items():
            if extent == size:
                tensor = tensor[(slice(None),) * axis + (span,)]
            elif extent == ["*", 2, size]:
                tensor = torch.cat(
                    [half[(slice(None),) * axis + (span,)] for half in tensor.chunk(2, dim=axis)],
                    dim=axis,
                )
    return tensor


@functools.lru_cache(maxsize=16)
def keep_mask(seed, offset, p, sizes, bounds, device):
    """kf's dropout mask on a part.

    Keeps element i if 16-bit number i mod 8 of Philox4x32-10 at counter i / 8 is >= 65536 p.
    """
    from checks import philox_words

    index = np.zeros([1] * len(sizes), np.int64)
    for i, (start, stop) in enumerate(bounds):
        axis = np.arange(start, stop, dtype=np.int64) * math.prod(sizes[i + 1 :])
        index = index + axis.reshape([-1 if i == j else 1 for j in range(len(sizes))])
    groups, inverse = np.unique(index.reshape(-1) >> 3, return_inverse=True)
    word = philox_words(seed, offset, groups.astype(np.uint64))[
        inverse.reshape(-1), index.reshape(-1) & 7
    ].reshape(index.shape)
    return torch.from_numpy(word >= round(65536 * p)).to(device)


def _dropping(case, part, dropout, device):
    if not case.f["dropout"]:
        return no_drop
    seed, offset, p = dropout
    sizes = dict(zip(case.f["sizes"], case.sizes))
    masked = case.f["masked"]
    extents = dict(zip([size for size, _, _ in masked], shapes.mask_extents(masked, sizes)))
    bounds = tuple(part.get(name, slice(0, n)).indices(n)[:2] for name, n in extents.items())
    mask = keep_mask(seed, offset, p, tuple(extents.values()), bounds, device)
    return lambda y: torch.where(mask, y / (1 - p), 0.0)


def reference(case, inputs, part, dropout, scale=1.0):
    """Returns {output: float64 tensor} on a part; scale multiplies the first input."""
    f, family = case.f, peers.of(case.f)
    t = {a["name"]: cut(inputs[a["name"]], a, part) for a in case.inputs}
    t = {n: v.double() if v.is_floating_point() else v for n, v in t.items()}
    t[case.inputs[0]["name"]] *= scale
    if case.by_result:
        names = t | case.scalars
        exec("\n".join(case.by_result), {"torch": torch}, names)
        gradients = [
            a for a in f["arguments"] if a["role"] in ("out", "sum") and a["name"] not in case.skip
        ]
        return {
            a["name"]: names[a["name"] if a["name"] in names else a["same_as"]] for a in gradients
        }  # a peer's gradients do not share memory
    if f["bwd"] and f["op"] in getattr(family, "GRADIENT", {}):
        return family.GRADIENT[f["op"]](t, case.scalars)
    fn = peers.forward(
        f, case.scalars, _dropping(case, part, dropout, next(iter(t.values())).device)
    )
    if f["op"] == "cast":
        return {"out": t["x"]}
    one_pass = f["op"] in getattr(family, "ONE_PASS", ())
    if not f["bwd"] and not one_pass:
        return dict(zip(case.results, fn(t)))
    wanted = family.ONE_PASS[f["op"]] if one_pass else case.wanted
    leaves = [t[n].requires_grad_() for n in wanted]
    results = fn(t)
    seeds = (
        [torch.ones_like(r) for r in results] if one_pass else [t[f"d{r}"] for r in case.results]
    )
    found = {f"d{n}": g for n, g in zip(wanted, torch.autograd.grad(results, leaves, seeds))}
    return found | ({case.results[0]: results[0].detach()} if one_pass else {})


def _operand(tensor, kind, shape):
    """Converts to float64 and broadcasts to the result's shape."""
    t = tensor.double().cpu().numpy()
    return np.broadcast_to(t[None, :, None] if kind == "channel" else t, shape)


def undecided(case, inputs, part, dropout):
    """Returns {sum: tolerance for terms near a kink, which may take either branch}.

    The rule is that of the tests (kfgen's oracle): 0 without such terms.
    """
    import checks

    f, compute = case.f, "f32"
    t = {a["name"]: cut(inputs[a["name"]], a, part) for a in case.inputs}
    kernel = checks.kernel_of(f["op"], tuple(f["dtypes"]), True)
    bounds = dict(zip(f["sizes"], case.sizes))
    shape = tuple(len(range(*part.get(name, slice(None)).indices(n))) for name, n in bounds.items())
    env = case.scalars | {"keep": None, "keep_scale": 1.0}
    if f["dropout"]:
        env["keep"] = (
            _dropping(case, part, dropout, "cpu")(torch.ones(shape, dtype=torch.float64)).numpy()
            > 0
        )
        env["keep_scale"] = 1 / (1 - dropout[2])
    for s in kernel.operands:
        for name, x in zip(s.parts, t[s.name].chunk(len(s.parts), -1)) if s.name in t else ():
            env[name] = _operand(x, s.kind, shape)
    env |= {
        name: _operand(x, "elem", shape)
        for name, x in t.items()
        if name in (kernel.result, *(f"d{r}" for r in case.results))
    }
    bound = checks.bound_of(
        f["op"], tuple(f["dtypes"]), True, f["activation"], (), bool(case.by_result)
    )
    eps, tiny = checks.EPS[compute], checks.TINY[compute]
    near = np.broadcast_to(bound.undecided(env, eps, tiny, checks.MANTISSA[compute][2] / 4), shape)
    axes = tuple(i for i in range(len(shape)) if i != 1)
    count, found = near.sum(axis=axes), {}
    names = [name for stream in kernel.outputs for name in stream.parts]
    for name, (s, _, _) in zip(names, bound.evaluate(env, eps, tiny), strict=True):
        largest = np.broadcast_to(s, shape).max(axis=axes)
        found[name] = torch.from_numpy(
            np.where(count, 2.0 * count * largest, 0.0)
        )  # both branches have about this magnitude
    return found


def _elementwise(name, a, got, want, sums, where, moves=0.0):
    """Returns the largest error in units of the tolerance.

    A few elements may sit at a kink, where a rounding decides the branch. sums: number of terms of
    each sum (no sum may be off); moves: further tolerance for terms at a kink.
    """
    want = want.to(got.dtype).double()
    got = got.double()
    # Terms of a sum are of order one: the error grows with their number, not with the result.
    absolute = ABSOLUTE + 4 * RELATIVE["f32"] * math.sqrt(sums) + moves
    error = (got - want).abs() / (RELATIVE[a["dtype"]] * want.abs() + absolute)
    good = (error <= 1) | (got == want) | (got.isnan() & want.isnan())
    bad = good.numel() - int(good.sum())
    allowed = 0 if sums else 2 + good.numel() // 20000
    if not bad <= allowed or bool((got.isnan() & ~want.isnan()).any()):
        i = int((~good).reshape(-1).nonzero()[0])
        raise Wrong(
            f"{where}: {name}: {bad} of {good.numel()} wrong, first at {i}: "
            f"got {got.reshape(-1)[i]}, expected {want.reshape(-1)[i]}"
        )
    return float(torch.where(good & error.isfinite(), error, 0.0).max())


def _over_rows(case, name, got, want, where):
    """Returns the largest error, relative to result and mean magnitude, over the limit."""
    got, want = got.double(), want.double()
    allowed = max(
        OVER_ROWS[case.f["dtypes"][0]],
        getattr(peers.of(case.f), "LIMIT", {}).get(case.f["op"], lambda sizes: 0.0)(case.sizes),
    )
    by_row = getattr(peers.of(case.f), "ROWS_DIFFER", False) and want.dim() > 1
    error = (got - want).abs() / (
        want.abs() + (want.abs().mean(-1, keepdim=True) if by_row else want.abs().mean()) + 1e-30
    )
    error = torch.where(got == want, 0.0, error)
    worst = float(error.max()) / allowed
    if not worst <= 1:
        i = int(error.nan_to_num(nan=torch.inf).argmax())
        raise Wrong(
            f"{where}: {name}: error {worst * allowed:.3g}, allowed {allowed:.3g}, at {i}: "
            f"got {got.reshape(-1)[i]}, expected {want.reshape(-1)[i]}"
        )
    return worst


def kf(case, inputs, outputs, dropout, where):
    """Returns the largest error over its tolerance, or raises Wrong."""
    for name, tensor in outputs.items():
        if unwritten(tensor):
            raise Wrong(f"{where}: {name}: {unwritten(tensor)} elements were not written")
    found, whole = parts(case)
    arguments = {a["name"]: a for a in case.outputs}
    worst, added = 0.0, {}
    for part, complete in found:
        for name, want in reference(case, inputs, part, dropout).items():
            a = arguments.get(name)
            if a is None:
                continue
            sums = (
                not set(part) & set(a["shape"]) and not complete and a["kind"] != "elem"
            )  # a partial sum
            if sums:
                added[name] = added.get(name, 0) + want
                continue
            got = cut(outputs[name], a, part)
            if case.f["family"] != "elementwise":
                worst = max(worst, _over_rows(case, name, got, want, where))
                continue
            terms = case.elements // case.sizes[1] if a["role"] == "sum" else 0
            try:
                worst = max(worst, _elementwise(name, a, got, want, terms, where))
            except Wrong:
                if not terms:
                    raise
                worst = max(
                    worst,
                    _elementwise(
                        name,
                        a,
                        got,
                        want,
                        terms,
                        where,
                        undecided(case, inputs, part, dropout)[name].to(got.device),
                    ),
                )
    for name, want in added.items() if whole else ():
        worst = max(worst, _over_rows(case, name, outputs[name], want, where))
    return worst


def peer(case, inputs, found, where):
    """Checks that a peer computes the same function, in its own accuracy.

    Its dropout mask differs, so with dropout only shapes are compared.
    """
    arguments = {a["name"]: a for a in case.f["arguments"]}
    for name, got in found.items():
        if tuple(got.shape) != case.shape(arguments[name]):
            raise Wrong(
                f"{where}: {name}: shape {tuple(got.shape)}, expected {case.shape(arguments[name])}"
            )
    if case.f["dropout"]:
        return
    for part, complete in parts(case)[0][: 2 if case.f["family"] == "elementwise" else 1]:
        want = reference(case, inputs, part, None)
        for name, tensor in found.items():
            a = arguments[name]
            if a["kind"] != "elem" and not set(part) & set(a["shape"]) and not complete:
                continue
            got, ref = cut(tensor, a, part).double(), want[name].double()
            both = got.isfinite() & ref.isfinite()
            got, ref = got[both], ref[both]
            # Eager rounds every intermediate, so a 2-byte quotient may cross a kink.
            limit = 1e-3 if case.f["dtypes"] == ["f32"] else 0.1
            terms = case.elements // case.sizes[1] if a["role"] == "sum" else 0
            off = (
                ((got - ref).abs() > limit * (ref.abs() + ref.abs().median() + math.sqrt(terms)))
                .double()
                .mean()
            )
            if not off <= 0.05:
                raise Wrong(f"{where}: {name}: {100 * float(off):.1f} % of the elements differ")
