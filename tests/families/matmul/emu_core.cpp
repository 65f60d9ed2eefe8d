// SPDX-License-Identifier: Apache-2.0
// Tests kf/core/matmul/matmul.cuh with hand-written epilogues (kernel.cuh), run by the
// emulator in every thread order, against plain loops in double.
// It covers every tile, layout and load; sizes of 1 to 300; odd leading dimensions; unaligned
// bases; batches; split-K; K = 0; NaN in a row. Outputs lie between guard elements. Prints the
// first wrong value.
// Usage: emu_core [CASES] [SEED] [rings, few, halves, tf32 or singles]
#include <cuda_runtime.h>
#include <sanitizer/asan_interface.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

static int sms = 132; // multiprocessors
#define KFI_GEMM_SMS sms

#include "kernel.cuh"

#include <kf/core/matmul/skinny_f32_host.cuh>

#include "choices.h"

static std::mt19937 source;
static int below(int n) { return (int)(source() % (unsigned)n); }

template <class T> static double number(T v) { return (double)(float)v; }
template <> [[maybe_unused]] double number(double v) { return v; }
// Value of an element as a factor of a product.
template <int type, class T> static double factor(T v)
{
    return type == KFI_OF_TF32 ? (double)kf_emu_bits<float>(kf_emu_tf32((float)v)) : number(v);
}

// One test case. splits: split-K count; skinny M: log2 of the cluster size, plus 1.
struct problem {
    int rows, cols, depth, matrices, splits;
    bool whole = false, bias = false, residual = false, pre = false, nan = false;
};

// A matrix inside a larger buffer: it begins `skip` elements into it, with leading dimension `ld`.
// whole: rows begin at multiples of 16 bytes.
template <class T> struct matrix {
    std::vector<T> data;
    size_t skip;
    kf_i64 ld, matrix_stride;
    int rows, length, matrices;
    bool whole;
    matrix(int rows, int length, int matrices, bool whole)
        : rows(rows), length(length), matrices(matrices), whole(whole)
    {
        ld = whole ? (length + 7) / 8 * 8 + 8 * below(2) : length + below(4);
        matrix_stride = (rows > 0 ? rows : 1) * ld + (whole ? 8 * below(2) : below(3));
        const size_t room = (size_t)(rows > 0 ? rows - 1 : 0) * ld + length;
        /* The buffer begins at a multiple of 16 bytes and ends where the last row ends. */
        skip = whole ? 0 : (size_t)below(9);
        data = std::vector<T>(skip + (size_t)matrix_stride * (matrices - 1) + room);
        const float fine =
            sizeof(T) == 4 ? 0x1p-23f : 0.0f; // floats have more bits than half of one has
        for (T &v : data) v = T((float)(below(17) - 8) / 8.0f + (float)below(1 << 19) * fine);
    }
    ~matrix() { ASAN_UNPOISON_MEMORY_REGION(data.data(), data.size() * sizeof(T)); }
    // Makes AddressSanitizer report reads between rows, which are uninitialised in a workspace.
    // Rows that begin anywhere are exempt: loads of 16 bytes read past their end.
    void guard()
    {
        for (kf_i64 m = 0, row = 0; whole && m < matrices; row = 0, ++m)
            for (; row < rows; ++row) {
                const kf_i64 begin = m * matrix_stride + row * ld,
                             next = row + 1 < rows     ? begin + ld
                                    : m + 1 < matrices ? (m + 1) * matrix_stride
                                                       : begin + length;
                T *const end = at() + begin + length;
                ASAN_POISON_MEMORY_REGION(end, (next - begin - length) * sizeof(T));
            }
    }
    T *at() { return data.data() + skip; }
    T &operator()(kf_i64 m, kf_i64 row, kf_i64 i) { return at()[m * matrix_stride + row * ld + i]; }
};

// Arguments of a launch.
struct launch {
    ending *e;
    kfi_gemm *g;
    kfi_gemm_sizes sizes;
    kfi_gemm_matrix a, b;
    kf_i64 a_matrices[2], b_matrices[2], splits;
    int share_bits;
};
static const kfi_name NAME = {"product", ""};
template <int type, int tile, int layout, int products>
static bool run_pipelined(launch c, kf_result_t *result)
{
    constexpr bool tf32x3 = tile == KFI_TILE_WGMMA_3XTF32;
    kfi_gemm_maps maps;
    void *args[] = {c.e, c.g, &maps},
         *tf32x3_args[] = {&c.a, &c.b, c.a_matrices, c.b_matrices, c.e, c.g, &maps};
    if (!kfi_gemm_map(&maps, c.sizes, type, layout, 1, c.a, c.a_matrices, c.b, c.b_matrices))
        return false;
    maps.units = (unsigned)(c.g->row_tiles * c.g->col_tiles * c.sizes.matrices * c.splits);
    const void *kernel;
    if constexpr (tf32x3)
        kernel = KFI_ADDRESS(halves_product<type, layout, products>);
    else
        kernel = KFI_ADDRESS(ring_product<type, layout, products>);
    *result = kfi_launch(&NAME, kernel, dim3(1 + below(3)),
                         kfi_policy(tf32x3 ? tile : KFI_TILE_WGMMA_128x128_PINGPONG).threads,
                         tf32x3 ? tf32x3_args : args, nullptr, false,
                         tf32x3 ? kfi_3xtf32_shared_bytes()
                                : kfi_pipeline_shared_bytes(KFI_TILE_WGMMA_128x128_PINGPONG));
    return true;
}
template <int type, int layout, int products>
static bool run_skinny(const launch &c, kf_result_t *result)
{
    kfi_gemm_maps maps;
    void *args[] = {c.e, c.g, &maps};
    const int wide = kfi_skinny_n(c.sizes), stages = 2 + below(3);
    if (!kfi_gemm_map(&maps, c.sizes, type, layout, 1, c.a, c.a_matrices, c.b, c.b_matrices,
                      kfi_skinny_box_rows(c.sizes), 64))
        return false;
    maps.share_bits = c.share_bits;
    while (maps.share_bits > 0 && c.sizes.depth <= KFI_PIPELINE_K << (maps.share_bits + 1))
        --maps.share_bits;
    maps.stages = stages;
    maps.a_bytes = kfi_skinny_a_bytes(c.sizes, layout);
    const void *const kernel = wide == 16 ? KFI_ADDRESS(few_product<type, layout, products, 16>)
                                          : KFI_ADDRESS(few_product<type, layout, products, 64>);
    *result = kfi_launch(&NAME, kernel,
                         dim3((unsigned)(c.g->tiles.d * c.sizes.matrices) << maps.share_bits),
                         kfi_policy(KFI_TILE_WGMMA_SKINNY).threads, args, nullptr, false,
                         kfi_skinny_shared_bytes(wide, layout, stages), 1u << maps.share_bits);
    return true;
}
// The launcher's choice for a device of 1 to 12 SMs, which has clusters of up to `share_bits`.
static kfi_skinny_f32_choice few_floats_choice(const launch &c)
{
    kf_i64 rounds;
    int bits = c.share_bits;
    while (kfi_skinny_f32_clusters(bits) < 1) --bits;
    return kfi_skinny_f32_even(c.sizes, bits, &rounds);
}
template <int type, int products> static bool run_skinny_f32(launch c, kf_result_t *result)
{
    kfi_gemm_maps maps;
    void *args[] = {&c.a, &c.b, c.a_matrices, c.b_matrices, c.e, c.g, &maps};
    sms = 1 + below(12);
    const kfi_skinny_f32_choice choice = few_floats_choice(c);
    if (!kfi_gemm_map(&maps, c.sizes, type, 0, 1, c.a, c.a_matrices, c.b, c.b_matrices,
                      (int)c.sizes.rows, choice.tile_cols * products))
        return false;
    const void *const kernels[] = {KFI_ADDRESS(few_floats_product<type, products, 8>),
                                   KFI_ADDRESS(few_floats_product<type, products, 16>),
                                   KFI_ADDRESS(few_floats_product<type, products, 32>),
                                   KFI_ADDRESS(few_floats_product<type, products, 64>)};
    *result = kfi_gemm_launch_skinny_f32(&NAME, kernels[kfi_skinny_f32_width(c.sizes)], &maps, c.g,
                                         c.sizes, choice, args, nullptr);
    return true;
}
template <int type, int tile, int layout, int products, int how>
static bool run(launch c, kf_result_t *result)
{
    if constexpr (tile == KFI_TILE_SKINNY_F32) {
        if (!run_skinny_f32<type, products>(c, result)) return false;
    } else if constexpr (tile == KFI_TILE_WGMMA_SKINNY) {
        if (!run_skinny<type, layout, products>(c, result)) return false;
    } else if constexpr (tile == KFI_TILE_WGMMA_128x128_PINGPONG || tile == KFI_TILE_WGMMA_TF32 ||
                         tile == KFI_TILE_WGMMA_3XTF32) {
        if (!run_pipelined<type, tile, layout, products>(c, result)) return false;
    } else {
        void *args[] = {&c.a, &c.b, c.a_matrices, c.b_matrices, c.e, c.g};
        const unsigned blocks =
            (unsigned)(c.g->row_tiles * c.g->col_tiles * c.sizes.matrices * c.splits);
        *result = kfi_launch(&NAME, KFI_ADDRESS(product<type, tile, layout, products, how>),
                             dim3(blocks), kfi_policy(tile).threads, args, nullptr, true,
                             kfi_gemm_shared(tile, kfi_of_bytes(type), layout));
    }
    void *args[] = {c.e, c.g};
    if (*result == KF_SUCCESS && c.splits > 1)
        *result = kfi_launch(&NAME, KFI_ADDRESS(joint<type, products>),
                             kfi_gemm_reduce_grid(c.g, c.sizes, vector_of(type)),
                             KFI_REDUCE_SPLITS_THREADS, args, nullptr);
    return true;
}

// A kernel under test. What is the same for all of a type is not compiled for each kernel.
struct tested {
    int type, tile, layout, products, how;
    bool (*run)(launch, kf_result_t *);
    bool (*passes)(const tested &, const problem &);
    bool transposed_a() const { return layout & KFI_A_TRANSPOSED; }
    bool transposed_b() const { return layout & KFI_B_TRANSPOSED; }
};
template <class T> struct tensors {
    matrix<T> a, b, c, bias, residual, out, pre;
};
template <class T> static tensors<T> tensors_of(const tested &k, const problem &p)
{
    const bool whole = k.how == KFI_CP_ASYNC;
    // KFI_VIA_REGISTERS kernels may get factors in the workspace, which are aligned.
    const bool whole_a = whole || below(3) == 0, whole_b = whole || below(3) == 0;
    matrix<T> a(k.transposed_a() ? p.depth : p.rows, k.transposed_a() ? p.rows : p.depth,
                p.matrices, whole_a);
    matrix<T> b(k.transposed_b() ? p.depth : p.cols, k.transposed_b() ? p.cols : p.depth,
                p.matrices, whole_b);
    matrix<T> c(k.transposed_b() ? p.depth : p.cols, k.transposed_b() ? p.cols : p.depth,
                p.matrices, whole_b);
    if (c.matrix_stride != b.matrix_stride)
        c.skip = b.skip, c.ld = b.ld, c.matrix_stride = b.matrix_stride,
        c.data = b.data; // both products share the matrix stride
    for (T &v : c.data) v = T((float)(below(17) - 8) / 8.0f);
    matrix<T> bias(1, p.cols, 1, p.whole), residual(p.rows, p.cols, 1, p.whole),
        out(p.rows, p.cols, p.matrices, p.whole), pre(out);
    for (T &v : out.data) v = T(77.0f);
    pre.data = out.data;
    pre.skip = out.skip;
    const int bad = p.nan && p.depth > 0 ? below(p.rows) : -1;
    if (bad >= 0) {
        const int at = below(p.depth);
        const float odd = sizeof(T) < 4 || below(2)
                              ? NAN
                              : INFINITY; // infinity times a half that is 0 would be NaN
        (k.transposed_a() ? a(p.matrices - 1, at, bad) : a(p.matrices - 1, bad, at)) = T(odd);
    }
    return {a, b, c, bias, residual, out, pre};
}

// Factors of each result in order, as doubles: each belongs to many results.
template <int type, class T>
static std::vector<double> factors(matrix<T> &x, kf_i64 m, bool transposed, int rows, int depth)
{
    std::vector<double> found((size_t)rows * depth);
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < depth; ++i)
            found[(size_t)row * depth + i] = factor<type>(transposed ? x(m, i, row) : x(m, row, i));
    return found;
}
struct total {
    double sum, size;
};
// Takes most of the comparison's time, and sanitizers have nothing to find in it.
__attribute__((optimize("O2"), no_sanitize("address,undefined,thread"))) static total
dot(const double *x, const double *y, int depth)
{
    total t = {0, 0};
    for (int i = 0; i < depth; ++i) {
        t.sum += x[i] * y[i];
        t.size += std::fabs(x[i] * y[i]);
    }
    return t;
}

struct mistake {
    const char *what;
    int row, col;
    double got, want;
};
template <int type, class T>
static mistake compare(tensors<T> &t, const tested &k, const problem &p, bool has_residual)
{
    const double unit = sizeof(T) == 8        ? 1e-15
                        : sizeof(T) == 4      ? 1e-6
                        : type == KFI_OF_BF16 ? 0.00391
                                              : 0.00049;
    std::vector<bool> covered(t.out.data.size());
    for (int m = 0; m < p.matrices; ++m) {
        const std::vector<double> x = factors<type>(t.a, m, k.transposed_a(), p.rows, p.depth),
                                  y = factors<type>(t.b, m, k.transposed_b(), p.cols, p.depth),
                                  z = factors<type>(t.c, m, k.transposed_b(),
                                                    k.products > 1 ? p.cols : 0, p.depth);
        for (int row = 0; row < p.rows; ++row)
            for (int col = 0; col < p.cols; ++col) {
                const size_t from = (size_t)row * p.depth, with = (size_t)col * p.depth;
                const total one = dot(x.data() + from, y.data() + with, p.depth);
                const total two =
                    k.products > 1 ? dot(x.data() + from, z.data() + with, p.depth) : total{0, 0};
                const double before = one.sum + (p.bias ? number(t.bias(0, 0, col)) : 0);
                const double want = k.products > 1
                                        ? before * two.sum
                                        : (before < 0 ? 0 : before) +
                                              (has_residual ? number(t.residual(0, row, col)) : 0);
                const double about =
                    std::fabs(want) +
                    (k.products > 1 ? one.size * two.size + two.size * 2 : one.size + 2);
                const double got = number(t.out(m, row, col));
                covered[&t.out(m, row, col) - t.out.data.data()] = true;
                if (std::isnan(want) != std::isnan(got)) return {"out, NaN", row, col, got, want};
                if (!std::isnan(want) && !(std::isinf(want) && got == want) &&
                    !(std::fabs(got - want) <=
                      unit * std::fabs(want) + 3e-7 * (sizeof(T) == 8 ? 1e-8 : 1) * about))
                    return {"out", row, col, got, want};
                if (!p.pre) continue;
                const double saved = number(t.pre(m, row, col));
                if (std::isnan(before) || std::isinf(before)
                        ? !(std::isnan(before) ? std::isnan(saved) : saved == before)
                        : !(std::fabs(saved - before) <=
                            unit * std::fabs(before) + 3e-7 * (one.size + 2)))
                    return {"pre", row, col, saved, before};
            }
    }
    for (size_t i = 0; i < covered.size(); ++i)
        if (!covered[i] && (number(t.out.data[i]) != 77.0 || number(t.pre.data[i]) != 77.0))
            return {"something outside of out was written", -1, -1, 0, 0};
    return {};
}

template <int type> static bool passes(const tested &k, const problem &p)
{
    typedef typename of_type<type>::stored stored;
    tensors<stored> t = tensors_of<stored>(k, p);
    t.a.guard(), t.b.guard(), t.c.guard();
    const kfi_gemm_sizes sizes = {p.rows,     p.cols,
                                  p.depth,    p.matrices,
                                  k.products, (int)sizeof(stored),
                                  true,       k.how == KFI_CP_ASYNC,
                                  false};
    const bool pipelined =
        k.tile == KFI_TILE_WGMMA_128x128_PINGPONG || k.tile == KFI_TILE_WGMMA_TF32;
    const int stage = pipelined                         ? kfi_policy(k.tile).stage_k
                      : k.tile == KFI_TILE_WGMMA_3XTF32 ? KFI_3XTF32_K
                                                        : kfi_policy(k.tile).stage_k;
    kfi_gemm_choice choice = {k.tile, k.how, 1, p.depth};
    if (p.splits > 1 && p.depth > stage && k.tile != KFI_TILE_WGMMA_SKINNY &&
        k.tile != KFI_TILE_SKINNY_F32) {
        choice.slice = ((p.depth + p.splits - 1) / p.splits + stage - 1) / stage * stage;
        choice.splits = (p.depth + choice.slice - 1) / choice.slice;
    }
    std::vector<double> parts(
        (size_t)(p.matrices * choice.splits * k.products * p.rows * ((p.cols + 7) / 8 * 8)), NAN);
    kfi_gemm g;
    if (!kfi_gemm_fill(&g, sizes, choice, p.whole, parts.data())) return false;
    const bool has_residual = p.residual && k.products == 1;
    ending e = {p.bias ? t.bias.at() : nullptr,
                has_residual ? t.residual.at() : nullptr,
                t.out.at(),
                p.pre ? t.pre.at() : nullptr,
                t.residual.ld,
                t.out.ld,
                t.out.matrix_stride};
    kf_result_t result = KF_SUCCESS;
    if (!k.run({&e,
                &g,
                sizes,
                {{t.a.at(), nullptr}, {t.a.ld, 0}},
                {{t.b.at(), t.c.at()}, {t.b.ld, t.c.ld}},
                {t.a.matrix_stride, 0},
                {t.b.matrix_stride, t.b.matrix_stride},
                choice.splits,
                p.splits - 1},
               &result))
        return false;
    const mistake wrong = result == KF_SUCCESS ? compare<type>(t, k, p, has_residual)
                                               : mistake{kf_emu_report(), -1, -1, 0, 0};
    if (!wrong.what) return true;
    std::printf("type %d, tile %d, layout %d, products %d, how %d: %d x %d x %d, %d matrices, %d "
                "splits, order %d, wide %d: "
                "%s at (%d, %d): %g instead of %g\n",
                type, k.tile, k.layout, k.products, k.how, p.rows, p.cols, p.depth, p.matrices,
                (int)choice.splits, kf_emu_order, p.whole, wrong.what, wrong.row, wrong.col,
                wrong.got, wrong.want);
    return false;
}
#define TESTED(type, tile, layout, products, how)                                                  \
    {type, tile, layout, products, how, run<type, tile, layout, products, how>, passes<type>}
#define LAYOUTS(type, tile, products, how)                                                         \
    TESTED(type, tile, 0, products, how), TESTED(type, tile, 1, products, how),                    \
        TESTED(type, tile, 2, products, how), TESTED(type, tile, 3, products, how)
#ifndef ONLY /* the mode whose kernels alone are compiled */
#define ONLY -1
#endif
// Selects the kernels of a mode. Returns through a pointer: gcc 12 with -fsanitize=undefined reads
// element 0 of whatever `c ? A : B` selected, where A has one element.
static int kernels_of(char mode, const tested **kernels)
{
#define CHOOSE(letter, table)                                                                      \
    if (mode == letter) return *kernels = table, (int)(sizeof table / sizeof *table)
#if ONLY < 0 || ONLY == 0
    static const tested any[] = {LAYOUTS(KFI_OF_F16, KFI_TILE_MMA_128x128, 1, KFI_CP_ASYNC),
                                 LAYOUTS(KFI_OF_BF16, KFI_TILE_MMA_64x64, 1, KFI_CP_ASYNC),
                                 LAYOUTS(KFI_OF_BF16, KFI_TILE_MMA_128x128, 1, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_F16, KFI_TILE_MMA_64x64, 1, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_BF16, KFI_TILE_MMA_128x128, 2, KFI_CP_ASYNC),
                                 LAYOUTS(KFI_OF_F16, KFI_TILE_MMA_64x64, 2, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_F32, KFI_TILE_SIMT_128x128, 1, KFI_CP_ASYNC),
                                 LAYOUTS(KFI_OF_F32, KFI_TILE_SIMT_128x128, 1, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_F32, KFI_TILE_SIMT_64x64, 2, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_F64, KFI_TILE_SIMT_64x64, 1, KFI_CP_ASYNC),
                                 LAYOUTS(KFI_OF_F64, KFI_TILE_SIMT_64x64, 1, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_BF16, KFI_TILE_SIMT_64x64, 1, KFI_VIA_REGISTERS),
                                 LAYOUTS(KFI_OF_F16, KFI_TILE_SIMT_64x64, 1, KFI_VIA_REGISTERS)};
    CHOOSE('\0', any);
#endif
#if ONLY < 0 || ONLY == 'r' // wgmma
    static const tested wgmma[] = {
        LAYOUTS(KFI_OF_BF16, KFI_TILE_WGMMA_128x128_PINGPONG, 1, KFI_CP_ASYNC),
        LAYOUTS(KFI_OF_F16, KFI_TILE_WGMMA_128x128_PINGPONG, 1, KFI_CP_ASYNC),
        LAYOUTS(KFI_OF_BF16, KFI_TILE_WGMMA_128x128_PINGPONG, 2, KFI_CP_ASYNC)};
    CHOOSE('r', wgmma);
#endif
#if ONLY < 0 || ONLY == 'f' // wgmma, skinny M
    static const tested skinny[] = {TESTED(KFI_OF_BF16, KFI_TILE_WGMMA_SKINNY, 0, 1, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_BF16, KFI_TILE_WGMMA_SKINNY, 1, 1, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_F16, KFI_TILE_WGMMA_SKINNY, 0, 1, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_F16, KFI_TILE_WGMMA_SKINNY, 1, 1, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_BF16, KFI_TILE_WGMMA_SKINNY, 0, 2, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_BF16, KFI_TILE_WGMMA_SKINNY, 1, 2, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_BF16, KFI_TILE_WGMMA_SKINNY, 2, 1, KFI_CP_ASYNC),
                                    TESTED(KFI_OF_F16, KFI_TILE_WGMMA_SKINNY, 3, 1, KFI_CP_ASYNC)};
    CHOOSE('f', skinny);
#endif
#if ONLY < 0 || ONLY == 'h' // 3xTF32 by wgmma
    static const tested tf32x3[] = {LAYOUTS(KFI_OF_F32, KFI_TILE_WGMMA_3XTF32, 1, KFI_CP_ASYNC),
                                    LAYOUTS(KFI_OF_F32, KFI_TILE_WGMMA_3XTF32, 2, KFI_CP_ASYNC)};
    CHOOSE('h', tf32x3);
#endif
#if ONLY < 0 || ONLY == 't' // TF32 by wgmma
    static const tested tf32[] = {TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_TF32, 0, 1, KFI_CP_ASYNC),
                                  TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_3XTF32, 1, 1, KFI_CP_ASYNC),
                                  TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_3XTF32, 2, 1, KFI_CP_ASYNC),
                                  TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_3XTF32, 3, 1, KFI_CP_ASYNC),
                                  TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_TF32, 0, 2, KFI_CP_ASYNC),
                                  TESTED(KFI_OF_TF32, KFI_TILE_WGMMA_3XTF32, 2, 2, KFI_CP_ASYNC)};
    CHOOSE('t', tf32);
#endif
#if ONLY < 0 || ONLY == 's' // TF32 and 3xTF32 by mma.sync, skinny M
    static const tested skinny_f32[] = {
        TESTED(KFI_OF_F32, KFI_TILE_SKINNY_F32, 0, 1, KFI_CP_ASYNC),
        TESTED(KFI_OF_F32, KFI_TILE_SKINNY_F32, 0, 2, KFI_CP_ASYNC),
        TESTED(KFI_OF_TF32, KFI_TILE_SKINNY_F32, 0, 1, KFI_CP_ASYNC),
        TESTED(KFI_OF_TF32, KFI_TILE_SKINNY_F32, 0, 2, KFI_CP_ASYNC)};
    CHOOSE('s', skinny_f32);
#endif
    return 0;
}

int main(int count, char **arguments)
{
    const char mode = count > 3 ? arguments[3][0] : '\0';
    const bool wgmma = count > 3;
    const tested *kernel = nullptr;
    const int cases = count > 1 ? std::atoi(arguments[1]) : 64, kernels = kernels_of(mode, &kernel);
    if (kernels == 0) return 2;
    source.seed(count > 2 ? (unsigned)std::atoi(arguments[2]) : 1);
    kf_emu_aborts = 0;
    if (!test_choices() || !test_skinny_choices() || !test_skinny_grids()) return 1;
    for (int i = 0; i < cases; ++i) {
        sms = 132;
        kf_emu_order = (i / kernels + i) % 3;
        kf_emu_seed = (unsigned long long)i + 1;
        const bool big = wgmma || below(4) == 0;
        problem p = {1 + below(big ? 300 : 130), 1 + below(big ? 300 : 130),
                     below(9) == 0 ? 0 : 1 + below(big ? 300 : 130), 1 + below(5) / 3,
                     1 + below(4)};
        if (wgmma) p.depth = 1 + below(800); // fills the pipeline twice and more
        p.whole = below(2), p.bias = below(2), p.residual = below(2), p.pre = below(2),
        p.nan = below(3) == 0;
        if (mode == 'f')
            p.rows = 1 + below(i % 3 == 0 ? 16 : i % 3 == 1 ? 64 : 200), p.splits = 1 + below(3);
        if (mode == 's') {
            p.rows = 1 + below(i % 3 == 0 ? 16 : 64), p.splits = 1 + below(3);
            if (i % 5 == 0) p.depth = 1 + below(64); // quarters of K without a stage
        }
        if (!kernel[i % kernels].passes(kernel[i % kernels], p)) return 1;
    }
    if (kf_emu_conflicts > 0) {
        std::printf("%ld matrices come from banks of which some are the same\n", kf_emu_conflicts);
        return 1;
    }
    std::puts("ok");
    return 0;
}
