/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/append.h: stores new keys and values in caches, in C. A job is a new row of a
 * sequence: all of its heads. Rows without memory are left out. */
#ifndef KF_CORE_DECODING_APPEND_H
#define KF_CORE_DECODING_APPEND_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/decoding/check.h"
#include "kf/core/decoding/element.h"
#include "kf/core/paged.h"
#include "kf/core/parallel.h"

KFI_C_BEGIN

#define KFI_APPEND_PAIRS 128 /* pairs that are rotated at a time */

/* A call. */
typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides given;
    kfi_cpu_decoding_element element;
    int beside; /* whether pairs are elements 2i and 2i + 1; else elements i and i + pairs */
    const char *k, *v;
    char *k_cache, *v_cache;
    const void *cosine, *sine; /* [positions, pairs], of `unit` bytes; NULL: 1, and 0 */
    const int *positions, *counts;
    kfi_decoding_strides k_strides, v_strides, k_cache_strides, v_cache_strides;
    kfi_decoding_sizes sizes;
    kfi_pages pages;
} kfi_cpu_append;

#define KFI_APPEND_TYPE f32
#define KFI_APPEND_REAL float
#include "kf/core/decoding/append_real.h"
#define KFI_APPEND_TYPE f64
#define KFI_APPEND_REAL double
#include "kf/core/decoding/append_real.h"

KFI_HOST void kfi_append_job(void *context, kf_i64 job)
{
    const kfi_cpu_append *const m = (const kfi_cpu_append *)context;
    const kfi_decoding_sizes *const p = &m->sizes;
    const kf_i64 sequence = job / p->queries, i = job % p->queries,
                 row = (kf_i64)m->counts[sequence] + i, at = kfi_page_row(&m->pages, sequence, row),
                 bytes = m->element.size;
    if (at < 0) return;
    const kf_i64 place = m->positions ? m->positions[job] : row, block = at / p->page_size,
                 slot = at % p->page_size;
    for (kf_i64 h = 0; h < p->kv_heads; ++h) {
        const char *const k = m->k + (sequence * m->k_strides.batch + i * m->k_strides.row +
                                      h * m->k_strides.head) *
                                         bytes,
                          *const v = m->v + (sequence * m->v_strides.batch + i * m->v_strides.row +
                                             h * m->v_strides.head) *
                                                bytes;
        char *const to_k =
                        m->k_cache + (block * m->k_cache_strides.batch +
                                      slot * m->k_cache_strides.row + h * m->k_cache_strides.head) *
                                         bytes,
                    *const to_v =
                        m->v_cache + (block * m->v_cache_strides.batch +
                                      slot * m->v_cache_strides.row + h * m->v_cache_strides.head) *
                                         bytes;
        if (p->dim) memcpy(to_k, k, (size_t)(p->dim * bytes));
        if (p->dim_v) memcpy(to_v, v, (size_t)(p->dim_v * bytes));
        if (!p->dim || (!m->cosine && !m->sine)) continue;
        if (m->element.unit == 8)
            kfi_append_rotate_f64(m, k, to_k, place);
        else
            kfi_append_rotate_f32(m, k, to_k, place);
    }
}

/* Checks a call and runs it. `m` has name, arguments, strides, element and order of pairs. */
KFI_ONCE kf_result_t kfi_cpu_append_run(kfi_cpu_append *m, const kfi_shape_values *v)
{
    kfi_operands operands;
    kfi_decoding_strides steps[KFI_MAX_TENSORS];
    m->sizes = kfi_decoding_sizes_of(v->value);
    const kfi_decoding_sizes *const p = &m->sizes;
    kf_result_t result = kfi_decoding_check_append(&m->name, p);
    if (result == KF_SUCCESS)
        result = kfi_decoding_check(&m->name, &m->arguments, &m->given, "nw.....kv", v->elements, p,
                                    steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_decoding_check_angles(&m->name, &m->arguments, 2);
    if (result == KF_SUCCESS) result = kfi_decoding_check_blocks(&m->name, &m->arguments, p, 5);
    if (result != KF_SUCCESS) return result;
    const void *const *const t = m->arguments.tensors;
    m->k = (const char *)t[0], m->v = (const char *)t[1], m->cosine = t[2], m->sine = t[3];
    m->positions = (const int *)t[4], m->pages.table = (const int *)t[5];
    m->counts = (const int *)t[6];
    m->k_cache = (char *)(uintptr_t)t[7], m->v_cache = (char *)(uintptr_t)t[8];
    m->k_strides = steps[0], m->v_strides = steps[1];
    m->k_cache_strides = steps[7], m->v_cache_strides = steps[8];
    m->pages.sequences = p->batch, m->pages.pages = p->pages;
    m->pages.rows = p->page_size, m->pages.blocks = p->blocks;
    kfi_parallel(p->batch * p->queries, kfi_append_job, m,
                 p->batch * p->queries * p->kv_heads * (p->dim + p->dim_v) >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
