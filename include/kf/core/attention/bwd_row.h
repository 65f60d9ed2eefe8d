/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_row.h: rows of scores in attention's backward for one accumulator type and
   vector width: loops of KFI_SIMD elements. Included by core/attention/softmax_row.h, whose macros
   it uses; empty otherwise. */
#ifdef KFI_ATTENTION_TYPE

KFI_C_BEGIN

/* *sum += a . b over count elements: whole vectors first, then the rest. */
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(dot)(const void *a, const void *b, kf_i64 count,
                                               void *sum)
{
    const KFI_REAL *const x = (const KFI_REAL *)a, *const y = (const KFI_REAL *)b;
    KFI_REAL part[KFI_SIMD];
    kf_i64 i = 0;
    for (int j = 0; j < KFI_SIMD; ++j) part[j] = 0;
    for (; i + KFI_SIMD <= count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) part[j] += x[i + j] * y[i + j];
    }
    for (int j = 0; i + j < count; ++j) part[j] += x[i + j] * y[i + j];
    for (int fold = KFI_SIMD / 2; fold > 0; fold /= 2)
        for (int j = 0; j < fold; ++j) part[j] += part[j + fold];
    *(KFI_REAL *)sum += part[0];
}
/* s = exp(s - most - log_sum) in [begin, end), whole KFI_SIMDs, and 0 for scores of -inf. */
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(powers)(KFI_REAL *s, kf_i64 begin, kf_i64 end,
                                                  KFI_REAL most, KFI_REAL log_sum)
{
    const KFI_REAL none = -(KFI_REAL)INFINITY;
    for (kf_i64 i = begin; i < end; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL x = s[i + j], e = KFI_ATTENTION_REAL_FN(exp)((x - most) - log_sum);
            s[i + j] = KFI_ATTENTION_REAL_FN(select)(KFI_ATTENTION_REAL_FN(eq)(x, none), 0, e);
        }
    }
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(weights)(void *scores, kfi_cpu_attention_keys need,
                                                   kfi_cpu_attention_keys own, const void *most,
                                                   const void *log_sum)
{
    KFI_REAL *const s = (KFI_REAL *)scores;
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
    KFI_ATTENTION(powers)
    (s, begin, end, *(const KFI_REAL *)most, log_sum ? *(const KFI_REAL *)log_sum : 0);
    KFI_ATTENTION(fill)(s, need.first, begin, 0);
    KFI_ATTENTION(fill)(s, end, need.last, 0);
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(differences)(const void *weights, void *products,
                                                       kfi_cpu_attention_keys need,
                                                       const void *delta)
{
    const KFI_REAL *const p = (const KFI_REAL *)weights, less = *(const KFI_REAL *)delta;
    KFI_REAL *const d = (KFI_REAL *)products;
    for (kf_i64 i = need.first; i < need.last; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL w = p[i + j], x = w * (d[i + j] - less);
            d[i + j] = KFI_ATTENTION_REAL_FN(select)(KFI_ATTENTION_REAL_FN(eq)(w, 0), 0, x);
        }
    }
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(chain)(void *to, const void *gradients,
                                                 const void *derivatives, kf_i64 count)
{
    const KFI_REAL *const d = (const KFI_REAL *)gradients, *const factor =
                                                               (const KFI_REAL *)derivatives;
    for (kf_i64 i = 0; i < count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL x = d[i + j], y = x * factor[i + j];
            ((KFI_REAL *)to)[i + j] =
                KFI_ATTENTION_REAL_FN(select)(KFI_ATTENTION_REAL_FN(eq)(x, 0), 0, y);
        }
    }
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(total)(const void *gradients, const void *derivatives,
                                                 kf_i64 count, void *sum)
{
    const KFI_REAL *const d = (const KFI_REAL *)gradients, *const factor =
                                                               (const KFI_REAL *)derivatives;
    KFI_REAL part[KFI_SIMD], all = 0;
    kf_i64 i = 0;
    for (int j = 0; j < KFI_SIMD; ++j) part[j] = 0;
    for (; i + KFI_SIMD <= count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL x = d[i + j], y = x * factor[i + j];
            part[j] += KFI_ATTENTION_REAL_FN(select)(KFI_ATTENTION_REAL_FN(eq)(x, 0), 0, y);
        }
    }
    for (int j = 0; i + j < count; ++j) part[j] += d[i + j] == 0 ? 0 : d[i + j] * factor[i + j];
    for (int j = 0; j < KFI_SIMD; ++j) all += part[j];
    *(KFI_REAL *)sum += all;
}
KFI_ATTENTION_FUNCTION void KFI_ATTENTION(zeros)(void *row, kf_i64 begin, kf_i64 end)
{
    KFI_ATTENTION(fill)((KFI_REAL *)row, begin, end, 0);
}

KFI_HOST const kfi_cpu_attention_bwd_rows *KFI_ATTENTION(bwd_rows)(void)
{
    static const kfi_cpu_attention_bwd_rows found = {
        KFI_ATTENTION(dot),   KFI_ATTENTION(weights), KFI_ATTENTION(differences),
        KFI_ATTENTION(chain), KFI_ATTENTION(total),   KFI_ATTENTION(zeros)};
    return &found;
}

KFI_C_END

#endif
