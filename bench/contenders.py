# SPDX-License-Identifier: Apache-2.0
"""The contenders of a case: kf's launcher, a copy of as many bytes, and the peers.

Each is a function of the index of a tensor set.
"""

import numpy as np
import peers
import peers.elementwise as maps
import torch

DROPOUT = (0x1234567890ABCDEF, 77, 0.1)  # seed, offset, p
COLD_BYTES = 192 << 20  # over three times the largest L2 in use
WHOLE = 256 << 20  # larger tensors evict themselves: one set is cold


def bound(case, f, lib, pool, inputs, outputs, stream, more=()):
    """Binds a launcher to tensors; missing ones are NULL. more: further arguments by name."""
    need = lib.workspace_bytes(f, list(case.sizes))
    seed, offset, p = DROPOUT
    values = (
        {k: case.scalars[k] for k in f.get("scalars", case.f["scalars"])}
        | dict(more)
        | dict(zip(f["sizes"], case.sizes))
    )
    values |= {"p": p, "seed": seed, "offset": offset}
    values |= {
        "workspace": pool.scratch(need, "workspace").data_ptr() if need else None,
        "workspace_bytes": need,
    }
    for a in f["arguments"]:
        if a["role"] in ("in", "out", "sum"):
            there = inputs if a["role"] == "in" else outputs
            tensor = there.get(a["name"], outputs.get(a["same_as"]) if case.shared else None)
            values[a["name"]] = None if a["unread"] or tensor is None else tensor.data_ptr()
    call = lib.bind(f, values, stream)

    def checked():
        if status := call():
            raise RuntimeError(f"{f['name']}: {lib.string(status)} ({lib.detail})")

    return checked


def fill_saved(case, lib, pool, inputs, stream):
    """Computes the saved inputs of a gradient by kf's forward."""
    outputs = {n: inputs[n] for n in case.saved}
    for a in case.forward["arguments"]:
        if (
            a["role"] == "out"
            and a["name"] not in outputs
            and not a["null"]
            and a["name"] not in case.skip
        ):
            outputs[a["name"]] = pool.scratch(case.size(a), "forward", a["name"])
    bound(case, case.forward, lib, pool, inputs, outputs, stream)()


def any_calls(case, lib, pool, data, stream, ids):
    """Calls by the run-time activation variant. ids: {activation: number}."""
    names = [a["name"] for a in case.f["arguments"] if a["role"] == "act_scalar"]
    held = np.array(
        [case.scalars[n] for n in names] + [0.0],
        np.float64 if case.f["dtypes"][0] == "f64" else np.float32,
    )
    given = {"activation": ids[case.f["activation"]], "activation_scalars": held.ctypes.data}
    unread = {a["name"] for a in case.f["arguments"] if a.get("unread")}
    calls = [
        bound(
            case,
            case.any,
            lib,
            pool,
            {n: t for n, t in inputs.items() if n not in unread},
            outputs,
            stream,
            given,
        )
        for inputs, outputs in data
    ]
    return lambda i, held=held: calls[i]()


def kf_calls(case, lib, pool, data, stream):
    """One bound call per tensor set."""
    calls = [bound(case, case.f, lib, pool, inputs, outputs, stream) for inputs, outputs in data]
    return lambda i: calls[i]()


def autograd(case, fn, data):
    """Gradients by PyTorch's autograd, with the graph kept.

    The forward runs once per tensor set, unless the op is forward and backward in one.
    """
    one_pass = case.f["op"] in getattr(peers.of(case.f), "ONE_PASS", ())
    wanted, kept = peers.of(case.f).ONE_PASS[case.f["op"]] if one_pass else case.wanted, {}

    def run(i):
        t = {n: v.detach() for n, v in data[i][0].items()}
        leaves = [t[n].requires_grad_() for n in wanted]
        return fn(t), leaves, t

    def call(i):
        if one_pass:
            results, leaves, _ = run(i)
            return [
                results[0].detach(),
                *torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results]),
            ]
        if i not in kept:
            kept[i] = run(i)
        results, leaves, t = kept[i]
        return torch.autograd.grad(
            results,
            leaves,
            [t[f"d{n}"].to(r.dtype) for n, r in zip(case.results, results)],
            retain_graph=True,
        )

    return call, case.results[:one_pass] + [f"d{n}" for n in wanted]


def out_calls(case, data):
    """PyTorch's functions that write into given tensors; None where it has none."""
    from peers import elementwise_out, rows_out

    f, p = case.f, DROPOUT[2]
    mine = [{n: torch.empty_like(t) for n, t in outputs.items()} for _, outputs in data]
    if f["family"] == "elementwise":
        runs = [
            elementwise_out.build(f, inputs, outputs, p) for (inputs, _), outputs in zip(data, mine)
        ]
        if not all(runs):
            return None
    elif make := rows_out.OUT.get((f["op"], f["bwd"])):
        runs = [make(inputs, outputs, case.scalars, p) for (inputs, _), outputs in zip(data, mine)]
    else:
        return None
    names = [a["name"] for a in case.outputs] if f["bwd"] else case.results

    def call(i):
        runs[i]()
        return [mine[i][n] for n in names]

    return call, names


def peer_calls(case, data, args, library=None):
    """Returns {peer: (call, names of results)}; library: {name: maker} of other libraries."""
    f, p, found = case.f, DROPOUT[2], {}
    if not peers.known(f):
        return {}
    fn, outs = (
        peers.forward(f, case.scalars, maps.torch_dropout(p)),
        [a["name"] for a in case.outputs],
    )
    gradient = f["bwd"] or f["op"] in getattr(peers.of(f), "ONE_PASS", ())

    def compiled(function):
        return torch.compile(function, fullgraph=True, dynamic=False, mode=args.mode)

    for peer in case.peers:
        if (
            peer == "any"
            or peer.startswith("compile")
            and args.no_compile
            or peer == "compile_autograd"
            and not gradient
        ):
            continue
        if peer in ("cub", "cublas"):
            if peer in (library or {}) and f["family"] == "reduction" and not f["bwd"]:
                found[peer] = library[peer](case), None
        elif peer == "eager_out":
            if call := out_calls(case, data):
                found[peer] = call
        elif peer not in ("eager", "compile", "compile_autograd"):
            own = getattr(peers.of(f), peer, None)
            if call := own and own(case, data):
                found[peer] = call
        elif peer == "compile" and f["bwd"]:
            if f["op"] in getattr(peers.of(f), "BACKWARD", {}):
                closed = compiled(
                    maps.backward(
                        f,
                        case.outputs,
                        case.scalars,
                        maps.random_mask(p) if f["dropout"] else maps.no_drop,
                    )
                )
                found[peer] = (lambda i, g=closed: g(data[i][0])), outs
        elif gradient:
            if peer != "compile":
                found[peer] = autograd(
                    case, compiled(fn) if peer == "compile_autograd" else fn, data
                )
        else:
            run = compiled(fn) if peer == "compile" else fn
            found[peer] = (lambda i, run=run: run(data[i][0])), case.results
    return found


def peak(call):
    """Peak bytes of a call, results included, above what is allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call(0)
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


def copied(moved):
    """Bytes of the copy that moves as many, within 0.4 %.

    Sizes with few factors of two copy at two thirds of the speed (65,537 pages of 4 KiB at 2.75
    TB/s, 65,536 at 4.2).
    """
    unit = max(4096, 1 << max(moved.bit_length() - 9, 0))
    return max(moved // 2 // unit, 1) * unit


def copy_calls(case, pool, sets, backend):
    half = copied(case.bytes)
    pairs = [
        (
            pool.scratch(half, "source", i, how="normal")[: half // 4],
            pool.scratch(half, "target", i)[: half // 4],
        )
        for i in range(sets)
    ]

    def call(i):
        pairs[i][1].copy_(pairs[i][0])

    return {"copy": call} if backend == "cuda" else {"copy_1": call, "copy": call}


def sets_of(case, backend):
    """Number of tensor sets to rotate through, so that none is in the cache."""
    if backend == "cpu":
        return 1
    bytes_of = [case.size(a) for a in case.inputs + case.outputs if not a["unread"]]
    along = [
        size for size in bytes_of if 2 * size >= max(bytes_of)
    ]  # a bias, a table or labels may stay in the cache
    return 1 if min(along) >= WHOLE else max(3, -(-COLD_BYTES // case.bytes))


def libraries(args, pool, timer, flags):
    """Returns {peer: case -> call} of other libraries: CUB's sum of as many bytes."""
    if args.backend != "cuda" or args.shard:
        return {}
    from peers import library

    cub = library.cub(args.build_dir / "cub", flags)

    def make(case):  # rotates through as many tensors as kf, or it would read from the cache
        calls = [
            cub(
                pool.scratch(case.bytes, "cub", i, how="normal")[: case.bytes // 4],
                timer.stream.cuda_stream,
            )
            for i in range(sets_of(case, args.backend))
        ]
        return lambda i: calls[i]()

    return {"cub": make}
