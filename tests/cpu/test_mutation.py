# SPDX-License-Identifier: Apache-2.0
"""Proves that the number tests notice errors: each test breaks one thing and must fail.

Activations: each literal of `expr` and `dexpr` is altered, the reference kept. All mutants are
activations of one spec, rendered and compiled once. Ops and schedules: one line of the generated C
or of core is altered in a copy.
"""

import dataclasses
import functools
import re

import cases
import checks
import exhaustive
import faults
import kflib
import numeric
import pytest
import selection
from conftest import BUILD
from kfgen.entries import spec as specs
from kfgen.render.render import Selection

DTYPES = ("f32", "bf16")
FLAGS = ("-Og", "-ffp-contract=off")
STREAMED = ("-mavx", "-DKF_STREAM_MIN=0")
# The factor is visible in bf16, whose neighbours are up to 0.8 % apart; the shift is for a literal
# 0.
FACTOR, SHIFT = (1.02, 0.03)
LITERAL = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w.])")

# Mutants that compute the same function: (activation, field, literal).
EQUIVALENT = {
    ("mish", "expr", "20"): "from the clamp on, the quotient is 1 to the last bit",
    (
        "mish",
        "dexpr",
        "20",
    ): "from the clamp on, the quotient is 1 and the second term 0, to the last bit",
    ("softsign", "expr", "1e30"): "from the clamp on, the quotient is 1 to the last bit",
    ("gelu_tanh", "dexpr", "30"): "at the clamp the sigmoid is 0 or 1 to the last bit already",
}


@dataclasses.dataclass
class Mutant:
    original: str  # the activation's name
    field: str
    literal: str
    act: object

    @property
    def bwd(self):
        """True if the backward must fail, else the forward. (A derived gradient need not notice:
        that of a constant stays 0.)"""
        return self.field == "dexpr"


def mutants_of(act):
    for field in ("expr", "dexpr"):
        text = getattr(act, field)
        if text is None:
            continue
        places = [
            (m, repr(float(m[0]) * FACTOR if float(m[0]) else SHIFT))
            for m in LITERAL.finditer(text)
        ]
        if not places:  # alters an operand if there are no constants
            places = [(m, f"({FACTOR} * x)") for m in list(re.finditer(r"\bx\b", text))[:1]]
        for m, new in places:
            if (act.name, field, m[0]) not in EQUIVALENT:
                yield Mutant(
                    act.name,
                    field,
                    m[0],
                    dataclasses.replace(act, **{field: text[: m.start()] + new + text[m.end() :]}),
                )


@functools.cache
def mutants():
    """Returns {name: Mutant}. Each mutant is an ordinary activation with a name and an id of its
    own."""
    found = {}
    for act in checks.spec().activations.values():
        if act.name != "none":
            for i, m in enumerate(mutants_of(act)):
                m.act = dataclasses.replace(
                    m.act, name=f"{act.name}_{m.field}{i}", id=2000 + len(found)
                )
                found[m.act.name] = m
    return found


def mutated_selection():
    spec = specs.load()
    spec.activations = {"none": spec.activations["none"]} | {
        name: m.act for name, m in mutants().items()
    }
    spec.ops["{act}"].activations = [m.act for m in mutants().values()]
    return Selection(spec, ops=["{act}"], dtypes=list(DTYPES))


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory()


@pytest.fixture(scope="module")
def mutated(once):
    """Returns (library, {(mutant, dtype, bwd): function})."""

    def made(out):
        functions = kflib.write(mutated_selection(), out)
        return kflib.library(
            "cpu", functions, out / "lib", FLAGS, include=[kflib.ROOT / "include", out]
        ), functions

    path, functions = once("mutants", made)
    return kflib.Lib("cpu", path), {
        (f["activation"], f["dtypes"][0], f["bwd"]): f for f in functions
    }


def goes_red(lib, memory, f):
    """True if test_numbers or test_all_values would fail on f."""
    try:
        for sizes, values, shift in cases.runs(f):
            checks.run(lib, memory, f, sizes, values, shift=shift)
        exhaustive.run_all_values(lib, f)
    except checks.Failure:
        return True
    return False


def test_every_activation_has_mutants():
    names = {a.name for a in checks.spec().activations.values()} - {"none"}
    assert {m.original for m in mutants().values() if m.field == "expr"} == names
    used = {
        (a.name, field, literal[0])
        for a in checks.spec().activations.values()
        for field in ("expr", "dexpr")
        for literal in LITERAL.finditer(getattr(a, field) or "")
    }
    assert set(EQUIVALENT) <= used, "an exception for what is not in the spec any more"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", mutants())
def test_altered_activation(mutated, memory, name, dtype):
    lib, functions = mutated
    m = mutants()[name]
    # Calls the mutant and compares with the original's reference.
    f = functions[name, dtype, m.bwd] | {"activation": m.original}
    assert goes_red(lib, memory, f), (
        f"{m.original}: {m.field} = {getattr(m.act, m.field)!r} ({m.literal} altered) passes "
        "as right"
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [a.name for a in checks.spec().activations.values() if a.dexpr is None and a.name != "none"],
)
def test_altered_expression_of_a_derived_gradient(mutated, memory, name, dtype):
    """At least one mutant of an expression without a dexpr is noticed in its gradient."""
    lib, functions = mutated
    noticed = [
        goes_red(lib, memory, functions[n, dtype, True] | {"activation": name})
        for n, m in mutants().items()
        if m.original == name
    ]
    assert any(noticed)


@pytest.mark.parametrize("name", ["relu", "gelu", "hardtanh"])
def test_the_original_is_green(memory, name):
    """The unchanged functions pass."""
    chosen = [
        f
        for f in kflib.manifest()["functions"]
        if f["op"] == "{act}" and f["activation"] == name and f["dtypes"][0] in DTYPES
    ]
    lib = kflib.build("cpu", chosen, BUILD / "cpu", FLAGS)
    assert len(chosen) == 4 and not any(goes_red(lib, memory, f) for f in chosen)


# ---- ops and schedules: (file, pattern, replacement, functions that must notice)

BROKEN = {
    "the mask of the next element": (
        "kf/core/elementwise/tile.h",
        r"words\[u\] \+ \(first \+ u \* step\) % 8",
        "words[u] + (first + u * step) % 8 + 1",
        ("kf_cpu_dropout_f32", "kf_cpu_relu_dropout_bwd_bf16"),
    ),
    "the mask from another group": (
        "kf/core/philox_tile.h",
        r"\(kfi_u64\)first / 8",
        "(kfi_u64)first / 4",
        ("kf_cpu_bias_dropout_add_f32",),
    ),
    "a dropped word too many": (
        "kf/core/philox_tile.h",
        r"\(word >= from\)",
        "(word > from + 40)",
        ("kf_cpu_dropout_f32",),
    ),
    "a round of Philox less": (
        "kf/core/philox.h",
        r"round < 10; \+\+round\) \{\n        const",
        "round < 9; ++round) {\n        const",
        ("kf_cpu_bias_dropout_bwd_f32",),
    ),
    "a round of a tile's Philox less": (
        "kf/core/philox_tile.h",
        r"round < 10; \+\+round",
        "round < 9; ++round",
        ("kf_cpu_dropout_f32",),
    ),
    "the last words from the group before": (
        "kf/core/philox_tile.h",
        r"kfi_philox\(rng, group \+ KFI_TILE / 8, ",
        "kfi_philox(rng, group + KFI_TILE / 8 - 1, ",
        ("kf_cpu_bias_dropout_bwd_f32",),
    ),
    "the words of a row's next strip": (
        "kf/core/rows/rows.h",
        r"w->words \+ \(first - w->from\)",
        "w->words + (first - w->from) / 8 * 8",
        ("kf_cpu_layer_norm_dropout_f32", "kf_cpu_layer_norm_relu_dropout_bwd_bf16"),
    ),
    "a row's words, a strip too far": (
        "kf/core/rows/rows.h",
        r"first \+ KFI_STRIP > w->from \+ KFI_TILE\)",
        "first > w->from + KFI_TILE)",
        ("kf_cpu_layer_norm_dropout_f32", "kf_cpu_layer_norm_dropout_state_f64"),
    ),
    "gradients of sub swapped": (
        "kf/ops/sub.kernels.h",
        r"kfi_da0_to\[j\] = (\w+);\s+kfi_db0_to\[j\] = -\1;",
        r"kfi_da0_to[j] = -\1; kfi_db0_to[j] = \1;",
        ("kf_cpu_sub_bwd_f32", "kf_cpu_sub_relu_bwd_f32"),
    ),
    "operands of sub swapped": (
        "kf/ops/sub.kernels.h",
        "kfi_a0_j - kfi_b0_j",
        "kfi_b0_j - kfi_a0_j",
        ("kf_cpu_sub_f32", "kf_cpu_sub_relu_bf16"),
    ),
    "flat tail one short": (
        "kf/core/elementwise/traverse.h",
        r"(kfi_traverse_flat(?s:.*?)\? \(int\)\(end - i\))",
        r"\1 - 1",
        ("kf_cpu_relu_f32", "kf_cpu_add_bwd_f32"),
    ),
    "flat tail one long": (
        "kf/core/elementwise/traverse.h",
        r"(kfi_traverse_flat(?s:.*?)\? \(int\)\(end - i\))",
        r"\1 + 1",
        ("kf_cpu_relu_f32", "kf_cpu_cast_f32_bf16"),
    ),
    "narrow rows: the wrong column": (
        "kf/core/elementwise/traverse.h",
        r"col = \(col \+ done\) % m->cols",
        "col = (col + done + 1) % m->cols",
        ("kf_cpu_bias_f32", "kf_cpu_bias_relu_bwd_f32"),
    ),
    "narrow rows: a tail's sums lost": (
        "kf/core/elementwise/traverse.h",
        r"kfi_add_sums\(room->repeated\[k\] \+ col \* m->acc_size, room->tile\[k\], count",
        "kfi_add_sums(room->repeated[k] + col * m->acc_size, room->tile[k], count - 1",
        ("kf_cpu_bias_bwd_f32",),
    ),
    "wide rows: the row's first columns again": (
        "kf/core/elementwise/traverse.h",
        r"t->p\[k\] = base \+ col \* s->size",
        "t->p[k] = base",
        ("kf_cpu_bias_relu_bwd_f32", "kf_cpu_prelu_bias_bwd_f32"),
    ),
    "neighbours in a row: the same row values": (
        "kf/core/elementwise/traverse.h",
        r"t->step\[k\] = m->sums \|\| m->derive \? 0 : step",
        "t->step[k] = 0",
        ("kf_cpu_bias_f32", "kf_cpu_bias_gelu_bf16"),
    ),
    "narrow rows, neighbours: the same row values": (
        "kf/core/elementwise/traverse.h",
        r"count, group \? 0 : m->tile_size\)",
        "count, 0)",
        ("kf_cpu_bias_f32", "kf_cpu_bias_gelu_bf16"),
    ),
    "narrow rows, a group: rows that are no period apart": (
        "kf/core/elementwise/traverse.h",
        r"step = group \? period : m->tile_size",
        "step = m->tile_size",
        ("kf_cpu_bias_bwd_f32", "kf_cpu_bias_relu_bwd_bf16"),
    ),
    "narrow rows, a group: its rows again": (
        "kf/core/elementwise/traverse.h",
        r"i \+= \(KFI_GROUP - 1\) \* period;",
        "i += 0;",
        ("kf_cpu_bias_bwd_f32", "kf_cpu_prelu_bias_bwd_bf16"),
    ),
    "wide rows, a group: a row left out": (
        "kf/core/elementwise/traverse.h",
        r"row < end; row \+= group\)",
        "row < end; row += group + grouped)",
        ("kf_cpu_bias_bwd_f32", "kf_cpu_bias_gelu_bwd_f32"),
    ),
    "wide rows, a group: the row above": (
        "kf/core/elementwise/traverse.h",
        r"step = m->sums \|\| m->derive \? m->cols : m->tile_size",
        "step = m->sums || m->derive ? 0 : m->tile_size",
        ("kf_cpu_bias_bwd_f32", "kf_cpu_bias_gelu_bwd_f32", "kf_cpu_batch_norm_f32"),
    ),
    "a group's masks: those of its first tile": (
        "kf/core/elementwise/tile.h",
        r"m->rng, first \+ u \* step\)",
        "m->rng, first)",
        ("kf_cpu_dropout_f32", "kf_cpu_bias_dropout_bwd_f32"),
    ),
    "the other half": (
        "kf/core/elementwise/tile.h",
        r"m->cols \+ s->half\) \* m->cols",
        "m->cols + 1 - s->half) * m->cols",
        ("kf_cpu_silu_glu_f32",),
    ),
    "the next channel": (
        "kf/core/elementwise/traverse.h",
        "channel = plane % m->channels",
        "channel = (plane + 1) % m->channels",
        ("kf_cpu_batch_norm_f32", "kf_cpu_batch_norm_bwd_bf16"),
    ),
    "a sum's first part twice": (
        "kf/core/elementwise/elementwise.h",
        r"kf_i64 b = 0; b < m->blocks; \+\+b\) \{",
        "kf_i64 b = 0; b < m->blocks; ++b) { for (int j = 0; b == 1 && j < count; ++j) "
        "total[j] += total[j];",
        ("kf_cpu_bias_bwd_f32",),
    ),
    "streamed: the last vector is left out": (
        "kf/core/stream.h",
        r"i < bytes; i \+= ",
        "i + sizeof(kfi_streamed) < bytes; i += ",
        ("kf_cpu_add_f32", "kf_cpu_bias_relu_bf16", "kf_cpu_batch_norm_f64", "kf_cpu_relu_glu_f16"),
    ),
    "streamed: the next chunk's place": (
        "kf/core/stream.h",
        r"\(char \*\)to \+ i\)",
        "(char *)to + i + 64 * (i >= 128))",
        ("kf_cpu_add_f32", "kf_cpu_relu_bf16"),
    ),
    "streamed: inputs stay where they are": (
        "kf/ops/add.kernels.h",
        r"( +)kfi_a0 \+= KFI_PART;",
        r"\1kfi_a0 += KFI_PART / 2;",
        ("kf_cpu_add_f32",),
    ),
    "bf16 by truncation": (
        "kf/core/convert.h",
        r"w \+ 0x7fffu \+ \(\(w >> 16\) & 1u\)",
        "w",
        ("kf_cpu_cast_f32_bf16",),
    ),
    "row: the tail is not masked": (
        "kf/ops/softmax.kernels.h",
        r"left == KFI_STRIP \?",
        "left > 0 ?",
        ("kf_cpu_softmax_f32", "kf_cpu_softmax_bf16"),
    ),
    "row: the mask has an element too many": (
        "kf/ops/layer_norm.kernels.h",
        r"\(j < left\)",
        "(j <= left)",
        ("kf_cpu_layer_norm_f32", "kf_cpu_layer_norm_f64"),
    ),
    "row: a tail is copied but for its end": (
        "kf/core/rows/rows.h",
        r"\(size_t\)\(left \* size\)\)",
        "(size_t)((left - 1) * size))",
        (
            "kf_cpu_log_softmax_bwd_f32",
            "kf_cpu_rms_norm_gelu_f16",
            "kf_cpu_layer_norm_relu_bwd_f32",
        ),
    ),
    "row: the fold leaves lanes out": (
        "kf/core/rows/rows.h",
        r"KFI_FOLD_STEP\(join, KFI_STRIP / 8\)",
        "",
        ("kf_cpu_softmax_f32", "kf_cpu_rms_norm_f64", "kf_cpu_layer_norm_bwd_bf16"),
    ),
    "row: the fold leaves the last step out": (
        "kf/core/rows/rows.h",
        r"join\(join\(a\[0\], a\[2\]\), join\(a\[1\], a\[3\]\)\)",
        "join(a[0], a[2])",
        ("kf_cpu_log_softmax_f32", "kf_cpu_softmax_bwd_f16", "kf_cpu_rms_norm_relu_f32"),
    ),
    "row: accumulators go on from the row before": (
        "kf/ops/rms_norm.kernels.h",
        r"float (\w+_a)\[KFI_STRIP\];(\s+)kfi_clear",
        r"static float \1[KFI_STRIP];\2static int begun; if (!begun++) kfi_clear",
        ("kf_cpu_rms_norm_f32", "kf_cpu_rms_norm_silu_bwd_f32"),
    ),
    "row: the second pass reads a row's first strip": (
        "kf/ops/softmax.kernels.h",
        r"(kfi_strip1_\w+\(KFI_STRIP,\s+)kfi_x0 \+ i",
        r"\1kfi_x0 + 0 * i",
        ("kf_cpu_softmax_f32", "kf_cpu_softmax_bf16"),
    ),
    "row: kept values of another strip": (
        "kf/ops/softmax.kernels.h",
        r"kept0_k \+ i",
        "kept0_k",
        ("kf_cpu_softmax_f32", "kf_cpu_softmax_bf16"),
    ),
    "row: the pointers of the row before": (
        "kf/ops/softmax.kernels.h",
        r"kfi_x0 \+ kfi_row_at\(m, 0, row\)",
        "kfi_x0 + kfi_row_at(m, 0, row ? row - 1 : 0)",
        ("kf_cpu_softmax_f32", "kf_cpu_softmax_bf16"),
    ),
    "streamed row: what is streamed goes to a row's beginning": (
        "kf/ops/softmax.kernels.h",
        r"kfi_stream\(kfi_out0 \+ i",
        "kfi_stream(kfi_out0 + 0 * i",
        ("kf_cpu_softmax_f32", "kf_cpu_softmax_bf16"),
    ),
    "row: results of whole tiles in the first one's place": (
        "kf/ops/rms_norm.kernels.h",
        r": kfi_dx0 \+ i",
        ": kfi_dx0 + 0 * i",
        ("kf_cpu_rms_norm_bwd_f32", "kf_cpu_rms_norm_relu_bwd_bf16"),
    ),
    "row: the first row's mean": (
        "kf/ops/layer_norm.kernels.h",
        r"kfi_mean0\[row\];",
        "kfi_mean0[begin];",
        ("kf_cpu_layer_norm_bwd_f32", "kf_cpu_layer_norm_gelu_bwd_bf16"),
    ),
    "row: the saved value of the row before": (
        "kf/ops/layer_norm.kernels.h",
        r"kfi_rstd0\[row\] =",
        "kfi_rstd0[row ? row - 1 : 0] =",
        ("kf_cpu_layer_norm_f32", "kf_cpu_layer_norm_gelu_bf16"),
    ),
    "row: the same columns of the weight again": (
        "kf/ops/rms_norm.kernels.h",
        r"kfi_weight0 \? kfi_weight0 \+ i",
        "kfi_weight0 ? kfi_weight0",
        ("kf_cpu_rms_norm_f32", "kf_cpu_rms_norm_gelu_bwd_f32"),
    ),
    "row: an absent weight is zero": (
        "kf/ops/layer_norm.kernels.h",
        r"kfi_weight0_t\[j\] = 1\.0f",
        "kfi_weight0_t[j] = 0.0f",
        ("kf_cpu_layer_norm_f32", "kf_cpu_layer_norm_bwd_f32"),
    ),
    "row: an absent weight is zero in a tail": (
        "kf/ops/rms_norm.kernels.h",
        r"if \(kfi_weight0\) \{ kfi_tail",
        "if (!kfi_weight0) { memset(kfi_weight0_t, 0, KFI_STRIP * 4); } else { kfi_tail",
        ("kf_cpu_rms_norm_f32", "kf_cpu_rms_norm_relu_bwd_f32"),
    ),
    "row: both are absent or none": (
        "kf/ops/layer_norm.kernels.h",
        r"kfi_bias0 \? kfi_bias0 \+ i : kfi_bias0_t",
        "kfi_weight0 && kfi_bias0 ? kfi_bias0 + i : kfi_bias0_t",
        ("kf_cpu_layer_norm_f32", "kf_cpu_layer_norm_gelu_bwd_f32"),
    ),
    "row: partial sums are not cleared": (
        "kf/ops/rms_norm.kernels.h",
        r"if \(kfi_f\.kfi_dweight0_p\) \{(\s+)memset",
        r"if (!kfi_f.kfi_dweight0_p) {\1memset",
        ("kf_cpu_rms_norm_bwd_f32", "kf_cpu_rms_norm_bwd_bf16_f32"),
    ),
    "row: a tail's sums go on from the row before": (
        "kf/ops/layer_norm.kernels.h",
        r"memset\(kfi_dbias0_t, 0",
        "static int begun; if (!begun++) memset(kfi_dbias0_t, 0",
        ("kf_cpu_layer_norm_bwd_f32", "kf_cpu_layer_norm_relu_bwd_f16"),
    ),
    "row: a tail's sums are the last row's": (
        "kf/ops/rms_norm.kernels.h",
        r"kfi_dweight0_p\[i \+ j\] \+=",
        "kfi_dweight0_p[i + j] =",
        ("kf_cpu_rms_norm_bwd_f32", "kf_cpu_rms_norm_gelu_bwd_f64"),
    ),
    "row: every block's sums in the first one's place": (
        "kf/ops/rms_norm.kernels.h",
        r"kfi_partial\(m, block, 0\)",
        "kfi_partial(m, 0, 0)",
        ("kf_cpu_rms_norm_bwd_f32",),
    ),
    "row: a block's last row is left out": (
        "kf/ops/log_softmax.kernels.h",
        r": m->rows;",
        ": m->rows - 1;",
        ("kf_cpu_log_softmax_f32", "kf_cpu_log_softmax_bwd_bf16"),
    ),
    "row: the last block is left out": (
        "kf/core/rows/rows.h",
        r"kfi_parallel\(m->blocks,",
        "kfi_parallel(m->blocks - (m->blocks > 1),",
        ("kf_cpu_softmax_f32", "kf_cpu_rms_norm_bwd_f32"),
    ),
    "row: blocks of fewer rows": (
        "kf/core/rows/rows.h",
        r"\(m->rows \+ m->blocks - 1\) / m->blocks",
        "m->rows / m->blocks",
        ("kf_cpu_softmax_f32", "kf_cpu_rms_norm_bwd_f32"),
    ),
    "row: the activation's argument without the bias": (
        "kf/ops/layer_norm.kernels.h",
        r"(kfi_act(?:_bwd)?\([^;]*kfi_weight0_j) \+ kfi_bias0_j",
        r"\1",
        (
            "kf_cpu_layer_norm_relu_f32",
            "kf_cpu_layer_norm_relu_bwd_f32",
            "kf_cpu_layer_norm_gelu_bwd_bf16",
        ),
    ),
    "row: another query's mask": (
        "kf/ops/scale_bool_mask_softmax.kernels.h",
        r"kfi_shared = kfi_turn / m->channels",
        "kfi_shared = kfi_turn % (m->rows / m->channels)",
        ("kf_cpu_scale_bool_mask_softmax_f32", "kf_cpu_scale_bool_mask_softmax_bf16"),
    ),
    "row: another batch's queries": (
        "kf/ops/scale_mask_softmax.kernels.h",
        r"kfi_batch \* m->channels \+ kfi_turn % m->channels",
        "kfi_turn % m->channels",
        ("kf_cpu_scale_mask_softmax_f32", "kf_cpu_scale_mask_softmax_f64"),
    ),
    "row: a query later than it is": (
        "kf/ops/scale_causal_softmax.kernels.h",
        r"kfi_f\.query = row % m->queries;",
        "kfi_f.query = row % m->queries + 1;",
        ("kf_cpu_scale_causal_softmax_f32", "kf_cpu_scale_causal_softmax_f16"),
    ),
    "row: a label's place one behind": (
        "kf/core/rows/rows.h",
        r": \(int\)\(a - from\)",
        ": (int)(a - from) + 1",
        ("kf_cpu_cross_entropy_bwd_f32", "kf_cpu_nll_bwd_bf16"),
    ),
    "row: a label of no column picks zero": (
        "kf/ops/nll.kernels.h",
        r"\(float\)NAN",
        "0.0f",
        ("kf_cpu_nll_f32",),
    ),
    "row: another plane's channel": (
        "kf/ops/instance_norm.kernels.h",
        r"row % m->channels",
        "(row + 1) % m->channels",
        ("kf_cpu_instance_norm_f32", "kf_cpu_instance_norm_relu_bwd_bf16"),
    ),
    "row: a channel's next value in another one's place": (
        "kf/ops/batch_norm_train.kernels.h",
        r"kfi_running_mean0_out\[row\]",
        "kfi_running_mean0_out[row / 2]",
        ("kf_cpu_batch_norm_train_f32", "kf_cpu_batch_norm_train_bf16"),
    ),
    "row: a channel's two batches side by side": (
        "kf/core/check.h",
        r"size\[1\] > 1 \? apart\[1\] - l->line",
        "size[1] > 2 ? apart[1] - l->line",
        ("kf_cpu_batch_norm_train_f32", "kf_cpu_batch_norm_train_relu_bwd_bf16"),
    ),
    "row: another group's weights": (
        "kf/core/rows/rows.h",
        r"group \* m->parts \* size",
        "0 * group * size",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_relu_bwd_bf16"),
    ),
    "row: the next channel an element late": (
        "kf/core/rows/rows.h",
        r"kfi_quotient\(at, m->inner\)",
        "kfi_quotient(at > 0 ? at - 1 : 0, m->inner)",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_f16"),
    ),
    "row: a tile's value of another group": (
        "kf/core/rows/rows.h",
        r"c->filled != group \* m->parts \+ c->channel",
        "c->filled != c->channel",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_f32"),
    ),
    "row: segments side by side": (
        "kf/core/rows/rows.h",
        r"i \+ kfi_quotient\(i, m->segment\) \* gap",
        "i",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_bf16"),
    ),
    "row: a segment's end is no end": (
        "kf/core/rows/rows.h",
        r"gap \? m->segment - kfi_rest\(i, m->segment\) : count",
        "count",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_f64"),
    ),
    "row: what another row's segments left": (
        "kf/core/rows/rows.h",
        r"g->row != row",
        "g->row < 0",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_bf16"),
    ),
    "row: segments gathered where no strip has been": (
        "kf/core/rows/rows.h",
        r"i == g->columns && ",
        "",
        ("kf_cpu_group_norm_f32",),
    ),
    "row: channels side by side of another strip": (
        "kf/core/rows/rows.h",
        r"c->filled == filled",
        "filled >= 0",
        ("kf_cpu_group_norm_f32", "kf_cpu_group_norm_bwd_f16"),
    ),
    "row: channels side by side, all from the first": (
        "kf/core/rows/rows.h",
        r"kf_i64 at = kfi_rest\(i, m->segment\);",
        "kf_i64 at = 0;",
        ("kf_cpu_group_norm_bwd_f32",),
    ),
    "row: a channel's terms to the next one": (
        "kf/core/rows/rows.h",
        r"sums\[c->channel\] \+= terms\[j \+ k\]",
        "sums[(c->channel + 1) % m->parts] += terms[j + k]",
        ("kf_cpu_group_norm_bwd_f32",),
    ),
    "row: the last batch's part of a channel's gradient": (
        "kf/core/rows/rows.h",
        r"nothing \? 0 : outer;",
        "nothing ? 0 : outer - 1;",
        ("kf_cpu_instance_norm_bwd_f32",),
    ),
    "row: a row's values once an op": (
        "kf/ops/rms_norm.kernels.h",
        r"\n +(row1 = )",
        r"\nstatic int begun; if (!begun++) \1",
        ("kf_cpu_rms_norm_f32", "kf_cpu_rms_norm_bwd_f32"),
    ),
}
BROKEN |= cases.said("BROKEN")
# Sums are split from 131,072 elements on; without sums, rows form blocks from 16,384 elements on.
BIG = {"a sum's first part twice": [((600, 403), "normal", 0)]} | dict.fromkeys(
    (
        "row: every block's sums in the first one's place",
        "row: the last block is left out",
        "row: blocks of fewer rows",
    ),
    [((601, 403), "normal", 0)],
)


def test_every_fault_has_its_place(include, tmp_path):
    """Every fault can still be planted, including those that level 1 does not compile."""
    for file, text, instead, _ in BROKEN.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(BROKEN))
def test_altered_schedule(include, memory, tmp_path, what):
    file, text, instead, names = BROKEN[what]
    functions = [f for f in kflib.manifest()["functions"] if f["cpu_name"] in names]
    assert len(functions) == len(names)
    streamed = what.startswith("streamed")
    if streamed and "avx" not in open("/proc/cpuinfo").read().split():
        pytest.skip("this machine has no vectors that are streamed")
    broken = faults.plant(include, tmp_path, file, text, instead)
    lib = kflib.build(
        "cpu", functions, tmp_path / "lib", FLAGS + (STREAMED if streamed else ()), include=broken
    )
    for f in functions:
        with pytest.raises(checks.Failure):
            numeric.numbers(lib, memory, f)
            for sizes, values, shift in BIG.get(what, []):
                checks.run(lib, memory, f, sizes, values, shift=shift)


PARTS = cases.by_level(1, 6)  # parts that run in parallel: the whole takes several minutes


@pytest.mark.parametrize("part", range(PARTS))
def test_several_parts(memory, part):
    """Some faults above show only on large tensors, so unchanged functions must pass on these."""

    def takes(f):
        return (
            (f["scratch"] or f["family"] == "rows")
            and f["dtypes"][0] in DTYPES
            and len(f["sizes"]) > 1
            and f["family"] != "reduction"
        )

    if cases.LEVEL > 1:
        functions = [
            f
            for f in kflib.manifest()["functions"]
            if (f["scratch"] or f["family"] == "rows")
            and f["activation"] in ("none", "relu")
            and f["dtypes"][0] in DTYPES
        ][part::PARTS]
        lib = kflib.build("cpu", functions, BUILD / "cpu", FLAGS)
    else:
        functions, lib = (
            [f for f in selection.of_schedules(("f32",)) if takes(f)],
            numeric.build_cpu("native", BUILD),
        )
    assert len(functions) > 15
    for f in functions:
        large = {
            "rows": [(600, 403), (601, 403), (70, 2500), (90000, 3)],
            "planes": [(6, 70, 500), (3, 5, 12000), (4000, 60, 1)],
            "heads": [(6, 10, 10, 403)],
            "groups": [(6, 1, 10, 40, 203), (4, 90, 3, 30, 1)],
        }
        for sizes in cases.of_form(f, large):
            checks.run(lib, memory, f, sizes)
