/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/pack.h: packs panels of an operand, [K][rows of A or columns of B], for the tiles
   of a matrix product in C. Included by core/matmul/lanes.h; empty otherwise.

   The last rows or columns of a panel repeat one where the operand has no more; their results are
   not stored. Whole vectors are written, also past the end of K: in ascending K, and with
   KFI_GEMM_LINE bytes of padding behind a panel. */
#ifdef KFI_GEMM_TYPE

#if KFI_MM_LANES > 1
#if KFI_MM_LANES == 16
#define KFI_MM_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define KFI_MM_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif KFI_MM_LANES == 8
#define KFI_MM_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define KFI_MM_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#elif KFI_MM_LANES == 4
#define KFI_MM_LOW 0, 4, 1, 5
#define KFI_MM_HIGH 2, 6, 3, 7
#else
#define KFI_MM_LOW 0, 2
#define KFI_MM_HIGH 1, 3
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define KFI_MM_ZIP(a, b, ...) (KFI_MM_VECTOR) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#if KFI_MM_SIZE == 8
typedef int64_t KFI_GEMM(places) __attribute__((vector_size(KFI_GEMM_BYTES)));
#else
typedef int32_t KFI_GEMM(places) __attribute__((vector_size(KFI_GEMM_BYTES)));
#endif
#define KFI_MM_ZIP(a, b, ...) __builtin_shuffle(a, b, (KFI_GEMM(places)){__VA_ARGS__})
#endif
#endif

/* Transposes a square of vectors by log2(lanes) rounds of interleaving. */
KFI_GEMM_INLINE void KFI_GEMM(transpose)(KFI_MM_VECTOR *r)
{
#if KFI_MM_LANES > 1
    KFI_GEMM_UNROLL
    for (int halves = 1; halves < KFI_MM_LANES; halves *= 2) {
        KFI_MM_VECTOR t[KFI_MM_LANES];
        KFI_GEMM_UNROLL
        for (int i = 0; i < KFI_MM_LANES / 2; ++i) {
            t[2 * i] = KFI_MM_ZIP(r[i], r[i + KFI_MM_LANES / 2], KFI_MM_LOW);
            t[2 * i + 1] = KFI_MM_ZIP(r[i], r[i + KFI_MM_LANES / 2], KFI_MM_HIGH);
        }
        KFI_GEMM_UNROLL
        for (int i = 0; i < KFI_MM_LANES; ++i) r[i] = t[i];
    }
#else
    (void)r;
#endif
}

/* Packs a square, lines[i] from `at` on, into columns of the panel: `depths` rows of `room`
   numbers. Not inlined: one copy of the code suffices. */
KFI_GEMM_FUNCTION void KFI_GEMM(pack_square)(KFI_MM_REAL *to, kf_i64 width, int room, int depths,
                                             const KFI_MM_ELEMENT *const *lines, kf_i64 at)
{
    KFI_MM_VECTOR r[KFI_MM_LANES], t[KFI_MM_LANES];
    KFI_GEMM_UNROLL
    for (int i = 0; i < KFI_MM_LANES; ++i) {
        KFI_GEMM_PREFETCH(lines[i] + at + 256 / (int)sizeof(KFI_MM_ELEMENT));
        r[i] = KFI_GEMM(load)(lines[i] + at);
    }
    KFI_GEMM(transpose)(r);
    if (depths == KFI_MM_LANES && room == KFI_MM_LANES) {
        KFI_GEMM_UNROLL
        for (int i = 0; i < KFI_MM_LANES; ++i) *(KFI_MM_ANYWHERE *)(to + i * width) = r[i];
        return;
    }
    KFI_GEMM_UNROLL
    for (int i = 0; i < KFI_MM_LANES; ++i) t[i] = r[i];
    for (int i = 0; i < depths; ++i) memcpy(to + i * width, &t[i], (size_t)room * sizeof *to);
}
/* Packs K-contiguous rows or columns. Only the first vector of a panel row may run over its end: a
 * later one would overwrite the next row.
 */
KFI_GEMM_FUNCTION void KFI_GEMM(pack_lines)(KFI_MM_REAL *to, int width, int lines, kf_i64 depths,
                                            const KFI_MM_ELEMENT *from, kf_i64 step)
{
    KFI_MM_ELEMENT rest[KFI_MM_LANES][KFI_MM_LANES];
    const KFI_MM_ELEMENT *line[KFI_MM_LANES], *of_rest[KFI_MM_LANES];
    for (int g = 0; g < width; g += KFI_MM_LANES) {
        const int room = g == 0 || width - g >= KFI_MM_LANES ? KFI_MM_LANES : width - g,
                  left = (int)(depths % KFI_MM_LANES);
        for (int i = 0; i < KFI_MM_LANES; ++i)
            line[i] = from + (g + i < lines ? g + i : lines - 1) * step;
        kf_i64 d = 0;
        for (; d + KFI_MM_LANES <= depths; d += KFI_MM_LANES)
            KFI_GEMM(pack_square)(to + d * width + g, width, room, KFI_MM_LANES, line, d);
        if (left == 0) continue;
        memset(rest, 0, sizeof rest);
        for (int i = 0; i < KFI_MM_LANES; ++i) {
            memcpy(rest[i], line[i] + d, (size_t)left * sizeof **rest);
            of_rest[i] = rest[i];
        }
        KFI_GEMM(pack_square)(to + d * width + g, width, room, left, of_rest, 0);
    }
}
/* Packs rows or columns that are contiguous across K. */
KFI_GEMM_INLINE void KFI_GEMM(pack_beside)(KFI_MM_REAL *to, const int width, int lines,
                                           kf_i64 depths, const KFI_MM_ELEMENT *from, kf_i64 step)
{
    for (kf_i64 d = 0; d < depths; ++d, from += step, to += width) {
        KFI_MM_ELEMENT some[KFI_MM_COLS + KFI_MM_ROWS + KFI_MM_LANES];
        KFI_GEMM_PREFETCH(from + 8 * step);
        KFI_GEMM_PREFETCH(from + 8 * step + width - 1);
        if (lines == width && sizeof(KFI_MM_ELEMENT) == sizeof(KFI_MM_REAL)) {
            memcpy(to, from, (size_t)width * sizeof *to);
            continue;
        }
        const KFI_MM_ELEMENT *p = from;
        if (lines < width || width % KFI_MM_LANES != 0) {
            memset(some, 0, sizeof some);
            memcpy(some, from, (size_t)lines * sizeof *from);
            p = some;
        }
        KFI_GEMM_UNROLL
        for (int g = 0; g < width; g += KFI_MM_LANES)
            *(KFI_MM_ANYWHERE *)(to + g) = KFI_GEMM(load)(p + g);
    }
}
KFI_GEMM_FUNCTION void KFI_GEMM(pack)(void *to, int is_b, int lines, kf_i64 depths,
                                      const void *from, kf_i64 line_step, kf_i64 depth_step)
{
    const KFI_MM_ELEMENT *const p = (const KFI_MM_ELEMENT *)from;
    KFI_MM_REAL *const t = (KFI_MM_REAL *)to;
    if (depth_step == 1)
        KFI_GEMM(pack_lines)(t, is_b ? KFI_MM_COLS : KFI_MM_ROWS, lines, depths, p, line_step);
    else if (is_b)
        KFI_GEMM(pack_beside)(t, KFI_MM_COLS, lines, depths, p, depth_step);
    else
        KFI_GEMM(pack_beside)(t, KFI_MM_ROWS, lines, depths, p, depth_step);
}

/* Gathers [lines][depths] with any strides. */
KFI_HOST void KFI_GEMM(gather)(void *to, kf_i64 lines, kf_i64 depths, const void *from,
                               kf_i64 line_step, kf_i64 depth_step)
{
    for (kf_i64 i = 0; i < lines; ++i)
        for (kf_i64 d = 0; d < depths; ++d) {
            const KFI_MM_ELEMENT e = ((const KFI_MM_ELEMENT *)from)[i * line_step + d * depth_step];
#if KFI_GEMM_KIND == 2
            ((KFI_MM_REAL *)to)[i * depths + d] = kfi_cpu_f16_bits_to_f32(e);
#elif KFI_GEMM_KIND == 3
            ((KFI_MM_REAL *)to)[i * depths + d] = kfi_cpu_bf16_bits_to_f32(e);
#else
            ((KFI_MM_REAL *)to)[i * depths + d] = e;
#endif
        }
}

#undef KFI_MM_ZIP
#undef KFI_MM_LOW
#undef KFI_MM_HIGH

#endif
