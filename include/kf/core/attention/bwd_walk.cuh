// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_walk.cuh: arguments of attention's backward, and the rows of the other
// tensors that a block of rows walks: blocks of keys of a block of queries, or `transposed`, blocks
// of queries, head by head, of a block of keys. bwd_sparse.cuh walks lists. Callers: bwd.cuh,
// bwd_mma.cuh, bwd_simt.cuh.
#ifndef KF_CORE_ATTENTION_BWD_WALK_CUH
#define KF_CORE_ATTENTION_BWD_WALK_CUH

#include "kf/core/attention/simt.cuh"

// Arguments besides the forward's. Results and dlse may be NULL. kfi_attention::row_blocks counts
// the blocks of a head in one launch.
struct kfi_attention_gradients {
    const void *dout, *dlse;
    const void *lse, *row_max, *log_sum; // row_max and log_sum, or lse if one of them is NULL
    void *dq, *dk, *dv;
    // Workspace, [batch, heads, queries]: p = exp(unit * at - shift) * factor, with log2_unit and
    // exp2 in the tensor-core kernels. factor is 0 of a query without keys,
    // and -1 of one whose list is wrong.
    void *shift, *factor, *delta;
    kfi_attention_strides dout_strides, dq_strides, dk_strides, dv_strides;
    kfi_attention_strides query_strides; // all tensors [batch, heads, queries]
    void *dscores[KFI_SCORE_TENSORS];    // per kfi_score_args::tensors; or NULL
    kfi_attention_strides dscore_strides[KFI_SCORE_TENSORS];
    // Workspace: sums over the scores of each block of queries, in the order of the launch, of
    // gradients per head; per kfi_score_args::tensors; or NULL.
    void *sums[KFI_SCORE_TENSORS];
    int kv_heads;
    int slices; // slices of columns, in the kernels of FMAs
};
struct kfi_attention_bwd {
    kfi_attention a;
    kfi_attention_gradients g;
};
struct kfi_attention_bwd_packed {
    kfi_attention_packed p;
    kfi_attention_gradients g;
};
struct kfi_attention_bwd_sparse {
    kfi_attention_sparse s;
    kfi_attention_gradients g;
};

#ifdef KFI_DEVICE_PASS

KFI_DEVICE kf_i64 kfi_attention_query_index(const kfi_attention_gradients &g, int row, int head,
                                            int batch)
{
    const kfi_attention_strides &s = g.query_strides;
    return batch * s.batch + head * s.head + row * s.row;
}
// Place of block number `block` among blocks of `rows` rows of q, the last rows of a head first, or
// of k, the first ones first: with causal masks those have the most work.
template <int rows, int keys>
KFI_DEVICE kfi_attention_place kfi_attention_bwd_place(const kfi_attention &a, int heads, int block)
{
    const int bh = block / a.row_blocks, batch = bh / heads, own = block - bh * a.row_blocks;
    const kfi_attention_place at = {(keys ? own : a.row_blocks - 1 - own) * rows,
                                    bh - batch * heads, batch, false};
    return at;
}
// The same of packed sequences; sets the arguments of the sequence. Returns whether the block has
// rows.
template <int rows, int keys>
KFI_DEVICE bool kfi_attention_bwd_find(kfi_attention_bwd *own, kfi_attention_place *at,
                                       const kfi_attention_packed &p,
                                       const kfi_attention_gradients &g, int block, int bytes)
{
    const int head = block / p.a.row_blocks;
    kfi_attention_sequence s;
    const int found = kfi_attention_find<rows, keys>(&s, p, block - head * p.a.row_blocks);
    if (found < 0) return false;
    const kfi_attention_place place = {found * rows, head, s.index, s.refused};
    *at = place;
    own->a = kfi_attention_own(p, s, head, bytes);
    own->g = g;
    if (!s.inside || s.refused) own->g.dscores[0] = own->g.dscores[1] = nullptr;
    const kf_i64 skip = (kf_i64)s.query * (bytes == 8 ? 8 : 4);
    const void **const read[] = {&own->g.dlse, &own->g.lse, &own->g.row_max, &own->g.log_sum};
    for (int i = 0; i < 4; ++i)
        if (*read[i]) *read[i] = (const char *)*read[i] + skip;
    void **const kept[] = {&own->g.shift, &own->g.factor, &own->g.delta};
    for (int i = 0; i < 3; ++i) *kept[i] = (char *)*kept[i] + skip;
    own->g.dout = kfi_attention_row(g.dout, g.dout_strides, s.query, 0, 0, bytes);
    if (g.dq) own->g.dq = (void *)kfi_attention_row(g.dq, g.dq_strides, s.query, 0, 0, bytes);
    if (g.dk) own->g.dk = (void *)kfi_attention_row(g.dk, g.dk_strides, s.key, 0, 0, bytes);
    if (g.dv) own->g.dv = (void *)kfi_attention_row(g.dv, g.dv_strides, s.key, 0, 0, bytes);
    return true;
}

// Visible rows of the other tensor; none if last < first.
struct kfi_attention_span {
    int first, last;
};
template <int transposed> KFI_DEVICE int kfi_attention_low(const kfi_attention &a, int row)
{
    if (!transposed) return kfi_max_i32(0, kfi_attention_first_key(a, row));
    return a.range.last_slope ? kfi_max_i32(0, row - a.range.last_add) : 0;
}
template <int transposed> KFI_DEVICE int kfi_attention_high(const kfi_attention &a, int row)
{
    if (!transposed) return kfi_attention_last_key(a, row);
    return kfi_min_i32(a.queries - 1, a.range.first_slope ? row - a.range.first_add : a.queries);
}
// Whether bounds without a slope hide key `row` from all queries.
KFI_DEVICE bool kfi_attention_before(const kfi_attention &a, int row)
{
    return !a.range.first_slope && row < a.range.first_add;
}
KFI_DEVICE bool kfi_attention_behind(const kfi_attention &a, int row)
{
    return !a.range.last_slope && row > a.range.last_add;
}
template <int transposed>
KFI_DEVICE kfi_attention_span kfi_attention_span_of(const kfi_attention &a, int row)
{
    const bool none =
        row >= (transposed ? a.keys : a.queries) ||
        (transposed && (kfi_attention_before(a, row) || kfi_attention_behind(a, row)));
    const kfi_attention_span s = {kfi_attention_low<transposed>(a, row),
                                  none ? -1 : kfi_attention_high<transposed>(a, row)};
    return s;
}
// Blocks of `step` rows that rows [begin, end] of the other tensor need.
template <int step, int transposed>
KFI_DEVICE kfi_attention_blocks kfi_attention_walk(const kfi_attention &a, int begin, int end)
{
    if constexpr (!transposed) {
        return kfi_attention_blocks_of<step>(a, begin, end);
    } else {
        const int low = kfi_attention_low<1>(a, begin), high = kfi_attention_high<1>(a, end);
        const bool none = high < low || begin >= a.keys || kfi_attention_before(a, end) ||
                          kfi_attention_behind(a, begin),
                   some = kfi_attention_before(a, begin) || kfi_attention_behind(a, end);
        kfi_attention_blocks b;
        b.first = low / step;
        b.last = none ? b.first - 1 : high / step;
        b.first_whole = (kfi_attention_low<1>(a, end) + step - 1) / step;
        b.last_whole =
            some ? -1 : (kfi_max_i32(-1, kfi_attention_high<1>(a, begin)) + 1) / step - 1;
        return b;
    }
}
// The blocks of `step` rows that a block of `rows` rows from `begin` on walks.
template <int step, int rows, int transposed>
KFI_DEVICE kfi_attention_blocks kfi_attention_walk_from(const kfi_attention &a, int begin)
{
    return kfi_attention_walk<step, transposed>(
        a, begin, kfi_min_i32(begin + rows, transposed ? a.keys : a.queries) - 1);
}

// ---- steps ----

// A walk is kfi_attention_blocks or has lists (bwd_sparse.cuh). A step of it: a block of the other
// tensor and a head of q. any: false behind the last step. All threads of a block walk together.
struct kfi_attention_step {
    int head, block;
    bool any;
};
// The first step of heads from `head` to `end`, that one excluded.
KFI_DEVICE kfi_attention_step kfi_attention_first_step(const kfi_attention_blocks &b, int head, int)
{
    const kfi_attention_step s = {head, b.first, b.last >= b.first};
    return s;
}
KFI_DEVICE void kfi_attention_next_step(const kfi_attention_blocks &b, int end,
                                        kfi_attention_step *s)
{
    if (s->block == b.last)
        s->block = b.first, s->any = ++s->head < end;
    else
        ++s->block;
}
// Whether a walk met a wrong list.
KFI_DEVICE bool kfi_attention_is_wrong(const kfi_attention_step &) { return false; }
// The pairs of a step that a mask shows to a thread.
struct kfi_attention_all_pairs {};
KFI_DEVICE kfi_attention_all_pairs kfi_attention_pairs_of(const kfi_attention_blocks &,
                                                          const kfi_attention_step &, int)
{
    return {};
}
// Returns a bit per pair of a thread's two rows and the columns col and col + 1: 2 * row + column.
KFI_DEVICE unsigned kfi_attention_shown(const kfi_attention_all_pairs &, int) { return 15; }
// Positions of the other tensor's rows for one row, both included.
template <int transposed>
KFI_DEVICE kfi_attention_positions kfi_attention_others(const kfi_attention &a,
                                                        const kfi_attention_blocks &, int row)
{
    const kfi_attention_span s = kfi_attention_span_of<transposed>(a, row);
    return {s.first, s.last};
}
// The row at a position, which may move on over hidden ones; -1: the pair is hidden.
KFI_DEVICE int kfi_attention_other(const kfi_attention &, const kfi_attention_blocks &, int, int,
                                   int *position)
{
    return *position;
}
#endif

#endif
