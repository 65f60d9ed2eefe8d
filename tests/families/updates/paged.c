/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes rows of caches of blocks (kf/core/paged.h) in C, as paged.cpp does. */
#include <kf/core/paged.h>

#include <math.h>
#include <string.h>

int kft_gather(const int *table, kf_i64 sequences, kf_i64 pages, kf_i64 rows, kf_i64 blocks,
               const float *cache, float *out, kf_i64 first, kf_i64 count, kf_i64 width)
{
    const kfi_pages p = {table, sequences, pages, rows, blocks};
    for (kf_i64 i = 0; i < sequences * count; ++i) {
        const kf_i64 bytes = width * (kf_i64)sizeof(float);
        const float *const row =
            (const float *)kfi_page_at(&p, (void *)cache, i / count, first + i % count, bytes);
        for (kf_i64 c = 0; c < width; ++c) out[i * width + c] = row ? row[c] : NAN;
    }
    return 0;
}
int kft_scatter(const int *table, kf_i64 sequences, kf_i64 pages, kf_i64 rows, kf_i64 blocks,
                float *cache, const float *x, kf_i64 first, kf_i64 count, kf_i64 width)
{
    const kfi_pages p = {table, sequences, pages, rows, blocks};
    for (kf_i64 i = 0; i < sequences * count; ++i) {
        const kf_i64 bytes = width * (kf_i64)sizeof(float);
        float *const row = (float *)kfi_page_at(&p, cache, i / count, first + i % count, bytes);
        if (row) memcpy(row, x + i * width, (size_t)bytes);
    }
    return 0;
}
