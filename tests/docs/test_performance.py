# SPDX-License-Identifier: Apache-2.0
"""Checks of the published measurements: no ratio includes a peer's time on the host."""

import json
import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))
import charts  # noqa: E402
import filed  # noqa: E402
import set_pages  # noqa: E402
import store  # noqa: E402
import tables  # noqa: E402

GPU = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "bench/results/h200").glob("*.json"))
LAUNCHED_AT_ONCE = {"cub"}  # no framework between call and launch


def how_timed(row, peer):
    """Returns "graph", "events" (full queue), "queued" (behind a waiting kernel), or None."""
    how = row["times"][peer].get("how", "")
    return (
        how
        if how in ("graph", "events")
        else "queued"
        if how.startswith("queued behind a waiting kernel")
        else None
    )


@pytest.mark.parametrize("file", GPU)
def test_a_ratio_is_published_only_if_no_host_time_is_in_it(file):
    """A file timed on an idle GPU includes the peer's Python, so it withdraws the peer."""
    data = json.loads((ROOT / file).read_text())
    for row in data["rows"]:
        for peer in set(row.get("speedup", ())) - set(data.get("withdrawn", ())) - LAUNCHED_AT_ONCE:
            assert how_timed(row, peer) in ("graph", "events", "queued"), (
                f"{row['function']}: how was {peer} timed?"
            )


@pytest.mark.parametrize(
    "file", [f for f in GPU if "withdrawn" in json.loads((ROOT / f).read_text())]
)
def test_withdrawn_peers_are_left_out(file):
    data, which = (
        json.loads((ROOT / file).read_text()),
        file.removeprefix("bench/results/").removesuffix(".json"),
    )
    left = {peer for row in data["rows"] for peer in row["speedup"]} - set(data["withdrawn"])
    for peer, why in data["withdrawn"].items():
        assert f"**Ratios to {filed.PEERS[peer]} are withdrawn**: {why}." in tables.about(which)
        assert filed.PEERS[peer] not in tables.peers(which) + tables.losses(which) + tables.every(
            which
        )
    assert {peer for row in filed.load(which)["rows"] for peer in row["speedup"]} == left


def test_the_charts_are_those_of_the_filed_results():
    """Compares a hash of their data; python3 bench/report.py draws them again."""
    assert charts.stale() == []
    assert {p.stem for p in charts.FOLDER.iterdir()} == set(charts.CHARTS)
    page = (ROOT / "docs/performance.md").read_text()
    assert [name for name in charts.CHARTS if f"](img/{name}.svg)" not in page] == []


def test_a_chart_of_other_data_is_stale(monkeypatch):
    """Changes one figure of one file."""
    data = json.loads(json.dumps(filed.load("h200/rows")))
    data["rows"][0]["percent_of_copy"] += 1
    monkeypatch.setattr(filed, "load", lambda which: data)
    monkeypatch.setattr(
        charts, "CHARTS", {"softmax": lambda: charts.by_length("h200/rows", "cross_entropy")}
    )
    before = charts.stamp("softmax")
    data["rows"][0]["percent_of_copy"] -= 1
    assert charts.stamp("softmax") != before


def test_results_are_filed_with_as_many_digits_as_mean_something(tmp_path):
    """Rounds to four significant digits, and every filed result was written that way."""
    times = {"us": 3442.792001806083, "iqr_us": 1.23456789e-07, "samples": 12345678}
    store.write(
        tmp_path / "made.json",
        {"set": "made", "copy": 0.1 + 0.2},
        [{"function": "kf_add_f32", "sizes": (8, 4096), "times": {"kf": times}}],
    )
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["copy"] == 0.3 and made["rows"][0]["sizes"] == [8, 4096]
    assert made["rows"][0]["times"]["kf"] == {
        "us": 3443.0,
        "iqr_us": 1.235e-07,
        "samples": 12345678,
    }
    filed = [
        p for p in (ROOT / "bench/results").rglob("*.json") if "rows" in json.loads(p.read_text())
    ]
    assert len(filed) > 10
    for path in filed:
        data = json.loads(path.read_text())
        assert store.rounded(data) == data, path


def test_every_filed_set_has_a_page():
    """A run of the driver on the H200 or the CPU is published by a page of its own."""
    left = {"cpu/products", "cpu/python"}  # quoted in bench/NOTES alone
    files = {
        p.relative_to(filed.RESULTS).with_suffix("").as_posix()
        for folder in ("h200", "cpu")
        for p in (filed.RESULTS / folder).glob("*.json")
    }
    assert files - left == set(set_pages.SETS)
    index = (ROOT / "docs/performance.md").read_text()
    names = [p.name for p in set_pages.pages()]
    assert [name for name in names if f"(performance/{name})" not in index] == []
