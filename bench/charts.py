# SPDX-License-Identifier: Apache-2.0
"""Draws the charts of docs/performance.md from the filed results: SVG files in docs/img.

`CHARTS[name]()` returns the data of a chart. Its hash stands in the file, so stale charts are
detected without drawing. Wins and losses share one colour; a line at 1, or 100 %, divides them.
"""

import hashlib
import json
import math
import pathlib

import filed

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs/img"
DRAWING = 2  # increment to redraw the same data in another style
COLOURS = {
    "f32": "#1f5fa8",
    "bf16": "#c4501b",
    "f16": "#4f772d",
}  # blue and orange differ in greyscale and for colour-blind readers
SHORT = {
    "compile": ("torch.compile", "o"),
    "compile_autograd": ("torch.compile, autograd", "^"),
    "eager": ("PyTorch eager", "x"),
    "eager_out": ("PyTorch eager, preallocated", "o"),
}


# ---- data ----


def direction(row):
    return "backward" if row["bwd"] else "forward"


def by_length(which, *ops):
    """Percent of a copy by op and "dtype direction": [[row length or shape, percent], ...]."""
    found = {op: {} for op in ops}
    for r in filed.load(which)["rows"]:
        op = r["op"].replace("_{act}", "") + (f", {r['variant']}" if r["variant"] else "")
        if op in found:
            found[op].setdefault(f"{r['dtypes'][0]} {direction(r)}", []).append(
                [str(r["at"]), round(r["percent_of_copy"], 1)]
            )
    return {
        "kind": "lines",
        "panels": found,
        "x": "elements a row" if "rows" in which else "outer x axis x inner",
    }


def rows():
    return by_length(
        "h200/rows",
        "softmax",
        "log_softmax",
        "layer_norm",
        "rms_norm",
        "add_rms_norm",
        "cross_entropy",
        "cross_entropy_with_grad",
        "scale_mask_softmax",
        "instance_norm",
        "batch_norm_train",
        "group_norm",
        "batch_norm_train, NHWC",
    )


def reductions():
    return by_length("h200/reduce", "sum", "amax", "logsumexp", "var", "l2_norm", "mse_mean")


def rows_cpu():
    return by_length(
        "cpu/rows",
        "softmax",
        "layer_norm",
        "rms_norm",
        "cross_entropy",
        "scale_mask_softmax",
        "batch_norm_train, NHWC",
    )


def against(which, peers, select, title):
    """Ratios by panel: [[function, {peer: [ratio, half its spread or None]}], ...], worst first."""
    panels = {}
    for r in filed.load(which)["rows"]:
        ratios = {p: [round(r["speedup"][p], 3), spread(r, p)] for p in peers if p in r["speedup"]}
        if ratios and select(r):
            panels.setdefault(title(r), []).append(
                [r["function"].removeprefix("kf_").removeprefix("cpu_"), ratios]
            )
    return {
        "kind": "dots",
        "panels": {
            t: sorted(f, key=lambda x: min(v[0] for v in x[1].values())) for t, f in panels.items()
        },
    }


def spread(row, peer):
    """Half the interquartile range of the ratio, or None if the file lacks those of the times."""
    times = [row["times"][peer], row["times"]["kf"]]
    if not all("iqr_us" in t for t in times):
        return None
    return round(
        row["speedup"][peer] * sum((t["iqr_us"] / 2 / t["us"]) ** 2 for t in times) ** 0.5, 3
    )


def elementwise():
    def large(r):
        return (
            r["dtypes"][0] == "bf16"
            and math.prod(r["sizes"]) >= 1 << 26
            and r["sizes"] != [8192, 8192]
        )

    return against(
        "h200/compile",
        ("compile", "compile_autograd", "eager"),
        large,
        lambda r: f"bf16, 64 Mi elements, {direction(r)}",
    )


def small_rows():
    return against(
        "h200/rows_small",
        ("compile", "compile_autograd"),
        lambda r: True,
        lambda r: f"{r['at']}, {direction(r)}",
    )


def sorted_shares(which, value, title):
    """Sorted values by panel and series."""
    panels = {}
    for r in filed.load(which)["rows"]:
        for series, v in value(r):
            panels.setdefault(title(r), {}).setdefault(series, []).append(round(v, 2))
    return {
        "kind": "sorted",
        "panels": {t: {s: sorted(v) for s, v in found.items()} for t, found in panels.items()},
    }


def roofline():
    found = sorted_shares(
        "h200/roofline", lambda r: [(r["dtypes"][0], r["percent_of_copy"])], lambda r: direction(r)
    )
    return found | {"y": "% of a copy of as many bytes", "parity": 100}


def elementwise_cpu():
    found = sorted_shares(
        "cpu/family",
        lambda r: [(r["dtypes"][0], r["speedup"]["eager_out"])],
        lambda r: direction(r),
    )
    return found | {"y": "times as fast as PyTorch eager, preallocated", "parity": 1}


CHARTS = {
    f.__name__: f
    for f in (roofline, elementwise, rows, small_rows, reductions, elementwise_cpu, rows_cpu)
}


def stamp(name):
    return hashlib.sha256(
        json.dumps([DRAWING, CHARTS[name]()], sort_keys=True).encode()
    ).hexdigest()[:16]


def stale():
    """Lists charts whose file is missing or was drawn from other data."""
    files = {name: FOLDER / f"{name}.svg" for name in CHARTS}
    return [
        name
        for name, file in files.items()
        if not file.exists() or f"<!-- data: {stamp(name)} -->" not in file.read_text()
    ]


# ---- drawing ----


def grid(pyplot, count, columns, width, height, **shared):
    rows_ = -(-count // columns)
    figure, axes = pyplot.subplots(
        rows_, columns, figsize=(width * columns, height * rows_), squeeze=False, **shared
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes


def draw_lines(pyplot, data):
    labels = list(
        dict.fromkeys(
            x for panel in data["panels"].values() for points in panel.values() for x, _ in points
        )
    )
    columns = 3 if len(data["panels"]) == 6 else 4
    highest = max(
        y for series in data["panels"].values() for points in series.values() for _, y in points
    )
    figure, axes = grid(
        pyplot, len(data["panels"]), columns, 11 / columns, 2.5, sharex=True, sharey=True
    )
    for axis, (op, series) in zip(axes.flat, data["panels"].items()):
        axis.axhline(100, color="#777777", linewidth=0.8)
        for key, points in series.items():
            dtype, direction = key.split()
            axis.plot(
                [labels.index(x) for x, _ in points],
                [y for _, y in points],
                color=COLOURS[dtype],
                marker="o",
                markersize=3,
                linewidth=1.4,
                linestyle="--" if direction == "backward" else "-",
                label=key,
            )
        axis.set_title(op, fontsize=9)
        axis.set_xticks(
            range(len(labels)),
            [f"{int(x):,}" if x.isdigit() else x for x in labels],
            rotation=45,
            ha="right",
            fontsize=7,
        )
        axis.set_ylim(0, highest + 8)
        axis.tick_params(labelbottom=True, labelsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("% of a copy", fontsize=8)
    lines, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="upper center", ncols=4, frameon=False, fontsize=8)
    figure.supxlabel(data["x"], fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.965))
    return figure


def draw_dots(pyplot, data):
    count = max(map(len, data["panels"].values()))
    figure, axes = grid(pyplot, len(data["panels"]), 2, 5.5, 0.9 + 0.155 * count, sharex=True)
    for axis, (title, functions) in zip(axes.flat, data["panels"].items()):
        axis.axvline(1, color="#777777", linewidth=0.8)
        for peer, (label, marker) in SHORT.items():
            points = [
                (v[peer][0], i, v[peer][1]) for i, (_, v) in enumerate(functions) if peer in v
            ]
            if points:
                x, y, e = zip(*points)
                colour = "#9a9a9a" if peer == "eager" else COLOURS["f32"]
                error = [s or 0 for s in e] if any(e) else None
                axis.errorbar(
                    x,
                    y,
                    xerr=error,
                    fmt=marker,
                    color=colour,
                    markersize=3.5,
                    elinewidth=0.8,
                    label=label,
                )
        axis.set_title(title, fontsize=9)
        axis.set_yticks(range(len(functions)), [f for f, _ in functions], fontsize=6.5)
        axis.set_ylim(len(functions) - 0.4, -0.6)
        axis.set_xscale("log")
        axis.grid(axis="y", linewidth=0.3, color="#dddddd")
        ticks = [0.5, 0.7, 1, 1.5, 2, 3, 5]
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks], fontsize=7)
        axis.minorticks_off()
        axis.tick_params(labelbottom=True)
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels())
    }
    figure.legend(handles.values(), handles, loc="upper center", ncols=3, frameon=False, fontsize=8)
    figure.supxlabel(
        "baseline's time / kf's time: right of 1 kf is faster, left of it slower", fontsize=8
    )
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    return figure


def draw_sorted(pyplot, data):
    figure, axes = grid(pyplot, len(data["panels"]), 2, 5.5, 3, sharey=True)
    for axis, (title, series) in zip(axes.flat, data["panels"].items()):
        axis.axhline(data["parity"], color="#777777", linewidth=0.8)
        for dtype, values in series.items():
            axis.plot(
                [100 * (i + 0.5) / len(values) for i in range(len(values))],
                values,
                color=COLOURS[dtype],
                linewidth=1.5,
                label=f"{dtype} ({len(values)} cases)",
            )
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("cases, sorted (%)", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.legend(
            frameon=False, fontsize=8, loc="lower right" if data["parity"] == 100 else "upper left"
        )
        axis.set_xlim(0, 100)
    if data["parity"] == 100:
        axes[0, 0].set_ylim(0, 115)
    else:
        axes[0, 0].set_yscale("log")
        axes[0, 0].set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes[0, 0].set_ylabel(data["y"], fontsize=8)
    figure.tight_layout()
    return figure


def draw(names):
    """Draws these charts."""
    if not names:
        return
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "kf",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        data = CHARTS[name]()
        figure = {"lines": draw_lines, "dots": draw_dots, "sorted": draw_sorted}[data["kind"]](
            pyplot, data
        )
        file = FOLDER / f"{name}.svg"
        figure.savefig(file, facecolor="white", metadata={"Date": None, "Creator": None})
        text = "\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n"
        file.write_text(text.replace("<svg ", f"<!-- data: {stamp(name)} -->\n<svg ", 1))
        pyplot.close(figure)
