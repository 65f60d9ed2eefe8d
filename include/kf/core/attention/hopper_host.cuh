// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/hopper_host.cuh: host side of the wgmma attention kernel (hopper.cuh): the
// tile, tensor maps, the order of work and the launch.
#ifndef KF_CORE_ATTENTION_HOPPER_HOST_CUH
#define KF_CORE_ATTENTION_HOPPER_HOST_CUH

#include "kf/core/attention/hopper.cuh"
#include "kf/core/attention/portable_host.cuh"
#include "kf/core/matmul/hopper_host.cuh"

#ifdef KFI_HOST_PASS

// Returns the smallest tile with these head dimensions that has a kernel; -1: none.
KF_FN int kfi_attention_pick_tile(const void *const *kernels, kf_i64 dim, kf_i64 dim_v)
{
    for (int tile = KFI_ATTENTION_WGMMA_64; tile <= KFI_ATTENTION_WGMMA_256; ++tile)
        if (kernels[tile] && dim <= kfi_attention_tile(tile).dim &&
            dim_v <= kfi_attention_tile(tile).dim_v)
            return tile;
    return -1;
}
// Fills in the order of work. Heads that are scheduled together share L2: one head if all tiles
// cost the same, else as many as keep 32 MB of K and V there, in even groups.
KF_FN void kfi_attention_plan_tiles(kfi_attention *a, const kfi_attention_plan &p, int tile)
{
    const kfi_attention_policy t = kfi_attention_tile(tile);
    // The mean length stands for that of each packed sequence.
    const kf_i64 all = p.packed ? p.keys / kfi_clamp(p.batch, 1, INT32_MAX) : p.keys,
                 keys = kfi_clamp(all, 1, INT32_MAX);
    kfi_attention_plan_rows(a, p, 64 * t.consumers);
    a->tiles = a->row_blocks * a->batch_heads;
    const bool causal = p.last.slope && !p.first.slope;
    const kf_i64 fit = (32ll << 20) / (keys * (t.dim + t.dim_v) * 2) * a->group,
                 most = kfi_clamp(fit, 1, 4096 / t.dim), groups = kfi_ceil(a->batch_heads, most);
    a->span = causal ? (int)kfi_ceil(a->batch_heads, groups) : 1;
    a->group_tiles = a->span * a->row_blocks;
}
// Encodes a map of [batch, head, row, dim] for boxes of `rows` rows and 64 columns. Strides of
// sizes of 1 are not read. Returns false if TMA cannot load the tensor.
KF_FN bool kfi_attention_map(kfi_tensor_map *map, const void *p, int type, kf_i64 dim, kf_i64 rows,
                             kf_i64 heads, kf_i64 batch, const kfi_attention_strides &s, int box)
{
    const kfi_encode_map encode = kfi_find_encode();
    const kf_i64 counts[] = {rows, heads, batch}, steps[] = {s.row, s.head, s.batch};
    const unsigned boxes[] = {64, (unsigned)box, 1, 1}, ones[] = {1, 1, 1, 1};
    unsigned long long sizes[4] = {(unsigned long long)dim}, strides[3];
    for (int i = 0; i < 3; ++i) {
        if (counts[i] > 1 && (steps[i] == 0 || steps[i] >= (kf_i64)1 << 39)) return false;
        sizes[i + 1] = (unsigned long long)counts[i];
        strides[i] = counts[i] > 1 ? (unsigned long long)steps[i] * 2 : 16;
    }
    return encode && encode(map, type == KFI_OF_BF16 ? 9 : 6, 4, const_cast<void *>(p), sizes,
                            strides, boxes, ones, 0, 3, 2, 0) == 0;
}
// Encodes the maps of q, k and v. Without keys nothing is loaded, and maps of q stand for those of
// k and v.
KF_FN bool kfi_attention_encode(kfi_tensor_map *maps, const kfi_attention &a, int type, int tile,
                                const kfi_attention_plan &p)
{
    const int box = kfi_attention_tile(tile).keys;
    const kf_i64 heads = a.heads / a.group, batch = p.packed ? 1 : p.batch;
    if (!kfi_attention_map(&maps[0], a.q, type, a.dim, a.queries, a.heads, batch, a.q_strides, 64))
        return false;
    if (a.keys <= 0) {
        maps[1] = maps[2] = maps[0];
        return true;
    }
    return kfi_attention_map(&maps[1], a.k, type, a.dim, a.keys, heads, batch, a.k_strides, box) &&
           kfi_attention_map(&maps[2], a.v, type, a.dim_v, a.keys, heads, batch, a.v_strides, box);
}
// Launches the kernel of a tile, after that of the ticket. sms: blocks of the grid at most. The
// sizes of `a` are filled in.
KF_FN kf_result_t kfi_attention_launch(const kfi_name *name, const void *kernel, const void *ticket,
                                       kfi_attention *a, kfi_tensor_map *maps, int tile,
                                       const kfi_attention_plan &p, int sms, cudaStream_t stream)
{
    kfi_attention_plan_tiles(a, p, tile);
    void *zero[] = {&a->ticket}, *args[] = {&maps[0], &maps[1], &maps[2], a};
    const kf_result_t zeroed = kfi_launch(name, ticket, dim3(1), 1, zero, stream, false);
    if (zeroed != KF_SUCCESS) return zeroed;
    return kfi_launch(name, kernel, dim3((unsigned)(a->tiles < sms ? a->tiles : sms)),
                      (unsigned)kfi_attention_threads(tile), args, stream, false,
                      (unsigned)kfi_attention_shared_bytes(tile, p.packed));
}
#endif

#endif
