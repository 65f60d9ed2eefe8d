# SPDX-License-Identifier: Apache-2.0
"""Records which families are unchanged since all of their tests passed, at level 1 in full or at
level 2: tests/golden/families.json has a digest per family.

Level 1 runs a thin cover of an unchanged family (selection.gate, tiers.py), so its time grows with
the change, not with the number of families. promises.py writes the file after a complete passing
run.
"""

import functools
import hashlib
import json
import os
import pathlib
import re

import kflib
import tiers

LEDGER = kflib.ROOT / "tests/golden/families.json"
# Comments, or literals, which may contain what looks like a comment.
SOURCES = (".py", ".h", ".cuh", ".c", ".cpp", ".cu", ".ld")
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')', re.S)


def members(family):
    return [f for f in kflib.manifest()["functions"] if f["family"] == family]


def families():
    return sorted({f["family"] for f in kflib.manifest()["functions"]})


@functools.cache
def digest_of_group(name):
    """Returns a digest of all families, of the group's tests and what these use, and of the files
    of tiers.READ."""
    below = sorted(p for p in (kflib.ROOT / "tests").rglob("*") if p.suffix in SOURCES)
    paths = [p for p in below if p.is_relative_to(kflib.ROOT / "tests/support")]
    folders = {p.parent for p in below if tiers.group(_from_root(p)) == name}
    paths += [p for p in below if p.parent in folders]
    read = {p for pattern in tiers.READ[name] for p in kflib.ROOT.glob(pattern)}
    paths += sorted(p for p in read if p.is_file() and p.suffix not in (".md", ".pyc"))
    content = [digest(f) for f in families()], [(_from_root(p), p.read_text()) for p in paths]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def _from_root(path):
    return path.relative_to(kflib.ROOT).as_posix()


@functools.cache
def digest(family):
    """Returns a digest of the prototypes of a family's functions, of the code of its headers and of
    what these include, and of the family's own tests. Comments and white space of headers do not
    count, nor what else the manifest says: tests of its own hold that."""
    include = kflib.render(None)
    headers = sorted({f["header"] for f in members(family)})
    text = "".join(f'#include "{h}.h"\n#include "{h}.cuh"\n' for h in headers)
    code = [(name, _code(name, include)) for name in sorted(kflib.closure(text, include))]
    tests = sorted((kflib.ROOT / "tests/families" / family).rglob("*.py"))
    prototypes = [f.get(word) for f in members(family) for word in ("signature", "cpu_signature")]
    content = prototypes, code, [(path.name, path.read_text()) for path in tests]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def _code(name, include):
    """Returns a digest of a header's code, or "" if no folder of `include` has it."""
    path = next((p for d in include if (p := pathlib.Path(d) / name).is_file()), None)
    return _digest_of_code(path, os.stat(path).st_mtime_ns) if path else ""


@functools.cache
def _digest_of_code(path, when):
    """when: modification time, a part of the cache's key."""
    text = COMMENT.sub(lambda found: found[1] or " ", path.read_text())
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


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
    """True if all tests of the family, or of one of tiers.GROUPS, passed in its present state."""
    filed = read().get(family)
    return filed is not None and filed == (
        digest_of_group(family) if family in tiers.GROUPS else digest(family)
    )
