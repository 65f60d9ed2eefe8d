# SPDX-License-Identifier: Apache-2.0
"""What callers must know of a function stands in the manifest: shapes, counterparts, scalars, workspaces, without a name taken to pieces."""

import math

import cases
import checks
import kflib
import pytest

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"]}
TENSOR = {"input", "weight", "output", "saved", "gradient"}


def tensors(f, *uses):
    return {a["name"]: a for a in f["arguments"] if a.get("use") in (uses or TENSOR)}


def sizes_of(f, shape, axis=None, groups=1):
    """What a frontend does with a tensor of any number of dimensions."""
    default, parts = f["axes"]["axis"], f["axes"]["sizes"]
    at = None if default is None else (default if axis is None else axis) % len(shape)
    found = {"all": lambda: math.prod(shape), "before": lambda: math.prod(shape[:at]), "axis": lambda: shape[at],
             "after": lambda: math.prod(shape[at + 1:]), "one": lambda: 1, "groups": lambda: groups,
             "all but three": lambda: math.prod(shape[:-3])}
    return {s: shape[what] if isinstance(what, int) else found[what]() for s, what in parts.items()}


def fake(f, sizes):
    """The shapes of what a function writes, as a framework's fake kernel gives them."""
    return {name: tuple(eval(extent, {}, sizes) for extent in a["shape"]) for name, a in tensors(f).items() if a["role"] != "in"}


@pytest.mark.parametrize("name, shape, options, sizes, shapes", [
    ("kf_add_relu_f32", (2, 3, 4), {}, {"n": 24}, {"out": (24,)}),
    ("kf_bias_gelu_bwd_bf16", (2, 3, 4), {}, {"rows": 6, "cols": 4}, {"dx": (6, 4), "dbias": (4,)}),
    ("kf_batch_norm_relu_f32", (2, 3, 4, 5), {}, {"outer": 2, "channels": 3, "inner": 20}, {"out": (2, 3, 20)}),
    ("kf_layer_norm_bf16_f32", (7, 2, 9), {}, {"rows": 14, "cols": 9}, {"out": (14, 9), "mean": (14,), "rstd": (14,)}),
    ("kf_group_norm_f16", (2, 6, 4, 4), {"groups": 3}, {"outer": 2, "length": 1, "groups": 3, "channels": 6, "inner": 16},
     {"out": (2, 1, 6, 16), "mean": (2, 3), "rstd": (2, 3)}),
    ("kf_scale_causal_softmax_f32", (5, 2, 3, 8), {}, {"batch": 5, "heads": 2, "queries": 3, "keys": 8}, {"out": (5, 2, 3, 8)}),
    ("kf_sum_f64", (4, 5, 6), {"axis": 1}, {"outer": 4, "axis": 5, "inner": 6}, {"out": (4, 6)}),
    ("kf_gelu_glu_f32", (3, 8), {}, None, {"out": (3, 8)})])
def test_shapes_from_any_tensor(name, shape, options, sizes, shapes):
    f = FUNCTIONS[name]
    found = sizes_of(f, shape, **options)
    assert sizes is None or found == sizes
    assert fake(f, found) == shapes


def test_shapes_are_those_of_the_calls():
    for f in FUNCTIONS.values():
        sizes = dict(zip(f["sizes"], cases.shapes(f)[0][0]))
        for a in tensors(f).values():
            assert tuple(eval(extent, {}, sizes) for extent in a["shape"]) == tuple(checks.shape_of(f, tuple(sizes.values()), a)), (f["name"], a)


def test_counterparts():
    """A backward's inputs are what its forward is given and gives, and the gradients of what it gives."""
    assert sum(f["bwd"] for f in FUNCTIONS.values()) == sum(f["backward"] is not None and not f["bwd"] for f in FUNCTIONS.values()) > 1000
    for f in FUNCTIONS.values():
        assert f["forward" if not f["bwd"] else "backward"] == f["name"]
        if not f["bwd"]:
            assert f["backward"] is None or FUNCTIONS[f["backward"]]["forward"] == f["name"]
            continue
        forward = tensors(FUNCTIONS[f["forward"]])
        for name, a in tensors(f).items():
            if a["use"] == "gradient":
                of = forward[a["of"]]
                assert (of["role"] == "in") == (a["role"] != "in") and (of["shape"], of["var"]) == (a["shape"], a["var"]), (f["name"], name)
            else:
                of = forward[name]
                assert a["role"] == "in" and [of[k] for k in ("use", "shape", "dtype", "var")] == [a[k] for k in ("use", "shape", "dtype", "var")]


def test_uses():
    uses = {name: a["use"] for name, a in tensors(FUNCTIONS["kf_layer_norm_gelu_bf16_f32"]).items()}
    assert uses == {"x": "input", "weight": "weight", "bias": "weight", "out": "output", "mean": "saved", "rstd": "saved"}
    uses = {name: a["use"] for name, a in tensors(FUNCTIONS["kf_batch_norm_train_f32"]).items()}
    assert [uses[n] for n in ("weight", "running_mean", "running_mean_out")] == ["weight", "input", "output"]
    assert {a["name"] for f in FUNCTIONS.values() for a in f["arguments"] if a.get("column")} == {"label"}


def test_type_variables():
    for f in FUNCTIONS.values():
        dtypes = {v["name"]: v["dtype"] for v in f["variables"]}
        assert dtypes["T"] == f["dtypes"][0] and dtypes.get("U", dtypes["T"]) == f["dtypes"][-1]
        for a in tensors(f).values():
            assert a["dtype"] == dtypes.get(a["var"], a["var"]), (f["name"], a)


def test_scalars():
    """Each has a default, within its bounds, and so has the value that tests use."""
    seen = {}
    for f in FUNCTIONS.values():
        for a in f["arguments"]:
            if a["role"] in ("scalar", "integer", "act_scalar"):
                for number in (a["default"], f["scalars"][a["name"]]):
                    assert (a["least"] is None or a["least"] <= number) and (a["most"] is None or number <= a["most"])
                seen[a["name"]] = a["default"]
            where = "host" if a["role"] == "strides" else "device" if "*" in a.get("ctype", "*") else None
            assert a.get("memory") == where, a
    assert seen["label_smoothing"] == seen["z_loss"] == 0 and seen["eps"] > 0 and seen["ignore_index"] == -100 and seen["negative_slope"] == 0.01


def test_workspaces_of_two_calls():
    """What a composition of calls asks for before it: from the names and arguments in the manifest."""
    wanted = []
    for name, sizes in (("kf_layer_norm_gelu_bwd_bf16", {"rows": 64, "cols": 256}), ("kf_sum_bf16", {"outer": 1, "axis": 64, "inner": 256})):
        f = FUNCTIONS[name]
        assert set(f["workspace_arguments"]) <= set(f["sizes"]) and "WORKSPACE" in f["errors"]
        wanted.append(f"{f['workspace']}({', '.join(str(sizes[s]) for s in f['workspace_arguments'])})")
    assert wanted == ["kf_layer_norm_gelu_bwd_bf16_workspace_bytes(64, 256)", "kf_sum_bf16_workspace_bytes(1, 64, 256)"]
    for f in FUNCTIONS.values():
        assert (f["workspace"], f["cpu_workspace"]) in ((None, None), tuple(f"{f[n]}_workspace_bytes" for n in ("name", "cpu_name")))
        assert f["workspace"] or not (f["bwd"] or f["scratch"] or f["form"] in ("planes", "groups", "channels", "axis") and f["family"] != "map")
    assert all(bool(f["workspace"]) == ("WORKSPACE" in f["errors"]) == bool(f["workspace_arguments"]) for f in FUNCTIONS.values())


def test_a_backward_has_the_scalars_of_its_forward():
    """Read or not, and the unread ones say so: a better derivative changes no signature."""
    for f in FUNCTIONS.values():
        if f["bwd"]:
            own, forward = ([(a["name"], a["role"], a["ctype"]) for a in g["arguments"] if a["role"] in ("scalar", "integer", "act_scalar")]
                            for g in (f, FUNCTIONS[f["forward"]]))
            assert own == forward, f["name"]
    unread = {name: [a["name"] for a in FUNCTIONS[name]["arguments"] if a.get("unread") and "use" not in a]
              for name in ("kf_batch_norm_train_bwd_f32", "kf_layer_norm_bwd_f32", "kf_cross_entropy_bwd_f32", "kf_huber_bwd_f32")}
    assert unread == {"kf_batch_norm_train_bwd_f32": ["eps", "momentum"], "kf_layer_norm_bwd_f32": ["eps"], "kf_cross_entropy_bwd_f32": [],
                      "kf_huber_bwd_f32": []}


def test_where_a_dropout_reads_seed_and_offset():
    order = ("probability", "seed", "offset", "seed_at", "offset_at", "offset_add", "workspace")
    for f in FUNCTIONS.values():
        if f["dropout"]:
            found = [(a["role"], a.get("memory")) for a in f["arguments"] if a["role"] in order[:-1]]
            given = [("seed_at", "device"), ("offset_at", "device"), ("offset_add", None)] if f["state"] else [("seed", None), ("offset", None)]
            assert found == [("probability", None), *given], f["name"]
            roles = [a["role"] for a in f["arguments"]]
            assert all(role in order for role in roles[roles.index("probability"):]), f["name"]


def test_cost():
    f = FUNCTIONS["kf_bias_gelu_bf16"]
    assert eval(f["cost"]["bytes"], {}, {"rows": 10, "cols": 4}) == 2 * (40 + 4 + 40)
    for f in FUNCTIONS.values():
        sizes = dict.fromkeys(f["sizes"], 3)
        moved = [a for a in tensors(f).values() if not a["unread"]]
        found = sum(math.prod(eval(extent, {}, sizes) for extent in a["shape"]) * kflib.SIZE[a["dtype"]] for a in moved)
        extents = len(f["sizes"]) - ("groups" in f["sizes"])
        assert eval(f["cost"]["bytes"], {}, sizes) == found and eval(f["cost"]["flops"], {}, sizes) == f["flops"] * 3**extents


def test_in_place():
    for f in FUNCTIONS.values():
        for a in tensors(f).values():
            for other in a["in_place"]:
                assert a["role"] != "in" and tensors(f)[other]["role"] == "in" and tensors(f)[other]["shape"] == a["shape"]
    assert tensors(FUNCTIONS["kf_add_relu_f32"])["out"]["in_place"] == ["a", "b"]


def test_strides():
    """Of ops over rows and reductions, each tensor of elements has fields in the one struct of its op, whose order is that of both directions."""
    structs = {}
    for f in FUNCTIONS.values():
        given = [a for a in f["arguments"] if a["role"] == "strides"]
        assert len(given) == (f["family"] in ("row", "reduce")), f["name"]
        fields = given[0]["fields"] if given else []
        assert structs.setdefault(f["op"], (given and given[0]["struct"], fields)) == (given and given[0]["struct"], fields), f["name"]
        assert len(set(fields)) == len(fields)
        for name, a in tensors(f).items():
            assert bool(a["strides"]) == (bool(given) and a["kind"] == "elem"), (f["name"], name)
            at = fields.index(a["strides"][0]) if a["strides"] else 0
            assert fields[at:at + len(a["strides"])] == a["strides"] and (not a["strides"] or a["strides"][0] == name)
    assert structs["softmax"] == ("kf_softmax_strides_t", ["x", "out", "dout", "dx"])
    assert structs["sum"][1] == ["x", "x_outer", "dx", "dx_outer"]
