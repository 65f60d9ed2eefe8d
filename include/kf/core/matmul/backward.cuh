// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/backward.cuh: host side of matmul backwards in CUDA: up to five launch steps.
//
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

#include "kf/core/matmul/host.cuh"

#ifdef KFI_HOST_PASS
enum { KFI_PASS_DACC, KFI_PASS_INPUTS, KFI_PASS_LEFT, KFI_PASSES };

// Constants of the launchers of one op and dtypes. Tensors are indices, -1 for none, or letters
// from 'a' on.
struct kfi_gemm_back {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes; // check.h
    // Passes; kernels of the products for inputs and for weights, each as in kfi_gemm_op; totals.
    const void *const *kernels;
    int size = 0, second = 0; // bytes of an element, and of one of the weights' gradients
    int products = 0, left = 0, dleft = 0, weights[2] = {}, dweights[2] = {};
    bool a_transposed = false; // left factor [depth, rows]
    bool b_transposed = false; // weights [depth, cols]
    bool loads = false;        // `load` makes the left factor
    int layouts[2] = {};       // layouts of the products for inputs and for weights
    // Tensors that a pass reads, or writes per element.
    const char *touched[KFI_PASSES] = {"", "", ""};
    const char *made[2] = {"", ""}; // gradients that the passes dacc and inputs make
    int dout = 0;                   // index of dout
    bool dout_is_dacc = false;      // dout is dacc (identity activation)
    int type = 0;                   // KFI_OF_
};

// The workspace, in bytes: dacc, the left factor, partial sums of the passes; all: with the
// products' partial sums.
struct kfi_back_room {
    size_t dacc, factor, sums, all;
    kf_i64 pitch[2];     // row pitch of dacc, and of the left factor
    kf_i64 outer, inner; // rows and columns of the left factor as stored
};

KF_FN kf_i64 kfi_pass_col_blocks(kf_i64 cols, int size) { return kfi_ceil(cols, 32 * (16 / size)); }
KF_FN kf_i64 kfi_pass_parts(kf_i64 rows, kf_i64 cols, int size)
{
    const kf_i64 blocks = kfi_pass_col_blocks(cols, size);
    return blocks > 0 && rows > 0 ? kfi_clamp(kfi_ceil(KFI_GEMM_SMS * 4, blocks), 1,
                                              kfi_ceil(rows, 4 * KFI_PASS_WARPS))
                                  : 0;
}

// Sizes of a backward's product, for the inputs or for a weight.
KF_FN KFI_SMALL kfi_gemm_sizes kfi_back_sizes(const kf_i64 *sizes, int size, bool a_transposed,
                                              bool b_transposed, bool weight)
{
    kfi_gemm_sizes s = kfi_gemm_make_sizes(sizes, 1, size);
    const kf_i64 rows = s.rows, cols = s.cols, depth = s.depth;
    s.rows = weight ? (b_transposed ? depth : cols) : a_transposed ? depth : rows;
    s.cols = weight ? (b_transposed ? cols : depth) : a_transposed ? rows : depth;
    s.depth = weight ? rows : cols;
    s.split_any = weight || (a_transposed && KFI_GEMM_CLASS > 0); // its columns are the rows
    s.split_tail = weight;
    return s;
}
// Bytes of a product's partial sums. left: the product is stored there even without split-K.
KF_FN KFI_SMALL size_t kfi_back_product_bytes(const kfi_gemm_sizes &s, bool left)
{
    if (s.rows == 0 || s.cols == 0) return 0;
    const size_t parts = kfi_gemm_workspace(s);
    return parts > 0 || !left
               ? parts
               : (size_t)(s.matrices * s.rows * (kfi_ceil(s.cols, 8) * 8)) * (s.bytes == 8 ? 8 : 4);
}
// vectors: number of row vectors, and of depth vectors, that are summed over rows.
KF_FN KFI_SMALL kfi_back_room kfi_back_rooms(const kf_i64 *sizes, int size, int products,
                                             bool a_transposed, bool b_transposed, bool loads,
                                             const int *vectors)
{
    const kf_i64 batch = sizes[KFI_AXIS_BATCH], rows = sizes[KFI_AXIS_ROWS],
                 cols = sizes[KFI_AXIS_COLS], depth = sizes[KFI_AXIS_DEPTH];
    const int vec = 16 / size, acc = size == 8 ? 8 : 4;
    kfi_back_room room = {};
    if (!kfi_all_fit(sizes, 4) || batch == 0) return room;
    room.outer = a_transposed ? depth : rows;
    room.inner = a_transposed ? rows : depth;
    room.pitch[0] = kfi_ceil(cols, vec) * vec;
    room.pitch[1] = kfi_ceil(room.inner, vec) * vec;
    room.dacc = kfi_workspace((size_t)(batch * rows * room.pitch[0] * size * products));
    room.factor = loads ? kfi_workspace((size_t)(batch * room.outer * room.pitch[1] * size)) : 0;
    const kf_i64 sums[] = {kfi_pass_parts(rows, cols, size) * vectors[0] * cols,
                           kfi_pass_parts(room.outer, room.inner, size) * vectors[1] * room.inner};
    room.sums = kfi_workspace((size_t)(batch * (sums[0] > sums[1] ? sums[0] : sums[1]) * acc));
    const size_t needed[] = {
        kfi_back_product_bytes(kfi_back_sizes(sizes, size, a_transposed, b_transposed, false),
                               loads),
        kfi_back_product_bytes(kfi_back_sizes(sizes, size, a_transposed, b_transposed, true),
                               false),
        1};
    size_t inner = 0;
    for (size_t bytes : needed) inner = bytes > inner ? bytes : inner;
    room.all = room.dacc + room.factor + room.sums + kfi_workspace(inner);
    return room;
}
KF_FN KFI_SMALL size_t kfi_gemm_backward_workspace(kf_i64 batch, kf_i64 rows, kf_i64 cols,
                                                   kf_i64 depth, int size, int products,
                                                   bool a_transposed, bool b_transposed, bool loads,
                                                   int rowed, int deep)
{
    const kf_i64 sizes[] = {batch, rows, cols, depth};
    const int vectors[] = {rowed, deep};
    return kfi_back_rooms(sizes, size, products, a_transposed, b_transposed, loads, vectors).all;
}

// State of a call.
struct kfi_back_call {
    const kfi_gemm_back *op;
    const kf_i64 *sizes;
    double beta;
    kfi_gemm_tensors *t;
    kfi_gemm_pass *s;
    void **args; // arguments of the passes
    cudaStream_t stream;
    kfi_gemm_steps steps[KFI_MAX_TENSORS];
    kfi_back_room room;
    char *dacc, *factor, *sums, *parts;
    // Wanted gradients: of the left factor's tensors, of weights, of elementwise operands.
    bool inputs, weights, apart;
};
KF_FN KFI_SMALL bool kfi_back_wants(const kfi_back_call &c, const char *letters)
{
    bool found = false;
    for (; *letters; ++letters) found = found || c.t->p[*letters - 'a'];
    return found;
}
KF_FN KFI_SMALL int kfi_back_vectors(const kfi_gemm_steps *steps, const char *letters)
{
    int count = 0;
    for (; *letters; ++letters) count += steps[*letters - 'a'].vector;
    return count;
}
KF_FN KFI_SMALL kf_result_t kfi_back_too_large(const kfi_back_call &c)
{
    return kfi_fail(
        KF_ERROR_UNSUPPORTED, &c.op->name, "launch",
        "of %lld x %lld x %lld x %lld needs more blocks than a launch may have, or larger sizes",
        (long long)c.sizes[0], (long long)c.sizes[1], (long long)c.sizes[2], (long long)c.sizes[3]);
}

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

// An operand of a product: a tensor, or rows in the workspace. whole: 16-byte aligned.
struct kfi_back_factor {
    const void *p;
    kf_i64 ld, matrix;
    bool whole;
};
KF_FN KFI_SMALL kfi_back_factor kfi_back_tensor(const kfi_back_call &c, int tensor)
{
    const kfi_back_factor f = {c.t->p[tensor], c.t->ld[tensor], c.t->matrix[tensor],
                               kfi_gemm_whole(*c.t, tensor, c.op->size)};
    return f;
}
KF_FN KFI_SMALL kfi_back_factor kfi_back_dacc(const kfi_back_call &c, int product)
{
    if (c.op->dout_is_dacc) return kfi_back_tensor(c, c.op->dout);
    const kf_i64 matrix = c.sizes[KFI_AXIS_ROWS] * c.room.pitch[0];
    const kfi_back_factor f = {c.dacc + product * c.sizes[KFI_AXIS_BATCH] * matrix * c.op->size,
                               c.room.pitch[0], matrix, true};
    return f;
}
KF_FN KFI_SMALL kfi_back_factor kfi_back_left(const kfi_back_call &c)
{
    if (!c.op->loads) return kfi_back_tensor(c, c.op->left);
    const kfi_back_factor f = {c.factor, c.room.pitch[1], c.room.outer * c.room.pitch[1], true};
    return f;
}

// A product of the backward.
struct kfi_back_product {
    kfi_gemm_sizes sizes;
    kfi_gemm_choice choice;
    kfi_gemm_terms t;
    kfi_gemm g;
    int of;   // 0: for inputs, 1: for weights
    int tile; // wgmma tile; -1: portable kernel
    kfi_gemm_maps maps;
};
// Adds a term a . b; a has the result's rows.
KF_FN KFI_SMALL void kfi_back_term(kfi_back_product *p, const kfi_back_factor &a,
                                   const kfi_back_factor &b)
{
    const int i = p->t.count++;
    p->t.a[i] = a.p, p->t.a_ld[i] = a.ld, p->t.a_matrix[i] = a.matrix;
    p->t.b[i] = b.p, p->t.b_ld[i] = b.ld, p->t.b_matrix[i] = b.matrix;
    p->sizes.whole = p->sizes.whole && a.whole && b.whole;
}
// Encodes the tensor maps. Returns false if the device or the operands do not allow wgmma.
KF_FN KFI_SMALL bool kfi_back_maps(kfi_back_product *p, const kfi_back_call &c, const void *kernel)
{
    if (!kfi_has_wgmma(kernel, kfi_policy(p->tile).threads)) return false;
    const kfi_gemm_terms &t = p->t;
    const kfi_gemm_matrix a = {{t.a[0], t.a[1]}, {t.a_ld[0], t.a_ld[1]}},
                          b = {{t.b[0], t.b[1]}, {t.b_ld[0], t.b_ld[1]}};
    return kfi_gemm_map(&p->maps, p->sizes, c.op->type, c.op->layouts[p->of], t.count, a,
                        t.a_matrix, b, t.b_matrix);
}
// Picks a tile. out: index of the result, -1: the product goes to the workspace. Returns false if
// the grid is too large.
KF_FN KFI_SMALL bool kfi_back_choose(kfi_back_product *p, const kfi_back_call &c, int out, int size)
{
    const void *const *kernels = c.op->kernels + KFI_PASSES + p->of * kfi_gemm_kernels(c.op->size);
    if (out >= 0)
        p->t.out = c.t->p[out], p->t.out_ld = c.t->ld[out], p->t.out_matrix = c.t->matrix[out];
    const kfi_gemm_choice portable = kfi_gemm_pick_of(&p->sizes, kernels);
    p->tile = kfi_gemm_wgmma_tile(p->sizes, c.op->type, c.op->layouts[p->of]);
    if (p->tile >= 0 && !kfi_back_maps(p, c, kernels[kfi_gemm_wgmma_kernel(c.op->size)]))
        p->tile = -1;
    p->choice = p->tile >= 0 ? kfi_gemm_wgmma_choice(p->sizes, p->tile) : portable;
    return kfi_gemm_fill(&p->g, p->sizes, p->choice, out >= 0 && kfi_gemm_whole(*c.t, out, size),
                         c.parts);
}
// Returns whether the product's kernel is compiled (KF_SCHEDULES), or not needed.
KF_FN KFI_SMALL bool kfi_back_has(const kfi_back_product &p, const kfi_back_call &c)
{
    const void *const *kernels = c.op->kernels + KFI_PASSES + p.of * kfi_gemm_kernels(c.op->size);
    return p.t.count == 0 || p.tile >= 0 || kernels[kfi_gemm_kernel_of(p.choice, c.op->size)];
}
KF_FN KFI_SMALL bool kfi_back_plan_inputs(kfi_back_product *p, const kfi_back_call &c)
{
    const kfi_gemm_back &op = *c.op;
    *p = {};
    p->sizes = kfi_back_sizes(c.sizes, op.size, op.a_transposed, op.b_transposed, false);
    for (int i = 0; i < op.products; ++i) {
        const kfi_back_factor dacc = kfi_back_dacc(c, i),
                              weight = kfi_back_tensor(c, op.weights[i]);
        kfi_back_term(p, op.a_transposed ? weight : dacc, op.a_transposed ? dacc : weight);
    }
    return kfi_back_choose(p, c, op.loads ? -1 : op.dleft, op.size);
}
KF_FN KFI_SMALL bool kfi_back_plan_weight(kfi_back_product *p, const kfi_back_call &c, int number)
{
    const kfi_gemm_back &op = *c.op;
    const kfi_back_factor dacc = kfi_back_dacc(c, number), left = kfi_back_left(c);
    *p = {};
    p->of = 1;
    p->sizes = kfi_back_sizes(c.sizes, op.size, op.a_transposed, op.b_transposed, true);
    p->t.beta = c.beta;
    kfi_back_term(p, op.b_transposed ? left : dacc, op.b_transposed ? dacc : left);
    return kfi_back_choose(p, c, op.dweights[number], op.second);
}
KF_FN KFI_SMALL kf_result_t kfi_back_multiply(const kfi_back_call &c, kfi_back_product *p)
{
    const int size = c.op->size, count = kfi_gemm_kernels(size);
    const void *const *kernels = c.op->kernels + KFI_PASSES + p->of * count;
    void *args[] = {&p->t, &p->g, &p->maps};
    const kf_i64 blocks = kfi_gemm_units(p->choice, (kf_i64)p->g.tiles.d, p->sizes.matrices);
    const kf_result_t result =
        p->tile >= 0
            ? kfi_gemm_launch_wgmma(&c.op->name, kernels[kfi_gemm_wgmma_kernel(size)], &p->maps,
                                    p->g, p->choice, p->sizes.matrices, args, c.stream)
            : kfi_launch(&c.op->name, kernels[kfi_gemm_kernel_of(p->choice, size)],
                         dim3((unsigned)blocks), (unsigned)kfi_policy(p->choice.tile).threads, args,
                         c.stream, true,
                         kfi_gemm_shared(p->choice.tile, size, c.op->layouts[p->of]));
    if (result != KF_SUCCESS || p->choice.splits < 2 || !p->t.out) return result;
    const dim3 joint = kfi_gemm_reduce_grid(&p->g, p->sizes, 16 / size);
    return kfi_launch(&c.op->name, kernels[count - 1], joint, KFI_REDUCE_SPLITS_THREADS, args,
                      c.stream);
}

// Launches the products and the passes that read them.
KF_FN KFI_SMALL kf_result_t kfi_back_products(const kfi_back_call &c, kfi_back_product *inputs,
                                              kfi_back_product *weights)
{
    const kfi_gemm_back &op = *c.op;
    kf_result_t result = KF_SUCCESS;
    if (c.inputs) {
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
    c.parts = c.sums + c.room.sums;
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
