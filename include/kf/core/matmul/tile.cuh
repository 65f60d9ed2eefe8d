// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/tile.cuh: tiles, work distribution and split-K of the CUDA matrix products.
//
// A block computes one tile of the result (persistent kernels: one after the other). Each warp
// keeps its part of the accumulators in registers until K ends. The portable kernels then store 16
// rows at a time to the warp's own shared memory. Each lane loads vectors of a row from there and
// runs the op's epilogue.
// Grid: one block per tile, matrix and split; tiles are rastered down 8 rows, then across.
// Split-K: blocks store partial tiles to the workspace, and a second kernel reduces them in the
// order of the splits. Results depend on sizes and alignment alone.
#ifndef KF_CORE_MATMUL_TILE_CUH
#define KF_CORE_MATMUL_TILE_CUH

#include "kf/core/kernel.cuh"
#include "kf/core/ptx/mma.cuh"

// Tiles, named by instruction, rows x columns, and schedule.
#define KFI_TILE_MMA_128x128 0
#define KFI_TILE_MMA_64x64 1
#define KFI_TILE_SIMT_128x128 2
#define KFI_TILE_SIMT_64x64 3
#define KFI_TILE_WGMMA_128x128_PINGPONG 4 // hopper.cuh
#define KFI_TILE_WGMMA_SKINNY 5           // skinny.cuh
#define KFI_TILE_WGMMA_3XTF32 6           // tf32.cuh
#define KFI_TILE_WGMMA_TF32 7             // hopper.cuh, layout nt
#define KFI_TILE_WGMMA_128x192_PINGPONG 8 // hopper.cuh, as the next ones
#define KFI_TILE_WGMMA_128x256_COOPERATIVE 9
#define KFI_TILE_WGMMA_128x128_COOPERATIVE 10
#define KFI_TILE_WGMMA_128x96_COOPERATIVE 11
#define KFI_TILE_SKINNY_F32 12 // skinny_f32.cuh

struct kfi_tile_policy {
    int rows, cols;               // tile size
    int warps_down, warps_across; // grid of warps over which the accumulators are split
    int threads, min_blocks;      // launch bounds: block size, blocks per SM
    int stage_k, stages;          // elements of K per pipeline stage; stages (0: chosen at launch)
    bool mma;                     // mma.sync
    bool cooperative; // wgmma: both consumer warpgroups share a tile (else: alternate tiles)
    int producer_registers, consumer_registers; // setmaxnreg; 0: as launched
    // Epilogue through shared memory: columns of a warp's slab, values that a lane converts at a
    // time (half a slab where registers are short), slabs in flight.
    int slab_cols, slab_part, slab_buffers;
};
KFI_BOTH constexpr kfi_tile_policy kfi_policy(int tile)
{
    // clang-format off
    constexpr kfi_tile_policy policies[] = {
        // rows, cols, warps down, across, threads, blocks, K, stages, mma, cooperative,
        // producer and consumer registers, slab cols, part, buffers
        {128, 128, 2, 2, 128, 2, 32, 4, true,  false,  0,   0,  0,  0, 0}, // MMA_128x128
        { 64,  64, 2, 2, 128, 2, 32, 4, true,  false,  0,   0,  0,  0, 0}, // MMA_64x64
        {128, 128, 4, 2, 256, 2, 16, 3, false, false,  0,   0,  0,  0, 0}, // SIMT_128x128
        { 64,  64, 2, 2, 128, 3, 16, 3, false, false,  0,   0,  0,  0, 0}, // SIMT_64x64
        {128, 128, 4, 1, 384, 1, 64, 5, false, false, 24, 240, 64, 32, 4}, // 128x128_PINGPONG
        { 64,  64, 4, 1, 160, 3, 64, 0, false, false,  0,   0,  0,  0, 0}, // SKINNY
        {128, 128, 8, 1, 512, 1, 32, 4, false, true,  24, 208,  0,  0, 0}, // 3XTF32
        {128, 128, 4, 1, 384, 1, 32, 5, false, false, 24, 240, 64,  0, 0}, // TF32
        {128, 192, 4, 1, 384, 1, 64, 4, false, false, 24, 240, 64, 16, 4}, // 128x192_PINGPONG
        {128, 256, 8, 1, 384, 1, 64, 4, false, true,  40, 232, 64, 32, 2}, // 128x256_COOPERATIVE
        {128, 128, 8, 1, 384, 1, 64, 6, false, true,   0,   0, 64, 32, 2}, // 128x128_COOPERATIVE
        {128,  96, 8, 1, 384, 1, 64, 6, false, true,   0,   0, 32, 16, 2}, // 128x96_COOPERATIVE
        { 64,  64, 8, 1, 384, 1, 32, 0, true,  true,  40, 232,  0,  0, 0}, // SKINNY_F32
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
KFI_BOTH constexpr int kfi_tile_accumulators(int tile)
{
    return kfi_warp_rows(tile) * kfi_warp_cols(tile) / 32;
}

// Bytes of an element, and of an accumulator.
KFI_BOTH constexpr int kfi_of_bytes(int type)
{
    return type == KFI_OF_F64 ? 8 : type == KFI_OF_F32 || type == KFI_OF_TF32 ? 4 : 2;
}
KFI_BOTH constexpr int kfi_of_real(int type) { return type == KFI_OF_F64 ? 8 : 4; }

// Layout bits. Without them A is [rows, K] and B is [cols, K] (nt).
#define KFI_A_TRANSPOSED 1 // [K, rows]
#define KFI_B_TRANSPOSED 2 // [K, cols]

// How operands reach shared memory: cp.async of 16 bytes (requires 16-byte rows and pitches), or
// loads to registers that accept any alignment.
#define KFI_CP_ASYNC 0
#define KFI_VIA_REGISTERS 1

struct kfi_gemm {
    int rows, cols, depth;
    unsigned row_tiles, col_tiles;
    kfi_divisor tiles;    // per matrix
    unsigned splits;      // splits of K: blocks that share a tile
    unsigned whole_tiles; // leading tiles that are not split (one matrix); 0: splits holds for all
    int slice;            // elements of K per split, a multiple of a stage
    int wide;             // the epilogue's tensors and their rows begin at multiples of a vector
    kf_i64 pitch;         // pitch of partial sums: cols, rounded up to a multiple of 8
    // Partial sums [matrix][split][product][rows][pitch]; with whole_tiles [split][split tile].
    void *parts;
};

// An operand. Two products share A and have a B each.
struct kfi_gemm_matrix {
    const void *p[2];
    kf_i64 ld[2]; // elements between rows as stored
};

// The work of a block.
struct kfi_gemm_tile {
    int row, col;   // tile origin; col counts the columns of one product
    int begin, end; // range of K
    unsigned split;
    kf_i64 matrix;
    bool partial;           // other blocks share the tile
    unsigned partial_index; // with whole_tiles: index of its partial tile
};

// Coordinates of a vector of results, which is part of one row.
struct kfi_gemm_coord {
    int row, col, left; // left: columns from col on
    bool whole;         // loads and stores may use whole vectors
    int at;             // offset of its accumulators in the warp's shared memory
};

#define KFI_REDUCE_SPLITS_THREADS 256 // block size of the kernel that reduces partial tiles
#define KFI_PARTIAL_TILE 128          // rows and columns of a partial tile, with whole_tiles

KFI_BOTH constexpr int kfi_fragment_pitch(int tile) { return kfi_warp_cols(tile) + 8; }

#ifdef KFI_DEVICE_PASS

// The accumulator type of `size` bytes.
template <int size> struct kfi_real;
template <> struct kfi_real<4> {
    typedef float type;
};
template <> struct kfi_real<8> {
    typedef double type;
};

// Rasterises tiles down 8 rows, then across, so that concurrent blocks share rows and columns in
// L2.
#define KFI_RASTER_ROWS 8
template <int tile, int products>
KFI_DEVICE kfi_gemm_tile kfi_gemm_locate(const kfi_gemm &g, unsigned block = blockIdx.x)
{
    kfi_gemm_tile at;
    unsigned turn = (unsigned)kfi_divide(block, g.tiles), own = block - turn * (unsigned)g.tiles.d,
             splits = g.splits;
    at.partial_index = 0;
    if (g.whole_tiles) { // split tiles come last, ordered by split
        const unsigned shared = (unsigned)g.tiles.d - g.whole_tiles;
        splits = block < g.whole_tiles ? 1 : g.splits;
        at.partial_index = block < g.whole_tiles ? 0 : block - g.whole_tiles;
        turn = at.partial_index / shared;
        own = block < g.whole_tiles ? block : g.whole_tiles + at.partial_index - turn * shared;
    }
    at.partial = splits > 1;
    const unsigned band = own / (KFI_RASTER_ROWS * g.col_tiles), first = band * KFI_RASTER_ROWS;
    const unsigned down =
        g.row_tiles - first < KFI_RASTER_ROWS ? g.row_tiles - first : KFI_RASTER_ROWS;
    const unsigned in_band = own - first * g.col_tiles, across = in_band / down;
    at.row = (int)(first + in_band - across * down) * kfi_policy(tile).rows;
    at.col = (int)across * (kfi_policy(tile).cols / products);
    at.matrix = splits > 1 ? turn / splits : turn;
    at.split = turn - (unsigned)at.matrix * splits;
    at.begin = (int)at.split * g.slice; // K > 0 where there are splits
    at.end = at.split + 1 == splits ? g.depth : at.begin + g.slice;
    return at;
}

// Row and column in the warp's part of accumulator i or j of a SIMT thread. `beside`: elements per
// 16 bytes where the operand is transposed (a lane owns that many neighbours), else 1.
template <int beside> KFI_DEVICE int kfi_lane_row(int i)
{
    return i / beside * (4 * beside) + (int)(threadIdx.x % 32 / 8) * beside + i % beside;
}
template <int beside> KFI_DEVICE int kfi_lane_col(int j)
{
    return j / beside * (8 * beside) + (int)(threadIdx.x % 8) * beside + j % beside;
}

// Shared memory of this warp's fragment. It overlaps the pipeline stages.
template <int tile, int size> KFI_DEVICE typename kfi_real<size>::type *kfi_gemm_warp_shared()
{
    return (typename kfi_real<size>::type *)kfi_dynamic() +
           threadIdx.x / 32 * (16 * kfi_fragment_pitch(tile));
}

// Stores 16 rows of the warp's accumulators, group `number`, to its shared memory. Called by all
// lanes, which may read afterwards and must __syncwarp before the next call.
template <int tile, int size, int layout>
KFI_DEVICE void kfi_gemm_store_fragment(const typename kfi_real<size>::type *sums, int number)
{
    constexpr int pitch = kfi_fragment_pitch(tile), rows = kfi_warp_rows(tile) / 16,
                  lane_cols = kfi_warp_cols(tile) / 8;
    typename kfi_real<size>::type *const to = kfi_gemm_warp_shared<tile, size>();
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
// Vectors per lane of 16 rows.
template <int tile, int products, int vec> KFI_DEVICE constexpr int kfi_gemm_vectors()
{
    return 16 * kfi_warp_cols(tile) / products / vec / 32;
}
// Finds vector `turn` of a lane in row group `number`. Returns false if it is out of range.
template <int tile, int products, int vec>
KFI_DEVICE bool kfi_gemm_lookup(kfi_gemm_coord *coord, int number, int turn,
                                const kfi_gemm_tile &at, const kfi_gemm &g)
{
    constexpr int wide = kfi_warp_cols(tile) / products, in_row = wide / vec;
    static_assert(kfi_gemm_vectors<tile, products, vec>() > 0,
                  "kf: 16 rows of a warp have a vector for each lane");
    const int warp = (int)threadIdx.x / 32, one = turn * 32 + (int)threadIdx.x % 32;
    const int row = one / in_row, col = one % in_row * vec;
    coord->row =
        at.row + warp / kfi_policy(tile).warps_across * kfi_warp_rows(tile) + number * 16 + row;
    coord->col = at.col + warp % kfi_policy(tile).warps_across * wide + col;
    coord->left = g.cols - coord->col;
    coord->whole = g.wide && coord->left >= vec;
    coord->at = row * kfi_fragment_pitch(tile) + col;
    return coord->row < g.rows && coord->left > 0;
}
// Loads the vector's accumulators of one product.
template <int tile, int size, int products, int vec>
KFI_DEVICE void kfi_gemm_load_fragment(typename kfi_real<size>::type *values,
                                       const kfi_gemm_coord &coord, int product)
{
    kfi_copy<size * vec>(values, kfi_gemm_warp_shared<tile, size>() + coord.at +
                                     product * (kfi_warp_cols(tile) / products));
}

// ---- split-K
template <int size, int products, int vec>
KFI_DEVICE typename kfi_real<size>::type *kfi_gemm_partial_address(const kfi_gemm_coord &coord,
                                                                   kf_i64 matrix, unsigned split,
                                                                   int product, const kfi_gemm &g)
{
    const kf_i64 place = (matrix * g.splits + split) * products + product;
    return (typename kfi_real<size>::type *)g.parts + (place * g.rows + coord.row) * g.pitch +
           coord.col;
}
template <int tile, int size, int layout, int products, int vec>
KFI_DEVICE void kfi_gemm_store_partial(const typename kfi_real<size>::type *sums,
                                       const kfi_gemm_tile &at, const kfi_gemm &g)
{
#pragma unroll 1
    for (int number = 0; number < kfi_warp_rows(tile) / 16; ++number) {
        kfi_gemm_store_fragment<tile, size, layout>(sums, number);
#pragma unroll 1
        for (int turn = 0; turn < kfi_gemm_vectors<tile, products, vec>(); ++turn) {
            kfi_gemm_coord coord;
            if (!kfi_gemm_lookup<tile, products, vec>(&coord, number, turn, at, g)) continue;
            alignas(16) typename kfi_real<size>::type values[vec];
#pragma unroll
            for (int p = 0; p < products; ++p) {
                kfi_gemm_load_fragment<tile, size, products, vec>(values, coord, p);
                kfi_store<size * vec>(
                    kfi_gemm_partial_address<size, products, vec>(coord, at.matrix, at.split, p, g),
                    values);
            }
        }
        __syncwarp();
    }
}
// Finds the vector that a thread of the reduction kernel reduces; false if there is none.
template <int vec>
KFI_DEVICE bool kfi_gemm_lookup_reduced(kfi_gemm_coord *coord, kf_i64 *matrix, const kfi_gemm &g)
{
    const kf_i64 one = (kf_i64)blockIdx.x * KFI_REDUCE_SPLITS_THREADS + threadIdx.x,
                 row = kfi_divide(one, g.tiles); // tiles.d: vectors of a row
    coord->col = (int)(one - row * (kf_i64)g.tiles.d) * vec;
    coord->row = (int)row;
    *matrix = blockIdx.y;
    coord->left = g.cols - coord->col;
    coord->whole = g.wide && coord->left >= vec;
    coord->at = 0;
    return row < g.rows;
}
// Sums the partial results of a vector in the order of the splits.
template <int size, int products, int vec>
KFI_DEVICE void kfi_gemm_reduce_partials(typename kfi_real<size>::type *values,
                                         const kfi_gemm_coord &coord, kf_i64 matrix, int product,
                                         const kfi_gemm &g)
{
    alignas(16) typename kfi_real<size>::type part[vec];
    kfi_copy<size * vec>(
        values, kfi_gemm_partial_address<size, products, vec>(coord, matrix, 0, product, g));
    for (unsigned split = 1; split < g.splits; ++split) {
        kfi_copy<size * vec>(
            part, kfi_gemm_partial_address<size, products, vec>(coord, matrix, split, product, g));
#pragma unroll
        for (int e = 0; e < vec; ++e) values[e] += part[e];
    }
}
#endif

#endif
