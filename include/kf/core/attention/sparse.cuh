// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/sparse.cuh: lists of key blocks: the keys that a block of queries sees, in
// device memory.
//
// A list has the key blocks of `block` queries of one batch and head, ascending, and for each a
// mask or -1: all of its keys are visible. Kernels walk its steps, a key block of theirs each, from
// the last to the first, so that sums have the order of a call without lists. The bounds of a list
// are clamped, as those of packed sequences. Rows of a list with a number outside of the keys or of
// the masks, or with more entries than blocks of keys, are NaN. Nothing outside is read. Callers:
// portable.cuh, simt.cuh.
#ifndef KF_CORE_ATTENTION_SPARSE_CUH
#define KF_CORE_ATTENTION_SPARSE_CUH

#include "kf/core/attention/softmax.cuh"

// Arguments of the kernels of lists.
struct kfi_attention_sparse {
    kfi_attention a;
    const int *offsets; // [batch, heads, blocks of queries + 1]: bounds of each list in `entries`
    kfi_attention_strides offset_strides; // row: 1
    const int *entries;                   // [listed, 2]: a block of keys, and its mask or -1
    const int *masks;                     // [masks, block, block / 32]: bits of queries and keys
    int block, listed, mask_count;        // block: 64 or 128, a multiple of the kernels' blocks
};

#ifdef KFI_DEVICE_PASS

// The list of a block of rows, a range of keys (args.cuh).
struct kfi_attention_list {
    int first, last;            // steps
    kfi_attention_blocks whole; // the same rows without a list
    const int *entries, *masks;
    int block, shift; // a block has 1 << shift steps
};
KFI_DEVICE int kfi_attention_clamp(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }
// Finds the list of `rows` rows. Called by all threads. Sets at->refused if the list is wrong.
// keys: of a step.
template <int keys>
KFI_DEVICE kfi_attention_list kfi_attention_list_of(const kfi_attention_sparse &s,
                                                    kfi_attention_place *at, int rows)
{
    const kfi_attention_strides &steps = s.offset_strides;
    const int *const own =
        s.offsets + at->batch * steps.batch + at->head * steps.head + at->begin / s.block;
    const int begin = kfi_attention_clamp(own[0], s.listed),
              end = kfi_attention_clamp(own[1], s.listed),
              blocks = (s.a.keys + s.block - 1) / s.block,
              count = kfi_max_i32(0, kfi_min_i32(end - begin, blocks));
    const int *const entries = s.entries + 2 * (kf_i64)begin;
    int wrong = end - begin > blocks;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const int key = entries[2 * i], mask = entries[2 * i + 1];
        wrong |= key < 0 || key >= blocks || mask < -1 || mask >= s.mask_count;
    }
    at->refused = __syncthreads_or(wrong) != 0;
    const int shift = s.block == keys ? 0 : s.block == 2 * keys ? 1 : 2;
    const kfi_attention_list b = {
        0,
        at->refused ? -1 : (count << shift) - 1,
        kfi_attention_blocks_of<keys>(s.a, at->begin,
                                      kfi_min_i32(at->begin + rows, s.a.queries) - 1),
        entries,
        s.masks,
        s.block,
        shift};
    return b;
}
KFI_DEVICE int kfi_attention_block_at(const kfi_attention_list &b, int step)
{
    if (step < 0) return 0;
    return (b.entries[2 * (step >> b.shift)] << b.shift) + (step & ((1 << b.shift) - 1));
}
KFI_DEVICE bool kfi_attention_hides(const kfi_attention_list &) { return true; }
KFI_DEVICE bool kfi_attention_is_masked(const kfi_attention_list &b, int block)
{
    return kfi_attention_is_masked(b.whole, block);
}
template <int keys>
KFI_DEVICE bool kfi_attention_partial(const kfi_attention &, const kfi_attention_list &, int, int)
{
    return true;
}
// Words of a row's bits in a mask.
KFI_DEVICE const int *kfi_attention_mask_row(const kfi_attention_list &b, int mask, int row)
{
    return b.masks + ((kf_i64)mask * b.block + row) * (b.block / 32);
}
template <int n, class real>
KFI_DEVICE void kfi_attention_mask(real *s, const kfi_attention &a, const kfi_attention_list &b,
                                   int step, int block, int row, int key)
{
    constexpr int keys = 2 * n;
    kfi_attention_mask<n>(s, a, b.whole, step, block, row, key);
    const int mask = b.entries[2 * (step >> b.shift) + 1], first = row & (b.block - 1);
    if (mask < 0) return;
    unsigned words[2][keys / 32];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        // A thread of one row has none 8 behind it.
        const int *const from =
            kfi_attention_mask_row(b, mask, kfi_min_i32(first + 8 * h, b.block - 1)) +
            (step & ((1 << b.shift) - 1)) * (keys / 32);
#pragma unroll
        for (int j = 0; j < keys / 32; ++j) words[h][j] = (unsigned)from[j] >> (key & 7);
    }
#pragma unroll
    for (int i = 0; i < n; ++i)
        if (!(words[kfi_score_row(i)][kfi_score_key(i) / 32] >> kfi_score_key(i) % 32 & 1))
            s[i] = kfi_minus_infinity();
}
// Positions of a row: those of the keys of all blocks of the list.
KFI_DEVICE kfi_attention_positions kfi_attention_positions_of(const kfi_attention &,
                                                              const kfi_attention_list &b, int)
{
    const kfi_attention_positions s = {0, ((b.last + 1) >> b.shift) * b.block - 1};
    return s;
}
KFI_DEVICE int kfi_attention_key_at(const kfi_attention_list &b, int position)
{
    return b.entries[2 * (position / b.block)] * b.block + position % b.block;
}
KFI_DEVICE bool kfi_attention_sees(const kfi_attention &a, const kfi_attention_list &b, int row,
                                   int position)
{
    const int key = kfi_attention_key_at(b, position), column = position % b.block,
              mask = b.entries[2 * (position / b.block) + 1];
    if (key < kfi_attention_first_key(a, row) || key > kfi_attention_last_key(a, row)) return false;
    return mask < 0 ||
           ((unsigned)kfi_attention_mask_row(b, mask, row % b.block)[column / 32] >> column % 32 &
            1);
}
#endif

#endif
