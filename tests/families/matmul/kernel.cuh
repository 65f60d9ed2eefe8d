// SPDX-License-Identifier: Apache-2.0
// Kernels over kf/core/matmul/matmul.cuh with hand-written epilogues in the form of generated ones,
// for the tests on the emulation and on a device.
//   one product       out = max(acc + bias, 0) + residual, pre = acc + bias;
//                     bias, residual and pre may be NULL
//   two of one A      out = (acc0 + bias) * acc1
#ifndef GEMM_KERNEL_CUH
#define GEMM_KERNEL_CUH

#include <kf/core/device.cuh>
#include <kf/core/matmul/matmul.cuh>

template <int type> struct of_type;
template <> struct of_type<KFI_OF_BF16> {
    typedef kf_bf16 stored;
};
template <> struct of_type<KFI_OF_F16> {
    typedef kf_f16 stored;
};
template <> struct of_type<KFI_OF_F32> {
    typedef float stored;
};
template <> struct of_type<KFI_OF_TF32> {
    typedef float stored;
};
template <> struct of_type<KFI_OF_F64> {
    typedef double stored;
};
KFI_BOTH constexpr int vector_of(int type) { return 16 / kfi_of_bytes(type); }

struct ending {
    const void *bias, *residual;
    void *out, *pre;
    kf_i64 residual_ld, out_ld, out_matrix;
};

#ifdef KFI_DEVICE_PASS
template <int type, int products>
KFI_DEVICE void finish(const typename kfi_real<kfi_of_real(type)>::type (*acc)[vector_of(type)],
                       const kfi_gemm_coord &coord, kf_i64 matrix, const ending &e)
{
    typedef typename kfi_real<kfi_of_real(type)>::type real;
    typedef typename of_type<type>::stored stored;
    constexpr int vec = vector_of(type);
    real bias[vec] = {}, residual[vec] = {}, pre[vec], out[vec];
    if (e.bias)
        kfi_load_left<vec>(bias, (const stored *)e.bias + coord.col, coord.left, coord.whole);
    if (e.residual)
        kfi_load_left<vec>(residual,
                           (const stored *)e.residual + coord.row * e.residual_ld + coord.col,
                           coord.left, coord.whole);
#pragma unroll
    for (int i = 0; i < vec; ++i) {
        pre[i] = acc[0][i] + bias[i];
        out[i] =
            products > 1 ? pre[i] * acc[products - 1][i] : (pre[i] < 0 ? 0 : pre[i]) + residual[i];
    }
    const kf_i64 at = matrix * e.out_matrix + coord.row * e.out_ld + coord.col;
    if (e.pre) kfi_store_left<vec>((stored *)e.pre + at, pre, coord.left, coord.whole);
    kfi_store_left<vec>((stored *)e.out + at, out, coord.left, coord.whole);
}
#endif

template <int type, int tile, int layout, int products, int how>
KFI_KERNEL void KFI_GEMM_BOUNDS(tile) product(kfi_gemm_matrix a, kfi_gemm_matrix b, kf_i64 a_matrix,
                                              kf_i64 b_matrix, ending e, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_real<kfi_of_real(type)>::type real;
    constexpr int vec = vector_of(type), size = sizeof(real);
    kfi_begin();
    const kfi_gemm_tile at = kfi_gemm_locate<tile, products>(g);
    a.p[0] = (const char *)a.p[0] + at.matrix * a_matrix * kfi_of_bytes(type);
    for (int p = 0; p < products; ++p)
        b.p[p] = (const char *)b.p[p] + at.matrix * b_matrix * kfi_of_bytes(type);
    real sums[kfi_tile_accumulators(tile)];
#pragma unroll
    for (int i = 0; i < kfi_tile_accumulators(tile); ++i) sums[i] = 0;
    kfi_gemm_add<type, tile, layout, products, how>(sums, a, b, at, g);
    if (g.splits > 1) {
        kfi_gemm_store_partial<tile, size, layout, products, vec>(sums, at, g);
        return;
    }
#pragma unroll 1
    for (int number = 0; number < kfi_warp_rows(tile) / 16; ++number) {
        kfi_gemm_store_fragment<tile, size, layout>(sums, number);
#pragma unroll 1
        for (int turn = 0; turn < kfi_gemm_vectors<tile, products, vec>(); ++turn) {
            kfi_gemm_coord coord;
            if (!kfi_gemm_lookup<tile, products, vec>(&coord, number, turn, at, g)) continue;
            alignas(16) real acc[products][vec];
#pragma unroll
            for (int p = 0; p < products; ++p)
                kfi_gemm_load_fragment<tile, size, products, vec>(acc[p], coord, p);
            finish<type, products>(acc, coord, at.matrix, e);
        }
        __syncwarp();
    }
#endif
}

template <int type, int layout, int products>
KFI_KERNEL void KFI_PIPELINE_BOUNDS(KFI_TILE_WGMMA_128x128_PINGPONG)
    ring_product(ending e, kfi_gemm g, const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    constexpr int tile =
                      type == KFI_OF_TF32 ? KFI_TILE_WGMMA_TF32 : KFI_TILE_WGMMA_128x128_PINGPONG,
                  vec = vector_of(type);
    kfi_begin();
    kfi_pipeline ring = kfi_pipeline_init<tile>();
    if (ring.group == 0) return kfi_pipeline_produce<tile, layout, products>(&ring, g, maps);
    kfi_pipeline_start_consumer<tile, products>(&ring, g, maps);
    kfi_gemm_tile at;
    while (kfi_pipeline_next_tile<tile, products>(&ring, &at, g, maps)) {
        float sums[kfi_policy(tile).rows / 64][kfi_policy(tile).cols / 2];
        kfi_pipeline_mainloop<type, tile, layout>(sums, &ring);
        if (g.splits > 1) {
            kfi_pipeline_store_partial<tile, products>(sums, at, g);
            continue;
        }
#pragma unroll 1
        for (int slab = 0; slab < kfi_pipeline_slabs(tile); ++slab) {
            float put[KFI_PIPELINE_PER_THREAD];
            kfi_pipeline_store_fragment<tile, products>(put, sums, slab);
#pragma unroll
            for (int vector = 0; vector < kfi_pipeline_vectors<products, vec>(); ++vector) {
                kfi_gemm_coord coord;
                if (!kfi_pipeline_lookup<tile, products, vec>(&coord, slab, vector, at, g))
                    continue;
                alignas(16) float acc[products][vec];
#pragma unroll
                for (int p = 0; p < products; ++p)
                    kfi_pipeline_load_fragment<products, vec>(acc[p], put, vector, p);
                finish<type, products>(acc, coord, at.matrix, e);
            }
        }
    }
#endif
}

// Product with skinny M: up to `wide` rows, by wgmma.
template <int type, int layout, int products, int wide>
KFI_KERNEL void KFI_SKINNY_BOUNDS few_product(ending e, kfi_gemm g,
                                              const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    const kfi_gemm_tile at =
        kfi_gemm_locate<KFI_TILE_WGMMA_SKINNY, products>(g, blockIdx.x >> maps.share_bits);
    const kfi_skinny own = kfi_skinny_init<wide, layout, products>(at, maps);
    if (threadIdx.x >= KFI_SKINNY_CONSUMERS)
        return kfi_skinny_produce<wide, layout, products>(own, at, maps);
    float sums[wide / 2];
    kfi_skinny_mainloop<type, wide, layout>(sums, own, maps);
    kfi_skinny_store_partial<wide, products>(sums, own, maps);
    kfi_gemm_coord coord;
#pragma unroll 1
    for (int vector = 0; kfi_skinny_lookup<wide>(&coord, vector, own, at, g); ++vector) {
        if (coord.left <= 0) continue;
        alignas(16) float acc[products][8];
#pragma unroll
        for (int p = 0; p < products; ++p)
            kfi_skinny_load_fragment<wide>(acc[p], own, coord, p, maps);
        finish<type, products>(acc, coord, at.matrix, e);
    }
#endif
}

// Product of floats with skinny M: up to `wide` rows, by TF32 or 3xTF32 mma.sync.
template <int type, int products, int wide>
KFI_KERNEL void KFI_SKINNY_F32_BOUNDS few_floats_product(kfi_gemm_matrix a, kfi_gemm_matrix b,
                                                         kf_i64 a_matrix, kf_i64 b_matrix, ending e,
                                                         kfi_gemm g,
                                                         const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    constexpr int parts = type == KFI_OF_TF32 ? 1 : 2;
    kfi_skinny_f32 own = kfi_skinny_f32_init<wide>(maps);
    if (threadIdx.x >= KFI_SKINNY_F32_CONSUMERS)
        return kfi_skinny_f32_produce<wide, products>(&own, g, maps);
    kfi_skinny_f32_start_consumer(maps);
    kfi_gemm_tile at;
    while (kfi_skinny_f32_next_tile(&own, &at, g, maps)) {
        kfi_gemm_matrix of_a = a, of_b = b;
        for (int i = 0; i < 2; ++i) {
            of_a.p[i] = (const float *)a.p[i] + at.matrix * a_matrix;
            of_b.p[i] = (const float *)b.p[i] + at.matrix * b_matrix;
        }
        float sums[kfi_skinny_f32_warp_rows(wide)];
        kfi_skinny_f32_mainloop<wide, parts>(sums, &own, g, maps);
        kfi_skinny_f32_store_partial<wide, products>(sums, &own, maps);
        kfi_gemm_coord coord;
#pragma unroll 1
        for (int turn = 0; kfi_skinny_f32_lookup<products>(&coord, turn, own, at, g, maps);
             ++turn) {
            if (coord.left <= 0) continue;
            alignas(16) float acc[products][4];
            for (int p = 0; p < products; ++p)
                kfi_skinny_f32_load_fragment<wide, products, parts>(acc[p], own, coord, p, of_a,
                                                                    of_b, at, maps);
            finish<KFI_OF_F32, products>(acc, coord, at.matrix, e);
        }
    }
#endif
}

// Product of floats: TF32 or 3xTF32 wgmma.
template <int type, int layout, int products>
KFI_KERNEL void KFI_3XTF32_BOUNDS halves_product(kfi_gemm_matrix a, kfi_gemm_matrix b,
                                                 kf_i64 a_matrix, kf_i64 b_matrix, ending e,
                                                 kfi_gemm g,
                                                 const __grid_constant__ kfi_gemm_maps maps)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    constexpr int parts = type == KFI_OF_TF32 ? 1 : 2;
    kfi_begin();
    kfi_3xtf32 own = kfi_3xtf32_init<parts>();
    if (own.group == 3) return kfi_3xtf32_produce<layout, products, parts>(&own, g, maps);
    if (own.group == 2) return kfi_3xtf32_split_b<layout, products, parts>(&own, g, maps);
    kfi_setmaxnreg_inc<kfi_policy(KFI_TILE_WGMMA_3XTF32).consumer_registers>();
    kfi_gemm_tile at;
    int count;
    while (kfi_3xtf32_next_tile<products>(&own, &at, &count, g, maps)) {
        kfi_gemm_matrix of_a = a, of_b = b;
        for (int i = 0; i < 2; ++i) {
            of_a.p[i] = (const float *)a.p[i] + at.matrix * a_matrix;
            of_b.p[i] = (const float *)b.p[i] + at.matrix * b_matrix;
        }
        float sums[KFI_3XTF32_ACCUMULATORS];
        kfi_3xtf32_mainloop<layout, parts>(sums, &own, count);
#pragma unroll 1
        for (int slab = 0; slab < kfi_3xtf32_slabs(); ++slab) {
            kfi_3xtf32_store_fragment<layout, products>(sums, own, slab);
#pragma unroll 1
            for (int vector = 0; vector < kfi_3xtf32_vectors(products); ++vector) {
                kfi_gemm_coord coord;
                kfi_3xtf32_lookup<products>(&coord, slab, vector, at, g);
                if (coord.left <= 0) continue;
                alignas(16) float acc[products][4];
                for (int p = 0; p < products; ++p)
                    kfi_3xtf32_load_fragment<layout, products, parts>(acc[p], own, coord, p, of_a,
                                                                      of_b, at, maps.terms);
                if (g.splits > 1)
                    for (int p = 0; p < products; ++p)
                        kfi_store<16>(kfi_gemm_partial_address<4, products, 4>(coord, at.matrix,
                                                                               at.split, p, g),
                                      acc[p]);
                else
                    finish<KFI_OF_F32, products>(acc, coord, at.matrix, e);
            }
            __syncwarp();
        }
    }
#endif
}

template <int type, int products>
KFI_KERNEL void KFI_BOUNDS(KFI_REDUCE_SPLITS_THREADS) joint(ending e, kfi_gemm g)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_real<kfi_of_real(type)>::type real;
    constexpr int vec = vector_of(type), size = sizeof(real);
    kfi_begin();
    kfi_gemm_coord coord;
    kf_i64 matrix;
    if (!kfi_gemm_lookup_reduced<vec>(&coord, &matrix, g)) return;
    alignas(16) real acc[products][vec];
#pragma unroll
    for (int p = 0; p < products; ++p)
        kfi_gemm_reduce_partials<size, products, vec>(acc[p], coord, matrix, p, g);
    finish<type, products>(acc, coord, matrix, e);
#endif
}

#endif
