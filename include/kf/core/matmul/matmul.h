/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/matmul.h: matrix products in C: store(A . B), with an op's store (epilogue) and,
   optionally, functions that load A or B (prologue).

   Public to the families: kfi_gemm_run_<type> and kfi_gemm_bytes_<type>, its workspace in bytes.
   Parts: plan.h (operands, blocking), block.h (packed panels, jobs), skinny_rows.h
   (skinny M), lanes.h (vector kernels), amx.h (bf16 by AMX, once kf_cpu_enable_amx() has allowed
   it). Vectors are those that the compiler's flags allow; without flags on x86 the machine's
   widest, found at run time.
   Accumulators are float, for f64 double; the order of every sum follows from the sizes. */
#ifndef KF_CORE_MATMUL_MATMUL_H
#define KF_CORE_MATMUL_MATMUL_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/amx.h"
#include "kf/core/matmul/block.h"
#include "kf/core/matmul/skinny_rows.h"
#include "kf/core/matmul/plan.h"
#include "kf/core/math.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

/* Compiled vector widths, a sum: 1 scalars, 2 16 bytes, 4 AVX2 with FMA, 8 AVX-512.
 * KFI_GEMM_WIDEST: bytes of the widest, for tests. */
#ifndef KFI_GEMM_WIDEST
#define KFI_GEMM_WIDEST 64
#endif
#if !defined(__GNUC__) || defined(__CUDACC__) || KFI_GEMM_WIDEST < 16
#define KFI_GEMM_WIDTHS 1
#elif defined(__AVX512F__) && defined(__AVX2__) && defined(__FMA__)
#define KFI_GEMM_WIDTHS 8
#elif defined(__AVX2__) && defined(__FMA__)
#define KFI_GEMM_WIDTHS 4
#elif defined(__x86_64__)
#define KFI_GEMM_WIDTHS (2 | (KFI_GEMM_WIDEST >= 32 ? 4 : 0) | (KFI_GEMM_WIDEST >= 64 ? 8 : 0))
#else
#define KFI_GEMM_WIDTHS 2
#endif

#if defined(__clang__)
#define KFI_GEMM_UNROLL _Pragma("clang loop unroll(full)")
#elif KFI_GEMM_WIDTHS > 1
#define KFI_GEMM_UNROLL _Pragma("GCC unroll 32")
#else
#define KFI_GEMM_UNROLL
#endif
#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_fma)
#define KFI_GEMM_ELEMENTWISE_FMA 1
#endif
#endif
#ifndef KFI_GEMM_ELEMENTWISE_FMA
#define KFI_GEMM_ELEMENTWISE_FMA 0
#endif
#if defined(__GNUC__)
#define KFI_GEMM_UNUSED __attribute__((unused))
#else
#define KFI_GEMM_UNUSED
#endif
#if KFI_GEMM_WIDTHS >= 4
/* Masks of all lanes, for the compilers' builtins. */
#define KFI_GEMM_MASK_8 ((unsigned char)-1)
#if defined(__clang__)
#define KFI_GEMM_MASK_16 ((unsigned short)-1)
#else
#define KFI_GEMM_MASK_16 ((short)-1)
#endif
typedef short kfi_cpu_8_halves __attribute__((vector_size(16)));
typedef short kfi_cpu_16_halves __attribute__((vector_size(32)));
#endif

#if KFI_GEMM_WIDTHS & 1
#define KFI_GEMM_BYTES 0
#include "kf/core/matmul/width.h"
#endif
#if KFI_GEMM_WIDTHS & 2
#define KFI_GEMM_BYTES 16
#include "kf/core/matmul/width.h"
#endif
#if KFI_GEMM_WIDTHS & 4
#define KFI_GEMM_BYTES 32
#include "kf/core/matmul/width.h"
#endif
#if KFI_GEMM_WIDTHS & 8
#define KFI_GEMM_BYTES 64
#include "kf/core/matmul/width.h"
#endif

/* Chooses the widest compiled vectors that the machine has. */
#if KFI_GEMM_WIDTHS == 1
#define KFI_GEMM_CHOOSE(type) return kfi_cpu_gemm_lanes_##type##_0()
#elif KFI_GEMM_WIDTHS == 2
#define KFI_GEMM_CHOOSE(type) return kfi_cpu_gemm_lanes_##type##_16()
#elif KFI_GEMM_WIDTHS == 4
#define KFI_GEMM_CHOOSE(type) return kfi_cpu_gemm_lanes_##type##_32()
#elif KFI_GEMM_WIDTHS == 8
#define KFI_GEMM_CHOOSE(type) return kfi_cpu_gemm_lanes_##type##_64()
#else
KFI_HOST int kfi_cpu_gemm_widest(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 16; /* machines with both have f16c */
    return KFI_GEMM_WIDEST >= 64 && __builtin_cpu_supports("avx512f") ? 64 : 32;
}
#if KFI_GEMM_WIDTHS & 8
#define KFI_GEMM_CHOOSE_64(type, widest)                                                           \
    if ((widest) == 64) return kfi_cpu_gemm_lanes_##type##_64();
#else
#define KFI_GEMM_CHOOSE_64(type, widest)
#endif
#define KFI_GEMM_CHOOSE(type)                                                                      \
    const int widest = kfi_cpu_gemm_widest();                                                      \
    KFI_GEMM_CHOOSE_64(type, widest)                                                               \
    return widest >= 32 ? kfi_cpu_gemm_lanes_##type##_32() : kfi_cpu_gemm_lanes_##type##_16()
#endif
KFI_HOST kfi_cpu_gemm_lanes kfi_cpu_gemm_lanes_f32(void) { KFI_GEMM_CHOOSE(f32); }
KFI_HOST kfi_cpu_gemm_lanes kfi_cpu_gemm_lanes_f64(void) { KFI_GEMM_CHOOSE(f64); }
KFI_HOST kfi_cpu_gemm_lanes kfi_cpu_gemm_lanes_f16(void) { KFI_GEMM_CHOOSE(f16); }
KFI_HOST kfi_cpu_gemm_lanes kfi_cpu_gemm_lanes_bf16(void) { KFI_GEMM_CHOOSE(bf16); }
#undef KFI_GEMM_CHOOSE

typedef struct {
    kfi_cpu_product product;
    kf_i64 batches, slots;
    char *workspace;
    size_t bytes; /* workspace of a slot */
    int amx;
} kfi_cpu_gemm_batches;

/* Moves an operand on; bytes: batches times bytes of an element. */
KFI_INLINE void kfi_cpu_gemm_advance(kfi_gemm_operand *o, kf_i64 bytes)
{
    if (o->data && bytes) o->data = (const char *)o->data + bytes * o->batch_step;
}
/* Computes every slots-th batch. */
KFI_HOST void kfi_cpu_gemm_slot(void *context, kf_i64 slot)
{
    const kfi_cpu_gemm_batches *const all = (const kfi_cpu_gemm_batches *)context;
    for (kf_i64 batch = slot; batch < all->batches; batch += all->slots) {
        kfi_cpu_product q = all->product;
        char *const room = all->workspace + (size_t)slot * all->bytes;
        q.batch = batch;
        kfi_cpu_gemm_advance(&q.a, batch * q.v.size);
        for (int i = 0; i < q.products; ++i) kfi_cpu_gemm_advance(&q.b[i], batch * q.v.size);
        if (kfi_cpu_gemm_is_skinny(&q)) kfi_cpu_gemm_skinny(&q, room);
#if KFI_AMX
        else if (all->amx)
            kfi_amx_product(&q, room);
#endif
        else
            kfi_cpu_gemm_blocks_of(&q, room);
    }
}
/* The workspace: slots, one per batch at a time, and bytes of each. Enough with AMX and without,
 * which may be allowed between a query and its call. brain: elements are bf16. */
typedef struct {
    kf_i64 slots;
    size_t bytes;
} kfi_cpu_gemm_space;
KFI_HOST kfi_cpu_gemm_space kfi_cpu_gemm_make_space(int unit, int brain, kf_i64 rows, kf_i64 cols,
                                                    kf_i64 depth, int products)
{
    const size_t bytes = kfi_cpu_gemm_line(kfi_cpu_gemm_bytes(unit, rows, cols, depth, products)),
                 tiles = brain ? kfi_cpu_gemm_line(kfi_amx_bytes(rows, cols, depth, products)) : 0;
    const kfi_cpu_gemm_space space = {kfi_cpu_gemm_slots(bytes), bytes > tiles ? bytes : tiles};
    return space;
}
KFI_HOST void kfi_cpu_gemm_run(const kfi_cpu_gemm_lanes *v, int brain, kf_i64 batch, kf_i64 rows,
                               kf_i64 cols, kf_i64 depth, const kfi_gemm_operand *a,
                               const kfi_gemm_operand *b, const kfi_gemm_operand *b2,
                               kfi_gemm_store store, const void *seam,
                               const kfi_gemm_result *result, void *workspace)
{
    kfi_cpu_gemm_batches all;
    memset(&all, 0, sizeof all);
    if (rows < 1 || cols < 1) return;
    all.product.v = *v;
    all.product.a = *a;
    all.product.b[0] = *b;
    if (b2) all.product.b[1] = *b2;
    all.product.products = b2 ? 2 : 1;
    all.product.store = store;
    all.product.seam = seam;
    if (result) all.product.result = *result;
    all.product.rows = rows;
    all.product.cols = cols;
    all.product.depth = depth;
    all.batches = batch;
    all.workspace = (char *)workspace;
    const kfi_cpu_gemm_space space =
        kfi_cpu_gemm_make_space(v->unit, brain, rows, cols, depth, b2 ? 2 : 1);
    all.bytes = space.bytes;
    all.slots = kfi_cpu_gemm_least(batch, space.slots);
#if KFI_AMX
    all.amx = brain && kfi_amx_takes(a, b, b2);
#endif
    const double work = (double)rows * (double)cols * ((double)depth + 8),
                 least = (all.amx ? KFI_AMX_SPEED : 1) * 8.0 * KF_OMP_MIN;
    all.product.parallel = all.slots <= 1 && work > least;
    kfi_parallel(all.slots, kfi_cpu_gemm_slot, &all, (double)batch * work > least);
}
/* Workspace in bytes. It does not depend on the batch. */
KFI_HOST size_t kfi_cpu_gemm_room(int unit, int brain, kf_i64 rows, kf_i64 cols, kf_i64 depth,
                                  int products)
{
    const kfi_cpu_gemm_space space =
        kfi_cpu_gemm_make_space(unit, brain, rows, cols, depth, products);
    return space.bytes * (size_t)space.slots;
}

#define KFI_GEMM_PUBLIC(type, unit, brain)                                                         \
    KFI_HOST size_t kfi_gemm_bytes_##type(kf_i64 rows, kf_i64 cols, kf_i64 depth, int products)    \
    {                                                                                              \
        return kfi_cpu_gemm_room(unit, brain, rows, cols, depth, products);                        \
    }                                                                                              \
    KFI_HOST void kfi_gemm_run_##type(                                                             \
        kf_i64 batch, kf_i64 rows, kf_i64 cols, kf_i64 depth, const kfi_gemm_operand *a,           \
        const kfi_gemm_operand *b, const kfi_gemm_operand *b2, kfi_gemm_store store,               \
        const void *seam, const kfi_gemm_result *result, void *workspace)                          \
    {                                                                                              \
        const kfi_cpu_gemm_lanes v = kfi_cpu_gemm_lanes_##type();                                  \
        kfi_cpu_gemm_run(&v, brain, batch, rows, cols, depth, a, b, b2, store, seam, result,       \
                         workspace);                                                               \
    }
KFI_GEMM_PUBLIC(f32, 4, 0)
KFI_GEMM_PUBLIC(f64, 8, 0)
KFI_GEMM_PUBLIC(f16, 4, 0)
KFI_GEMM_PUBLIC(bf16, 4, 1)
#undef KFI_GEMM_PUBLIC

KFI_C_END

#endif
