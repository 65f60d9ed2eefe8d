# SPDX-License-Identifier: Apache-2.0
"""Checks that the table of docs/compile_time.md is made from the filed results."""

import json
import sys

from kflib import ROOT

sys.path.append(str(ROOT / "bench"))
import compile_time  # noqa: E402


def test_the_table_is_made_from_the_results():
    result = json.loads(compile_time.RESULT.read_text())
    assert (
        f"{compile_time.MARK}\n{compile_time.table(result)}\n{compile_time.MARK}"
        in compile_time.PAGE.read_text()
    )
    assert set(result["seconds"]) == set(compile_time.METHODS)
    for t in result["seconds"].values():
        assert 0 < t["least"] <= t["median"] <= t["most"] and t["functions"] >= 20


def test_every_way_is_measured_on_functions_of_every_op():
    """Measures every fifth function, every hundredth by nvcc, and at least one of each op."""
    functions = compile_time.kflib.manifest()["functions"]
    found = compile_time.every(functions, 5)
    assert {f["op"] for f in found} == {f["op"] for f in functions} and len(
        {f["name"] for f in found}
    ) == len(found) < len(functions) / 4
