# SPDX-License-Identifier: Apache-2.0
"""What is published of the filed measurements: nothing that holds a peer's time on the host."""

import json
import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "bench"))
import charts  # noqa: E402
import report  # noqa: E402
import store  # noqa: E402

GPU = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "bench/results/h200").glob("*.json"))
LAUNCHED_AT_ONCE = {"cub"}  # a peer without a framework's code between call and launch


def how_timed(row, peer):
    """As the file says: in a graph, behind a full queue ("events" of elementwise results), behind a waiting kernel; or otherwise."""
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
    """An event on an idle GPU and a few calls behind it time the peer's Python: such a file withdraws the peer, and its table has no ratio of it."""
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
        assert f"**Ratios to {report.PEERS[peer]} are withdrawn**: {why}." in report.about(which)
        assert report.PEERS[peer] not in report.peers(which) + report.losses(which) + report.every(
            which
        )
    assert {peer for row in report.load(which)["rows"] for peer in row["speedup"]} == left


def test_the_charts_are_those_of_the_filed_results():
    """By a hash of what they show: python3 bench/report.py draws them again."""
    assert charts.stale() == []
    assert {p.stem for p in charts.FOLDER.iterdir()} == set(charts.CHARTS)
    page = (ROOT / "docs/performance.md").read_text()
    assert [name for name in charts.CHARTS if f"](img/{name}.svg)" not in page] == []


def test_a_chart_of_other_data_is_stale(monkeypatch):
    """One figure of one file differs."""
    data = json.loads(json.dumps(report.load("h200/rows")))
    data["rows"][0]["percent_of_copy"] += 1
    monkeypatch.setattr(report, "load", lambda which: data)
    monkeypatch.setattr(
        charts, "CHARTS", {"softmax": lambda: charts.by_length("h200/rows", "cross_entropy")}
    )
    before = charts.stamp("softmax")
    data["rows"][0]["percent_of_copy"] -= 1
    assert charts.stamp("softmax") != before


def test_results_are_filed_with_as_many_digits_as_mean_something(tmp_path):
    """Nothing is lost, and every filed result was written so."""
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
