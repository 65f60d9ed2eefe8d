// SPDX-License-Identifier: Apache-2.0
// kf/runtime/move_cuda.cuh: copies strided elements on a GPU. Part of kf/runtime/device_cuda.cuh.
// kfk_rt_rows: both sides iterate in one order; 256 threads per CTA, and a CTA copies several short
// rows or a part of a long one.
// kfk_rt_transpose: the sides are transposed; a CTA of 256 threads transposes one tile in shared
// memory.
#ifndef KF_RUNTIME_MOVE_CUDA_CUH
#define KF_RUNTIME_MOVE_CUDA_CUH

#ifdef KFI_RT_KERNELS
#include "kf/core/kernel.cuh"

#define KFI_RT_MOVE_THREADS 256
#define KFI_RT_MOVE_AT_ONCE 4 // units of short rows that a thread loads before it stores

#define KFI_RT_MOVE_KERNELS                                                                        \
    KFI_ADDRESS(kfk_rt_rows<1>), KFI_ADDRESS(kfk_rt_rows<2>), KFI_ADDRESS(kfk_rt_rows<4>),         \
        KFI_ADDRESS(kfk_rt_rows<8>), KFI_ADDRESS(kfk_rt_rows<16>),                                 \
        KFI_ADDRESS(kfk_rt_transpose<1>), KFI_ADDRESS(kfk_rt_transpose<2>),                        \
        KFI_ADDRESS(kfk_rt_transpose<4>), KFI_ADDRESS(kfk_rt_transpose<8>)

template <int width> struct kfi_rt_unit;
template <> struct kfi_rt_unit<1> {
    typedef unsigned char type;
};
template <> struct kfi_rt_unit<2> {
    typedef unsigned short type;
};
template <> struct kfi_rt_unit<4> {
    typedef unsigned type;
};
template <> struct kfi_rt_unit<8> {
    typedef unsigned long long type;
};
template <> struct kfi_rt_unit<16> {
    typedef uint4 type;
};

// Units per thread, and elements per side of a tile: at least 32 bytes in flight per thread, and at
// least a sector per warp access.
#define KFI_RT_UNITS(width) ((width) >= 8 ? 4 : (width) == 4 ? 8 : 16)
#define KFI_RT_SIDE(width) ((width) < 4 ? 64 : 32)

// Outer dimensions, innermost first: index % size is the position along the first.
struct kfi_rt_outer {
    int count;
    kfi_divisor size[KF_MAX_DIMS];
    kf_i64 to[KF_MAX_DIMS], from[KF_MAX_DIMS];
};
#ifdef KFI_DEVICE_PASS
KFI_DEVICE void kfi_rt_offsets(const kfi_rt_outer &o, kf_i64 index, kf_i64 *to, kf_i64 *from)
{
    for (int i = 0; i < o.count; ++i) {
        const kf_i64 rest = kfi_divide(index, o.size[i]), at = index - rest * (kf_i64)o.size[i].d;
        *to += at * o.to[i];
        *from += at * o.from[i];
        index = rest;
    }
}
#endif

// Rows that both sides visit in one order. A unit has `width` bytes: one element, or several that
// are contiguous on both sides. A CTA copies 1 << log units of each of several rows, or, if
// is_long, units of one row.
struct kfi_rt_rows {
    kfi_rt_outer outer;
    kfi_divisor chunks; // CTAs per row
    kf_i64 rows, cols, to, from;
    int log, is_long;
};
#ifdef KFI_DEVICE_PASS
template <int width>
KFI_DEVICE void kfi_rt_move_long(char *to, const char *from, const kfi_rt_rows &r, kf_i64 row,
                                 kf_i64 first)
{
    typedef typename kfi_rt_unit<width>::type unit_type;
    constexpr int each = KFI_RT_UNITS(width);
    unit_type unit[each];
    kf_i64 to_at = first * r.to, from_at = first * r.from;
    kfi_rt_offsets(r.outer, row, &to_at, &from_at);
    to += to_at * width;
    from += from_at * width;
    const kf_i64 left = r.cols - first, to_step = r.to * (KFI_RT_MOVE_THREADS * width),
                 from_step = r.from * (KFI_RT_MOVE_THREADS * width);
#pragma unroll
    for (int k = 0; k < each; ++k)
        if (k * KFI_RT_MOVE_THREADS < left) unit[k] = *(const unit_type *)(from + k * from_step);
#pragma unroll
    for (int k = 0; k < each; ++k)
        if (k * KFI_RT_MOVE_THREADS < left) *(unit_type *)(to + k * to_step) = unit[k];
}
// Copies KFI_RT_MOVE_AT_ONCE units of a rectangle of rows, from unit `first` on, a block size
// apart.
template <int width>
KFI_DEVICE void kfi_rt_move_short(char *to, const char *from, const kfi_rt_rows &r, kf_i64 row0,
                                  kf_i64 col0, int first)
{
    typedef typename kfi_rt_unit<width>::type unit_type;
    unit_type unit[KFI_RT_MOVE_AT_ONCE];
    char *target[KFI_RT_MOVE_AT_ONCE];
#pragma unroll
    for (int k = 0; k < KFI_RT_MOVE_AT_ONCE; ++k) {
        const int u = first + k * KFI_RT_MOVE_THREADS;
        const kf_i64 col = col0 + (u & ((1 << r.log) - 1)), row = row0 + (u >> r.log);
        kf_i64 to_at = col * r.to, from_at = col * r.from;
        target[k] = nullptr;
        if (row < r.rows && col < r.cols) {
            kfi_rt_offsets(r.outer, row, &to_at, &from_at);
            target[k] = to + to_at * width;
            unit[k] = *(const unit_type *)(from + from_at * width);
        }
    }
#pragma unroll
    for (int k = 0; k < KFI_RT_MOVE_AT_ONCE; ++k)
        if (target[k]) *(unit_type *)target[k] = unit[k];
}
#endif
template <int width>
KFI_KERNEL void KFI_BOUNDS(KFI_RT_MOVE_THREADS)
    kfk_rt_rows(char *to, const char *from, const kfi_rt_rows r)
{
#ifdef KFI_DEVICE_PASS
    constexpr int each = KFI_RT_UNITS(width), units = each * KFI_RT_MOVE_THREADS;
    const kf_i64 group = kfi_divide(blockIdx.x, r.chunks),
                 chunk = blockIdx.x - group * (kf_i64)r.chunks.d;
    if (r.is_long) {
        kfi_rt_move_long<width>(to, from, r, group, chunk * units + threadIdx.x);
        return;
    }
    for (int k = 0; k < each; k += KFI_RT_MOVE_AT_ONCE)
        kfi_rt_move_short<width>(to, from, r, group * (units >> r.log), chunk << r.log,
                                 (int)threadIdx.x + k * KFI_RT_MOVE_THREADS);
#endif
}

// Transposed planes: one side is innermost along `cols`, the other along `rows`.
struct kfi_rt_planes {
    kfi_rt_outer outer;
    kfi_divisor across, down; // tiles along cols and rows
    kf_i64 rows, cols, to_row, to_col, from_row, from_col;
};
// Transposes a tile through shared memory: a warp reads along rows and writes along cols. A row of
// the tile has an odd number of 4-byte (or 8-byte) words, which avoids bank conflicts.
template <int width>
KFI_KERNEL void KFI_BOUNDS(KFI_RT_MOVE_THREADS)
    kfk_rt_transpose(char *to, const char *from, const kfi_rt_planes p)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_rt_unit<width>::type unit_type;
    constexpr int side = KFI_RT_SIDE(width), step = KFI_RT_MOVE_THREADS / side, each = side / step;
    __shared__ unit_type tile[side][side + (width < 4 ? 4 / width : 1)];
    const kf_i64 above = kfi_divide(blockIdx.x, p.across),
                 col0 = (blockIdx.x - above * (kf_i64)p.across.d) * side;
    const kf_i64 plane = kfi_divide(above, p.down),
                 row0 = (above - plane * (kf_i64)p.down.d) * side;
    const int lane = (int)threadIdx.x % side, first = (int)threadIdx.x / side;
    kf_i64 to_at = 0, from_at = 0;
    kfi_rt_offsets(p.outer, plane, &to_at, &from_at);
    from += (from_at + (row0 + lane) * p.from_row + (col0 + first) * p.from_col) * width;
    to += (to_at + (row0 + first) * p.to_row + (col0 + lane) * p.to_col) * width;
    const kf_i64 from_step = p.from_col * (step * width), to_step = p.to_row * (step * width);
    unit_type unit[each];
#pragma unroll
    for (int k = 0; k < each; ++k)
        if (row0 + lane < p.rows && col0 + first + k * step < p.cols)
            unit[k] = *(const unit_type *)(from + k * from_step);
#pragma unroll
    for (int k = 0; k < each; ++k)
        if (row0 + lane < p.rows && col0 + first + k * step < p.cols)
            tile[lane][first + k * step] = unit[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < each; ++k)
        if (row0 + first + k * step < p.rows && col0 + lane < p.cols)
            *(unit_type *)(to + k * to_step) = tile[first + k * step][lane];
#endif
}

// ---- host

#ifdef KFI_LAUNCHER_NAMES
static kf_result_t kfi_rt_cuda_move(const char *, const kf_context_t *, char *, const char *,
                                    const kfi_rt_pair *, size_t, const kf_stream_t *)
{
    const void *const kernels[] = {KFI_RT_MOVE_KERNELS};
    return (void)kernels, KF_SUCCESS;
}
#else
static const kfi_name kfi_rt_move_name = {"kf_tensor_copy", "none"};

// Fills the outer dimensions: all but the dimensions `but` and `but_too`. Returns the number of
// their indices.
static kf_i64 kfi_rt_outer_of(const kfi_rt_pair *p, int but, int but_too, kfi_rt_outer *o)
{
    kf_i64 count = 1;
    o->count = 0;
    for (int i = p->ndim - 1; i >= 0; --i) {
        if (i == but || i == but_too) continue;
        o->size[o->count] = kfi_make_divisor(p->size[i]);
        o->to[o->count] = p->to[i], o->from[o->count] = p->from[i];
        ++o->count;
        count *= p->size[i];
    }
    return count;
}
static int kfi_rt_log(int n)
{
    int log = 0;
    while (1 << log < n) ++log;
    return log;
}
static kf_result_t kfi_rt_move_launch(const void *kernel, kf_i64 blocks, void **args,
                                      const kf_stream_t *stream)
{
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_INVALID_SIZE, &kfi_rt_move_name, "to",
                        "takes %lld blocks, expected at most 2147483647", (long long)blocks);
    return kfi_launch(&kfi_rt_move_name, kernel, dim3((unsigned)blocks), KFI_RT_MOVE_THREADS, args,
                      kfi_rt_native(stream), false);
}
// Returns the widest unit in bytes: elements that are contiguous on both sides, with all addresses
// and strides aligned to it.
static int kfi_rt_unit_of(const char *to, const char *from, const kfi_rt_pair *p, size_t width)
{
    const int in = p->ndim - 1;
    int unit = (int)width;
    if (p->to[in] != 1 || p->from[in] != 1) return unit;
    for (; unit < 16; unit *= 2) {
        const kf_i64 wanted = 2 * unit, bytes = (kf_i64)width;
        bool fits = (uintptr_t)to % (uintptr_t)wanted == 0 &&
                    (uintptr_t)from % (uintptr_t)wanted == 0 && p->size[in] * bytes % wanted == 0;
        for (int i = 0; i < in; ++i)
            fits = fits && p->to[i] * bytes % wanted == 0 && p->from[i] * bytes % wanted == 0;
        if (!fits) break;
    }
    return unit;
}
static kf_result_t kfi_rt_move_rows(char *to, const char *from, const kfi_rt_pair *given,
                                    size_t width, const kf_stream_t *stream)
{
    const void *const kernels[] = {KFI_RT_MOVE_KERNELS};
    kfi_rt_pair p = *given;
    const int in = p.ndim - 1, unit = kfi_rt_unit_of(to, from, given, width),
              many = unit / (int)width;
    for (int i = 0; i < in && many > 1; ++i) p.to[i] /= many, p.from[i] /= many;
    p.size[in] /= many;
    kfi_rt_rows r;
    r.rows = kfi_rt_outer_of(&p, in, in, &r.outer);
    r.cols = p.size[in], r.to = p.to[in], r.from = p.from[in];
    const int units = KFI_RT_UNITS(unit) * KFI_RT_MOVE_THREADS;
    r.log = kfi_rt_log((int)kfi_clamp(r.cols, 1, units));
    r.is_long = 1 << r.log == units;
    const kf_i64 chunks = kfi_ceil(r.cols, (kf_i64)1 << r.log);
    r.chunks = kfi_make_divisor(chunks);
    void *args[] = {&to, &from, &r};
    return kfi_rt_move_launch(kernels[kfi_rt_log(unit)], chunks * kfi_ceil(r.rows, units >> r.log),
                              args, stream);
}
static kf_result_t kfi_rt_move_planes(char *to, const char *from, const kfi_rt_pair *p,
                                      int along_to, int along_from, size_t width,
                                      const kf_stream_t *stream)
{
    const void *const kernels[] = {KFI_RT_MOVE_KERNELS};
    kfi_rt_planes q;
    const kf_i64 planes = kfi_rt_outer_of(p, along_to, along_from, &q.outer);
    q.rows = p->size[along_from], q.cols = p->size[along_to];
    q.to_row = p->to[along_from], q.to_col = p->to[along_to], q.from_row = p->from[along_from],
    q.from_col = p->from[along_to];
    const kf_i64 across = kfi_ceil(q.cols, KFI_RT_SIDE(width)),
                 down = kfi_ceil(q.rows, KFI_RT_SIDE(width));
    q.across = kfi_make_divisor(across), q.down = kfi_make_divisor(down);
    void *args[] = {&to, &from, &q};
    return kfi_rt_move_launch(kernels[5 + kfi_rt_log(width)], planes * across * down, args, stream);
}
static kf_result_t kfi_rt_cuda_move(const char *function, const kf_context_t *ctx, char *to,
                                    const char *from, const kfi_rt_pair *p, size_t width,
                                    const kf_stream_t *stream)
{
    (void)function;
    const kfi_rt_current current(ctx);
    const int along_to = kfi_rt_innermost(p, p->to), along_from = kfi_rt_innermost(p, p->from);
    return along_to == along_from
               ? kfi_rt_move_rows(to, from, p, width, stream)
               : kfi_rt_move_planes(to, from, p, along_to, along_from, width, stream);
}
#endif
#else
// Compiled without kernels (neither nvcc nor the emulation): only CUDA's own copies are available.
static kf_result_t kfi_rt_cuda_move(const char *function, const kf_context_t *ctx, char *,
                                    const char *, const kfi_rt_pair *, size_t, const kf_stream_t *)
{
    (void)ctx;
    return kfi_rt_fail(KF_ERROR_UNSUPPORTED, function, "from",
                       "takes a kernel, and this file was compiled without any");
}
#endif

#endif
