/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/op.h: matmul ops in C, forward and backward: the products and the seams around
   them (seam.h).

   A backward has up to four launch steps: dacc, the gradients of the products' accumulators, from
   dout and what was saved; the product of dacc and the weights, from which a seam makes the
   gradients of the left factor's operands; a product for each weight; the reduction of partial
   sums. Every part of a sum follows from the sizes. */
#ifndef KF_CORE_MATMUL_OP_H
#define KF_CORE_MATMUL_OP_H

#include "kf/core/host.h"

#include "kf/core/matmul/seam.h"
#include "kf/core/matmul/seam_block.h"

KFI_C_BEGIN

#define KFI_GEMM_PARTS 16     /* parts of the rows over which dacc is summed, at most */
#define KFI_GEMM_PART_ROWS 32 /* rows of such a part, at least */

/* One product of a call. rows, cols, along: axes of its result, and its K. */
typedef struct {
    const kfi_cpu_gemm *m;
    const kfi_seam *made;
    int rows, cols, along;
    double beta;
    char *sums; /* partial sums of vectors [batch][unit of rows][vector]; NULL: none */
    kf_i64 units, vectors;
    int factor_lines; /* axis of the rows of the left factor that are loaded */
} kfi_gemm_step;

KFI_HOST kf_i64 kfi_gemm_parts(kf_i64 rows)
{
    const kf_i64 parts = (rows + KFI_GEMM_PART_ROWS - 1) / KFI_GEMM_PART_ROWS;
    return parts < KFI_GEMM_PARTS ? parts : KFI_GEMM_PARTS;
}
KFI_HOST kf_i64 kfi_gemm_units(kf_i64 rows) { return (rows + KFI_GEMM_UNIT - 1) / KFI_GEMM_UNIT; }

/* Stores a block of a product's results. */
KFI_HOST void kfi_gemm_stored(const void *seam, kf_i64 batch, kf_i64 row0, kf_i64 rows, kf_i64 col0,
                              kf_i64 cols, const void *block, const void *second, kf_i64 ld)
{
    const kfi_gemm_step *step = (const kfi_gemm_step *)seam;
    const int acc = step->m->type.acc_size;
    kfi_seam_row row;
    memset(&row, 0, sizeof row);
    row.at[KFI_AXIS_BATCH] = batch;
    row.at[step->cols] = col0;
    row.axis = step->cols;
    row.beta = step->beta;
    if (step->sums) {
        row.apart = step->m->size[step->cols];
        row.sums = step->sums +
                   (batch * step->units + row0 / KFI_GEMM_UNIT) * step->vectors * row.apart * acc;
    }
    if (!step->sums && kfi_seam_takes_blocks(step->m, step->made)) {
        row.at[step->rows] = row0;
        row.product[0] = block;
        row.product[1] = second;
        kfi_seam_block(step->m, step->made, &row, step->rows, rows, ld, cols);
        return;
    }
    for (kf_i64 r = 0; r < rows; ++r) {
        row.at[step->rows] = row0 + r;
        row.product[0] = (const char *)block + r * ld * acc;
        row.product[1] = second ? (const char *)second + r * ld * acc : NULL;
        kfi_seam_run(step->m, step->made, &row, cols);
    }
}

/* Loads rows of the left factor along its contiguous axis. If rows run across that axis, columns
 * are loaded and transposed. */
KFI_HOST void kfi_gemm_factor(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines,
                              kf_i64 depth0, kf_i64 depths, void *to)
{
    const kfi_gemm_step *step = (const kfi_gemm_step *)seam;
    const kfi_cpu_gemm *m = step->m;
    const int lined = step->factor_lines,
              other = lined == KFI_AXIS_ROWS ? KFI_AXIS_DEPTH : KFI_AXIS_ROWS,
              acc = m->type.acc_size;
    double room[KFI_PART];
    kfi_seam_row row;
    memset(&row, 0, sizeof row);
    row.at[KFI_AXIS_BATCH] = batch;
    row.axis = m->steps[m->factor].inner;
    if (row.axis == other) {
        for (kf_i64 i = 0; i < lines; ++i) {
            row.at[lined] = line0 + i;
            row.at[other] = depth0;
            row.made = (char *)to + i * depths * acc;
            kfi_seam_run(m, &m->load, &row, depths);
        }
        return;
    }
    row.made = room;
    for (kf_i64 k = 0; k < depths; ++k)
        for (kf_i64 i = 0; i < lines; i += KFI_PART) {
            const kf_i64 count = lines - i < KFI_PART ? lines - i : KFI_PART;
            row.at[lined] = line0 + i;
            row.at[other] = depth0 + k;
            kfi_seam_run(m, &m->load, &row, count);
            for (kf_i64 j = 0; j < count; ++j)
                memcpy((char *)to + ((i + j) * depths + k) * acc, (const char *)room + j * acc,
                       (size_t)acc);
        }
}

/* Loads the weights of two products as one operand, concatenated along K. */
KFI_HOST void kfi_gemm_joined(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines,
                              kf_i64 depth0, kf_i64 depths, void *to)
{
    const kfi_gemm_step *step = (const kfi_gemm_step *)seam;
    const kfi_cpu_gemm *m = step->m;
    const kf_i64 cols = m->size[KFI_AXIS_COLS];
    for (kf_i64 k = 0; k < depths;) {
        const int p = depth0 + k >= cols, tensor = m->weights[p];
        const kf_i64 *by = m->steps[tensor].step, first = depth0 + k - p * cols,
                     left = p ? depths - k : cols - first;
        const kf_i64 count = left < depths - k ? left : depths - k;
        for (kf_i64 i = 0; i < lines; ++i)
            for (kf_i64 j = 0; j < count; j += KFI_PART) {
                const char *from = (const char *)m->operands.of[tensor].ptr +
                                   (batch * by[KFI_AXIS_BATCH] + (line0 + i) * by[KFI_AXIS_DEPTH] +
                                    (first + j) * by[KFI_AXIS_COLS]) *
                                       m->type.size;
                m->type.widen(from, by[KFI_AXIS_COLS],
                              (char *)to + (i * depths + k + j) * m->type.acc_size,
                              (int)(count - j < KFI_PART ? count - j : KFI_PART));
            }
        k += count;
    }
}

/* A tensor as an operand. lines, along: its axes of rows (or columns) and K. */
KFI_HOST kfi_gemm_operand kfi_gemm_tensor(const kfi_cpu_gemm *m, int tensor, int lines, int along)
{
    const kf_i64 *step = m->steps[tensor].step;
    const kfi_gemm_operand o = {m->operands.of[tensor].ptr, step[lines], step[along],
                                step[KFI_AXIS_BATCH], NULL};
    return o;
}
/* The first tensor that a product's results are stored to, for prefetches. */
KFI_HOST kfi_gemm_result kfi_gemm_written(const kfi_gemm_step *step)
{
    const kfi_cpu_gemm *m = step->m;
    const int tensor = step->made->out[0] - 'a';
    kfi_gemm_result r = {NULL, 0, 0, 0};
    if (tensor < 0 || m->steps[tensor].vector || m->steps[tensor].step[step->cols] != 1) return r;
    r.data = m->operands.of[tensor].ptr;
    r.row_step = m->steps[tensor].step[step->rows];
    r.batch_step = m->steps[tensor].step[KFI_AXIS_BATCH];
    r.size = m->operands.of[tensor].size;
    return r;
}
KFI_HOST kfi_gemm_operand kfi_gemm_left(kfi_gemm_step *step, int lines, int along)
{
    kfi_gemm_operand o = kfi_gemm_tensor(step->m, step->m->factor, lines, along);
    step->factor_lines = lines;
    if (step->m->load.fn) o.load = kfi_gemm_factor;
    return o;
}
/* dacc of a product, or of all of them from product 0 on, as an operand. */
KFI_HOST kfi_gemm_operand kfi_gemm_dacc(const kfi_cpu_gemm *m, int product, int lines, int along)
{
    if (m->dout_is_dacc) return kfi_gemm_tensor(m, m->dout, lines, along);
    const kf_i64 line = m->products * m->size[KFI_AXIS_COLS];
    const kfi_gemm_operand o = {m->dacc_rows + product * m->size[KFI_AXIS_COLS] * m->type.size,
                                lines == KFI_AXIS_ROWS ? line : 1,
                                lines == KFI_AXIS_ROWS ? 1 : line, m->size[KFI_AXIS_ROWS] * line,
                                NULL};
    return o;
}

KFI_HOST size_t kfi_gemm_forward_bytes(kfi_gemm_type type, kf_i64 batch, kf_i64 rows, kf_i64 cols,
                                       kf_i64 depth, int products)
{
    const kf_i64 sizes[] = {batch, rows, cols, depth};
    return kfi_all_fit(sizes, 4) ? kfi_workspace(type.bytes(rows, cols, depth, products)) : 0;
}

/* Checks a call and finds its tensors. */
KFI_HOST kf_result_t kfi_gemm_check_call(kfi_cpu_gemm *m, const void *workspace, size_t got,
                                         size_t expected)
{
    kfi_operands operands;
    kfi_gemm_steps steps[KFI_MAX_TENSORS];
    kf_result_t result =
        kfi_check_gemm(&m->name, &m->arguments, &m->strides, m->shapes, m->size, steps, &operands);
    m->operands.wanted = 0;
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m->name, &m->arguments, &operands, workspace, got, expected);
    kfi_gemm_split_joined(m->shapes, m->size[KFI_AXIS_COLS], steps, &operands, m->steps,
                          &m->operands);
    return result;
}

KFI_HOST kf_result_t kfi_gemm_forward(kfi_cpu_gemm *m, const kf_i64 *sizes, void *workspace,
                                      size_t workspace_bytes)
{
    const size_t bytes =
        kfi_gemm_forward_bytes(m->type, sizes[0], sizes[1], sizes[2], sizes[3], m->products);
    memcpy(m->size, sizes, sizeof m->size);
    const kf_result_t result = kfi_gemm_check_call(m, workspace, workspace_bytes, bytes);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    kfi_gemm_step step = {
        m, &m->store, KFI_AXIS_ROWS, KFI_AXIS_COLS, KFI_AXIS_DEPTH, m->beta, NULL, 0, 0, 0};
    const kfi_gemm_operand a = kfi_gemm_left(&step, KFI_AXIS_ROWS, KFI_AXIS_DEPTH);
    const kfi_gemm_operand b = kfi_gemm_tensor(m, m->weights[0], KFI_AXIS_COLS, KFI_AXIS_DEPTH);
    const kfi_gemm_operand b2 =
        kfi_gemm_tensor(m, m->weights[m->products - 1], KFI_AXIS_COLS, KFI_AXIS_DEPTH);
    const kfi_gemm_result result_at = kfi_gemm_written(&step);
    m->type.run(sizes[KFI_AXIS_BATCH], sizes[KFI_AXIS_ROWS], sizes[KFI_AXIS_COLS],
                sizes[KFI_AXIS_DEPTH], &a, &b, m->products > 1 ? &b2 : NULL, kfi_gemm_stored, &step,
                &result_at, workspace);
    return KF_SUCCESS;
}

/* ---- gradients ---- */

typedef struct {
    size_t dacc, sums, inner, whole;
} kfi_gemm_room;

/* The workspace of a backward, in bytes: dacc, partial sums over rows, the products'. rowed, deep:
 * number of row and depth vectors that are summed.
 */
KFI_HOST kfi_gemm_room kfi_gemm_backward_room(kfi_gemm_type type, const kf_i64 *sizes, int products,
                                              int rowed, int deep)
{
    const kf_i64 batch = sizes[KFI_AXIS_BATCH], rows = sizes[KFI_AXIS_ROWS],
                 cols = sizes[KFI_AXIS_COLS], depth = sizes[KFI_AXIS_DEPTH];
    kfi_gemm_room room = {0, 0, 0, 0};
    if (!kfi_all_fit(sizes, 4)) return room;
    const size_t needed[] = {type.bytes(rows, depth, products * cols, 1),
                             type.bytes(depth, rows, products * cols, 1),
                             type.bytes(cols, depth, rows, 1), type.bytes(depth, cols, rows, 1)};
    for (int i = 0; i < 4; ++i)
        if (needed[i] > room.inner) room.inner = needed[i];
    room.dacc = kfi_workspace((size_t)(batch * rows * products * cols * type.size));
    room.sums = kfi_workspace(
        (size_t)(batch *
                 (kfi_gemm_parts(rows) * rowed * cols + kfi_gemm_units(rows) * deep * depth) *
                 type.acc_size));
    room.whole = room.dacc + room.sums + kfi_workspace(room.inner);
    return room;
}
KFI_HOST size_t kfi_gemm_backward_bytes(kfi_gemm_type type, kf_i64 batch, kf_i64 rows, kf_i64 cols,
                                        kf_i64 depth, int products, int rowed, int deep)
{
    const kf_i64 sizes[] = {batch, rows, cols, depth};
    return kfi_gemm_backward_room(type, sizes, products, rowed, deep).whole;
}

/* The number of vectors that a seam makes. */
KFI_HOST int kfi_seam_vectors(const kfi_cpu_gemm *m, const kfi_seam *seam)
{
    int count = 0;
    for (const char *value = seam->out ? seam->out : ""; *value; ++value)
        count += *value >= 'a' && m->steps[*value - 'a'].vector;
    return count;
}
/* Returns whether any tensor that a seam makes is wanted. */
KFI_HOST int kfi_seam_wanted(const kfi_cpu_gemm *m, const kfi_seam *seam)
{
    for (const char *value = seam->out ? seam->out : ""; *value; ++value)
        if (*value >= 'a' && m->operands.of[*value - 'a'].ptr) return 1;
    return 0;
}

/* Runs the seam dacc over a part of a batch's rows and KFI_TILE columns. */
KFI_HOST void kfi_gemm_dacc_pass(void *context, kf_i64 item)
{
    const kfi_cpu_gemm *m = (const kfi_cpu_gemm *)context;
    const kf_i64 rows = m->size[KFI_AXIS_ROWS], cols = m->size[KFI_AXIS_COLS],
                 parts = kfi_gemm_parts(rows), blocks_across = (cols + KFI_TILE - 1) / KFI_TILE;
    const kf_i64 strip = item % blocks_across, part = item / blocks_across % parts,
                 per = (rows + parts - 1) / parts;
    const kf_i64 begin = part * per, end = rows < begin + per ? rows : begin + per,
                 left = cols - strip * KFI_TILE;
    kfi_seam_row row;
    memset(&row, 0, sizeof row);
    row.axis = KFI_AXIS_COLS;
    row.at[KFI_AXIS_BATCH] = item / blocks_across / parts;
    row.at[KFI_AXIS_COLS] = strip * KFI_TILE;
    row.apart = cols;
    row.sums = m->partial + (row.at[KFI_AXIS_BATCH] * parts + part) *
                                kfi_seam_vectors(m, &m->dacc) * cols * m->type.acc_size;
    row.first = 1;
    for (kf_i64 r = begin; r < end; ++r, row.first = 0) {
        row.at[KFI_AXIS_ROWS] = r;
        kfi_seam_run(m, &m->dacc, &row, left < KFI_TILE ? left : KFI_TILE);
    }
}

/* Reduces the partial sums of a seam's vectors: parts [batch, parts, vectors, size]. */
KFI_HOST void kfi_gemm_totals(const kfi_cpu_gemm *m, const kfi_seam *seam, const char *parts,
                              kf_i64 count, int axis)
{
    const int acc = m->type.acc_size, vectors = kfi_seam_vectors(m, seam);
    const kf_i64 size = m->size[axis];
    int vector = 0;
    for (const char *value = seam->out; *value; ++value) {
        const int tensor = *value - 'a';
        if (*value < 'a' || !m->steps[tensor].vector) continue;
        const kf_i64 mine = vector++;
        if (!m->operands.of[tensor].ptr) continue;
        for (kf_i64 batch = 0; batch < m->size[KFI_AXIS_BATCH]; ++batch)
            for (kf_i64 first = 0; first < size; first += KFI_PART) {
                double total[KFI_PART];
                const int now = size - first < KFI_PART ? (int)(size - first) : KFI_PART;
                memset(total, 0, sizeof total);
                for (kf_i64 part = 0; part < count; ++part) {
                    const char *from =
                        parts + (((batch * count + part) * vectors + mine) * size + first) * acc;
                    for (int j = 0; j < now; ++j)
                        total[j] += acc == 8 ? ((const double *)(const void *)from)[j]
                                             : (double)((const float *)(const void *)from)[j];
                }
                for (int j = 0; acc == 4 && j < now; ++j)
                    ((float *)(void *)total)[j] = (float)total[j];
                char *to = (char *)(uintptr_t)m->operands.of[tensor].ptr +
                           (batch * m->steps[tensor].step[KFI_AXIS_BATCH] + first) * m->second.size;
                if (m->beta != 0) kfi_seam_add(&m->second, total, to, 1, m->beta, now);
                m->second.narrow(total, to, 1, now);
            }
    }
}

/* Computes the gradients of the left factor's operands from the product of dacc and the weights. */
KFI_HOST void kfi_gemm_inputs(kfi_cpu_gemm *m, char *parts, void *workspace)
{
    const int transposed = m->steps[m->factor].inner == KFI_AXIS_ROWS;
    const kf_i64 *size = m->size, along = m->products * size[KFI_AXIS_COLS];
    kfi_gemm_step step = {m,
                          &m->inputs,
                          transposed ? KFI_AXIS_DEPTH : KFI_AXIS_ROWS,
                          transposed ? KFI_AXIS_ROWS : KFI_AXIS_DEPTH,
                          KFI_AXIS_COLS,
                          0,
                          NULL,
                          0,
                          0,
                          0};
    const kfi_gemm_operand dacc = kfi_gemm_dacc(m, 0, KFI_AXIS_ROWS, KFI_AXIS_COLS);
    kfi_gemm_operand weights = kfi_gemm_tensor(m, m->weights[0], KFI_AXIS_DEPTH, KFI_AXIS_COLS);
    if (m->products > 1) weights.load = kfi_gemm_joined;
    step.vectors = kfi_seam_vectors(m, &m->inputs);
    step.units = kfi_gemm_units(size[KFI_AXIS_ROWS]);
    step.sums = step.vectors ? parts : NULL;
    if (step.sums)
        memset(parts, 0,
               (size_t)(size[KFI_AXIS_BATCH] * step.units * step.vectors * size[KFI_AXIS_DEPTH] *
                        m->type.acc_size));
    const kfi_gemm_result result_at = kfi_gemm_written(&step);
    if (size[KFI_AXIS_ROWS] > 0)
        m->type.run(size[KFI_AXIS_BATCH], size[step.rows], size[step.cols], along,
                    transposed ? &weights : &dacc, transposed ? &dacc : &weights, NULL,
                    kfi_gemm_stored, &step, &result_at, workspace);
    if (step.vectors) kfi_gemm_totals(m, &m->inputs, parts, step.units, KFI_AXIS_DEPTH);
}

/* Computes a weight's gradient, the product of dacc and the left factor, in the tensor's layout. */
KFI_HOST void kfi_gemm_weight(kfi_cpu_gemm *m, int product, void *workspace)
{
    const int tensor = m->dweights[product],
              transposed = m->steps[tensor].step[KFI_AXIS_DEPTH] != 1;
    const kf_i64 *size = m->size;
    char made[] = {(char)('a' + tensor), 0};
    const kfi_seam seam = {NULL, "0", made};
    kfi_gemm_step step = {m,
                          &seam,
                          transposed ? KFI_AXIS_DEPTH : KFI_AXIS_COLS,
                          transposed ? KFI_AXIS_COLS : KFI_AXIS_DEPTH,
                          KFI_AXIS_ROWS,
                          m->beta,
                          NULL,
                          0,
                          0,
                          0};
    const kfi_gemm_operand dacc = kfi_gemm_dacc(m, product, KFI_AXIS_COLS, KFI_AXIS_ROWS),
                           left = kfi_gemm_left(&step, KFI_AXIS_DEPTH, KFI_AXIS_ROWS);
    const kfi_gemm_result result_at = kfi_gemm_written(&step);
    m->type.run(size[KFI_AXIS_BATCH], size[step.rows], size[step.cols], size[KFI_AXIS_ROWS],
                transposed ? &left : &dacc, transposed ? &dacc : &left, NULL, kfi_gemm_stored,
                &step, &result_at, workspace);
}

KFI_HOST kf_result_t kfi_gemm_backward(kfi_cpu_gemm *m, const kf_i64 *sizes, void *workspace,
                                       size_t workspace_bytes)
{
    memcpy(m->size, sizes, sizeof m->size);
    const kfi_gemm_room room =
        kfi_gemm_backward_room(m->type, sizes, m->products, m->vectors[0], m->vectors[1]);
    const kf_result_t result = kfi_gemm_check_call(m, workspace, workspace_bytes, room.whole);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    const int rowed = m->vectors[0];
    char *const inner = (char *)workspace + room.dacc + room.sums;
    const kf_i64 parts = kfi_gemm_parts(sizes[KFI_AXIS_ROWS]),
                 blocks_across = (sizes[KFI_AXIS_COLS] + KFI_TILE - 1) / KFI_TILE;
    const int inputs = kfi_seam_wanted(m, &m->inputs), dacc = kfi_seam_wanted(m, &m->dacc);
    int weights = 0;
    for (int p = 0; p < m->products; ++p)
        weights |= m->dweights[p] >= 0 && m->operands.of[m->dweights[p]].ptr != NULL;
    m->dacc_rows = m->dout_is_dacc ? NULL : (char *)workspace;
    m->partial = (char *)workspace + room.dacc;
    /* A gradient may overwrite dout in place: where the products read dout, it is computed last. */
    for (int turn = 0; turn < 2; ++turn) {
        if (turn == m->dout_is_dacc && (dacc || (!m->dout_is_dacc && (inputs || weights)))) {
            kfi_parallel(sizes[KFI_AXIS_BATCH] * parts * blocks_across, kfi_gemm_dacc_pass, m,
                         (double)sizes[0] * (double)sizes[1] * (double)sizes[2] >= KF_OMP_MIN);
            kfi_gemm_totals(m, &m->dacc, m->partial, parts, KFI_AXIS_COLS);
        }
        if (turn == 1 - m->dout_is_dacc) {
            if (inputs && sizes[KFI_AXIS_DEPTH] > 0)
                kfi_gemm_inputs(
                    m, m->partial + sizes[0] * parts * rowed * sizes[2] * m->type.acc_size, inner);
            for (int p = 0;
                 p < m->products && sizes[KFI_AXIS_DEPTH] > 0 && sizes[KFI_AXIS_COLS] > 0; ++p)
                if (m->dweights[p] >= 0 && m->operands.of[m->dweights[p]].ptr)
                    kfi_gemm_weight(m, p, inner);
        }
    }
    return KF_SUCCESS;
}

KFI_C_END

#endif
