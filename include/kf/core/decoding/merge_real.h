/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/merge_real.h: a row of two results and of its gradients, for one type of numbers
   (KFI_MERGE_TYPE, KFI_MERGE_REAL). Included by core/decoding/merge.h; empty otherwise. */
#ifdef KFI_MERGE_TYPE

#define KFI_MERGE_JOIN_(prefix, word, type) kfi_##prefix##word##_##type
#define KFI_MERGE_JOIN(prefix, word, type) KFI_MERGE_JOIN_(prefix, word, type)
#define KFI_MERGE(word) KFI_MERGE_JOIN(merge_, word, KFI_MERGE_TYPE)
#define KFI_MERGE_MATH(word) KFI_MERGE_JOIN(cpu_, word, KFI_MERGE_TYPE)
#define KFI_REAL KFI_MERGE_REAL

KFI_C_BEGIN

/* Weights of both parts, of which a part without keys has 0, and the lse of all keys. */
typedef struct {
    KFI_REAL a, b, lse;
    kf_i64 index; /* the lse's */
} KFI_MERGE(weights);

KFI_HOST KFI_MERGE(weights) KFI_MERGE(weigh)(const kfi_cpu_merge *m, kf_i64 at)
{
    const kf_i64 heads = m->sizes.heads, rows = m->sizes.queries;
    KFI_MERGE(weights) w;
    w.index = (at / heads / rows * heads + at % heads) * rows + at / heads % rows;
    const KFI_REAL a = ((const KFI_REAL *)m->arguments.tensors[KFI_MERGE_LSE_A])[w.index],
                   b = ((const KFI_REAL *)m->arguments.tensors[KFI_MERGE_LSE_B])[w.index],
                   most = a > b ? a : b, shift = most == -(KFI_REAL)INFINITY ? 0 : most,
                   of_a = KFI_MERGE_MATH(exp)(a - shift), of_b = KFI_MERGE_MATH(exp)(b - shift),
                   sum = of_a + of_b, divisor = sum == 0 ? 1 : sum;
    w.a = of_a / divisor, w.b = of_b / divisor;
    w.lse = most + KFI_MERGE_MATH(log)(divisor);
    return w;
}
KFI_HOST void KFI_MERGE(forward)(const kfi_cpu_merge *m, kf_i64 at)
{
    KFI_REAL a[KFI_MERGE_SLICE], b[KFI_MERGE_SLICE];
    const KFI_MERGE(weights) w = KFI_MERGE(weigh)(m, at);
    const kf_i64 dim = m->sizes.dim, size = m->element.size;
    for (kf_i64 d = 0; d < dim; d += KFI_MERGE_SLICE) {
        const kf_i64 count = dim - d < KFI_MERGE_SLICE ? dim - d : KFI_MERGE_SLICE;
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_A, at) + d * size, a, count);
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_B, at) + d * size, b, count);
        for (kf_i64 i = 0; i < count; ++i)
            a[i] = (w.a == 0 ? 0 : w.a * a[i]) + (w.b == 0 ? 0 : w.b * b[i]);
        m->element.store(a, kfi_cpu_merge_row(m, KFI_MERGE_OUT, at) + d * size, count);
    }
    ((KFI_REAL *)(uintptr_t)m->arguments.tensors[KFI_MERGE_LSE])[w.index] = w.lse;
}
/* Sum of dout * (a - b) over a row. */
KFI_HOST KFI_REAL KFI_MERGE(difference)(const kfi_cpu_merge *m, kf_i64 at)
{
    KFI_REAL a[KFI_MERGE_SLICE], b[KFI_MERGE_SLICE], dout[KFI_MERGE_SLICE], sum[KFI_SIMD];
    const kf_i64 dim = m->sizes.dim, size = m->element.size;
    for (int j = 0; j < KFI_SIMD; ++j) sum[j] = 0;
    for (kf_i64 d = 0; d < dim; d += KFI_MERGE_SLICE) {
        const kf_i64 count = dim - d < KFI_MERGE_SLICE ? dim - d : KFI_MERGE_SLICE;
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_A, at) + d * size, a, count);
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_B, at) + d * size, b, count);
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_DOUT, at) + d * size, dout, count);
        for (kf_i64 i = 0; i < count; i += KFI_SIMD) {
            KFI_TILE_LOOP
            for (int j = 0; j < KFI_SIMD; ++j) sum[j] += dout[i + j] * (a[i + j] - b[i + j]);
        }
    }
    for (int fold = KFI_SIMD / 2; fold > 0; fold /= 2)
        for (int j = 0; j < fold; ++j) sum[j] += sum[j + fold];
    return sum[0];
}
KFI_HOST void KFI_MERGE(backward)(const kfi_cpu_merge *m, kf_i64 at)
{
    KFI_REAL dout[KFI_MERGE_SLICE], to[KFI_MERGE_SLICE];
    const KFI_MERGE(weights) w = KFI_MERGE(weigh)(m, at);
    const void *const *const t = m->arguments.tensors;
    const KFI_REAL weight[2] = {w.a, w.b},
                   dlse = t[KFI_MERGE_DLSE] ? ((const KFI_REAL *)t[KFI_MERGE_DLSE])[w.index] : 0;
    const int grads[2] = {KFI_MERGE_DA, KFI_MERGE_DB},
              of_lse[2] = {KFI_MERGE_DLSE_A, KFI_MERGE_DLSE_B},
              moves = (t[KFI_MERGE_DLSE_A] || t[KFI_MERGE_DLSE_B]) && w.a != 0 && w.b != 0;
    const KFI_REAL both = moves ? w.a * w.b * KFI_MERGE(difference)(m, at) : 0;
    const kf_i64 dim = m->sizes.dim, size = m->element.size;
    for (kf_i64 d = 0; d < dim; d += KFI_MERGE_SLICE) {
        const kf_i64 count = dim - d < KFI_MERGE_SLICE ? dim - d : KFI_MERGE_SLICE;
        m->element.load(kfi_cpu_merge_row(m, KFI_MERGE_DOUT, at) + d * size, dout, count);
        for (int k = 0; k < 2; ++k) {
            if (!t[grads[k]]) continue;
            for (kf_i64 i = 0; i < count; ++i) to[i] = weight[k] == 0 ? 0 : weight[k] * dout[i];
            m->element.store(to, kfi_cpu_merge_row(m, grads[k], at) + d * size, count);
        }
    }
    for (int k = 0; k < 2; ++k)
        if (t[of_lse[k]])
            ((KFI_REAL *)(uintptr_t)t[of_lse[k]])[w.index] =
                weight[k] == 0 ? 0 : weight[k] * dlse + (k ? -both : both);
}

KFI_C_END

#undef KFI_REAL
#undef KFI_MERGE_MATH
#undef KFI_MERGE
#undef KFI_MERGE_JOIN
#undef KFI_MERGE_JOIN_
#undef KFI_MERGE_REAL
#undef KFI_MERGE_TYPE

#endif
