# SPDX-License-Identifier: Apache-2.0
"""Checks docs/which_function.md: every op has a row, launchers and aliases are current.

After a change of those: KF_UPDATE=1 pytest tests/docs/test_which_function.py
tests/frontends/test_which_function.py compares the expressions of a row.
"""

import os
import re

from conftest import ROOT
from kfgen.entries import aliases

PAGE = ROOT / "docs/which_function.md"
ROW = re.compile(r"^(\| .+ \| `kf\.ops\.([\w{}]+)\(.*\)` \|).*$", re.M)
LISTED = re.compile(r"(<!-- aliases -->\n).*?(<!-- /aliases -->)", re.S)
COMPANIONS = re.compile(r"^Each function of this table exists with `(_\w+)`", re.M)
RENAMED = re.compile(r"`(\w+)` with it is `(\w+)`")
UPDATE = os.environ.get("KF_UPDATE")


def launchers(manifest):
    """Returns {op: the C launcher of its first dtypes}, with {act} for the activation. Functions
    over lists have the table of their family's page.
    """
    found = {}
    for f in manifest["functions"]:
        if any(a.get("list") for a in f["arguments"]):
            continue
        if not f["bwd"] and not f["state"] and "c" in f["backends"]:
            found.setdefault(f["op"], f"kf_cpu_{f['op']}_{'_'.join(f['dtypes'])}")
    return found


def listed():
    """Returns the table of aliases."""
    lines = ["| alias | function |", "|:--|:--|"]
    for name, entry in aliases.load().items():
        given = ", ".join(entry["arguments"])
        lines.append(f"| `{name}({given})` | `{entry['function']}` |")
    return "\n".join(lines) + "\n"


def companions(text):
    """Returns the ops that sentences below a table name by their suffix; a later sentence counts
    those of an earlier one, too."""
    found, renamed = set(), dict(RENAMED.findall(text))
    for section in text.split("\n## "):
        named = [op for _, op in ROW.findall(section)]
        for suffix in COMPANIONS.findall(section):
            names = {op: name for op, name in renamed.items() if name.endswith(suffix)}
            more = [names.get(op, op + suffix) for op in named]
            found.update(more)
            named += more
    return found


def test_every_op_has_a_row_with_its_launcher(manifest):
    text, known = PAGE.read_text(), launchers(manifest)
    now = ROW.sub(lambda m: f"{m[1]} `{known.get(m[2])}` |", text)
    now = LISTED.sub(lambda m: m[1] + listed() + m[2], now)
    if UPDATE:
        PAGE.write_text(now)
    assert PAGE.read_text() == now, "run KF_UPDATE=1 pytest tests/docs/test_which_function.py"
    named = [op for _, op in ROW.findall(now)]
    explained = set(re.findall(r"`kf\.ops\.(\w+_with_grad)\(", now)) | companions(now)
    assert len(named) == len(set(named)) and {*named, *explained} == set(known)
