# SPDX-License-Identifier: Apache-2.0
"""Reads the output of plugin.py: per part a log NAME.jsonl, and NAME.ids with all tests of its
files, selected or not."""

import json
import pathlib
import re


def plain(nodeid):
    """Removes the group that xdist appends to a node id."""
    return re.sub(r"@[^@\[\]/:]*$", "", nodeid)


class Part:
    """One part's log. tests, files: {id: the line that counts}. end: pytest's exit status, or None
    if it has not ended."""

    def __init__(self, name, text, ids=()):
        self.name, self.ids, self.begin, self.end, self.collected, self.tests, self.files = (
            name,
            list(ids),
            None,
            None,
            None,
            {},
            {},
        )
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:  # the last line of an interrupted part
                continue
            self.add(found)

    def add(self, found):
        if "begin" in found:
            self.begin = found
        elif "end" in found:
            self.end = found["end"]
        elif "collected" in found:
            self.collected = found["collected"]
        elif found["when"] == "collect":
            self.files[found["id"]] = found
        # A failed teardown counts as a failure of its test.
        elif self.tests.get(found["id"], {}).get("outcome") != "failed":
            self.tests[found["id"]] = found

    def failed(self):
        return sum(
            line["outcome"] == "failed" for line in [*self.tests.values(), *self.files.values()]
        )


def part(path):
    ids = path.with_suffix(".ids")
    return Part(
        path.stem,
        path.read_text(errors="replace"),
        ids.read_text().splitlines() if ids.exists() else (),
    )


def parts(paths):
    """Reads logs, and folders of logs, sorted by their start."""
    paths = [pathlib.Path(p) for p in paths]
    found = [part(log) for p in paths for log in (sorted(p.glob("*.jsonl")) if p.is_dir() else [p])]
    return sorted((p for p in found if p.begin), key=lambda p: p.begin["time"])


def joined(found):
    """Returns {id: line}. Later lines replace earlier ones, except that a skip does not replace an
    outcome."""
    lines = {}
    for one in found:
        lines |= {
            name: line
            for name, line in one.items()
            if not (line["outcome"] == "skipped" and name in lines)
        }
    return lines


def outcomes(parts):
    """Returns {id: line} of tests, and of files without tests: skipped as a whole, or not
    collectable."""
    tests = joined(part.tests for part in parts)
    there = {
        name.partition("::")[0] for name in [*tests, *(name for part in parts for name in part.ids)]
    }
    return tests | {
        name: line
        for name, line in joined(part.files for part in parts).items()
        if name not in there
    }


def missing(parts):
    """Returns the tests without an outcome."""
    had = outcomes(parts)
    return [
        name
        for name in dict.fromkeys(name for part in parts for name in part.ids)
        if name not in had
    ]
