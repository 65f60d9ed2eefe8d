/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/check.h: checks of matmul launchers in CUDA and C: sizes, strides, workspace, and
 * the strides of all tensors. */
#ifndef KF_CORE_MATMUL_CHECK_H
#define KF_CORE_MATMUL_CHECK_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/check.h"

/* Axes of a call: batch, rows and columns of the result, K. */
enum { KFI_AXIS_BATCH, KFI_AXIS_ROWS, KFI_AXIS_COLS, KFI_AXIS_DEPTH, KFI_AXES };

/* Strides of a tensor, in elements per axis; 0 along axes that it does not have. */
typedef struct {
    kf_i64 step[KFI_AXES];
    int vector;       /* one vector per batch */
    int inner, outer; /* contiguous axis (a step of one element does not tell), other axis */
} kfi_gemm_steps;

KFI_ONCE int kfi_gemm_axis(char letter)
{
    return letter == 'r' ? KFI_AXIS_ROWS : letter == 'd' ? KFI_AXIS_DEPTH : KFI_AXIS_COLS;
}

/* Checks a call. shapes: a word per tensor, its extents behind the batch (r rows, c columns, w
   twice as many, d depth); further tensors (dropout's) have one element. sizes: batch, rows, cols,
   depth. Sets the strides of all tensors, and all->wanted, the outputs that will be written. */
KFI_ONCE kf_result_t kfi_check_gemm(const kfi_name *name, const kfi_arguments *arguments,
                                    const kfi_strides *strides, const char *shapes,
                                    const kf_i64 *sizes, kfi_gemm_steps *steps, kfi_operands *all)
{
    const kf_i64 batch = sizes[KFI_AXIS_BATCH], rows = sizes[KFI_AXIS_ROWS],
                 cols = sizes[KFI_AXIS_COLS], depth = sizes[KFI_AXIS_DEPTH];
    const kf_i64 left[] = {batch, rows, depth}, right[] = {batch, cols, depth},
                 result[] = {batch, rows, cols};
    kfi_levels levels[KFI_MAX_TENSORS];
    kf_i64 elements[KFI_MAX_TENSORS];
    kfi_shape shape = {0, 0, 0, 0, NULL};
    kf_result_t code = kfi_check_sizes(name, "batch rows depth", left, 3);
    if (code == KF_SUCCESS) code = kfi_check_sizes(name, "batch cols depth", right, 3);
    if (code == KF_SUCCESS) code = kfi_check_sizes(name, "batch rows cols", result, 3);
    int written = 0;
    memset(all, 0, sizeof *all);
    memset(levels, 0, sizeof levels);
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) elements[i] = 1;
    for (int i = 0; code == KF_SUCCESS && *shapes; ++i) {
        const int outer = kfi_gemm_axis(shapes[0]), vector = shapes[1] == ' ' || !shapes[1],
                  inner = vector ? outer : kfi_gemm_axis(shapes[1]);
        levels[i].count = vector ? 1 : 2;
        const kf_i64 lines = sizes[outer] << (shapes[0] == 'w'),
                     line = vector ? lines : sizes[inner] << (shapes[1] == 'w');
        levels[i].line = line;
        levels[i].words = vector ? "_batch" : ". _batch";
        levels[i].size[0] = vector ? batch : lines;
        levels[i].size[1] = vector ? 0 : batch;
        code = kfi_check_stride(name, arguments, strides, &levels[i], all, i);
        elements[i] = batch > 0 && lines > 0 && line > 0 ? all->of[i].extent : 0;
        written |= elements[i] > 0 && kfi_flags_of(arguments, i) & KFI_OUT;
        memset(&steps[i], 0, sizeof steps[i]);
        steps[i].vector = vector;
        steps[i].inner = inner;
        steps[i].outer = outer;
        steps[i].step[inner] = 1;
        if (!vector) steps[i].step[outer] = all->of[i].apart[0];
        steps[i].step[KFI_AXIS_BATCH] = all->of[i].apart[vector ? 0 : 1];
        shapes += vector ? 1 : 2;
        shapes += *shapes == ' ';
    }
    if (code != KF_SUCCESS || !written) return code;
    shape.elements = elements;
    return kfi_check_operands(name, arguments, &shape, levels, all);
}

/* Splits arguments into tensors: a joined one (w in its word) holds two, the second one's columns
   behind the first one's. Returns the number of tensors. */
KFI_ONCE int kfi_gemm_split_joined(const char *shapes, kf_i64 cols, const kfi_gemm_steps *from,
                                   const kfi_operands *given, kfi_gemm_steps *steps,
                                   kfi_operands *all)
{
    int count = 0;
    *all = *given;
    for (int i = 0; *shapes; ++i) {
        const size_t letters = strcspn(shapes, " ");
        for (int turn = 0; turn <= (memchr(shapes, 'w', letters) != NULL); ++turn, ++count) {
            steps[count] = from[i];
            all->of[count] = given->of[i];
            if (turn && all->of[count].ptr)
                all->of[count].ptr = (const char *)given->of[i].ptr +
                                     cols * from[i].step[KFI_AXIS_COLS] * given->of[i].size;
        }
        shapes += letters + (shapes[letters] == ' ');
    }
    return count;
}

#endif
