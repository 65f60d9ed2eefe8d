// SPDX-License-Identifier: Apache-2.0
// One call of an op: its library, and its arguments from PyTorch's stack.
#ifndef KF_NATIVE_TORCH_CALL_H
#define KF_NATIVE_TORCH_CALL_H

#include "kf/runtime/layout.h"
#include "packed.h"
#include "torch_abi.h"
#include "torch_memory.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

enum { TYPES = 8, T = TYPES, U, ACC, VARS, MAX_OPS = 512, BYTES = 6 };
enum { DIMS = 64, TENSORS = 24, FIELDS = 96, SHAPING = 5 };
enum { ALWAYS = 0, SAVED, GRADIENT, PLACE };

// torch/_shim.py declares the same fields in the same order.
typedef struct {
    const char *name;
    const uint8_t *unread;    // [activation]
    int32_t var;              // index of a dtype, or T, U, acc
    int32_t optional, absent; // optional in the schema; may be absent in a call
    int32_t use, place;
    kfi_layout_tensor layout;
} kfs_tensor;

typedef struct {
    const char *name;
    const kfs_tensor *tensors; // inputs, then outputs
    // On the CPU and on a GPU, [activation][T][U]: libraries, NULL before the first call, and the
    // indices of the function in them.
    const int32_t *functions[2];
    const struct kfs_library **libraries[2];
    const int64_t *activations;
    const int32_t *act_scalars; // [activation]: number of scalars
    const double *bounds;       // [activation][scalar][least, most]
    int64_t copies;             // number of inputs that were copied to be contiguous
    kfi_layout_rules rules[2];  // [1]: if the channels are last
    int32_t inputs, outputs, integers, scalars, acts, dropout, has_axis, axis, has_groups, has_last,
        has_act, saves, backward;
    int32_t number_of_activations, basis, workspace, bound_count;
    int32_t shaping_count, shaping[SHAPING]; // inputs whose shapes determine the sizes
    int32_t betas;                           // number of zero scalars before p
} kfs_op;

enum { KFS_NO_MEMORY = -1000, KFS_NO_STREAM };
static const char *const type_names[TYPES] = {"float32", "float16", "bfloat16", "float64",
                                              "int32",   "int64",   "uint8",    "bool"};
static int32_t types[TYPES];
static kfs_op *ops;

typedef struct kfs_library {
    int (*run)(int, KFP_PARAMETERS);
    int (*run_on)(int, int, KFP_PARAMETERS, void *); // only on a GPU
    size_t (*space)(int, const int64_t *);
    const char *(*error)(int);
    const char *(*detail)(void), *(*reason)(void); // error of this thread's last call
} kfs_library;

// A backend: device type and registration.
typedef struct {
    int32_t type; // PyTorch's number of the device type
    bool gpu;
    handle implementations; // PyTorch's registrations, which live as long as the process
} kfs_backend;
static kfs_backend cpu, gpu;
// Called before the first call of a function, `at` as in kfs_op. It stores the function's index and
// library and returns NULL, or returns why it cannot.
static const char *(*open_function)(int op, int on_gpu, int at);

typedef struct {
    kfs_op *op;
    const kfi_layout_rules *rules; // one of op->rules
    const kfs_backend *backend;
    const kfs_library *library;
    int32_t device; // index among the devices of its type
    handle in[TENSORS], out[TENSORS], rng;
    int32_t type[TENSORS]; // dtype indices
    int64_t fields[FIELDS], axis, groups, mask;
    double scalars[32];
    int given, activation, strided; // strided: some field is not zero
    bool no_memory;
    kfi_layout layout;
    int32_t vars[VARS];
    char wrong[1000]; // error text; last, since it is not initialised
} call;

static bool fail(call *c, const char *what, const char *name)
{
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s%s%s", c->op->name, name, *name ? " " : "", what);
    return false;
}

// Reports a failed allocation.
static bool fail_for_memory(call *c, const char *what)
{
    const char *why = c->backend->gpu ? why_no_memory() : "";
    c->no_memory = c->backend->gpu && is_out_of_memory(why);
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s: %s", c->op->name, what,
             *why ? why : "out of memory");
    return false;
}

static int type_of(handle h)
{
    int32_t found = 0, number = 0;
    p_aoti_torch_get_dtype(h, &found);
    while (number < TYPES && types[number] != found) ++number;
    return number == TYPES - 1 ? TYPES - 2 : number; // bool is read as uint8
}

static void take_inputs(call *c, value *stack)
{
    const kfs_op *op = c->op;
    for (int i = 0; i < op->inputs; ++i) {
        handle h = (handle)stack[i];
        if (op->tensors[i].optional && h) { // an optional value is on the heap
            value *held = (value *)h;
            h = (handle)*held;
            if (p_delete_value) {
                p_delete_value(held);
            } else {
                delete held;
            }
        }
        c->in[i] = h;
    }
}

// True if x is out of its bounds; NaN is out of any bounds.
static bool is_out(double x, double least, double most)
{
    return (least > -INFINITY && !(x >= least)) || (most < INFINITY && !(x <= most));
}

// Reads the arguments after the tensors, in the order of torch/_schema.py.
static bool take_rest(call *c, const value *stack)
{
    const kfs_op *op = c->op;
    const value *v = stack + op->inputs;
    kfi_layout_integers(op->rules, &c->layout, (const int64_t *)v, op->integers);
    v += op->integers;
    memcpy(c->scalars, v, (size_t)op->scalars * sizeof *v), v += op->scalars;
    const value *acts = v;
    v += op->acts;
    double p = 0;
    if (op->dropout) memcpy(&p, v++, sizeof p);
    c->axis = op->has_axis ? (int64_t)*v++ : op->axis;
    c->groups = op->has_groups ? (int64_t)*v++ : 1;
    c->rules = &op->rules[op->has_last && (*v++ & 0xFF)];
    if (op->dropout) c->rng = (handle)*v++;
    const int64_t number = op->has_act ? (int64_t)*v++ : op->activations[0];
    c->mask = op->backward ? (int64_t)*v : op->saves ? (int64_t)(*v & 0xFF) : -1;
    while (c->activation < op->number_of_activations && op->activations[c->activation] != number)
        ++c->activation;
    if (c->activation == op->number_of_activations)
        return fail(c, "has no activation of this number", "");
    const int own = op->act_scalars[c->activation];
    memcpy(c->scalars + op->scalars, acts, (size_t)own * sizeof *acts);
    c->given = op->scalars + own;
    if (op->dropout) c->scalars[c->given++] = p;
    const double *bounds = op->bounds + (size_t)c->activation * (size_t)op->bound_count * 2;
    for (int i = 0; i < c->given; ++i)
        if (is_out(c->scalars[i], bounds[2 * i], bounds[2 * i + 1]))
            return fail(c, "a number is out of its bounds", "");
    for (int i = 0; i < op->betas; ++i, ++c->given) { // inserts zeros before p
        c->scalars[c->given] = op->dropout ? p : 0;
        if (op->dropout) c->scalars[c->given - 1] = 0;
    }
    return true;
}

#endif
