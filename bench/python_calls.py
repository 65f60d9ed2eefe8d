# SPDX-License-Identifier: Apache-2.0
"""Measures kf.ops and autograd through Python, forward and backward, beside PyTorch's formula.

PyTorch runs eager and compiled; on a GPU the C launchers on preallocated tensors are measured too.
A case is a forward with its gradient. Install kernel_fusion first: `pip install .`.
"""

import functools
import math

import check
import contenders
import kflib
import peers
import peers.elementwise as maps
import torch
from peers.elementwise import TORCH


class Both:
    """Both directions of a case, with `sets` sets of distinct tensors."""

    def __init__(self, case, pool, sets):
        self.case, self.forward, self.gradient, self.pool = case, case, case.gradient, pool
        self.bytes = case.bytes + (self.gradient.bytes if self.gradient else 0)
        self.given = [pool.tensors(case, i)[0] for i in range(sets)]
        self.results = [n for n in case.results]
        shapes = {a["name"]: a for a in case.f["arguments"]}
        self.ups = (
            [
                [self._own(shapes[n], f"d{n}", i, "normal") for n in self.results]
                for i in range(sets)
            ]
            if self.gradient
            else []
        )
        gradients = {a["name"] for a in self.gradient.f["arguments"]} if self.gradient else ()
        self.wanted = [a["name"] for a in case.inputs if f"d{a['name']}" in gradients]

    def _own(self, a, name, i, how=None):
        shape, dtype = self.case.shape(a), TORCH[a["dtype"]]
        return self.pool.take(("python", name, dtype, i), math.prod(shape), dtype, how).view(shape)

    def run(self, i, call):
        """Returns [results and gradients] of call({input: tensor}) -> results."""
        if not self.gradient:
            return call(self.given[i])
        t = {n: v.detach() for n, v in self.given[i].items()}
        leaves = [t[n].requires_grad_() for n in self.wanted]
        results = call(t)
        return [*results, *torch.autograd.grad(results, leaves, self.ups[i])]

    # ---- kf through Python

    def kf(self, rng=None):
        """Returns call({input: tensor}) through kf.ops."""
        name, words, more = self.named()
        own = function(name)
        more = more | ({"rng": rng} if rng else {})

        def call(t):
            found = own(**{word: t[n] for word, n in words.items() if n in t}, **more)
            return list(found) if isinstance(found, tuple) else [found]

        return call

    def named(self):
        """Returns (name in kf.ops, {argument: tensor's name}, other arguments)."""
        f = self.case.f
        scalars = self.case.scalars | ({"p": contenders.DROPOUT[2]} if f["dropout"] else {})
        aliases = [
            a
            for a in kflib.manifest()["aliases"]
            if (a["op"], a["activation"]) == (f["op"], f["activation"])
        ]
        if aliases:
            words = {a["name"]: a["of"] for a in aliases[-1]["arguments"]}
            name = aliases[-1]["name"]
        else:
            words = {a["name"]: a["name"] for a in self.case.inputs} | {s: s for s in f["scalars"]}
            name = (
                f["name"]
                .removeprefix("kf_cpu_")
                .removeprefix("kf_")
                .removesuffix("_" + "_".join(f["dtypes"]))
            )
        more = {word: scalars[n] for word, n in words.items() if n in scalars}
        return (
            name,
            {w: n for w, n in words.items() if n not in scalars},
            more | ({"dim": 1} if f["family"] == "reduction" else {}),
        )

    # ---- the launchers

    def launchers(self, lib, stream):
        """Returns (call of both directions on a set, forward outputs, gradient outputs,
        arguments).
        """
        calls, made, gradients, inputs = [], [], [], []
        f, g = self.forward, self.gradient
        for i, given in enumerate(self.given):
            outputs = {
                a["name"]: self._own(a, a["name"], i)
                for a in f.f["arguments"]
                if a["role"] == "out"
                and a["name"] not in f.skip
                and (not a["null"] or a["name"] in g.saved)
            }
            grads = {a["name"]: self._own(a, f"launched {a['name']}", i) for a in g.outputs}
            read = given | outputs | {f"d{n}": up for n, up in zip(self.results, self.ups[i])}
            read = {a["name"]: read[a["name"]] for a in g.inputs}
            calls.append(
                (
                    contenders.bound(f, f.f, lib, self.pool, given, outputs, stream),
                    contenders.bound(g, g.f, lib, self.pool, read, grads, stream),
                )
            )
            made.append(outputs), gradients.append(grads), inputs.append(read)
        return lambda i: [call() for call in calls[i]], made, gradients, inputs

    # ---- PyTorch

    def torch(self, args, compiled):
        fn = peers.forward(
            self.case.f, self.case.scalars, maps.torch_dropout(contenders.DROPOUT[2])
        )
        return torch.compile(fn, fullgraph=True, dynamic=False, mode=args.mode) if compiled else fn

    def peers(self, args):
        """Returns {peer: call(set index)} of PyTorch."""
        found = {}
        for name in ("eager", "compile"):
            if name in self.case.peers and not (name == "compile" and args.no_compile):
                found[name] = functools.partial(self.run, call=self.torch(args, name == "compile"))
        return found

    # ---- correctness

    def check(self, launched, key):
        """Returns the largest error of kf's results and gradients divided by its tolerance."""
        seed, offset, _ = contenders.DROPOUT
        found = self.run(0, self.kf((seed, offset) if self.case.f["dropout"] else None))
        results = dict(zip(self.results, found))
        worst = check.kf(
            self.case,
            self.given[0],
            {n: t.detach() for n, t in results.items()},
            contenders.DROPOUT,
            key,
        )
        if not self.gradient:
            return worst
        grads = {f"d{n}": t for n, t in zip(self.wanted, found[len(self.results) :])}
        given = launched[3][0] | {n: t.detach() for n, t in results.items() if n in launched[3][0]}
        return max(worst, check.kf(self.gradient, given, grads, contenders.DROPOUT, key))


def function(name):
    try:
        import kernel_fusion as kf
    except ImportError as error:
        raise SystemExit(
            f"bench: this set calls kf from Python, which does not find it: pip install . ({error})"
        ) from error
    return getattr(kf.ops, name)


def measure(case, lib, pool, timer, args):
    """Returns (result row, basis of its bytes, times) of the forward or of both directions."""
    if "compile" in case.peers:
        torch._dynamo.reset()
    sets = contenders.sets_of(case, args.backend)
    both = Both(case, pool, sets)
    row = {
        "function": f"kf.ops.{both.named()[0]}",
        "op": case.f["op"],
        "activation": case.f["activation"],
        "bwd": False,
        "directions": "forward and backward" if case.gradient else "forward",
        "dtypes": case.f["dtypes"],
        "family": case.f["family"],
        "variant": case.variant,
        "at": "",
        "sizes": list(case.sizes),
        "bytes": both.bytes,
        "sets": sets,
    }
    stream = timer.stream.cuda_stream if args.backend == "cuda" else 0
    launched = both.launchers(lib, stream) if "launchers" in case.peers else None
    if launched:
        launched[0](0)
    row["error"] = round(both.check(launched, case.key), 3)
    own = both.kf()
    timed = {
        "kf": lambda i: both.run(i, own),
        **({"launchers": launched[0]} if launched else {}),
        **both.peers(args),
        **contenders.copy_calls(both, pool, sets, args.backend),
    }
    return row, both, timer.measure(timed, sets, args.rounds)
