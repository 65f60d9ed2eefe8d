/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/embedding_layer_norm/gather_check.h: argument checks of ops that gather rows of three
 * tables, for CUDA and C.
 */
#ifndef KF_CORE_EMBEDDING_LAYER_NORM_GATHER_CHECK_H
#define KF_CORE_EMBEDDING_LAYER_NORM_GATHER_CHECK_H

#include "kf/core/host.h"

#include "kf/core/check.h"

#define KFI_GATHERED 3 /* number of tables */

/* Checks the sizes and tensors of a call. sizes: rows, cols, then the rows of each table. codes:
   number of elements of each tensor: '0' to '2' that table, 'r' rows, 'c' cols, 'e' rows x cols.
   Sets operands->wanted to 0 if there is nothing to do: no rows (forward) or no columns (backward).
 */
KFI_ONCE kf_result_t kfi_check_gathering(const kfi_name *name, const kfi_arguments *arguments,
                                         const char *codes, const kf_i64 *sizes, int bwd,
                                         kfi_operands *operands)
{
    static const char *const words[] = {"vocab cols", "positions cols", "types cols"};
    const kf_i64 rows = sizes[0], cols = sizes[1];
    kf_result_t result = kfi_check_sizes(name, "rows cols", sizes, 2);
    for (int i = 0; result == KF_SUCCESS && i < KFI_GATHERED; ++i) {
        const kf_i64 table[] = {sizes[2 + i], cols};
        result = kfi_check_sizes(name, words[i], table, 2);
    }
    operands->wanted = 0;
    if (result != KF_SUCCESS || (bwd ? cols == 0 : rows == 0)) return result;
    kf_i64 elements[KFI_MAX_TENSORS];
    for (int i = 0; codes[i]; ++i)
        elements[i] = codes[i] == 'e'   ? rows * cols
                      : codes[i] == 'r' ? rows
                      : codes[i] == 'c' ? cols
                                        : sizes[2 + codes[i] - '0'] * cols;
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = rows;
    shape.cols = cols;
    shape.elements = elements;
    return kfi_check_operands(name, arguments, &shape, NULL, operands);
}

#endif
