# SPDX-License-Identifier: Apache-2.0
"""Names: the grammar, the promised signatures and functions, and the words that users' names must
not take.
"""

import itertools
import json
import re

import cases
import kflib
import odd_names
import pytest
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.entries.expand import kernels
from kfgen.language.expr import Graph
from kfgen.language.primitives import PRIMITIVES, REDUCTIONS
from kfgen.model import entries, names
from kfgen.model.kernel import Tensor
from kfgen.render.render import ROOT

MANIFEST = kflib.manifest()
FUNCTIONS = {f["name"]: f for f in MANIFEST["functions"]}
FLOATS, INTS = ("f32", "f16", "bf16", "f64"), ("i32", "i64")
ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "relu6",
    "relu_squared",
    "elu",
    "selu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "sigmoid",
    "hardsigmoid",
    "hardswish",
    "tanh",
    "hardtanh",
    "softplus",
    "softsign",
    "mish",
)


@pytest.mark.parametrize(
    ("pattern", "word", "name"),
    [
        ("add_{act}", "relu", "kf_add_relu_f32"),
        ("add_{act}", "none", "kf_add_f32"),
        ("bias_{act}_add", "gelu", "kf_bias_gelu_add_f32"),
        ("bias_{act}_add", "none", "kf_bias_add_f32"),
        ("{act}_mul", "silu", "kf_silu_mul_f32"),
        ("{act}", "mish", "kf_mish_f32"),
        ("cast", "none", "kf_cast_f32"),
    ],
)
def test_function(pattern, word, name):
    assert names.function(pattern, word, ("f32",)) == name
    assert names.function(pattern, word, ("f32",), cpu=True) == name.replace("kf_", "kf_cpu_", 1)


def test_words_of_a_name():
    assert (
        names.function("layer_norm", "none", ("bf16", "f32"), bwd=True)
        == "kf_layer_norm_bwd_bf16_f32"
    )
    assert names.function("layer_norm", "none", ("bf16", "bf16")) == "kf_layer_norm_bf16"
    assert (
        names.function("{act}_dropout", "gelu", ("f16",), bwd=True, state=True)
        == "kf_gelu_dropout_state_bwd_f16"
    )
    assert (
        names.workspace(names.function("bias_{act}", "relu", ("bf16",), bwd=True, cpu=True))
        == "kf_cpu_bias_relu_bwd_bf16_workspace_bytes"
    )
    assert [
        names.stem(p) for p in ("add_{act}", "{act}", "{act}_mul", "bias_{act}_add", "cast")
    ] == ["add", "act", "act_mul", "bias_act_add", "cast"]


def test_order_of_suffixes():
    of = {"bwd": True, "state": True, "cpu": True}
    for variant in itertools.permutations(names.VARIANTS):
        assert (
            names.function("x_{act}", "relu", ("bf16", "f32", "i32"), variant=variant, **of)
            == "kf_cpu_x_relu_varlen_stochastic_state_device_bwd_unordered_bf16_f32_i32"
        )
    assert names.function("x", "none", ("f32",), variant=("device",)) == "kf_x_device_f32"
    with pytest.raises(ValueError, match="fast: not a suffix"):
        names.function("x", "none", ("f32",), variant=("fast",))


def test_every_combination_has_one_name():
    variants = [
        chosen
        for n in range(len(names.VARIANTS) + 1)
        for chosen in itertools.combinations(names.VARIANTS, n)
    ]
    flags = list(itertools.product((False, True), repeat=3))
    dtypes = [("f32",), ("f16",), ("f16", "f32"), ("f16", "i32"), ("f16", "f32", "i32")]
    launchers = [
        names.function("x", "none", d, *f, variant=v)
        for d in dtypes
        for f in flags
        for v in variants
    ]
    assert len(set(launchers)) == len(launchers) == 5 * 8 * 16
    for compose in (
        lambda bwd, v: names.internal("kfk", "x", ("f32",), bwd, variant=v),
        lambda bwd, v: names.formula("x", "none", bwd, variant=v),
    ):
        others = [compose(bwd, v) for bwd in (False, True) for v in variants]
        assert len(set(others)) == len(others)


def test_words_of_type_variables():
    assert names.words({"T": "bf16", "W": "bf16", "U": "f32"}) == ("bf16", "f32")
    assert names.words({"T": "bf16", "U": "f32", "I": "i32"}) == ("bf16", "f32", "i32")
    assert names.words({"T": "f32", "I": "i64"}) == ("f32",)


@pytest.mark.parametrize(
    "pattern, layout, want",
    [
        ("product_{layout}", "nn", "product_nn"),
        ("product_{layout}", "", "product"),
        ("{layout}_product_{act}", "nn", "nn_product_{act}"),
        ("product_{layout}_{act}", "", "product_{act}"),
    ],
)
def test_layout(pattern, layout, want):
    assert names.fill_layout(pattern, layout) == want


# The promise to callers. Change these lines only with a new major version.
SIGNATURES = """
kf_result_t kf_add_relu_f32(const float *a, const float *b, float *out, int64_t n, cudaStream_t
 stream);
kf_result_t kf_add_relu_bwd_f32(const float *a, const float *b, const float *out, const float *dout,
 float *da, float *db, int64_t n, void *workspace, size_t workspace_bytes, cudaStream_t stream);
kf_result_t kf_gelu_f16(const kf_f16 *x, kf_f16 *out, int64_t n, cudaStream_t stream);
kf_result_t kf_bias_gelu_bf16(const kf_bf16 *x, const kf_bf16 *bias, kf_bf16 *out, int64_t rows,
 int64_t cols, cudaStream_t stream);
kf_result_t kf_bias_gelu_bwd_bf16(const kf_bf16 *x, const kf_bf16 *bias, const kf_bf16 *out, const
 kf_bf16 *dout, kf_bf16 *dx, kf_bf16 *dbias, int64_t rows, int64_t cols, void *workspace, size_t
 workspace_bytes, cudaStream_t stream);
kf_result_t kf_silu_mul_f32(const float *gate, const float *up, float *out, int64_t n, cudaStream_t
 stream);
kf_result_t kf_axpby_leaky_relu_f32(const float *a, const float *b, float *out, int64_t n, float
 alpha, float beta, float negative_slope, cudaStream_t stream);
kf_result_t kf_batch_norm_relu_f16(const kf_f16 *x, const float *running_mean, const float
 *running_var, const float *weight, const float *bias, kf_f16 *out, int64_t outer, int64_t channels,
 int64_t inner, float eps, cudaStream_t stream);
kf_result_t kf_gelu_dropout_f16(const kf_f16 *x, kf_f16 *out, int64_t n, float p, uint64_t seed,
 uint64_t offset, cudaStream_t stream);
kf_result_t kf_leaky_relu_dropout_state_bwd_f32(const float *x, const float *dout, float *dx,
 int64_t n, float negative_slope, float p, const uint64_t *seed, const uint64_t *offset, uint64_t
 offset_add, void *workspace, size_t workspace_bytes, cudaStream_t stream);
kf_result_t kf_rms_norm_bwd_f32(const float *x, const float *weight, const float *out, const float
 *rstd, const float *dout, float *dx, float *dweight, int64_t rows, int64_t cols, const
 kf_rms_norm_strides_t *strides, float eps, void *workspace, size_t workspace_bytes, cudaStream_t
 stream);
"""


@pytest.mark.parametrize("line", SIGNATURES.replace("\n ", " ").strip().splitlines())
def test_signatures(line):
    f = FUNCTIONS[re.search(r"(kf_\w+)\(", line)[1]]
    assert f["signature"] + ";" == line
    assert f["cpu_signature"] + ";" == line.replace(
        "kf_result_t kf_", "kf_result_t kf_cpu_"
    ).replace(", cudaStream_t stream", "")


WEIGHTS, LABELS = "with float32 weights or results", "with numbers of 32 bits too"
HEAVY = (
    "relu",
    "leaky_relu",
    "relu_squared",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "sigmoid",
    "hardswish",
    "tanh",
    "mish",
)
WIDE, WIDE_LABELS = "with float32 gradients of weights", "with both of these"
# op: (activations, whether none is one, dtypes of the forward, gradients). The test derives ops
# that are not listed from their entries; those with results have gradients. A line states what an
# entry does not, and what must not change with it. test_abi.py checks that no function disappears.
FAMILY = {
    "{act}": (18, False, 4, True),
    **dict.fromkeys(("neg", "where"), (0, True, 6, True)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (0, True, 6, False)),
    "add_{act}": (18, True, 6, True),
    "sub_{act}": (18, True, 6, True),
    "mul_{act}": (18, True, 6, True),
    "div_{act}": (18, True, 4, True),
    "maximum_{act}": (18, True, 6, True),
    "minimum_{act}": (18, True, 6, True),
    "axpby_{act}": (18, True, 4, True),
    "bias_{act}": (18, True, 4, True),
    "bias_{act}_add": (18, True, 4, True),
    "{act}_scale": (18, True, 4, True),
    "prelu_bias": (0, True, 4, True),
    "{act}_mul": (18, False, 4, True),
    "{act}_glu": (18, False, 4, True),
    "batch_norm_{act}": (18, True, 4, True),
    "{act}_dropout": (18, True, 4, True),
    "bias_{act}_dropout": (18, True, 4, True),
    "bias_dropout_add": (0, True, 4, True),
    # Weights, or results of reductions, may be float32 beside 2-byte tensors.
    "layer_norm_{act}": (18, True, WEIGHTS, True),
    "layer_norm_{act}_dropout": (18, True, WEIGHTS, True),
    "instance_norm_{act}": (18, True, WEIGHTS, True),
    "group_norm_{act}": (18, True, WEIGHTS, True),
    "batch_norm_train_{act}": (18, True, WEIGHTS, True),
    "rms_norm_{act}": (18, True, WEIGHTS, True),
    "softmax": (0, True, 4, True),
    "add_layer_norm_{act}": (18, True, WEIGHTS, True),
    "add_rms_norm_{act}": (18, True, WEIGHTS, True),
    **dict.fromkeys(
        (
            "scale_mask_softmax",
            "scale_bool_mask_softmax",
            "scale_causal_softmax",
            "scale_mask_softmax_dropout",
        ),
        (0, True, 4, True),
    ),
    "log_softmax": (0, True, 4, True),
    "gemma_rms_norm": (0, True, WEIGHTS, True),
    "l2_normalize": (0, True, 4, True),
    **dict.fromkeys(("mse", "l1", "huber", "bce_with_logits", "kl_div"), (0, True, 4, True)),
    **dict.fromkeys(
        (
            f"{loss}_{word}"
            for loss in ("mse", "l1", "huber", "bce_with_logits", "kl_div")
            for word in ("mean", "sum")
        ),
        (0, True, WEIGHTS, True),
    ),
    **dict.fromkeys(("cross_entropy", "cross_entropy_weighted", "nll"), (0, True, LABELS, True)),
    "cross_entropy_soft": (0, True, 4, True),
    "cross_entropy_with_grad": (0, True, LABELS, False),
    **dict.fromkeys(
        ("sum", "mean", "sum_squared", "mean_abs", "prod", "l2_norm", "logsumexp", "var", "std"),
        (0, True, WEIGHTS, True),
    ),
    **dict.fromkeys(("amax", "amin"), (0, True, 4, True)),
    "any_nonfinite": (0, True, 4, False),
    **dict.fromkeys(
        (
            "linear_{act}",
            "linear_{act}_add",
            "linear_{act}_dropout",
            "linear_{act}_mul",
            "linear_{act}_glu",
            "linear_nn_{act}",
            "{act}_mul_linear",
        ),
        (HEAVY, True, WIDE, True),
    ),
    **dict.fromkeys(("linear_add_{act}", "{act}_linear"), (HEAVY, False, WIDE, True)),
    **dict.fromkeys(
        ("linear_dropout_add", "matmul_nn", "matmul_nt", "matmul_tn", "matmul_tt"),
        (0, True, WIDE, True),
    ),
    **cases.merged("FUNCTIONS"),
}


def of_entry(op):
    words = tuple(a.name for a in op.activations if a.name != "none")
    return (
        words,
        not op.has_act or len(words) < len(op.activations),
        LABELS if op.indexed else WEIGHTS if op.types.variable_of("weights") != "T" else 4,
        bool(op.outputs),
    )


@pytest.mark.parametrize("pattern", [p for p in spec.load().ops if p != "cast"])
def test_every_function_of_the_family(pattern):
    """Each op with each activation and dtype, forward and backward, and nothing else."""
    op = spec.load().ops[pattern]
    count, none, dtypes, bwd = FAMILY.get(pattern) or of_entry(op)
    floats = [d for d in FLOATS if pattern in FAMILY or d in op.types.first.members]
    words = list(ACTIVATIONS[:count] if isinstance(count, int) else count) + ["none"] * none
    want = {
        names.function(pattern, w, (d,), b, s)
        for w in words
        for d in floats
        for b in (False, bwd)
        for s in (False, "dropout" in pattern)
    }
    if dtypes == WEIGHTS:
        want |= {
            names.function(pattern, w, (d, "f32"), b, s)
            for w in words
            for d in floats
            if d in ("f16", "bf16")
            for b in (False, bwd)
            for s in (False, "dropout" in pattern)
        }
    if dtypes == WIDE:
        want |= {
            names.function(pattern, w, (d, "f32"), True, s)
            for w in words
            for d in ("f16", "bf16")
            for s in (False, "dropout" in pattern)
        }
        want |= {
            names.function(pattern, w, ("tf32",), b, s)
            for w in words
            for b in (False, True)
            for s in (False, "dropout" in pattern)
        }
    if dtypes == WIDE_LABELS:
        want |= {names.function(pattern, "none", (d, "f32")) for d in ("f16", "bf16")}
    if dtypes in (LABELS, WIDE_LABELS):
        want |= {f"{name}_i32" for name in want}
    if dtypes == 6:
        want |= {names.function(pattern, w, (d,)) for w in ("none", "relu") for d in INTS}
    assert {f["name"] for f in MANIFEST["functions"] if f["op"] == pattern} == want


def test_every_cast():
    want = {f"kf_cast_{a}_{b}" for a, b in itertools.permutations(FLOATS + INTS, 2)}
    assert {f["name"] for f in MANIFEST["functions"] if f["op"] == "cast"} == want
    assert {f["op"] for f in MANIFEST["functions"]} >= {*FAMILY, "cast"}


@pytest.mark.parametrize(
    "pattern",
    ["bias_{act}", "prelu_bias", "{act}_mul", "layer_norm_{act}", "cross_entropy", "softmax"],
)
def test_an_entry_says_the_same(pattern):
    """Which is what a new op is held to."""
    count, none, *rest = FAMILY[pattern]
    assert of_entry(spec.load().ops[pattern]) == (ACTIVATIONS[:count], none, *rest)


def test_list(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f["signature"] + ";" for f in MANIFEST["functions"]
    ]
    assert len(FUNCTIONS) == len(MANIFEST["functions"])


@pytest.mark.check
def test_list_json_round_trip(capsys):
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == MANIFEST


def test_list_of_a_selection(capsys):
    assert main(["list", "--ops", "add,cast", "--activations", "gelu", "--dtypes", "f32,bf16"]) == 0
    message = set(re.findall(r"kf_\w+(?=\()", capsys.readouterr().out))
    assert message == {
        *(f"kf_add_{w}{d}" for w in ("", "gelu_", "bwd_", "gelu_bwd_") for d in ("f32", "bf16")),
        "kf_cast_f32_bf16",
        "kf_cast_bf16_f32",
    }


def test_no_operand_has_a_name_of_kf_inside():
    """Names of operands in generated code occur nowhere in include/kf (names.renamed)."""
    words = {
        w
        for path in (ROOT / "include").rglob("*.*")
        for w in re.findall(r"\bkfi_\w+", path.read_text())
    }
    assert len(words) > 1000
    like = [(w, re.fullmatch(r"kfi_(\w+)0(_(out|to|past|to_n|[a-z]))?", w)) for w in sorted(words)]
    assert [w for w, name in like if name and entries.usable(name[1])] == []


@pytest.mark.parametrize("family", odd_names.ENTRIES)
def test_the_identifiers_are_found(once, family):
    """All that the code of a family has, but for keywords and public names, is an operand's name
    somewhere in the ops that tests/cpu and tests/emu run (test_names.py).
    """
    path, _, names_ = odd_names.made(once, family)
    given = set()
    for o in spec.load([path]).ops.values():
        parts = (p for q in o.operands for p in (q.name, *q.parts))
        given |= {
            *parts,
            *o.scalars,
            *o.outputs,
            *o.saved,
            *o.own.get("load", ()),
            *o.own.get("products", ()),
        }
    assert set(names_) <= given and len(names_) > cases.merged("FEW_NAMES").get(family, 30)
    want = {
        "elementwise": {"each", "at", "span", "scalars", "t0"},
        "rows": {"ring", "persistent", "kept0", "row0"},
        "reduction": {"unit", "row0_s"},
    } | cases.merged("SOME_NAMES")
    assert want.get(family, {"tensors", "words", "e"}) <= set(names_)


def strings(value):
    """All texts in a value and its collections."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return set().union(*map(strings, value))
    if isinstance(value, Tensor):
        return {value.name, *value.parts, value.of, value.same_as, value.unchanged, value.place_of}
    if isinstance(value, Graph):
        return {n.value for n in value.nodes if n.op in ("var", "stored")} | {*(value.levels or ())}
    return set()


def test_a_renamed_kernel_has_no_public_name():
    """An attribute that holds names and is not in `name_fields` would print them."""
    seen = set()
    for op in spec.load().ops.values():
        public = {n for o in op.operands for n in (o.name, *o.parts)} | {*op.scalars, *op.outputs}
        for k in kernels(op, ["f32"]):
            for attribute, value in k.renamed.__dict__.items():
                if attribute not in ("op", "acts", "family", "name", "kinds"):
                    assert not strings(value) & public, (k.name, attribute)
            seen.add(op.family)
            assert strings(k.inputs) & public
    assert len(seen) >= 9


def test_a_copy_has_the_same_expressions():
    """Renamed kernels have the nodes of the built one; only names of variables differ."""
    [k] = [k for k in kernels(spec.load().ops["rms_norm_{act}"], ["f32"]) if k.bwd]
    graph, other = k.graph, k.renamed.graph
    assert k.roots == k.renamed.roots and len(graph.nodes) == len(other.nodes) > 10
    for a, b in zip(graph.nodes, other.nodes):
        assert (a.op, a.args) == (b.op, b.args)
        assert a.value == b.value or b.value.startswith("kfi_")
    assert {"kfi_x0", "kfi_dout0"} <= other.variables(k.roots)
    assert [other.level(i) for i in k.roots] == [graph.level(i) for i in k.roots]
    found = {id(s) for s in k.renamed.inputs}
    assert {id(s) for s in k.renamed.loads} < found and not found & {id(s) for s in k.inputs}


def test_no_template_names_an_op_or_an_activation():
    """Templates know capabilities, never names; comments may mention them."""
    loaded = spec.load()
    words = (
        {names.stem(p) for p in loaded.ops} - {"act"}
        | {p for p in loaded.ops} - {"{act}"}
        | set(ACTIVATIONS)
    )
    words -= {
        "scale",
        "cast",
        *REDUCTIONS,
        "mean",
        *(p for p in loaded.ops if p in PRIMITIVES),
    }  # words of their own: kfi_cast, keep_scale; in comments, the language's
    for path in sorted((ROOT / "templates").rglob("*.j2")):
        text = re.sub(r"{#.*?#}|//(?!%)[^\n]*", "", path.read_text(), flags=re.S)
        text = re.sub(r'"\w+/[\w.]+\.j2"', "", text)  # a family may have an op's name
        for word in words:
            assert not re.search(rf"(?<![\w.{{]){re.escape(word)}(?![\w}}])", text), (
                f"{path.name} names {word}"
            )
