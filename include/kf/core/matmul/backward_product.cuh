// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/backward_product.cuh: host side of matmul backwards in CUDA: a call's state and
// workspace, and its products: operands, tile, launch. backward.cuh runs the steps.
//
// Operands of 2-byte elements whose rows are no whole vectors: `dout` is read by classes of rows
// (row_class.cuh) where the weight is aligned; other products copy such operands to the workspace
// (repack.cuh).
#ifndef KF_CORE_MATMUL_BACKWARD_PRODUCT_CUH
#define KF_CORE_MATMUL_BACKWARD_PRODUCT_CUH

#include "kf/core/matmul/host.cuh"
#include "kf/core/matmul/repack.cuh"

#ifdef KFI_HOST_PASS
enum { KFI_PASS_DACC, KFI_PASS_INPUTS, KFI_PASS_LEFT, KFI_PASSES };

// Constants of the launchers of one op and dtypes. Tensors are indices, -1 for none, or letters
// from 'a' on.
struct kfi_gemm_back {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes; // check.h
    // Passes; kernels of the products for inputs and for weights, each as in kfi_gemm_op; totals;
    // for 2-byte elements kfk_gemm_sum_class and kfk_gemm_repack.
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

// The workspace, in bytes: dacc or a copy of dout, the left factor, partial sums of the passes,
// copies of the left factor and of a weight (repack.cuh); all: with the products' partial sums.
struct kfi_back_room {
    size_t dacc, factor, sums, copies[2], all;
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
    if (!loads && kfi_repack_pays(kfi_back_sizes(sizes, size, a_transposed, b_transposed, true)))
        room.copies[0] = kfi_repack_bytes(batch, room.outer, room.inner);
    if (kfi_repack_pays(kfi_back_sizes(sizes, size, a_transposed, b_transposed, false)))
        room.copies[1] =
            kfi_repack_bytes(batch, b_transposed ? depth : cols, b_transposed ? cols : depth);
    room.all = room.dacc + room.factor + room.sums + room.copies[0] +
               (size_t)products * room.copies[1] + kfi_workspace(inner);
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
    char *dacc, *factor, *sums, *copies, *parts;
    kfi_repack *repack; // copies of dout, the left factor and the weights, in this order
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

// An operand of a product: a tensor, or rows in the workspace. whole: 16-byte aligned. job: of
// kfi_back_call::repack, which may copy it.
struct kfi_back_factor {
    const void *p;
    kf_i64 ld, matrix;
    bool whole;
    int job;
};
enum { KFI_COPY_DOUT, KFI_COPY_LEFT, KFI_COPY_WEIGHT };
KF_FN KFI_SMALL kfi_back_factor kfi_back_tensor(const kfi_back_call &c, int tensor, int job)
{
    const kfi_back_factor f = {c.t->p[tensor], c.t->ld[tensor], c.t->matrix[tensor],
                               kfi_gemm_whole(*c.t, tensor, c.op->size), job};
    return f;
}
KF_FN KFI_SMALL kfi_back_factor kfi_back_dacc(const kfi_back_call &c, int product)
{
    if (c.op->dout_is_dacc) return kfi_back_tensor(c, c.op->dout, KFI_COPY_DOUT);
    const kf_i64 matrix = c.sizes[KFI_AXIS_ROWS] * c.room.pitch[0];
    const kfi_back_factor f = {c.dacc + product * c.sizes[KFI_AXIS_BATCH] * matrix * c.op->size,
                               c.room.pitch[0], matrix, true, 0};
    return f;
}
KF_FN KFI_SMALL kfi_back_factor kfi_back_left(const kfi_back_call &c)
{
    if (!c.op->loads) return kfi_back_tensor(c, c.op->left, KFI_COPY_LEFT);
    const kfi_back_factor f = {c.factor, c.room.pitch[1], c.room.outer * c.room.pitch[1], true, 0};
    return f;
}

// A product of the backward.
struct kfi_back_product {
    kfi_gemm_sizes sizes;
    kfi_gemm_choice choice;
    kfi_gemm_terms t;
    kfi_gemm g;
    int of;                // 0: for inputs, 1: for weights
    int tile;              // wgmma tile; -1: portable kernel
    kfi_back_factor is[4]; // a and b of each term
    kfi_class_maps maps;
};
// Adds a term a . b; a has the result's rows.
KF_FN KFI_SMALL void kfi_back_term(kfi_back_product *p, const kfi_back_factor &a,
                                   const kfi_back_factor &b)
{
    const int i = p->t.count++;
    p->t.a[i] = a.p, p->t.a_ld[i] = a.ld, p->t.a_matrix[i] = a.matrix;
    p->t.b[i] = b.p, p->t.b_ld[i] = b.ld, p->t.b_matrix[i] = b.matrix;
    p->is[2 * i] = a, p->is[2 * i + 1] = b;
    p->sizes.whole = p->sizes.whole && a.whole && b.whole;
}
// Encodes the tensor maps. Returns false if the device or the operands do not allow wgmma.
KF_FN KFI_SMALL bool kfi_back_maps(kfi_back_product *p, const kfi_back_call &c, const void *kernel)
{
    if (!kfi_has_wgmma(kernel, kfi_policy(p->tile).threads)) return false;
    const kfi_gemm_terms &t = p->t;
    const kfi_gemm_matrix a = {{t.a[0], t.a[1]}, {t.a_ld[0], t.a_ld[1]}},
                          b = {{t.b[0], t.b[1]}, {t.b_ld[0], t.b_ld[1]}};
    return kfi_gemm_map(&p->maps.maps, p->sizes, c.op->type, c.op->layouts[p->of], t.count, a,
                        t.a_matrix, b, t.b_matrix);
}
KF_FN const void *kfi_back_class_kernel(const kfi_back_call &c)
{
    return c.op->kernels[KFI_PASSES + 2 * kfi_gemm_kernels(c.op->size) + 1];
}
// Plans the gradient of the left factor where dout's row pitch is no multiple of 16 bytes
// (row_class.cuh). Returns false if it does not apply. dout itself must be aligned: TMA would read
// before it.
KF_FN KFI_SMALL bool kfi_back_plan_class(kfi_back_product *p, const kfi_back_call &c, bool wide)
{
    const kfi_gemm_sizes &s = p->sizes;
    const kfi_gemm_terms &t = p->t;
    const int tile = KFI_TILE_WGMMA_CLASS_128x192;
    if (s.bytes != 2 || p->of != 0 || t.count != 1 || !t.out || p->is[0].whole || !p->is[1].whole ||
        c.op->layouts[0] != KFI_B_TRANSPOSED || (uintptr_t)t.a[0] % 16 != 0 || s.depth == 0 ||
        KFI_GEMM_CLASS == 0 || s.rows <= KFI_GEMM_CLASS || !s.mma ||
        !kfi_has_wgmma(kfi_back_class_kernel(c), kfi_policy(tile).threads))
        return false;
    kfi_mapped a = {}, b = {};
    a.p = t.a[0], a.ld = t.a_ld[0], a.apart = t.a_matrix[0];
    b.p = t.b[0], b.ld = t.b_ld[0], b.apart = t.b_matrix[0];
    if (!kfi_class_map(&p->maps, p->maps.shift, s, c.op->type, KFI_B_TRANSPOSED,
                       kfi_policy(tile).cols, a, b) ||
        !kfi_class_fill(&p->g, s, tile, true, wide))
        return false;
    p->tile = tile;
    p->choice = {tile, KFI_CP_ASYNC, 1, p->g.slice};
    return true;
}
KF_FN const void *kfi_back_repack_kernel(const kfi_back_call &c)
{
    return c.op->kernels[KFI_PASSES + 2 * kfi_gemm_kernels(c.op->size) + 2];
}
// Returns where the workspace has a copy of an operand; NULL: nowhere.
KF_FN char *kfi_back_copied(const kfi_back_call &c, int job)
{
    const size_t *const room = c.room.copies;
    return job == KFI_COPY_DOUT   ? c.dacc
           : job == KFI_COPY_LEFT ? (room[0] > 0 ? c.copies : nullptr)
           : room[1] > 0          ? c.copies + room[0] + (size_t)(job - KFI_COPY_WEIGHT) * room[1]
                                  : nullptr;
}
// Has operands copied whose rows are no whole vectors, if wgmma can then compute the product.
KF_FN KFI_SMALL void kfi_back_copy(kfi_back_product *p, const kfi_back_call &c, const void *wgmma)
{
    kfi_gemm_sizes s = p->sizes;
    s.whole = true;
    bool copies = !p->sizes.whole && kfi_repack_pays(s) && kfi_gemm_uses_wgmma(s) &&
                  kfi_back_repack_kernel(c) &&
                  kfi_has_wgmma(wgmma, kfi_policy(KFI_TILE_WGMMA_128x128_PINGPONG).threads);
    for (int i = 0; copies && i < 2 * p->t.count; ++i)
        copies = p->is[i].whole || kfi_back_copied(c, p->is[i].job);
    for (int i = 0; copies && i < 2 * p->t.count; ++i) {
        const kfi_back_factor &f = p->is[i];
        if (f.whole) continue;
        const bool dout = f.job == KFI_COPY_DOUT, left = f.job == KFI_COPY_LEFT,
                   turned = c.op->b_transposed;
        const kf_i64 cols = c.sizes[KFI_AXIS_COLS], depth = c.sizes[KFI_AXIS_DEPTH],
                     rows = dout     ? c.sizes[KFI_AXIS_ROWS]
                            : left   ? c.room.outer
                            : turned ? depth
                                     : cols,
                     line = dout     ? cols
                            : left   ? c.room.inner
                            : turned ? cols
                                     : depth;
        kfi_repack_job *const job = &c.repack->jobs[f.job];
        kfi_repack_add(job, f.p, f.ld, f.matrix, p->sizes.matrices, rows, line,
                       kfi_back_copied(c, f.job));
        const void **const to = i % 2 ? p->t.b : p->t.a;
        to[i / 2] = job->to;
        (i % 2 ? p->t.b_ld : p->t.a_ld)[i / 2] = job->pitch;
        (i % 2 ? p->t.b_matrix : p->t.a_matrix)[i / 2] = rows * job->pitch;
    }
    p->sizes.whole = p->sizes.whole || copies;
}
// Picks a tile. out: index of the result, -1: the product goes to the workspace. Returns false if
// the grid is too large.
KF_FN KFI_SMALL bool kfi_back_choose(kfi_back_product *p, const kfi_back_call &c, int out, int size)
{
    const void *const *kernels = c.op->kernels + KFI_PASSES + p->of * kfi_gemm_kernels(c.op->size);
    if (out >= 0)
        p->t.out = c.t->p[out], p->t.out_ld = c.t->ld[out], p->t.out_matrix = c.t->matrix[out];
    const kfi_gemm_choice portable = kfi_gemm_pick_of(&p->sizes, kernels);
    const bool wide = out >= 0 && kfi_gemm_whole(*c.t, out, size);
    if (kfi_back_plan_class(p, c, wide)) return true;
    kfi_back_copy(p, c, kernels[kfi_gemm_wgmma_kernel(c.op->size)]);
    p->tile = kfi_gemm_wgmma_tile(p->sizes, c.op->type, c.op->layouts[p->of]);
    if (p->tile >= 0 && !kfi_back_maps(p, c, kernels[kfi_gemm_wgmma_kernel(c.op->size)]))
        p->tile = -1;
    p->choice = p->tile >= 0 ? kfi_gemm_wgmma_choice(p->sizes, p->tile) : portable;
    return kfi_gemm_fill(&p->g, p->sizes, p->choice, wide, c.parts);
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
                              weight = kfi_back_tensor(c, op.weights[i], KFI_COPY_WEIGHT + i);
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
    const bool by_class = p->tile == KFI_TILE_WGMMA_CLASS_128x192;
    const void *const wgmma =
        by_class ? kfi_back_class_kernel(c) : kernels[kfi_gemm_wgmma_kernel(size)];
    void *args[] = {&p->t, &p->g, by_class ? (void *)&p->maps : &p->maps.maps};
    const kf_i64 blocks = kfi_gemm_units(p->choice, (kf_i64)p->g.tiles.d, p->sizes.matrices);
    const kf_result_t result =
        p->tile >= 0
            ? kfi_gemm_launch_wgmma(&c.op->name, wgmma, &p->maps.maps, p->g, p->choice,
                                    p->sizes.matrices, args, c.stream)
            : kfi_launch(&c.op->name, kernels[kfi_gemm_kernel_of(p->choice, size)],
                         dim3((unsigned)blocks), (unsigned)kfi_policy(p->choice.tile).threads, args,
                         c.stream, true,
                         kfi_gemm_shared(p->choice.tile, size, c.op->layouts[p->of]));
    if (result != KF_SUCCESS || p->choice.splits < 2 || !p->t.out) return result;
    const dim3 joint = kfi_gemm_reduce_grid(&p->g, p->sizes, 16 / size);
    return kfi_launch(&c.op->name, kernels[count - 1], joint, KFI_REDUCE_SPLITS_THREADS, args,
                      c.stream);
}
#endif

#endif
