# SPDX-License-Identifier: Apache-2.0
"""Tables of the published pages, as Markdown. A mark of a page names a function of TABLES.

Links to files begin with `@/`, the repository's root; report.py makes them relative to the page.
"""

import pathlib
import textwrap
import tomllib

import filed

HERE = pathlib.Path(__file__).resolve().parent
CITED = HERE / "cited.toml"
# CUB's sum is a yardstick of other functions too, so it is no peer here.
BESIDE = {"eager", "compile", "compile_autograd", "cudnn", "flash2", "flex", "liger", "llmc"}
BELOW = 0.95
COMPILED = ("compile", "compile_autograd")


def table(head, rows, left=1):
    """Formats a Markdown table; the first `left` columns are text, the others figures."""
    rule = [":--"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(map(str, r)) + " |" for r in [head, rule, *rows]) + "\n"


def wrapped(text, indent="", hanging=None):
    """Breaks a paragraph at 100 columns."""
    return textwrap.fill(
        text,
        100 - 4 * text.count("](@/"),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
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
    """States how many samples each median is of."""
    counts = sorted(
        {t["samples"] for r in data["rows"] for t in r["times"].values() if "samples" in t}
    )
    return (
        f"Medians of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} samples. "
        if counts
        else ""
    )


def about(which):
    """Describes machine, method and command of a file: the lines above its tables."""
    data = filed.load(which)
    how = (
        data.get("method")
        or "interleaved rounds, inside CUDA graphs below 150 us a call, "
        "else behind a queue that is never empty"
    )
    if "gpu" not in data["machine"] and "method" not in data:
        how = "interleaved rounds, one call a sample, wall clock"
    where = f"[{which}.json](@/bench/results/{which}.json): {machine(data)}."
    text = f"{wrapped(where)}\n{wrapped(how[0].upper() + how[1:] + '.')}\n"
    text += f"{wrapped(samples(data) + 'Data: ' + data['data'] + '.')}\n"
    if "outputs" in data:
        text += wrapped(f"Outputs: {data['outputs']}.") + "\n"
    text += f"\n{wrapped(data['command'], '    ')}\n"
    for peer, why in data.get("withdrawn", {}).items():
        text += "\n" + wrapped(f"**Ratios to {filed.PEERS[peer]} are withdrawn**: {why}.") + "\n"
    if data.get("cases_left"):
        text += f"\n{data['cases_left']} cases of this set were not measured.\n"
    return text


def copy(which):
    """Percent of copy by op, direction and dtype: geometric mean and worst function.

    Tensors of 1 GiB have rows of their own.
    """
    rows, body = filed.load(which)["rows"], []
    dtypes = [d for d in ("f32", "f16", "bf16") if any(r["dtypes"][0] == d for r in rows)]
    for (op, bwd, large), members in filed.groups(
        rows, lambda r: (r["op"], r["bwd"], r["bytes"] > 1.9 * 2**30)
    ).items():
        cells = []
        for dtype in dtypes:
            mine = [r["percent_of_copy"] for r in members if r["dtypes"][0] == dtype]
            cells.append(f"{filed.geomean(mine):.0f} / {min(mine):.0f}" if mine else "")
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
    """Speed-ups over each peer: geometric mean, worst case, and counts of the verdicts."""
    body = []
    for (dtype, size), members in filed.groups(
        filed.load(which)["rows"], lambda r: (r["dtypes"][0], r.get("at") or filed.mebi_cell(r))
    ).items():
        for direction, bwd in (("forward", False), ("backward", True)):
            for peer in filed.PEERS:
                mine = [
                    (r["speedup"][peer], r)
                    for r in members
                    if r["bwd"] is bwd and peer in r["speedup"]
                ]
                if not mine:
                    continue
                worst, row = min(mine, key=lambda m: m[0])
                count = filed.groups(mine, lambda m: filed.verdict(m[1], m[0]))
                body.append(
                    [
                        dtype,
                        size,
                        direction,
                        filed.PEERS[peer],
                        len(mine),
                        f"{filed.geomean([m[0] for m in mine]):.2f}",
                        f"{worst:.2f} ({filed.function_cell(row)})",
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
    """Lists the `most` cases that are slower than a peer, worst first."""
    found = [
        (r, p, s)
        for r in filed.load(which)["rows"]
        for p, s in r["speedup"].items()
        if filed.verdict(r, s) == "slower"
    ]
    body = [
        [
            filed.function_cell(r),
            filed.sizes_cell(r),
            filed.PEERS[p],
            filed.time_cell(r["times"]["kf"]),
            filed.time_cell(r["times"][p]),
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
        command = f"python3 bench/report.py --every bench/results/{which}.json"
        text += f"\n{len(body) - most} more, {body[most][-1]} and better: see\n`{command}`.\n"
    return text


def lengths(which, dtype, *wanted):
    """Percent of a copy by row length or shape; in parentheses the ratios to `wanted` peers."""
    by, columns = {}, list(dict.fromkeys(r["at"] for r in filed.load(which)["rows"]))
    for r in filed.load(which)["rows"]:
        if r["dtypes"][0] != dtype:
            continue
        ratios = [f"{r['speedup'][p]:.2f}" if p in r["speedup"] else "-" for p in wanted]
        by.setdefault(filed.function_cell(r), {})[r["at"]] = f"{r['percent_of_copy']:.0f}" + (
            f" ({', '.join(ratios)})" if set(ratios) - {"-"} else ""
        )
    head = ["function", *(f"{c:,}" if isinstance(c, int) else c for c in columns)]
    return table(head, [[f, *(found.get(c, "") for c in columns)] for f, found in by.items()])


def peers_of(rows):
    """Returns the peers that at least one row is compared with."""
    return [p for p in filed.PEERS if any(p in r["speedup"] for r in rows)]


def ratios(row, there):
    """Returns the cells of a row's ratios to the peers, empty where one was not measured."""
    return [f"{row['speedup'][p]:.2f}" if p in row["speedup"] else "" for p in there]


def calls(which):
    """Times and ratios of each call, then their geometric means and the worst."""
    rows = filed.load(which)["rows"]
    there = peers_of(rows)
    body = [
        [
            filed.function_cell(r),
            filed.sizes_cell(r),
            filed.time_cell(r["times"]["kf"]),
            *ratios(r, there),
        ]
        for r in rows
    ]
    found = [[r["speedup"][p] for r in rows if p in r["speedup"]] for p in there]
    body += [
        ["geometric mean", "", "", *(f"{filed.geomean(f):.2f}" for f in found)],
        ["worst", "", "", *(f"{min(f):.2f}" for f in found)],
    ]
    return table(
        ["function", "sizes", "time", *(f"x {filed.PEERS[p]}" for p in there)], body, left=2
    )


def every(which):
    """Every case: time with half its interquartile range, GB/s, % of copy, ratio to each peer."""

    def cells(r):
        copy = f"{r['percent_of_copy']:.0f}" if "percent_of_copy" in r else ""
        return [f"{r['gbps']:.0f}", copy]

    return cases(which, ["GB/s", "% of copy"], cells)


def cases(which, columns, cells):
    """Every case: time, own columns, and the ratio to each peer.

    Args:
        cells: returns a case's cells of the columns.
    """
    rows = filed.load(which)["rows"]
    there = peers_of(rows)
    body = [
        [
            filed.function_cell(r),
            filed.sizes_cell(r),
            filed.time_cell(r["times"]["kf"]),
            *cells(r),
            *ratios(r, there),
        ]
        for r in rows
    ]
    peers = (f"x {filed.PEERS[p]}" for p in there)
    return table(["function", "sizes", "time", *columns, *peers], body, left=2)


def memory(which):
    """Every case of linear cross entropy: time, ratio to each peer, peak MiB beside the inputs."""
    rows = filed.load(which)["rows"]
    there = peers_of(rows)
    body = [
        [
            filed.function_cell(r),
            filed.sizes_cell(r),
            filed.time_cell(r["times"]["kf"]),
            *ratios(r, there),
            *(f"{r['peak_mib'][p]:,.0f}" if p in r["peak_mib"] else "" for p in ("kf", *there)),
        ]
        for r in rows
    ]
    return table(
        [
            "function",
            "sizes",
            "time",
            *(f"x {filed.PEERS[p]}" for p in there),
            *(f"MiB, {filed.PEERS.get(p, p)}" for p in ("kf", *there)),
        ],
        body,
        left=2,
    )


def layers(which):
    """Linear layers beside library products (layers.py): per ratio, geometric mean and least."""
    body = []
    for (_, pace), members in filed.groups(
        filed.load(which)["rows"], lambda r: (r["group"], r["pace"])
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
                    f"{filed.geomean([f for f, _ in found]):.3f}",
                    f"{least:.2f} ({at})",
                ]
            )
    return table(
        ["dtype", "pace", "kf", "beside", "shapes", "geometric mean", "least"], body, left=4
    )


def throughput(which):
    """Every case: TFLOP/s and the ratio to each peer."""
    return cases(which, ["TFLOP/s"], lambda r: [f"{r['tflops']['kf']:.0f}"])


def means(which, *sizes):
    """Per function and the named indices of its sizes: geometric mean and least of each ratio."""
    rows = filed.load(which)["rows"]
    there = peers_of(rows)
    body = []
    for (function, *key), members in filed.groups(
        rows, lambda r: (filed.function_cell(r), *(r["sizes"][int(i)] for i in sizes))
    ).items():
        found = [[r["speedup"][p] for r in members if p in r["speedup"]] for p in there]
        cells = [f"{filed.geomean(x):.2f} ({min(x):.2f})" if x else "" for x in found]
        body.append([function, " x ".join(map(str, key)), len(members), *cells])
    return table(["function", "sizes", "cases", *(f"x {filed.PEERS[p]}" for p in there)], body, 2)


def headline():
    """Returns README's table; each row comes from the first listed file that has it."""
    wanted, body = tomllib.loads(CITED.read_text())["headline"], []
    for function, *shape in wanted["rows"]:
        files = [which for which in wanted["files"] if (filed.RESULTS / f"{which}.json").exists()]
        which, row = next(
            (w, r)
            for w in files
            for r in filed.load(w)["rows"]
            if r["function"] == function and r["sizes"] == shape
        )
        compiled = [
            row["speedup"][p] for p in ("compile", "compile_autograd") if p in row["speedup"]
        ]
        body.append(
            [
                filed.function_cell(row),
                filed.sizes_cell(row),
                filed.amount(row["times"]["kf"]["us"]),
                f"{row['percent_of_copy']:.0f}",
                f"{min(compiled):.2f}"
                if compiled
                else "withdrawn"
                if filed.load(which).get("withdrawn")
                else "",
            ]
        )
    return table(["function", "sizes", "time", "% of copy", "× torch.compile"], body, left=2)


def below(*files):
    """Lists ops slower than BELOW times a baseline, by op and direction, worst first per file."""
    body = []
    for which in files:
        found = {}
        for r in filed.load(which)["rows"]:
            op = (
                f"`{r['op'].replace('_{act}', '').replace('{act}', 'activations')}`"
                if "op" in r
                else filed.function_cell(r)
            )
            direction = ", ".join(
                w for w in ("backward" if r.get("bwd") else "forward", r.get("variant")) if w
            )
            for peer in set(r["speedup"]) & BESIDE:
                found.setdefault((op, direction, filed.PEERS[peer]), []).append(
                    (r["speedup"][peer], f"{filed.function_cell(r)}, {filed.sizes_cell(r)}")
                )
        rows = [
            (min(m), [*key, sum(s < BELOW for s, _ in m), len(m)])
            for key, m in found.items()
            if min(m)[0] < BELOW
        ]
        body += [
            [f"[{which}](@/bench/results/{which}.json)", *words, f"{worst:.2f} ({at})"]
            for (worst, at), words in sorted(rows)
        ]
    return table(["file", "op", "", "baseline", f"below {BELOW}", "of", "worst"], body, left=4)


def compared(*files):
    """Counts the cases beside torch.compile (the faster of its two forms) by verdict."""
    counts = {"faster": 0, "parity": 0, "slower": 0}
    for which in files or sorted(f"h200/{p.stem}" for p in filed.RESULTS.glob("h200/*.json")):
        for r in filed.load(which)["rows"]:
            ratios = [r["speedup"][p] for p in COMPILED if p in r["speedup"]]
            if ratios and "kf" in r.get("times", {}):
                counts[filed.verdict(r, min(ratios))] += 1
    return (
        wrapped(
            f"Beside torch.compile on an H200: of {sum(counts.values()):,} cases kf is faster in "
            f"{counts['faster']:,}, equal in {counts['parity']:,}, slower in {counts['slower']:,}."
        )
        + "\n"
    )


def has(row, where):
    """Returns whether a row matches the conditions `where` of a sentence."""
    limits = {
        "at_least": lambda limit: row["at"] >= limit,
        "above": lambda limit: row["at"] > limit,
    }
    return all(
        limits[key](v) if key in limits else row[key] == v or isinstance(v, list) and row[key] in v
        for key, v in where.items()
    )


def slow(most=None):
    """Returns the first `most` sentences on slow cases, with the range of their figures."""
    text = []
    for entry in tomllib.loads(CITED.read_text())["slow"][: most and int(most)]:
        rows = [r for r in filed.load(entry["file"])["rows"] if has(r, entry["where"])]
        if peer := entry.get("value"):
            values = [f"{v:.2f}" for v in sorted(r["speedup"][peer] for r in rows)]
        else:
            values = [f"{v:.0f}" for v in sorted(r["percent_of_copy"] for r in rows)]
        span = values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
        text.append(wrapped(entry["text"].replace("{}", span), "- ", "  ") + "\n")
    return "".join(text)


TABLES = {
    f.__name__: f
    for f in (
        about,
        below,
        calls,
        compared,
        copy,
        every,
        headline,
        layers,
        lengths,
        losses,
        means,
        memory,
        peers,
        slow,
        throughput,
    )
}
