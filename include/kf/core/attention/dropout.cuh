// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/dropout.cuh: dropout of the weights of the portable attention kernels, on
// fragments of mma.sync: a thread has rows g and g + 8 (g = lane / 4) and of each 8 keys two.
//
// A weight has a number (kfi_attention_dropout) and the random bits of an element of that number,
// as in core/philox.h. The lanes of a quad share its rows: each draws the words of other keys, and
// the quad exchanges them. Kept weights are scaled when the result is stored, so that their
// conversion to 2 bytes cannot overflow.
// Callers: portable.cuh, simt.cuh, store.cuh.
#ifndef KF_CORE_ATTENTION_DROPOUT_CUH
#define KF_CORE_ATTENTION_DROPOUT_CUH

#include "kf/core/attention/args.cuh"
#include "kf/core/dropout.cuh"

#ifdef KFI_DEVICE_PASS

// Random numbers of a kernel. drop: KFI_NO_DROPOUT, or whether seed and offset are in memory.
template <int drop> KFI_DEVICE kfi_rng kfi_attention_rng(const kfi_attention &a)
{
    kfi_rng rng = a.drop.rng;
    if constexpr (drop >= 0) kfi_rng_begin<drop>(rng);
    return rng;
}
// Whether a key that a query sees may have no weight.
template <int drop> KFI_DEVICE bool kfi_attention_drops(const kfi_attention &a)
{
    return drop >= 0 && a.drop.rng.threshold > 0;
}
// Number of a row's first weight.
KFI_DEVICE kf_i64 kfi_attention_number(const kfi_attention &a, int row, int head, int batch)
{
    const kfi_attention_strides &s = a.drop.numbers;
    return a.drop.number0 + batch * s.batch + head * s.head + row * s.row;
}

// Transposes words over a quad: on entry u[i] of lane t is word 4 i + t of 16, on exit word
// 4 t + i.
KFI_DEVICE void kfi_attention_transpose(unsigned *u)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & bit) continue;
            const unsigned come = __shfl_xor_sync(0xffffffffu, upper ? u[i] : u[i | bit], bit);
            if (upper)
                u[i] = come;
            else
                u[i | bit] = come;
        }
    }
}
// Draws word t of groups [group, group + 4) of 8 elements; t: the lane in its quad.
KFI_DEVICE void kfi_attention_draw(unsigned *w, const kfi_rng &rng, kfi_u64 group)
{
    kfi_philox(&rng, group + threadIdx.x % 4, &w[0], &w[1], &w[2], &w[3]);
    kfi_attention_transpose(w);
}
// Draws the words of a row's keys 8 j + 2 t (low half) and 8 j + 2 t + 1 (high half) to w[j].
// number: of the row's first key. whole: for all rows of the warp it is a multiple of 8.
template <int keys>
KFI_DEVICE void kfi_attention_words(unsigned *w, const kfi_rng &rng, kf_i64 number, bool whole)
{
    constexpr int groups = keys / 8;
#pragma unroll
    for (int j = 0; j < groups; j += 4) kfi_attention_draw(w + j, rng, ((kfi_u64)number >> 3) + j);
    if (whole) return;
    // A pair of keys begins `shift` elements behind a pair of a group: in another lane, whose group
    // may be the next one.
    unsigned next[4];
    kfi_attention_draw(next, rng, ((kfi_u64)number >> 3) + groups);
    const int shift = (int)number & 7, pairs = shift / 2, lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < groups; ++j) {
        const unsigned behind = j + 1 < groups ? w[j + 1 < groups ? j + 1 : 0] : next[0],
                       low =
                           __shfl_sync(0xffffffffu, lane < pairs ? behind : w[j], lane + pairs, 4),
                       high = __shfl_sync(0xffffffffu, lane <= pairs ? behind : w[j],
                                          lane + pairs + 1, 4);
        w[j] = shift & 1 ? low >> 16 | high << 16 : low;
    }
}
// Sets the weights that are dropped to 0. s: weights of a block, whose first key is `key`; number:
// of the thread's first row.
template <int drop, int keys, int rows, class real>
KFI_DEVICE void kfi_attention_drop(real *s, const kfi_rng &rng, const kfi_attention &a,
                                   kf_i64 number, int key)
{
    if constexpr (drop >= 0) {
        const bool whole = ((number | a.drop.numbers.row) & 7) == 0;
#pragma unroll
        for (int h = 0; h < rows; ++h) {
            unsigned w[keys / 8];
            kfi_attention_words<keys>(w, rng, number + 8 * h * a.drop.numbers.row + key, whole);
#pragma unroll
            for (int j = 0; j < keys / 8; ++j) {
                real *const pair = s + 4 * j + 2 * h;
                pair[0] = kfi_select_kept(w[j] & 0xffffu, rng, pair[0]);
                pair[1] = kfi_select_kept(w[j] >> 16, rng, pair[1]);
            }
        }
    }
}
// Whether the weight of a number is kept.
KFI_DEVICE bool kfi_attention_keeps(const kfi_rng &rng, kf_i64 number)
{
    kfi_u32 word;
    kfi_keep<1>(&word, rng, number);
    return word >= rng.threshold;
}
#endif

#endif
