# SPDX-License-Identifier: Apache-2.0
"""Benchmark driver: builds, checks (against float64) and times a set of cases and their peers.

    python3 bench/bench.py --set headline --out bench/results/h200/headline.json
    python3 bench/bench.py --set compile --filter gelu --out bench/results/h200/compile.json
    python3 bench/bench.py --set family --threads 2 --out bench/results/cpu/family.json
    python3 bench/bench.py --page       all published pages and charts, from the filed results

Cases are data (shapes.toml), bytes come from the manifest, peers are one file per family
(families/). Times are medians over rounds in shuffled order. Percentages are of a copy of as many
bytes, timed in the same rounds. A wrong result is not timed and fails the run.
"""

import argparse
import contextlib
import functools
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
sys.path[:0] = [str(HERE), str(HERE.parent / "tests/support"), str(HERE.parent / "gen")]

import folders  # noqa: E402

folders.add()

import store  # noqa: E402

OUTPUTS = (
    "kf and eager_out write preallocated tensors; "
    "eager and torch.compile return fresh ones from PyTorch's allocator"
)
NAME = {"cuda": "name", "cpu": "cpu_name"}
UNITS = {
    "us": "microseconds per call, median",
    "iqr_us": "interquartile range of the samples",
    "bytes": "every tensor of the call once",
    "gbps": "1e9 bytes per second",
    "percent_of_copy": "time of a copy of as many bytes / time, in percent",
    "speedup": "peer's time / kf's time",
    "error": "largest error / its tolerance, 1 is the limit; null: not compared",
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument(
        "--set", help="a [set.NAME] of shapes.toml; headline where there is a GPU, else family"
    )
    p.add_argument("--backend", choices=("cpu", "cuda"), help="default: the set's")
    p.add_argument(
        "--page",
        action="store_true",
        help="measure nothing: write the pages from the filed results",
    )
    p.add_argument("--list", action="store_true", help="measure nothing: print the cases")
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--filter", default="", help="regular expression over function names")
    p.add_argument(
        "--append",
        action="store_true",
        help="keep the rows of --out that this run does not measure",
    )
    p.add_argument(
        "--limit-seconds",
        type=float,
        default=float("inf"),
        help="start no case after this many seconds",
    )
    p.add_argument(
        "--rounds", type=int, default=5, help="each has every contender twice, in shuffled order"
    )
    p.add_argument("--threads", type=int, default=2, help="cpu: on every side")
    p.add_argument("--flags", help="the compiler's, instead of the tests' ones")
    p.add_argument("--mode", default="default", help="torch.compile's")
    p.add_argument("--no-compile", action="store_true", help="leave the torch.compile peers out")
    p.add_argument(
        "--jobs",
        type=int,
        default=min(12, os.cpu_count()),
        help="cuda: processes that fill the compile cache first",
    )
    p.add_argument("--shard", help=argparse.SUPPRESS)
    p.add_argument(
        "--tf32",
        action="store_true",
        help="PyTorch may use TF32 for products of float32, as kf's of that word do",
    )
    p.add_argument("--build-dir", type=pathlib.Path, default=HERE.parent / "build-bench")
    return p.parse_args()


def measure(case, lib, pool, timer, args, library):
    """One row of the results."""
    import check
    import contenders
    import data as tensors
    import peers
    import torch

    if case.python:
        import python_calls

        row, both, times = python_calls.measure(case, lib, pool, timer, args)
        return row | figures(both, times)
    if "compile" in case.peers:
        torch._dynamo.reset()  # or the next function of the same code counts as a recompilation
    sets, stream = (
        contenders.sets_of(case, args.backend),
        timer.stream.cuda_stream if args.backend == "cuda" else 0,
    )
    data = [pool.tensors(case, i, case.saved) for i in range(sets)]
    row = {
        "function": case.f[NAME[args.backend]],
        "op": case.f["op"],
        "activation": case.f["activation"],
        "bwd": case.f["bwd"],
        "dtypes": case.f["dtypes"],
        "family": case.f["family"],
        "variant": case.variant,
        "at": case.at,
        "sizes": list(case.sizes),
        "bytes": case.bytes,
        "sets": sets,
    }
    if case.skip:
        row["not_computed"] = list(case.skip)
    for inputs, _ in data if case.saved else ():
        contenders.fill_saved(case, lib, pool, inputs, stream)
    for tensor in data[0][1].values():
        tensors.poison(tensor)
    kf = contenders.kf_calls(case, lib, pool, data, stream)
    kf(0)
    row["error"] = (
        round(check.kf(case, *data[0], contenders.DROPOUT, case.key), 3)
        if peers.known(case.f)
        else None
    )

    own = {}
    if case.any:  # on the same tensors
        for tensor in data[0][1].values():
            tensors.poison(tensor)
        own["any"] = contenders.any_calls(case, lib, pool, data, stream, library["ids"])
        own["any"](0)
        row["any_error"] = (
            round(check.kf(case, *data[0], contenders.DROPOUT, case.key), 3)
            if peers.known(case.f)
            else None
        )
    timed, wrong = {"kf": kf, **own, **contenders.copy_calls(case, pool, sets, args.backend)}, {}
    peak = {"kf": sum(map(case.size, case.outputs)) + lib.workspace_bytes(case.f, list(case.sizes))}
    for name, (call, names) in contenders.peer_calls(case, data, args, library).items():
        try:
            if names is not None:
                check.peer(case, data[0][0], dict(zip(names, call(0))), f"{case.key} {name}")
            timed[name] = call
            if case.memory and args.backend == "cuda":
                peak[name] = contenders.peak(call)
        except Exception as error:  # noqa: BLE001 (reported; the other peers are still timed)
            wrong[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
    times = timer.measure(timed, sets, args.rounds) | wrong
    if case.memory:
        row["peak_mib"] = {name: round(n / 2**20) for name, n in peak.items()}
    return row | figures(case, times)


def figures(case, times):
    us = times["kf"]["us"]
    copy = min(times[c]["us"] for c in ("copy", "copy_1") if c in times)
    return {
        "times": times,
        "gbps": case.bytes / us * 1e-3,
        "copy_gbps": case.bytes / copy * 1e-3,
        "percent_of_copy": 100 * copy / us,
        "speedup": {
            name: t["us"] / us
            for name, t in times.items()
            if "us" in t and name not in ("kf", "copy", "copy_1")
        },
    }


def line(row):
    sizes = "x".join(map(str, row["sizes"]))
    if "wrong" in row:
        return f"{row['function']:<40} {sizes:<16} WRONG  {row['wrong']}"
    peers = "  ".join(f"{n} {s:.2f}x" for n, s in row["speedup"].items())
    failed = "  ".join(
        f"{n} FAILED: {t['failed'].splitlines()[0][:120]}"
        for n, t in row["times"].items()
        if "failed" in t
    )
    memory = "  ".join(f"{n} {mib} MiB" for n, mib in row.get("peak_mib", {}).items())
    return (
        f"{row['function']:<40} {sizes:<16} {row['times']['kf']['us']:>9.1f} us  "
        f"{row['gbps']:>7.1f} GB/s  "
        f"{row['percent_of_copy']:>5.1f} % of copy  {peers}  {failed}  {memory}"
    ).rstrip()


def write(args, header, rows, left):
    if args.out is None:
        return
    kept = []
    if args.append and header.get("kept"):
        new = {(r["function"], tuple(r["sizes"])) for r in rows}
        kept = [r for r in header["kept"] if (r["function"], tuple(r["sizes"])) not in new]
    store.write(
        args.out,
        {k: v for k, v in header.items() if k != "kept"} | {"cases_left": left},
        kept + rows,
    )


def fill_compile_cache(args):
    """Compiles the peers in other processes, so that the timed run finds them in the disk cache."""
    words = [sys.executable, str(HERE / "bench.py"), *sys.argv[1:]]
    shards = [subprocess.Popen([*words, "--shard", f"{i}/{args.jobs}"]) for i in range(args.jobs)]
    for shard in shards:
        shard.wait()


def compiling(case, pool, args):
    """Returns the calls that compile something at first use, over one set of tensors."""
    if case.python:
        import python_calls

        both = python_calls.Both(case, pool, 1)
        return [
            lambda: both.run(0, both.kf()),
            *(
                functools.partial(call, 0)
                for name, call in both.peers(args).items()
                if name == "compile"
            ),
        ]
    import contenders

    calls = contenders.peer_calls(case, [pool.tensors(case, 0, case.saved)], args)
    return [
        functools.partial(call, 0)
        for name, (call, _) in calls.items()
        if name.startswith("compile")
    ]


def compile_only(cases, pool, args, started):
    import torch

    index, count = map(int, args.shard.split("/"))
    for case in cases[index::count]:
        if time.monotonic() - started > args.limit_seconds / 2:
            break
        torch._dynamo.reset()
        for call in compiling(case, pool, args):
            with contextlib.suppress(Exception):  # the timed run reports it
                call()


def summary(rows):
    """Prints the end of a run: the slowest cases, and those slower than a peer."""
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


def chosen(args):
    """Returns the cases of the set; sets args.backend to the set's."""
    import case
    import kflib

    args.set = args.set or ("headline" if kflib.has_gpu() else "family")
    entry, found = case.load(args.set, kflib.manifest())
    found = [c for c in found if re.search(args.filter, c.f["name"])]
    if not found:
        raise SystemExit("bench: no function matches --filter")
    if args.backend not in (None, entry["backend"]):
        raise SystemExit(f"bench: set {args.set} is for --backend {entry['backend']}")
    args.backend = entry["backend"]
    return found


def prepare(args):
    """Configures PyTorch for the peers."""
    if args.backend == "cpu":  # before any OpenMP runtime starts
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    else:  # processes run in parallel instead; equal in all of them, so that they share the cache
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    functorch_config.donated_buffer = False  # the graph of compiled autograd is kept and run again
    # While other processes fill the cache the GPU is busy: only the quiet run's tuning counts.
    inductor_config.autotune_local_cache = False
    if args.backend == "cpu":
        torch.set_num_threads(args.threads)


def head(args, flags):
    """Returns the head of a result file: command, machine, method, data, units."""
    import data
    import machine
    import timing

    cuda = args.backend == "cuda"
    compiler = "nvcc" if cuda else os.environ.get("CC", "gcc")
    words = [word.replace(f"{HERE.parent}/", "") for word in sys.argv[1:]]
    found = {
        "command": shlex.join(["python3", "bench/bench.py", *words]),
        "set": args.set,
        "backend": args.backend,
        "machine": machine.describe(args.backend, compiler, flags, args.threads),
        "compile_mode": args.mode,
        "rounds": args.rounds,
        "method": timing.METHOD if cuda else timing.CPU_METHOD,
        "data": data.DISTRIBUTION,
        "outputs": OUTPUTS,
        "units": UNITS,
    }
    if args.append and args.out and args.out.exists():
        found["kept"] = json.loads(args.out.read_text())["rows"]
    return found


def run(args, found, started):
    """Builds, checks and times the cases; returns the rows."""
    import contenders
    import data
    import kflib
    import machine
    import timing

    pool = data.Pool(args.backend)
    if args.shard:
        return compile_only(found, pool, args, started)
    flags = shlex.split(args.flags) if args.flags else machine.flags(args.backend)
    launched = [c for c in found if not c.python or "launchers" in c.peers]
    each = [
        f
        for c in launched
        for f in (c.f, c.forward if c.saved else None, c.any, c.gradient and c.gradient.f)
        if f
    ]
    functions = list({f["name"]: f for f in each}.values())
    lib = kflib.build(args.backend, functions, args.build_dir, flags=flags) if functions else None
    print(
        f"{len(functions)} functions built in {time.monotonic() - started:.0f} s; "
        f"{len(found)} cases",
        flush=True,
    )
    compiles = not args.no_compile and any(p.startswith("compile") for c in found for p in c.peers)
    if args.backend == "cuda" and compiles and args.jobs > 1 and len(found) > args.jobs:
        fill_compile_cache(args)
        print(f"compile cache filled at {time.monotonic() - started:.0f} s", flush=True)
    timer = timing.Cuda() if args.backend == "cuda" else timing.Cpu(args.threads)
    library = (
        contenders.libraries(args, pool, timer, flags)
        if any("cub" in c.peers and c.f["family"] == "reduction" for c in found)
        else {}
    )
    library["ids"] = {a["name"]: a["id"] for a in kflib.manifest()["activations"]}
    header = head(args, flags)
    if args.backend == "cuda":
        timer.warm_up()
        header["clocks_before"] = machine.clocks()

    gc.freeze()  # collections during the run skip what is loaded by now
    rows, saved = [], time.monotonic()
    for done, case in enumerate(found):
        if time.monotonic() - started > args.limit_seconds:
            print(f"stopped after {args.limit_seconds:.0f} s, {len(found) - done} cases left")
            break
        try:
            row = measure(case, lib, pool, timer, args, library)
        except Exception as error:  # noqa: BLE001 (wrong or refused; others are still timed)
            row = {
                "function": case.f[NAME[args.backend]],
                "sizes": list(case.sizes),
                "wrong": f"{type(error).__name__}: {error}"[:500],
            }
        rows.append(row)
        print(line(row), flush=True)
        if "CUDA error" in row.get("wrong", ""):
            print("stopped: after a CUDA error the device fails every call")
            break
        if time.monotonic() - saved > 60:  # an interrupted run keeps its rows
            write(args, header, rows, len(found) - len(rows))
            saved = time.monotonic()
    if args.backend == "cuda":
        header["clocks_after"] = machine.clocks()
    write(args, header, rows, len(found) - len(rows))
    return rows


def main():
    args = arguments()
    started = time.monotonic()
    if args.page:
        import report

        return report.fill()
    found = chosen(args)
    if args.list:
        return print(
            "\n".join(f"{c.key:<60} {c.bytes / 2**20:9.1f} MiB  {' '.join(c.peers)}" for c in found)
        )
    prepare(args)
    rows = run(args, found, started)
    if args.shard:
        return 0
    summary(rows)
    return 1 if any("wrong" in r for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
