// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/backward.cuh: host side of matmul backwards in CUDA: up to six launch steps.
//
//   copies   operands of products whose rows are no whole vectors, to the workspace (repack.cuh)
//   dacc     elementwise pass: the gradients of the products' accumulators, to the workspace, and
//            of elementwise operands and row vectors
//   left     elementwise pass: the left factor, to the workspace, where `load` makes it
//   inputs   the product of dacc and the weights: the gradient of the left factor. Where `load`
//            makes the factor, the product goes to the workspace, and an elementwise pass turns it
//            into the gradients of the operands.
//   weights  for each weight the product of dacc and the left factor; K = rows, split-K
//   totals   the partial sums over rows are reduced
//
// Every part of a sum follows from the sizes. Kernels: sum.cuh; passes: templates.
#ifndef KF_CORE_MATMUL_BACKWARD_CUH
#define KF_CORE_MATMUL_BACKWARD_CUH

#include "kf/core/matmul/backward_product.cuh"

#ifdef KFI_HOST_PASS
// Sets up a pass over the result, or over the left factor.
KF_FN KFI_SMALL void kfi_back_shape(const kfi_back_call &c, int which)
{
    kfi_gemm_pass *s = c.s;
    const bool dacc = which == KFI_PASS_DACC;
    s->rows = dacc ? c.sizes[KFI_AXIS_ROWS] : c.room.outer;
    s->cols = dacc ? c.sizes[KFI_AXIS_COLS] : c.room.inner;
    s->col_blocks = (unsigned)kfi_pass_col_blocks(s->cols, c.op->size);
    s->parts = (unsigned)kfi_pass_parts(s->rows, s->cols, c.op->size);
    s->per = s->parts > 0 ? kfi_ceil(s->rows, s->parts) : 0;
    s->pitch = c.room.pitch[!dacc];
    s->sums = c.sums;
    s->vectors = which == KFI_PASS_LEFT ? 0 : kfi_back_vectors(c.steps, c.op->made[which]);
    s->wide = true;
    for (const char *letter = c.op->touched[which]; *letter; ++letter)
        if (c.t->p[*letter - 'a'])
            s->wide = s->wide && kfi_gemm_whole(*c.t, *letter - 'a', c.op->size);
}
// Returns whether the grids of the passes fit.
KF_FN KFI_SMALL bool kfi_back_fits(const kfi_back_call &c)
{
    const kf_i64 batch = c.sizes[KFI_AXIS_BATCH], most = 0x7fffffff / batch;
    bool fits = true;
    for (int i = 0; i < 2; ++i) {
        const kf_i64 rows = i ? c.room.outer : c.sizes[KFI_AXIS_ROWS],
                     cols = i ? c.room.inner : c.sizes[KFI_AXIS_COLS];
        fits =
            fits && cols <= most &&
            kfi_pass_col_blocks(cols, c.op->size) * kfi_pass_parts(rows, cols, c.op->size) <= most;
    }
    return fits;
}
KF_FN KFI_SMALL kf_result_t kfi_back_pass(const kfi_back_call &c, int which)
{
    const kfi_gemm_back &op = *c.op;
    const kf_i64 blocks = c.sizes[KFI_AXIS_BATCH] * c.s->col_blocks * c.s->parts;
    if (blocks > 0) {
        const kf_result_t result = kfi_launch(&op.name, op.kernels[which], dim3((unsigned)blocks),
                                              KFI_PASS_THREADS, c.args, c.stream);
        if (result != KF_SUCCESS) return result;
    }
    const int acc = op.size == 8 ? 8 : 4;
    int vector = 0;
    for (const char *letter = which == KFI_PASS_LEFT ? "" : op.made[which]; *letter; ++letter) {
        const int tensor = *letter - 'a';
        if (!c.steps[tensor].vector) continue;
        const kf_i64 mine = vector++;
        if (!c.t->p[tensor] || c.s->cols == 0) continue;
        kfi_totals totals = {(const char *)c.sums + mine * c.s->cols * acc,
                             c.s->vectors * c.s->cols,
                             c.s->parts,
                             c.sizes[KFI_AXIS_BATCH],
                             c.s->cols,
                             c.t->p[tensor],
                             c.t->matrix[tensor],
                             c.beta};
        void *args[] = {&totals};
        const kf_result_t result =
            kfi_launch(&op.name, op.kernels[KFI_PASSES + 2 * kfi_gemm_kernels(op.size)],
                       dim3((unsigned)kfi_ceil(totals.matrices * totals.cols, 32)),
                       KFI_TOTALS_THREADS, args, c.stream);
        if (result != KF_SUCCESS) return result;
    }
    return KF_SUCCESS;
}
KF_FN KFI_SMALL kf_result_t kfi_back_dacc_pass(const kfi_back_call &c)
{
    const kf_i64 of_one =
        c.sizes[KFI_AXIS_BATCH] * c.sizes[KFI_AXIS_ROWS] * c.room.pitch[0] * c.op->size;
    const bool made = !c.op->dout_is_dacc && (c.inputs || c.weights);
    kfi_back_shape(c, KFI_PASS_DACC);
    c.s->made[0] = made ? c.dacc : nullptr;
    c.s->made[1] = made && c.op->products > 1 ? c.dacc + of_one : nullptr;
    return kfi_back_pass(c, KFI_PASS_DACC);
}

// Launches the products and the passes that read them.
KF_FN KFI_SMALL kf_result_t kfi_back_products(const kfi_back_call &c, kfi_back_product *inputs,
                                              kfi_back_product *weights)
{
    const kfi_gemm_back &op = *c.op;
    kf_result_t result =
        op.size == 2 ? kfi_repack_launch(&op.name, kfi_back_repack_kernel(c), c.repack, c.stream)
                     : KF_SUCCESS;
    if (result == KF_SUCCESS && c.inputs) {
        const bool any = inputs->sizes.rows > 0 && inputs->sizes.cols > 0;
        if (any) result = kfi_back_multiply(c, inputs);
        if (result == KF_SUCCESS && op.loads) {
            kfi_back_shape(c, KFI_PASS_INPUTS);
            c.s->dot = inputs->g;
            result = kfi_back_pass(c, KFI_PASS_INPUTS);
        }
    }
    if (result == KF_SUCCESS && c.weights && op.loads) {
        kfi_back_shape(c, KFI_PASS_LEFT);
        c.s->made[0] = c.factor;
        result = kfi_back_pass(c, KFI_PASS_LEFT);
    }
    for (int i = 0; i < op.products && result == KF_SUCCESS && c.weights; ++i)
        if (op.dweights[i] >= 0 && c.t->p[op.dweights[i]])
            result = kfi_back_multiply(c, &weights[i]);
    return result;
}
// Runs a backward. t, s: arguments of the passes to fill in, the first two of args.
KF_FN kf_result_t kfi_gemm_backward_run(const kfi_gemm_back &op, const kf_i64 *sizes, double beta,
                                        kfi_gemm_tensors *t, kfi_gemm_pass *s, void **args,
                                        void *workspace, size_t workspace_bytes,
                                        cudaStream_t stream)
{
    kfi_operands operands;
    kfi_gemm_steps given[KFI_MAX_TENSORS];
    kfi_back_call c = {};
    kfi_repack repack;
    kfi_repack_init(&repack);
    c.repack = &repack;
    c.op = &op, c.sizes = sizes, c.beta = beta, c.t = t, c.s = s, c.args = args, c.stream = stream;
    kf_result_t result =
        kfi_check_gemm(&op.name, &op.arguments, &op.strides, op.shapes, sizes, given, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    kfi_gemm_fill_tensors(t, op.shapes, sizes[KFI_AXIS_COLS], operands, given, c.steps);
    const int vectors[] = {kfi_back_vectors(c.steps, op.made[0]),
                           kfi_back_vectors(c.steps, op.made[1])};
    c.room = kfi_back_rooms(sizes, op.size, op.products, op.a_transposed, op.b_transposed, op.loads,
                            vectors);
    result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes,
                                 c.room.all);
    if (result != KF_SUCCESS) return result;
    *s = {};
    c.dacc = (char *)workspace;
    c.factor = c.dacc + c.room.dacc;
    c.sums = c.factor + c.room.factor;
    c.copies = c.sums + c.room.sums;
    c.parts = c.copies + c.room.copies[0] + (size_t)op.products * c.room.copies[1];
    c.apart = kfi_back_wants(c, op.made[0]);
    c.inputs = sizes[KFI_AXIS_DEPTH] > 0 && kfi_back_wants(c, op.made[1]);
    for (int i = 0; i < op.products; ++i)
        c.weights = c.weights || (sizes[KFI_AXIS_DEPTH] > 0 && sizes[KFI_AXIS_COLS] > 0 &&
                                  op.dweights[i] >= 0 && t->p[op.dweights[i]]);
    kfi_back_product for_inputs = {}, for_weights[2] = {};
    bool fits = kfi_back_fits(c) &&
                (!c.inputs || sizes[KFI_AXIS_ROWS] == 0 || kfi_back_plan_inputs(&for_inputs, c));
    for (int i = 0; i < op.products && c.weights; ++i)
        if (op.dweights[i] >= 0 && t->p[op.dweights[i]])
            fits = fits && kfi_back_plan_weight(&for_weights[i], c, i);
    if (!fits) return kfi_back_too_large(c);
    if (!kfi_back_has(for_inputs, c) || !kfi_back_has(for_weights[0], c) ||
        !kfi_back_has(for_weights[1], c))
        return kfi_gemm_left_out(&op.name);
    // A gradient may overwrite dout in place: where the products read dout, it is computed last.
    for (int turn = 0; turn < 2 && result == KF_SUCCESS; ++turn) {
        if (turn == (int)op.dout_is_dacc) {
            if (c.apart || (!op.dout_is_dacc && (c.inputs || c.weights)))
                result = kfi_back_dacc_pass(c);
        } else {
            result = kfi_back_products(c, &for_inputs, for_weights);
        }
    }
    return result;
}
#endif

#endif
