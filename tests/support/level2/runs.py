# SPDX-License-Identifier: Apache-2.0
"""Joins logs of plugin.py from several processes, calls and machines into one run for promises.py.

    python tests/support/level2/runs.py cpu OUT.json LOG...   tests without a GPU of their own
    python tests/support/level2/runs.py gpu OUT.json LOG...   tests/cuda on a GPU

A run of kind cpu includes tests/cuda as a machine without a GPU runs it.
"""

import argparse
import collections
import json
import pathlib
import sys

if __name__ == "__main__":
    HERE = pathlib.Path(__file__).resolve()
    sys.path[0:1] = [str(HERE.parents[1]), str(HERE.parents[3] / "gen")]
    import folders

    folders.add()

import promises

from level2 import logs
from level2.plan import is_cuda


def agreed(parts, word):
    """Returns the value of `word` in the logs' first lines; exits if they differ."""
    values = {json.dumps(part.begin[word], sort_keys=True): part.name for part in parts}
    if len(values) != 1:
        sys.exit(
            f"the logs are of several: {word}: "
            + "; ".join(f"{name}: {text[:200]}" for text, name in values.items())
        )
    return parts[0].begin[word]


def of_kind(kind, parts):
    """Reduces the logs to the tests that count for a run of this kind."""
    for part in parts:

        def counts(name, on_gpu=part.begin["kind"] == "gpu"):
            return on_gpu == (kind == "gpu") if is_cuda(name) else kind == "cpu"

        part.ids = [name for name in part.ids if counts(name)]
        part.tests, part.files = (
            {n: line for n, line in found.items() if counts(n)}
            for found in (part.tests, part.files)
        )
    return [part for part in parts if part.ids or part.tests or part.files]


def joined(kind, parts):
    """Returns (run, {file: number of its tests without an outcome}). The run's `files` excludes
    these files. A failed teardown counts as a failure of its test."""
    parts = of_kind(kind, parts)
    if not parts:
        sys.exit(f"the logs have nothing of a run of kind {kind}")
    agreed(parts, "commit")
    level, families = agreed(parts, "level"), agreed(parts, "families")
    machine = ", ".join(
        sorted({part.begin["machine" if kind == "gpu" else "processor"] for part in parts})
    )
    counts = promises.Counts()
    for name, line in logs.outcomes(parts).items():
        counts.add(name, line["outcome"])
    left = collections.Counter(
        name.partition("::")[0].removeprefix("tests/") for name in logs.missing(parts)
    )
    whole = [f for f in counts.files() if f not in left] if level > 1 else []
    return {
        "kind": kind,
        "machine": machine,
        "level": level,
        "families": families,
        "files": whole,
        "tests": counts.tests(),
    }, left


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("cpu", "gpu"))
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("logs", nargs="+", help="logs, or folders of logs")
    given = parser.parse_args()
    run, left = joined(given.kind, logs.parts(given.logs))
    given.out.write_text(json.dumps(run, indent=0) + "\n")
    passed, failed, skipped = (sum(row[i] for row in run["tests"]) for i in (2, 3, 4))
    print(
        f"{given.out}: {len(run['files'])} whole files, {passed} passed, {failed} failed, "
        f"{skipped} skipped"
    )
    print("".join(f"missing {n} of {file}\n" for file, n in sorted(left.items())), end="")


if __name__ == "__main__":
    main()
