# SPDX-License-Identifier: Apache-2.0
"""Tests type variables: the functions that tables and their abbreviations make, and what the
manifest, pages and frontends say of their dtypes.
"""

import pytest
import user_ops
from kfgen.entries import expand, spec
from kfgen.interfaces import abi, frontend, manifest, packed, runtime
from kfgen.model import dtypes, names, types
from kfgen.render import docs
from kfgen.render.render import Selection
from spec_errors.texts import reduce, row
from spec_errors.type_variables import product

FLOATS = ("f32", "f16", "bf16", "f64")
WIDER = (*FLOATS, "f16_f32", "bf16_f32")


def words(of, indexed=False, selected=dtypes.DTYPES):
    """Returns the dtypes in the names of the functions."""
    found = of.functions(of.names, indexed, selected)
    return tuple(names.dtype_words(names.words(t)) for t in found)


@pytest.mark.parametrize(
    "word, want",
    [
        ("one", FLOATS),
        ("weights", WIDER),
        ("results", WIDER),
        ("gradients", WIDER),
        ("products", (*FLOATS, "tf32", "f16_f32", "bf16_f32")),
    ],
)
def test_abbreviations(word, want):
    assert words(types.ABBREVIATIONS[word]) == want


def test_conversions():
    found = words(types.ABBREVIATIONS["pairs"])
    assert found == tuple(f"{a}_{b}" for a in dtypes.STORED for b in dtypes.STORED if a != b)


def test_indices_come_last():
    assert words(types.ABBREVIATIONS["one"], indexed=True) == (
        *FLOATS,
        *(f"{d}_i32" for d in FLOATS),
    )


def test_selected_dtypes():
    """A function exists if all its dtypes are selected; tf32 is stored as f32."""
    weights, products = (types.ABBREVIATIONS[word] for word in ("weights", "products"))
    assert words(weights, selected=("bf16", "f64")) == ("bf16", "f64")
    assert words(weights, selected=("bf16", "f32")) == ("f32", "bf16", "bf16_f32")
    assert words(products, selected=("tf32", "f16")) == ("f16",)
    assert words(products, selected=("tf32", "f32")) == ("f32", "tf32")


def table(**members):
    return types.Types(tuple(types.Variable(name, of) for name, of in members.items()))


def test_a_product_without_equal_functions():
    of = table(T=("f16", "bf16"), W=("T", "f32"), V=("f32", "acc"))
    assert of.functions(of.names, False) == [
        {"T": "f16", "W": "f16", "V": "f32"},
        {"T": "bf16", "W": "bf16", "V": "f32"},
        {"T": "f16", "W": "f32", "V": "f32"},
        {"T": "bf16", "W": "f32", "V": "f32"},
    ]
    assert words(of) == ("f16_f32", "bf16_f32", "f16_f32_f32", "bf16_f32_f32")
    assert of.clash(of.names, False) is None


def test_a_variable_of_an_earlier_one():
    of = table(T=("f16",), W=("f32", "T"), V=("W",))
    assert words(of) == ("f16", "f16_f32_f32")


def test_names_that_clash():
    of = table(T=("f32",), U=("T", "i32"))
    assert of.clash(of.names, False) is None
    assert of.clash(of.names, True) == (
        {"T": "f32", "U": "i32", "I": "i64"},
        {"T": "f32", "U": "f32", "I": "i32"},
    )


def test_a_storage_type_to_come(monkeypatch):
    """A dtype that is stored in one byte and computed in float32 needs no change of the model."""
    for word in ("e4m3", "e5m2"):
        one = dtypes.Dtype(word, f"kf_{word}", 1, "f32", "lp")
        monkeypatch.setitem(dtypes.DTYPE, word, one)
    of = table(T=("e4m3", "e5m2"), W=("e4m3", "e5m2"), U=("bf16", "acc"))
    found = words(of, selected=(*dtypes.DTYPES, "e4m3", "e5m2"))
    assert set(found) == {
        *(f"{a}_{u}" for a in ("e4m3", "e5m2") for u in ("bf16", "f32")),
        *(f"{a}_{b}_{u}" for a, b in (("e4m3", "e5m2"), ("e5m2", "e4m3")) for u in ("bf16", "f32")),
    }


# ---- entries -------------------------------------------------------------------------------------


def functions(path, text):
    path.write_text(text)
    return {f["name"]: f for f in user_ops.functions(path, ["none"])}


WEIGHTS = row(
    "own",
    types='{ T = ["f16", "bf16"], W = ["T", "f32"], B = ["f32"] }',
    operands='{ x = "elem", w = { kind = "row", dtype = "W" }, b = { kind = "row", dtype = "B" } }',
    expr='"x * w / sum(x) + b"',
)


def test_weights_of_two_variables(tmp_path):
    found = functions(tmp_path / "mine.toml", WEIGHTS)
    assert list(found) == [
        f"kf_own_{bwd}{word}"
        for word in ("f16_f32", "bf16_f32", "f16_f32_f32", "bf16_f32_f32")
        for bwd in ("", "bwd_")
    ]
    f = found["kf_own_bwd_bf16_f32"]
    assert f["variables"] == [
        {"name": "T", "dtype": "bf16", "of": "elements"},
        {"name": "W", "dtype": "bf16", "of": "weights"},
        {"name": "B", "dtype": "f32", "of": "weights"},
    ]
    assert {a["name"]: (a["var"], a["dtype"]) for a in f["arguments"] if "kind" in a} == {
        **{name: ("T", "bf16") for name in ("x", "dout", "dx")},
        **{name: ("W", "bf16") for name in ("w", "dw")},
        **{name: ("B", "f32") for name in ("b", "db")},
    }
    assert f["forward"] == "kf_own_bf16_f32"


def test_what_pages_and_the_abi_say(tmp_path):
    (tmp_path / "mine.toml").write_text(WEIGHTS)
    selection = user_ops.selected(tmp_path / "mine.toml", ["none"])
    op = selection.spec.ops["own"]
    signature = docs.entry(op, selection.kernels(op))["signatures"][1]
    assert "kf_[cpu_]own_T_W_B(const T *x, const W *w, const B *b, T *out," in signature
    facts = {line for line in abi.text(selection).splitlines() if ": own (" in line}
    assert len(facts) == 2  # weights in T or in float32
    assert all("const T *x" in line and "T *out" in line for line in facts)


def test_what_frontends_read(tmp_path):
    (tmp_path / "mine.toml").write_text(WEIGHTS)
    made = manifest.build(user_ops.selected(tmp_path / "mine.toml", ["none"]))
    [entry] = frontend.table(made)["ops"]
    assert entry["variables"] == [
        {"name": "T", "of": "elements"},
        {"name": "W", "of": "weights"},
        {"name": "B", "of": "weights"},
    ]
    assert entry["types"] == [
        {"T": "f16", "W": "f16", "B": "f32"},
        {"T": "bf16", "W": "bf16", "B": "f32"},
        {"T": "f16", "W": "f32", "B": "f32"},
        {"T": "bf16", "W": "f32", "B": "f32"},
    ]
    assert entry["asked"] == ""


def test_functions_on_tensors(tmp_path):
    """They know T and one further type variable, whatever its name."""
    (tmp_path / "mine.toml").write_text(WEIGHTS)
    made = manifest.build(user_ops.selected(tmp_path / "mine.toml", ["none"]))
    assert runtime.functions(made) == [] and len(packed.functions(made)) == len(made["functions"])
    weight = '{ x = "elem", w = { kind = "row", dtype = "W" } }'
    (tmp_path / "mine.toml").write_text(
        row(
            "own",
            types='{ T = ["bf16"], W = ["T", "f32"] }',
            operands=weight,
            expr='"x * w / sum(x)"',
        )
    )
    made = manifest.build(user_ops.selected(tmp_path / "mine.toml", ["none"]))
    forward, backward = runtime.functions(made)
    assert [forward.operand(a).split(", ")[2] for a in forward.tensors] == [
        "KFI_RT_T",
        "KFI_RT_U",
        "KFI_RT_T",
    ]
    assert "{KF_BF16, KF_F32, KF_BF16}, 2, {KF_BF16, KF_F32}" in forward.entry(forward.members[1])
    assert "KFI_RT_U" in backward.operand(backward.tensors[-1])


def test_results_of_two_variables(tmp_path):
    found = functions(
        tmp_path / "mine.toml",
        reduce(
            expr=None,
            ref=None,
            types='{ T = ["bf16"], M = ["f32"], S = ["f16", "T"] }',
            outputs='{ m = { expr = "mean(x)", dtype = "M" }, '
            's = { expr = "sum(x)", dtype = "S" } }',
            refs='{ m = "mean(x)", s = "sum(x)" }',
        ),
    )
    assert list(found) == [
        f"kf_total_{bwd}{word}" for word in ("bf16_f32", "bf16_f32_f16") for bwd in ("", "bwd_")
    ]
    f = found["kf_total_bwd_bf16_f32_f16"]
    assert [v["of"] for v in f["variables"]] == ["elements", "results", "results"]
    given = {a["name"]: (a["var"], a["dtype"]) for a in f["arguments"] if a["role"] == "in"}
    assert given == {"x": ("T", "bf16"), "dm": ("M", "f32"), "ds": ("S", "f16")}


def test_gradients_of_another_dtype(tmp_path):
    """Weights' gradients have a variable of their own, which only backwards have."""
    weight = '{ x = "left", weight = { kind = "right", grad = "G" } }'
    found = functions(
        tmp_path / "mine.toml",
        product(types='{ T = ["f16", "bf16"], G = ["f32"] }', operands=weight),
    )
    assert list(found) == [
        f"kf_own_{word}" for word in ("f16", "bwd_f16_f32", "bf16", "bwd_bf16_f32")
    ]
    backward = found["kf_own_bwd_bf16_f32"]
    assert backward["variables"][1] == {"name": "G", "dtype": "f32", "of": "gradients of weights"}
    assert backward["forward"] == "kf_own_bf16"
    assert found["kf_own_bf16"]["backward"] == "kf_own_bwd_bf16_f32"
    assert {v["name"] for v in found["kf_own_bf16"]["variables"]} == {"T"}


@pytest.mark.parametrize("family", ["elementwise", "rows"])
def test_gradients_of_two_dtypes_share_no_pointer(tmp_path, family):
    """Equal gradients may have one pointer, but only if all functions give them one dtype."""
    rows = {"family": '"rows"', "expr": '"x / sum(x) + w + b + c"'}
    elements = {"family": '"elementwise"', "expr": '"x + w + b + c"', "ref": '"x + w + b + c"'}
    wide = '{ kind = "row", dtype = "acc" }'
    found = functions(
        tmp_path / "mine.toml",
        row(
            "own",
            operands=f'{{ x = "elem", w = "row", b = {wide}, c = "row" }}',
            **(rows if family == "rows" else elements),
        ),
    )
    same = {a["name"]: a["same_as"] for a in found["kf_own_bwd_bf16"]["arguments"] if "of" in a}
    assert [same[name] for name in ("dw", "db", "dc")] == ["", "", "dw"]


def test_kernels_of_kf_have_their_tensors_variables():
    """Each variable of a function is that of some tensor, and each tensor's dtype is its
    variable's.
    """
    loaded = spec.load()
    for op in Selection(loaded).ops:
        for k in expand.kernels(op, ("f32", "bf16")):
            used = {s.var for s in k.inputs + k.outputs}
            assert {v.name for v in k.variables} <= used, k.pattern
            assert all(s.dtype is k.dtype_of(s.var) for s in k.inputs + k.outputs), k.pattern
