# SPDX-License-Identifier: Apache-2.0
"""The comparison with filed shares of a copy (bench/regression.py)."""

import sys

import kflib
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))
import case  # noqa: E402
import regression  # noqa: E402
import store  # noqa: E402


def row(name, share, sizes=(8, 4)):
    return {"function": name, "sizes": list(sizes), "percent_of_copy": share}


def test_what_fell_is_told(tmp_path):
    old = [row("kf_a", 50.0), row("kf_b", 50.0), row("kf_c", 50.0)]
    store.write(tmp_path / "rows.json", {"set": "rows"}, old)
    store.write(tmp_path / "regression.json", {"set": "regression"}, [row("kf_b", 80.0)])
    known = regression.shares(tmp_path)
    assert known[("kf_b", (8, 4))] == (80.0, "regression")
    rows = [row("kf_a", 47.6), row("kf_b", 75.0), row("kf_c", 60.0), row("kf_a", 9.0, (3, 4))]
    lines, bad = regression.compare(rows, known)
    assert bad and [line.split()[-1] for line in lines[:3]] == ["%", "FELL", "rose"]
    assert "50.0 in rows,  -4.8 %" in lines[0] and lines[3].endswith("nothing filed")
    lines, bad = regression.compare([rows[0], rows[2]], known)
    assert not bad
    lines, bad = regression.compare([{"function": "kf_a", "sizes": [8], "wrong": "a.b"}], known)
    assert bad and lines[0].endswith("WRONG a.b")


def test_folder():
    assert regression.folder_of("NVIDIA H200").name == "h200"
    assert regression.folder_of("NVIDIA H100 80GB HBM3").name == "h100"


def test_the_set_has_forty_calls():
    entry, cases = case.load("regression", kflib.manifest())
    assert entry["backend"] == "cuda" and len(cases) == 40
