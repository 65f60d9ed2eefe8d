# SPDX-License-Identifier: Apache-2.0
"""The benchmark driver: builds the launchers of a set of cases, checks each against float64, times it beside its peers.

    python3 bench/bench.py --backend cuda --set roofline --out bench/results/h200/roofline.json
    python3 bench/bench.py --backend cuda --set compile --filter gelu --out bench/results/h200/compile.json
    python3 bench/bench.py --backend cpu --set family --threads 2 --out bench/results/cpu/family.json

Cases are data (shapes.toml), bytes come from the manifest. Times are medians over interleaved rounds; a percentage of copy
is of a copy of as many bytes, timed in the same rounds. A result that is wrong is not timed, and fails the run.
"""

import argparse
import gc
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "support")]

import store  # noqa: E402

DROPOUT = (0x1234567890ABCDEF, 77, 0.1)  # seed, offset, p
COLD_BYTES = 192 << 20                   # three times the largest L2 in use, and a little
WHOLE = 256 << 20                        # tensors from here on evict themselves: one set of them is cold

OUTPUTS = "kf and eager_out write preallocated tensors; eager and torch.compile return fresh ones from PyTorch's allocator"
NAME = {"cuda": "name", "cpu": "cpu_name"}
UNITS = {"us": "microseconds per call, median", "iqr_us": "interquartile range of the samples", "bytes": "every tensor of the call once",
         "gbps": "1e9 bytes per second", "percent_of_copy": "time of a copy of as many bytes / time, in percent",
         "speedup": "peer's time / kf's time", "error": "largest error / its tolerance, 1 is the limit"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--backend", choices=("cpu", "cuda"), required=True)
    p.add_argument("--set", required=True, help="a [set.NAME] of shapes.toml")
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--filter", default="", help="regular expression over function names")
    p.add_argument("--append", action="store_true", help="keep the rows of --out that this run does not measure")
    p.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no case after so many seconds")
    p.add_argument("--rounds", type=int, default=5, help="each goes through the contenders forth and back")
    p.add_argument("--threads", type=int, default=2, help="cpu: on every side")
    p.add_argument("--flags", help="the compiler's, instead of the tests' ones")
    p.add_argument("--mode", default="default", help="torch.compile's")
    p.add_argument("--no-compile", action="store_true", help="leave the torch.compile peers out")
    p.add_argument("--jobs", type=int, default=min(12, os.cpu_count()), help="cuda: processes that fill the compile cache first")
    p.add_argument("--shard", help=argparse.SUPPRESS)
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    return p.parse_args()


def kf_calls(case, lib, pool, data):
    """One bound call per tensor set."""
    f, calls = case.f, []
    need = lib.workspace_bytes(f, list(case.sizes))
    workspace = pool.scratch(need, "workspace").data_ptr() if need else None
    seed, offset, p = DROPOUT
    for inputs, outputs in data:
        values = dict(zip(f["sizes"], case.sizes)) | f["scalars"] | {
            "workspace": workspace, "workspace_bytes": need, "p": p, "seed": seed, "offset": offset}
        for a in f["arguments"]:
            if a["role"] == "in":
                values[a["name"]] = None if a["unread"] else inputs[a["name"]].data_ptr()
            elif a["role"] in ("out", "sum"):
                tensor = outputs.get(a["name"], outputs.get(a["same_as"]) if case.shared else None)
                values[a["name"]] = None if tensor is None else tensor.data_ptr()
        calls.append(lib.bind(f, values, STREAM))

    def call(i):
        if status := calls[i]():
            raise RuntimeError(f"{f['name']}: {lib.string(status)} ({lib.detail})")
    return call


def autograd(case, fn, names, data):
    """The gradients by PyTorch's autograd, its graph kept: the forward pass runs once per tensor set."""
    import torch
    wanted = [n for n in names if any(a["name"] == f"d{n}" for a in case.f["arguments"])]
    kept = {}

    def call(i):
        if i not in kept:
            t = {n: data[i][0][n].detach() for n in names}
            leaves = [t[n].requires_grad_() for n in wanted]
            kept[i] = fn(*(t[n] for n in names)), leaves
        out, leaves = kept[i]
        return torch.autograd.grad(out, leaves, data[i][0]["dout"], retain_graph=True)
    return call, [f"d{n}" for n in wanted]


def peer_calls(case, data, args):
    """{peer: (call, names of its results)}"""
    import eager_out
    import peers
    import torch
    f, p = case.f, DROPOUT[2]
    names, fn = peers.forward(f, peers.torch_dropout(p))
    outs = [a["name"] for a in case.outputs]
    drawn = [[inputs[n] for n in names] for inputs, _ in data]
    found = {}

    def compiled(function):
        return torch.compile(function, fullgraph=True, dynamic=False, mode=args.mode)

    for peer in case.peers:
        if peer.startswith("compile") and args.no_compile or peer == "compile_autograd" and not f["bwd"]:
            continue
        if peer == "eager_out":
            mine = [{n: torch.empty_like(t) for n, t in outputs.items()} for _, outputs in data]
            runs = [eager_out.build(f, inputs, outputs, p) for (inputs, _), outputs in zip(data, mine)]

            def call(i, runs=runs, mine=mine):
                runs[i]()
                return [mine[i][n] for n in outs]
            found[peer] = call, outs
        elif peer == "compile" and f["bwd"]:
            inputs_of, closed = peers.backward(f, case.outputs, peers.random_mask(p) if f["dropout"] else peers.no_drop)
            gradient = compiled(closed)
            given = [[inputs[n] for n in inputs_of] for inputs, _ in data]
            found[peer] = (lambda i, g=gradient, given=given: g(*given[i])), outs
        elif f["bwd"]:
            found[peer] = autograd(case, compiled(fn) if peer == "compile_autograd" else fn, names, data)
        else:
            forward = compiled(fn) if peer == "compile" else fn
            found[peer] = (lambda i, g=forward: (g(*drawn[i]),)), outs
    return found


def copy_calls(case, pool, sets, backend):
    half = case.bytes // 8192 * 4096  # whole pages: a copy of an odd number of bytes runs at two thirds of the speed
    pairs = [(pool.scratch(half, "source", i, random=True), pool.scratch(half, "target", i)) for i in range(sets)]

    def call(i):
        pairs[i][1].copy_(pairs[i][0])
    return {"copy": call} if backend == "cuda" else {"copy_1": call, "copy": call}


def sets_of(case, backend):
    if backend == "cpu":
        return 1
    least = min(case.bytes, *(case.elements * (2 if "16" in a["dtype"] else 4) for a in case.outputs if a["kind"] in ("elem", "half")))
    return 1 if least >= WHOLE else max(3, -(-COLD_BYTES // case.bytes))


def measure(case, lib, pool, timer, args):
    """One row of the results."""
    import check
    import data as tensors
    import torch
    if "compile" in case.peers:
        torch._dynamo.reset()  # else the next function of the same code would count as a recompilation
    sets = sets_of(case, args.backend)
    data = [pool.tensors(case, i) for i in range(sets)]
    row = {"function": case.f[NAME[args.backend]], "op": case.f["op"], "activation": case.f["activation"],
           "bwd": case.f["bwd"], "dtypes": case.f["dtypes"], "sizes": list(case.sizes), "bytes": case.bytes, "sets": sets}
    if case.skip:
        row["not_computed"] = list(case.skip)
    for tensor in data[0][1].values():
        tensors.poison(tensor)
    kf = kf_calls(case, lib, pool, data)
    kf(0)
    row["error"] = round(check.kf(case, *data[0], DROPOUT, case.key), 3)

    contenders, wrong = {"kf": kf, **copy_calls(case, pool, sets, args.backend)}, {}
    for name, (call, names) in peer_calls(case, data, args).items():
        try:
            check.peer(case, data[0][0], dict(zip(names, call(0))), f"{case.key} {name}")
            contenders[name] = call
        except Exception as error:  # noqa: BLE001 (a peer that fails is reported, and the others are timed)
            wrong[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    times = timer.measure(contenders, sets, args.rounds) | wrong
    return row | figures(case, times)


def figures(case, times):
    us = times["kf"]["us"]
    copy = min(times[c]["us"] for c in ("copy", "copy_1") if c in times)
    return {"times": times, "gbps": case.bytes / us * 1e-3, "copy_gbps": case.bytes / copy * 1e-3, "percent_of_copy": 100 * copy / us,
            "speedup": {name: t["us"] / us for name, t in times.items() if "us" in t and name not in ("kf", "copy", "copy_1")}}


def line(row):
    sizes = "x".join(map(str, row["sizes"]))
    if "wrong" in row:
        return f"{row['function']:<40} {sizes:<16} WRONG  {row['wrong']}"
    peers = "  ".join(f"{n} {s:.2f}x" for n, s in row["speedup"].items())
    failed = "  ".join(f"{n} FAILED" for n, t in row["times"].items() if "failed" in t)
    return (f"{row['function']:<40} {sizes:<16} {row['times']['kf']['us']:>9.1f} us  {row['gbps']:>7.1f} GB/s  "
            f"{row['percent_of_copy']:>5.1f} % of copy  {peers}  {failed}").rstrip()


def write(args, header, rows, left):
    if args.out is None:
        return
    kept = []
    if args.append and header.get("kept"):
        new = {(r["function"], tuple(r["sizes"])) for r in rows}
        kept = [r for r in header["kept"] if (r["function"], tuple(r["sizes"])) not in new]
    store.write(args.out, {k: v for k, v in header.items() if k != "kept"} | {"cases_left": left}, kept + rows)


def fill_compile_cache(args):
    """Runs each peer's torch.compile in other processes, so that the timed run finds it in the cache on disk."""
    words = [sys.executable, str(HERE / "bench.py"), *sys.argv[1:]]
    shards = [subprocess.Popen([*words, "--shard", f"{i}/{args.jobs}"]) for i in range(args.jobs)]
    for shard in shards:
        shard.wait()


def compile_only(cases, pool, args, started):
    import torch
    index, count = map(int, args.shard.split("/"))
    for case in cases[index::count]:
        if time.monotonic() - started > args.limit_seconds / 2:
            break
        torch._dynamo.reset()
        data = [pool.tensors(case, 0)]
        for name, (call, _) in peer_calls(case, data, args).items():
            if name.startswith("compile"):
                try:
                    call(0)
                except Exception:  # noqa: BLE001 (the timed run reports it)
                    pass


def summary(rows):
    """The last lines of a run: what is slow, and what is slower than a peer."""
    good = [r for r in rows if "wrong" not in r]
    print(f"\n{len(good)} cases measured, {len(rows) - len(good)} wrong")
    print("lowest percentages of copy:")
    for r in sorted(good, key=lambda r: r["percent_of_copy"])[:15]:
        print("  " + line(r))
    losses = [r for r in good if any(s < 0.98 for s in r["speedup"].values())]
    if losses:
        print("slower than a peer:")
    for r in sorted(losses, key=lambda r: min(r["speedup"].values()))[:25]:
        print("  " + line(r))
    for r in rows:
        if "wrong" in r:
            print(line(r))


def main():
    global STREAM
    args = arguments()
    started = time.monotonic()
    if args.backend == "cpu":  # before any OpenMP runtime starts
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    else:  # the processes are the parallelism; the same in all of them, so that they share the cache
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config
    functorch_config.donated_buffer = False  # the graph of compiled autograd is kept and run again
    # What is tuned while other processes fill the compile cache was tuned on a busy GPU: only the quiet run's choice counts.
    inductor_config.autotune_local_cache = False
    import cases
    import data
    import kflib
    import machine
    import timing
    entry, found = cases.load(args.set, kflib.manifest())
    if entry["backend"] != args.backend:
        raise SystemExit(f"bench: set {args.set} is for --backend {entry['backend']}")
    found = [c for c in found if re.search(args.filter, c.f["name"])]
    if not found:
        raise SystemExit("bench: no function matches --filter")
    pool = data.Pool(args.backend)
    if args.shard:
        return compile_only(found, pool, args, started)
    if args.backend == "cpu":
        torch.set_num_threads(args.threads)

    flags = shlex.split(args.flags) if args.flags else list(kflib.CUDA_FLAGS if args.backend == "cuda" else kflib.CPU_FLAGS)
    functions = list({c.f["name"]: c.f for c in found}.values())
    lib = kflib.build(args.backend, functions, args.build_dir, flags=flags)
    print(f"{len(functions)} functions built in {time.monotonic() - started:.0f} s; {len(found)} cases", flush=True)
    compiles = not args.no_compile and any(p.startswith("compile") for c in found for p in c.peers)
    if args.backend == "cuda" and compiles and args.jobs > 1 and len(found) > args.jobs:
        fill_compile_cache(args)
        print(f"compile cache filled at {time.monotonic() - started:.0f} s", flush=True)

    timer = timing.Cuda() if args.backend == "cuda" else timing.Cpu(args.threads)
    STREAM = timer.stream.cuda_stream if args.backend == "cuda" else 0
    compiler = "nvcc" if args.backend == "cuda" else os.environ.get("CC", "gcc")
    header = {"command": shlex.join(["python3", "bench/bench.py", *sys.argv[1:]]), "set": args.set, "backend": args.backend,
              "machine": machine.describe(args.backend, compiler, flags, args.threads), "compile_mode": args.mode, "rounds": args.rounds,
              "data": data.DISTRIBUTION, "outputs": OUTPUTS, "units": UNITS}
    if args.backend == "cuda":
        timer.warm_up()
        header["clocks_before"] = machine.clocks()
    if args.append and args.out and args.out.exists():
        header["kept"] = json.loads(args.out.read_text())["rows"]

    gc.freeze()  # what is loaded by now stays: collections during the run need not look at it
    rows, saved = [], time.monotonic()
    for done, case in enumerate(found):
        if time.monotonic() - started > args.limit_seconds:
            print(f"stopped after {args.limit_seconds:.0f} s, {len(found) - done} cases left")
            break
        try:
            row = measure(case, lib, pool, timer, args)
        except Exception as error:  # noqa: BLE001 (wrong or refused: the other cases are still worth their time)
            row = {"function": case.f[NAME[args.backend]], "sizes": list(case.sizes), "wrong": f"{type(error).__name__}: {error}"[:500]}
        rows.append(row)
        print(line(row), flush=True)
        if "CUDA error" in row.get("wrong", ""):
            print("stopped: after such an error the device answers nothing more")
            break
        if time.monotonic() - saved > 20:
            write(args, header, rows, len(found) - len(rows))
            saved = time.monotonic()
    if args.backend == "cuda":
        header["clocks_after"] = machine.clocks()
    write(args, header, rows, len(found) - len(rows))
    summary(rows)
    return 1 if any("wrong" in r for r in rows) else 0


STREAM = 0

if __name__ == "__main__":
    sys.exit(main())
