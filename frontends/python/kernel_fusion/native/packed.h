/* SPDX-License-Identifier: Apache-2.0 */
/* kf's C launchers behind one calling convention, so that who calls them needs no code for each
   function: which array holds what is said in gen/kfgen/interfaces/packed.py. A library of some
   functions has the same few symbols, whichever functions it has. */
#ifndef KF_NATIVE_PACKED_H
#define KF_NATIVE_PACKED_H

#include <stddef.h>
#include <stdint.h>

#define KFP_EXPORT __attribute__((visibility("default")))
#define KFP_UNUSED __attribute__((unused))
/* t: tensors; n: sizes, then integers; d: the op's stride struct or NULL; s: scalars; r: seed and
 * offset; w, b: workspace and its bytes; q: stream (CUDA only). */
#ifdef KFP_CUDA
#define KFP_STREAM , KFP_UNUSED void *q
#define KFP_ARGUMENTS t, n, d, s, r, w, b, q
#else
#define KFP_STREAM
#define KFP_ARGUMENTS t, n, d, s, r, w, b
#endif
#define KFP_PARAMETERS                                                                             \
    KFP_UNUSED void *const *t, KFP_UNUSED const int64_t *n, KFP_UNUSED const int64_t *d,           \
        KFP_UNUSED const double *s, KFP_UNUSED const uint64_t *r, KFP_UNUSED void *w,              \
        KFP_UNUSED size_t b KFP_STREAM

typedef struct {
    const char *name;
    int (*run)(KFP_PARAMETERS);
    size_t (*space)(const int64_t *n); /* workspace bytes; NULL without a workspace */
} kfp_entry;

#ifndef KFP_CUDA
/* Parallel loop of kf's launchers (pool.c). */
void kfp_parallel_for(int64_t count, void (*fn)(void *, int64_t), void *context);
#define KF_PARALLEL_FOR(count, fn, context) kfp_parallel_for(count, fn, context)
#endif

#endif
