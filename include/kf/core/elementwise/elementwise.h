/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/elementwise/elementwise.h: elementwise ops on the CPU: argument checks, parallel
   traversal and reduced gradients, the same for every op.

   An op is a function over tiles of at most 512 elements, whose loop the compiler vectorises. The
   traversal passes it as many whole tiles per call as possible and copies partial tiles through
   scratch tiles. It repeats row values, so that narrow rows fill whole tiles, and accumulates
   reduced gradients. The split depends on the op and the shape alone, so results do not depend on
   the number of threads.

   Callers' threads may have small stacks: a traversal uses KFI_MAX_ROOM bytes whatever the op. Ops
   with many operands use smaller tiles; narrow rows are repeated only if they fit. */
#ifndef KF_CORE_ELEMENTWISE_ELEMENTWISE_H
#define KF_CORE_ELEMENTWISE_ELEMENTWISE_H

#include "kf/core/host.h"

#include "kf/core/elementwise/traverse.h"

KFI_C_BEGIN

KFI_HOST kf_i64 kfi_blocks_of(kf_i64 rows, kf_i64 elements)
{
    const kf_i64 wanted = elements / (4 * KFI_CHUNK * KFI_TILE),
                 most = wanted < KFI_BLOCKS ? wanted : KFI_BLOCKS;
    return most < 1 ? 1 : most > rows ? (rows > 0 ? rows : 1) : most;
}

KFI_HOST size_t kfi_cpu_workspace(kf_i64 rows, kf_i64 channels, kf_i64 cols, int is_channel,
                                  int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, is_channel ? channels : 1)) return 0;
    const kf_i64 width = is_channel ? channels : cols,
                 elements = rows * cols * (is_channel ? channels : 1);
    const int plane = is_channel && cols > 1;
    const kf_i64 blocks =
        kfi_blocks_of(plane ? (elements + KFI_TILE - 1) / KFI_TILE : rows, elements);
    return kfi_workspace((size_t)(blocks * width) * (size_t)(sums * acc_size));
}

KFI_HOST kf_result_t kfi_cpu_flat(kfi_cpu_map *m, kf_i64 n)
{
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = 1;
    shape.channels = 0;
    shape.cols = n;
    shape.parts = 0;
    kf_result_t result = kfi_check_sizes(&m->name, "n", &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    m->elements = n;
    m->stream = kfi_streams(m);
    kfi_size_tiles(m, 0, m->part);
    kfi_parallel((n + KFI_CHUNK * KFI_TILE - 1) / (KFI_CHUNK * KFI_TILE), kfi_traverse_flat, m,
                 n >= KF_OMP_MIN);
    return KF_SUCCESS;
}

/* Second stage: adds the partial sums of a tile of columns in block order. */
KFI_HOST void kfi_sum_partials(void *context, kf_i64 tile)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    const kf_i64 width = m->plane ? m->channels : m->cols, col = tile * KFI_TILE;
    const int count = width - col < KFI_TILE ? (int)(width - col) : KFI_TILE;
    for (int k = 0; k < m->sums; ++k) {
        double total[KFI_TILE];
        if (!m->sum_outputs[k]) continue;
        memset(total, 0, sizeof total);
        for (kf_i64 b = 0; b < m->blocks; ++b) {
            const char *partial = kfi_partial(m, b, k) + col * m->acc_size;
            if (m->acc_size == 8)
                for (int j = 0; j < count; ++j)
                    total[j] += ((const double *)(const void *)partial)[j];
            else
                for (int j = 0; j < count; ++j)
                    total[j] += (double)((const float *)(const void *)partial)[j];
        }
        m->stores[k](m->sum_outputs[k], col, total, count);
    }
}

/* Runs rows x cols, or outer x channels x inner (channels > 0). The caller has checked the sizes.
 */
KFI_HOST kf_result_t kfi_cpu_grid(kfi_cpu_map *m, kf_i64 rows, kf_i64 channels, kf_i64 cols,
                                  int is_channel, void *workspace, size_t workspace_bytes)
{
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = rows;
    shape.channels = channels;
    shape.cols = cols;
    shape.parts = 0;
    const kf_i64 width = is_channel ? channels : cols;
    m->elements = is_channel ? rows * channels * cols : rows * cols;
    if (m->sums ? width == 0 : m->elements == 0) return KF_SUCCESS;
    kf_result_t result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    int wanted = 0;
    for (int k = 0; k < m->sums && !wanted; ++k) wanted = m->sum_outputs[k] != NULL;
    const size_t needed =
        m->sums ? kfi_cpu_workspace(rows, channels, cols, is_channel, m->sums, m->acc_size) : 0;
    result = kfi_check_workspace(&m->name, &m->arguments, &m->operands, workspace, workspace_bytes,
                                 needed);
    if (result != KF_SUCCESS) return result;
    m->partial = wanted ? (char *)workspace : NULL;
    m->plane = is_channel && cols > 1;
    m->channels = channels;
    m->inner = cols;
    m->rows = rows;
    m->cols = is_channel && !m->plane ? channels : cols;
    if (m->elements == 0) m->rows = 0;
    m->stream = kfi_streams(m);
    const kf_i64 units = m->plane ? (m->elements + KFI_TILE - 1) / KFI_TILE : m->rows;
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE;
    /* Reduced gradients use the number of blocks that the workspace was sized for; other ops use
     * chunks of a fixed size. */
    m->blocks = m->sums ? kfi_blocks_of(m->plane ? (m->elements + KFI_TILE - 1) / KFI_TILE : rows,
                                        m->elements)
                        : (m->elements + chunk - 1) / chunk;
    if (m->blocks > units) m->blocks = units > 0 ? units : 1;
    m->per_block = (units + m->blocks - 1) / m->blocks;
    /* Rows of whole parts gain nothing from repetition on smaller tiles. */
    const int repeat = !m->plane && m->cols <= KFI_REPEAT &&
                       kfi_size_tiles(m, m->cols, m->cols % m->part ? m->part : KFI_TILE);
    if (!repeat) kfi_size_tiles(m, 0, m->part);
    kfi_parallel(m->blocks,
                 m->plane ? kfi_traverse_planes
                 : repeat ? kfi_traverse_repeated
                          : kfi_traverse_columns,
                 m, m->elements >= KF_OMP_MIN);
    if (wanted)
        kfi_parallel((width + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, m,
                     m->blocks * width >= KF_OMP_MIN);
    return KF_SUCCESS;
}

#define KFI_STORE_SUM(name, type, value)                                                           \
    KFI_HOST void kfi_store_sum_##name(void *out, kf_i64 i, const double *v, int count)            \
    {                                                                                              \
        for (int j = 0; j < count; ++j) ((type *)out)[i + j] = value;                              \
    }
KFI_STORE_SUM(f32, float, (float)v[j])
KFI_STORE_SUM(f64, double, v[j])
KFI_STORE_SUM(f16, kf_f16, kfi_cpu_cast_f64_f16(v[j]))
KFI_STORE_SUM(bf16, kf_bf16, kfi_cpu_cast_f64_bf16(v[j]))

KFI_C_END

#endif
