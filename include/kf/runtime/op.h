/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/op.h: what `kfgen runtime` writes of each op, and what a call of one is. */
#ifndef KF_RUNTIME_OP_H
#define KF_RUNTIME_OP_H

#include "kf/core/version.h"
#include "kf/runtime/pair.h"

#define KFI_RT_TENSORS 24
#define KFI_RT_SIZES 6
#define KFI_RT_SHAPED 4 /* tensors that say sizes between them, at most */
#define KFI_RT_SCALARS 16
#define KFI_RT_P (KFI_RT_SCALARS - 1) /* the place of a dropout's probability, behind all others   \
                                       */
#define KFI_RT_BETA (KFI_RT_SCALARS - 2) /* and that of beta */
#define KFI_RT_DIMS                                                                                \
    (KF_MAX_DIMS + KFI_RT_SIZES) /* of elements whose dimensions are those of several tensors */

/* Which of kf's own activations a program has, and of which it has a kernel of its own on a GPU,
   where one serves them all: a bit for each number, 1 << KF_ACTIVATION_RELU | 1 <<
   KF_ACTIVATION_GELU. A program's own activations it has always. And which dtypes: 1 <<
   KF_DTYPE_FLOAT32 | 1 << KF_DTYPE_BFLOAT16 leaves out functions whose elements are of any other;
   the whole numbers of labels and indices are always there. KF_RUNTIME_CPU 0 leaves out all
   functions for tensors of the CPU, of a file that nvcc compiles. */
#ifndef KF_RUNTIME_ACTIVATIONS
#define KF_RUNTIME_ACTIVATIONS (-1)
#endif
#ifndef KF_RUNTIME_FAST
#define KF_RUNTIME_FAST 0
#endif
#ifndef KF_RUNTIME_DTYPES
#define KF_RUNTIME_DTYPES (-1)
#endif
#ifndef KF_RUNTIME_CPU
#define KF_RUNTIME_CPU 1
#endif
#define KFI_RT_HAS(id) ((id) > 62 || ((KF_RUNTIME_ACTIVATIONS) + 0ll) >> ((id) % 63) & 1)
#define KFI_RT_TAKES(dtypes) (((KF_RUNTIME_DTYPES) & (dtypes)) == (dtypes))
#define KFI_RT_NO_ACTIVATION 0x7fffffff /* the number of one that was left out */
#define KFI_RT_IS_FAST(id) ((id) < 63 && ((KF_RUNTIME_FAST) + 0ll) >> ((id) % 63) & 1)

/* #if takes an enumerator, KF_BF16, for 0. */
#if (KF_RUNTIME_DTYPES) == 1
typedef char kfi_rt_dtypes_are_named_KF_DTYPE[(KF_RUNTIME_DTYPES) == 1 ? 1 : -1];
#endif
typedef char
    kfi_rt_dtypes_are_numbered[KF_DTYPE_FLOAT16 == KF_F16 && KF_DTYPE_BFLOAT16 == KF_BF16 &&
                                       KF_DTYPE_FLOAT64 == KF_F64 && KF_DTYPE_INT32 == KF_I32 &&
                                       KF_DTYPE_INT64 == KF_I64 && KF_DTYPE_UINT8 == KF_U8
                                   ? 1
                                   : -1];

/* Of a launcher behind the calling convention of gen/kfgen/packed.py: tensors; sizes and integers;
   the struct of strides; scalars; the number of the activation; seed and offset; workspace and its
   bytes; and a CUDA stream. */
#define KFI_RT_UNUSED __attribute__((unused))
#define KFI_RT_PARAMETERS                                                                          \
    KFI_RT_UNUSED void *const *t, KFI_RT_UNUSED const int64_t *n, KFI_RT_UNUSED const int64_t *d,  \
        KFI_RT_UNUSED const double *s, KFI_RT_UNUSED int a, KFI_RT_UNUSED const uint64_t *r,       \
        KFI_RT_UNUSED void *w, KFI_RT_UNUSED size_t b, KFI_RT_UNUSED struct CUstream_st *q

/* What a size is the product of: dimensions of the op's elements, or a number that is no extent of
 * theirs. */
enum {
    KFI_RT_ALL,
    KFI_RT_BEFORE,
    KFI_RT_AXIS,
    KFI_RT_AFTER,
    KFI_RT_GROUPS,
    KFI_RT_ONE,
    KFI_RT_BUT_THREE,
    KFI_RT_BETWEEN, /* from the axis to the last two */
    KFI_RT_FIFTH,   /* from the last one */
    KFI_RT_FOURTH,
    KFI_RT_THIRD,
    KFI_RT_SECOND,
    KFI_RT_LAST
};
enum { KFI_RT_NEVER, KFI_RT_ALONE, KFI_RT_ALWAYS }; /* alone: if nothing lies behind it */
/* Whose dtype a tensor has: of two of the op, of its sums, of its whole numbers, or from
 * KFI_RT_FIXED on always the same. */
enum { KFI_RT_T, KFI_RT_U, KFI_RT_ACC, KFI_RT_I, KFI_RT_FIXED };

typedef struct {
    const char *name;
    unsigned char is_out, var;
    unsigned char is_added;             /* to beta times what is there */
    unsigned char extents;              /* how many sizes its shape is made of */
    unsigned char extent[KFI_RT_SIZES]; /* numbers of sizes, the slowest first; */
    signed char twice;                  /* which of them is so many times two, -1: none */
    unsigned char levels, field; /* of strides: how many fields it has in the struct, and the first,
                                    that of its innermost level */
    uint64_t missing, unread; /* a bit for each of the op's activations with which it may be NULL;
                                 that reads nothing of it */
} kfi_rt_operand;
typedef struct {
    const char *name;
    int id, scalars;
    double scalar[4]; /* the defaults */
    const char *scalar_name[4];
} kfi_rt_activation;
typedef kf_result_t (*kfi_rt_function)(KFI_RT_PARAMETERS);
typedef struct {
    kfi_rt_function run;                     /* NULL: none on this device */
    size_t (*space)(const int64_t *n);       /* NULL: no workspace */
    kf_result_t (*apart)(KFI_RT_PARAMETERS); /* of tensors that lie in any way, by the layout at d
                                                (kf/core/elementwise/strided.cuh); NULL: there is none */
} kfi_rt_launcher;
typedef struct kfi_rt_op kfi_rt_op;
struct kf_op_t {
    const kfi_rt_op *op;
    const char *launcher;    /* "kf_add_relu_f32" */
    int dtype[3];            /* of T, U, I */
    int word_count, word[3]; /* the dtypes of its name */
    int activation;          /* a number of the op's activations */
    kfi_rt_launcher cpu, cuda;
};
struct kfi_rt_op {
    const char *name;                /* "kf_fused_add_activation" */
    const char *plain;               /* "add", without the place of the activation */
    const char *const *other_names;  /* as plain, other spellings of it; NULL ends them */
    const char *const *number_names; /* of integers, then of scalars */
    const kfi_rt_operand *operands;
    const kfi_rt_activation *activations;
    const kf_op_t *entries; /* those of the same dtypes side by side */
    int operand_count, activation_count, entry_count;
    int size_count, integers, scalars;
    unsigned char size[KFI_RT_SIZES];
    signed char axis;        /* the dimension that is the axis, where nobody names one */
    unsigned char least;     /* dimensions that its elements have at least */
    unsigned char shaped_by; /* the operand whose shape the sizes are read from */
    unsigned char
        shaped[KFI_RT_SHAPED]; /* where it takes several: those, in the order in which they are
                                  read, then the last one again; else that one alone */
    unsigned char halves;      /* that operand is twice as long along the last dimension */
    unsigned char any_order;   /* elements are visited one by one, in any order: any strides and
                                  broadcasting will do */
    unsigned char dropout, refuses_empty, has_beta;
    unsigned char joined; /* whether a tensor's innermost level lies side by side too */
    unsigned char chooses_axis, chooses_groups;
    signed char batch; /* the size whose indices are computed apart from each other, in all that is
                          written; -1: there is none */
    unsigned char by_all; /* every tensor says sizes: of the first one any number of dimensions, of
                             the others one each */
};

#ifdef KFI_RT_KERNELS
#define KFI_RT_ON_GPU(...) {__VA_ARGS__}
#else
#define KFI_RT_ON_GPU(...) {NULL, NULL, NULL}
#endif
#if KF_RUNTIME_CPU
#define KFI_RT_ON_CPU(...) {__VA_ARGS__}
#else
#define KFI_RT_ON_CPU(...) {NULL, NULL, NULL}
#endif
/* All of a program's ops, of as many files as `kfgen runtime` wrote for it: the linker puts what is
   in one section side by side. `retain`: with --gc-sections lld throws away what only the section's
   bounds lead to; where the assembler does not know it, gcc would warn. */
#define KFI_RT_KEPT used
#ifdef __has_attribute
#if __has_attribute(retain)
#undef KFI_RT_KEPT
#define KFI_RT_KEPT used, retain
#endif
#endif
#define KFI_RT_LIST_OP(stem)                                                                       \
    _Pragma("GCC diagnostic push")                                                                 \
        _Pragma("GCC diagnostic ignored \"-Wattributes\"") static const kfi_rt_op *const           \
            kfi_rt_listed_##stem __attribute__((section("kf_rt_ops"), KFI_RT_KEPT)) =              \
                &kfi_rt_op_##stem;                                                                 \
    _Pragma("GCC diagnostic pop")
#ifdef __cplusplus
extern "C" {
#endif
extern const kfi_rt_op *const __start_kf_rt_ops[] __attribute__((weak, visibility("hidden")));
extern const kfi_rt_op *const __stop_kf_rt_ops[] __attribute__((weak, visibility("hidden")));
#ifdef __cplusplus
}
#endif

/* A call as its function was given it. */
typedef struct {
    const kfi_rt_op *op;
    const kf_op_t *entry; /* the one that it has to be, or NULL */
    kf_context_t *ctx;
    const kf_tensor_t *const *tensors; /* in the order of the operands; NULL: absent */
    const int64_t *integers;
    const double *scalars, *act_scalars; /* act_scalars NULL: the defaults */
    kf_stream_t *stream;
    int64_t groups;
    double p, beta;
    uint64_t rng[2];
    int dim;
    kf_activation_t activation;
} kfi_rt_call;

/* What comes of it. */
typedef struct {
    const kf_op_t *entry;
    int activation, axis, ndim; /* ndim: of the elements */
    int64_t shape[KFI_RT_DIMS];
    int64_t n[KFI_RT_SIZES + 4];         /* sizes, then integers */
    int64_t strides[KFI_RT_TENSORS * 3]; /* the struct; `apart`: some field is not 0 */
    double s[KFI_RT_SCALARS];
    void *t[KFI_RT_TENSORS];
    int apart, in_blocks; /* in_blocks: tensors lie in ways that no launcher takes */
} kfi_rt_made;

#endif
