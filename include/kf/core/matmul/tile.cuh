// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/tile.cuh: how a product of matrices is shared out. A block has a tile of the
// result, and each of its warps a part of that, whose sums stay in registers until the depth ends.
// Then the warp puts them, 16 rows at a time, into shared memory of its own, and every lane takes
// vectors of neighbours in a row: that is where a kernel's own code goes on.
#ifndef KF_CORE_MATMUL_TILE_CUH
#define KF_CORE_MATMUL_TILE_CUH

#include "kf/core/kernel.cuh"
#include "kf/core/mma.cuh"

// Tiles, named by instruction, rows x columns, and schedule.
#define KFI_TILE_MMA_128x128 0
#define KFI_TILE_MMA_64x64 1
#define KFI_TILE_SIMT_128x128 2
#define KFI_TILE_SIMT_64x64 3
#define KFI_TILE_WGMMA_128x128_PINGPONG 4    // gemm_hopper.cuh
#define KFI_TILE_WGMMA_SKINNY 5              // gemm_few.cuh
#define KFI_TILE_WGMMA_3XTF32 6              // gemm_tf32.cuh
#define KFI_TILE_WGMMA_TF32 7                // gemm_hopper.cuh, layout nt
#define KFI_TILE_WGMMA_128x192_PINGPONG 8    // gemm_hopper.cuh
#define KFI_TILE_WGMMA_128x256_COOPERATIVE 9 // gemm_hopper.cuh
#define KFI_TILE_WGMMA_128x128_COOPERATIVE 10
#define KFI_TILE_WGMMA_128x96_COOPERATIVE 11

struct kfi_tile_policy {
    int rows, cols;               // of the result
    int warps_down, warps_across; // the tile's accumulators are split over this grid of warps
    int threads, min_blocks;      // launch bounds: block size, blocks per SM
    int stage_k, stages;          // elements of K in a pipeline stage; stages (0: chosen at launch)
    bool mma;                     // mma.sync
    bool cooperative; // wgmma: both consumer warpgroups share a tile (else they alternate tiles)
    int producer_registers, consumer_registers; // setmaxnreg; 0: as launched
    // Epilogue through shared memory: columns of a warp's slab, values that a lane converts at a
    // time (half a slab where registers are short), slabs in flight
    int slab_cols, slab_part, slab_buffers;
};
KFI_BOTH constexpr kfi_tile_policy kfi_policy(int tile)
{
    // clang-format off
    constexpr kfi_tile_policy policies[] = {
        // rows cols warps threads,blocks K,stages  mma    coop   registers  slab
        {128, 128, 2, 2, 128, 2, 32, 4,             true,  false,   0,   0,   0,  0, 0}, // MMA_128x128
        { 64,  64, 2, 2, 128, 2, 32, 4,             true,  false,   0,   0,   0,  0, 0}, // MMA_64x64
        {128, 128, 4, 2, 256, 2, 16, 3,             false, false,   0,   0,   0,  0, 0}, // SIMT_128x128
        { 64,  64, 2, 2, 128, 3, 16, 3,             false, false,   0,   0,   0,  0, 0}, // SIMT_64x64
        {128, 128, 4, 1, 384, 1, 64, 5,             false, false,  24, 240,  64, 32, 4}, // WGMMA_128x128_PINGPONG
        { 64,  64, 4, 1, 160, 3, 64, 0,             false, false,   0,   0,   0,  0, 0}, // WGMMA_SKINNY
        {128, 128, 8, 1, 512, 1, 32, 4,             false, true,   24, 208,   0,  0, 0}, // WGMMA_3XTF32
        {128, 128, 4, 1, 384, 1, 32, 5,             false, false,  24, 240,  64,  0, 0}, // WGMMA_TF32
        {128, 192, 4, 1, 384, 1, 64, 4,             false, false,  24, 240,  64, 16, 4}, // WGMMA_128x192_PINGPONG
        {128, 256, 8, 1, 384, 1, 64, 4,             false, true,   40, 232,  64, 32, 2}, // WGMMA_128x256_COOPERATIVE
        {128, 128, 8, 1, 384, 1, 64, 6,             false, true,    0,   0,  64, 32, 2}, // WGMMA_128x128_COOPERATIVE
        {128,  96, 8, 1, 384, 1, 64, 6,             false, true,    0,   0,  32, 16, 2}, // WGMMA_128x96_COOPERATIVE
    };
    // clang-format on
    return policies[tile];
}
// The part of a tile that one warp accumulates, and accumulators per thread (MMA, SIMT).
KFI_BOTH constexpr int kfi_warp_rows(int tile)
{
    return kfi_policy(tile).rows / kfi_policy(tile).warps_down;
}
KFI_BOTH constexpr int kfi_warp_cols(int tile)
{
    return kfi_policy(tile).cols / kfi_policy(tile).warps_across;
}
KFI_BOTH constexpr int kfi_tile_sums(int tile)
{
    return kfi_warp_rows(tile) * kfi_warp_cols(tile) / 32;
}

// Bytes of an element, and of a number that its sums are made of.
KFI_BOTH constexpr int kfi_of_bytes(int type)
{
    return type == KFI_OF_F64 ? 8 : type == KFI_OF_F32 || type == KFI_OF_TF32 ? 4 : 2;
}
KFI_BOTH constexpr int kfi_of_real(int type) { return type == KFI_OF_F64 ? 8 : 4; }

// Which way the operands lie in memory: A as [rows, depth] and B as [cols, depth] (nt), unless
// these say otherwise.
#define KFI_A_TRANSPOSED 1 // [depth, rows]
#define KFI_B_TRANSPOSED 2 // [depth, cols]

// How a tile of an operand comes to shared memory: by copies of 16 bytes behind the threads' backs,
// of which lines must be multiples; or by way of registers, from any address.
#define KFI_WHOLE 0
#define KFI_ANY 1

struct kfi_gemm {
    int rows, cols, depth;
    unsigned row_tiles, col_tiles;
    kfi_divisor tiles; // of a matrix
    unsigned splits;   // of the depth: blocks that have the same tile
    unsigned alone;    // tiles of the one matrix that no blocks share, the first ones; 0: splits
                       // speaks of all tiles
    int slice;         // of the depth, of each: a multiple of a stage
    int wide; // all that the kernel's own code reads and writes begins at multiples of a vector,
              // and so do its rows
    kf_i64 pitch; // of partial sums: columns, up to a multiple of 8
    void *parts;  // [matrix][split][product][rows][pitch] where there are several splits; behind
                  // tiles that are alone [split][tile] of them
};

// A matrix that is multiplied. Products that share an A have a B each.
struct kfi_gemm_side {
    const void *p[2];
    kf_i64 ld[2]; // elements from a line to the next
};

// A block's work.
struct kfi_gemm_at {
    int row, col;   // of the tile; col counts the columns of one product
    int begin, end; // of the depth
    unsigned split;
    kf_i64 matrix;
    bool leaves;    // whether others have the same tile
    unsigned place; // behind tiles that are alone: of its sums among the parts
};

// Several results of one row, and where they belong.
struct kfi_gemm_cell {
    int row, col, left; // columns from col on
    bool whole;         // loads and stores may be of whole vectors
    int at;             // its sums, in the warp's shared memory
};

#define KFI_JOIN_THREADS 256 // of the kernel that joins split depths
#define KFI_ALONE_TILE 128   // rows and columns, where some tiles are shared and others are not

KFI_BOTH constexpr int kfi_put_pitch(int tile) { return kfi_warp_cols(tile) + 8; }

#ifdef KFI_DEVICE_PASS

// A number of so many bytes, that sums are made of.
template <int size> struct kfi_real;
template <> struct kfi_real<4> {
    typedef float type;
};
template <> struct kfi_real<8> {
    typedef double type;
};

// Blocks that run at the same time share rows and columns: they go down 8 tiles, then across.
#define KFI_TILES_DOWN 8
template <int tile, int products>
KFI_DEVICE kfi_gemm_at kfi_gemm_locate(const kfi_gemm &g, unsigned block = blockIdx.x)
{
    kfi_gemm_at at;
    unsigned turn = (unsigned)kfi_divide(block, g.tiles), own = block - turn * (unsigned)g.tiles.d,
             splits = g.splits;
    at.place = 0;
    if (g.alone) { // and the others are the last ones, of which all first parts come first
        const unsigned shared = (unsigned)g.tiles.d - g.alone;
        splits = block < g.alone ? 1 : g.splits;
        at.place = block < g.alone ? 0 : block - g.alone;
        turn = at.place / shared;
        own = block < g.alone ? block : g.alone + at.place - turn * shared;
    }
    at.leaves = splits > 1;
    const unsigned band = own / (KFI_TILES_DOWN * g.col_tiles), first = band * KFI_TILES_DOWN;
    const unsigned down =
        g.row_tiles - first < KFI_TILES_DOWN ? g.row_tiles - first : KFI_TILES_DOWN;
    const unsigned in_band = own - first * g.col_tiles, across = in_band / down;
    at.row = (int)(first + in_band - across * down) * kfi_policy(tile).rows;
    at.col = (int)across * (kfi_policy(tile).cols / products);
    at.matrix = splits > 1 ? turn / splits : turn;
    at.split = turn - (unsigned)at.matrix * splits;
    at.begin = (int)at.split * g.slice; // there is no split without depth
    at.end = at.split + 1 == splits ? g.depth : at.begin + g.slice;
    return at;
}

// Sum i of a thread that has rows * cols of them without mma.sync: its row and column in the warp's
// part. Where shared memory holds neighbours side by side, as many as 16 bytes hold are one lane's.
template <int beside> KFI_DEVICE int kfi_lane_row(int i)
{
    return i / beside * (4 * beside) + (int)(threadIdx.x % 32 / 8) * beside + i % beside;
}
template <int beside> KFI_DEVICE int kfi_lane_col(int j)
{
    return j / beside * (8 * beside) + (int)(threadIdx.x % 8) * beside + j % beside;
}

// Shared memory of this thread's warp, behind the last use of the stages.
template <int tile, int size> KFI_DEVICE typename kfi_real<size>::type *kfi_gemm_own()
{
    return (typename kfi_real<size>::type *)kfi_dynamic() +
           threadIdx.x / 32 * (16 * kfi_put_pitch(tile));
}

// The 16 rows of this number, of the warp's part. All lanes come here, and may read afterwards;
// before the next ones, they __syncwarp.
template <int tile, int size, int layout>
KFI_DEVICE void kfi_gemm_put(const typename kfi_real<size>::type *sums, int number)
{
    constexpr int pitch = kfi_put_pitch(tile), rows = kfi_warp_rows(tile) / 16,
                  lane_cols = kfi_warp_cols(tile) / 8;
    typename kfi_real<size>::type *const to = kfi_gemm_own<tile, size>();
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < rows; ++n) {
        if (n != number) continue;
        if (kfi_policy(tile).mma) {
#pragma unroll
            for (int c = 0; c < lane_cols; ++c) {
                const typename kfi_real<size>::type *const s = sums + (n * lane_cols + c) * 4;
                kfi_copy<2 * size>(to + g * pitch + c * 8 + t, s);
                kfi_copy<2 * size>(to + (g + 8) * pitch + c * 8 + t, s + 2);
            }
        } else {
            constexpr int a = layout & KFI_A_TRANSPOSED ? 16 / size : 1,
                          b = layout & KFI_B_TRANSPOSED ? 16 / size : 1;
#pragma unroll
            for (int i = 4 * n; i < 4 * n + 4; ++i)
#pragma unroll
                for (int j = 0; j < lane_cols; ++j)
                    to[(kfi_lane_row<a>(i) - 16 * n) * pitch + kfi_lane_col<b>(j)] =
                        sums[i * lane_cols + j];
        }
    }
    __syncwarp();
}
// Vectors of a lane in 16 rows.
template <int tile, int products, int vec> KFI_DEVICE constexpr int kfi_gemm_vectors()
{
    return 16 * kfi_warp_cols(tile) / products / vec / 32;
}
template <int tile, int products, int vec>
KFI_DEVICE bool kfi_gemm_find(kfi_gemm_cell *cell, int number, int turn, const kfi_gemm_at &at,
                              const kfi_gemm &g)
{
    constexpr int wide = kfi_warp_cols(tile) / products, in_row = wide / vec;
    static_assert(kfi_gemm_vectors<tile, products, vec>() > 0,
                  "kf: 16 rows of a warp have a vector for each lane");
    const int warp = (int)threadIdx.x / 32, one = turn * 32 + (int)threadIdx.x % 32;
    const int row = one / in_row, col = one % in_row * vec;
    cell->row =
        at.row + warp / kfi_policy(tile).warps_across * kfi_warp_rows(tile) + number * 16 + row;
    cell->col = at.col + warp % kfi_policy(tile).warps_across * wide + col;
    cell->left = g.cols - cell->col;
    cell->whole = g.wide && cell->left >= vec;
    cell->at = row * kfi_put_pitch(tile) + col;
    return cell->row < g.rows && cell->left > 0;
}
// Its sums of one of the products.
template <int tile, int size, int products, int vec>
KFI_DEVICE void kfi_gemm_take(typename kfi_real<size>::type *values, const kfi_gemm_cell &cell,
                              int product)
{
    kfi_copy<size * vec>(values, kfi_gemm_own<tile, size>() + cell.at +
                                     product * (kfi_warp_cols(tile) / products));
}

// ---- partial sums, where blocks share the depth of a tile
template <int size, int products, int vec>
KFI_DEVICE typename kfi_real<size>::type *kfi_gemm_part(const kfi_gemm_cell &cell, kf_i64 matrix,
                                                        unsigned split, int product,
                                                        const kfi_gemm &g)
{
    const kf_i64 place = (matrix * g.splits + split) * products + product;
    return (typename kfi_real<size>::type *)g.parts + (place * g.rows + cell.row) * g.pitch +
           cell.col;
}
template <int tile, int size, int layout, int products, int vec>
KFI_DEVICE void kfi_gemm_leave(const typename kfi_real<size>::type *sums, const kfi_gemm_at &at,
                               const kfi_gemm &g)
{
#pragma unroll 1
    for (int number = 0; number < kfi_warp_rows(tile) / 16; ++number) {
        kfi_gemm_put<tile, size, layout>(sums, number);
#pragma unroll 1
        for (int turn = 0; turn < kfi_gemm_vectors<tile, products, vec>(); ++turn) {
            kfi_gemm_cell cell;
            if (!kfi_gemm_find<tile, products, vec>(&cell, number, turn, at, g)) continue;
            alignas(16) typename kfi_real<size>::type values[vec];
#pragma unroll
            for (int p = 0; p < products; ++p) {
                kfi_gemm_take<tile, size, products, vec>(values, cell, p);
                kfi_store<size * vec>(
                    kfi_gemm_part<size, products, vec>(cell, at.matrix, at.split, p, g), values);
            }
        }
        __syncwarp();
    }
}
// The kernel behind it: a thread has a vector of a row. False: there is none for this one.
template <int vec>
KFI_DEVICE bool kfi_gemm_find_joint(kfi_gemm_cell *cell, kf_i64 *matrix, const kfi_gemm &g)
{
    const kf_i64 one = (kf_i64)blockIdx.x * KFI_JOIN_THREADS + threadIdx.x,
                 row = kfi_divide(one, g.tiles); // tiles.d: vectors of a row
    cell->col = (int)(one - row * (kf_i64)g.tiles.d) * vec;
    cell->row = (int)row;
    *matrix = blockIdx.y;
    cell->left = g.cols - cell->col;
    cell->whole = g.wide && cell->left >= vec;
    cell->at = 0;
    return row < g.rows;
}
// In the order of the splits, whichever block came first.
template <int size, int products, int vec>
KFI_DEVICE void kfi_gemm_join(typename kfi_real<size>::type *values, const kfi_gemm_cell &cell,
                              kf_i64 matrix, int product, const kfi_gemm &g)
{
    alignas(16) typename kfi_real<size>::type part[vec];
    kfi_copy<size * vec>(values, kfi_gemm_part<size, products, vec>(cell, matrix, 0, product, g));
    for (unsigned split = 1; split < g.splits; ++split) {
        kfi_copy<size * vec>(part,
                             kfi_gemm_part<size, products, vec>(cell, matrix, split, product, g));
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] += part[e];
    }
}
#endif

#endif
