// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/load.cuh: loads a pipeline stage of an operand to shared memory, for the mma.sync
// and SIMT mainloops: by cp.async of 16 bytes, or through registers from any address.
//
// A stage holds `lines` rows as stored: 4 chunks of 8 elements each (32 of K), or, if the operand
// is transposed, the tile's width. Chunks are swizzled so that the 8 rows of an ldmatrix read 8
// different groups of banks.
#ifndef KF_CORE_MATMUL_LOAD_CUH
#define KF_CORE_MATMUL_LOAD_CUH

#include "kf/core/matmul/tile.cuh"

#ifdef KFI_DEVICE_PASS

// Swizzled index of a chunk in its stage.
template <int chunks> KFI_DEVICE int kfi_chunk_at(int line, int chunk)
{
    return line * chunks + (chunks >= 8 ? chunk ^ (line & 7) : chunk ^ (line >> 1 & 3));
}

// Interleaves the columns of two products in a stage, `share` at a time, so that a warp has the
// same columns of both. Returns the position of number n of one product.
template <int products, int share> KFI_DEVICE int kfi_interleave(int n, int product)
{
    return products > 1 ? n / share * (share * products) + product * share + n % share : n;
}

// Cursor of a thread in global memory: per stage it loads one chunk of every
// kfi_cursor_lines()-th row.
struct kfi_gemm_cursor {
    const char *p;      // its first chunk of the next stage
    kf_i64 next, apart; // bytes to the following stage, and to its next row
    int lines, left;    // remaining rows, and elements of a row
};
template <int tile, int chunks> KFI_DEVICE constexpr int kfi_cursor_lines()
{
    return kfi_policy(tile).threads / chunks;
}
template <int size, int per, int tile, int chunks, int transposed>
KFI_DEVICE kfi_gemm_cursor kfi_gemm_cursor_init(const void *p, kf_i64 ld, int first, int outer_end,
                                                int begin, int end)
{
    const int line = (int)threadIdx.x / chunks, chunk = (int)threadIdx.x % chunks * per;
    const int outer = first + (transposed ? chunk : line),
              depth = begin + (transposed ? line : chunk);
    kfi_gemm_cursor cursor;
    cursor.p = (const char *)p +
               (transposed ? (kf_i64)depth * ld + outer : (kf_i64)outer * ld + depth) * size;
    cursor.next = (transposed ? kfi_policy(tile).stage_k * ld : kfi_policy(tile).stage_k) * size;
    cursor.apart = kfi_cursor_lines<tile, chunks>() * ld * size;
    cursor.lines = transposed ? end - depth : outer_end - outer;
    cursor.left = transposed ? outer_end - outer : end - depth;
    return cursor;
}
template <int tile, int transposed> KFI_DEVICE void kfi_gemm_cursor_advance(kfi_gemm_cursor &cursor)
{
    cursor.p += cursor.next;
    if (transposed)
        cursor.lines -= kfi_policy(tile).stage_k;
    else
        cursor.left -= kfi_policy(tile).stage_k;
}
// In-range elements of the thread's chunk of its i-th row.
template <int tile, int chunks, int per>
KFI_DEVICE int kfi_cursor_left(const kfi_gemm_cursor &cursor, int i)
{
    return cursor.lines <= i * kfi_cursor_lines<tile, chunks>() || cursor.left <= 0 ? 0
           : cursor.left < per                                                      ? cursor.left
                                                                                    : per;
}

// ---- by cp.async. lines and chunks: of one product.
template <int tile, int lines, int chunks, int products, int share, int transposed>
KFI_DEVICE void kfi_stage_cp_async(char *stage, const kfi_gemm_cursor &cursor, int product)
{
    constexpr int all = transposed ? chunks * products : chunks; // per row of the stage
#pragma unroll
    for (int i = 0; i < lines / kfi_cursor_lines<tile, chunks>(); ++i) {
        const int l = (int)threadIdx.x / chunks + i * kfi_cursor_lines<tile, chunks>(),
                  chunk = (int)threadIdx.x % chunks;
        const int at =
            transposed ? kfi_chunk_at<all>(l, kfi_interleave<products, share / 8>(chunk, product))
                       : kfi_chunk_at<all>(kfi_interleave<products, share>(l, product), chunk);
        kfi_cp_async<16>(stage + 16 * at, cursor.p + i * cursor.apart,
                         2 * kfi_cursor_left<tile, chunks, 8>(cursor, i));
    }
}

// ---- through registers, from any address: two aligned 16-byte loads cover the 8 elements. Where
// they would leave the matrix, single elements are loaded.
struct kfi_gemm_span {
    const char *begin, *end; // bounds of a matrix
};
KFI_DEVICE kfi_gemm_span kfi_gemm_span_of(const void *p, kf_i64 ld, int lines, int length)
{
    const kfi_gemm_span span = {(const char *)p,
                                (const char *)p + ((kf_i64)(lines - 1) * ld + length) * 2};
    return span;
}
KFI_DEVICE bool kfi_chunk_inside(const char *p, const kfi_gemm_span &span)
{
    const unsigned off = (unsigned)(unsigned long long)p & 15u;
    return p - off >= span.begin && p - off + (off ? 32 : 16) <= span.end;
}
// An aligned chunk that ends its row is loaded by single elements, too: the padding behind it may
// be uninitialised.
KFI_DEVICE void kfi_chunk_load(unsigned *w, const char *p, int left, const kfi_gemm_span &span)
{
    const unsigned off = (unsigned)(unsigned long long)p & 15u;
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = 0;
    if (left == 0) return;
    if (kfi_chunk_inside(p, span) && (off || left == 8)) {
        kfi_copy<16>(w, p - off);
        if (off) kfi_copy<16>(w + 4, p - off + 16);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (e < left) w[e / 2] |= (unsigned)((const unsigned short *)p)[e] << e % 2 * 16;
    }
}
// Shifts the 8 elements to the front and zeroes those past the end.
KFI_DEVICE void kfi_chunk_align(unsigned *w, const char *p, int left, const kfi_gemm_span &span)
{
    if (kfi_chunk_inside(p, span)) {
        const unsigned off = (unsigned)(unsigned long long)p & 15u;
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = off & 8u ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = off & 4u ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], off & 2u ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int own = left - 2 * i;
        w[i] = own >= 2 ? w[i] : own == 1 ? w[i] & 0xffffu : 0;
    }
}

template <int tile, int lines, int chunks>
KFI_DEVICE void kfi_stage_load(unsigned (*w)[8], const kfi_gemm_cursor &cursor,
                               const kfi_gemm_span &span)
{
#pragma unroll
    for (int i = 0; i < lines / kfi_cursor_lines<tile, chunks>(); ++i)
        kfi_chunk_load(w[i], cursor.p + i * cursor.apart,
                       kfi_cursor_left<tile, chunks, 8>(cursor, i), span);
}
template <int tile, int lines, int chunks, int products, int share, int transposed>
KFI_DEVICE void kfi_stage_write(char *stage, unsigned (*w)[8], const kfi_gemm_cursor &cursor,
                                const kfi_gemm_span &span, int product)
{
    constexpr int all = transposed ? chunks * products : chunks;
#pragma unroll
    for (int i = 0; i < lines / kfi_cursor_lines<tile, chunks>(); ++i) {
        const int l = (int)threadIdx.x / chunks + i * kfi_cursor_lines<tile, chunks>(),
                  chunk = (int)threadIdx.x % chunks;
        const int at =
            transposed ? kfi_chunk_at<all>(l, kfi_interleave<products, share / 8>(chunk, product))
                       : kfi_chunk_at<all>(kfi_interleave<products, share>(l, product), chunk);
        kfi_chunk_align(w[i], cursor.p + i * cursor.apart,
                        kfi_cursor_left<tile, chunks, 8>(cursor, i), span);
        kfi_copy<16>(stage + 16 * at, w[i]);
    }
}
#endif

#endif
