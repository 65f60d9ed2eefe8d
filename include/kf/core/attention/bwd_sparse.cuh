// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_sparse.cuh: walks of attention's backward over lists of key blocks.
//
// A block of queries walks the steps of its list from the first to the last (sparse.cuh). A block
// of keys searches its number in the lists of all blocks of queries, head by head: 128 lists at a
// time, a thread each by bisection, and walks those that have it in ascending order. No transposed
// list is needed, and the order of sums is that of a call without lists.
// Rows of a wrong list are marked by kfk_attention_delta_sparse: their factor is -1. A block of
// keys that meets one has NaN as its results. Nothing outside of the lists and masks is read.
// Shared memory: static. Callers: bwd_mma.cuh, bwd_simt.cuh.
#ifndef KF_CORE_ATTENTION_BWD_SPARSE_CUH
#define KF_CORE_ATTENTION_BWD_SPARSE_CUH

#include "kf/core/attention/bwd_walk.cuh"

#define KFI_ATTENTION_LISTS_THREADS 128 // lists that a block searches at a time, and its threads

#ifdef KFI_DEVICE_PASS

// ---- blocks of queries ----

struct kfi_attention_list_step {
    int head, block;
    bool any;
    int at; // step of the list
};
KFI_DEVICE kfi_attention_list_step kfi_attention_first_step(const kfi_attention_list &b, int head,
                                                            int)
{
    const bool any = b.last >= b.first;
    return {head, any ? kfi_attention_block_at(b, b.first) : 0, any, b.first};
}
KFI_DEVICE void kfi_attention_next_step(const kfi_attention_list &b, int,
                                        kfi_attention_list_step *s)
{
    s->any = ++s->at <= b.last;
    if (s->any) s->block = kfi_attention_block_at(b, s->at);
}
KFI_DEVICE bool kfi_attention_is_wrong(const kfi_attention_list_step &) { return false; }
// Bits of a thread's two rows, from its step's first key on.
struct kfi_attention_row_pairs {
    unsigned words[2];
};
// row: the thread's first one. A step has at most 32 keys.
KFI_DEVICE kfi_attention_row_pairs kfi_attention_pairs_of(const kfi_attention_list &b,
                                                          const kfi_attention_list_step &s, int row)
{
    const int mask = b.entries[2 * (s.at >> b.shift) + 1], first = row & (b.block - 1),
              key = (s.at & ((1 << b.shift) - 1)) * (b.block >> b.shift);
    kfi_attention_row_pairs found = {{0xffffffffu, 0xffffffffu}};
#pragma unroll
    for (int h = 0; mask >= 0 && h < 2; ++h) // a thread of one row has none 8 behind it
        found.words[h] = (unsigned)kfi_attention_mask_row(
                             b, mask, kfi_min_i32(first + 8 * h, b.block - 1))[key / 32] >>
                         key % 32;
    return found;
}
KFI_DEVICE unsigned kfi_attention_shown(const kfi_attention_row_pairs &p, int col)
{
    return (p.words[0] >> col & 3) | (p.words[1] >> col & 3) << 2;
}
template <int transposed>
KFI_DEVICE kfi_attention_positions kfi_attention_others(const kfi_attention &a,
                                                        const kfi_attention_list &b, int row)
{
    return kfi_attention_positions_of(a, b, row);
}
KFI_DEVICE int kfi_attention_other(const kfi_attention &a, const kfi_attention_list &b, int row,
                                   int, int *position)
{
    return kfi_attention_sees(a, b, row, *position) ? kfi_attention_key_at(b, *position) : -1;
}

// ---- blocks of keys ----

// The walk of a block of keys. factor: kfi_attention_gradients.
struct kfi_attention_columns {
    const kfi_attention_sparse *s;
    const kfi_attention_gradients *g;
    kfi_attention_blocks whole; // the same keys without lists
    int batch, number, blocks;  // number of the block of keys; blocks of queries
    int shift;                  // a block has 1 << shift steps
    bool wide;                  // statistics are double
};
struct kfi_attention_column_step {
    int head, block;
    bool any, wrong;
    int mask;      // the pair's mask, or -1
    int chunk;     // first block of queries of those that were searched
    int at, count; // step, and steps, of the lists among them that have the block
};
// The keys of `rows` rows from at.begin on.
template <int step, int rows, class real>
KFI_DEVICE kfi_attention_columns kfi_attention_columns_of(const kfi_attention_sparse &s,
                                                          const kfi_attention_gradients &g,
                                                          const kfi_attention_place &at)
{
    int shift = 0;
    while (step << shift < s.block) ++shift;
    return {&s,
            &g,
            kfi_attention_walk_from<step, rows, 1>(s.a, at.begin),
            at.batch,
            at.begin / s.block,
            (s.a.queries + s.block - 1) / s.block,
            shift,
            sizeof(real) == 8};
}
KFI_DEVICE bool kfi_attention_is_masked(const kfi_attention_columns &b, int block)
{
    return kfi_attention_is_masked(b.whole, block);
}
KFI_DEVICE bool kfi_attention_hides(const kfi_attention_columns &) { return true; }
// Finds the block of keys in the list of a block of queries. Returns its mask, or -1, and -2 if the
// list does not have it.
KFI_DEVICE int kfi_attention_search(const kfi_attention_columns &b, int head, int block)
{
    const kfi_attention_sparse &s = *b.s;
    const int *const own =
        s.offsets + b.batch * s.offset_strides.batch + head * s.offset_strides.head + block;
    const int end = kfi_attention_clamp(own[1], s.listed);
    int low = kfi_attention_clamp(own[0], s.listed), high = end;
#pragma unroll 1
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (s.entries[2 * (kf_i64)middle] < b.number)
            low = middle + 1;
        else
            high = middle;
    }
    if (low >= end || s.entries[2 * (kf_i64)low] != b.number) return -2;
    const int mask = s.entries[2 * (kf_i64)low + 1];
    return mask < -1 || mask >= s.mask_count ? -1 : mask; // a wrong list's is not read
}
// Whether the list of a block of queries is wrong.
KFI_DEVICE bool kfi_attention_is_marked(const kfi_attention_columns &b, int head, int block)
{
    const kf_i64 i = kfi_attention_query_index(*b.g, block * b.s->block, head, b.batch);
    return b.wide ? ((const double *)b.g->factor)[i] < 0 : ((const float *)b.g->factor)[i] < 0;
}
// Goes to a step among the lists that have the block. found: their numbers and masks.
KFI_DEVICE void kfi_attention_take(const kfi_attention_columns &b, const int (*found)[2],
                                   kfi_attention_column_step *s)
{
    const int *const own = found[s->at >> b.shift];
    s->block = (own[0] << b.shift) + (s->at & ((1 << b.shift) - 1));
    s->mask = own[1];
}
// Goes to the next step: searches lists from s->chunk on until one has the block. end: behind the
// last head.
KFI_DEVICE void kfi_attention_search_on(const kfi_attention_columns &b, int end, int (*found)[2],
                                        kfi_attention_column_step *s)
{
    __shared__ int counts[KFI_ATTENTION_LISTS_THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (s->any = true;;) {
        if (s->chunk >= b.blocks) s->chunk = 0, ++s->head;
        if (s->head >= end || b.blocks == 0) {
            s->any = false;
            return;
        }
        const int block = s->chunk + (int)threadIdx.x;
        const bool in = block < b.blocks;
        const int mask = in ? kfi_attention_search(b, s->head, block) : -2;
        const unsigned votes = __ballot_sync(0xffffffffu, mask > -2);
        if (lane == 0) counts[warp] = __popc(votes);
        // A barrier: the numbers found before have been read.
        s->wrong |= __syncthreads_or(in && kfi_attention_is_marked(b, s->head, block)) != 0;
        int before = __popc(votes & ((1u << lane) - 1)), count = 0;
#pragma unroll
        for (int w = 0; w < KFI_ATTENTION_LISTS_THREADS / 32; ++w) {
            before += w < warp ? counts[w] : 0;
            count += counts[w];
        }
        if (mask > -2) found[before][0] = block, found[before][1] = mask;
        __syncthreads();
        s->at = 0, s->count = count << b.shift;
        s->chunk += KFI_ATTENTION_LISTS_THREADS;
        if (count > 0) return;
    }
}
// Goes to the next step, or to the first one of heads from s->head on.
KFI_DEVICE void kfi_attention_next_step(const kfi_attention_columns &b, int end,
                                        kfi_attention_column_step *s)
{
    __shared__ int found[KFI_ATTENTION_LISTS_THREADS][2];
    if (++s->at >= s->count) kfi_attention_search_on(b, end, found, s);
    if (s->any) kfi_attention_take(b, found, s);
}
KFI_DEVICE kfi_attention_column_step kfi_attention_first_step(const kfi_attention_columns &b,
                                                              int head, int end)
{
    kfi_attention_column_step s = {head, 0, true, false, -1, 0, 0, 0};
    kfi_attention_next_step(b, end, &s);
    return s;
}
KFI_DEVICE bool kfi_attention_is_wrong(const kfi_attention_column_step &s) { return s.wrong; }
// Bits of a thread's two keys, of rows from the step's first query on. words: NULL shows all.
struct kfi_attention_column_pairs {
    const int *words;
    int pitch, bit;
};
KFI_DEVICE kfi_attention_column_pairs kfi_attention_pairs_of(const kfi_attention_columns &b,
                                                             const kfi_attention_column_step &s,
                                                             int key)
{
    const int block = b.s->block, pitch = block / 32, own = key & (block - 1),
              query = (s.at & ((1 << b.shift) - 1)) * (block >> b.shift);
    if (s.mask < 0) return {nullptr, 0, 0};
    return {b.s->masks + ((kf_i64)s.mask * block + query) * pitch + own / 32, pitch, own % 32};
}
// A thread's second key, 8 behind its first one, has the same words: it is in the same 16 keys.
KFI_DEVICE unsigned kfi_attention_shown(const kfi_attention_column_pairs &p, int col)
{
    if (!p.words) return 15;
    const unsigned first = (unsigned)p.words[col * p.pitch] >> p.bit,
                   second = (unsigned)p.words[(col + 1) * p.pitch] >> p.bit;
    return (first & 1) | (second & 1) << 1 | (first >> 8 & 1) << 2 | (second >> 8 & 1) << 3;
}
template <int transposed>
KFI_DEVICE kfi_attention_positions kfi_attention_others(const kfi_attention &a,
                                                        const kfi_attention_columns &, int row)
{
    const kfi_attention_span s = kfi_attention_span_of<1>(a, row);
    return {s.first, s.last};
}
KFI_DEVICE int kfi_attention_other(const kfi_attention &, const kfi_attention_columns &b, int key,
                                   int head, int *position)
{
    const int block = b.s->block, query = *position, own = key & (block - 1),
              mask = kfi_attention_search(b, head, query / block);
    if (mask == -2) {
        *position = (query / block + 1) * block - 1; // behind the last query at most
        return -1;
    }
    if (mask == -1) return query;
    const int *const words =
        b.s->masks + ((kf_i64)mask * block + (query & (block - 1))) * (block / 32);
    return (unsigned)words[own / 32] >> own % 32 & 1 ? query : -1;
}

// The walk of a block of rows with lists. Called by all threads. Sets at->refused if the list of a
// block of queries is wrong.
template <int step, int rows, int transposed, class real>
KFI_DEVICE auto kfi_attention_walk_lists(const kfi_attention_sparse &s,
                                         const kfi_attention_gradients &g, kfi_attention_place *at)
{
    if constexpr (transposed)
        return kfi_attention_columns_of<step, rows, real>(s, g, *at);
    else
        return kfi_attention_list_of<step>(s, at, rows);
}
#endif

#endif
