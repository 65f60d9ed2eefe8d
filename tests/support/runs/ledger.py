# SPDX-License-Identifier: Apache-2.0
"""Which families are what they were when all of their tests last passed (level 2): tests/golden/families.json has a digest for each.

Level 1 runs fewer functions of a family whose digest is still that one (selection.gate), so that the time it takes grows with what
has changed, not with how many families there are. promises.py writes the file from a whole green run.
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
    """Of its functions and of their headers with whatever these include. Not of the tests: what level 1 still runs of a family runs by today's."""
    functions = members(family)
    headers = sorted({f["header"] for f in functions})
    text = "".join(f'#include "{h}.h"\n#include "{h}.cuh"\n' for h in headers)
    told = functions, sorted(kflib.closure(text, kflib.render(None)).items())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def names(family):
    """Of the functions alone: whether a run had the ones of today."""
    return hashlib.sha256(
        "\n".join(sorted(f["name"] for f in members(family))).encode()
    ).hexdigest()[:16]


def read():
    return json.loads(LEDGER.read_text()) if LEDGER.exists() else {}


def write(found):
    LEDGER.write_text(json.dumps(read() | found, indent=1, sort_keys=True) + "\n")


@functools.cache
def unchanged(family):
    """Whether all tests of it passed as it is now."""
    return family in read() and read()[family] == digest(family)
