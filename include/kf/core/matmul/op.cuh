// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/op.cuh: host side of matmul forwards in CUDA: checks, workspace, choice of the
// kernel and launch. Order of choice: skinny M, wgmma (through slabs where results allow TMA),
// portable tiles with split-K. The kernels are in templates; backwards: backward.cuh.
#ifndef KF_CORE_MATMUL_OP_CUH
#define KF_CORE_MATMUL_OP_CUH

#include "kf/core/matmul/backward.cuh"

#ifdef KFI_DEVICE_PASS
// An operand of the product, or the operands of two products that share the other one.
template <int size>
KFI_DEVICE kfi_gemm_matrix kfi_gemm_matrix_of(const kfi_gemm_tensors &t, int first, int second,
                                              kf_i64 matrix)
{
    const kfi_gemm_matrix side = {{(const char *)t.p[first] + matrix * t.matrix[first] * size,
                                   (const char *)t.p[second] + matrix * t.matrix[second] * size},
                                  {t.ld[first], t.ld[second]}};
    return side;
}
// Offset of a vector of results in a tensor; a row vector has ld = 0.
KFI_DEVICE kf_i64 kfi_gemm_offset(const kfi_gemm_tensors &t, int tensor,
                                  const kfi_gemm_coord &coord, kf_i64 matrix)
{
    return matrix * t.matrix[tensor] + coord.row * t.ld[tensor] + coord.col;
}
#endif

#ifdef KFI_HOST_PASS
// Constants of the launchers of one op and dtype. Tensors are indices among the arguments.
struct kfi_gemm_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes; // check.h
    // Kernels by kfi_gemm_kernel_of, the last one reducing splits; then the pass that makes the
    // left factor (`loads`); then skinny M (2 bytes: N = 16, 64; float32 in layout nt:
    // kfi_skinny_f32_width), and for 2-byte elements those of kfi_slab_kernel_index.
    const void *const *kernels;
    int size = 0; // bytes of an element
    int left = 0, products = 0, weights[2] = {};
    int layout = 0;
    bool loads = false;       // `load` makes the left factor, in the workspace
    const char *touched = ""; // tensors that `load` reads: their letters, 'a' first
    int type = 0;             // KFI_OF_
    int slabs = 0;            // results that are stored through slabs; 0: no such kernels
    int results[2] = {};
};

// The workspace, in bytes: the left factor; all: with partial sums.
struct kfi_forward_room {
    size_t factor, all;
    kf_i64 outer, inner, pitch; // rows and columns of the left factor as stored, and its pitch
};
KF_FN KFI_SMALL kfi_forward_room kfi_forward_rooms(const kf_i64 *sizes, int products, int bytes,
                                                   int layout, bool loads)
{
    const bool transposed = layout & KFI_A_TRANSPOSED;
    const kf_i64 batch = sizes[KFI_AXIS_BATCH], rows = sizes[KFI_AXIS_ROWS],
                 depth = sizes[KFI_AXIS_DEPTH];
    kfi_forward_room room = {};
    if (!kfi_all_fit(sizes, 4) || batch == 0 || rows == 0 || sizes[KFI_AXIS_COLS] == 0) return room;
    const size_t parts = kfi_gemm_workspace(kfi_gemm_make_sizes(sizes, products, bytes));
    room.outer = transposed ? depth : rows;
    room.inner = transposed ? rows : depth;
    room.pitch = kfi_ceil(room.inner, 16 / bytes) * (16 / bytes);
    room.factor = loads ? kfi_workspace((size_t)(batch * room.outer * room.pitch * bytes)) : 0;
    room.all = room.factor + kfi_workspace(parts > 0 ? parts : 1); // not empty, whatever the sizes
    return room;
}
KF_FN KFI_SMALL size_t kfi_gemm_forward_workspace(kf_i64 batch, kf_i64 rows, kf_i64 cols,
                                                  kf_i64 depth, int products, int bytes, int layout,
                                                  bool loads)
{
    const kf_i64 sizes[] = {batch, rows, cols, depth};
    return kfi_forward_rooms(sizes, products, bytes, layout, loads).all;
}

// A call. t, s, g, maps: kernel arguments to fill in; args: of the kernels; pass_args: of the pass.
struct kfi_forward_call {
    kfi_gemm_tensors *t;
    kfi_gemm_pass *s;
    kfi_gemm *g;
    kfi_gemm_maps *maps;
    void **args, **pass_args;
    cudaStream_t stream;
};
KF_FN KFI_SMALL kf_result_t kfi_forward_too_large(const kfi_gemm_op &op, const kf_i64 *sizes)
{
    return kfi_fail(
        KF_ERROR_UNSUPPORTED, &op.name, "launch",
        "of %lld x %lld x %lld x %lld needs more blocks than a launch may have, or larger sizes",
        (long long)sizes[0], (long long)sizes[1], (long long)sizes[2], (long long)sizes[3]);
}
// Launches the pass that makes the left factor in the workspace, which the product then reads.
KF_FN KFI_SMALL kf_result_t kfi_forward_factor(const kfi_gemm_op &op, const kfi_forward_call &c,
                                               const kfi_forward_room &room, kf_i64 batch,
                                               void *workspace)
{
    kfi_gemm_pass *s = c.s;
    *s = {};
    s->rows = room.outer;
    s->cols = room.inner;
    s->col_blocks = (unsigned)kfi_pass_col_blocks(s->cols, op.size);
    s->parts = (unsigned)kfi_pass_parts(s->rows, s->cols, op.size);
    s->per = s->parts > 0 ? kfi_ceil(s->rows, s->parts) : 0;
    s->pitch = room.pitch;
    s->made[0] = workspace;
    s->wide = true;
    for (const char *letter = op.touched; *letter; ++letter)
        if (c.t->p[*letter - 'a'])
            s->wide = s->wide && kfi_gemm_whole(*c.t, *letter - 'a', op.size);
    const kf_i64 blocks = batch * s->col_blocks * s->parts;
    kf_result_t result = KF_SUCCESS;
    if (blocks > 0)
        result = kfi_launch(&op.name, op.kernels[kfi_gemm_kernels(op.size)], dim3((unsigned)blocks),
                            KFI_PASS_THREADS, c.pass_args, c.stream);
    c.t->p[op.left] = workspace;
    c.t->ld[op.left] = room.pitch;
    c.t->matrix[op.left] = room.outer * room.pitch;
    return result;
}
KF_FN KFI_SMALL bool kfi_forward_pass_fits(const kfi_gemm_op &op, const kfi_forward_room &room,
                                           kf_i64 batch)
{
    const kf_i64 most = 0x7fffffff / batch;
    return !op.loads ||
           (room.inner <= most && kfi_pass_col_blocks(room.inner, op.size) *
                                          kfi_pass_parts(room.outer, room.inner, op.size) <=
                                      most);
}

// Encodes the operands' tensor maps for tiles of rows x cols. Returns false if TMA cannot load
// them.
KF_FN KFI_SMALL bool kfi_forward_map(const kfi_gemm_op &op, const kfi_gemm_sizes &s,
                                     const kfi_forward_call &c, int rows, int cols)
{
    const kfi_gemm_tensors &t = *c.t;
    const int *const w = op.weights, last = op.products - 1;
    const kfi_gemm_matrix a = {{t.p[op.left], nullptr}, {t.ld[op.left], 0}},
                          b = {{t.p[w[0]], t.p[w[last]]}, {t.ld[w[0]], t.ld[w[last]]}};
    const kf_i64 a_matrix[] = {t.matrix[op.left], 0},
                 b_matrix[] = {t.matrix[w[0]], t.matrix[w[last]]};
    return kfi_gemm_map(c.maps, s, op.type, op.layout, 1, a, a_matrix, b, b_matrix, rows, cols);
}
// Encodes the results' tensor maps. Returns false if slabs cannot store them.
KF_FN KFI_SMALL bool kfi_forward_slabs(const kfi_gemm_op &op, const kfi_gemm_sizes &s,
                                       const kfi_forward_call &c, bool wide, int tile)
{
    const kfi_gemm_tensors &t = *c.t;
    // A TMA store clips rows at 16 bytes: it would write the padding behind a row's odd end.
    bool mapped = wide && s.cols % (16 / s.bytes) == 0;
    for (int i = 0; mapped && i < op.slabs; ++i) {
        const int r = op.results[i];
        if (!t.p[r]) continue;
        const kfi_mapped f = {t.p[r],  s.cols,     s.rows,
                              t.ld[r], s.matrices, t.matrix[r],
                              op.type, 16,         2 * kfi_policy(tile).slab_cols};
        mapped = kfi_map_factor(&c.maps->results[i], &c.maps->batched_results[i], f);
    }
    return mapped;
}
// Launches the kernel for few rows of float32. Returns false if operands, sizes or the device's
// code do not allow it.
KF_FN KFI_SMALL bool kfi_forward_skinny_f32(const kfi_gemm_op &op, const kfi_gemm_sizes &s,
                                            const kfi_forward_call &c, bool wide,
                                            kf_result_t *result)
{
    const int width = kfi_skinny_f32_width(s);
    const void *const kernel = op.kernels[kfi_gemm_kernels(op.size) + op.loads + width];
    const kfi_skinny_f32_choice choice = kfi_gemm_pick_skinny_f32(s);
    if (!kfi_has_wgmma(kernel, kfi_policy(KFI_TILE_SKINNY_F32).threads) ||
        !kfi_forward_map(op, s, c, (int)s.rows, choice.tile_cols * s.products) ||
        !kfi_gemm_fill(c.g, s, {KFI_TILE_SKINNY_F32, KFI_CP_ASYNC, 1, s.depth}, wide, nullptr))
        return false;
    *result =
        kfi_gemm_launch_skinny_f32(&op.name, kernel, c.maps, c.g, s, choice, c.args, c.stream);
    return true;
}
// Returns the sm_90a tile that the sizes call for; -1: none.
KF_FN KFI_SMALL int kfi_forward_tile(const kfi_gemm_op &op, const kfi_gemm_sizes &s)
{
    return kfi_gemm_uses_skinny(s, op.layout)       ? KFI_TILE_WGMMA_SKINNY
           : kfi_gemm_uses_skinny_f32(s, op.layout) ? KFI_TILE_SKINNY_F32
                                                    : kfi_gemm_wgmma_tile(s, op.type, op.layout);
}
// Launches a wgmma kernel. Returns false if operands, sizes or the device's code do not allow it.
KF_FN KFI_SMALL bool kfi_gemm_forward_wgmma(const kfi_gemm_op &op, const kfi_gemm_sizes &s,
                                            const kfi_forward_call &c, bool wide,
                                            kf_result_t *result)
{
    int tile = kfi_forward_tile(op, s);
    const bool skinny = tile == KFI_TILE_WGMMA_SKINNY;
    if (tile < 0) return false;
    if (tile == KFI_TILE_SKINNY_F32) return kfi_forward_skinny_f32(op, s, c, wide, result);
    const void *const *const behind = op.kernels + kfi_gemm_kernels(op.size) + op.loads;
    bool slabs = tile == KFI_TILE_WGMMA_128x128_PINGPONG && op.slabs > 0;
    if (slabs) {
        const int wanted = kfi_gemm_pick_slab_tile(s, op.layout, behind + 2);
        slabs = kfi_forward_slabs(op, s, c, wide, wanted);
        if (slabs) tile = wanted;
    }
    const void *const kernel = skinny  ? behind[s.rows > 16]
                               : slabs ? behind[2 + kfi_slab_kernel_index(tile)]
                                       : op.kernels[kfi_gemm_wgmma_kernel(op.size)];
    if (!kfi_has_wgmma(kernel, kfi_policy(tile).threads)) return false;
    const int rows = skinny ? kfi_skinny_box_rows(s) : kfi_policy(tile).rows;
    const kfi_gemm_choice choice =
        skinny ? kfi_gemm_choice{tile, KFI_CP_ASYNC, 1, s.depth} : kfi_gemm_wgmma_choice(s, tile);
    if (!kfi_forward_map(op, s, c, rows, kfi_policy(tile).cols) ||
        !kfi_gemm_fill(c.g, s, choice, wide, nullptr))
        return false;
    *result = skinny ? kfi_gemm_launch_skinny(&op.name, kernel, c.maps, *c.g, s, op.layout,
                                              kfi_gemm_pick_skinny(s), c.args, c.stream)
                     : kfi_gemm_launch_wgmma(&op.name, kernel, c.maps, *c.g, choice, s.matrices,
                                             c.args, c.stream);
    return true;
}

// Runs a forward.
KF_FN kf_result_t kfi_gemm_forward_run(const kfi_gemm_op &op, const kf_i64 *sizes,
                                       const kfi_forward_call &c, void *workspace,
                                       size_t workspace_bytes)
{
    kfi_operands operands;
    kfi_gemm_steps given[KFI_MAX_TENSORS], steps[KFI_MAX_TENSORS]; // arguments, tensors
    kfi_gemm_tensors *t = c.t;
    kf_result_t result =
        kfi_check_gemm(&op.name, &op.arguments, &op.strides, op.shapes, sizes, given, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const kfi_forward_room room =
        kfi_forward_rooms(sizes, op.products, op.size, op.layout, op.loads);
    result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes,
                                 room.all);
    if (result != KF_SUCCESS) return result;
    const int count =
        kfi_gemm_fill_tensors(t, op.shapes, sizes[KFI_AXIS_COLS], operands, given, steps);
    kfi_gemm_sizes s = kfi_gemm_make_sizes(sizes, op.products, op.size);
    s.whole = op.loads || kfi_gemm_whole(*t, op.left, op.size); // rows in the workspace are aligned
    bool wide = true;
    for (int p = 0; p < op.products; ++p)
        s.whole = s.whole && kfi_gemm_whole(*t, op.weights[p], op.size);
    for (int i = 0; i < count; ++i)
        if (i != op.left && i != op.weights[0] && i != op.weights[op.products - 1] && t->p[i])
            wide = wide && kfi_gemm_whole(*t, i, op.size);
    const kfi_gemm_choice choice = kfi_gemm_pick_of(&s, op.kernels);
    if (!kfi_forward_pass_fits(op, room, s.matrices) ||
        !kfi_gemm_fill(c.g, s, choice, wide, (char *)workspace + room.factor))
        return kfi_forward_too_large(op, sizes);
    if (op.loads) result = kfi_forward_factor(op, c, room, s.matrices, workspace);
    if (result != KF_SUCCESS || kfi_gemm_forward_wgmma(op, s, c, wide, &result)) return result;
    const kf_i64 blocks = (kf_i64)c.g->tiles.d * s.matrices * choice.splits;
    const void *const kernel = op.kernels[kfi_gemm_kernel_of(choice, op.size)];
    if (!kernel) return kfi_gemm_left_out(&op.name);
    result = kfi_launch(&op.name, kernel, dim3((unsigned)blocks),
                        (unsigned)kfi_policy(choice.tile).threads, c.args, c.stream, true,
                        kfi_gemm_shared(choice.tile, op.size, op.layout));
    if (result != KF_SUCCESS || choice.splits < 2) return result;
    const dim3 joint = kfi_gemm_reduce_grid(c.g, s, 16 / op.size);
    return kfi_launch(&op.name, op.kernels[kfi_gemm_kernels(op.size) - 1], joint,
                      KFI_REDUCE_SPLITS_THREADS, c.args, c.stream);
}
#endif

#endif
