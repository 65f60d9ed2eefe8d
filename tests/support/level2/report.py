# SPDX-License-Identifier: Apache-2.0
"""Reports the logs of plugin.py: counts per part, reasons for skips, failed and missing tests.

    python tests/support/level2/report.py [--write FILE] [--skips] [--take PREFIX] LOG...

FILE gets the ids of failed and missing tests, for --only.
"""

import argparse
import collections
import os
import pathlib
import re
import sys
import time

if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from level2 import logs

WORDS = ("collected", "passed", "failed", "skipped", "left", "seconds")


def count(part):
    """Returns a part's table row."""
    found = collections.Counter(line["outcome"] for line in part.tests.values())
    found["collected"], found["left"] = part.collected or 0, (part.collected or 0) - len(part.tests)
    found["seconds"] = round(sum(line["seconds"] for line in part.tests.values()))
    return found


def again(parts, skips=False):
    """Returns {id: failed, none or skipped} of the tests to run again; a file that cannot be
    collected has its name."""
    wanted = {"failed", *(["skipped"] if skips else [])}
    found = {name: line["outcome"] for name, line in logs.outcomes(parts).items()}
    return {name: word for name, word in found.items() if word in wanted} | dict.fromkeys(
        logs.missing(parts), "none"
    )


def table(parts):
    rows, total = (
        [(p.name, count(p), "" if p.end is None else str(p.end)) for p in parts],
        collections.Counter(),
    )
    for _, counts, _ in rows:
        total.update(counts)
    lines = [f"{'part':30}" + "".join(f"{w:>10}" for w in WORDS) + "  end"]
    return lines + [
        f"{name[-29:]:30}" + "".join(f"{counts[w]:10}" for w in WORDS) + f"  {end}"
        for name, counts, end in [*rows, ("all", total, "")]
    ]


def report(parts, begun=()):
    """Returns the report. begun: names of parts that should have a log."""
    lines, had = table(parts), logs.outcomes(parts)
    lines += [f"no log: {name}" for name in begun if name not in {p.name for p in parts}]
    skipped = collections.Counter(
        line["reason"][:120] for line in had.values() if line["outcome"] == "skipped"
    )
    lines += [f"skipped {n}: {reason}" for reason, n in skipped.most_common(25)]
    lines += [
        f"FAILED {name[:200]} ({line['when']}) {line.get('first', '')[:250]}"
        for name, line in sorted(had.items())
        if line["outcome"] == "failed"
    ]
    left = collections.Counter(name.partition("::")[0] for name in logs.missing(parts))
    return "\n".join(lines + [f"missing {n} of {file}" for file, n in sorted(left.items())]) + "\n"


def status(parts, running):
    """Returns one line with the finished tests per part, all GPUs' shares of one together. running:
    names of parts."""
    groups = {}
    for part in parts:
        group = groups.setdefault(re.sub(r"\.\d+", "", part.name), collections.Counter())
        group.update(
            done=len(part.tests),
            of=part.collected or 0,
            failed=part.failed(),
            runs=part.end is None and part.name in running,
            died=part.end is None and part.name not in running,
        )
    words = [
        f"{name} {g['done']}/{g['of']}"
        + (f" FAILED {g['failed']}" if g["failed"] else "")
        + (f" DIED {g['died']}" if g["died"] else "")
        + ("" if g["runs"] else " ended")
        for name, g in groups.items()
    ]
    done, of = (sum(g[w] for g in groups.values()) for w in ("done", "of"))
    return f"{time.strftime('%T')} {done}/{of} load {os.getloadavg()[0]:.0f} | {', '.join(words)}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="+", help="logs, or folders of logs")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    parser.add_argument(
        "--skips", action="store_true", help="what was skipped, too, is to be run again"
    )
    parser.add_argument("--take", default="", metavar="PREFIX", help="of FILE: ids that begin so")
    given = parser.parse_args()
    parts = logs.parts(given.logs)
    print(report(parts), end="")
    names = [name for name in again(parts, given.skips) if name.startswith(given.take)]
    if given.write:
        given.write.write_text("".join(f"{name}\n" for name in names))
    return bool(names)


if __name__ == "__main__":
    sys.exit(main())
