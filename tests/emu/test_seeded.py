# SPDX-License-Identifier: Apache-2.0
"""Breaks the headers in one place at a time, in a copy. Something that CI runs must notice each
fault: a thread order of the emulator, or a sanitizer."""

import pathlib
import sys

import cases
import faults
import pytest
import selection
import toolkit

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import planted  # noqa: E402
import samples  # noqa: E402

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")

# file, pattern, replacement, functions, sanitizers that must report it
SEEDED = {
    "a store's tail one long": (
        "kf/core/vector.cuh",
        r"if \(u \* step \+ e < left\)",
        "if (u * step + e <= left)",
        ("kf_add_relu_f32", "kf_bias_gelu_bf16", "kf_cast_f32_f16"),
        ("memory",),
    ),
    "the tail of a store is one element short": (
        "kf/core/vector.cuh",
        r"if \(u \* step \+ e < left\)",
        "if (u * step + e < left - 1)",
        ("kf_add_relu_f32", "kf_bias_gelu_bf16", "kf_cast_f32_f16"),
        (),
    ),
    "the tail of a load is one element long": (
        "kf/core/vector.cuh",
        r"u \* step \+ e < left \?",
        "u * step + e <= left ?",
        ("kf_add_relu_f32", "kf_cast_f32_f16"),
        ("memory",),
    ),
    "a whole vector is accessed behind the end": (
        "kf/ops/add.device.cuh",
        r"\(unroll - 1\) \* step \+ vec <= left",
        "(unroll - 1) * step + vec <= left + vec",
        ("kf_add_relu_f32", "kf_add_bwd_bf16"),
        ("memory",),
    ),
    "elements read the dropout words of another group": (
        "kf/core/dropout.cuh",
        r"\(kfi_u64\)index >> 3",
        "(kfi_u64)index >> 2",
        ("kf_dropout_f32", "kf_bias_relu_dropout_bwd_bf16"),
        (),
    ),
    "elements read the dropout word of the next element": (
        "kf/core/dropout.cuh",
        r"\(unsigned\)index & 7u",
        "(unsigned)(index + 1) & 7u",
        ("kf_dropout_f32", "kf_relu_dropout_state_f64"),
        (),
    ),
    "all vectors of a thread read the first one's dropout words": (
        "kf/ops/act_dropout.device.cuh",
        r"rng, first \+ u \* step\)",
        "rng, first)",
        ("kf_dropout_f32", "kf_relu_dropout_bwd_bf16"),
        (),
    ),
    "a row's vector across two groups reads one group's dropout words": (
        "kf/core/dropout.cuh",
        r"first \+ vec > 8",
        "first + vec > 9",
        ("kf_layer_norm_dropout_f32", "kf_layer_norm_relu_dropout_bwd_bf16"),
        (),
    ),
    "an odd row's dropout words are shifted by one element, not two": (
        "kf/core/dropout.cuh",
        r"if \(first & 2u\) w\[i\]",
        "if (first & 1u) w[i]",
        ("kf_layer_norm_dropout_bf16", "kf_layer_norm_dropout_state_f64"),
        (),
    ),
    "all vectors of a row read the first one's dropout words": (
        "kf/ops/layer_norm_act_dropout.device.cuh",
        r"rng, start \+ off\)",
        "rng, start)",
        ("kf_layer_norm_dropout_f32", "kf_layer_norm_relu_dropout_bwd_bf16"),
        (),
    ),
    "the two gradients of sub are swapped": (
        "kf/ops/sub.device.cuh",
        r"(kfi_cast\(&kfi_da0_v\[u\]\[e\], )(\w+)\);\n( *kfi_cast\(&kfi_db0_v\[u\]\[e\], )-\2\);",
        r"\1-\2);\n\3\2);",
        ("kf_sub_bwd_f32", "kf_sub_relu_bwd_f32"),
        (),
    ),
    "a column's sum is its neighbour's": (
        "kf/core/elementwise/device.cuh",
        r"real total = buffer\[c\];",
        "real total = buffer[c ^ 1];",
        ("kf_bias_bwd_f32", "kf_bias_relu_bwd_bf16"),
        (),
    ),
    "the second stage leaves out the last partial sum": (
        "kf/core/sums.cuh",
        r"if \(row < s\.parts && col",
        "if (row < s.parts - 1 && col",
        ("kf_bias_bwd_f32", "kf_bias_bwd_f64"),
        (),
    ),
    "the third of three last columns is not stored": (
        "kf/core/sums.cuh",
        r"e < 3; \+\+e\)",
        "e < 2; ++e)",
        ("kf_layer_norm_bwd_f32", "kf_instance_norm_bwd_f32"),
        (),
    ),
    "a vector across two channels reads the second next channel": (
        "kf/core/elementwise/device.cuh",
        r"at\.next = at\.row \+ 1 <",
        "at.next = at.row + 2 <",
        ("kf_batch_norm_f32", "kf_batch_norm_bf16"),
        (),
    ),
    "a warp's sum leaves out the last shuffle": (
        "kf/core/sums.cuh",
        r"step = 16; step > 0; step >>= 1\) sum \+=",
        "step = 16; step > 1; step >>= 1) sum +=",
        ("kf_bias_bwd_f32", "kf_batch_norm_bwd_f32"),
        (),
    ),
    "a row's reduction leaves out the last warp": (
        "kf/core/rows/reduce.cuh",
        r"if \(own < warps\)",
        "if (own < warps - 1)",
        ("kf_softmax_f32", "kf_layer_norm_bwd_f32"),
        (),
    ),
    "a row's reduction leaves out the cluster's last block": (
        "kf/core/rows/reduce.cuh",
        r"if \(i < blocks\)",
        "if (i < blocks - 1)",
        ("kf_rms_norm_f32",),
        (),
    ),
    "a block's sums leave out its last row": (
        "kf/core/rows/reduce.cuh",
        r"y < rows",
        "y < rows - 1",
        ("kf_rms_norm_bwd_f32", "kf_layer_norm_bwd_f16"),
        (),
    ),
    "a warp's sums leave out half of its rows": (
        "kf/core/rows/reduce.cuh",
        r"by >= g\.lanes",
        "by > g.lanes",
        ("kf_rms_norm_bwd_f32", "kf_layer_norm_bwd_f16"),
        (),
    ),
    "the three-vector kernel runs rows of four vectors per thread": (
        "kf/core/rows/host.cuh",
        r"cols <= 3 \* g\.lanes",
        "cols <= 4 * g.lanes",
        ("kf_layer_norm_bf16", "kf_add_rms_norm_f16"),
        (),
    ),
    "persistent blocks advance by fewer rows than all blocks have": (
        "kf/core/rows/reduce.cuh",
        r"at\.stride = \(kf_i64\)\(gridDim\.x >> bits\) \* g\.groups",
        "at.stride = (kf_i64)gridDim.x",
        ("kf_rms_norm_bwd_f32", "kf_layer_norm_bwd_f16"),
        (),
    ),
    "threads compute a wrong row of the block": (
        "kf/core/rows/reduce.cuh",
        r"g\.share >> 20",
        "g.share >> 21",
        ("kf_layer_norm_bwd_f16",),
        (),
    ),
    "all vectors of a row use the first vector's weights": (
        "kf/ops/layer_norm.device.cuh",
        r"(kfi_weight0_h)\[kfi_early\s+\?\s+s\s+:\s+0\]",
        r"\1[0]",
        ("kf_layer_norm_f32", "kf_layer_norm_bf16"),
        (),
    ),
    "the second reduction of a pass reads the first one's slots": (
        "kf/core/rows/reduce.cuh",
        r"slot\[i \* 32 \+ own\]",
        "slot[own]",
        ("kf_layer_norm_bwd_f32",),
        (),
    ),
    "vectors behind a row's end are loaded as whole ones": (
        "kf/ops/layer_norm.device.cuh",
        r"whole \? left > 0",
        "whole ? true",
        ("kf_layer_norm_f32", "kf_layer_norm_bf16"),
        (),
    ),
    "a plane reads another channel's weights": (
        "kf/ops/instance_norm.device.cuh",
        r"channel = row - batch \* ",
        "channel = batch % ",
        ("kf_instance_norm_f32", "kf_instance_norm_bwd_bf16"),
        (),
    ),
    "a channel's gradient leaves out the last batch": (
        "kf/core/rows/host.cuh",
        r"nothing \? 0 : leaves;",
        "nothing ? 0 : leaves - 1;",
        ("kf_instance_norm_bwd_f32",),
        (),
    ),
    "all groups read the first group's weights": (
        "kf/ops/group_norm.device.cuh",
        r"kfi_base = channel \*",
        "kfi_base = 0 * channel *",
        ("kf_group_norm_f32", "kf_group_norm_bwd_bf16"),
        (),
    ),
    "segments are read as if they were contiguous": (
        "kf/core/rows/segments.cuh",
        r"\* gap\s+: column",
        "* 0 : column",
        ("kf_group_norm_f32", "kf_group_norm_bwd_f32"),
        (),
    ),
    "the next channel begins one element late": (
        "kf/core/rows/segments.cuh",
        r"\(channel \+ 1\) \* \(kf_i64\)g\.in\.inner\.d - in_segment",
        "(channel + 1) * (kf_i64)g.in.inner.d - in_segment + 1",
        ("kf_group_norm_f32", "kf_group_norm_bf16"),
        (),
    ),
    "the next segment's address leaves out the gap": (
        "kf/core/rows/segments.cuh",
        r"p->at \+= gap",
        "p->at += 0 * gap",
        ("kf_group_norm_f32", "kf_group_norm_f16"),
        (),
    ),
    "all slices of a channel store to the first one's place": (
        "kf/ops/group_norm.device.cuh",
        r"g\.in\.slices \+ kfi_own\.slice",
        "g.in.slices",
        ("kf_group_norm_bwd_f32",),
        (),
    ),
    "a channel's sum leaves out half of a team's lanes": (
        "kf/core/rows/segments.cuh",
        r"by >= g\.in\.wide; by >>= 1\)(\s+\\\s+)sum\[0\]",
        r"by > g.in.wide; by >>= 1)\1sum[0]",
        ("kf_group_norm_bwd_f32",),
        (),
    ),
    "the running variance is divided by the count, not one less": (
        "kf/ops/batch_norm_train.device.cuh",
        r"count - 1\.0f",
        "count - 0.0f",
        ("kf_batch_norm_train_f32", "kf_batch_norm_train_bf16_f32"),
        (),
    ),
    "all channels begin at the first channel's element": (
        "kf/core/rows/segments.cuh",
        r"return kfi_plane_row\(row, p, g\);",
        "return kfi_plane_row(0 * row, p, g);",
        ("kf_batch_norm_train_f32", "kf_batch_norm_train_bwd_bf16"),
        (),
    ),
    "rows read the mask of another query": (
        "kf/ops/scale_bool_mask_softmax.device.cuh",
        r"kfi_mask0_a = kfi_divide\(kfi_turn,",
        "kfi_mask0_a = kfi_divide(row,",
        ("kf_scale_bool_mask_softmax_f32", "kf_scale_bool_mask_softmax_bf16"),
        (),
    ),
    "all batches read the first batch's mask": (
        "kf/core/rows/access.cuh",
        r"\(batch \* \(kf_i64\)g\.channels\.d \+ turn",
        "(0 * batch + turn",
        ("kf_scale_mask_softmax_f32", "kf_scale_mask_softmax_dropout_bwd_bf16"),
        (),
    ),
    "the prefetched mask is the current row's": (
        "kf/ops/scale_bool_mask_softmax.device.cuh",
        r"kfi_shared_next = kfi_divide\(kfi_turn \+ (\w \* )?row_stride,",
        "kfi_shared_next = kfi_divide(kfi_turn,",
        ("kf_scale_bool_mask_softmax_f32", "kf_scale_bool_mask_softmax_bf16"),
        (),
    ),
    "the causal mask is one query late": (
        "kf/ops/scale_causal_softmax.device.cuh",
        r"query = row - kfi_divide\(row,",
        "query = 1 + row - kfi_divide(row,",
        ("kf_scale_causal_softmax_f32", "kf_scale_causal_softmax_f16"),
        (),
    ),
    "the prefetched row is the current one": (
        "kf/ops/rms_norm.device.cuh",
        r"\(row \+ row_stride\)",
        "(row)",
        ("kf_rms_norm_bwd_f32",),
        (),
    ),
    "a weight's gradient adds the old value without beta": (
        "kf/core/matmul/sum.cuh",
        r"values\[e\] \+= \(real\)t\.beta \* old",
        "values[e] += old",
        ("kf_linear_bwd_f32", "kf_linear_bwd_bf16_f32"),
        (),
    ),
    "the second product multiplies by the first one's weights": (
        "kf/core/matmul/sum.cuh",
        r"second \? t\.b\[1\]",
        "second ? t.b[0]",
        ("kf_linear_mul_bwd_f32", "kf_linear_mul_bwd_f16"),
        (),
    ),
    "a bias' gradient leaves out the last warp of a pass": (
        "kf/core/matmul/sum.cuh",
        r"line < KFI_PASS_WARPS; \+\+line",
        "line < KFI_PASS_WARPS - 1; ++line",
        ("kf_linear_bwd_f32",),
        (),
    ),
    "a bias' gradient leaves out the last partial sum": (
        "kf/core/matmul/sum.cuh",
        r"there \? t\.count : 0",
        "there ? t.count - 1 : 0",
        ("kf_linear_bwd_f32", "kf_linear_bwd_f64"),
        (),
    ),
    "a bias' gradient leaves out the second warp": (
        "kf/core/matmul/sum.cuh",
        r"warp = 1; warp < warps",
        "warp = 2; warp < warps",
        ("kf_linear_bwd_f32",),
        (),
    ),
    "all matrices read the first one's accumulator gradient": (
        "kf/core/matmul/sum.cuh",
        r"\(at\.matrix \* s\.rows \+ row\)",
        "(row)",
        ("kf_linear_gelu_bwd_f32", "kf_linear_gelu_bwd_bf16"),
        (),
    ),
    "all matrices read the first one's dropout words": (
        "kf/ops/linear_act_dropout.device.cuh",
        r"\(kfi_matrix \* g\.rows \+ kfi_coord\[u\]\.row\)",
        "(kfi_coord[u].row)",
        ("kf_linear_dropout_f32",),
        (),
    ),
    "the left factor is computed from the row before": (
        "kf/ops/act_linear.device.cuh",
        r"kfi_pass_offset\(t, 0, at,\s+row\)",
        "kfi_pass_offset(t, 0, at, row > 0 ? row - 1 : row)",
        ("kf_relu_linear_f32", "kf_relu_linear_bf16"),
        (),
    ),
    "a weight's gradient is summed by one block without splits": (
        "kf/core/matmul/backward.cuh",
        r"p->choice\.splits < 2 \|\| !p->t\.out",
        "true",
        ("kf_linear_bwd_f32", "kf_linear_bwd_bf16"),
        (),
    ),
}
SEEDED |= planted.MORE_FAULTS
SEEDED |= cases.merged("FAULTS")


def test_every_fault_has_its_place(include, tmp_path):
    """Every fault can still be planted, including those that level 1 does not compile."""
    for file, text, instead, _, _ in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    file, text, instead, names, sanitizers = SEEDED[what]
    functions = faults.named(names, "cuda")
    found = planted.caught(
        faults.plant(include, tmp_path, file, text, instead), tmp_path, functions, sanitizers
    )
    print("noticed by", sorted(found))  # shown by pytest -rP
    assert found, f"nobody notices {what}"
    assert set(sanitizers) <= found, f"{sanitizers} do not notice {what}"


@pytest.mark.parametrize(
    "path, i",
    faults.some(planted.SITES),
    ids=[f"{path.relative_to(planted.CORE)}-{i}" for path, i in faults.some(planted.SITES)],
)
def test_removed_barrier(include, tmp_path, path, i):
    parts = path.read_text().split(planted.BARRIER)
    changed = tmp_path / "kf/core" / path.relative_to(planted.CORE)
    changed.parent.mkdir(parents=True)
    changed.write_text(
        planted.BARRIER.join(parts[: i + 1]) + ";" + planted.BARRIER.join(parts[i + 1 :])
    )
    # ThreadSanitizer takes minutes for thousands of reports. Only it sees a buffer that is
    # overwritten too soon, before the first barrier of a reduction.
    sanitizers = ("races",) if cases.LEVEL > 1 or (path, i) == planted.SITES[0] else ()
    found = planted.caught([tmp_path, *include], tmp_path, planted.users(path), sanitizers)
    print("noticed by", sorted(found))  # shown by pytest -rP
    assert found, f"nobody notices that barrier {i} of {path.name} is gone"
    assert set(sanitizers) <= found, "ThreadSanitizer does not"


# Parts that run in parallel: the whole takes many minutes.
PARTS = cases.by_level(1, 12)


@pytest.mark.parametrize("part", range(PARTS))
def test_the_original_is_green(include, tmp_path, part):
    """Checks that the unchanged headers pass. Level 1 takes one function of each schedule, in the
    order that notices nearly all faults first; test_numbers.py has run these schedules in the other
    orders."""
    names = {n for what in faults.some(SEEDED) for n in SEEDED[what][3]}
    functions = [
        f
        for f in samples.MANIFEST
        if f["name"] in names
        or f in planted.SUMS + planted.REDUCED + planted.PRODUCTS + planted.BANDS
    ]
    assert (
        len(planted.SITES) >= 10
        and len(planted.SUMS) >= 6
        and len(planted.REDUCED) >= 6
        and len(planted.PRODUCTS) == 2
    )
    if cases.LEVEL == 1:
        assert (
            planted.caught(
                include,
                tmp_path,
                selection.cover(lambda f: [selection.schedule(f)], functions),
                (),
                ("forward",),
            )
            == set()
        )
    else:
        assert planted.caught(include, tmp_path, functions[part::PARTS], ()) == set()
