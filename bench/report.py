# SPDX-License-Identifier: Apache-2.0
"""What is published of the filed measurements: the marked parts of README.md and docs/performance.md. Nothing stands there that was not
measured, and nothing of a peer whose times were withdrawn.

    python3 bench/report.py             fill both pages and draw the charts (needs matplotlib)
    python3 bench/report.py --check     say what is stale, change nothing (needs nothing)
    python3 bench/report.py --every bench/results/h200/compile.json     one row per case, to standard output

A mark names a table and its file: <!-- table: copy h200/roofline --> ... <!-- /table -->. One schema serves all files (store.py).
"""

import argparse
import functools
import json
import math
import pathlib
import re
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGES = [HERE.parent / "README.md", HERE.parent / "docs/performance.md"]
MARK = re.compile(r"(<!-- table: (?P<what>\w+)(?P<words>[^>]*?) -->\n).*?(<!-- /table -->)", re.S)

# A difference below this is parity: 2 %, or 5 % where a call takes less than 20 us.
PARITY, PARITY_SHORT, SHORT_US = 0.02, 0.05, 20.0
PEERS = {
    "eager": "PyTorch eager",
    "eager_out": "PyTorch eager, preallocated",
    "compile": "torch.compile",
    "compile_autograd": "torch.compile, autograd",
    "cub": "CUB",
    "cublas": "cuBLAS",
    "launchers": "kf's C launchers",
    "liger": "Liger",
    "llmc": "llm.c",
}
BESIDE, BELOW = (
    {"eager", "compile", "compile_autograd", "liger", "llmc"},
    0.95,
)  # CUB's sum is a yardstick of other functions too
UNITS = ("ns", "us", "ms", "s")


@functools.lru_cache
def load(name):
    """A filed result, without the peers that were withdrawn."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    data["rows"] = [r for r in data["rows"] if "wrong" not in r]
    for row in data["rows"]:
        row["speedup"] = {
            p: s for p, s in row.get("speedup", {}).items() if p not in data.get("withdrawn", {})
        }
    return data


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


def name(row):
    return f"`{row['function']}`" + (f", {row['variant']}" if row.get("variant") else "")


def sizes(row):
    return " x ".join(f"{n:,}" for n in row["sizes"])


def mebi(row):
    return f"{math.prod(row['sizes']) / 2**20:.0f} Mi"


def amount(us):
    """A time in the unit that suits it, three digits."""
    power = 1 if us < 1000 else 2
    value = us / 1000 ** (power - 1)
    return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {UNITS[power]}"


def time_cell(t):
    return amount(t["us"]) + (
        f" ± {100 * t['iqr_us'] / 2 / t['us']:.1f} %" if "iqr_us" in t else ""
    )


def machine(data):
    m = data["machine"]
    where = m["gpu"] if "gpu" in m else f"{m['cpu']}, {m['threads']} threads"
    words = [
        where,
        f"PyTorch {m['torch']}",
        *(f"{k} {m[k]}" for k in ("driver", "nvcc") if k in m),
        *([m["compiler"]] if "compiler" in m else []),
    ]
    return f"{', '.join(words)}; `{m['flags']}`"


def samples(data):
    """Of how many samples a time is the median."""
    counts = sorted(
        {t["samples"] for r in data["rows"] for t in r["times"].values() if "samples" in t}
    )
    return (
        f"Medians of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} samples. "
        if counts
        else ""
    )


def about(which):
    """Where and how: the lines above a file's tables."""
    data = load(which)
    how = (
        data.get("method")
        or "interleaved rounds, inside CUDA graphs below 150 us a call, else behind a queue that is never empty"
    )
    if "gpu" not in data["machine"] and "method" not in data:
        how = "interleaved rounds, one call a sample, wall clock"
    text = f"[{which}.json](../bench/results/{which}.json): {machine(data)}.\n{how[0].upper() + how[1:]}. {samples(data)}Data: {data['data']}.\n"
    if "outputs" in data:
        text += f"Outputs: {data['outputs']}.\n"
    text += f"\n    {data['command']}\n"
    for peer, why in data.get("withdrawn", {}).items():
        text += f"\n**Ratios to {PEERS[peer]} are withdrawn**: {why}.\n"
    if data.get("cases_left"):
        text += f"\n{data['cases_left']} cases of this set were not measured.\n"
    return text


def copy(which):
    """Percent of copy by op, direction and dtype: geometric mean and the worst function. Large tensors have their own rows."""
    rows, body = load(which)["rows"], []
    dtypes = [d for d in ("f32", "f16", "bf16") if any(r["dtypes"][0] == d for r in rows)]
    for (op, bwd, large), members in groups(
        rows, lambda r: (r["op"], r["bwd"], r["bytes"] > 1.9 * 2**30)
    ).items():
        cells = []
        for dtype in dtypes:
            mine = [r["percent_of_copy"] for r in members if r["dtypes"][0] == dtype]
            cells.append(f"{geomean(mine):.0f} / {min(mine):.0f}" if mine else "")
        body.append(
            [
                f"`{op}`",
                ("backward" if bwd else "forward") + (", 1 GiB" if large else ""),
                len(members),
                *cells,
            ]
        )
    return table(["op", "", "cases", *(f"{d}: mean / worst" for d in dtypes)], body, left=2)


def peers(which):
    """Speed-ups over each peer: geometric mean, worst case, and how many cases are slower."""
    body = []
    for (dtype, size), members in groups(
        load(which)["rows"], lambda r: (r["dtypes"][0], r.get("at") or mebi(r))
    ).items():
        for direction, bwd in (("forward", False), ("backward", True)):
            for peer in PEERS:
                mine = [
                    (r["speedup"][peer], r)
                    for r in members
                    if r["bwd"] is bwd and peer in r["speedup"]
                ]
                if not mine:
                    continue
                worst, row = min(mine, key=lambda m: m[0])
                count = groups(mine, lambda m: verdict(m[1], m[0]))
                body.append(
                    [
                        dtype,
                        size,
                        direction,
                        PEERS[peer],
                        len(mine),
                        f"{geomean([m[0] for m in mine]):.2f}",
                        f"{worst:.2f} ({name(row)})",
                        *(len(count.get(v, ())) for v in ("faster", "parity", "slower")),
                    ]
                )
    return table(
        [
            "dtype",
            "size",
            "",
            "baseline",
            "cases",
            "geometric mean",
            "worst",
            "faster",
            "parity",
            "slower",
        ],
        body,
        left=4,
    )


def losses(which, most=25):
    """The cases that are slower than a peer, the worst first; `most` of them."""
    found = [
        (r, p, s)
        for r in load(which)["rows"]
        for p, s in r["speedup"].items()
        if verdict(r, s) == "slower"
    ]
    body = [
        [
            name(r),
            sizes(r),
            PEERS[p],
            time_cell(r["times"]["kf"]),
            time_cell(r["times"][p]),
            f"{s:.2f}",
        ]
        for r, p, s in sorted(found, key=lambda x: x[2])
    ]
    if not body:
        return "None.\n"
    text = table(
        ["function", "sizes", "baseline", "kf", "baseline's time", "ratio"], body[:most], left=3
    )
    if len(body) > most:
        text += f"\n{len(body) - most} more, {body[most][-1]} and better: `python3 bench/report.py --every bench/results/{which}.json`.\n"
    return text


def lengths(which, dtype, *wanted):
    """Percent of a copy by row length or shape; after it the ratios to `wanted` peers, where there are such."""
    by, columns = {}, list(dict.fromkeys(r["at"] for r in load(which)["rows"]))
    for r in load(which)["rows"]:
        if r["dtypes"][0] != dtype:
            continue
        ratios = [f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "-" for p in wanted]
        by.setdefault(name(r), {})[r["at"]] = f"{r['percent_of_copy']:.0f}" + (
            f" ({', '.join(ratios)})" if set(ratios) - {"-"} else ""
        )
    head = ["function", *(f"{c:,}" if isinstance(c, int) else c for c in columns)]
    return table(head, [[f, *(found.get(c, "") for c in columns)] for f, found in by.items()])


def calls(which):
    """Calls through Python: each one's time and its ratios, their geometric means and the worst."""
    rows = load(which)["rows"]
    there = [p for p in PEERS if any(p in r["speedup"] for r in rows)]
    body = [
        [
            name(r),
            sizes(r),
            time_cell(r["times"]["kf"]),
            *(f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "" for p in there),
        ]
        for r in rows
    ]
    found = [[r["speedup"][p] for r in rows if p in r["speedup"]] for p in there]
    body += [
        ["geometric mean", "", "", *(f"{geomean(f):.2f}" for f in found)],
        ["worst", "", "", *(f"{min(f):.2f}" for f in found)],
    ]
    return table(["function", "sizes", "time", *(f"x {PEERS[p]}" for p in there)], body, left=2)


def every(which):
    """Every case: time with half its interquartile range, bandwidth, share of copy, and the ratio to each peer."""
    rows = load(which)["rows"]
    there = [p for p in PEERS if any(p in r["speedup"] for r in rows)]
    body = [
        [
            name(r),
            sizes(r),
            time_cell(r["times"]["kf"]),
            f"{r['gbps']:.0f}",
            f"{r['percent_of_copy']:.0f}" if "percent_of_copy" in r else "",
            *(f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "" for p in there),
        ]
        for r in rows
    ]
    return table(
        ["function", "sizes", "time", "GB/s", "% of copy", *(f"x {PEERS[p]}" for p in there)],
        body,
        left=2,
    )


def memory(which):
    """Every case of products that are never whole: time, the ratio to each peer, and how many MiB each one takes at most beside its inputs."""
    rows = load(which)["rows"]
    there = [p for p in PEERS if any(p in r["speedup"] for r in rows)]
    body = [
        [
            name(r),
            sizes(r),
            time_cell(r["times"]["kf"]),
            *(f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "" for p in there),
            *(f"{r['peak_mib'][p]:,.0f}" if p in r["peak_mib"] else "" for p in ("kf", *there)),
        ]
        for r in rows
    ]
    return table(
        [
            "function",
            "sizes",
            "time",
            *(f"x {PEERS[p]}" for p in there),
            *(f"MiB, {PEERS.get(p, p)}" for p in ("kf", *there)),
        ],
        body,
        left=2,
    )


def layers(which):
    """Linear layers beside the libraries' products (layers.py), a line for each ratio: its geometric mean over the shapes and the least."""
    body = []
    for (_, pace), members in groups(
        load(which)["rows"], lambda r: (r["group"], r["pace"])
    ).items():
        for ratio in dict.fromkeys(ratio for r in members for ratio in r["ratios"]):
            found = [
                (r["ratios"][ratio], " x ".join(f"{n:,}" for n in r["sizes"]))
                for r in members
                if ratio in r["ratios"]
            ]
            own, peers = ratio.replace(" | ", " or ").split(" : ")
            least, at = min(found)
            body.append(
                [
                    members[0]["dtype"],
                    pace,
                    f"`{own.removeprefix('kf ')}`",
                    peers,
                    len(found),
                    f"{geomean([f for f, _ in found]):.3f}",
                    f"{least:.2f} ({at})",
                ]
            )
    return table(
        ["dtype", "pace", "kf", "beside", "shapes", "geometric mean", "least"], body, left=4
    )


def headline():
    """README's rows, each from the first file that has it: function, sizes, time, percent of a copy, ratio to torch.compile."""
    wanted, body = tomllib.loads((HERE / "shapes.toml").read_text())["headline"], []
    for function, *shape in wanted["rows"]:
        files = [which for which in wanted["files"] if (RESULTS / f"{which}.json").exists()]
        which, row = next(
            (w, r)
            for w in files
            for r in load(w)["rows"]
            if r["function"] == function and r["sizes"] == shape
        )
        compiled = [
            row["speedup"][p] for p in ("compile", "compile_autograd") if p in row["speedup"]
        ]
        body.append(
            [
                name(row),
                sizes(row),
                amount(row["times"]["kf"]["us"]),
                f"{row['percent_of_copy']:.0f}",
                f"{min(compiled):.2f}"
                if compiled
                else "withdrawn"
                if load(which).get("withdrawn")
                else "",
            ]
        )
    return table(["function", "sizes", "time", "% of copy", "× torch.compile"], body, left=2)


def below(*files):
    """Whatever is slower than BELOW of a baseline that computes the same: by op and direction, the worst of a file first."""
    body = []
    for which in files:
        found = {}
        for r in load(which)["rows"]:
            op = (
                f"`{r['op'].replace('_{act}', '').replace('{act}', 'activations')}`"
                if "op" in r
                else name(r)
            )
            direction = ", ".join(
                w for w in ("backward" if r.get("bwd") else "forward", r.get("variant")) if w
            )
            for peer in set(r["speedup"]) & BESIDE:
                found.setdefault((op, direction, PEERS[peer]), []).append(
                    (r["speedup"][peer], f"{name(r)}, {sizes(r)}")
                )
        rows = [
            (min(m), [*key, sum(s < BELOW for s, _ in m), len(m)])
            for key, m in found.items()
            if min(m)[0] < BELOW
        ]
        body += [
            [f"[{which}](../bench/results/{which}.json)", *words, f"{worst:.2f} ({at})"]
            for (worst, at), words in sorted(rows)
        ]
    return table(["file", "op", "", "baseline", f"below {BELOW}", "of", "worst"], body, left=4)


def has(row, where):
    """Whether a row is one of those that a sentence speaks of."""
    limits = {
        "at_least": lambda limit: row["at"] >= limit,
        "above": lambda limit: row["at"] > limit,
    }
    return all(
        limits[key](v) if key in limits else row[key] == v or isinstance(v, list) and row[key] in v
        for key, v in where.items()
    )


def slow(most=None):
    """What is slow, in words, with the range of the figures; the first `most` sentences."""
    text = []
    for entry in tomllib.loads((HERE / "shapes.toml").read_text())["slow"][: most and int(most)]:
        rows = [r for r in load(entry["file"])["rows"] if has(r, entry["where"])]
        if peer := entry.get("value"):
            values = [f"{v:.2f}" for v in sorted(r["speedup"][peer] for r in rows)]
        else:
            values = [f"{v:.0f}" for v in sorted(r["percent_of_copy"] for r in rows)]
        text.append(
            "- "
            + entry["text"].replace(
                "{}", values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
            )
            + "\n"
        )
    return "".join(text)


TABLES = {
    f.__name__: f
    for f in (
        about,
        copy,
        peers,
        losses,
        lengths,
        calls,
        every,
        memory,
        layers,
        headline,
        slow,
        below,
    )
}


def filled(text):
    """The page with every marked table made anew."""
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m['what']](*m['words'].split())}{m[4]}", text)


def fill():
    """Both pages and the charts, made anew; says what was stale."""
    import charts

    stale = [
        page.name for page in PAGES if page.read_text() != filled(page.read_text())
    ] + charts.stale()
    for page in PAGES:
        page.write_text(filled(page.read_text()))
    charts.draw(charts.stale())
    print(f"made anew: {', '.join(stale) or 'nothing'}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true")
    p.add_argument("--every", type=pathlib.Path, metavar="FILE")
    args = p.parse_args()
    if args.every:
        return print(every(args.every.resolve().relative_to(RESULTS).with_suffix("").as_posix()))
    if not args.check:
        return fill()
    import charts

    stale = [
        page.name for page in PAGES if page.read_text() != filled(page.read_text())
    ] + charts.stale()
    raise SystemExit(f"stale: {', '.join(stale)}" if stale else None)


if __name__ == "__main__":
    main()
