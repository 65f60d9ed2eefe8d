# SPDX-License-Identifier: Apache-2.0
"""Tests the benchmark driver without a GPU: cases, shapes, bytes, and a small run.

With PyTorch also the formulas of its baselines.
"""

import functools
import importlib
import json
import subprocess
import sys
import tomllib
from unittest import mock

import kflib
import pytest
from conftest import ROOT

BENCH = ROOT / "bench"
sys.path.append(str(BENCH))
import case  # noqa: E402

SETS = case.read()["set"]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")


@pytest.fixture(scope="module")
def sets(manifest):
    return {name: case.load(name, manifest)[1] for name in SETS}


@pytest.mark.check
@pytest.mark.parametrize("name", SETS)
def test_every_case_is_a_call(name, sets):
    """Sizes are as the launcher takes them, and no case appears twice."""
    assert len({c.key for c in sets[name]}) == len(sets[name]) > 0
    for c in sets[name]:
        assert len(c.sizes) == len(c.f["sizes"]) and all(
            isinstance(n, int) and n > 0 for n in c.sizes
        ), c.key
        assert c.outputs and c.bytes > 0, c.key
        assert (c.forward is not None) is c.f["bwd"], c.key
        assert set(c.saved) <= {a["name"] for a in c.inputs} and c.results, c.key


@pytest.mark.check
@needs_torch
@pytest.mark.parametrize("name", SETS)
def test_every_case_has_sets_of_tensors(name, sets):
    """The tensor sets of a case together, or a single one, exceed any L2 cache."""
    import contenders

    for c in sets[name]:
        count = contenders.sets_of(c, SETS[name]["backend"])
        assert count == 1 or count >= 3 and count * c.bytes >= contenders.COLD_BYTES, c.key
        assert count > 1 or SETS[name]["backend"] == "cpu" or c.bytes >= contenders.WHOLE, c.key


def test_the_sets_that_are_run_by_hand(sets):
    assert 40 <= len(sets["headline"]) <= 60 and len(sets["smoke"]) == 12
    for name in ("headline", "smoke", "smoke_cpu"):
        assert {c.f["family"] for c in sets[name]} >= {"elementwise", "rows", "reduction"} and {
            c.f["bwd"] for c in sets[name]
        } == {False, True}
    gpu = [c for name, entry in SETS.items() if entry["backend"] == "cuda" for c in sets[name]]
    assert max(c.bytes for c in gpu) < 12 << 30, (
        "four tensors and float64 copies of parts fit into 80 GB"
    )


def test_the_headline_s_rows_are_measured(sets):
    """The set has the functions and sizes of README's table."""
    keys = {(c.f["name"], *c.sizes) for c in sets["headline"]}
    cited = tomllib.loads((BENCH / "cited.toml").read_text())
    assert [row for row in cited["headline"]["rows"] if tuple(row) not in keys] == []


def one(sets, function, *sizes):
    return next(
        c for found in sets.values() for c in found if c.f["name"] == function and c.sizes == sizes
    )


def test_bytes_are_those_of_every_tensor_once(sets):
    """Compares with bytes computed by hand."""
    n = 1 << 26
    assert one(sets, "kf_gelu_bf16", n).bytes == 2 * 2 * n
    assert one(sets, "kf_bias_gelu_bf16", 16384, 4096).bytes == 2 * (2 * n + 4096)
    softmax = one(sets, "kf_softmax_bwd_bf16", 32768, 4096)
    assert softmax.bytes == 2 * 3 * 2 * n and softmax.saved == ["out"]  # x is not read
    norm = one(sets, "kf_layer_norm_bwd_bf16", 32768, 4096)
    assert (
        norm.bytes == 2 * (3 * 2 * n + 3 * 4096) + 4 * 2 * 32768
    )  # x, dout, dx; weight, dweight, dbias; mean, rstd
    assert norm.saved == ["mean", "rstd"] and norm.wanted == ["x", "weight", "bias"]
    layer = one(sets, "kf_linear_gelu_bf16", 1, 4096, 4096, 4096)
    assert layer.skip == ("pre",) and layer.bytes == 2 * (
        3 * 4096 * 4096 + 4096
    )  # x, weight, out; bias
    both = one(sets, "kf_add_rms_norm_bwd_bf16", 32768, 4096)
    assert "dresidual" not in [a["name"] for a in both.outputs] and both.results == [
        "out",
        "residual_out",
    ]
    assert one(sets, "kf_sum_f32", 1, n, 1).bytes == 4 * n + 4


def test_shapes_of_rows(manifest):
    f = {f["name"]: f for f in manifest["functions"]}
    n = 1 << 27
    for form, name in (
        ("rows", "kf_softmax_bf16"),
        ("planes", "kf_instance_norm_bf16"),
        ("heads", "kf_scale_mask_softmax_bf16"),
        ("groups", "kf_group_norm_bf16"),
        ("channels", "kf_batch_norm_train_bf16"),
    ):
        for length in (128, 1024, 65536):
            found = case.of_rows(form, n, length)
            assert len(found) == (2 if form in ("groups", "channels") else 1)
            for sizes in found:
                c = case.Case(f[name], sizes)
                assert c.elements == n and case.length_of(c.f, sizes) == length
                assert c.variant == ("NHWC" if sizes[-1] == 1 else "")
    assert case.of_axis("64 x * x 4096", n) == (64, 512, 4096) and case.of_axis("1 x * x 1", n) == (
        1,
        n,
        1,
    )


def test_a_wrong_list_is_named(manifest, monkeypatch, tmp_path):
    text = case.PATH.read_text().replace(
        '["kf_gelu_bf16", 67108864],', '["kf_no_such_bf16", 67108864],', 1
    )
    monkeypatch.setattr(case, "PATH", tmp_path / "shapes.toml")
    case.PATH.write_text(text)
    with pytest.raises(SystemExit, match="kf_no_such_bf16"):
        case.load("headline", manifest)


FAMILIES = sorted({f["family"] for f in kflib.manifest()["functions"]})


@functools.cache
def tables():
    """Returns {family: its module peers.py}, run with a stand-in for PyTorch: tables may be
    computed, and the test needs no PyTorch."""
    names = ("torch", "torch.nn", "torch.nn.functional")
    loaded = [name for name in sys.modules if name.split(".")[0] in ("torch", "peers")]
    with mock.patch.dict(sys.modules):
        for name in loaded:
            del sys.modules[name]
        sys.modules.update({name: mock.MagicMock(__spec__=None) for name in names})
        return importlib.import_module("peers").FAMILIES


def test_every_op_that_a_set_names_has_a_formula(sets):
    """peers.py of a family has a formula per op.

    A new op is timed beside a copy until it has one.
    """
    named = {
        (c.f["family"], c.f["op"])
        for name in ("headline", "smoke", "smoke_cpu")
        for c in sets[name]
    }
    assert [op for family, op in sorted(named) if op not in tables()[family].FORWARD] == []


def test_formulas_are_of_ops(manifest):
    """No formula remains of a removed op."""
    for family in FAMILIES:
        ops = {f["op"] for f in manifest["functions"] if f["family"] == family}
        assert [
            (table, op)
            for table in ("FORWARD", "BACKWARD", "LIMIT", "DRAW")
            for op in getattr(tables()[family], table, ())
            if op not in ops
        ] == []


@needs_torch
def test_formulas_of_reductions():
    from peers import reduction

    ops = {f["op"] for f in kflib.manifest()["functions"] if f["family"] == "reduction"}
    assert set(reduction.FORWARD) <= ops


@needs_torch
def test_gradients_that_share_memory_are_compared_with_each_of_a_peer_s(sets):
    import check
    import torch

    add = one(sets, "kf_add_relu_bwd_bf16", 1 << 26)
    assert add.by_result and [a["name"] for a in add.outputs] == ["da"]
    inputs = {a["name"]: torch.tensor([1.0, 0.0]) for a in add.inputs}
    assert {name: t.tolist() for name, t in check.reference(add, inputs, {}, None).items()} == {
        "da": [1.0, 0.0],
        "db": [1.0, 0.0],
    }


@needs_torch
def test_results_of_tf32_are_checked(sets):
    """Accepts PyTorch's results in tf32's accuracy and rejects results off by a tenth."""
    import argparse
    import dataclasses

    import check
    import contenders
    import data

    for c in sets["products_tf32"]:
        small = dataclasses.replace(c, sizes=(1, 40, 24, 16))
        inputs, outputs = data.Pool("cpu").tensors(small, 0)
        call, names = contenders.peer_calls(
            small, [(inputs, outputs)], argparse.Namespace(no_compile=True, mode="default")
        )["eager"]
        found = dict(zip(names, call(0)))
        check.peer(small, inputs, found, c.key)
        assert (
            check.kf(
                small, inputs, {n: t.detach() for n, t in found.items()}, contenders.DROPOUT, c.key
            )
            <= 1
        )
        with pytest.raises(check.Wrong):
            check.kf(
                small,
                inputs,
                {n: 1.1 * t.detach() for n, t in found.items()},
                contenders.DROPOUT,
                c.key,
            )


def small_gradient(sets, function, sizes):
    """Returns a case on few elements, its inputs, its float64 outputs and its check."""
    import dataclasses

    import check
    import contenders
    import data

    whole = next(c for c in sets["roofline"] if c.f["name"] == function)
    c = dataclasses.replace(whole, sizes=sizes)
    inputs, outputs = data.Pool("cpu").tensors(c, 0)

    def outputs_of(inputs):
        found = check.reference(c, inputs, {}, contenders.DROPOUT)
        return {name: found[name].to(t.dtype).reshape(t.shape) for name, t in outputs.items()}

    return (
        c,
        inputs,
        outputs_of,
        lambda inputs, found: check.kf(c, inputs, found, contenders.DROPOUT, c.key),
    )


@needs_torch
@pytest.mark.parametrize(
    "function, sizes",
    [
        ("kf_bias_relu_bwd_f32", (64, 32)),
        ("kf_bias_gelu_bwd_f32", (64, 32)),
        ("kf_prelu_bias_bwd_f32", (64, 32)),
        ("kf_bias_relu_dropout_bwd_f32", (64, 32)),
        ("kf_batch_norm_relu_bwd_f32", (4, 8, 16)),
    ],
)
def test_one_wrong_column_of_a_reduced_gradient_is_seen(sets, function, sizes):
    import check

    c, inputs, outputs_of, checked = small_gradient(sets, function, sizes)
    right = outputs_of(inputs)
    assert checked(inputs, right) <= 1
    for a in [a for a in c.outputs if a["role"] == "sum"]:
        wrong = {name: t.clone() for name, t in right.items()}
        wrong[a["name"]][3] += 0.3 * wrong[a["name"]].abs().max()
        with pytest.raises(check.Wrong, match=f"{a['name']}: 1 of"):
            checked(inputs, wrong)


@needs_torch
def test_a_column_may_be_off_by_what_its_elements_near_a_kink_are_worth(sets):
    """Either branch is right at a kink, as in kf's own tests."""
    import check

    c, inputs, outputs_of, checked = small_gradient(sets, "kf_bias_relu_add_bwd_f32", (64, 32))
    inputs["x"][7, 5] = -inputs["bias"][5]
    right, term = outputs_of(inputs), float(inputs["dout"][7, 5])
    for column, off, seen in (
        (5, term, False),
        (5, -term, False),
        (5, 40 * term, True),
        (6, term, True),
    ):
        found = {name: t.clone() for name, t in right.items()}
        found["dbias"][column] += off
        if seen:
            with pytest.raises(check.Wrong, match="dbias: 1 of"):
                checked(inputs, found)
        else:
            checked(inputs, found)


@pytest.mark.check
@needs_torch
def test_a_small_run_is_right(tmp_path):
    """Compares every function and baseline with float64 and times all."""
    out = tmp_path / "smoke.json"
    command = [
        sys.executable,
        str(BENCH / "bench.py"),
        "--set",
        "smoke_cpu",
        "--rounds",
        "1",
        "--out",
        str(out),
        "--build-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert all(r["speedup"] and r["error"] <= 1 and "iqr_us" in r["times"]["kf"] for r in rows)


def test_layers_groups_name_what_there_is():
    import layers

    names = {f["name"] for f in kflib.manifest()["functions"]}
    for group in layers.groups().values():
        for contender in group["contenders"]:
            words, options = layers.parse(contender)
            assert options <= {"bias", "pre", "early"}
            assert (
                words[0] in ("torch", "compile")
                or layers.function_of(words, group["dtype"]) in names
            ), contender
        for pair in group["ratios"]:
            own, peers = pair.split(" : ")
            assert {own, *peers.split(" | ")} <= set(group["contenders"])


@pytest.mark.parametrize(
    "contender",
    [
        "torch product",
        "torch nn",
        "torch tn",
        "torch tt",
        "torch linear bias",
        "torch relu bias",
        "torch gelu bias",
        "torch gated",
    ],
)
def test_layers_formulas_of_torch(contender):
    """Each formula equals the reference, and a disturbed result does not."""
    torch = pytest.importorskip("torch")
    import layers

    t = layers.Tensors(torch, "f32", (5, 7, 9), "cpu")
    words, options = layers.parse(contender)
    got = layers.by_torch(t, words, options)(0)
    assert layers.error(got, layers.wanted(t, words)) < 1e-5
    assert layers.error(got + 0.05 * got.abs().max(), layers.wanted(t, words)) > 0.02


def test_llmc_is_compiled_as_its_makefile_does(tmp_path, monkeypatch):
    """Uses --use_fast_math, without which llm.c is slower than for its users."""
    import llmc

    (tmp_path / "llmc").mkdir()
    (tmp_path / "llmc/matmul.cuh").write_text("// CUDA kernels\n// kernel launchers\n")
    commands = []
    monkeypatch.setattr(llmc.subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(llmc.ctypes, "CDLL", lambda path: path)
    assert len(llmc.built(tmp_path, tmp_path / "build", ["-O3"])) == 2 == len(commands)
    assert all(
        {"-O3", "--use_fast_math", "-std=c++17", "-DENABLE_BF16"} <= set(command)
        for command in commands
    )
