# SPDX-License-Identifier: Apache-2.0
"""Runs the 40 calls of set `regression` and prints which became slower.

    python3 bench/regression.py           measure, and compare with the filed shares of a copy
    python3 bench/regression.py --file    measure, and file what was measured

A call is slower if its share of a copy fell by more than 5 %. A copy of as many bytes is timed in
the same rounds, so shares of two runs on one kind of GPU compare. The first time that is filed for
a call is any other result of this GPU (bench/results). The exit status is 1 if a call became slower
or is wrong.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import filed

HERE = pathlib.Path(__file__).resolve().parent
FELL = 0.05  # runs of one build differ by less


def key(row):
    return row["function"], tuple(row["sizes"])


def shares(folder):
    """Returns {call: (its filed share of a copy in percent, the file's name)}."""
    found = {}
    # The set's own file is read last, since it overrides others.
    names = sorted((p.stem for p in folder.glob("*.json")), key=lambda n: (n == "regression", n))
    for name in names:
        for row in json.loads((folder / f"{name}.json").read_text())["rows"]:
            if "percent_of_copy" in row:
                found[key(row)] = row["percent_of_copy"], name
    return found


def compare(rows, known):
    """Returns (a line per measured row, whether a row fell or is wrong)."""
    lines, bad = [], False
    for row in rows:
        call = f"{row['function']:<36} {filed.sizes_cell(row):<34}"
        if "wrong" in row:
            lines.append(f"{call} WRONG {row['wrong']}")
            bad = True
            continue
        share = row["percent_of_copy"]
        if key(row) not in known:
            lines.append(f"{call} {share:6.1f} % of a copy, nothing filed")
            continue
        before, name = known[key(row)]
        change = share / before - 1
        word = "FELL" if change < -FELL else "rose" if change > FELL else ""
        bad |= word == "FELL"
        text = f"{call} {share:6.1f} % of a copy, {before:6.1f} in {name}, {100 * change:+5.1f} %"
        lines.append(f"{text} {word}".rstrip())
    return lines, bad


def folder_of(gpu):
    """Returns the folder of a GPU's results: that of an NVIDIA H200 is h200."""
    return filed.RESULTS / re.sub(r"^nvidia[ _]", "", gpu.lower()).split(" ")[0]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--file", action="store_true", help="file the result for later runs")
    p.add_argument("--flags", default="-O3 -arch=sm_90a", help="nvcc's")
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    out = HERE.parent / "build" / "regression.json"
    words = ["--set", "regression", f"--rounds={args.rounds}", f"--flags={args.flags}"]
    done = subprocess.run([sys.executable, HERE / "bench.py", *words, "--out", out])
    if not out.exists():
        return done.returncode or 1
    found = json.loads(out.read_text())
    folder = folder_of(found["machine"]["gpu"])
    lines, bad = compare(found["rows"], shares(folder))
    print("\n".join(lines))
    if args.file and not any("wrong" in r for r in found["rows"]):
        (folder / "regression.json").write_text(out.read_text())
        print(f"filed in {folder.relative_to(HERE.parent)}/regression.json")
    return 1 if bad or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
