# SPDX-License-Identifier: Apache-2.0
"""Faults that are planted in the headers, to see that a test notices them."""

import re

import cases
import kflib


def plant(include, folder, file, text, instead):
    """Include directories of which the first has that file alone, with the fault in it."""
    found = next(d / file for d in include if (d / file).exists()).read_text()
    broken, count = re.subn(text, instead, found)
    assert count > 0 and broken != found, f"{file} has no {text!r} any more: write this fault anew"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(broken)
    return [folder, *include]


def some(faults):
    """Those that are compiled and run: at level 1 always the same ninth."""
    return cases.by_level(list(faults)[:: cases.SHARE], list(faults))


def named(names, backend="cpu"):
    """The functions of these names."""
    found = [
        f
        for f in kflib.manifest()["functions"]
        if f["cpu_name" if backend == "cpu" else "name"] in names
    ]
    assert len(found) == len(set(names))
    return found
