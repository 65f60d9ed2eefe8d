# SPDX-License-Identifier: Apache-2.0
"""Access to the filed measurements (bench/results/*/*.json) and the arithmetic that reports share.

One schema serves all files (store.py). A file may withdraw a peer; `load` drops its ratios.
"""

import functools
import json
import math
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

# A smaller difference counts as parity: 2 %, or 5 % where a call takes less than 20 us.
PARITY, PARITY_SHORT, SHORT_US = 0.02, 0.05, 20.0
PEERS = {
    "eager": "PyTorch eager",
    "eager_out": "PyTorch eager, preallocated",
    "compile": "torch.compile",
    "compile_autograd": "torch.compile, autograd",
    "cub": "CUB",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "flash2": "FlashAttention 2",
    "flex": "FlexAttention",
    "launchers": "kf's C launchers",
    "liger": "Liger",
    "llmc": "llm.c",
}
UNITS = ("ns", "us", "ms", "s")


@functools.lru_cache
def load(name):
    """Returns a filed result without wrong rows and without withdrawn peers."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    data["rows"] = [r for r in data["rows"] if "wrong" not in r]
    for row in data["rows"]:
        row["speedup"] = {
            p: s for p, s in row.get("speedup", {}).items() if p not in data.get("withdrawn", {})
        }
    return data


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def groups(rows, key):
    found = {}
    for r in rows:
        found.setdefault(key(r), []).append(r)
    return found


def verdict(row, speedup):
    margin = PARITY_SHORT if row["times"]["kf"]["us"] < SHORT_US else PARITY
    return "slower" if speedup < 1 - margin else "faster" if speedup > 1 + margin else "parity"


def function_cell(row):
    return f"`{row['function']}`" + (f", {row['variant']}" if row.get("variant") else "")


def sizes_cell(row):
    return " x ".join(f"{n:,}" for n in row["sizes"])


def mebi_cell(row):
    return f"{math.prod(row['sizes']) / 2**20:.0f} Mi"


def amount(us):
    """Formats a time with three digits, in ns, us, ms or s."""
    power = 1 if us < 1000 else 2
    value = us / 1000 ** (power - 1)
    return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {UNITS[power]}"


def time_cell(t):
    return amount(t["us"]) + (
        f" ± {100 * t['iqr_us'] / 2 / t['us']:.1f} %" if "iqr_us" in t else ""
    )
