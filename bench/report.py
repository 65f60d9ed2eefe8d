# SPDX-License-Identifier: Apache-2.0
"""Tables and a plot from the files that bench.py wrote. Nothing appears here that was not measured.

    python3 bench/report.py bench/results/h200/roofline.json bench/results/h200/compile.json [--markdown FILE] [--plot FILE.png]
"""

import argparse
import json
import math
import pathlib

# A difference below this is parity: 2 %, or 5 % where a call takes less than 20 us.
PARITY, PARITY_SHORT, SHORT_US = 0.02, 0.05, 20.0
PEERS = {"eager": "PyTorch eager", "eager_out": "PyTorch eager, preallocated", "compile": "torch.compile",
         "compile_autograd": "torch.compile, autograd", "cub": "CUB's sum of all elements as float32"}


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def table(head, rows, left=1):
    """The first `left` columns are text, the others figures."""
    rule = [":--"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(map(str, r)) + " |" for r in [head, rule, *rows]) + "\n"


def groups(rows, key):
    found = {}
    for r in rows:
        found.setdefault(key(r), []).append(r)
    return found


def verdict(row, speedup):
    margin = PARITY_SHORT if row["times"]["kf"]["us"] < SHORT_US else PARITY
    return "slower" if speedup < 1 - margin else "faster" if speedup > 1 + margin else "parity"


def mib(row):
    return math.prod(row["sizes"]) * {"f64": 8, "f32": 4, "i32": 4, "i64": 8}.get(row["dtypes"][0], 2) / 2**20


def copy_table(rows):
    """Percent of copy by op, direction and dtype: geometric mean and the worst function. Large tensors have their own rows."""
    body = []
    for (op, bwd, large), members in groups(rows, lambda r: (r["op"], r["bwd"], mib(r) > 1000)).items():
        cells = []
        for dtype in ("f32", "f16", "bf16"):
            mine = [r for r in members if r["dtypes"][0] == dtype]
            if mine:
                worst = min(mine, key=lambda r: r["percent_of_copy"])
                cells.append(f"{geomean([r['percent_of_copy'] for r in mine]):.1f} / {worst['percent_of_copy']:.1f}")
            else:
                cells.append("")
        body.append([f"`{op}`", ("backward" if bwd else "forward") + (", 1 GiB" if large else ""), len(members), *cells])
    return table(["op", "", "functions x shapes", "f32: mean / worst, % of copy", "f16", "bf16"], body, left=2)


def peer_table(rows):
    """Speed-ups over each peer: geometric mean, worst case, and how many cases are slower."""
    body = []
    for (dtype, sizes), members in groups(rows, lambda r: (r["dtypes"][0], shape(r))).items():
        for direction, wanted in (("forward", (False,)), ("backward", (True,)), ("both", (False, True))):
            for peer in PEERS:
                mine = [(r["speedup"][peer], r) for r in members if r["bwd"] in wanted and peer in r["speedup"]]
                if not mine:
                    continue
                worst, row = min(mine, key=lambda m: m[0])
                count = groups(mine, lambda m: verdict(m[1], m[0]))
                body.append([dtype, sizes, direction, PEERS[peer], len(mine), f"{geomean([m[0] for m in mine]):.2f}",
                             f"{worst:.2f} (`{row['function']}`)", *(len(count.get(v, ())) for v in ("faster", "parity", "slower"))])
    return table(["dtype", "elements", "", "peer", "cases", "geometric mean", "worst", "faster", "parity", "slower"], body, left=4)


def shape(row):
    return f"{math.prod(row['sizes']) / 2**20:.0f} Mi"


def time_cell(t):
    return f"{t['us']:.1f} ± {t['iqr_us'] / 2:.1f}"


def named_table(rows):
    """Every case: time with half its interquartile range, bandwidth, share of copy, and the ratio to each peer."""
    peers = [p for p in PEERS if any(p in r["speedup"] for r in rows)]
    body = [[f"`{r['function']}`", "x".join(map(str, r["sizes"])), time_cell(r["times"]["kf"]), f"{r['gbps']:.0f}", f"{r['percent_of_copy']:.0f}",
             *(f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "" for p in peers)] for r in rows]
    return table(["function", "shape", "us", "GB/s", "% of copy", *(f"x {PEERS[p]}" for p in peers)], body, left=2)


def losses(rows, most):
    """The cases that are slower than a peer, the worst first; `most` of them."""
    found = [(r, p, s) for r in rows for p, s in r["speedup"].items() if verdict(r, s) == "slower"]
    body = [[f"`{r['function']}`", "x".join(map(str, r["sizes"])), PEERS[p], time_cell(r["times"]["kf"]), time_cell(r["times"][p]), f"{s:.2f}"]
            for r, p, s in sorted(found, key=lambda x: x[2])]
    if not body:
        return "None.\n"
    more = f"\n{len(body) - most} more, {body[most][-1]} and better: `bench/report.py --every`.\n" if len(body) > most else ""
    return table(["function", "shape", "peer", "kf, us", "peer, us", "ratio"], body[:most], left=3) + more


def failures(rows):
    found = [(r, n, t["failed"]) for r in rows for n, t in r["times"].items() if "failed" in t]
    return "".join(f"- `{r['function']}` {'x'.join(map(str, r['sizes']))}: {n}: {why.splitlines()[0]}\n" for r, n, why in found)


def heading(name, data):
    m = data["machine"]
    where = m.get("gpu") or f"{m['cpu']}, {m['threads']} threads"
    words = [where, f"torch {m['torch']}"]
    words += [f"driver {m['driver']}", f"nvcc {m['nvcc']}"] if "gpu" in m else [m["compiler"]]
    about = data["data"][0].upper() + data["data"][1:]
    text = f"## {name}\n\n{', '.join(words)}; `{m['flags']}`.\n{about}.\nOutputs: {data['outputs']}.\n\n    {data['command']}\n"
    if data["cases_left"]:
        text += f"\n{data['cases_left']} cases of this set were not measured.\n"
    return text


def rows_markdown(name, data):
    """Of rows.py, rows_cpu.py and reduce.py: percent of a copy by row length or shape, and how many times as fast as the peers that
    were timed. Peers whose times were withdrawn are left out, and the page says why."""
    withdrawn = data.get("withdrawn", {})
    by, peers = {}, list(dict.fromkeys(n for r in data["rows"] for n in r["speedup"] if n not in withdrawn))
    reductions = "shape" in data["rows"][0]
    for r in data["rows"]:
        ratios = [f"{r['speedup'][n]:.2f}x" for n in peers if n in r["speedup"]]
        against = f" ({', '.join(ratios)})" if ratios else ""
        groups_ = not reductions and len(r["sizes"]) == 5  # outer, length, groups, channels, inner
        batch = "batch_norm_train" in r["function"]  # outer, channels, inner, where a row is a channel's
        label = r["function"] + (", NHWC" if (groups_ or batch) and r["sizes"][-1] == 1 else "")
        row = math.prod(r["sizes"][1:2] + r["sizes"][3:]) if groups_ else math.prod(r["sizes"][::2]) if batch else r["sizes"][-1]
        by.setdefault(label, {})[r["shape"] if reductions else row] = f"{r['percent_of_copy']:.0f}{against}"
    cols = list(dict.fromkeys(c for found in by.values() for c in found))
    m = data.get("machine")
    where = f"{m['cpu']}, {m['threads']} threads, torch {m['torch']}, {m['compiler']}; `{m['flags']}`" if m else (
        f"{data['gpu']}, torch {data['torch']}; tensors of {data['tensors']}")
    beside = (f"; in parentheses times as fast as {' and '.join(PEERS[p] for p in peers)}, where there is such a peer (below 1: slower)"
              if peers else "")
    left_out = "".join(f"Ratios to {PEERS[p]} are withdrawn: {why}.\n\n" for p, why in withdrawn.items())
    return "\n".join([
        f"## {name}\n", f"{where}; {data['data']}.\n", f"    {data['command']}\n",
        f"{left_out}Percent of a copy of as many bytes, by {'outer x axis x inner' if reductions else 'columns'}{beside}:\n",
        table(["function", *map(str, cols)], [[f"`{f}`", *(found.get(c, "") for c in cols)] for f, found in by.items()])])


def markdown(path, every):
    data = json.loads(path.read_text())
    if "set" not in data:
        return rows_markdown(f"{path.parent.name}/{path.name}", data)
    rows = [r for r in data["rows"] if "wrong" not in r]
    text = [heading(f"{path.parent.name}/{path.name}", data)]
    wrong = [r for r in data["rows"] if "wrong" in r]
    if wrong:
        text.append("Wrong results, not timed:\n\n" + "".join(f"- `{r['function']}`: {r['wrong']}\n" for r in wrong))
    text.append("Bandwidth of the function's own bytes against a copy of as many, in the same rounds:\n\n" + copy_table(rows))
    if any(r["speedup"] for r in rows):
        text.append("Speed-up over each peer (peer's time / kf's):\n\n" + peer_table(rows))
        text.append("Slower than a peer:\n\n" + losses(rows, len(rows) * len(PEERS) if every else 40))
    if every:
        text.append("Every case:\n\n" + named_table(rows))
    if failed := failures(rows):
        text.append("Peers that did not run:\n\n" + failed)
    return "\n".join(text)


def plot(paths, out):
    """Percent of copy of every function, sorted, one line per dtype and direction, one panel per file."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(paths), figsize=(6.5 * len(paths), 4), squeeze=False)
    colours = {"f32": "#1b6ca8", "f16": "#c8553d", "bf16": "#4f772d"}
    for axis, path in zip(axes[0], paths):
        data = json.loads(path.read_text())
        rows = [r for r in data["rows"] if "wrong" not in r]
        for (dtype, bwd), members in groups(rows, lambda r: (r["dtypes"][0], r["bwd"])).items():
            ys = sorted(r["percent_of_copy"] for r in members)
            xs = [100 * (i + 0.5) / len(ys) for i in range(len(ys))]
            axis.plot(xs, ys, color=colours[dtype], linestyle="--" if bwd else "-", label=f"{dtype} {'backward' if bwd else 'forward'} ({len(ys)})")
        axis.axhline(100, color="#888888", linewidth=0.8)
        axis.set(title=f"{data['machine'].get('gpu') or data['machine']['cpu']}: {data['set']}", xlabel="functions, sorted (%)",
                 ylabel="% of a copy of as many bytes", xlim=(0, 100), ylim=(0, None))
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=150, metadata={"Software": None})


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("results", type=pathlib.Path, nargs="+")
    p.add_argument("--markdown", type=pathlib.Path, help="default: standard output")
    p.add_argument("--every", action="store_true", help="also one row per case")
    p.add_argument("--plot", type=pathlib.Path)
    args = p.parse_args()
    text = "\n".join(markdown(path, args.every) for path in args.results)
    if args.markdown:
        args.markdown.write_text(text)
    else:
        print(text)
    if args.plot:
        plot(args.results, args.plot)


if __name__ == "__main__":
    main()
