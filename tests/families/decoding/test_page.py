# SPDX-License-Identifier: Apache-2.0
"""Statements of docs/families/decoding.md that a caller copies: strides of other layouts."""

import re

import checks
import kflib
import numpy as np
import pytest
import strided
from conftest import BUILD, ROOT

PAGE = (ROOT / "docs/families/decoding.md").read_text()
MANIFEST = {f["name"]: f for f in kflib.manifest()["functions"]}
DECODE, APPEND = MANIFEST["kf_attention_decode_f32"], MANIFEST["kf_kv_append_f32"]
SIZES = {
    "batch": 3,
    "heads": 4,
    "kv_heads": 2,
    "queries": 2,
    "blocks": 6,
    "page_size": 4,
    "pages": 2,
    "dim": 8,
    "dim_v": 6,
    "positions": 12,
    "pairs": 3,
}


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", [DECODE, APPEND], BUILD / "decoding", ("-O1",))


def heads_first():
    """Returns {cache: its strides [head, row, block]} of the page for heads in front of rows."""
    text = " ".join(PAGE.split())
    known = dict(re.findall(r"`([kv]_cache\w*)` = ([\w* ]+?)(?=[,.]| and )", text))
    levels = ("_head", "", "_block")
    return {
        cache: [int(eval(known[cache + level], {}, SIZES)) for level in levels]  # noqa: S307
        for cache in ("k_cache", "v_cache")
    }


@pytest.mark.parametrize("f", [DECODE, APPEND], ids=["decode", "append"])
@pytest.mark.parametrize("drop", [(), ("page_table",)], ids=["pages", "contiguous"])
def test_strides_of_heads_in_front_of_rows(lib, f, drop):
    """They give the bits of a contiguous call, and leave no room between the blocks."""
    memory, strides = checks.CpuMemory(), heads_first()
    call = checks.Layout(lib, f, [SIZES[n] for n in f["sizes"]], drop=drop)
    call.put("key_length", np.array([3, 1, 2], np.int32))
    code, back = strided.memory_run(memory, call, lambda base: lib.call(f, call.given(base)))
    assert code == 0, lib.detail
    turned = strided.Call(call, strides)
    for cache, steps in strides.items():
        assert steps[2] * SIZES["blocks"] == call.data[cache].size
    strided.compare(*turned.run(lib, memory), call.outputs(back), "heads in front of rows")
