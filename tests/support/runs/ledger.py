# SPDX-License-Identifier: Apache-2.0
"""Records which families are unchanged since all of their tests passed at level 2:
tests/golden/families.json has a digest per family.

Level 1 runs fewer functions of an unchanged family (selection.gate), so its time grows with the
change, not with the number of families. promises.py writes the file after a complete passing run.
"""

import functools
import hashlib
import json

import kflib

LEDGER = kflib.ROOT / "tests/golden/families.json"


def members(family):
    return [f for f in kflib.manifest()["functions"] if f["family"] == family]


def families():
    return sorted({f["family"] for f in kflib.manifest()["functions"]})


def digest(family):
    """Returns a digest of a family's functions and headers, including what these include. It
    excludes the tests: level 1 still runs today's on a part of the family."""
    functions = members(family)
    headers = sorted({f["header"] for f in functions})
    text = "".join(f'#include "{h}.h"\n#include "{h}.cuh"\n' for h in headers)
    content = functions, sorted(kflib.closure(text, kflib.render(None)).items())
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def names(family):
    """Returns a digest of the functions' names, to see whether a run had today's functions."""
    return hashlib.sha256(
        "\n".join(sorted(f["name"] for f in members(family))).encode()
    ).hexdigest()[:16]


def read():
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else {}


def write(found):
    LEDGER.write_text(json.dumps(read() | found, indent=1, sort_keys=True) + "\n")


@functools.cache
def unchanged(family):
    """True if all tests of the family passed in its present state."""
    return family in read() and read()[family] == digest(family)
