/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/append_real.h: rotates the pairs of a head, for one type of numbers
   (KFI_APPEND_TYPE, KFI_APPEND_REAL). Included by core/decoding/append.h; empty otherwise. */
#ifdef KFI_APPEND_TYPE

#define KFI_APPEND_JOIN_(word, type) kfi_append_##word##_##type
#define KFI_APPEND_JOIN(word, type) KFI_APPEND_JOIN_(word, type)
#define KFI_APPEND(word) KFI_APPEND_JOIN(word, KFI_APPEND_TYPE)
#define KFI_REAL KFI_APPEND_REAL

/* Loads angles of a row of a table: `value` without a table, NaN for a place outside. */
KFI_HOST void KFI_APPEND(angles)(const kfi_cpu_append *m, const void *table, KFI_REAL value,
                                 kf_i64 place, kf_i64 pair, int count, KFI_REAL *to)
{
    const int inside = place >= 0 && place < m->sizes.positions;
    for (int j = 0; j < count; ++j)
        to[j] = !table   ? value
                : inside ? ((const KFI_REAL *)table)[place * m->sizes.pairs + pair + j]
                         : (KFI_REAL)NAN;
}
/* Rotates the pairs of the head at `from`. */
KFI_HOST void KFI_APPEND(rotate)(const kfi_cpu_append *m, const char *from, char *to, kf_i64 place)
{
    KFI_REAL x[2 * KFI_APPEND_PAIRS], y[2 * KFI_APPEND_PAIRS], c[KFI_APPEND_PAIRS],
        s[KFI_APPEND_PAIRS];
    const kf_i64 pairs = m->sizes.pairs, bytes = m->element.size;
    for (kf_i64 p = 0; p < pairs; p += KFI_APPEND_PAIRS) {
        const int count = (int)(pairs - p < KFI_APPEND_PAIRS ? pairs - p : KFI_APPEND_PAIRS);
        const kf_i64 first = (m->beside ? 2 * p : p) * bytes, second = (pairs + p) * bytes;
        KFI_APPEND(angles)(m, m->cosine, 1, place, p, count, c);
        KFI_APPEND(angles)(m, m->sine, 0, place, p, count, s);
        m->element.load(from + first, x, m->beside ? 2 * count : count);
        if (!m->beside) m->element.load(from + second, x + KFI_APPEND_PAIRS, count);
        const int step = m->beside ? 2 : 1, other = m->beside ? 1 : KFI_APPEND_PAIRS;
        for (int j = 0; j < count; ++j) {
            const KFI_REAL a = x[step * j], b = x[step * j + other];
            y[step * j] = a * c[j] - b * s[j];
            y[step * j + other] = b * c[j] + a * s[j];
        }
        m->element.store(y, to + first, m->beside ? 2 * count : count);
        if (!m->beside) m->element.store(y + KFI_APPEND_PAIRS, to + second, count);
    }
}

#undef KFI_REAL
#undef KFI_APPEND
#undef KFI_APPEND_JOIN
#undef KFI_APPEND_JOIN_
#undef KFI_APPEND_REAL
#undef KFI_APPEND_TYPE

#endif
