/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/linear_cross_entropy/linear_cross_entropy.h: linear cross entropy, for C and CUDA
   launchers: rows per chunk, workspace size and argument checks. The logits [rows, cols] of all
   rows are never materialised; the workspace holds those of one chunk. */
#ifndef KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H
#define KF_CORE_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/check.h"

KFI_C_BEGIN

/* Approximate bytes of a chunk of logits; a chunk has at least KFI_LOGITS_ROWS rows. */
#ifndef KFI_CPU_LOGITS_BYTES
#define KFI_CPU_LOGITS_BYTES (16 << 20)
#endif
#ifndef KFI_LOGITS_BYTES
#define KFI_LOGITS_BYTES (256 << 20)
#endif
#ifndef KFI_LOGITS_ROWS
#define KFI_LOGITS_ROWS 128
#endif

/* Alignment of a row of logits in bytes: rows begin on cache lines, so that matrix products read
 * whole vectors for every vocabulary size. */
#define KFI_LOGITS_ALIGN 128

/* Depends on the sizes alone. chunk: rows per chunk; pitch: elements from one row of logits to the
   next; logits: bytes at the start of the workspace, 0 for invalid sizes. */
typedef struct {
    kf_i64 chunk, pitch;
    size_t logits;
} kfi_logits_plan;
typedef size_t (*kfi_layer_bytes)(int64_t batch, int64_t rows, int64_t cols, int64_t depth);

KFI_ONCE kfi_logits_plan kfi_logits_make_plan(kf_i64 rows, kf_i64 cols, kf_i64 depth, int size,
                                              kf_i64 bytes)
{
    kfi_logits_plan p = {KFI_LOGITS_ROWS, 0, 0};
    if (!kfi_fits(rows, cols, 1) || !kfi_fits(rows, depth, 1) || !kfi_fits(cols, depth, 1))
        return p;
    p.pitch = (cols * size + KFI_LOGITS_ALIGN - 1) / KFI_LOGITS_ALIGN * KFI_LOGITS_ALIGN / size;
    if (cols > 0 && bytes / size / p.pitch > p.chunk)
        p.chunk = bytes / size / p.pitch / KFI_LOGITS_ROWS * KFI_LOGITS_ROWS;
    if (cols == 0 || p.chunk > rows) p.chunk = rows > 0 ? rows : 1;
    /* At least one byte: every call has a workspace, whatever its sizes. */
    p.logits = kfi_workspace((size_t)(p.chunk * p.pitch * size) + 1);
    return p;
}
/* Returns the bytes of the workspace: the logits, then what the layer needs for a full chunk or for
   the last one, which may have fewer rows. backward: workspace of the layer's gradients, or NULL.
 */
KFI_ONCE size_t kfi_logits_workspace(kf_i64 rows, kf_i64 cols, kf_i64 depth, int size, kf_i64 bytes,
                                     kfi_layer_bytes forward, kfi_layer_bytes backward)
{
    const kfi_logits_plan p = kfi_logits_make_plan(rows, cols, depth, size, bytes);
    const kf_i64 counts[] = {rows < p.chunk ? rows : p.chunk, rows % p.chunk};
    size_t most = 0;
    if (p.logits == 0) return 0;
    for (int i = 0; i < 4; ++i) {
        const kfi_layer_bytes needed = i % 2 ? backward : forward;
        const size_t room = needed ? needed(1, counts[i / 2], cols, depth) : 0;
        if (room > most) most = room;
    }
    return p.logits + kfi_workspace(most);
}

/* Reports the error of a called launcher under this function's name. */
KFI_ONCE kf_result_t kfi_logits_failed(kf_result_t result, const kfi_name *name)
{
    char detail[sizeof kfi_error_detail];
    if (result == KF_SUCCESS) return result;
    snprintf(detail, sizeof detail, "%s", kfi_error_detail + strcspn(kfi_error_detail, ":"));
    kfi_write_name(kfi_error_detail, sizeof kfi_error_detail, name);
    const size_t used = strlen(kfi_error_detail);
    snprintf(kfi_error_detail + used, sizeof kfi_error_detail - used, "%s", detail);
    return result;
}

/* Refuses tensors of different extents whose memory overlaps. Interleaved rows would be disjoint
 * over the whole call but not chunk by chunk. */
KFI_ONCE kf_result_t kfi_check_logits_overlap(const kfi_name *name, const kfi_arguments *arguments,
                                              const kfi_levels *levels, const kfi_operands *all)
{
    for (int i = 0; i < all->count; ++i)
        for (int j = 0; j < all->count; ++j) {
            const char *const own = kfi_word(arguments->words, i), *const other = kfi_word(
                                                                       arguments->words, j);
            if (levels[i].words == levels[j].words || !kfi_clashes(all, NULL, i, j)) continue;
            return kfi_fail(KF_ERROR_OVERLAP, name, own,
                            "at %p overlaps %.*s at %p, expected memory apart", all->of[i].ptr,
                            (int)strcspn(other, " "), other, all->of[j].ptr);
        }
    return KF_SUCCESS;
}

/* Checks sizes, strides, tensors and workspace of a call. shapes: one word per tensor, a letter per
   extent: r rows, c cols, d depth; a tensor with two extents has a stride. sizes: rows, cols,
   depth. Sets the row strides (apart[0]) and all->wanted, the number of outputs to write. */
KFI_ONCE kf_result_t kfi_check_logits(const kfi_name *name, const kfi_arguments *arguments,
                                      const kfi_strides *strides, const char *shapes,
                                      const kf_i64 *sizes, const void *workspace, size_t got,
                                      size_t expected, kfi_operands *all)
{
    const kf_i64 left[] = {sizes[0], sizes[2]}, right[] = {sizes[1], sizes[2]};
    kf_i64 elements[KFI_MAX_TENSORS];
    kfi_levels levels[KFI_MAX_TENSORS];
    kfi_shape shape = {0, 0, 0, 0, NULL};
    memset(all, 0, sizeof *all);
    memset(levels, 0, sizeof levels);
    kf_result_t code = kfi_check_sizes(name, "rows depth", left, 2);
    if (code == KF_SUCCESS) code = kfi_check_sizes(name, "cols depth", right, 2);
    if (code == KF_SUCCESS) code = kfi_check_sizes(name, "rows cols", sizes, 2);
    if (code != KF_SUCCESS) return code;
    int written = 0;
    for (int i = 0; code == KF_SUCCESS && *shapes; ++i) {
        const kf_i64 rows = sizes[shapes[0] == 'r' ? 0 : 1];
        const int matrix = shapes[1] == 'd';
        elements[i] = matrix ? rows * sizes[2] : rows;
        if (matrix) {
            levels[i].count = 1;
            levels[i].line = sizes[2];
            levels[i].size[0] = rows;
            /* The first word is the suffix of the stride's name. */
            levels[i].words = shapes[0] == 'r' ? ". rows" : ". cols";
            code = kfi_check_stride(name, arguments, strides, &levels[i], all, i);
            elements[i] = elements[i] ? all->of[i].extent : 0;
        }
        written |= elements[i] > 0 && kfi_flags_of(arguments, i) & KFI_OUT;
        shapes += strcspn(shapes, " ");
        shapes += *shapes == ' ';
    }
    if (code != KF_SUCCESS || !written) return code;
    shape.elements = elements;
    code = kfi_check_operands(name, arguments, &shape, levels, all);
    if (code == KF_SUCCESS && all->wanted)
        code = kfi_check_logits_overlap(name, arguments, levels, all);
    if (code == KF_SUCCESS && all->wanted)
        code = kfi_check_workspace(name, arguments, all, workspace, got, expected);
    return code;
}

KFI_C_END

#endif
