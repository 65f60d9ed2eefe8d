/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/skinny.h: vector kernel for skinny M in C: a few rows of A times columns of B,
   which are K-contiguous, not packed, and read once. Memory bandwidth bounds it. Included by
   core/matmul/lanes.h; empty otherwise.

   A is packed as vectors along K, interleaved over the rows: one stream, whatever its strides
   (core/matmul/skinny_rows.h). */
#ifdef KFI_GEMM_TYPE

/* Reduces vectors [lines][across] to c[rows][cols]. */
KFI_GEMM_FUNCTION void KFI_GEMM(totals)(const KFI_MM_REAL *v, int across, int rows, int cols,
                                        KFI_MM_REAL *c, kf_i64 ld)
{
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; ++j) {
            KFI_MM_REAL t[KFI_MM_LANES];
            memcpy(t, v + (i * across + j) * KFI_MM_LANES, sizeof t);
            for (int fold = KFI_MM_LANES / 2; fold > 0; fold /= 2)
                for (int k = 0; k < fold; ++k) t[k] += t[k + fold];
            c[i * ld + j] = t[0];
        }
}
KFI_GEMM_INLINE void KFI_GEMM(skinny_of)(const int lines, const int across, int rows, kf_i64 depths,
                                         const KFI_MM_REAL *x, const KFI_MM_ELEMENT *b, kf_i64 step,
                                         int cols, KFI_MM_REAL *c, kf_i64 ld)
{
    KFI_MM_VECTOR sum[8][8], v[8], sums[64];
    const KFI_MM_ELEMENT *p[8];
    KFI_GEMM_UNROLL
    for (int j = 0; j < across; ++j) {
        p[j] = b + (j < cols ? j : cols - 1) * step; /* out-of-range columns repeat the last */
        KFI_GEMM_UNROLL
        for (int i = 0; i < lines; ++i) sum[i][j] = KFI_GEMM(all)(0);
    }
    kf_i64 d = 0;
    for (; d + KFI_MM_LANES <= depths; d += KFI_MM_LANES, x += lines * KFI_MM_LANES) {
        KFI_GEMM_UNROLL
        for (int i = 0; i < lines; ++i) v[i] = *(const KFI_MM_ANYWHERE *)(x + i * KFI_MM_LANES);
        KFI_GEMM_UNROLL
        for (int j = 0; j < across; ++j) {
            KFI_GEMM_PREFETCH(p[j] + d + 512 / (int)sizeof(KFI_MM_ELEMENT));
            const KFI_MM_VECTOR w = KFI_GEMM(load)(p[j] + d);
            KFI_GEMM_UNROLL
            for (int i = 0; i < lines; ++i) sum[i][j] = KFI_GEMM(fma)(v[i], w, sum[i][j]);
        }
    }
    if (d < depths) {
        KFI_GEMM_UNROLL
        for (int j = 0; j < across; ++j) {
            const KFI_MM_VECTOR w = KFI_GEMM(load_some)(p[j] + d, depths - d);
            KFI_GEMM_UNROLL
            for (int i = 0; i < lines; ++i)
                sum[i][j] =
                    KFI_GEMM(fma)(*(const KFI_MM_ANYWHERE *)(x + i * KFI_MM_LANES), w, sum[i][j]);
        }
    }
    KFI_GEMM_UNROLL
    for (int i = 0; i < lines; ++i) {
        KFI_GEMM_UNROLL
        for (int j = 0; j < across; ++j) sums[i * across + j] = sum[i][j];
    }
    KFI_GEMM(totals)((const KFI_MM_REAL *)sums, across, rows, cols < across ? cols : across, c, ld);
}
/* Columns at a time: as many as registers have accumulators for. */
#define KFI_MM_WIDE(lines) ((lines) == 1 ? 8 : (KFI_GEMM_BYTES == 64 ? 24 : 8) / (lines))
KFI_GEMM_FUNCTION void KFI_GEMM(skinny)(int rows, kf_i64 depths, const void *a, const void *b,
                                        kf_i64 step, int cols, void *c, kf_i64 ld)
{
    const KFI_MM_REAL *const x = (const KFI_MM_REAL *)a;
    const int lines = kfi_cpu_gemm_skinny_rows(rows), across = KFI_MM_WIDE(lines);
    for (int j = 0; j < cols; j += across) {
        const KFI_MM_ELEMENT *const p = (const KFI_MM_ELEMENT *)b + j * step;
        KFI_MM_REAL *const to = (KFI_MM_REAL *)c + j;
        if (lines == 1)
            KFI_GEMM(skinny_of)(1, KFI_MM_WIDE(1), rows, depths, x, p, step, cols - j, to, ld);
        else if (lines == 4)
            KFI_GEMM(skinny_of)(4, KFI_MM_WIDE(4), rows, depths, x, p, step, cols - j, to, ld);
        else
            KFI_GEMM(skinny_of)(8, KFI_MM_WIDE(8), rows, depths, x, p, step, cols - j, to, ld);
    }
}
#undef KFI_MM_WIDE

#endif
