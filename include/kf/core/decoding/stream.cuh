// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/stream.cuh: tiles of the persistent kernel (mma.cuh), its shared memory, and
// what its warps load: slices of K and V, over chunks and items, through pages.
#ifndef KF_CORE_DECODING_STREAM_CUH
#define KF_CORE_DECODING_STREAM_CUH

#include "kf/core/decoding/items.cuh"
#include "kf/core/ptx/mma.cuh"

#define KFI_DECODE_WARPS 4
#define KFI_DECODE_THREADS (32 * KFI_DECODE_WARPS)
#define KFI_DECODE_SLICE_BYTES 4096
// Two blocks per SM: three stages where an SM has 227 KiB, else two. Host code reads the launch
// bound, which is above the threads of a block for two.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define KFI_DECODE_STAGES 2
#else
#define KFI_DECODE_STAGES 3
#endif
#define KFI_DECODE_BOUND (KFI_DECODE_STAGES == 2 ? KFI_DECODE_THREADS + 32 : KFI_DECODE_THREADS)

// Columns that warps merge at a time.
KFI_BOTH constexpr int kfi_decode_cols(int dim, int rows) { return rows == 8 ? dim : 64; }
// Bytes of shared memory: stages, sums of each warp, their references, items.
KFI_BOTH constexpr int kfi_decode_shared(int dim, int rows, int stages)
{
    return KFI_DECODE_WARPS *
           (2 * stages * KFI_DECODE_SLICE_BYTES + rows * (kfi_decode_cols(dim, rows) * 4 + 8) + 64);
}

#if defined(KFI_DEVICE_PASS) && KFI_MMA
template <int dim_, int rows_> struct kfi_decode_tile {
    static constexpr int dim = dim_, rows = rows_, halves = rows / 8, keys = 2048 / dim,
                         row_bytes = 2 * dim, stages = KFI_DECODE_STAGES,
                         cols = kfi_decode_cols(dim, rows), passes = dim / cols,
                         each = rows * cols / 4 / KFI_DECODE_THREADS;
};
// A warp's next loads. item: its number among the block's; tile, tiles: slices of the item that
// the warp has; page: lane i has the block of slice tile + i, or of key i of the slice.
struct kfi_decode_stream {
    kfi_decode_window window;
    int goal, item, tile, tiles, stage, sequence, kv_head, first, end, page, ahead;
    bool done, whole; // whole: no slice crosses a page
};
// A block's work: the chunks of an item, whose numbers shared memory keeps.
struct kfi_decode_work {
    int sequence, kv_head, tile, begin, end, chunks, keys;
};

KFI_DEVICE char *kfi_decode_stage(int warp, int stage)
{
    return kfi_dynamic() + (warp * KFI_DECODE_STAGES + stage) * 2 * KFI_DECODE_SLICE_BYTES;
}
template <class t> KFI_DEVICE float *kfi_decode_sums()
{
    return (float *)(void *)kfi_decode_stage(KFI_DECODE_WARPS, 0);
}
template <class t> KFI_DEVICE float2 *kfi_decode_references()
{
    return (float2 *)(void *)(kfi_decode_sums<t>() + KFI_DECODE_WARPS * t::rows * t::cols);
}
template <class t> KFI_DEVICE volatile int *kfi_decode_numbers(int warp, int item)
{
    return (volatile int *)(void *)(kfi_decode_references<t>() + KFI_DECODE_WARPS * t::rows) +
           warp * 16 + (item & 1) * 8;
}
// Reads an item again where it is needed: registers are scarce.
template <class t> KFI_DEVICE kfi_decode_work kfi_decode_read(int warp, int item)
{
    const volatile int *const d = kfi_decode_numbers<t>(warp, item);
    const kfi_decode_work w = {d[0], d[1], d[2], d[3], d[4], d[5], d[6]};
    return w;
}

// ---- loads

template <class t>
KFI_DEVICE void kfi_decode_fetch_pages(const kfi_decode &a, kfi_decode_stream *s, int warp,
                                       int lane)
{
    const int at = s->first + warp * t::keys,
              key = s->whole ? at + (s->tile + lane) * KFI_DECODE_WARPS * t::keys
                             : at + s->tile * KFI_DECODE_WARPS * t::keys + lane % t::keys;
    s->page = key < s->end || !a.table
                  ? kfi_decode_block(a, s->sequence, a.table ? kfi_decode_page(a, key) : 0)
                  : 0;
}
// Finds the next slice that the warp loads, at most one item ahead of `item`, which is being
// computed. Returns false if there is none.
template <class t>
KFI_DEVICE bool kfi_decode_prepare(const kfi_decode &a, kfi_decode_stream *s, int item, int warp,
                                   int lane)
{
    while (s->tile >= s->tiles && !s->done && s->item <= item) {
        kfi_decode_item x;
        if (!kfi_decode_locate(a, &s->window, s->goal, lane,
                               (int)(blockIdx.x + (unsigned)(s->item + 1) * gridDim.x), &x)) {
            s->done = true;
            break;
        }
        ++s->item;
        const int keys = kfi_decode_keys(a, x.sequence);
        volatile int *const d = kfi_decode_numbers<t>(warp, s->item);
        __syncwarp();
        if (lane == 0) {
            d[0] = x.sequence, d[1] = x.kv_head, d[2] = x.tile, d[3] = x.begin, d[4] = x.end;
            d[5] = x.chunks, d[6] = kfi_max_i32(keys, 0);
        }
        __syncwarp();
        const kfi_decode_range r = kfi_decode_range_in(a, keys);
        s->sequence = x.sequence, s->kv_head = x.kv_head;
        s->first = (r.begin + x.begin) * r.chunk;
        s->end = kfi_min_i32(r.end, (r.begin + x.end) * r.chunk);
        s->tile = 0;
        s->tiles = kfi_max_i32(
            0, ((s->end - s->first + t::keys - 1) / t::keys - warp + KFI_DECODE_WARPS - 1) /
                   KFI_DECODE_WARPS);
        if (s->tiles) kfi_decode_fetch_pages<t>(a, s, warp, lane);
    }
    return s->tile < s->tiles;
}
// Loads the slice of K or V. fill: two elements of a row without memory.
template <class t>
KFI_DEVICE void kfi_decode_load(const kfi_decode &a, const kfi_decode_stream *s, const void *p,
                                const kfi_decoding_strides &strides, int dim, char *to,
                                unsigned fill)
{
    constexpr int chunks = t::row_bytes / 16, rows = 32 / chunks, count = t::keys / rows;
    unsigned thread = threadIdx.x;
    kfi_opaque(thread); // addresses that follow from it would stay in registers
    const int lane = (int)thread % 32, warp = (int)thread / 32, chunk = lane % chunks,
              row = lane / chunks, key = s->first + (s->tile * KFI_DECODE_WARPS + warp) * t::keys,
              valid = 8 * chunk < dim ? s->end - key : 0;
    const uint4 filled = {fill, fill, fill, fill};
    const char *from = (const char *)p + (s->kv_head * strides.head + chunk * 8) * 2;
    to += row * t::row_bytes;
    if (s->whole) {
        const int page = __shfl_sync(KFI_ALL_LANES, s->page, s->tile & 31),
                  slot = (a.table ? key - kfi_decode_page(a, key) * a.page_size : key) + row;
        from += (page * strides.batch + slot * strides.row) * 2;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            char *const at = to + i * 512 + ((chunk ^ ((row + rows * i) & 7)) << 4);
            if (page < 0)
                *(uint4 *)(void *)at = filled;
            else
                kfi_cp_async<16>(at, from, row + rows * i < valid ? 16 : 0);
            from += rows * 2 * strides.row;
        }
    } else {
        const int own = key + lane % t::keys,
                  own_slot = own - kfi_decode_page(a, own) * a.page_size;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int r = row + rows * i, page = __shfl_sync(KFI_ALL_LANES, s->page, r),
                      slot = __shfl_sync(KFI_ALL_LANES, own_slot, r);
            char *const at = to + i * 512 + ((chunk ^ (r & 7)) << 4);
            if (page < 0)
                *(uint4 *)(void *)at = filled;
            else
                kfi_cp_async<16>(at, from + (page * strides.batch + slot * strides.row) * 2,
                                 r < valid ? 16 : 0);
        }
    }
}
template <class t> KFI_DEVICE void kfi_decode_load_k(const kfi_decode &a, kfi_decode_stream *s)
{
    kfi_decode_load<t>(a, s, a.k, a.k_strides, a.dim,
                       kfi_decode_stage((int)threadIdx.x / 32, s->stage), 0x7fff7fffu);
}
template <class t>
KFI_DEVICE void kfi_decode_load_v(const kfi_decode &a, kfi_decode_stream *s, int warp, int lane)
{
    kfi_decode_load<t>(a, s, a.v, a.v_strides, a.dim_v,
                       kfi_decode_stage((int)threadIdx.x / 32, s->stage) + KFI_DECODE_SLICE_BYTES,
                       0);
    ++s->tile, ++s->ahead;
    s->stage = s->stage + 1 == t::stages ? 0 : s->stage + 1;
    if (s->tile < s->tiles && a.table && (!s->whole || (s->tile & 31) == 0))
        kfi_decode_fetch_pages<t>(a, s, warp, lane);
}
// Fills the stages. Groups are committed without loads, too: waits count them.
template <class t>
KFI_DEVICE void kfi_decode_refill(const kfi_decode &a, kfi_decode_stream *s, int item, int warp,
                                  int lane)
{
    for (int i = s->ahead; i < t::stages; ++i) {
        const bool more = kfi_decode_prepare<t>(a, s, item, warp, lane);
        if (more) kfi_decode_load_k<t>(a, s);
        kfi_fetch_commit();
        if (more) kfi_decode_load_v<t>(a, s, warp, lane);
        kfi_fetch_commit();
    }
}
#endif

#endif
