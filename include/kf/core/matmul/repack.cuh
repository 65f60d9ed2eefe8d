// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/repack.cuh: copies operands of 2-byte elements from rows at any address to rows of
// whole vectors in the workspace, zero behind their end, so that TMA can load them.
//
// Schedule: a thread copies 4 vectors of 8 elements of a row; two aligned 16-byte loads and a
// funnel shift make a vector (load.cuh). Up to 256 threads share a row. One launch copies all
// operands of a call. Grid: operands x groups of rows x parts of a row.
// Callers: op.cuh, backward_product.cuh. A product of copied operands has the bits of one of
// aligned operands.
#ifndef KF_CORE_MATMUL_REPACK_CUH
#define KF_CORE_MATMUL_REPACK_CUH

#include "kf/core/matmul/matmul.cuh"

#define KFI_REPACK_THREADS 256
#define KFI_REPACK_VECTORS 4 // per thread
#define KFI_REPACK_JOBS 4    // operands of a call

// An operand: matrices of `rows` rows of `cols` elements. to: rows of `pitch` elements.
struct kfi_repack_job {
    const void *from;
    void *to;
    kf_i64 ld, matrix, rows, cols, matrices, pitch;
    kfi_divisor of_rows, parts; // rows of a matrix; blocks of a row
    unsigned first;             // its first block; 0xffffffff: not copied
    int width_bits;             // log2 of the threads of a row
};
struct kfi_repack {
    kfi_repack_job jobs[KFI_REPACK_JOBS];
};

#ifndef KFI_DRIVER
template <int size>
KFI_KERNEL void KFI_BOUNDS(KFI_REPACK_THREADS) kfk_gemm_repack(const __grid_constant__ kfi_repack r)
{
#ifdef KFI_DEVICE_PASS
    static_assert(size == 2, "kf: elements of 2 bytes");
    kfi_begin();
    int which = 0;
    for (int i = 1; i < KFI_REPACK_JOBS; ++i) which = blockIdx.x >= r.jobs[i].first ? i : which;
    const kfi_repack_job &job = r.jobs[which];
    const int width = 1 << job.width_bits, lane = (int)threadIdx.x & (width - 1);
    const kf_i64 block = (kf_i64)(blockIdx.x - job.first), group = kfi_divide(block, job.parts),
                 row = group * (KFI_REPACK_THREADS >> job.width_bits) +
                       ((int)threadIdx.x >> job.width_bits);
    if (row >= job.rows * job.matrices) return;
    const kf_i64 matrix = kfi_divide(row, job.of_rows),
                 first =
                     (block - group * (kf_i64)job.parts.d) * (KFI_REPACK_VECTORS * width) + lane;
    const char *const from = (const char *)job.from + matrix * job.matrix * size,
                      *const line = from + (row - matrix * job.rows) * job.ld * size;
    char *const to = (char *)job.to + row * job.pitch * size;
    const kfi_gemm_span span = kfi_gemm_span_of(from, job.ld, (int)job.rows, (int)job.cols);
    unsigned w[KFI_REPACK_VECTORS][8];
#pragma unroll
    for (int u = 0; u < KFI_REPACK_VECTORS; ++u) {
        const kf_i64 col = (first + u * width) * 8, left = job.cols - col;
        kfi_chunk_load(w[u], line + col * size, left < 0 ? 0 : left < 8 ? (int)left : 8, span);
    }
#pragma unroll
    for (int u = 0; u < KFI_REPACK_VECTORS; ++u) {
        const kf_i64 col = (first + u * width) * 8, left = job.cols - col;
        if (left <= 0) continue;
        kfi_chunk_align(w[u], line + col * size, left < 8 ? (int)left : 8, span);
        kfi_store<16>(to + col * size, w[u]);
    }
#endif
}
#endif

#ifdef KFI_HOST_PASS
// Products of fewer multiply-adds are not worth a launch. Workspaces depend on it.
#ifndef KFI_REPACK_LEAST
#define KFI_REPACK_LEAST ((kf_i64)1 << 27)
#endif
// Returns whether a product copies operands whose rows are no whole vectors.
KF_FN bool kfi_repack_pays(const kfi_gemm_sizes &s)
{
    return s.bytes == 2 && s.rows > 64 && s.cols > 0 && s.depth > 0 &&
           (double)s.rows * (double)s.cols * (double)s.depth * (double)s.matrices >=
               (double)KFI_REPACK_LEAST;
}
KF_FN kf_i64 kfi_repack_pitch(kf_i64 cols) { return kfi_ceil(cols, 8) * 8; }
// Bytes of a copy of contiguous matrices; 0 if their rows are whole vectors.
KF_FN size_t kfi_repack_bytes(kf_i64 matrices, kf_i64 rows, kf_i64 cols)
{
    return cols % 8 == 0 ? 0
                         : kfi_workspace((size_t)(matrices * rows * kfi_repack_pitch(cols)) * 2);
}
KF_FN void kfi_repack_init(kfi_repack *r)
{
    *r = {};
    for (int i = 0; i < KFI_REPACK_JOBS; ++i) r->jobs[i].first = 0xffffffffu;
}
// Launches the copy of the jobs that have a source, in their order.
KF_FN KFI_SMALL kf_result_t kfi_repack_launch(const kfi_name *name, const void *kernel,
                                              kfi_repack *r, cudaStream_t stream)
{
    kf_i64 blocks = 0;
    for (int i = 0; i < KFI_REPACK_JOBS; ++i) {
        kfi_repack_job *const job = &r->jobs[i];
        if (!job->from) continue;
        const kf_i64 vectors = job->pitch / 8, each = KFI_REPACK_VECTORS;
        job->width_bits = 5;
        while (job->width_bits < 8 && each << job->width_bits < vectors) ++job->width_bits;
        const kf_i64 parts = kfi_ceil(vectors, each << job->width_bits),
                     groups =
                         kfi_ceil(job->rows * job->matrices, KFI_REPACK_THREADS >> job->width_bits);
        job->of_rows = kfi_make_divisor(job->rows);
        job->parts = kfi_make_divisor(parts);
        job->first = (unsigned)blocks;
        blocks += groups * parts;
        if (blocks > 0x7fffffff)
            return kfi_fail(KF_ERROR_UNSUPPORTED, name, "launch",
                            "copies operands of more blocks than a launch may have");
    }
    void *args[] = {r};
    return blocks == 0
               ? KF_SUCCESS
               : kfi_launch(name, kernel, dim3((unsigned)blocks), KFI_REPACK_THREADS, args, stream);
}
// Sets up the copy of an operand, contiguous in the workspace.
KF_FN void kfi_repack_add(kfi_repack_job *job, const void *from, kf_i64 ld, kf_i64 matrix,
                          kf_i64 matrices, kf_i64 rows, kf_i64 cols, void *to)
{
    job->from = from, job->to = to, job->ld = ld, job->matrix = matrix;
    job->rows = rows, job->cols = cols, job->matrices = matrices;
    job->pitch = kfi_repack_pitch(cols);
}
#endif

#endif
