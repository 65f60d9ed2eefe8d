/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/decode_real.h: a chunk of keys, and the sum of chunks, for one type of numbers
   (KFI_DECODE_TYPE, KFI_DECODE_REAL). Loops have KFI_SIMD elements, which compilers vectorise.
   Included by core/decoding/decode.h; empty otherwise. */
#ifdef KFI_DECODE_TYPE

#define KFI_DECODE_JOIN_(word, type) kfi_##word##_##type
#define KFI_DECODE_JOIN(word, type) KFI_DECODE_JOIN_(word, type)
#define KFI_DECODE(word) KFI_DECODE_JOIN(word, KFI_DECODE_TYPE)
#define KFI_REAL KFI_DECODE_REAL

KFI_C_BEGIN

/* sum += x * y over whole KFI_SIMDs, each lane by itself. */
KFI_INLINE void KFI_DECODE(decode_products)(const KFI_REAL *x, const KFI_REAL *y, kf_i64 count,
                                            KFI_REAL *sum)
{
    KFI_REAL lanes[KFI_SIMD];
    for (int j = 0; j < KFI_SIMD; ++j) lanes[j] = sum[j];
    for (kf_i64 i = 0; i < count; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) lanes[j] += x[i + j] * y[i + j];
    }
    for (int j = 0; j < KFI_SIMD; ++j) sum[j] = lanes[j];
}
KFI_INLINE void KFI_DECODE(decode_fill)(KFI_REAL *x, kf_i64 count, KFI_REAL value)
{
    for (kf_i64 i = 0; i < count; ++i) x[i] = value;
}
/* Scores s[row][key] of a block of `keys` keys from `key` on; NaN for keys without memory. */
KFI_HOST void KFI_DECODE(decode_scores)(const kfi_cpu_decode *m, const kfi_cpu_decode_chunk *c,
                                        const KFI_REAL *q, int rows, kf_i64 key, int keys,
                                        KFI_REAL *s)
{
    KFI_REAL buffer[KFI_DECODE_SLICE], sum[KFI_DECODE_ROWS][KFI_SIMD];
    for (int i = 0; i < keys; ++i) {
        const char *const from =
            kfi_decode_row(m, m->k, &m->k_strides, c->sequence, c->kv_head, key + i);
        memset(sum, 0, sizeof sum);
        for (kf_i64 d = 0; from && d < m->sizes.dim; d += KFI_DECODE_SLICE) {
            const kf_i64 left = m->sizes.dim - d,
                         count = left < KFI_DECODE_SLICE ? left : KFI_DECODE_SLICE;
            m->element.load(from + d * m->element.size, buffer, count);
            for (int r = 0; r < rows; ++r)
                KFI_DECODE(decode_products)(q + r * m->q_pitch + d, buffer,
                                            kfi_decoding_padded(count), sum[r]);
        }
        for (int r = 0; r < rows; ++r) {
            for (int fold = KFI_SIMD / 2; fold > 0; fold /= 2)
                for (int j = 0; j < fold; ++j) sum[r][j] += sum[r][j + fold];
            s[r * KFI_DECODE_KEYS + i] = from ? sum[r][0] * (KFI_REAL)m->scale : (KFI_REAL)NAN;
        }
    }
}
/* Turns the scores of a row into exp(score - maximum), 0 outside [lo, hi). Returns the factor of
   the row's earlier sums. */
KFI_HOST KFI_REAL KFI_DECODE(decode_weights)(KFI_REAL *s, kf_i64 lo, kf_i64 hi, KFI_REAL *maximum,
                                             KFI_REAL *total)
{
    const KFI_REAL none = -(KFI_REAL)INFINITY, old = *maximum;
    KFI_REAL most = old, sum[KFI_SIMD];
    if (lo < 0) lo = 0;
    if (hi > KFI_DECODE_KEYS) hi = KFI_DECODE_KEYS;
    for (kf_i64 i = lo; i < hi; ++i) most = s[i] > most ? s[i] : most;
    const KFI_REAL shift = most == none ? 0 : most;
    KFI_DECODE(decode_fill)(s, lo < KFI_DECODE_KEYS ? lo : KFI_DECODE_KEYS, none);
    for (kf_i64 i = hi < 0 ? 0 : hi; i < KFI_DECODE_KEYS; ++i) s[i] = none;
    for (int j = 0; j < KFI_SIMD; ++j) sum[j] = 0;
    for (int i = 0; i < KFI_DECODE_KEYS; i += KFI_SIMD) {
        KFI_TILE_LOOP
        for (int j = 0; j < KFI_SIMD; ++j) {
            const KFI_REAL e = KFI_DECODE(cpu_exp)(s[i + j] - shift);
            s[i + j] = e;
            sum[j] += e;
        }
    }
    for (int fold = KFI_SIMD / 2; fold > 0; fold /= 2)
        for (int j = 0; j < fold; ++j) sum[j] += sum[j + fold];
    const KFI_REAL factor = KFI_DECODE(cpu_exp)(old - shift);
    *maximum = most;
    *total = *total * factor + sum[0];
    return most == old ? 1 : factor;
}
/* Adds the values of a block's keys, times their weights. */
KFI_HOST void KFI_DECODE(decode_values)(const kfi_cpu_decode *m, const kfi_cpu_decode_chunk *c,
                                        const KFI_REAL *s, int rows, kf_i64 key, int keys,
                                        KFI_REAL *sums)
{
    KFI_REAL buffer[KFI_DECODE_SLICE];
    for (int i = 0; i < keys; ++i) {
        const char *const from =
            kfi_decode_row(m, m->v, &m->v_strides, c->sequence, c->kv_head, key + i);
        for (kf_i64 d = 0; d < m->sizes.dim_v; d += KFI_DECODE_SLICE) {
            const kf_i64 left = m->sizes.dim_v - d,
                         count = left < KFI_DECODE_SLICE ? left : KFI_DECODE_SLICE;
            if (from)
                m->element.load(from + d * m->element.size, buffer, count);
            else
                KFI_DECODE(decode_fill)(buffer, kfi_decoding_padded(count), (KFI_REAL)NAN);
            for (int r = 0; r < rows; ++r) {
                const KFI_REAL w = s[r * KFI_DECODE_KEYS + i];
                KFI_REAL *const to = sums + r * m->sum_pitch + d;
                if (w == 0) continue; /* infinite values of hidden keys */
                for (kf_i64 e = 0; e < count; e += KFI_SIMD) {
                    KFI_TILE_LOOP
                    for (int j = 0; j < KFI_SIMD; ++j) to[e + j] += w * buffer[e + j];
                }
            }
        }
    }
}
/* Computes the maxima and sums of `rows` rows of a unit over a chunk, from key `begin` on. */
KFI_HOST void KFI_DECODE(decode_rows)(const kfi_cpu_decode *m, const kfi_cpu_decode_chunk *c,
                                      kf_i64 row, int rows, kf_i64 begin)
{
    const KFI_REAL *const q =
        (const KFI_REAL *)(void *)m->queries + (c->unit * m->rows + row) * m->q_pitch;
    KFI_REAL *const maximum = (KFI_REAL *)c->maximum + row,
                    *const total = (KFI_REAL *)c->total + row,
                    *const sums = (KFI_REAL *)c->sum + row * m->sum_pitch,
                    s[KFI_DECODE_ROWS * KFI_DECODE_KEYS];
    KFI_DECODE(decode_fill)(maximum, rows, -(KFI_REAL)INFINITY);
    KFI_DECODE(decode_fill)(total, rows, 0);
    KFI_DECODE(decode_fill)(sums, rows * m->sum_pitch, 0);
    for (kf_i64 key = begin; key < c->last; key += KFI_DECODE_KEYS) {
        const int keys = (int)(c->last - key < KFI_DECODE_KEYS ? c->last - key : KFI_DECODE_KEYS);
        KFI_DECODE(decode_scores)(m, c, q, rows, key, keys, s);
        for (int r = 0; r < rows; ++r) {
            kf_i64 lo, hi;
            kfi_decode_seen(m, c->keys, (row + r) / m->group, &lo, &hi);
            hi = hi < key + keys ? hi : key + keys;
            const KFI_REAL factor = KFI_DECODE(decode_weights)(s + r * KFI_DECODE_KEYS, lo - key,
                                                               hi - key, maximum + r, total + r);
            for (kf_i64 i = 0; factor != 1 && i < m->sum_pitch; ++i)
                sums[r * m->sum_pitch + i] *= factor;
        }
        KFI_DECODE(decode_values)(m, c, s, rows, key, keys, sums);
    }
}
/* Adds up the `count` chunks of a row, in order, and stores the result; 0: NaN. */
KFI_HOST void KFI_DECODE(decode_fold)(const kfi_cpu_decode *m, kf_i64 unit, kf_i64 row,
                                      kf_i64 count)
{
    const kf_i64 first = unit * m->slots * m->rows + row, pitch = m->sum_pitch;
    KFI_REAL *const maxima = (KFI_REAL *)(void *)m->maxima + first,
                    *const totals = (KFI_REAL *)(void *)m->totals + first,
                    *const sums = (KFI_REAL *)(void *)m->sums + first * pitch,
                    none = -(KFI_REAL)INFINITY;
    KFI_REAL most = count ? *maxima : none, total = count ? *totals : (KFI_REAL)NAN;
    if (!count) KFI_DECODE(decode_fill)(sums, pitch, (KFI_REAL)NAN);
    for (kf_i64 n = 1; n < count; ++n) {
        const kf_i64 at = n * m->rows;
        const KFI_REAL higher = maxima[at] > most ? maxima[at] : most,
                       shift = higher == none ? 0 : higher, old = KFI_DECODE(cpu_exp)(most - shift),
                       own = KFI_DECODE(cpu_exp)(maxima[at] - shift);
        const KFI_REAL *const x = sums + at * pitch;
        for (kf_i64 i = 0; i < pitch; i += KFI_SIMD) {
            KFI_TILE_LOOP
            for (int j = 0; j < KFI_SIMD; ++j) sums[i + j] = old * sums[i + j] + own * x[i + j];
        }
        total = old * total + own * totals[at];
        most = higher;
    }
    const KFI_REAL divisor = total == 0 ? 1 : total;
    for (kf_i64 i = 0; i < pitch; ++i) sums[i] /= divisor;
    if (m->sizes.dim_v)
        m->element.store(sums, m->out + kfi_cpu_decode_offset(m, &m->out_strides, unit, row),
                         m->sizes.dim_v);
    if (!m->lse) return;
    const kf_i64 query = row / m->group, head = unit / m->sizes.kv_heads * m->sizes.heads +
                                                unit % m->sizes.kv_heads * m->group +
                                                row % m->group;
    ((KFI_REAL *)m->lse)[head * m->sizes.queries + query] = total == 0 ? none
                                                            : count
                                                                ? most + KFI_DECODE(cpu_log)(total)
                                                                : (KFI_REAL)NAN;
}

KFI_C_END

#undef KFI_REAL
#undef KFI_DECODE
#undef KFI_DECODE_JOIN
#undef KFI_DECODE_JOIN_
#undef KFI_DECODE_REAL
#undef KFI_DECODE_TYPE

#endif
