/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/transpose/transpose.h: copies matrices with rows and columns exchanged on the CPU. A tile
 * of 64 x 64 elements (32 x 32 of 8 bytes) goes through a buffer in the L1 cache: its rows are read
 * and its columns are written contiguously, whatever the distance of the rows. */
#ifndef KF_CORE_TRANSPOSE_TRANSPOSE_H
#define KF_CORE_TRANSPOSE_TRANSPOSE_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/parallel.h"
#include "kf/core/transpose/check.h"

KFI_C_BEGIN

/* Rows and columns of a tile of elements of `size` bytes. */
#define KFI_TRANSPOSE_TILE(size) ((size) == 8 ? 32 : 64)
#define KFI_TRANSPOSE_BYTES (64 * 65 * 4) /* the largest tile, with the padding of its rows */
#define KFI_TRANSPOSE_PART 512            /* rows and columns of a part */

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    int size; /* bytes of an element */
    const char *from;
    char *to;
    kf_i64 batch, rows, cols, down, across; /* a matrix: its size, its parts */
} kfi_cpu_transpose;

/* Copies a tile of elements of `size` bytes, a constant. count: rows and columns of the tile. */
KFI_INLINE void kfi_transpose_tile(const kfi_cpu_transpose *m, const char *from, char *to,
                                   const int *count, int size)
{
    /* A row's padding keeps the elements of a column in different sets of the cache. */
    double buffer[KFI_TRANSPOSE_BYTES / sizeof(double)];
    char *const tile = (char *)buffer;
    const int pitch = (KFI_TRANSPOSE_TILE(size) + 1) * size;
    for (int row = 0; row < count[0]; ++row)
        memcpy(tile + row * pitch, from + row * m->cols * size, (size_t)(count[1] * size));
    for (int col = 0; col < count[1]; ++col) {
        char *const line = to + col * m->rows * size;
        for (int row = 0; row < count[0]; ++row)
            memcpy(line + row * size, tile + row * pitch + col * size, (size_t)size);
    }
}

/* Copies the tile at (row, col) of a matrix, which begins at element `base`. */
KFI_HOST void kfi_transpose_at(const kfi_cpu_transpose *m, kf_i64 base, kf_i64 row, kf_i64 col)
{
    const kf_i64 left[2] = {m->rows - row, m->cols - col};
    const int side = KFI_TRANSPOSE_TILE(m->size);
    const int count[2] = {
        left[0] < side ? (int)left[0] : side,
        left[1] < side ? (int)left[1] : side,
    };
    const char *from = m->from + (base + row * m->cols + col) * m->size;
    char *to = m->to + (base + col * m->rows + row) * m->size;
    if (m->size == 2)
        kfi_transpose_tile(m, from, to, count, 2);
    else if (m->size == 4)
        kfi_transpose_tile(m, from, to, count, 4);
    else
        kfi_transpose_tile(m, from, to, count, 8);
}

/* Copies the tiles of a part, down the rows first: the output is then written in long rows. */
KFI_HOST void kfi_transpose_part(void *context, kf_i64 part)
{
    const kfi_cpu_transpose *m = (const kfi_cpu_transpose *)context;
    const kf_i64 per = m->down * m->across, base = part / per * m->rows * m->cols,
                 row = part % per / m->across * KFI_TRANSPOSE_PART,
                 col = part % m->across * KFI_TRANSPOSE_PART;
    const int side = KFI_TRANSPOSE_TILE(m->size);
    for (int c = 0; c < KFI_TRANSPOSE_PART && col + c < m->cols; c += side)
        for (int r = 0; r < KFI_TRANSPOSE_PART && row + r < m->rows; r += side)
            kfi_transpose_at(m, base, row + r, col + c);
}

/* Checks a call and copies all matrices. words, sizes: those of the call, the batch first. */
KFI_HOST kf_result_t kfi_cpu_transpose_run(kfi_cpu_transpose *m, const char *words,
                                           const kf_i64 *sizes)
{
    kfi_operands operands;
    const kf_result_t result =
        kfi_transpose_check(&m->name, &m->arguments, words, sizes, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    m->batch = sizes[0];
    m->down = (m->rows + KFI_TRANSPOSE_PART - 1) / KFI_TRANSPOSE_PART;
    m->across = (m->cols + KFI_TRANSPOSE_PART - 1) / KFI_TRANSPOSE_PART;
    kfi_parallel(m->batch * m->down * m->across, kfi_transpose_part, m,
                 m->batch * m->rows * m->cols >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
