/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/op.h: what `kfgen runtime` writes of each op, and what a call of one is. */
#ifndef KF_RUNTIME_OP_H
#define KF_RUNTIME_OP_H

#include "kf/core/version.h"
#include "kf/runtime/pair.h"

#define KFI_RT_TENSORS 24
#define KFI_RT_SIZES 5
#define KFI_RT_SCALARS 16

/* Of a launcher behind the calling convention of gen/kfgen/packed.py: tensors; sizes and integers; the struct of strides; scalars; seed and
   offset; workspace and its bytes. */
#define KFI_RT_UNUSED __attribute__((unused))
#define KFI_RT_PARAMETERS                                                                                                                  \
    KFI_RT_UNUSED void *const *t, KFI_RT_UNUSED const int64_t *n, KFI_RT_UNUSED const int64_t *d, KFI_RT_UNUSED const double *s,           \
        KFI_RT_UNUSED const uint64_t *r, KFI_RT_UNUSED void *w, KFI_RT_UNUSED size_t b

/* What a size is the product of: dimensions of the op's elements, or a number that is no extent of theirs. */
enum {
    KFI_RT_ALL,
    KFI_RT_BEFORE,
    KFI_RT_AXIS,
    KFI_RT_AFTER,
    KFI_RT_GROUPS,
    KFI_RT_ONE,
    KFI_RT_BUT_THREE,
    KFI_RT_THIRD,
    KFI_RT_SECOND,
    KFI_RT_LAST
};
enum { KFI_RT_NEVER, KFI_RT_ALONE, KFI_RT_ALWAYS }; /* alone: if nothing lies behind it */
/* Whose dtype a tensor has: of two of the op, of its sums, or from KFI_RT_FIXED on always the same. */
enum { KFI_RT_T, KFI_RT_U, KFI_RT_ACC, KFI_RT_FIXED };

typedef struct {
    const char *name;
    unsigned char is_out, is_required, var;
    unsigned char extents;                     /* how many sizes its shape is made of */
    unsigned char extent[KFI_RT_SIZES], times; /* numbers of sizes, the slowest first; what the last one is multiplied by */
    unsigned char levels, field; /* of strides: how many fields it has in the struct, and the first, that of its innermost level */
    uint64_t unread;             /* a bit for each of the op's activations that reads nothing of it */
} kfi_rt_operand;
typedef struct {
    const char *name;
    int id, scalars;
    double scalar[4]; /* the defaults */
} kfi_rt_activation;
typedef struct {
    int dtype[2], activation; /* numbers of the op's activations */
    kf_result_t (*run)(KFI_RT_PARAMETERS);
    size_t (*space)(const int64_t *n); /* NULL: no workspace */
} kfi_rt_entry;
typedef struct {
    const char *name; /* "kf_fused_add_activation" */
    const kfi_rt_operand *operands;
    const kfi_rt_activation *activations;
    const kfi_rt_entry *entries; /* those of one pair of dtypes side by side */
    int operand_count, activation_count, entry_count;
    int size_count, integers, scalars;
    unsigned char size[KFI_RT_SIZES];
    signed char axis;        /* the dimension that is the axis, where nobody names one */
    unsigned char least;     /* dimensions that its elements have at least */
    unsigned char shaped_by; /* the operand whose shape the sizes are read from */
    unsigned char halves;    /* that operand is twice as long along the last dimension */
    unsigned char any_order; /* elements are visited one by one, in any order: any strides and broadcasting will do */
    unsigned char dropout, refuses_empty;
    unsigned char joined; /* whether a tensor's innermost level lies side by side too */
} kfi_rt_op;

/* A call as its function was given it. */
typedef struct {
    const kfi_rt_op *op;
    kf_context_t *ctx;
    const kf_tensor_t *const *tensors; /* in the order of the operands; NULL: absent */
    const int64_t *integers;
    const double *scalars, *act_scalars; /* act_scalars NULL: the defaults */
    kf_stream_t *stream;
    int64_t groups;
    double p;
    uint64_t rng[2];
    int dim;
    kf_activation_t activation;
} kfi_rt_call;

/* What comes of it. */
typedef struct {
    const kfi_rt_entry *entry;
    int activation, axis, ndim; /* ndim: of the elements */
    int64_t shape[KF_MAX_DIMS];
    int64_t n[KFI_RT_SIZES + 4];         /* sizes, then integers */
    int64_t strides[KFI_RT_TENSORS * 3]; /* the struct; `apart`: some field is not 0 */
    double s[KFI_RT_SCALARS];
    void *t[KFI_RT_TENSORS];
    int apart;
} kfi_rt_made;

#endif
