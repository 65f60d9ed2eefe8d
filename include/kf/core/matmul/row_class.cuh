// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/row_class.cuh: wgmma products of 2-byte elements with a matrix whose row pitch is
// no multiple of 16 bytes, without a copy (sm_90a).
//
// Rows 8 j + i of such a matrix have a pitch of 8 times as many bytes, a multiple of 16: the rows
// of one class i are a tensor that TMA can address. Its base is rounded down to 16 bytes and lies
// shift[i] elements before the class. A box must begin at a multiple of 16 bytes, so that the rows
// of a box all begin shift[i] elements early. A tile has 128 rows of one class, and the other
// operand begins shift[i] elements early, too, in its row coordinate, which is free:
//   A odd, B transposed    K: B's rows begin at -shift[i]. The first box holds the end of the row
//                          before, which consumers zero: B is zero there, but NaN times 0 is NaN.
//   result odd, layout nt  columns: B's rows, which are the result's columns, begin at -shift[i].
//
// Grid, block and pipeline are those of hopper.cuh. Tiles are numbered class after class: rows
// 128 c to 128 c + 127 of each 1,024 are class c (kfi_class_row).
// Sums over a shifted K have another order: a result's bits depend on its row modulo 8. Shifted
// columns change no sum.
#ifndef KF_CORE_MATMUL_ROW_CLASS_CUH
#define KF_CORE_MATMUL_ROW_CLASS_CUH

#include "kf/core/matmul/hopper.cuh"

#define KFI_ROW_CLASSES 8 // rows whose pitch together is a multiple of 16 bytes

// maps: B, and what does not depend on the class. a, results: of each class. shift: elements that a
// class begins early.
struct kfi_class_maps {
    kfi_gemm_maps maps;
    kfi_tensor_map a[KFI_ROW_CLASSES], results[KFI_ROW_CLASSES];
    unsigned char shift[KFI_ROW_CLASSES];
};
static_assert(
    sizeof(kfi_class_maps) + 768 <= 4096,
    "kf: drivers before CUDA 12.1 take 4,096 bytes of arguments, of which others need 768");

#ifdef KFI_DEVICE_PASS
// The class of a tile, and the row of a matrix that a row of the numbering above has.
KFI_DEVICE int kfi_class_of(const kfi_gemm_tile &at) { return at.row / 128 % KFI_ROW_CLASSES; }
KFI_DEVICE int kfi_class_row(int row) { return (row & ~1023) | (row & 127) << 3 | (row >> 7 & 7); }
#endif

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Loads one K-slice of A and B into the current stage.
template <int tile, int layout>
KFI_DEVICE void kfi_class_load_slice(const kfi_pipeline &r, const kfi_gemm_tile &at, int of,
                                     int depth, const kfi_class_maps &maps)
{
    static_assert(kfi_policy(tile).rows == 128 && !(layout & KFI_A_TRANSPOSED),
                  "kf: a tile has 128 rows of a class, K-contiguous");
    const unsigned to = r.stages + r.stage * kfi_pipeline_stage_bytes(tile),
                   own = to + kfi_pipeline_a_bytes(tile), bar = r.full + 8 * r.stage;
    const int shift = maps.shift[of], of_b = (int)at.matrix * maps.maps.batched_b[0];
    const kfi_tensor_map *const b = maps.maps.b;
    kfi_mbar_expect(bar, kfi_pipeline_stage_bytes(tile));
    kfi_tma_load3(to, &maps.a[of], bar, depth, at.row / 1024 * 128,
                  (int)at.matrix * maps.maps.batched_a[0]);
    if (layout & KFI_B_TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < kfi_policy(tile).cols; i += 64)
            kfi_tma_load3(own + i * 128, b, bar, at.col + i, depth - shift, of_b);
    } else {
        kfi_tma_load3(own, b, bar, depth, at.col - shift, of_b);
    }
}
template <int tile, int layout>
KFI_DEVICE void kfi_class_produce(kfi_pipeline *r, const kfi_gemm &g, const kfi_class_maps &maps)
{
    if constexpr (kfi_policy(tile).producer_registers > 0)
        kfi_setmaxnreg_dec<kfi_policy(tile).producer_registers>();
    if (threadIdx.x != 0) return;
    for (; r->unit < maps.maps.units; r->unit += gridDim.x) {
        const kfi_gemm_tile at = kfi_gemm_locate<tile, 1>(g, r->unit);
        const int slices = kfi_pipeline_slices<tile>(at), of = kfi_class_of(at);
#pragma unroll 1
        for (int i = 0; i < slices; ++i) {
            kfi_mbar_wait(r->empty + 8 * r->stage, r->phase ^ 1);
            kfi_class_load_slice<tile, layout>(*r, at, of, i * kfi_policy(tile).stage_k, maps);
            kfi_pipeline_advance<tile>(r, 1);
        }
    }
}

// Finds a vector of 8 results of slab `number` (kfi_pipeline_lookup). Returns false if it is out of
// range.
template <int tile>
KFI_DEVICE bool kfi_class_lookup(kfi_gemm_coord *coord, const kfi_pipeline &r, int number,
                                 int vector, const kfi_gemm_tile &at, const kfi_gemm &g)
{
    kfi_pipeline_lookup<tile, 1>(coord, number, vector, at, g);
    coord->row =
        kfi_class_row(coord->row + (kfi_policy(tile).cooperative ? (r.group - 1) * 64 : 0));
    coord->left = coord->row < g.rows ? g.cols - coord->col : 0;
    coord->whole = g.wide && coord->left >= 8;
    return coord->left > 0;
}
#endif

#endif
