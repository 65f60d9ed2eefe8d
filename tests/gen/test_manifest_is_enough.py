# SPDX-License-Identifier: Apache-2.0
"""The manifest alone (`kfgen list --json`) suffices for a layer above kf: shapes for fake kernels,
prototypes of functions on tensors, a program with two calls and one workspace, results by the
formulas. The tests compare these (from_manifest.py) with their own tools."""

import ast
import json
import subprocess
import sys

import cases
import checks
import from_manifest
import kflib
import numpy as np
import pytest
import scipy.special as sp

# One function per feature of formulas, in float64, so that rounding does not hide a wrong formula.
FEATURES = {
    "elements": "kf_add_mish_f64",
    "scalars": "kf_leaky_relu_scale_bwd_f64",
    "rows": "kf_bias_gelu_bwd_f64",
    "halves": "kf_silu_glu_bwd_f64",
    "channels": "kf_batch_norm_tanh_bwd_f64",
    "dropout": "kf_bias_relu_dropout_bwd_f64",
    "sums of a row": "kf_layer_norm_f64",
    "saved values": "kf_layer_norm_bwd_f64",
    "an output that others read": "kf_add_rms_norm_f64",
    "planes": "kf_instance_norm_bwd_f64",
    "groups": "kf_group_norm_relu_bwd_f64",
    "rows that are channels": "kf_batch_norm_train_f64",
    "queries": "kf_scale_causal_softmax_f64",
    "masks": "kf_scale_bool_mask_softmax_f64",
    "labels": "kf_cross_entropy_bwd_f64",
    "picked weights": "kf_cross_entropy_weighted_f64",
    "an axis": "kf_std_bwd_f64",
    "products": "kf_prod_bwd_f64",
    "products of matrices": "kf_linear_gelu_mul_bwd_f64",
    "added to what is there": "kf_matmul_tn_f64",
}
REST = {"dims": "rest"}
TWO = (
    ("kf_layer_norm_bwd_f32", {"rows": 300, "cols": 64}),
    ("kf_bias_bwd_f32", {"rows": 5000, "cols": 96}),
)
TYPES = """#include <stdint.h>
typedef enum { KF_SUCCESS } kf_result_t;
typedef struct kf_context_t kf_context_t;
typedef struct kf_tensor_t kf_tensor_t;
typedef struct kf_stream_t kf_stream_t;
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    with open(path, "w") as out:
        subprocess.run(
            [sys.executable, kflib.ROOT / "gen/bin/kfgen", "list", "--json"], stdout=out, check=True
        )
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def functions(manifest):
    """Functions whose sizes follow from a tensor's shape."""
    return {f["name"]: f for f in manifest["functions"] if f["axes"] and f["sizes"]}


def test_nothing_else_is_read():
    tree = ast.parse((kflib.ROOT / "tests/support/functions/from_manifest.py").read_text())
    assert [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ] == ["import size_rules"]  # the frontends' evaluator


@pytest.mark.check
def test_it_is_what_tests_read(manifest):
    assert manifest == json.loads(json.dumps(kflib.manifest()))


def more_dimensions(f, sizes):
    """Returns (shape, axis) of a tensor with one dimension more on each side where allowed, or
    {name: shape} if several tensors determine the sizes."""
    if f["axes"]["shaped_by"]:
        more = {
            size: (n,)
            for size, n in (("batch", 2), ("rows", 3))
            if f["axes"]["sizes"].get(size) == REST
        }
        return {
            a["name"]: tuple(
                n
                for extent, size in zip(a["shape"], from_manifest.extents(a, sizes))
                for n in (*more.get(extent, ()), size)
            )
            for a in from_manifest.tensors(f, "in", "inout")
            if a["name"] in f["axes"]["shaped_by"]
        }, None
    elem = next(a for a in from_manifest.tensors(f) if a["kind"] in ("elem", "half"))
    shape, rules = from_manifest.extents(elem, sizes), list(f["axes"]["sizes"].values())
    if f["form"] == "groups":
        shape = shape[:1] + shape[2:]
    axis = f["axes"]["axis"]
    has_back = len(rules) > 1 and rules[-1] == REST
    axis = None if axis is None else 1 if has_back else axis
    front = (2,) if {"dims": "before axis"} in rules[:1] or rules[0] == REST else ()
    back = (3,) if has_back else ()
    return front + shape + back, None if axis is None else axis + len(front) if axis >= 0 else axis


@pytest.mark.check
def test_fake_kernels(functions):
    """Output shapes that the manifest gives for tensors of more dimensions must equal those that
    checks.py allocates."""
    for f in functions.values():
        sizes, groups = dict(zip(f["sizes"], cases.shapes(f)[0][0])), 1
        if f["form"] == "groups":
            sizes, groups = sizes | {"length": 1}, sizes["groups"]
        shape, axis = more_dimensions(f, sizes)
        found = from_manifest.sizes_of(f, shape, axis, groups)
        fixed = all(rule == {"dims": 1} for rule in f["axes"]["sizes"].values())
        assert list(found) == f["sizes"] and (found == sizes) == fixed, f["name"]
        made = from_manifest.fake(f, found)
        assert (made or from_manifest.tensors(f, "inout")) and all(
            want == (checks.shape_of(f, tuple(found.values()), a), a["dtype"])
            for a in from_manifest.tensors(f, "out", "sum")
            for want in [made[a["name"]]]
        ), f["name"]
        if f["axes"]["shaped_by"]:
            continue
        whole = [
            np.prod(s)
            for name, (s, _) in made.items()
            if next(a for a in f["arguments"] if a["name"] == name)["kind"] == "elem"
        ]
        assert all(
            n
            == np.prod(shape)
            / (2 if "half" in {a["kind"] for a in from_manifest.tensors(f)} else 1)
            for n in whole
        ), f["name"]


@pytest.mark.check
def test_prototypes(functions, tmp_path):
    """All dtypes of a function must share one prototype, which a C compiler accepts."""
    found = {}
    for f in functions.values():
        found.setdefault((f["base"], f["bwd"], f["state"]), set()).add(from_manifest.fused(f))
    assert all(len(texts) == 1 for texts in found.values()), [
        texts for texts in found.values() if len(texts) > 1
    ][:3]
    texts = sorted(text for texts in found.values() for text in texts)
    assert len(texts) > 700 and len({text.split("(")[0] for text in texts}) == len(texts)
    assert (
        "kf_result_t kf_fused_layer_norm_gelu(kf_context_t *context, const kf_tensor_t *x, "
        "const kf_tensor_t *weight, const kf_tensor_t *bias, "
        "kf_tensor_t *out, kf_tensor_t *mean, kf_tensor_t *rstd, double eps, kf_stream_t *stream);"
    ) in texts
    (tmp_path / "fused.h").write_text(TYPES + "\n".join(texts) + "\n")
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wpedantic",
            "-fsyntax-only",
            "-x",
            "c",
            tmp_path / "fused.h",
        ],
        check=True,
    )


@pytest.mark.check
def test_two_calls_through_one_workspace(functions, tmp_path):
    source = tmp_path / "two.c"
    source.write_text(from_manifest.composition([(functions[name], sizes) for name, sizes in TWO]))
    include = [word for d in kflib.render(tmp_path) for word in ("-isystem", d)]
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            *include,
            source,
            "-o",
            tmp_path / "two",
            "-lm",
        ],
        check=True,
    )
    printed = subprocess.run([tmp_path / "two"], capture_output=True, text=True, check=True).stdout
    rows = [[int(word) for word in line.split()] for line in printed.splitlines()]
    workspace = 5
    assert (
        [row[1:] for row in rows] == [[0, workspace]] * 2
        and all(row[0] > 0 for row in rows)
        and rows[0][0] != rows[1][0]
    ), printed


@pytest.fixture(scope="module")
def library(functions):
    found = [functions[name] for name in FEATURES.values()]
    return kflib.Lib(
        "cpu", kflib.library("cpu", found, kflib.ROOT / "build/tests/enough", flags=["-O1"])
    )


@pytest.mark.check
@pytest.mark.parametrize("feature", FEATURES)
def test_formulas(feature, manifest, functions, library):
    """A call's results must equal those of the NumPy statements in the manifest."""
    f = functions[FEATURES[feature]]
    sizes = {
        "flat": (37,),
        "rows": (5, 12),
        "planes": (3, 4, 10),
        "channels": (3, 4, 10),
        "groups": (2, 3, 2, 6, 5),
        "heads": (2, 3, 5, 7),
        "axis": (3, 8, 5),
    }.get(f["form"], (2, 3, 5, 4))
    call = checks.Layout(library, f, sizes)
    memory = checks.CpuMemory()
    result, back = memory.run(call.image, lambda base: library.call(f, call.given(base)))
    assert result == 0, library.detail
    names = (
        dict(zip(f["sizes"], sizes))
        | dict(call.scalars)
        | dict(zip(("keep", "keep_scale"), call.mask()))
        | {"T": np.float64}
    )
    names |= {
        name: call.data[name]
        for name, a in call.tensors.items()
        if a["role"] == "in" and not a["unread"]
    }
    want = from_manifest.evaluate(manifest, f, names, np, sp)
    for name, got in call.outputs(back).items():
        np.testing.assert_allclose(
            got, want[name], rtol=1e-12, atol=1e-12, err_msg=f"{f['name']}: {name}"
        )
