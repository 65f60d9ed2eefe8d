/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/paged.h: rows of sequences in caches of blocks, in C and in kernels.
 *
 * A cache has `blocks` blocks of `rows` rows. A table [sequences, pages] has block numbers: row r
 * of sequence s is row r % rows of block table[s][r / rows]. Without a table sequence s has one
 * page, block s: the cache is contiguous. A row whose page or block number is out of range has no
 * memory: readers give NaN (integers 0) for it, and writers leave it out. */
#ifndef KF_CORE_PAGED_H
#define KF_CORE_PAGED_H

#include "kf/core/config.h"
#include "kf/core/dtype.h"

typedef struct {
    const int *table;                      /* int32_t, on the device of the cache; NULL: none */
    kf_i64 sequences, pages, rows, blocks; /* pages: a sequence's, in the table if there is one */
} kfi_pages;

/* Returns the index of a row of a sequence among all rows of the cache; -1 if it has no memory. */
KFI_BOTH kf_i64 kfi_page_row(const kfi_pages *p, kf_i64 sequence, kf_i64 row)
{
    const kf_i64 pages = p->table ? p->pages : 1;
    if (sequence < 0 || sequence >= p->sequences || row < 0 || row >= pages * p->rows) return -1;
    const kf_i64 page = row / p->rows,
                 block = p->table ? p->table[sequence * p->pages + page] : sequence;
    return block < 0 || block >= p->blocks ? -1 : block * p->rows + (row - page * p->rows);
}

/* Returns the address of a row of `bytes` bytes, a host pointer in C and a device pointer in
 * kernels; NULL if the row has no memory. */
KFI_BOTH void *kfi_page_at(const kfi_pages *p, void *cache, kf_i64 sequence, kf_i64 row,
                           kf_i64 bytes)
{
    const kf_i64 at = kfi_page_row(p, sequence, row);
    return at < 0 ? 0 : (char *)cache + at * bytes;
}

#endif
