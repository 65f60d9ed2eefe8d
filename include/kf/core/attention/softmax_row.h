/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/softmax_row.h: rows of scores for one accumulator type (KFI_ATTENTION_TYPE,
   KFI_ATTENTION_REAL, KFI_ATTENTION_INTEGER) and vector width (KFI_ATTENTION_BYTES): loops of
   KFI_SIMD elements, which compilers vectorise. Included by core/attention/softmax_width.h; empty
   otherwise.

   Not inlined, and each with its target: one copy of the code, in the instructions of its width. */
#ifdef KFI_ATTENTION_TYPE

#define KFI_ATTENTION_JOIN_(word, type, bytes) kfi_cpu_attention_##word##_##type##_##bytes
#define KFI_ATTENTION_JOIN(word, type, bytes) KFI_ATTENTION_JOIN_(word, type, bytes)
#define KFI_ATTENTION(word) KFI_ATTENTION_JOIN(word, KFI_ATTENTION_TYPE, KFI_ATTENTION_BYTES)
#define KFI_ATTENTION_MATH_(word, type) kfi_cpu_##word##_##type
#define KFI_ATTENTION_MATH(word, type) KFI_ATTENTION_MATH_(word, type)
#define KFI_ATTENTION_REAL_FN(word) KFI_ATTENTION_MATH(word, KFI_ATTENTION_TYPE)
#define KFI_ATTENTION_FUNCTION KFI_ATTENTION_TARGET static KFI_APART KFI_GEMM_UNUSED
#define KFI_REAL KFI_ATTENTION_REAL

KFI_C_BEGIN

KFI_ATTENTION_FUNCTION void KFI_ATTENTION(multiply)(void *x, double scale, kf_i64 count)
{
    KFI_REAL *const to = (KFI_REAL *)x;
    for (kf_i64 i = 0; i < count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) to[i + j] *= (KFI_REAL)scale;
    }
}

KFI_ATTENTION_FUNCTION void KFI_ATTENTION(start)(kfi_cpu_attention_room *room, kf_i64 row,
                                                 const void *sink)
{
    ((KFI_REAL *)(void *)room->most)[row] = sink ? *(const KFI_REAL *)sink : -(KFI_REAL)INFINITY;
    ((KFI_REAL *)(void *)room->sum)[row] = sink ? 1 : 0;
}

/* Maximum of s[begin, end), whole KFI_SIMDs, of integers in the order of the numbers. NaN may be
   found or not: its exponential is NaN. */
KFI_ATTENTION_FUNCTION KFI_REAL KFI_ATTENTION(maximum)(const KFI_REAL *s, kf_i64 begin, kf_i64 end)
{
    const KFI_REAL none = -(KFI_REAL)INFINITY;
    KFI_ATTENTION_INTEGER most[KFI_SIMD], all = KFI_ATTENTION_REAL_FN(attention_order)(none);
    for (int j = 0; j < KFI_SIMD; ++j) most[j] = all;
    for (kf_i64 i = begin; i < end; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_ATTENTION_INTEGER x = KFI_ATTENTION_REAL_FN(attention_order)(s[i + j]);
            most[j] = x > most[j] ? x : most[j];
        }
    }
    for (int j = 0; j < KFI_SIMD; ++j) all = most[j] > all ? most[j] : all;
    return KFI_ATTENTION_REAL_FN(attention_ordered)(all);
}
/* s = exp(s - shift) in [begin, end), whole KFI_SIMDs; returns the sum. */
KFI_ATTENTION_FUNCTION KFI_REAL KFI_ATTENTION(exponentials)(KFI_REAL *s, kf_i64 begin, kf_i64 end,
                                                            KFI_REAL shift)
{
    KFI_REAL sum[KFI_SIMD];
    for (int j = 0; j < KFI_SIMD; ++j) sum[j] = 0;
    for (kf_i64 i = begin; i < end; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL e = KFI_ATTENTION_REAL_FN(attention_exp)(s[i + j] - shift);
            s[i + j] = e;
            sum[j] += e;
        }
    }
    for (int fold = KFI_SIMD / 2; fold > 0; fold /= 2)
        for (int j = 0; j < fold; ++j) sum[j] += sum[j + fold];
    return sum[0];
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(fill)(KFI_REAL *s, kf_i64 begin, kf_i64 end, KFI_REAL v)
{
    for (kf_i64 i = begin; i < end; ++i) s[i] = v;
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(hide)(void *scores, kfi_cpu_attention_keys need,
                                                const int32_t *bits)
{
    KFI_REAL *const s = (KFI_REAL *)scores;
    for (kf_i64 i = need.first; i < need.last; ++i)
        if (!((uint32_t)bits[i / 32] >> i % 32 & 1)) s[i] = -(KFI_REAL)INFINITY;
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(row)(void *scores, kfi_cpu_attention_keys need,
                                               kfi_cpu_attention_keys own,
                                               const kfi_cpu_attention_room *room, kf_i64 row)
{
    KFI_REAL *const s = (KFI_REAL *)scores, *const most = (KFI_REAL *)(void *)room->most + row,
                    *const sum = (KFI_REAL *)(void *)room->sum + row,
                    *const factor = (KFI_REAL *)(void *)room->factor + row;
    *factor = 1;
    if (own.first < need.first) own.first = need.first;
    if (own.last > need.last) own.last = need.last;
    if (own.last <= own.first) {
        KFI_ATTENTION(fill)(s, need.first, need.last, 0);
        return;
    }
    const kf_i64 begin = own.first / KFI_SIMD * KFI_SIMD,
                 end = (own.last + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD;
    KFI_ATTENTION(fill)(s, begin, own.first, -(KFI_REAL)INFINITY);
    KFI_ATTENTION(fill)(s, own.last, end, -(KFI_REAL)INFINITY);
    const KFI_REAL found = KFI_ATTENTION(maximum)(s, begin, end), old = *most;
    *most = found > old ? found : old;
    const KFI_REAL shift = *most == -(KFI_REAL)INFINITY ? 0 : *most;
    const KFI_REAL added = KFI_ATTENTION(exponentials)(s, begin, end, shift);
    if (*most > old) *factor = KFI_ATTENTION_REAL_FN(attention_exp)(old - shift);
    *sum = *sum * *factor + added;
    KFI_ATTENTION(fill)(s, need.first, begin, 0);
    KFI_ATTENTION(fill)(s, end, need.last, 0);
}

KFI_ATTENTION_FUNCTION void KFI_ATTENTION(drop)(void *scores, kfi_cpu_attention_keys need,
                                                const kfi_rng *rng, kf_i64 number)
{
    KFI_REAL *const s = (KFI_REAL *)scores + need.first;
    const int count = (int)(need.last - need.first);
    uint16_t words[KFI_TILE + 8];
    kfi_random_tile(words, rng, number + need.first);
    const uint16_t *const own = words + (number + need.first) % 8;
    for (int j = 0; j < count; ++j)
        s[j] = own[j] < rng->threshold ? 0 : s[j] * (KFI_REAL)rng->scale_f64;
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(rescale)(void *out, const kfi_cpu_attention_room *room,
                                                   kf_i64 row, kf_i64 count)
{
    const KFI_REAL factor = ((const KFI_REAL *)(const void *)room->factor)[row];
    if (factor != 1) KFI_ATTENTION(multiply)(out, (double)factor, count);
}
KFI_ATTENTION_FUNCTION int KFI_ATTENTION(finite)(const void *v, kf_i64 count)
{
    const KFI_REAL *const x = (const KFI_REAL *)v;
    KFI_REAL bad[KFI_SIMD], all = 0;
    for (int j = 0; j < KFI_SIMD; ++j) bad[j] = 0;
    for (; count >= KFI_SIMD; count -= KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) bad[j] += x[count - KFI_SIMD + j] * 0;
    }
    for (int j = 0; j < count; ++j) bad[j] += x[j] * 0;
    for (int j = 0; j < KFI_SIMD; ++j) all += bad[j];
    return all == 0;
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(add)(void *out, const void *v, const void *weight,
                                               kf_i64 count)
{
    const KFI_REAL w = *(const KFI_REAL *)weight;
    if (w == 0) return;
    for (kf_i64 i = 0; i < count; ++i) ((KFI_REAL *)out)[i] += w * ((const KFI_REAL *)v)[i];
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(finish)(void *out, const kfi_cpu_attention_room *room,
                                                  kf_i64 row, kf_i64 count,
                                                  const kfi_cpu_attention *m, kf_i64 index)
{
    KFI_REAL *const to = (KFI_REAL *)out;
    const KFI_REAL most = ((const KFI_REAL *)(const void *)room->most)[row],
                   sum = ((const KFI_REAL *)(const void *)room->sum)[row],
                   divisor = sum == 0 ? 1 : sum, log_sum = KFI_ATTENTION_REAL_FN(log)(sum);
    for (kf_i64 i = 0; i < count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) to[i + j] /= divisor;
    }
    if (m->lse) ((KFI_REAL *)m->lse)[index] = most + log_sum;
    if (m->row_max) ((KFI_REAL *)m->row_max)[index] = most;
    if (m->log_sum) ((KFI_REAL *)m->log_sum)[index] = log_sum;
}

KFI_HOST const kfi_cpu_attention_softmax *KFI_ATTENTION(softmax)(void)
{
    static const kfi_cpu_attention_softmax found = {
        KFI_ATTENTION(multiply), KFI_ATTENTION(start), KFI_ATTENTION(hide),
        KFI_ATTENTION(row),      KFI_ATTENTION(drop),  KFI_ATTENTION(rescale),
        KFI_ATTENTION(finite),   KFI_ATTENTION(add),   KFI_ATTENTION(finish)};
    return &found;
}

KFI_C_END

#include "kf/core/attention/bwd_row.h"

#undef KFI_REAL
#undef KFI_ATTENTION_FUNCTION
#undef KFI_ATTENTION_REAL_FN
#undef KFI_ATTENTION_MATH
#undef KFI_ATTENTION_MATH_
#undef KFI_ATTENTION
#undef KFI_ATTENTION_JOIN
#undef KFI_ATTENTION_JOIN_
#undef KFI_ATTENTION_REAL
#undef KFI_ATTENTION_INTEGER
#undef KFI_ATTENTION_TYPE

#endif
