// SPDX-License-Identifier: Apache-2.0
// kf/core/gemm_op.cuh: ops that are products of matrices, in CUDA: what their kernels have in common, and their launchers. gemm.cuh makes
// the sums; an op's kernel reads what else it needs at a result's place, and stores.
#ifndef KF_CORE_GEMM_OP_CUH
#define KF_CORE_GEMM_OP_CUH

#include "kf/core/gemm_back.cuh"

#ifdef KFI_DEVICE_PASS
// A factor of the product: of one tensor, or of two that are multiplied by the same.
template <int size> KFI_DEVICE kfi_gemm_side kfi_gemm_side_of(const kfi_gemm_tensors &t, int first, int second, kf_i64 matrix)
{
    const kfi_gemm_side side = {
        {(const char *)t.p[first] + matrix * t.matrix[first] * size, (const char *)t.p[second] + matrix * t.matrix[second] * size},
        {t.ld[first], t.ld[second]}};
    return side;
}
// Where a row's elements begin, of a matrix of results; and of a vector of each.
KFI_DEVICE kf_i64 kfi_gemm_place(const kfi_gemm_tensors &t, int tensor, const kfi_gemm_cell &cell, kf_i64 matrix)
{
    return matrix * t.matrix[tensor] + cell.row * t.ld[tensor] + cell.col;
}
#endif

#ifdef KFI_HOST_PASS
// What the launchers of one op x dtype know. Tensors are numbers: places among its arguments.
struct kfi_gemm_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes;         // gemm_check.h
    const void *const *kernels; // by kfi_gemm_kernel_of; the last one joins split depths
    int size;                   // bytes of an element
    int left, products, weights[2];
    int layout;
    const char *loaded; // what the seam of the left factor reads beside that: tensors, from 'a' on
    bool has_seam;
    int type; // KFI_OF_
};

KF_FN KFI_SMALL size_t kfi_gemm_forward_workspace(kf_i64 batch, kf_i64 rows, kf_i64 cols, kf_i64 depth, int products, int bytes)
{
    const kf_i64 sizes[] = {batch, rows, cols, depth};
    if (!kfi_all_fit(sizes, 4) || batch == 0 || rows == 0 || cols == 0) return 0;
    const size_t parts = kfi_gemm_workspace(kfi_gemm_make_sizes(sizes, products, bytes));
    return kfi_workspace(parts > 0 ? parts : 1); // that a call has one does not depend on its sizes
}

// By wgmma, if the operands and the device allow it: false where they do not.
KF_FN KFI_SMALL bool kfi_gemm_forward_wgmma(const kfi_gemm_op &op, const kfi_gemm_sizes &s, const kfi_gemm_tensors &t, bool wide,
                                            kfi_gemm *g, kfi_gemm_maps *maps, void **args, cudaStream_t stream, kf_result_t *result)
{
    const int *const w = op.weights, last = op.products - 1;
    const kfi_gemm_side a = {{t.p[op.left], nullptr}, {t.ld[op.left], 0}}, b = {{t.p[w[0]], t.p[w[last]]}, {t.ld[w[0]], t.ld[w[last]]}};
    const kf_i64 a_matrix[] = {t.matrix[op.left], 0}, b_matrix[] = {t.matrix[w[0]], t.matrix[w[last]]};
    if (op.has_seam || !kfi_gemm_by_wgmma(s) || !kfi_has_wgmma(op.kernels[KFI_GEMM_WGMMA])) return false;
    if (!kfi_gemm_map(maps, s, op.type, op.layout, 1, a, a_matrix, b, b_matrix)) return false;
    if (!kfi_gemm_fill(g, s, kfi_gemm_wgmma_choice(s), wide, nullptr)) return false;
    *result = kfi_gemm_launch_wgmma(&op.name, op.kernels[KFI_GEMM_WGMMA], maps, *g, s.matrices, args, stream);
    return true;
}

// The forward of an op. t, g, seams, maps: kernel arguments to fill in; args: of the kernels.
KF_FN kf_result_t kfi_gemm_forward_run(const kfi_gemm_op &op, const kf_i64 *sizes, kfi_gemm_tensors *t, kfi_gemm *g, kfi_gemm_seams *seams,
                                       kfi_gemm_maps *maps, void **args, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    kfi_operands operands;
    kfi_gemm_lie lie[KFI_MAX_TENSORS];
    kf_result_t result = kfi_check_gemm(&op.name, &op.arguments, &op.strides, op.shapes, sizes, lie, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const size_t needed = kfi_gemm_forward_workspace(sizes[0], sizes[1], sizes[2], sizes[3], op.products, op.size);
    result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    const int count = kfi_gemm_fill_tensors(t, op.shapes, operands, lie);
    for (int i = 0; op.loaded[i]; ++i) {
        const int tensor = op.loaded[i] - 'a';
        seams->p[i] = t->p[tensor];
        seams->ld[i] = t->ld[tensor];
        seams->matrix[i] = t->matrix[tensor];
    }
    kfi_gemm_sizes s = kfi_gemm_make_sizes(sizes, op.products, op.size);
    s.whole = op.has_seam || kfi_gemm_whole(*t, op.left, op.size);
    bool wide = true;
    for (int p = 0; p < op.products; ++p) s.whole = s.whole && kfi_gemm_whole(*t, op.weights[p], op.size);
    for (int i = 0; i < count; ++i)
        if (i != op.left && i != op.weights[0] && i != op.weights[op.products - 1] && t->p[i])
            wide = wide && kfi_gemm_whole(*t, i, op.size);
    s.mma = op.size != 2 || kfi_gemm_has_mma(op.kernels[1]);
    if (kfi_gemm_forward_wgmma(op, s, *t, wide, g, maps, args, stream, &result)) return result;
    const kfi_gemm_choice choice = kfi_gemm_pick(s);
    if (!kfi_gemm_fill(g, s, choice, wide, workspace))
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "launch",
                        "of %lld x %lld x %lld x %lld needs more blocks than a launch may have, or larger sizes", (long long)sizes[0],
                        (long long)sizes[1], (long long)sizes[2], (long long)sizes[3]);
    const kf_i64 blocks = (kf_i64)g->tiles.d * s.matrices * choice.splits;
    result = kfi_launch(&op.name, op.kernels[kfi_gemm_kernel_of(choice, op.size)], dim3((unsigned)blocks),
                        (unsigned)kfi_tile_threads(choice.tile), args, stream, true, kfi_gemm_shared(choice.tile, op.size, op.layout));
    if (result != KF_SUCCESS || choice.splits < 2) return result;
    const dim3 joint = kfi_gemm_joint(g, s, 16 / op.size);
    return kfi_launch(&op.name, op.kernels[kfi_gemm_kernels(op.size) - 1], joint, KFI_JOIN_THREADS, args, stream);
}
#endif

#endif
