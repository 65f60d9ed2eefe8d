# SPDX-License-Identifier: Apache-2.0
"""Plants faults in copies of the headers, to prove that tests notice them."""

import re

import cases
import kflib


def plant(include, folder, file, text, instead):
    """Writes a copy of `file` with `text` replaced by `instead` into `folder`. Returns include
    directories that find this copy first."""
    found = next(d / file for d in include if (d / file).exists()).read_text()
    broken, count = re.subn(text, instead, found)
    assert count > 0 and broken != found, f"{file} has no {text!r} any more: write this fault anew"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(broken)
    return [folder, *include]


def some(faults):
    """Returns the faults to run: at level 1 always the same one in cases.SHARE."""
    return cases.by_level(list(faults)[:: cases.SHARE], list(faults))


def named(names, backend="cpu"):
    """Returns the functions with these names."""
    found = [
        f
        for f in kflib.manifest()["functions"]
        if f["cpu_name" if backend == "cpu" else "name"] in names
    ]
    assert len(found) == len(set(names))
    return found
