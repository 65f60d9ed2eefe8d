/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/move.h: copies strided elements on the CPU. */
#ifndef KF_RUNTIME_MOVE_H
#define KF_RUNTIME_MOVE_H

#include "kf/runtime/convert.h"

/* Common dimensions of two tensors, innermost last. Dimensions of size 1 are left out; neighbours
 * that are contiguous in both tensors are merged. */
typedef struct kfi_rt_pair {
    int ndim;
    int64_t size[KF_MAX_DIMS], to[KF_MAX_DIMS], from[KF_MAX_DIMS];
} kfi_rt_pair;

static void kfi_rt_swap(int64_t *numbers, int i)
{
    const int64_t one = numbers[i];
    numbers[i] = numbers[i - 1];
    numbers[i - 1] = one;
}
static void kfi_rt_add_dimension(kfi_rt_pair *p, int64_t size, int64_t to, int64_t from)
{
    if (size == 1) return;
    p->size[p->ndim] = size, p->to[p->ndim] = to, p->from[p->ndim] = from;
    ++p->ndim;
}
static void kfi_rt_join_dimensions(kfi_rt_pair *p)
{
    int last = 0;
    for (int i = 1; i < p->ndim; ++i) {
        if (p->to[last] == p->to[i] * p->size[i] && p->from[last] == p->from[i] * p->size[i])
            p->size[last] *= p->size[i];
        else
            p->size[++last] = p->size[i];
        p->to[last] = p->to[i], p->from[last] = p->from[i];
    }
    if (p->ndim) p->ndim = last + 1;
    if (!p->ndim) p->ndim = 1, p->size[0] = p->to[0] = p->from[0] = 1;
}
/* Copies n elements with the given strides. */
static void kfi_rt_copy_run(char *to, int64_t to_stride, int to_dtype, const char *from,
                            int64_t from_stride, int from_dtype, int64_t n)
{
    const size_t to_width = kfi_rt_width(to_dtype), from_width = kfi_rt_width(from_dtype);
    if (to_dtype == from_dtype && to_stride == 1 && from_stride == 1) {
        memmove(to, from, (size_t)n * to_width);
        return;
    }
    if (to_dtype == from_dtype && to_stride == 1) {
        kfi_rt_gather(to, from, from_stride, to_width, n);
        return;
    }
    if (to_dtype == from_dtype && from_stride == 1) {
        kfi_rt_scatter(to, from, to_stride, to_width, n);
        return;
    }
    uint64_t together[KFI_RT_RUN];
    kfi_rt_wide wide;
    for (int64_t done = 0; done < n; done += KFI_RT_RUN) {
        const int run = n - done < KFI_RT_RUN ? (int)(n - done) : KFI_RT_RUN;
        kfi_rt_gather(together, from + done * from_stride * (int64_t)from_width, from_stride,
                      from_width, run);
        if (to_dtype != from_dtype) {
            kfi_rt_widen(&wide, together, from_dtype, run);
            kfi_rt_narrow(&wide, together, to_dtype, run);
        }
        kfi_rt_scatter(to + done * to_stride * (int64_t)to_width, together, to_stride, to_width,
                       run);
    }
}
/* Copies a tile of elements of one dtype through local memory, so that each cache line is touched
 * once. Lines a power of two apart would otherwise evict each other. */
#define KFI_RT_TILE 32
#define KFI_RT_TILED(name, type)                                                                   \
    static void name(char *to, const char *from, int rows, int cols, const int64_t *to_strides,    \
                     const int64_t *from_strides)                                                  \
    {                                                                                              \
        type tile[KFI_RT_TILE][KFI_RT_TILE];                                                       \
        for (int c = 0; c < cols; ++c)                                                             \
            for (int r = 0; r < rows; ++r)                                                         \
                memcpy(&tile[r][c],                                                                \
                       from + (r * from_strides[0] + c * from_strides[1]) * (int64_t)sizeof(type), \
                       sizeof(type));                                                              \
        for (int r = 0; r < rows; ++r)                                                             \
            for (int c = 0; c < cols; ++c)                                                         \
                memcpy(to + (r * to_strides[0] + c * to_strides[1]) * (int64_t)sizeof(type),       \
                       &tile[r][c], sizeof(type));                                                 \
    }
KFI_RT_TILED(kfi_rt_tile_1, uint8_t)
KFI_RT_TILED(kfi_rt_tile_2, uint16_t)
KFI_RT_TILED(kfi_rt_tile_4, uint32_t)
KFI_RT_TILED(kfi_rt_tile_8, uint64_t)
#undef KFI_RT_TILED
/* Copies the plane spanned by the innermost dimensions of source and target. */
static void kfi_rt_copy_plane(char *to, const char *from, const kfi_rt_pair *p, int by, int in,
                              size_t width)
{
    void (*const tile)(char *, const char *, int, int, const int64_t *, const int64_t *) =
        width == 1   ? kfi_rt_tile_1
        : width == 2 ? kfi_rt_tile_2
        : width == 4 ? kfi_rt_tile_4
                     : kfi_rt_tile_8;
    const int64_t to_strides[] = {p->to[by], p->to[in]},
                  from_strides[] = {p->from[by], p->from[in]}, bytes = (int64_t)width;
    for (int64_t r = 0; r < p->size[by]; r += KFI_RT_TILE)
        for (int64_t c = 0; c < p->size[in]; c += KFI_RT_TILE) {
            const int rows = p->size[by] - r < KFI_RT_TILE ? (int)(p->size[by] - r) : KFI_RT_TILE;
            const int cols = p->size[in] - c < KFI_RT_TILE ? (int)(p->size[in] - c) : KFI_RT_TILE;
            tile(to + (r * to_strides[0] + c * to_strides[1]) * bytes,
                 from + (r * from_strides[0] + c * from_strides[1]) * bytes, rows, cols, to_strides,
                 from_strides);
        }
}
/* Returns the dimension with the smallest stride; the last one if others have the same stride or
 * hardly any elements. */
static int kfi_rt_innermost(const kfi_rt_pair *p, const int64_t *strides)
{
    int found = p->ndim - 1;
    for (int i = p->ndim - 1; i >= 0; --i)
        if (strides[i] && p->size[i] >= 8 &&
            (!strides[found] || p->size[found] < 8 || strides[i] < strides[found]))
            found = i;
    return found;
}
/* Copies a plane at a time if source and target are transposed, otherwise a run of the last
 * dimension. */
static void kfi_rt_copy_host(char *to, int to_dtype, const char *from, int from_dtype,
                             const kfi_rt_pair *p)
{
    const int by = kfi_rt_innermost(p, p->from), nearest = kfi_rt_innermost(p, p->to),
              across = to_dtype == from_dtype && by != nearest;
    const int in = across ? nearest : p->ndim - 1;
    int64_t index[KF_MAX_DIMS] = {0}, to_at = 0, from_at = 0;
    for (;;) {
        char *const target = to + to_at * (int64_t)kfi_rt_width(to_dtype);
        const char *const source = from + from_at * (int64_t)kfi_rt_width(from_dtype);
        if (across)
            kfi_rt_copy_plane(target, source, p, by, in, kfi_rt_width(to_dtype));
        else
            kfi_rt_copy_run(target, p->to[in], to_dtype, source, p->from[in], from_dtype,
                            p->size[in]);
        int i = p->ndim - 1;
        for (; i >= 0; --i) {
            if (i == in || (across && i == by)) continue;
            to_at += p->to[i], from_at += p->from[i];
            if (++index[i] < p->size[i]) break;
            to_at -= p->to[i] * p->size[i], from_at -= p->from[i] * p->size[i];
            index[i] = 0;
        }
        if (i < 0) return;
    }
}

#endif
