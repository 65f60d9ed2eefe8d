# SPDX-License-Identifier: Apache-2.0
"""The ABI of compiled launchers does not change unless KF_ABI_VERSION does. After an addition, or
with a new version: KF_UPDATE_GOLDEN=1 pytest tests/gen/test_abi.py
"""

import os
import re

import pytest
from kfgen.entries import spec
from kfgen.interfaces import abi
from kfgen.paths import called
from kfgen.render.render import ROOT, Selection

GOLDEN = ROOT / "tests/golden/abi.golden"
SELECTION = Selection(spec.load())


def test_golden():
    now = abi.text(SELECTION)
    before = GOLDEN.read_text() if GOLDEN.is_file() else now
    gone = abi.broken(before, now)
    assert not gone, (
        "these are in programs that were compiled with this KF_ABI_VERSION; "
        "raise it in include/kf/core/version.h:\n"
        + "\n".join(f"{statement}: {word}" for word, statement in gone[:20])
    )
    if os.environ.get("KF_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(now)
    assert GOLDEN.is_file() and GOLDEN.read_text() == now, (
        "KF_UPDATE_GOLDEN=1 pytest tests/gen/test_abi.py writes it anew"
    )


def test_every_function_is_in_it(manifest):
    """Each launcher's name follows from two facts, one of its dtypes and one of its activation."""
    _, facts = abi.parse(abi.text(SELECTION))
    assert len(manifest["functions"]) > 2700
    for f in manifest["functions"]:
        what = f"{f['op']}{', state' if f['state'] else ''}{', backward' if f['bwd'] else ''}"
        words = "_".join(dict.fromkeys(f["dtypes"]))
        assert any(
            word == words and statement.startswith(f"{what} (") for word, statement in facts
        ), f["name"]
        if "{act}" in f["op"]:
            assert any(
                word == f["activation"]
                and statement == f"activations of {what}{', integers' if f['integer'] else ''}"
                for word, statement in facts
            ), f["name"]


EDITS = [  # (in the text, instead, whether it breaks programs)
    ("3: kf_result_t KF_ERROR_INVALID_VALUE", "10: kf_result_t KF_ERROR_INVALID_VALUE", True),
    ("7: activation gelu ()", "19: activation gelu ()", True),
    (
        "2: activation leaky_relu (negative_slope)",
        "2: activation leaky_relu (negative_slope, other)",
        True,
    ),
    ("kf_f16 kf_bf16: struct { uint16_t bits; }", "kf_bf16: struct { uint16_t bits; }", True),
    ("(const T *x, T *out, int64_t n,", "(const T *x, T *out, int64_t n, S scale,", True),
    (
        "f32 f16 bf16 f64: bias_{act} (const T *x, const T *bias",
        "f32 f16 bf16 f64: bias_{act} (const T *bias, const T *x",
        True,
    ),
    ("f32 f16 bf16 f64: {act} (", "f32 bf16 f64: {act} (", True),
    ("none relu leaky_relu relu6", "none relu6", True),
    ("f32 f16 bf16 f64: {act} (", "f32 f16 bf16 f64 e4m3: {act} (", False),
    ("none relu leaky_relu relu6", "none relu new leaky_relu relu6", False),
    ("0: kf_dtype_t KF_F32\n", "0: kf_dtype_t KF_F32\n6: kf_dtype_t KF_E4M3\n", False),
]


@pytest.mark.parametrize(("old", "new", "breaks"), EDITS)
def test_what_asks_for_a_version(old, new, breaks):
    before = abi.text(SELECTION)
    assert old in before
    now = before.replace(old, new)
    assert bool(abi.broken(before, now)) == breaks
    raised = now.replace("1: KF_ABI_VERSION", "2: KF_ABI_VERSION")
    assert raised != now and not abi.broken(before, raised)


@pytest.mark.check
def test_an_edited_spec_is_seen(tmp_path, monkeypatch):
    """A scalar more, an operand swapped, an id changed: through the loader, not in the text."""
    before = abi.text(SELECTION)
    originals = {called(p): p.read_text() for p in spec.builtin_files()}
    edited_files = [tmp_path / file for file in originals]
    monkeypatch.setattr(spec, "builtin_files", lambda: edited_files)
    for name, pattern, instead in [
        ("entries/activations.toml", r"id = 7\n", "id = 30\n"),
        (
            "elementwise/ops.toml",
            r'operands = { x = "elem", bias = "row" }',
            'operands = { bias = "row", x = "elem" }',
        ),
        (
            "entries/activations.toml",
            r"scalars = { negative_slope = [\d.]+ }",
            "scalars = { slope = 0.01 }",
        ),
    ]:
        edited = re.sub(pattern, instead, originals[name])
        if "slope = 0.01" in instead:
            edited = edited.replace("negative_slope", "slope")
        assert edited != originals[name]
        for file, text in originals.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(edited if file == name else text)
        assert abi.broken(before, abi.text(Selection(spec.load()))), instead
