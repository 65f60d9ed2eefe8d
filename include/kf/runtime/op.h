/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/op.h: description of an op, as `kfgen runtime` writes it, and of a call. */
#ifndef KF_RUNTIME_OP_H
#define KF_RUNTIME_OP_H

#include "kf/core/version.h"
#include "kf/runtime/layout.h"
#include "kf/runtime/pair.h"

#define KFI_RT_TENSORS 24
#define KFI_RT_SCALARS 16
/* index of a dropout's probability, after all other scalars */
#define KFI_RT_P (KFI_RT_SCALARS - 1)
#define KFI_RT_BETA (KFI_RT_SCALARS - 2) /* index of beta */

/* Selection of the functions that a program contains.
 * KF_RUNTIME_ACTIVATIONS: kf's own activations, a bit each: 1 << KF_ACTIVATION_RELU | 1 <<
 * KF_ACTIVATION_GELU. A program's own activations are always included.
 * KF_RUNTIME_FAST: activations that have their own kernel on a GPU, where a single kernel could
 * take any.
 * KF_RUNTIME_DTYPES: element types: 1 << KF_DTYPE_FLOAT32 | 1 << KF_DTYPE_BFLOAT16. Integers of
 * labels and indices are always included.
 * KF_RUNTIME_CPU: 0 leaves out the functions for CPU tensors in a file that nvcc compiles. */
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
#define KFI_RT_NO_ACTIVATION 0x7fffffff /* number of an activation that was left out */
#define KFI_RT_IS_FAST(id) ((id) < 63 && ((KF_RUNTIME_FAST) + 0ll) >> ((id) % 63) & 1)

/* #if evaluates an enumerator, such as KF_BF16, as 0: refuses the mask that results. */
#if (KF_RUNTIME_DTYPES) == 1
typedef char kfi_rt_dtypes_are_named_KF_DTYPE[(KF_RUNTIME_DTYPES) == 1 ? 1 : -1];
#endif
typedef char
    kfi_rt_dtypes_are_numbered[KF_DTYPE_FLOAT16 == KF_F16 && KF_DTYPE_BFLOAT16 == KF_BF16 &&
                                       KF_DTYPE_FLOAT64 == KF_F64 && KF_DTYPE_INT32 == KF_I32 &&
                                       KF_DTYPE_INT64 == KF_I64 && KF_DTYPE_UINT8 == KF_U8
                                   ? 1
                                   : -1];

/* Parameters of a launcher in the calling convention of gen/kfgen/interfaces/packed.py: tensors;
   sizes and integers; the struct of strides; scalars; index of the activation; seed and offset;
   workspace and its bytes; CUDA stream. */
#define KFI_RT_UNUSED __attribute__((unused))
#define KFI_RT_PARAMETERS                                                                          \
    KFI_RT_UNUSED void *const *t, KFI_RT_UNUSED const int64_t *n, KFI_RT_UNUSED const int64_t *d,  \
        KFI_RT_UNUSED const double *s, KFI_RT_UNUSED int a, KFI_RT_UNUSED const uint64_t *r,       \
        KFI_RT_UNUSED void *w, KFI_RT_UNUSED size_t b, KFI_RT_UNUSED struct CUstream_st *q

/* Dtype of a tensor: one of the op's two, that of its sums, that of its integers, or, from
 * KFI_RT_FIXED on, always the same. */
enum { KFI_RT_T, KFI_RT_U, KFI_RT_ACC, KFI_RT_I, KFI_RT_FIXED };

typedef struct {
    const char *name;
    unsigned char is_out, var;
    unsigned char is_added; /* added to beta times the old contents */
    kfi_layout_tensor layout;
    /* bit masks over the op's activations: with which it may be NULL; which do not read it */
    uint64_t missing, unread;
} kfi_rt_operand;
typedef struct {
    const char *name;
    int id, scalars;
    double scalar[4]; /* default values */
    const char *scalar_name[4];
} kfi_rt_activation;
typedef kf_result_t (*kfi_rt_function)(KFI_RT_PARAMETERS);
typedef struct {
    kfi_rt_function run;               /* NULL: not available on this device */
    size_t (*space)(const int64_t *n); /* NULL: needs no workspace */
    /* variant for strided tensors, with the layout at d; NULL: none
       (kf/core/elementwise/strided.cuh) */
    kf_result_t (*apart)(KFI_RT_PARAMETERS);
} kfi_rt_launcher;
typedef struct kfi_rt_op kfi_rt_op;
struct kf_op_t {
    const kfi_rt_op *op;
    const char *launcher;    /* "kf_add_relu_f32" */
    int dtype[3];            /* dtypes of T, U, I */
    int word_count, word[3]; /* dtypes in its name */
    int activation;          /* index into the op's activations */
    kfi_rt_launcher cpu, cuda;
};
struct kfi_rt_op {
    const char *name;                /* "kf_fused_add_activation" */
    const char *plain;               /* "add", without the placeholder of the activation */
    const char *const *other_names;  /* aliases of `plain`, ended by NULL */
    const char *const *number_names; /* names of the integers, then of the scalars */
    const char *const *size_names;   /* NULL unless rules.beside refuses sizes */
    const kfi_rt_operand *operands;
    const kfi_rt_activation *activations;
    const kf_op_t *entries; /* entries of the same dtypes are adjacent */
    int operand_count, activation_count, entry_count;
    int integers, scalars;
    kfi_layout_rules rules;
    /* operands whose shapes determine the sizes, in the order of the rules; 0: all operands */
    unsigned char shaping_count, shaping[KFI_RT_TENSORS];
    unsigned char shaped_by; /* the operand that errors compare others with */
    signed char axis;        /* the reduced dimension unless the call names one */
    signed char refused;     /* index of a size that must not be 0; -1: none */
    unsigned char any_order; /* elementwise: takes any strides and broadcasting */
    unsigned char dropout, has_beta;
    unsigned char chooses_axis, chooses_groups;
    /* index of the size whose indices are computed independently in all outputs; -1: none */
    signed char batch;
    unsigned char takes_lists; /* lists of tensors instead of tensors */
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
/* All ops of a program, from any number of files that `kfgen runtime` wrote: the linker gathers one
 * section. `retain`: with --gc-sections, lld would discard data that only the section's bounds
 * reference; gcc warns if the assembler does not support it. */
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

/* A call with the arguments of its function. */
typedef struct {
    const kfi_rt_op *op;
    const kf_op_t *entry; /* the required entry, or NULL */
    kf_context_t *ctx;
    const kf_tensor_t *const *tensors; /* one per operand; NULL: absent */
    /* ops of lists: the arrays of `count` tensors, one per operand */
    const kf_tensor_t *const *const *lists;
    int64_t count;
    const int64_t *integers;
    const double *scalars, *act_scalars; /* act_scalars NULL: the defaults */
    kf_stream_t *stream;
    int64_t groups;
    double p, beta;
    uint64_t rng[2];
    int dim;
    kf_activation_t activation;
} kfi_rt_call;

/* A checked call: the arguments of the launcher. */
typedef struct {
    const kf_op_t *entry;
    int activation;
    kfi_layout layout;                   /* the launcher's numbers are layout.n */
    int64_t strides[KFI_RT_TENSORS * 3]; /* the strides struct */
    double s[KFI_RT_SCALARS];
    void *t[KFI_RT_TENSORS];
    /* apart: some stride is not 0; in_blocks: no launcher takes the strides */
    int apart, in_blocks;
} kfi_rt_prepared;

#endif
