// SPDX-License-Identifier: Apache-2.0
// kf's ops for PyTorch over libtorch's stable C ABI: what torch/_kernels.py does through ctypes, without Python. It knows no torch header
// and is linked to no torch: its C functions are looked up in the libtorch that is loaded, so one library serves many versions. One boxed
// kernel reads the table of ops; a trampoline each says which op it is.
#include "packed.h"
#include "torch_layout.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <stdexcept>

typedef uint64_t value; // a StableIValue
typedef struct opaque *handle;
#define FUNCTIONS(X)                                                                                                                       \
    X(aoti_torch_get_sizes, (handle, int64_t **))                                                                                          \
    X(aoti_torch_get_strides, (handle, int64_t **)) X(aoti_torch_get_dim, (handle, int64_t *))                                             \
        X(aoti_torch_get_dtype, (handle, int32_t *)) X(aoti_torch_get_device_type, (handle, int32_t *))                                    \
            X(aoti_torch_get_data_ptr, (handle, void **)) X(aoti_torch_delete_tensor_object, (handle))                                     \
                X(aoti_torch_new_tensor_handle, (handle, handle *))                                                                        \
                    X(aoti_torch_empty_strided, (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, handle *))          \
                        X(aoti_torch_library_init_impl, (const char *, const char *, const char *, uint32_t, handle *))                    \
                            X(aoti_torch_library_impl, (handle, const char *, void (*)(value *, uint64_t, uint64_t)))                      \
                                X(aoti_torch_call_dispatcher, (const char *, const char *, value *))
#define POINTER(name, parameters) static int32_t(*p_##name) parameters;
FUNCTIONS(POINTER)
static int32_t (*p_delete_value)(value *); // of newer versions; before them a value on the heap was a plain one

enum { TYPES = 8, T = TYPES, U, ACC, VARS, MOST = 256 };
static const char *const type_names[TYPES] = {"float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"};
static int32_t types[TYPES], cpu;
static kfs_op *ops;
static int (*run_function)(int, KFP_PARAMETERS);
static size_t (*space_function)(int, const int64_t *);

typedef struct {
    kfs_op *op;
    handle in[TENSORS], out[TENSORS], rng;
    int32_t type[TENSORS]; // numbers of dtypes
    int64_t numbers[SIZES + 16], fields[FIELDS], axis, groups, mask;
    double scalars[32];
    int integers, given, activation;
    bool strided;
    kfs_layout layout;
    int32_t vars[VARS];
    char wrong[200];
} call;

static bool fail(call *c, const char *what, const char *name)
{
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s%s%s", c->op->name, name, *name ? " " : "", what);
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
        if (op->tensors[i].optional && h) { // optional: a value on the heap
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

// What stands behind the tensors, in the order of torch/_schema.py.
static bool take_rest(call *c, const value *stack)
{
    const kfs_op *op = c->op;
    const value *v = stack + op->inputs;
    c->integers = op->integers;
    memcpy(c->numbers, v, (size_t)op->integers * sizeof *v), v += op->integers; // sizes come in front of them later
    memcpy(c->scalars, v, (size_t)op->scalars * sizeof *v), v += op->scalars;
    const value *acts = v;
    v += op->acts;
    double p = 0;
    if (op->dropout) memcpy(&p, v++, sizeof p);
    c->axis = op->has_axis ? (int64_t)*v++ : -1;
    c->groups = op->has_groups ? (int64_t)*v++ : 1;
    if (op->dropout) c->rng = (handle)*v++;
    const int64_t number = op->has_act ? (int64_t)*v++ : op->activations[0];
    c->mask = op->backward ? (int64_t)*v : op->saves ? (int64_t)(*v & 0xFF) : -1;
    while (c->activation < op->number_of_activations && op->activations[c->activation] != number) ++c->activation;
    if (c->activation == op->number_of_activations) return fail(c, "has no activation of this number", "");
    const int own = op->act_scalars[c->activation];
    memcpy(c->scalars + op->scalars, acts, (size_t)own * sizeof *acts);
    c->given = op->scalars + own;
    if (op->dropout) c->scalars[c->given++] = p;
    const double *bounds = op->bounds + (size_t)c->activation * (size_t)op->bound_count * 2;
    for (int i = 0; i < c->given; ++i)
        if (!(c->scalars[i] >= bounds[2 * i] && c->scalars[i] <= bounds[2 * i + 1])) return fail(c, "a number is out of its bounds", "");
    for (int i = 0; i < op->betas; ++i, ++c->given) { // in front of p
        c->scalars[c->given] = op->dropout ? p : 0;
        if (op->dropout) c->scalars[c->given - 1] = 0;
    }
    return true;
}

static bool read_variables(call *c)
{
    const kfs_op *op = c->op;
    for (int i = 0; i < VARS; ++i) c->vars[i] = i < TYPES ? i : -1;
    for (int i = 0; i < op->inputs; ++i) {
        if (!c->in[i]) continue;
        c->type[i] = type_of(c->in[i]);
        int32_t *var = &c->vars[op->tensors[i].var];
        if (*var < 0) *var = c->type[i];
        int32_t device = 0;
        p_aoti_torch_get_device_type(c->in[i], &device);
        if (device != cpu) return fail(c, "is on another device", op->tensors[i].name);
        if (c->type[i] == TYPES) return fail(c, "has a dtype that no op takes", op->tensors[i].name);
    }
    if (c->vars[U] < 0) c->vars[U] = c->vars[T];
    c->vars[ACC] = c->vars[T] == 3 ? 3 : 0;
    return true;
}

static handle contiguous(call *c, handle h)
{
    ++c->op->copies;
    value stack[2] = {(value)h, 0}; // contiguous(Tensor, MemoryFormat): takes the one, gives the other
    return p_aoti_torch_call_dispatcher("aten::contiguous", "", stack) ? NULL : (handle)stack[0];
}

static bool check_input(call *c, int i)
{
    const kfs_tensor *t = &c->op->tensors[i];
    int64_t wanted[2 * DIMS], *shape, *strides, dims;
    if (c->type[i] != c->vars[t->var]) return fail(c, "has another dtype than is expected beside the others", t->name);
    p_aoti_torch_get_sizes(c->in[i], &shape);
    p_aoti_torch_get_dim(c->in[i], &dims);
    if (kfs_shape(c->op, &c->layout, t, wanted) != dims || memcmp(wanted, shape, (size_t)dims * sizeof *shape))
        return fail(c, "has another shape than is expected beside the others", t->name);
    if (t->unread[c->activation]) return true;
    p_aoti_torch_get_strides(c->in[i], &strides);
    if (kfs_strides(c->op, &c->layout, t, shape, strides, (int)dims, c->fields, &c->strided)) return true;
    c->in[i] = contiguous(c, c->in[i]);
    return c->in[i] || fail(c, "could not be made contiguous", t->name);
}

// The sizes, from one input or from two.
static bool lay_out(call *c)
{
    const kfs_op *op = c->op;
    int64_t *shapes[2], dims[2];
    int wrong = op->basis;
    for (int i = 0; i < 2; ++i) {
        const int from = op->shaped[i] < 0 ? op->basis : op->shaped[i];
        p_aoti_torch_get_sizes(c->in[from], &shapes[i]);
        p_aoti_torch_get_dim(c->in[from], &dims[i]);
    }
    return (op->shaped[0] < 0 ? kfs_lay_out(op, &c->layout, shapes[0], dims[0], c->axis, c->groups)
                              : kfs_join(op, &c->layout, shapes, dims, &wrong)) ||
           fail(c, "has a shape that the op has no sizes for", op->tensors[wrong].name);
}

static bool check_inputs(call *c)
{
    const kfs_op *op = c->op;
    for (int i = 0; i < op->inputs; ++i) {
        const kfs_tensor *t = &op->tensors[i];
        if (!c->in[i] && !t->unread[c->activation] && !t->absent) return fail(c, "is missing", t->name);
    }
    if (!c->in[op->basis]) return fail(c, "is missing", op->tensors[op->basis].name);
    if (!read_variables(c) || !lay_out(c)) return false;
    for (int i = 0; i < op->inputs; ++i)
        if (c->in[i] && !check_input(c, i)) return false;
    return true;
}

static bool wanted(const call *c, int i)
{
    const kfs_tensor *t = &c->op->tensors[c->op->inputs + i];
    return t->use == GRADIENT ? c->mask >> i & 1 : t->use == SAVED ? c->mask != 0 : t->use != PLACE || c->in[t->place];
}

// The results, of which those that nobody wants have no elements; returns how many are wanted, -1 where memory is short.
static int make_outputs(call *c)
{
    const kfs_op *op = c->op;
    int found = 0;
    for (int i = 0; i < op->outputs; ++i) {
        const kfs_tensor *t = &op->tensors[op->inputs + i];
        int64_t shape[2 * DIMS] = {0}, strides[2 * DIMS], length = 1;
        const int dims = wanted(c, i) ? kfs_shape(op, &c->layout, t, shape) : 1;
        for (int d = dims - 1; d >= 0; --d) {
            strides[d] = length;
            length *= shape[d] > 1 ? shape[d] : 1;
        }
        if (p_aoti_torch_empty_strided(dims, shape, strides, types[c->vars[t->var]], cpu, -1, &c->out[i])) return -1;
        found += wanted(c, i);
    }
    return found;
}

static bool compute(call *c, int id)
{
    const kfs_op *op = c->op;
    void *t[2 * TENSORS] = {0}, *rng = NULL;
    for (int i = 0; i < op->inputs; ++i)
        if (c->in[i] && !op->tensors[i].unread[c->activation]) p_aoti_torch_get_data_ptr(c->in[i], &t[i]);
    for (int i = 0; i < op->outputs; ++i)
        if (wanted(c, i)) p_aoti_torch_get_data_ptr(c->out[i], &t[op->inputs + i]);
    if (c->rng) p_aoti_torch_get_data_ptr(c->rng, &rng);
    int64_t n[2 * SIZES + 16];
    int count = 0;
    for (; count < SIZES && op->order[count] >= 0; ++count) n[count] = kfs_size(op, &c->layout, op->order[count]);
    memcpy(n + count, c->numbers, (size_t)c->integers * sizeof *n);
    const size_t bytes = op->workspace ? space_function(id, n) : 0;
    alignas(256) char small[4096];
    void *space = bytes == 0 ? NULL : bytes <= sizeof small ? small : aligned_alloc(256, bytes);
    if (bytes && !space) return fail(c, "there is no memory for its workspace", "");
    const int code = run_function(id, t, n, c->strided ? c->fields : NULL, c->scalars, (const uint64_t *)rng, space, bytes);
    if (bytes > sizeof small) free(space);
    return code == 0 || fail(c, "the kernel refused its arguments", "");
}

static bool check_rng(call *c)
{
    int64_t *shape, dims;
    if (!c->rng) return true;
    p_aoti_torch_get_sizes(c->rng, &shape);
    p_aoti_torch_get_dim(c->rng, &dims);
    int64_t *strides;
    p_aoti_torch_get_strides(c->rng, &strides);
    int32_t device = 0;
    p_aoti_torch_get_device_type(c->rng, &device);
    return (type_of(c->rng) == 5 && dims == 1 && shape[0] == 2 && strides[0] == 1 && device == cpu) || fail(c, "rng is not two int64", "");
}

static bool execute(call *c, const value *stack)
{
    if (!take_rest(c, stack) || !check_rng(c) || !check_inputs(c)) return false;
    const int first = c->vars[T], second = c->vars[U];
    const int id = c->op->functions[(c->activation * TYPES + first) * TYPES + second];
    if (id < 0) return fail(c, "there is no function for these dtypes in the library", "");
    const int found = make_outputs(c);
    if (found < 0) return fail(c, "there is no memory for its results", "");
    return found == 0 || compute(c, id);
}

static void boxed(kfs_op *op, value *stack)
{
    call c;
    memset(&c, 0, sizeof c);
    c.op = op;
    take_inputs(&c, stack);
    const bool done = execute(&c, stack);
    // The inputs are the kernel's own, and so are results that nobody will get.
    for (int i = 0; i < op->inputs; ++i)
        if (c.in[i]) p_aoti_torch_delete_tensor_object(c.in[i]);
    if (c.rng) p_aoti_torch_delete_tensor_object(c.rng);
    for (int i = 0; i < op->outputs; ++i) {
        if (done) {
            stack[i] = (value)c.out[i];
        } else if (c.out[i]) {
            p_aoti_torch_delete_tensor_object(c.out[i]);
        }
    }
    if (!done) throw std::runtime_error(c.wrong);
}

template <int k> static void trampoline(value *stack, uint64_t, uint64_t) { boxed(&ops[k], stack); }
typedef void (*kernel)(value *, uint64_t, uint64_t);
template <int k> struct Fill {
    static void in(kernel *to) { to[k] = trampoline<k>, Fill<k - 1>::in(to); }
};
template <> struct Fill<-1> {
    static void in(kernel *) {}
};

// Registers kernels for the CPU, one for each op of the table. Returns what this libtorch lacks, or NULL.
extern "C" KFP_EXPORT const char *kfs_register(const char *libtorch, kfs_op *table, int count, int (*run)(int, KFP_PARAMETERS),
                                               size_t (*space)(int, const int64_t *))
{
    void *library = dlopen(libtorch, RTLD_NOW | RTLD_NOLOAD);
    if (!library || count > MOST) return library ? "room for so many ops" : "libtorch_cpu.so";
#define LOOK(name, parameters)                                                                                                             \
    *(void **)&p_##name = dlsym(library, #name);                                                                                           \
    if (!p_##name) return #name;
    FUNCTIONS(LOOK)
    *(void **)&p_delete_value = dlsym(library, "torch_delete_stable_ivalue");
    static char name[64];
    int32_t (*number)(void);
    for (int i = 0; i < TYPES + 1; ++i) {
        snprintf(name, sizeof name, i < TYPES ? "aoti_torch_dtype_%s" : "aoti_torch_device_type_%s", i < TYPES ? type_names[i] : "cpu");
        *(void **)&number = dlsym(library, name);
        if (!number) return name;
        *(i < TYPES ? &types[i] : &cpu) = number();
    }
    ops = table, run_function = run, space_function = space;
    static kernel kernels[MOST];
    Fill<MOST - 1>::in(kernels);
    handle implementations; // lives as long as the process
    if (p_aoti_torch_library_init_impl("kf", "CPU", "kf", 0, &implementations)) return "aoti_torch_library_init_impl";
    for (int i = 0; i < count; ++i)
        if (p_aoti_torch_library_impl(implementations, table[i].name, kernels[i])) return table[i].name;
    return NULL;
}
