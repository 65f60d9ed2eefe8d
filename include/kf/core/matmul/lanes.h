/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/lanes.h: matrix product in C for one element type and vector width: the register
   tile and the table of functions.

   core/matmul/width.h includes it once per type and width and defines KFI_GEMM_BYTES (of a vector;
   0: scalars) and KFI_GEMM_TYPE; it is empty otherwise. Each function has its own target attribute:
   gcc splits vector operations whose function lacks the instructions before it inlines the function
   into one that has them. Accumulators are float, for f64 double. */
#ifdef KFI_GEMM_TYPE

#define KFI_GEMM_JOIN_(word, type, bytes) kfi_cpu_gemm_##word##_##type##_##bytes
#define KFI_GEMM_JOIN(word, type, bytes) KFI_GEMM_JOIN_(word, type, bytes)
#define KFI_GEMM(word) KFI_GEMM_JOIN(word, KFI_GEMM_TYPE, KFI_GEMM_BYTES)
#define KFI_MM_REAL KFI_GEMM(real)
#define KFI_MM_VECTOR KFI_GEMM(vector)
#define KFI_MM_ANYWHERE KFI_GEMM(anywhere) /* unaligned vector */
#define KFI_MM_ELEMENT KFI_GEMM(element)

#if KFI_GEMM_KIND == 1
typedef double KFI_MM_REAL;
#define KFI_MM_SIZE 8
#else
typedef float KFI_MM_REAL;
#define KFI_MM_SIZE 4
#endif
#if KFI_GEMM_KIND < 2
typedef KFI_MM_REAL KFI_MM_ELEMENT;
#else
typedef uint16_t KFI_MM_ELEMENT;
#endif

/* KFI_MM_ROWS, KFI_MM_ACROSS: rows of a tile and vectors per row, as registers allow. */
#if KFI_GEMM_BYTES == 0
#define KFI_MM_LANES 1
#define KFI_MM_ROWS 4
#define KFI_MM_ACROSS (16 / KFI_MM_SIZE)
typedef KFI_MM_REAL KFI_MM_VECTOR, KFI_MM_ANYWHERE;
#else
#define KFI_MM_LANES (KFI_GEMM_BYTES / KFI_MM_SIZE)
#define KFI_MM_ROWS (KFI_GEMM_BYTES == 64 ? 12 : KFI_GEMM_BYTES == 32 ? 6 : 4)
#define KFI_MM_ACROSS 2
typedef KFI_MM_REAL KFI_MM_VECTOR __attribute__((vector_size(KFI_GEMM_BYTES), may_alias));
typedef KFI_MM_REAL KFI_MM_ANYWHERE
    __attribute__((vector_size(KFI_GEMM_BYTES), may_alias, aligned(KFI_MM_SIZE)));
#if KFI_GEMM_KIND == 3
typedef uint16_t KFI_GEMM(brains) __attribute__((vector_size(KFI_GEMM_BYTES / 2)));
typedef uint32_t KFI_GEMM(bits) __attribute__((vector_size(KFI_GEMM_BYTES)));
#endif
#endif
#define KFI_MM_COLS (KFI_MM_ACROSS * KFI_MM_LANES)

/* a * b + c, fused if there is an instruction. */
KFI_GEMM_INLINE KFI_MM_VECTOR KFI_GEMM(fma)(KFI_MM_VECTOR a, KFI_MM_VECTOR b, KFI_MM_VECTOR c)
{
#if KFI_GEMM_BYTES >= 32 && defined(__clang__) && KFI_GEMM_ELEMENTWISE_FMA
    return __builtin_elementwise_fma(a, b, c);
#elif KFI_GEMM_BYTES == 64 && KFI_MM_SIZE == 8
    return (KFI_MM_VECTOR)__builtin_ia32_vfmaddpd512_mask(a, b, c, KFI_GEMM_MASK_8, 4);
#elif KFI_GEMM_BYTES == 64
    return (KFI_MM_VECTOR)__builtin_ia32_vfmaddps512_mask(a, b, c, KFI_GEMM_MASK_16, 4);
#elif KFI_GEMM_BYTES == 32 && KFI_MM_SIZE == 8
    return (KFI_MM_VECTOR)__builtin_ia32_vfmaddpd256(a, b, c);
#elif KFI_GEMM_BYTES == 32
    return (KFI_MM_VECTOR)__builtin_ia32_vfmaddps256(a, b, c);
#elif KFI_GEMM_BYTES == 0 && KFI_MM_SIZE == 4
    return kfi_cpu_fma_f32(a, b, c);
#else
    return a * b + c;
#endif
}
KFI_GEMM_INLINE KFI_MM_VECTOR KFI_GEMM(all)(KFI_MM_REAL v)
{
    const KFI_MM_VECTOR zero = {0};
    return v - zero;
}

/* Loads contiguous elements and converts them. */
KFI_GEMM_INLINE KFI_MM_VECTOR KFI_GEMM(load)(const KFI_MM_ELEMENT *from)
{
#if KFI_GEMM_KIND < 2
    return *(const KFI_MM_ANYWHERE *)from;
#elif KFI_GEMM_KIND == 2 && KFI_GEMM_BYTES == 64
    const KFI_MM_VECTOR none = {0};
    kfi_cpu_16_halves h;
    memcpy(&h, from, sizeof h);
    return (KFI_MM_VECTOR)__builtin_ia32_vcvtph2ps512_mask(h, none, KFI_GEMM_MASK_16, 4);
#elif KFI_GEMM_KIND == 2 && KFI_GEMM_BYTES == 32
    kfi_cpu_8_halves h;
    memcpy(&h, from, sizeof h);
    return (KFI_MM_VECTOR)__builtin_ia32_vcvtph2ps256(h);
#elif KFI_GEMM_BYTES == 0 && KFI_GEMM_KIND == 3
    return kfi_cpu_bf16_bits_to_f32(*from);
#elif KFI_GEMM_KIND == 2
    KFI_MM_REAL f[KFI_MM_LANES];
    for (int i = 0; i < KFI_MM_LANES; ++i) f[i] = kfi_cpu_f16_bits_to_f32(from[i]);
    return *(const KFI_MM_ANYWHERE *)f;
#else
    KFI_GEMM(brains) h;
    memcpy(&h, from, sizeof h);
    return (KFI_MM_VECTOR)(__builtin_convertvector(h, KFI_GEMM(bits)) << 16);
#endif
}
/* Loads `count` elements, fewer than a vector has, and pads with zeros. */
KFI_GEMM_INLINE KFI_MM_VECTOR KFI_GEMM(load_some)(const KFI_MM_ELEMENT *from, kf_i64 count)
{
    KFI_MM_ELEMENT t[KFI_MM_LANES];
    memset(t, 0, sizeof t);
    memcpy(t, from, (size_t)count * sizeof *t);
    return KFI_GEMM(load)(t);
}

/* Computes a tile. All loops over accumulators are unrolled, so that they stay in registers. */
KFI_GEMM_INLINE void KFI_GEMM(tile_of)(const int rows, kf_i64 depths, const KFI_MM_REAL *a,
                                       const KFI_MM_REAL *b, KFI_MM_REAL *c, kf_i64 ld, int add)
{
    KFI_MM_VECTOR sum[KFI_MM_ROWS][KFI_MM_ACROSS], v[KFI_MM_ACROSS];
    KFI_GEMM_UNROLL
    for (int i = 0; i < rows * KFI_MM_ACROSS; ++i)
        sum[i / KFI_MM_ACROSS][i % KFI_MM_ACROSS] = KFI_GEMM(all)(0);
    for (kf_i64 d = 0; d < depths; ++d, a += KFI_MM_ROWS, b += KFI_MM_COLS) {
        KFI_GEMM_UNROLL
        for (int j = 0; j < KFI_MM_ACROSS; ++j) {
            KFI_GEMM_PREFETCH(b + KFI_GEMM_AHEAD * KFI_MM_COLS + j * KFI_MM_LANES);
            v[j] = *(const KFI_MM_ANYWHERE *)(b + j * KFI_MM_LANES);
        }
        KFI_GEMM_UNROLL
        for (int i = 0; i < rows; ++i) {
            const KFI_MM_VECTOR x = KFI_GEMM(all)(a[i]);
            KFI_GEMM_UNROLL
            for (int j = 0; j < KFI_MM_ACROSS; ++j) sum[i][j] = KFI_GEMM(fma)(x, v[j], sum[i][j]);
        }
    }
    KFI_GEMM_UNROLL
    for (int i = 0; i < rows; ++i) {
        KFI_GEMM_UNROLL
        for (int j = 0; j < KFI_MM_ACROSS; ++j) {
            KFI_MM_ANYWHERE *const to = (KFI_MM_ANYWHERE *)(c + i * ld + j * KFI_MM_LANES);
            if (add) sum[i][j] += *to;
            *to = sum[i][j];
        }
    }
}
KFI_GEMM_FUNCTION void KFI_GEMM(tile)(int rows, kf_i64 depths, const void *a, const void *b,
                                      void *c, kf_i64 ld, int add)
{
    const KFI_MM_REAL *const x = (const KFI_MM_REAL *)a, *const y = (const KFI_MM_REAL *)b;
#if KFI_GEMM_BYTES == 64
    if (rows > 8)
        KFI_GEMM(tile_of)(KFI_MM_ROWS, depths, x, y, (KFI_MM_REAL *)c, ld, add);
    else if (rows > 4)
        KFI_GEMM(tile_of)(8, depths, x, y, (KFI_MM_REAL *)c, ld, add);
#else
    if (rows > 4) KFI_GEMM(tile_of)(KFI_MM_ROWS, depths, x, y, (KFI_MM_REAL *)c, ld, add);
#endif
    else if (rows > 2)
        KFI_GEMM(tile_of)(4, depths, x, y, (KFI_MM_REAL *)c, ld, add);
    else
        KFI_GEMM(tile_of)(2, depths, x, y, (KFI_MM_REAL *)c, ld, add);
}

#include "kf/core/matmul/pack.h"

#include "kf/core/matmul/skinny.h"

KFI_HOST kfi_cpu_gemm_lanes KFI_GEMM(lanes)(void)
{
    const kfi_cpu_gemm_lanes found = {
        KFI_MM_ROWS,      KFI_MM_COLS,     KFI_MM_LANES, KFI_MM_SIZE, (int)sizeof(KFI_MM_ELEMENT),
        KFI_GEMM(tile),   KFI_GEMM(pack),
#if KFI_GEMM_KIND == 1
        KFI_GEMM(pack),
#else
                                      KFI_GEMM_JOIN(pack, f32, KFI_GEMM_BYTES),
#endif
        KFI_GEMM(gather), KFI_GEMM(skinny)};
    return found;
}

#undef KFI_GEMM_JOIN_
#undef KFI_GEMM_JOIN
#undef KFI_GEMM
#undef KFI_MM_REAL
#undef KFI_MM_VECTOR
#undef KFI_MM_ANYWHERE
#undef KFI_MM_ELEMENT
#undef KFI_MM_SIZE
#undef KFI_MM_LANES
#undef KFI_MM_ROWS
#undef KFI_MM_ACROSS
#undef KFI_MM_COLS
#undef KFI_GEMM_TYPE
#undef KFI_GEMM_KIND

#endif
