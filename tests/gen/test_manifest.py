# SPDX-License-Identifier: Apache-2.0
"""The manifest describes all that callers need: shapes, counterparts, scalars, workspaces. Nobody
needs to parse a name."""

import math

import cases
import checks
import from_manifest
import kflib
import pytest
from kfgen.model import shapes

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"]}
TENSOR = {"input", "weight", "output", "saved", "gradient"}


def tensors(f, *uses):
    return {a["name"]: a for a in f["arguments"] if a.get("use") in (uses or TENSOR)}


# fmt: off
@pytest.mark.parametrize("name, shape, options, sizes, shapes", [
    ("kf_add_relu_f32", (2, 3, 4), {}, {"n": 24}, {"out": (24,)}),
    ("kf_bias_gelu_bwd_bf16", (2, 3, 4), {}, {"rows": 6, "cols": 4},
     {"dx": (6, 4), "dbias": (4,)}),
    ("kf_batch_norm_relu_f32", (2, 3, 4, 5), {}, {"outer": 2, "channels": 3, "inner": 20},
     {"out": (2, 3, 20)}),
    ("kf_layer_norm_bf16_f32", (7, 2, 9), {}, {"rows": 14, "cols": 9},
     {"out": (14, 9), "mean": (14,), "rstd": (14,)}),
    ("kf_group_norm_f16", (2, 6, 4, 4), {"groups": 3},
     {"outer": 2, "length": 1, "groups": 3, "channels": 6, "inner": 16},
     {"out": (2, 1, 6, 16), "mean": (2, 3), "rstd": (2, 3)}),
    ("kf_scale_causal_softmax_f32", (5, 2, 3, 8), {},
     {"batch": 5, "heads": 2, "queries": 3, "keys": 8}, {"out": (5, 2, 3, 8)}),
    ("kf_sum_f64", (4, 5, 6), {"axis": 1}, {"outer": 4, "axis": 5, "inner": 6}, {"out": (4, 6)}),
    ("kf_gelu_glu_f32", (3, 8), {}, {"rows": 3, "cols": 4}, {"out": (3, 4)}),
])
# fmt: on
def test_shapes_from_any_tensor(name, shape, options, sizes, shapes):
    f = FUNCTIONS[name]
    found = from_manifest.sizes_of(f, shape, **options)
    assert found == sizes
    assert {name: shape for name, (shape, _) in from_manifest.fake(f, found).items()} == shapes


def test_shapes_are_those_of_the_calls():
    for f in kflib.of_tensors():
        sizes = dict(zip(f["sizes"], cases.shapes(f)[0][0]))
        for a in tensors(f).values():
            assert from_manifest.extents(a, sizes) == tuple(
                checks.shape_of(f, tuple(sizes.values()), a)
            ), (f["name"], a)


def test_counterparts():
    """A backward takes its forward's inputs and outputs, and the gradients of the outputs. A
    mismatch breaks every autograd layer that is generated from the manifest."""
    # Products also have backwards of two dtypes.
    of = {
        f["forward"]
        for f in FUNCTIONS.values()
        if f["bwd"]
    }
    assert (
        of == {n for n, f in FUNCTIONS.items() if f["backward"] is not None and not f["bwd"]}
        and len(of) > 1000
    )
    for f in FUNCTIONS.values():
        assert f["forward" if not f["bwd"] else "backward"] == f["name"]
        if not f["bwd"]:
            assert f["backward"] is None or FUNCTIONS[f["backward"]]["forward"] == f["name"]
            continue
        forward = tensors(FUNCTIONS[f["forward"]])
        for name, a in tensors(f).items():
            if a["use"] == "gradient":
                of = forward[a["of"]]
                # Gradients of weights may be wider than the weights.
                [role] = [v["of"] for v in f["variables"] if v["name"] == a["var"]] or [""]
                assert (of["role"] == "in") == (a["role"] != "in") and of["shape"] == a["shape"], (
                    f["name"],
                    name,
                )
                assert of["var"] == a["var"] or role == "gradients of weights", (f["name"], name)
            else:
                of = forward[name]
                assert a["role"] == "in" and [of[k] for k in ("use", "shape", "dtype", "var")] == [
                    a[k] for k in ("use", "shape", "dtype", "var")
                ]


def test_uses():
    uses = [a["use"] for a in tensors(FUNCTIONS["kf_layer_norm_gelu_bf16_f32"]).values()]
    assert uses == ["input", "weight", "weight", "output", "saved", "saved"]
    uses = {name: a["use"] for name, a in tensors(FUNCTIONS["kf_batch_norm_train_f32"]).items()}
    names = ("weight", "running_mean", "running_mean_out")
    assert [uses[n] for n in names] == ["weight", "input", "output"]
    indices = {a["name"] for f in FUNCTIONS.values() for a in f["arguments"] if a.get("index")}
    assert indices == {"label", "index", "position", "type"}


def test_what_null_means():
    """NULL means: an unread input, an input's neutral value, an unwanted output, or an absent
    argument that is not a tensor."""
    seen = {}
    for f in FUNCTIONS.values():
        for a in f["arguments"]:
            assert ("null" in a) == ("kind" in a or "*" in a["ctype"]), (f["name"], a)
            seen.setdefault(a.get("null"), set()).add(a["role"])
            if "kind" in a:
                assert (a["null"] == "unread") == a["unread"] and (
                    a["absent"] is None or a["null"] in ("absent", "unread")
                ), (f["name"], a)
    assert seen == {
        "": {"in", "inout", "out", "shape", "lengths", "seed_at", "offset_at"},
        **dict.fromkeys(("unread", "absent", "inputs", "result"), {"in"}),
        "skipped": {"inout", "out", "sum"},
        "dense": {"strides"},
        "no bytes": {"workspace"},
        None: set(seen[None]),
    }
    # fmt: off
    for name, nulls in {
        "kf_bias_relu_bwd_f32": {
            "x": "result", "bias": "result", "out": "inputs", "dx": "skipped", "dbias": "skipped",
        },
        "kf_layer_norm_relu_bwd_f32": {
            "weight": "absent", "bias": "absent", "out": "unread",
            "dx": "skipped", "dweight": "skipped", "dbias": "skipped",
        },
    }.items():
        found = {n: a["null"] for n, a in tensors(FUNCTIONS[name]).items() if a["null"]}
        assert found == nulls, name
    # fmt: on


def test_numbers_of_columns():
    """An index operand states its range and the result of an index outside of it."""
    found = {
        (f["op"], f["bwd"]): a["index"]
        for f in FUNCTIONS.values()
        for a in tensors(f).values()
        if a["index"]
    }
    assert (
        found["nll", False] == {"least": 0, "below": "cols", "outside": "NaN"}
        and found["nll", True]["outside"] == "no gradient"
    )
    assert {op for op, _ in found} >= {
        "cross_entropy",
        "cross_entropy_weighted",
        "cross_entropy_with_grad",
        "nll",
        "embedding",
    }


def test_what_a_backward_needs():
    """`saves` lists the forward's tensors that the backward reads; they depend on the
    activation."""
    # fmt: off
    saved = {
        "kf_add_relu_f32": ["a", "b"],
        "kf_add_f32": [],
        "kf_layer_norm_f32": ["x", "weight", "mean", "rstd"],
        "kf_layer_norm_relu_f32": ["x", "weight", "bias", "mean", "rstd"],
        "kf_softmax_f32": ["out"],
        "kf_cast_f32_f16": [],
        "kf_add_i32": [],
    }
    assert {n: FUNCTIONS[n]["saves"] for n in saved} == saved
    by_result = {
        "kf_add_relu_f32": (["out"], []),
        "kf_add_relu_bwd_f32": (["out"], []),
        "kf_axpby_leaky_relu_f32": (["out"], ["negative_slope"]),
        "kf_bias_elu_f32": (["out"], ["elu_alpha"]),
        "kf_add_gelu_f32": (None, []),
        "kf_mul_relu_f32": (None, []),
        "kf_layer_norm_relu_f32": (None, []),
        "kf_add_relu_i32": (None, []),
    }
    assert by_result == {
        n: (FUNCTIONS[n]["saves_by_result"], FUNCTIONS[n]["rising"]) for n in by_result
    }
    # fmt: on
    for f in FUNCTIONS.values():
        backward = f["backward"] and tensors(FUNCTIONS[f["backward"]])
        forward = (
            {
                n: a
                for n, a in backward.items()
                if a["role"] == "in" and a["use"] != "gradient" and not a["unread"]
            }
            if backward
            else {}
        )
        read = [n for n, a in forward.items() if a["null"] != "inputs"]
        assert f["saves_by_result"] in (
            None,
            [n for n, a in forward.items() if a["null"] != "result"],
        ), f["name"]
        assert f["saves"] == read and set(read) <= set(tensors(FUNCTIONS[f["forward"]])), f["name"]


def test_which_inputs_have_a_gradient():
    for f in FUNCTIONS.values():
        given = (
            {
                a["of"]: n
                for n, a in tensors(FUNCTIONS[f["backward"]]).items()
                if a["use"] == "gradient"
            }
            if f["backward"]
            else {}
        )
        for name, a in tensors(f).items():
            assert a["gradient"] == given.get(name, ""), (f["name"], name)
            whole = {
                n: t["shape"]
                for n, t in tensors(f).items()
                if t["kind"] in ("elem", "half", "halves", "neighbours", "more")
            }
            summed = a["use"] == "gradient" and a["role"] != "in" and name not in whole
            elem = whole.get(
                name.removeprefix("d").removesuffix("_weight"), next(iter(whole.values()), [])
            )  # k of dk_weight
            along = {name for extent in a["extents"] for name in shapes.names(extent)}
            own = getattr(cases.own(f), "SUMMED", {}).get(a["kind"])
            over = [e for e in elem if e not in along] if own is None else own
            assert a["summed_over"] == (over if summed else []), (f["name"], name)
    assert tensors(FUNCTIONS["kf_group_norm_bwd_f32"])["dweight"]["summed_over"] == [
        "outer",
        "length",
        "inner",
    ]
    assert tensors(FUNCTIONS["kf_linear_silu_glu_bwd_f32"])["dweight"]["summed_over"] == ["rows"]
    assert tensors(FUNCTIONS["kf_layer_norm_f32"])["weight"]["gradient"] == "dweight"
    assert tensors(FUNCTIONS["kf_scale_mask_softmax_f32"])["mask"]["gradient"] == ""


def test_how_frameworks_use_it():
    """Frameworks read the dtypes under autocast, whether elements may be permuted, and the
    backends."""
    autocast = {
        "kf_add_relu_f32": "promote",
        "kf_gelu_f32": "same",
        "kf_softmax_f32": "float32",
        "kf_mse_f32": "float32",
        "kf_mse_mean_f32": "float32",
        "kf_add_i32": "same",
        "kf_cast_f16_f32": "same",
        "kf_silu_mul_bwd_f32": "promote",
    }
    assert {n: FUNCTIONS[n]["autocast"] for n in autocast} == autocast
    permutable = {f["op"] for f in FUNCTIONS.values() if f["permutable"]}
    assert {"add_{act}", "cast", "{act}_mul"} <= permutable and not permutable & {
        "{act}_dropout",
        "bias_{act}",
        "softmax",
        "{act}_glu",
        "sum",
    }
    ordered = {f["op"] for f in FUNCTIONS.values() if f["any_order"]}
    assert permutable | {"{act}_dropout", "bias_{act}", "{act}_glu", "batch_norm_{act}"} <= ordered
    assert ordered >= {"batch_norm_train_{act}", "group_norm_{act}"}
    others = {"softmax", "layer_norm_{act}", "instance_norm_{act}", "sum", "transpose", "adamw"}
    assert not ordered & others
    last = {f["op"] for f in FUNCTIONS.values() if (f["axes"] or {}).get("channels_last")}
    assert last == {"group_norm_{act}"}
    axes = FUNCTIONS["kf_group_norm_f32"]["axes"]
    assert [*axes["channels_last"]] == [*axes["sizes"]]
    for f in FUNCTIONS.values():
        both = ["cuda", "c"][: 1 if f["dtypes"][0] == "tf32" else 2]
        assert (
            f["backends"] == both
            and f["architecture"] == 75
            and f["base"]
        ), f["name"]
    assert FUNCTIONS["kf_bias_gelu_bwd_bf16"]["base"] == "bias_gelu"


def test_tolerance():
    assert FUNCTIONS["kf_gelu_bf16"]["tolerance"] == {"factor": 7, "epsilon": 2.0**-23, "ulp": 1}
    assert FUNCTIONS["kf_add_f64"]["tolerance"] == {"factor": 2, "epsilon": 2.0**-52, "ulp": 0}
    assert [n for n, f in FUNCTIONS.items() if f["tolerance"] is None] == [
        n for n, f in FUNCTIONS.items() if f["op"] == "cast" or f["integer"]
    ]


def test_type_variables():
    for f in FUNCTIONS.values():
        dtypes = {v["name"]: v["dtype"] for v in f["variables"]}
        # A name leaves these out.
        usual = [("U", f["dtypes"][0]), ("I", "i64")]
        if f["dtypes"] == ["tf32"]:
            assert dtypes == {"T": "f32"} | ({"U": "f32"} if "U" in dtypes else {})
            continue
        assert f["dtypes"] == [
            dtypes["T"],
            *(dtypes[v] for v in "UI" if v in dtypes and (v, dtypes[v]) not in usual),
        ], f["name"]
        for a in tensors(f).values():
            assert a["dtype"] == dtypes.get(a["var"], a["var"]), (f["name"], a)


def test_scalars():
    """Every scalar's default and test value must be within its bounds."""
    seen = {}
    for f in FUNCTIONS.values():
        for a in f["arguments"]:
            if a["role"] in ("scalar", "integer", "act_scalar"):
                for number in (a["default"], f["scalars"][a["name"]]):
                    assert (a["least"] is None or a["least"] <= number) and (
                        a["most"] is None or number <= a["most"]
                    )
                seen[a["name"]] = a["default"]
            where = (
                "host"
                if a["role"] in ("shape", "strides", "lengths")
                else "device"
                if "*" in a.get("ctype", "*")
                else None
            )
            assert a.get("memory") == where, a
    assert (
        seen["label_smoothing"] == seen["z_loss"] == 0
        and seen["eps"] > 0
        and seen["ignore_index"] == -100
        and seen["negative_slope"] == 0.01
    )


def test_workspaces_of_two_calls():
    """A composition of calls can compute its workspace from the manifest's names and arguments."""
    wanted = []
    for name, sizes in (
        ("kf_layer_norm_gelu_bwd_bf16", {"rows": 64, "cols": 256}),
        ("kf_sum_bf16", {"outer": 1, "axis": 64, "inner": 256}),
    ):
        f = FUNCTIONS[name]
        assert set(f["workspace_arguments"]) <= set(f["sizes"]) and "WORKSPACE" in f["errors"]
        wanted.append(
            f"{f['workspace']}({', '.join(str(sizes[s]) for s in f['workspace_arguments'])})"
        )
    assert wanted == [
        "kf_layer_norm_gelu_bwd_bf16_workspace_bytes(64, 256)",
        "kf_sum_bf16_workspace_bytes(1, 64, 256)",
    ]
    for f in FUNCTIONS.values():
        assert (f["workspace"], f["cpu_workspace"]) in (
            (None, None),
            tuple(f"{f[n]}_workspace_bytes" for n in ("name", "cpu_name")),
        )
        assert f["workspace"] or not (
            f["bwd"]
            or f["scratch"]
            or f["form"] in ("planes", "groups", "channels", "axis")
            and f["family"] != "elementwise"
        )
    assert all(
        bool(f["workspace"]) == ("WORKSPACE" in f["errors"]) == bool(f["workspace_arguments"])
        for f in kflib.of_tensors()
    )


def test_a_backward_has_the_scalars_of_its_forward():
    """A backward has all scalars of its forward, read or unread, and marks the unread ones, so that
    a better derivative never changes a signature."""
    for f in FUNCTIONS.values():
        if f["bwd"]:
            own, forward = (
                [
                    (a["name"], a["role"], a["ctype"])
                    for a in g["arguments"]
                    if a["role"] in ("scalar", "integer", "act_scalar")
                ]
                for g in (f, FUNCTIONS[f["forward"]])
            )
            assert own == forward, f["name"]
    unread = {
        "kf_batch_norm_train_bwd_f32": ["eps", "momentum"],
        "kf_layer_norm_bwd_f32": ["eps"],
        "kf_cross_entropy_bwd_f32": [],
        "kf_huber_bwd_f32": [],
    }
    for name, scalars in unread.items():
        arguments = FUNCTIONS[name]["arguments"]
        assert scalars == [a["name"] for a in arguments if a.get("unread") and "use" not in a], name


def test_where_a_dropout_reads_seed_and_offset():
    order = ("probability", "seed", "offset", "seed_at", "offset_at", "offset_add", "workspace")
    for f in FUNCTIONS.values():
        if f["dropout"]:
            found = [
                (a["role"], a.get("memory")) for a in f["arguments"] if a["role"] in order[:-1]
            ]
            given = (
                [("seed_at", "device"), ("offset_at", "device"), ("offset_add", None)]
                if f["state"]
                else [("seed", None), ("offset", None)]
            )
            assert found == [("probability", None), *given], f["name"]
            roles = [a["role"] for a in f["arguments"]]
            assert all(role in order for role in roles[roles.index("probability") :]), f["name"]


def test_cost():
    f = FUNCTIONS["kf_bias_gelu_bf16"]
    assert eval(f["cost"]["bytes"], {}, {"rows": 10, "cols": 4}) == 2 * (40 + 4 + 40)
    for f in kflib.of_tensors():
        # Tables are read in part, so their bytes are not counted.
        own = cases.own(f)
        if not f["axes"] or getattr(own, "READS_SOME_ROWS", False):
            continue
        sizes = dict.fromkeys(f["sizes"], 3)
        moved = [a for a in tensors(f).values() if not a["unread"] and a["null"] != "result"]
        found = sum(
            math.prod(from_manifest.extents(a, sizes)) * kflib.SIZE[a["dtype"]] for a in moved
        )
        extents, products = len(f["sizes"]) - ("groups" in f["sizes"]), 0
        # Products: the element expressions, and one product per weight, two in a backward.
        if hasattr(own, "work"):
            extents, products = own.work(f, 3)
        elif f["axes"]["shaped_by"]:
            weights = sum(
                1 + (a["kind"] == "two_rights")
                for a in tensors(f).values()
                if a["kind"] in ("right", "two_rights") and a["role"] == "in"
            )
            extents, products = 3, 2 * weights * (2 if f["bwd"] else 1) * 3**4
        assert (
            eval(f["cost"]["bytes"], {}, sizes) == found
            and eval(f["cost"]["flops"], {}, sizes) == f["flops"] * 3**extents + products
        )


def test_in_place():
    for f in FUNCTIONS.values():
        for a in tensors(f).values():
            for other in a["in_place"]:
                assert (
                    a["role"] != "in"
                    and tensors(f)[other]["role"] == "in"
                    and tensors(f)[other]["shape"] == a["shape"]
                )
    assert tensors(FUNCTIONS["kf_add_relu_f32"])["out"]["in_place"] == ["a", "b"]


# {family: {kind of tensor: suffix of its first stride}} of the tensors that may be strided.
STRIDED = {
    **dict.fromkeys(("rows", "reduction"), {"elem": ""}),
    "matmul": {
        **dict.fromkeys(("elem", "two_elems", "left", "right", "two_rights"), ""),
        **dict.fromkeys(("row", "two_rows", "depth"), "_batch"),
    },
    **cases.merged("STRIDED"),
}


def test_strides():
    """Each op has one struct of strides for both directions. It has fields for each tensor of a
    kind that may be strided, such as the elementwise tensors of rows and reductions."""
    structs = {}
    for f in FUNCTIONS.values():
        given = [a for a in f["arguments"] if a["role"] == "strides"]
        strided = STRIDED.get(f["family"], {})
        assert len(given) == bool(strided), f["name"]
        fields = given[0]["fields"] if given else []
        assert structs.setdefault(f["op"], (given and given[0]["struct"], fields)) == (
            given and given[0]["struct"],
            fields,
        ), f["name"]
        assert len(set(fields)) == len(fields)
        for name, a in tensors(f).items():
            assert a["broadcast"] == (bool(a["strides"]) and a["role"] == "in")
            assert bool(a["strides"]) == (a["kind"] in strided), (f["name"], name)
            at = fields.index(a["strides"][0]) if a["strides"] else 0
            assert fields[at : at + len(a["strides"])] == a["strides"] and (
                not a["strides"] or a["strides"][0] == name + strided[a["kind"]]
            )
    assert structs["softmax"] == ("kf_softmax_strides_t", ["x", "out", "dout", "dx"])
    assert structs["sum"][1] == ["x", "x_outer", "dx", "dx_outer"]
    assert structs["matmul_nn"][1] == [
        n + level for n in ("a", "b", "out", "dout", "da", "db") for level in ("", "_batch")
    ]


def test_numbers_that_a_loop_changes():
    """Frontends warn where they are left out, and decide by the field, not by a name."""
    arguments = [(f["op"], a) for f in FUNCTIONS.values() for a in f["arguments"]]
    found = {(op, a["name"]): a["changes"] for op, a in arguments if a.get("changes")}
    assert {(name, role) for (_, name), role in found.items()} == {
        ("step", "step"),
        ("seed", "seed"),
    }
    assert ("adamw", "step") in found and ("adamw_stochastic", "seed") in found
    assert not {op for op, _ in found} & {"sgd", "layer_norm_{act}", "{act}_dropout"}
