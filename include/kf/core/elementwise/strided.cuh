// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/strided.cuh: elementwise ops over strided tensors. The tensors share their
// dimensions; each has strides of its own.
//
// A thread computes one vector of a row (the innermost dimension). If every tensor's rows hold
// whole aligned vectors or broadcast one value, the thread loads vectors. Otherwise its elements
// are 32 apart, so that the lanes of a warp access neighbouring elements at any alignment.
// Grid: rows * ceil(cols / vector), block: 256 threads, no shared memory. Called by functions on
// tensors (templates/elementwise/apart.cuh.j2).
#ifndef KF_CORE_ELEMENTWISE_STRIDED_CUH
#define KF_CORE_ELEMENTWISE_STRIDED_CUH

#include "kf/core/elementwise/elementwise.cuh"

#define KFI_STRIDED_TENSORS 8
#define KFI_STRIDED_DIMS 8
// Layout: the number of dimensions, their sizes, then each tensor's strides [elements], the
// outermost dimension first.
#define KFI_STRIDED_LAYOUT ((KFI_STRIDED_TENSORS + 1) * KFI_STRIDED_DIMS + 1)

// Kernel argument: the layout, the innermost dimension first.
struct kfi_strided {
    kfi_divisor width;                      // threads per row, or warps per row
    kfi_divisor size[KFI_STRIDED_DIMS - 1]; // outer dimensions, the innermost first
    kf_i64 rows, cols;
    kf_i64 stride[KFI_STRIDED_TENSORS][KFI_STRIDED_DIMS]; // the innermost first
    int dims;                                             // number of outer dimensions
    int step;  // distance between elements of a thread: 1 or 32
    int whole; // rows are accessed by vectors
};

#ifdef KFI_DEVICE_PASS
// Sets the offset of a thread's first element in each tensor and the elements left of its row.
// Returns false if the thread has none.
template <int tensors, int vec>
KFI_DEVICE bool kfi_find_strided(kf_i64 *at, kf_i64 *left, const kfi_strided &a)
{
    const kf_i64 thread = (kf_i64)blockIdx.x * KFI_MAP_THREADS + threadIdx.x;
    const kf_i64 unit = a.step == 1 ? thread : thread / 32;
    kf_i64 row = kfi_divide(unit, a.width);
    if (row >= a.rows) return false;
    const kf_i64 chunk = unit - row * (kf_i64)a.width.d,
                 col = a.step == 1 ? chunk * vec : chunk * (32 * vec) + threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < tensors; ++k) at[k] = col * a.stride[k][0];
    for (int i = 0; i < a.dims; ++i) {
        const kf_i64 rest = kfi_divide(row, a.size[i]), own = row - rest * (kf_i64)a.size[i].d;
#pragma unroll
        for (int k = 0; k < tensors; ++k) at[k] += own * a.stride[k][i + 1];
        row = rest;
    }
    *left = a.cols - col;
    return *left > 0;
}
// Loads a vector; elements past the row's end become zero.
template <int size, int vec>
KFI_DEVICE void kfi_load_strided(void *v, const void *src, kf_i64 at, kf_i64 left,
                                 const kfi_strided &a, int k)
{
    const char *const s = (const char *)src + at * size;
    if (a.whole && left >= vec && a.stride[k][0]) {
        kfi_copy<size * vec>(v, s);
        return;
    }
    const kf_i64 step = a.stride[k][0] * a.step * size;
    const unsigned long long zero = 0;
#pragma unroll
    for (int e = 0; e < vec; ++e)
        kfi_copy<size>((char *)v + e * size,
                       e * a.step < left ? s + e * step : (const char *)&zero);
}
template <int size, int vec>
KFI_DEVICE void kfi_store_strided(void *dst, const void *v, kf_i64 at, kf_i64 left,
                                  const kfi_strided &a, int k)
{
    char *const d = (char *)dst + at * size;
    if (a.whole && left >= vec) {
        kfi_store<size * vec>(d, v);
        return;
    }
    const kf_i64 step = a.stride[k][0] * a.step * size;
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (e * a.step < left) kfi_copy<size>(d + e * step, (const char *)v + e * size);
}
#endif

#ifdef KFI_HOST_PASS
// True if a tensor's rows hold aligned vectors of vec elements, or one broadcast value.
KF_FN KFI_SMALL bool kfi_is_vectorizable(const kfi_operand *o, const kf_i64 *stride, int dims,
                                         int vec)
{
    const kf_i64 bytes = (kf_i64)o->size * vec < 16 ? (kf_i64)o->size * vec : 16;
    if (stride[0] == 0) return true;
    bool whole = stride[0] == 1 && (uintptr_t)o->ptr % (uintptr_t)bytes == 0;
    for (int i = 1; i <= dims; ++i) whole = whole && stride[i] * o->size % bytes == 0;
    return whole;
}
// Launches a strided elementwise kernel. indices[k]: the launcher's tensor that is the kernel's
// tensor k. The caller ensures that outputs do not overlap and that strides stay inside the memory.
KF_FN kf_result_t kfi_map_strided(const kfi_map &m, kf_i64 n, const int64_t *layout,
                                  const int *indices, int tensors, kfi_strided *a, void **args,
                                  cudaStream_t stream)
{
    const kfi_shape shape = {1, 0, n > 0, 0, nullptr}; // one element: strides are not checked
    kfi_operands operands;
    const kf_result_t result =
        kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || n == 0 || !operands.wanted) return result;
    const int in = (int)layout[0] - 1;
    a->dims = in;
    a->cols = layout[1 + in];
    a->rows = 1;
    a->whole = 1;
    for (int i = 0; i < in; ++i)
        a->size[i] = kfi_make_divisor(layout[in - i]), a->rows *= layout[in - i];
    for (int k = 0; k < tensors; ++k) {
        const int64_t *const given = layout + 1 + (indices[k] + 1) * KFI_STRIDED_DIMS;
        for (int i = 0; i <= in; ++i) a->stride[k][i] = given[in - i];
        a->whole &= !operands.of[indices[k]].ptr ||
                    kfi_is_vectorizable(&operands.of[indices[k]], a->stride[k], in, m.vec);
    }
    a->step = a->whole || a->cols < 64 ? 1 : 32;
    const kf_i64 width = kfi_ceil(a->cols, (kf_i64)m.vec * a->step),
                 blocks = kfi_ceil(a->rows * width * a->step, KFI_MAP_THREADS);
    a->width = kfi_make_divisor(width);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld elements needs more blocks than a launch may have", (long long)n);
    return kfi_launch(&m.name, m.kernels[0], dim3((unsigned)blocks), KFI_MAP_THREADS, args, stream);
}
#endif

#endif
