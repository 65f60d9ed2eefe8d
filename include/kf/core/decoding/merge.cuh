// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/merge.cuh: merges results of attention for two parts of the keys, and its
// gradient.
//
// A warp has a row [dim] of a result: its lanes load vectors of 16 bytes, or elements, of both
// parts. The gradient of an lse needs the sum of dout * (a - b) over the row, by shuffles, before
// the row's gradients, which may be in place. A lane adds the same elements by either access, so
// strides and addresses do not change the bits of a sum.
// Grid: ceil(rows / 4); block: 4 warps.
#ifndef KF_CORE_DECODING_MERGE_CUH
#define KF_CORE_DECODING_MERGE_CUH

#include "kf/core/decoding/elements.cuh"
#include "kf/core/decoding/plan.h"

#define KFI_MERGE_THREADS 128

struct kfi_merge {
    kf_i64 count, rows, dim;      // count: rows of all heads and batches
    kfi_divisor heads, per_batch; // row = batch, row, head
    // out_a, out_b and out; of the gradient out_a, out_b, dout, dout_a and dout_b.
    kfi_decoding_strides strides[5];
};

#ifdef KFI_DEVICE_PASS
// A row: its batch, row and head, and the index of its lse.
struct kfi_merge_row {
    kf_i64 batch, row, head, lse;
    bool valid;
};
KFI_DEVICE kfi_merge_row kfi_merge_find(const kfi_merge &g)
{
    const kf_i64 at = ((kf_i64)blockIdx.x * KFI_MERGE_THREADS + threadIdx.x) / 32,
                 outer = kfi_divide(at, g.heads), batch = kfi_divide(outer, g.per_batch);
    kfi_merge_row r;
    r.batch = batch;
    r.row = outer - batch * g.rows;
    r.head = at - outer * (kf_i64)g.heads.d;
    r.lse = (batch * (kf_i64)g.heads.d + r.head) * g.rows + r.row;
    r.valid = at < g.count;
    return r;
}
KFI_DEVICE kf_i64 kfi_merge_offset(const kfi_merge &g, int tensor, const kfi_merge_row &r)
{
    const kfi_decoding_strides &s = g.strides[tensor];
    return r.batch * s.batch + r.row * s.row + r.head * s.head;
}
KFI_DEVICE float kfi_merge_exp(float x) { return expf(x); }
KFI_DEVICE double kfi_merge_exp(double x) { return exp(x); }
KFI_DEVICE float kfi_merge_log(float x) { return logf(x); }
KFI_DEVICE double kfi_merge_log(double x) { return log(x); }
// Weights of both parts, 0 for a part without keys, and the lse of all keys.
template <class real> struct kfi_merge_weights {
    real a, b, lse;
};
template <class real> KFI_DEVICE kfi_merge_weights<real> kfi_merge_weigh(real a, real b)
{
    const real most = a > b ? a : b,
               shift = most == (real)__int_as_float((int)0xff800000u) ? 0 : most,
               of_a = kfi_merge_exp(a - shift), of_b = kfi_merge_exp(b - shift), sum = of_a + of_b,
               divisor = sum == 0 ? real(1) : sum;
    const kfi_merge_weights<real> w = {of_a / divisor, of_b / divisor,
                                       most + kfi_merge_log(divisor)};
    return w;
}
template <class stored, class real, int vec>
KFI_DEVICE void kfi_merge_forward(const stored *a, const real *lse_a, const stored *b,
                                  const real *lse_b, stored *out, real *lse, const kfi_merge &g)
{
    const kfi_merge_row r = kfi_merge_find(g);
    const int lane = (int)threadIdx.x % 32;
    if (!r.valid) return;
    const kfi_merge_weights<real> w = kfi_merge_weigh(lse_a[r.lse], lse_b[r.lse]);
    a += kfi_merge_offset(g, 0, r), b += kfi_merge_offset(g, 1, r);
    out += kfi_merge_offset(g, 2, r);
    for (kf_i64 i = lane * vec; i < g.dim; i += 32 * vec) {
        real x[vec], y[vec];
        kfi_decoding_load<vec>(x, a + i);
        kfi_decoding_load<vec>(y, b + i);
#pragma unroll
        for (int e = 0; e < vec; ++e)
            x[e] = (w.a == 0 ? real(0) : w.a * x[e]) + (w.b == 0 ? real(0) : w.b * y[e]);
        kfi_decoding_store<vec>(out + i, x);
    }
    if (lane == 0) lse[r.lse] = w.lse;
}
// Loads 16 bytes of a row by accesses of `vec` elements; 0 beyond the row's `rest` elements.
template <int vec, class stored, class real>
KFI_DEVICE void kfi_merge_load(real *to, const stored *from, kf_i64 rest)
{
    constexpr int count = 16 / (int)sizeof(stored);
#pragma unroll
    for (int e = 0; e < count; e += vec) {
        if (e < rest)
            kfi_decoding_load<vec>(to + e, from + e);
        else
            to[e] = 0; // vec is 1: vectors end with the row
    }
}
// The sum of dout * (a - b) over a row, the same in all lanes.
template <class stored, class real, int vec>
KFI_DEVICE real kfi_merge_difference(const stored *a, const stored *b, const stored *dout,
                                     kf_i64 dim, int lane)
{
    constexpr int count = 16 / (int)sizeof(stored);
    real sum = 0;
    for (kf_i64 i = lane * count; i < dim; i += 32 * count) {
        real x[count], y[count], d[count];
        kfi_merge_load<vec>(x, a + i, dim - i);
        kfi_merge_load<vec>(y, b + i, dim - i);
        kfi_merge_load<vec>(d, dout + i, dim - i);
#pragma unroll
        for (int e = 0; e < count; ++e) sum += d[e] * (x[e] - y[e]);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}
template <class stored, class real, int vec>
KFI_DEVICE void kfi_merge_backward(const stored *a, const real *lse_a, const stored *b,
                                   const real *lse_b, const stored *dout, const real *dlse,
                                   stored *da, real *dlse_a, stored *db, real *dlse_b,
                                   const kfi_merge &g)
{
    const kfi_merge_row r = kfi_merge_find(g);
    const int lane = (int)threadIdx.x % 32;
    if (!r.valid) return; // the whole warp
    const kfi_merge_weights<real> w = kfi_merge_weigh(lse_a[r.lse], lse_b[r.lse]);
    dout += kfi_merge_offset(g, 2, r);
    real both = 0;
    if ((dlse_a || dlse_b) && w.a != 0 && w.b != 0)
        both = w.a * w.b *
               kfi_merge_difference<stored, real, vec>(
                   a + kfi_merge_offset(g, 0, r), b + kfi_merge_offset(g, 1, r), dout, g.dim, lane);
    if (da) da += kfi_merge_offset(g, 3, r);
    if (db) db += kfi_merge_offset(g, 4, r);
    for (kf_i64 i = lane * vec; i < g.dim; i += 32 * vec) {
        real d[vec], x[vec], y[vec];
        kfi_decoding_load<vec>(d, dout + i);
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            x[e] = w.a == 0 ? real(0) : w.a * d[e];
            y[e] = w.b == 0 ? real(0) : w.b * d[e];
        }
        if (da) kfi_decoding_store<vec>(da + i, x);
        if (db) kfi_decoding_store<vec>(db + i, y);
    }
    if (lane) return;
    const real given = dlse ? dlse[r.lse] : real(0);
    if (dlse_a) dlse_a[r.lse] = w.a == 0 ? real(0) : w.a * given + both;
    if (dlse_b) dlse_b[r.lse] = w.b == 0 ? real(0) : w.b * given - both;
}
#endif

template <int type, int vec>
KFI_KERNEL void KFI_BOUNDS(KFI_MERGE_THREADS)
    kfk_merge(const void *a, const void *lse_a, const void *b, const void *lse_b, void *out,
              void *lse, const __grid_constant__ kfi_merge g)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_decoding_element<type>::stored stored;
    typedef typename kfi_decoding_element<type>::real real;
    kfi_begin();
    kfi_merge_forward<stored, real, vec>((const stored *)a, (const real *)lse_a, (const stored *)b,
                                         (const real *)lse_b, (stored *)out, (real *)lse, g);
#endif
}
template <int type, int vec>
KFI_KERNEL void KFI_BOUNDS(KFI_MERGE_THREADS)
    kfk_merge_bwd(const void *a, const void *lse_a, const void *b, const void *lse_b,
                  const void *dout, const void *dlse, void *da, void *dlse_a, void *db,
                  void *dlse_b, const __grid_constant__ kfi_merge g)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_decoding_element<type>::stored stored;
    typedef typename kfi_decoding_element<type>::real real;
    kfi_begin();
    kfi_merge_backward<stored, real, vec>((const stored *)a, (const real *)lse_a, (const stored *)b,
                                          (const real *)lse_b, (const stored *)dout,
                                          (const real *)dlse, (stored *)da, (real *)dlse_a,
                                          (stored *)db, (real *)dlse_b, g);
#endif
}

#ifdef KFI_HOST_PASS
#include "kf/core/decoding/check.h"

struct kfi_merge_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const void *const *kernels; // vectors of 16 bytes, elements
    int size = 0;
    bool bwd = false;
};
// Checks a call and launches its kernel. sizes: batch, rows, heads, dim; args: the tensors and g.
KF_FN kf_result_t kfi_merge_run(const kfi_merge_op &op, const kf_i64 *sizes, kfi_merge *g,
                                void **args, cudaStream_t stream)
{
    kfi_operands operands;
    kfi_decoding_sizes p;
    kfi_decoding_strides steps[KFI_MAX_TENSORS];
    const kf_result_t result = kfi_decoding_check_merge(&op.name, &op.arguments, &op.strides,
                                                        op.bwd, sizes, &p, steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    g->count = sizes[0] * sizes[1] * sizes[2], g->rows = sizes[1], g->dim = sizes[3];
    g->heads = kfi_make_divisor(sizes[2]), g->per_batch = kfi_make_divisor(sizes[1]);
    uintptr_t bits = 0;
    for (int i = 0; i < (op.bwd ? 5 : 3); ++i) {
        const int tensor = i < 2 ? 2 * i : i == 2 ? 4 : 2 * i; // parts are every second one
        g->strides[i] = steps[tensor];
        bits |= (uintptr_t)op.arguments.tensors[tensor];
    }
    const kf_i64 blocks = kfi_ceil(g->count, KFI_MERGE_THREADS / 32);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "launch",
                        "of %lld x %lld x %lld rows needs more blocks than a launch may have",
                        (long long)sizes[0], (long long)sizes[1], (long long)sizes[2]);
    const bool vectors = bits % 16 == 0 && (operands.steps | sizes[3]) % (16 / op.size) == 0;
    return kfi_launch(&op.name, op.kernels[!vectors], dim3((unsigned)blocks), KFI_MERGE_THREADS,
                      args, stream);
}
#endif

#endif
