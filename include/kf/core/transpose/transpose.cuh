// SPDX-License-Identifier: Apache-2.0
// kf/core/transpose/transpose.cuh: copies matrices with rows and columns exchanged.
//
// tile    A block copies a tile of 64 x 64 elements (32 x 32 of 8 bytes) through shared memory. It
//         loads 16 bytes along the rows of the input and stores 16 bytes along the rows of the
//         output, or single elements where sizes or addresses are no multiples of 16 bytes. The
//         tile is stored by columns; 2-byte elements of two rows are joined to a word. The index of
//         each 16-byte group is XORed with its column's, so that neither side has bank conflicts.
//         Grid: the tiles of all matrices; block: 256 threads; 8 or 16 KiB of shared memory.
// narrow  Matrices with few rows or few columns, which would leave most of a tile empty. A thread
//         copies one row (or column) of them, element by element; the accesses of its neighbours
//         lie in the same cache lines. Grid: the rows of all matrices / 256; block: 256 threads.
#ifndef KF_CORE_TRANSPOSE_TRANSPOSE_CUH
#define KF_CORE_TRANSPOSE_TRANSPOSE_CUH

#include "kf/core/kernel.cuh"

#define KFI_TRANSPOSE_THREADS 256
// Rows and columns of a tile of elements of `size` bytes.
#define KFI_TRANSPOSE_SIDE(size) ((size) == 8 ? 32 : 64)

struct kfi_transpose {
    kf_i64 rows, cols; // the size of a matrix of the input
    // tile: tiles of a matrix, and of the rows that one tile has; narrow: the longer side
    kfi_divisor tiles, across;
    // narrow: items of all matrices, length of the shorter side, and the distances of consecutive
    // elements of the longer and of the shorter side in input and output, in elements
    kf_i64 items, few, from[2], to[2];
};

#ifdef KFI_DEVICE_PASS
template <int size> struct kfi_transpose_geometry {
    static constexpr int vec = 16 / size; // elements of 16 bytes
    static constexpr int side = KFI_TRANSPOSE_SIDE(size);
    static constexpr int groups = side / vec;            // 16-byte groups of a column
    static constexpr int pack = size < 4 ? 4 / size : 1; // rows of a word of shared memory
};

// Returns the address of an element in the tile, in bytes. The XOR with the column's index spreads
// 8 lanes over all 16-byte banks: at columns that are `vec` or 1 apart, which store words, and at
// consecutive groups of a column, which are loaded.
template <int size> KFI_DEVICE int kfi_transpose_at(int row, int col)
{
    using tile = kfi_transpose_geometry<size>;
    const int group = (row / tile::vec) ^ ((col ^ (col / tile::vec)) & 7);
    return (col * tile::groups + group) * 16 + row % tile::vec * size;
}

// Loads a tile into shared memory. A warp loads `load` elements at 8 positions of 4 words' rows.
template <int size, int load>
KFI_DEVICE void kfi_transpose_load(char *shared, const char *from, const kfi_transpose &g,
                                   kf_i64 first_row, kf_i64 first_col)
{
    using tile = kfi_transpose_geometry<size>;
    constexpr int across = tile::side / (8 * load), down = tile::side / (4 * tile::pack),
                  each = across * down / (KFI_TRANSPOSE_THREADS / 32);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    alignas(16) char v[each][tile::pack][size * load] = {};
    int row[each], col[each];
#pragma unroll
    for (int u = 0; u < each; ++u) {
        const int unit = u * (KFI_TRANSPOSE_THREADS / 32) + warp;
        row[u] = (unit / across * 4 + lane / 8) * tile::pack;
        col[u] = (unit % across * 8 + lane % 8) * load;
#pragma unroll
        for (int p = 0; p < tile::pack; ++p) {
            const kf_i64 r = first_row + row[u] + p, c = first_col + col[u];
            if (r < g.rows && c < g.cols)
                kfi_copy<size * load>(v[u][p], from + (r * g.cols + c) * size);
        }
    }
#pragma unroll
    for (int u = 0; u < each; ++u) {
#pragma unroll
        for (int e = 0; e < load; ++e) {
            alignas(8) char word[size * tile::pack];
#pragma unroll
            for (int p = 0; p < tile::pack; ++p)
                kfi_copy<size>(word + p * size, v[u][p] + e * size);
            kfi_copy<size * tile::pack>(shared + kfi_transpose_at<size>(row[u], col[u] + e), word);
        }
    }
}

// Stores a tile; each access has `store` elements of a column.
template <int size, int store>
KFI_DEVICE void kfi_transpose_store(char *to, const char *shared, const kfi_transpose &g,
                                    kf_i64 first_row, kf_i64 first_col)
{
    using tile = kfi_transpose_geometry<size>;
    constexpr int along = tile::side / store, each = tile::side * along / KFI_TRANSPOSE_THREADS;
#pragma unroll
    for (int u = 0; u < each; ++u) {
        const int item = u * KFI_TRANSPOSE_THREADS + (int)threadIdx.x, col = item / along,
                  row = item % along * store;
        const kf_i64 r = first_row + row, c = first_col + col;
        if (r < g.rows && c < g.cols)
            kfi_copy<size * store>(to + (c * g.rows + r) * size,
                                   shared + kfi_transpose_at<size>(row, col));
    }
}

template <int size>
KFI_DEVICE void kfi_transpose_narrow(const char *from, char *to, const kfi_transpose &g)
{
    const kf_i64 item = (kf_i64)blockIdx.x * KFI_TRANSPOSE_THREADS + threadIdx.x;
    if (item >= g.items) return;
    const kf_i64 matrix = kfi_divide(item, g.across), at = item - matrix * (kf_i64)g.across.d,
                 base = matrix * g.rows * g.cols;
    from += (base + at * g.from[0]) * size;
    to += (base + at * g.to[0]) * size;
#pragma unroll 4
    for (kf_i64 i = 0; i < g.few; ++i)
        kfi_copy<size>(to + i * g.to[1] * size, from + i * g.from[1] * size);
}

// Copies the block's tile. load, store: elements of an access; 0: narrow.
template <int size, int load, int store>
KFI_DEVICE void kfi_transpose_block(const char *from, char *to, const kfi_transpose &g)
{
    if constexpr (load == 0) {
        kfi_transpose_narrow<size>(from, to, g);
    } else {
        constexpr int side = KFI_TRANSPOSE_SIDE(size);
        __shared__ uint4 shared[side * side * size / 16];
        const kf_i64 matrix = kfi_divide(blockIdx.x, g.tiles),
                     inner = (kf_i64)blockIdx.x - matrix * (kf_i64)g.tiles.d,
                     down = kfi_divide(inner, g.across), row = down * side,
                     col = (inner - down * (kf_i64)g.across.d) * side,
                     base = matrix * g.rows * g.cols * size;
        kfi_transpose_load<size, load>((char *)shared, from + base, g, row, col);
        __syncthreads();
        kfi_transpose_store<size, store>(to + base, (const char *)shared, g, row, col);
    }
}
#endif

#ifdef KFI_HOST_PASS
#include "kf/core/transpose/check.h"

struct kfi_transpose_op {
    kfi_name name;
    kfi_arguments arguments;
    // {vector, vector}, {vector, 1}, {1, vector}, {1, 1}: elements of a load and of a store; narrow
    const void *const *kernels;
    int size = 0;
};
// Describes the launch of `narrow`.
KF_FN KFI_SMALL void kfi_transpose_share(kfi_transpose *g, kf_i64 batch)
{
    const bool tall = g->rows >= g->cols; // a thread copies a row
    const kf_i64 many = tall ? g->rows : g->cols;
    g->few = tall ? g->cols : g->rows;
    g->items = batch * many;
    g->across = kfi_make_divisor(many);
    g->from[tall] = g->to[!tall] = 1;
    g->from[!tall] = g->cols;
    g->to[tall] = g->rows;
}
// Chooses the kernel and launches it. words, sizes: those of the call, the batch first.
KF_FN kf_result_t kfi_transpose_run(const kfi_transpose_op &m, const char *words,
                                    const kf_i64 *sizes, kfi_transpose *g, const void *from,
                                    const void *to, void **args, cudaStream_t stream)
{
    kfi_operands operands;
    const kf_result_t result = kfi_transpose_check(&m.name, &m.arguments, words, sizes, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const kf_i64 vec = 16 / m.size, side = KFI_TRANSPOSE_SIDE(m.size),
                 across = kfi_ceil(g->cols, side), down = kfi_ceil(g->rows, side);
    const bool load = (uintptr_t)from % 16 == 0 && g->cols % vec == 0,
               store = (uintptr_t)to % 16 == 0 && g->rows % vec == 0,
               narrow = (g->rows < g->cols ? g->rows : g->cols) < side / 4;
    kf_i64 blocks = sizes[0] * across * down;
    if (narrow) {
        kfi_transpose_share(g, sizes[0]);
        blocks = kfi_ceil(g->items, KFI_TRANSPOSE_THREADS);
    } else {
        g->across = kfi_make_divisor(across);
        g->tiles = kfi_make_divisor(across * down);
    }
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld x %lld elements needs more blocks than a launch may have",
                        (long long)sizes[0], (long long)sizes[1], (long long)sizes[2]);
    return kfi_launch(&m.name, m.kernels[narrow ? 4 : 2 * !load + !store], dim3((unsigned)blocks),
                      KFI_TRANSPOSE_THREADS, args, stream);
}
#endif

#endif
