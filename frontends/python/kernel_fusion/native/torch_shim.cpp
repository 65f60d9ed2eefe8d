// SPDX-License-Identifier: Apache-2.0
// kf's ops for PyTorch over libtorch's stable C ABI: what torch/_kernels.py does through ctypes, without Python. It knows no torch header
// and is linked to no torch: its C functions are looked up in the libtorch that is loaded, so one library serves many versions. One boxed
// kernel reads the table of ops; a trampoline each says which op it is.
#include "packed.h"
#include "torch_abi.h"
#include "torch_layout.h"
#include "torch_memory.h"

#include <stddef.h>
#include <stdlib.h>

enum { TYPES = 8, T = TYPES, U, ACC, VARS, MOST = 256, BYTES = 6 };
enum { KFS_NO_MEMORY = -1000, KFS_NO_STREAM };
static const char *const type_names[TYPES] = {"float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"};
static int32_t types[TYPES];
static kfs_op *ops;

// Where tensors are, and what computes there.
typedef struct {
    int32_t type; // of the device, as torch counts them
    bool gpu;
    int (*run)(int, KFP_PARAMETERS);
    int (*run_on)(int, int, KFP_PARAMETERS, void *); // of a GPU
    size_t (*space)(int, const int64_t *);
    const char *(*error)(int), *(*detail)(void), *(*reason)(void); // what the last call of this thread failed of
    int (*open)(int);                                              // of a GPU: before an op's first call there, 0 where it then can be called
} kfs_place;
static kfs_place cpu, gpu;

typedef struct {
    kfs_op *op;
    const kfs_place *place;
    int32_t device; // of those of its type
    handle in[TENSORS], out[TENSORS], rng;
    int32_t type[TENSORS]; // numbers of dtypes
    int64_t numbers[SIZES + 16], fields[FIELDS], axis, groups, mask;
    double scalars[32];
    int integers, given, activation;
    bool strided, no_memory;
    kfs_layout layout;
    int32_t vars[VARS];
    char wrong[1000]; // last: it is written where it is read
} call;

static bool fail(call *c, const char *what, const char *name)
{
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s%s%s", c->op->name, name, *name ? " " : "", what);
    return false;
}

// Of an allocation that failed.
static bool fail_for_memory(call *c, const char *what)
{
    const char *why = c->place->gpu ? why_no_memory() : "";
    c->no_memory = c->place->gpu && is_out_of_memory(why);
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s: %s", c->op->name, what, *why ? why : "out of memory");
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

// The first tensor says which device of its type it is.
static bool on_place(call *c, handle h)
{
    int32_t type = 0, index = 0;
    p_aoti_torch_get_device_type(h, &type);
    if (c->place->gpu) p_aoti_torch_get_device_index(h, &index);
    if (c->device < 0) c->device = index;
    return type == c->place->type && index == c->device;
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
        if (!on_place(c, c->in[i])) return fail(c, "is on another device", op->tensors[i].name);
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
    return c->in[i] || fail_for_memory(c, t->name);
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
        if (p_aoti_torch_empty_strided(dims, shape, strides, types[c->vars[t->var]], c->place->type, c->place->gpu ? c->device : -1, &c->out[i])) return -1;
        found += wanted(c, i);
    }
    return found;
}

typedef struct {
    void *t[2 * TENSORS], *rng;
    int64_t n[2 * SIZES + 16];
    size_t bytes; // of the workspace
} given;

static int run_here(const call *c, int id, const given *g)
{
    alignas(256) char small[4096];
    void *space = g->bytes == 0 ? NULL : g->bytes <= sizeof small ? small : aligned_alloc(256, g->bytes);
    if (g->bytes && !space) return KFS_NO_MEMORY;
    const int code = c->place->run(id, g->t, g->n, c->strided ? c->fields : NULL, c->scalars, (const uint64_t *)g->rng, space, g->bytes);
    if (g->bytes > sizeof small) free(space);
    return code;
}

// On torch's current stream. The workspace goes back to torch's allocator at once, which gives it to what comes later on this stream.
static int run_on_gpu(const call *c, int id, const given *g)
{
    handle space = NULL;
    void *at = NULL, *stream = NULL;
    const int64_t size = (int64_t)g->bytes, one = 1;
    if (p_current_stream(c->device, &stream)) return KFS_NO_STREAM;
    if (size && p_aoti_torch_empty_strided(1, &size, &one, types[BYTES], c->place->type, c->device, &space)) return KFS_NO_MEMORY;
    if (space) p_aoti_torch_get_data_ptr(space, &at);
    const int code = c->place->run_on(c->device, id, g->t, g->n, c->strided ? c->fields : NULL, c->scalars, (const uint64_t *)g->rng, at, g->bytes, stream);
    if (space) p_aoti_torch_delete_tensor_object(space);
    return code;
}

static bool refused(call *c, int code)
{
    const kfs_place *at = c->place;
    if (code == KFS_NO_MEMORY) return fail_for_memory(c, "its workspace");
    if (code < 0) return fail(c, "CUDA's driver gives no stream or no context of its device", "");
    const char *reason = at->reason ? at->reason() : "";
    if (*reason) return fail(c, reason, "");
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s: %s", c->op->name, at->error(code), at->detail());
    return false;
}

static bool compute(call *c, int id)
{
    const kfs_op *op = c->op;
    given g;
    memset(&g, 0, sizeof g);
    for (int i = 0; i < op->inputs; ++i)
        if (c->in[i] && !op->tensors[i].unread[c->activation]) p_aoti_torch_get_data_ptr(c->in[i], &g.t[i]);
    for (int i = 0; i < op->outputs; ++i)
        if (wanted(c, i)) p_aoti_torch_get_data_ptr(c->out[i], &g.t[op->inputs + i]);
    if (c->rng) p_aoti_torch_get_data_ptr(c->rng, &g.rng);
    int count = 0;
    for (; count < SIZES && op->order[count] >= 0; ++count) g.n[count] = kfs_size(op, &c->layout, op->order[count]);
    memcpy(g.n + count, c->numbers, (size_t)c->integers * sizeof *g.n);
    g.bytes = op->workspace ? c->place->space(id, g.n) : 0;
    const int code = c->place->gpu ? run_on_gpu(c, id, &g) : run_here(c, id, &g);
    return code == 0 || refused(c, code);
}

static bool check_rng(call *c)
{
    int64_t *shape, dims;
    if (!c->rng) return true;
    p_aoti_torch_get_sizes(c->rng, &shape);
    p_aoti_torch_get_dim(c->rng, &dims);
    int64_t *strides;
    p_aoti_torch_get_strides(c->rng, &strides);
    return (type_of(c->rng) == 5 && dims == 1 && shape[0] == 2 && strides[0] == 1 && on_place(c, c->rng)) || fail(c, "rng is not two int64", "");
}

static bool execute(call *c, const value *stack)
{
    if (!take_rest(c, stack) || !check_inputs(c) || !check_rng(c)) return false;
    if (!__atomic_load_n(&c->op->functions[c->place->gpu], __ATOMIC_ACQUIRE) && c->place->open((int)(c->op - ops)))
        return fail(c, "no kernel for tensors on a GPU", "");
    const int first = c->vars[T], second = c->vars[U];
    const int id = c->op->functions[c->place->gpu][(c->activation * TYPES + first) * TYPES + second];
    if (id < 0) return fail(c, "there is no function for these dtypes in the library", "");
    const int found = make_outputs(c);
    if (found < 0) return fail_for_memory(c, "its results");
    return found == 0 || compute(c, id);
}

static void boxed(kfs_op *op, const kfs_place *place, value *stack)
{
    call c;
    memset(&c, 0, offsetof(call, wrong));
    c.op = op, c.place = place, c.device = -1;
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
    if (c.no_memory) throw_out_of_memory(c.wrong);
    if (!done) throw std::runtime_error(c.wrong);
}

template <int k> static void trampoline(value *stack, uint64_t, uint64_t) { boxed(&ops[k], &cpu, stack); }
template <int k> static void trampoline_gpu(value *stack, uint64_t, uint64_t) { boxed(&ops[k], &gpu, stack); }
typedef void (*kernel)(value *, uint64_t, uint64_t);
template <int k> struct Fill {
    static void in(kernel *to, kernel *to_gpu) { to[k] = trampoline<k>, to_gpu[k] = trampoline_gpu<k>, Fill<k - 1>::in(to, to_gpu); }
};
template <> struct Fill<-1> {
    static void in(kernel *, kernel *) {}
};
static kernel kernels[2][MOST];
static void *torch_cpu; // libtorch_cpu.so

static const char *implement(const char *key, int count, const kernel *made)
{
    handle implementations; // lives as long as the process
    if (p_aoti_torch_library_init_impl("kf", key, "kf", 0, &implementations)) return "aoti_torch_library_init_impl";
    for (int i = 0; i < count; ++i)
        if (p_aoti_torch_library_impl(implementations, ops[i].name, made[i])) return ops[i].name;
    return NULL;
}

// Registers kernels for the CPU, one for each op of the table. Returns what this libtorch lacks, or NULL.
extern "C" KFP_EXPORT const char *kfs_register(const char *libtorch, kfs_op *table, int count, int (*run)(int, KFP_PARAMETERS),
                                               size_t (*space)(int, const int64_t *), const char *(*error)(int), const char *(*detail)(void))
{
    void *const library = torch_cpu = dlopen(libtorch, RTLD_NOW | RTLD_NOLOAD);
    if (!library || count > MOST) return library ? "room for so many ops" : "libtorch_cpu.so";
#define LOOK(name, parameters)                                                                                                             \
    *(void **)&p_##name = dlsym(library, #name);                                                                                           \
    if (!p_##name) return #name;
    FUNCTIONS(LOOK)
    *(void **)&p_delete_value = dlsym(library, "torch_delete_stable_ivalue");
    look_up_memory(library);
    const char *missing = look_up(library, "aoti_torch_device_type_", "cpu", &cpu.type);
    for (int i = 0; i < TYPES && !missing; ++i) missing = look_up(library, "aoti_torch_dtype_", type_names[i], &types[i]);
    if (missing) return missing;
    ops = table, cpu.run = run, cpu.space = space, cpu.error = error, cpu.detail = detail;
    Fill<MOST - 1>::in(kernels[0], kernels[1]);
    return implement("CPU", count, kernels[0]);
}

// After kfs_register, the same for CUDA, where `open` is called with an op's number before its first call: it calls kfs_open_gpu, or returns other than 0. key and
// type: of PyTorch's dispatcher and of a tensor's device, CUDA and cuda but in tests.
extern "C" KFP_EXPORT const char *kfs_register_gpu(const char *libtorch_cuda, const char *key, const char *type, int count, int (*open)(int))
{
    void *library = dlopen(libtorch_cuda, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return "libtorch_cuda.so";
    *(void **)&p_current_stream = dlsym(library, "aoti_torch_get_current_cuda_stream");
    if (!p_current_stream) return "aoti_torch_get_current_cuda_stream";
    const char *missing = look_up(torch_cpu, "aoti_torch_device_type_", type, &gpu.type);
    if (missing) return missing;
    gpu.gpu = true, gpu.open = open;
    return implement(key, count, kernels[1]);
}

// What is called there, the same each time; and the numbers of an op's functions, in memory that stays.
extern "C" KFP_EXPORT void kfs_open_gpu(int op, const int32_t *functions, int (*run_on)(int, int, KFP_PARAMETERS, void *),
                                        size_t (*space)(int, const int64_t *), const char *(*error)(int), const char *(*detail)(void),
                                        const char *(*reason)(void))
{
    gpu.run_on = run_on, gpu.space = space, gpu.error = error, gpu.detail = detail, gpu.reason = reason;
    __atomic_store_n(&ops[op].functions[1], functions, __ATOMIC_RELEASE); // last: another thread calls what it finds
}
