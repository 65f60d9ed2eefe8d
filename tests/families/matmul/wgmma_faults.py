# SPDX-License-Identifier: Apache-2.0
"""Faults that test_emu_wgmma.py plants in the headers: (file, pattern, replacement)."""

PIPELINE = "kf/core/matmul/hopper.cuh"
SEEDED_WGMMA = {
    "consumer warpgroups do not wait for their turn": (
        PIPELINE,
        r"kfi_named_sync<256>\(r->group\);",
        "",
    ),
    "no warpgroup has the first turn": (PIPELINE, r"kfi_named_arrive<256>\(1\);", ""),
    "a stage is read before its copy is complete": (
        PIPELINE,
        r"kfi_mbar_wait\(r->full \+ 8 \* r->stage, r->phase\);",
        "",
    ),
    "a stage is awaited in the wrong phase": (
        PIPELINE,
        r"r->full \+ 8 \* r->stage, r->phase\)",
        "r->full + 8 * r->stage, r->phase ^ 1)",
    ),
    "a stage is refilled while it is read": (PIPELINE, r"r->phase \^ 1\);", "r->phase);"),
    "a stage is released before its product is complete": (
        PIPELINE,
        r"if \(i > 0 && tells\) kfi_mbar_arrive\(last\);",
        "if (tells) kfi_mbar_arrive(r->empty + 8 * r->stage);",
    ),
    "a barrier expects fewer bytes than are copied": (
        PIPELINE,
        r"kfi_mbar_expect\(bar, kfi_pipeline_stage_bytes\(tile\)\)",
        "kfi_mbar_expect(bar, kfi_pipeline_a_bytes(tile))",
    ),
    "a product has no fence before it": (PIPELINE, r"kfi_wgmma_fence\(\);", ""),
    "accumulators are read before their product is complete": (
        PIPELINE,
        r"kfi_wgmma_wait<0>\(\);",
        "kfi_wgmma_wait<1>();",
    ),
    "the first product adds to old accumulators": (PIPELINE, r"!first \|\| q > 0", "true"),
    "mbarriers are not visible to the async proxy": (PIPELINE, r"kfi_mbar_fence_init\(\);", ""),
    "a barrier expects two arrivals where one comes": (
        PIPELINE,
        r"kfi_policy\(tile\)\.cooperative \? 2 : 1\);",
        "2);",
    ),
    "consumers ask for more registers than the block has": (
        PIPELINE,
        r"kfi_setmaxnreg_inc<kfi_policy\(tile\)\.consumer_registers>",
        "kfi_setmaxnreg_inc<256>",
    ),
    "the pipeline does not advance over the other warpgroup's tile": (
        PIPELINE,
        r"kfi_pipeline_advance<tile>\(r, r->next_count\);",
        "",
    ),
    "A is copied from the next row on": (
        PIPELINE,
        r"a, bar, depth, at\.row, of_a",
        "a, bar, depth, at.row + 1, of_a",
    ),
    "the second 64 rows of a tile are the first ones again": (
        PIPELINE,
        r"a \+ \(m \* 8192 \+",
        "a + (0 * m +",
    ),
    "a product reads another quarter of the stage": (
        PIPELINE,
        r"b \+ q \* step_b / 16",
        "b + (q ^ 1) * step_b / 16",
    ),
    "all matrices of a batch are the first one": (
        PIPELINE,
        r"\(int\)at\.matrix \* maps\.batched_a",
        "0 * maps.batched_a",
    ),
    "all splits read the first split's K-slices": (
        PIPELINE,
        r"at\.begin \+ \(i - term",
        "(i - term",
    ),
    "all splits store to the first one's partial tile": (
        PIPELINE,
        r"at\.matrix, at\.split, p, g\)",
        "at.matrix, 0, p, g)",
    ),
    "lanes exchange columns with the wrong lane": (PIPELINE, r"\*high, bit\);", "*high, 3 - bit);"),
    "lanes send the columns that they should keep": (
        PIPELINE,
        r"upper \? \*low : \*high, bit",
        "upper ? *high : *low, bit",
    ),
    "the two halves of a fragment's rows are swapped": (
        PIPELINE,
        r"/ 2 \+ i / 16 \* 2 \+ i % 2",
        "/ 2 + (1 - i / 16) * 2 + i % 2",
    ),
    "warps store to the rows of another warp": (
        PIPELINE,
        r"threadIdx\.x / 32 % 4 \* 16",
        "threadIdx.x / 32 % 2 * 16",
    ),
}
SKINNY = "kf/core/matmul/skinny.cuh"
SEEDED_SKINNY = {
    "skinny M: a stage is read before its copy is complete": (
        SKINNY,
        r"kfi_mbar_wait\(f\.full \+ 8 \* stage, phase\);",
        "",
    ),
    "skinny M: a stage is refilled while it is read": (
        SKINNY,
        r"kfi_mbar_wait\(f\.empty \+ 8 \* stage, phase\);",
        "",
    ),
    "skinny M: a stage is released before its product is complete": (
        SKINNY,
        r"if \(i > 0 && tells\) kfi_mbar_arrive\(last\);",
        "if (tells) kfi_mbar_arrive(f.empty + 8 * stage);",
    ),
    "skinny M: a barrier expects fewer bytes than are copied": (
        SKINNY,
        r"kfi_skinny_b_bytes\(\) \+ maps\.a_bytes",
        "kfi_skinny_b_bytes()",
    ),
    "skinny M: a product has no fence before it": (SKINNY, r"kfi_wgmma_fence\(\);", ""),
    "skinny M: accumulators are read before their product is complete": (
        SKINNY,
        r"kfi_wgmma_wait<0>\(\);",
        "kfi_wgmma_wait<1>();",
    ),
    "skinny M: the first product adds to old accumulators": (SKINNY, r"i > 0 \|\| q > 0", "true"),
    "skinny M: mbarriers are not visible to the async proxy": (
        SKINNY,
        r"kfi_mbar_fence_init\(\);",
        "",
    ),
    "skinny M: a block leaves while others read its memory": (
        SKINNY,
        r"if \(bits > 0\) kfi_cluster_wait\(\); // all",
        "// all",
    ),
    "skinny M: other blocks' sums are read without a cluster barrier": (
        SKINNY,
        r"kfi_cluster_arrive\(\);\n        kfi_cluster_wait\(\);\n    } else",
        "} else",
    ),
    "skinny M: other warps' sums are read without a barrier": (
        SKINNY,
        r"kfi_named_sync<KFI_SKINNY_CONSUMERS>\(1\);",
        "",
    ),
    "skinny M: the sum leaves out the last block": (
        SKINNY,
        r"block < 1 << maps\.share_bits",
        "block < (1 << maps.share_bits) - 1",
    ),
    "skinny M: a block reduces another block's columns": (
        SKINNY,
        r"f\.rank \* 64 >> bits",
        "(f.rank ^ 1) * 64 >> bits",
    ),
    "skinny M: all blocks read the first one's K-slices": (
        SKINNY,
        r"\(f\.begin \+ i\) \* KFI_PIPELINE_K;",
        "i * KFI_PIPELINE_K;",
    ),
    "skinny M: a block leaves out its last K-slice": (
        SKINNY,
        r"\(all \* \(f\.rank \+ 1\) >> maps\.share_bits\) - f\.begin;",
        "(all * (f.rank + 1) >> maps.share_bits) - f.begin - (f.rank > 0);",
    ),
    "skinny M: the second product reads the first one's columns": (
        SKINNY,
        r"\+ product \* f\.groups \* 8",
        "+ 0 * product * f.groups * 8",
    ),
    "skinny M: the second product copies the first one's weights": (
        SKINNY,
        r"maps\.b \+ p, bar, depth",
        "maps.b, bar, depth",
    ),
    "skinny M: all matrices of a batch are the first one": (
        SKINNY,
        r"\(int\)at\.matrix \* maps\.batched_b",
        "0 * maps.batched_b",
    ),
    "skinny M: a product reads another quarter of the stage": (
        SKINNY,
        r"b \+ q \* step_b / 16",
        "b + (q ^ 1) * step_b / 16",
    ),
    "skinny M: one row too many is stored": (
        SKINNY,
        r"row < g\.rows && group",
        "row <= g.rows && group",
    ),
}
SKINNY_F32 = "kf/core/matmul/skinny_f32.cuh"
SEEDED_SKINNY_F32 = {
    "few floats: a stage is read before its copy is complete": (
        SKINNY_F32,
        r"kfi_mbar_wait\(f->full \+ 8 \* f->stage, f->phase\);",
        "",
    ),
    "few floats: a stage is refilled while it is read": (
        SKINNY_F32,
        r"f->phase \^ 1\);",
        "f->phase);",
    ),
    "few floats: a stage is released by all warps but one": (
        SKINNY_F32,
        r"kfi_mbar_init\(f\.empty \+ 8 \* i, 2 \* groups\)",
        "kfi_mbar_init(f.empty + 8 * i, 2 * groups - 1)",
    ),
    "few floats: a barrier expects fewer bytes than are copied": (
        SKINNY_F32,
        r"products \* maps\.tile_cols \* KFI_3XTF32_K \* 4 \+ maps\.a_bytes",
        "products * maps.tile_cols * KFI_3XTF32_K * 4",
    ),
    "few floats: mbarriers are not visible to the async proxy": (
        SKINNY_F32,
        r"kfi_mbar_fence_init\(\);",
        "",
    ),
    "few floats: a block stores to one that may not have started": (
        SKINNY_F32,
        r"if \(maps\.share_bits > 0\) kfi_cluster_wait\(\); // all",
        "// all",
    ),
    "few floats: partial sums are read before all warps have stored them": (
        SKINNY_F32,
        r"kfi_named_sync<KFI_SKINNY_F32_CONSUMERS>\(1\);",
        "",
    ),
    "few floats: the sum leaves out the last block": (
        SKINNY_F32,
        r"block < 1 << bits; \+\+block, from",
        "block < (bits ? (1 << bits) - 1 : 1); ++block, from",
    ),
    "few floats: the sum leaves out two pipelines": (
        SKINNY_F32,
        r"if \(pipelines > 2\) sum",
        "if (false) sum",
    ),
    "few floats: a block stores to another block's partial tile": (
        SKINNY_F32,
        r"kfi_mapa\(own, block\)",
        "kfi_mapa(own, block ^ 1)",
    ),
    "few floats: all blocks read the first one's K-slices": (
        SKINNY_F32,
        r"f\.rank \* 4 \+ quarter",
        "0 * f.rank + quarter",
    ),
    "few floats: the second quarter of a pipeline is left out": (
        SKINNY_F32,
        r"q > 0 \? sums\[i\] \+ own\[i\]",
        "q > 0 ? sums[i]",
    ),
    "few floats: a stage's sums add to those of the stage before": (
        SKINNY_F32,
        r"parts > 1; \+\+j\) part\[j\] = 0;",
        "parts > 1 && i == 0; ++j) part[j] = 0;",
    ),
    "few floats: the columns' low parts are not multiplied": (
        SKINNY_F32,
        r"i < 2 \? lo\[m\]",
        "false ? lo[m]",
    ),
    "few floats: the rows' low parts are not multiplied": (
        SKINNY_F32,
        r"i / 2 == 1 \? row_lo",
        "false ? row_lo",
    ),
    "few floats: the factors have different orders of K": (
        SKINNY_F32,
        r"kfi_3xtf32_offset\(n \* 8 \+ line, half \* 4 \+ own\)",
        "kfi_3xtf32_offset(n * 8 + line, half * 4 + (own ^ 1))",
    ),
    "few floats: the second 32 columns are the first ones again": (
        SKINNY_F32,
        r"f->half \* \(32 \* 128\)",
        "0 * (32 * 128)",
    ),
    "few floats: the second half of the rows is the first one again": (
        SKINNY_F32,
        r"f->group \* \(rows \* 128\)",
        "0 * (rows * 128)",
    ),
    "few floats: the second product copies the first one's weights": (
        SKINNY_F32,
        r"maps\.b \+ p, bar",
        "maps.b, bar",
    ),
    "few floats: the second product reads the first one's columns": (
        SKINNY_F32,
        r"\+ product \* \(KFI_SKINNY_F32_COLS / products >> bits\)",
        "",
    ),
    "few floats: all matrices of a batch are the first one": (
        SKINNY_F32,
        r"\(int\)at\.matrix \* maps\.batched_b",
        "0 * maps.batched_b",
    ),
    "few floats: columns of the next tile are stored": (
        SKINNY_F32,
        r"of_tile < maps\.tile_cols \?",
        "true ?",
    ),
    "few floats: one row too many is stored": (
        SKINNY_F32,
        r"return row < g\.rows;",
        "return row <= g.rows;",
    ),
    "few floats: an infinite product is not computed again": (
        SKINNY_F32,
        r"if \(parts > 1\) kfi_3xtf32_mend",
        "if (false) kfi_3xtf32_mend",
    ),
}
TF32 = "kf/core/matmul/tf32.cuh"
SEEDED_3XTF32 = {
    "TF32: a stage is read before its copy is complete": (
        TF32,
        r"kfi_mbar_wait\(h\.full \+ 8 \* h\.stage, h\.phase\);",
        "",
    ),
    "TF32: the right factor is read before it is split": (
        TF32,
        r"kfi_mbar_wait\(h->split \+ 8 \* h->stage, h->phase\);",
        "",
    ),
    "TF32: the right factor is split before its copy is complete": (
        TF32,
        r"kfi_mbar_wait\(h->full \+ 8 \* h->stage, h->phase\);",
        "",
    ),
    "TF32: a stage is refilled while it is read": (TF32, r"h->phase \^ 1\);", "h->phase);"),
    "TF32: split values have no fence before products": (TF32, r"kfi_async_fence\(\);", ""),
    "TF32: split values of other lanes are read without a barrier": (
        TF32,
        r"kfi_async_fence\(\);\n            __syncwarp\(\);",
        "kfi_async_fence();",
    ),
    "TF32: a barrier expects three of four splitting warps": (
        TF32,
        r"h\.split \+ 8 \* i, 4\)",
        "h.split + 8 * i, 3)",
    ),
    "TF32: a stage is released by seven of eight warps": (
        TF32,
        r"h\.empty \+ 8 \* i, 8\)",
        "h.empty + 8 * i, 7)",
    ),
    "TF32: a product has no fence before it": (TF32, r"kfi_wgmma_fence\(\);", ""),
    "TF32: accumulators are read before their product is complete": (
        TF32,
        r"kfi_wgmma_wait<0>\(\);",
        "kfi_wgmma_wait<1>();",
    ),
    "TF32: the left factor's low part is not multiplied": (
        TF32,
        r"kfi_wgmma_tf32\(sums, lo\[q\], right_hi",
        "kfi_wgmma_tf32(sums, lo[q], right_lo",
    ),
    "TF32: the right factor's low part is not multiplied": (
        TF32,
        r"kfi_wgmma_tf32\(sums, hi\[q\], right_lo \+ q \* 2, 1\);",
        "",
    ),
    "TF32: a stage's sums add to those of the stage before": (
        TF32,
        r"right_hi \+ q \* 2, q > 0\)",
        "right_hi + q * 2, 1)",
    ),
    "TF32: the factors have different orders of K": (TF32, r"4 \* i \+ j;", "4 * (i ^ 1) + j;"),
    "TF32: a left factor with strided K has another order of it": (
        TF32,
        r"2 \* i \+ j % 2",
        "i + j % 2 * 4",
    ),
    "TF32: results are stored to the rows of another lane": (
        TF32,
        r"kfi_3xtf32_fragment_row<layout>\(0\) \* KFI",
        "threadIdx.x % 32 / 4 * KFI",
    ),
    "TF32: a slab is overwritten while lanes read it": (
        TF32,
        r"__syncwarp\(\); // all lanes",
        "// all lanes",
    ),
    "TF32: rows are read from another box of the left factor": (
        TF32,
        r"left \+ row / 32 \* 4096",
        "left + row / 64 * 4096",
    ),
    "TF32: the second product copies the first one's columns": (
        TF32,
        r"maps\.b \+ of, bar",
        "maps.b, bar",
    ),
    "TF32: all splits read the first split's K-slices": (
        TF32,
        r"depth = at\.begin \+ \(i",
        "depth = (i",
    ),
    "TF32: an infinite product is not computed again": (
        TF32,
        r"values\[e\] - values\[e\] == 0 \?",
        "true ?",
    ),
    "TF32: a value is computed again from another row": (
        TF32,
        r"left\[coord\.row \* row_step",
        "left[(coord.row ^ 1) * row_step",
    ),
    "TF32: a warp's slab is overwritten while lanes read it": (
        TF32,
        r"    __syncwarp\(\);\n}\n// Finds",
        "}\n// Finds",
    ),
    "TF32: all matrices of a batch are the first one": (
        TF32,
        r"\(int\)at\.matrix \* maps\.batched_a",
        "0 * maps.batched_a",
    ),
}
SEEDED_TF32 = {
    "TF32: factors of one part are not rounded": (
        "kf/core/matmul/hopper_host.cuh",
        r"KFI_OF_TF32 \? 11",
        "KFI_OF_TF32 ? 7",
    ),
    "TF32: a stage has the K-slice of 2-byte elements": (
        PIPELINE,
        r"kfi_policy\(tile\)\.stage_k, maps\)",
        "KFI_PIPELINE_K, maps)",
    ),
    "the first four of eight columns are stored twice": (
        PIPELINE,
        r"\+ vector % \(8 / vec\) \* vec \+ e\]",
        "+ e]",
    ),
    "TF32: the first product of one part adds to old accumulators": (
        TF32,
        r"parts > 1 \|\| !first \|\| q > 0",
        "true",
    ),
    "TF32: one part has another order of K": (
        TF32,
        r"half \+ j\)\) = all",
        "half + (j ^ 1))) = all",
    ),
}
SUM, TILE, PICK = "kf/core/matmul/sum.cuh", "kf/core/matmul/tile.cuh", "kf/core/matmul/pick.cuh"
SEEDED_LAST = {
    "a shared tile's sum leaves out the last split": (
        SUM,
        r"split < g\.splits; \+\+split\) {\n        from",
        "split + 1 < g.splits; ++split) {\n        from",
    ),
    "all partial tiles have one place": (
        SUM,
        r"\(kf_i64\)at\.partial_index \* \(KFI",
        "0 * (kf_i64)at.partial_index * (KFI",
    ),
    "each split of a shared tile ends at the whole K": (
        TILE,
        r"at\.split \+ 1 == splits \?",
        "true ?",
    ),
    "a tile of one block ends where a split would": (
        TILE,
        r"at\.split \+ 1 == splits \?",
        "at.split + 1 == g.splits ?",
    ),
    "the reduction takes the first tiles for the last ones": (
        TILE,
        r"g\.whole_tiles \+ at\.partial_index - turn \* shared",
        "at.partial_index - turn * shared",
    ),
    "one block too few is launched": (
        PICK,
        r"c\.whole_tiles \+ \(tiles - c\.whole_tiles\) \* c\.splits",
        "c.whole_tiles + (tiles - c.whole_tiles) * c.splits - 1",
    ),
}
