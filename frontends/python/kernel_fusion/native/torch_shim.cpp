// SPDX-License-Identifier: Apache-2.0
// Kernels of kf's PyTorch ops over libtorch's stable C ABI: the same as torch/_kernels.py does
// through ctypes, without Python. The library includes no torch header and links to no torch; it
// looks functions up in the loaded libtorch, so it serves many versions. One boxed kernel reads the
// table of ops, and a trampoline per op passes the op's index.
#include "torch_call.h"

#include <utility>

// Checks a tensor's device; the first tensor sets the index of the call's device.
static bool on_device(call *c, handle h)
{
    int32_t type = 0, index = 0;
    p_aoti_torch_get_device_type(h, &type);
    if (c->backend->gpu) p_aoti_torch_get_device_index(h, &index);
    if (c->device < 0) c->device = index;
    return type == c->backend->type && index == c->device;
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
        if (!on_device(c, c->in[i])) return fail(c, "is on another device", op->tensors[i].name);
        if (c->type[i] == TYPES)
            return fail(c, "has a dtype that no op supports", op->tensors[i].name);
    }
    if (c->vars[U] < 0) c->vars[U] = c->vars[T];
    c->vars[ACC] = c->vars[T] == 3 ? 3 : 0;
    return true;
}

static handle contiguous(handle h)
{
    value stack[2] = {(value)h,
                      0}; // contiguous(Tensor, MemoryFormat) consumes and returns a handle
    return p_aoti_torch_call_dispatcher("aten::contiguous", "", stack) ? NULL : (handle)stack[0];
}

static bool is_empty(const int64_t *shape, int64_t dims)
{
    for (int64_t d = 0; d < dims; ++d)
        if (shape[d] == 0) return true;
    return false;
}

static bool check_input(call *c, int i)
{
    const kfs_op *op = c->op;
    const kfs_tensor *t = &op->tensors[i];
    int64_t wanted[KFI_LAYOUT_DIMS], *shape, *strides, dims;
    if (c->type[i] != c->vars[t->var])
        return fail(c, "has a dtype that does not match the other tensors", t->name);
    p_aoti_torch_get_sizes(c->in[i], &shape);
    p_aoti_torch_get_dim(c->in[i], &dims);
    if (kfi_layout_shape(c->rules, &c->layout, &t->layout, wanted) != dims ||
        memcmp(wanted, shape, (size_t)dims * sizeof *shape))
        return fail(c, "has a shape that does not match the other tensors", t->name);
    if (t->unread[c->activation]) return true;
    p_aoti_torch_get_strides(c->in[i], &strides);
    if (kfi_layout_is_dense(shape, strides, 0, (int)dims) || is_empty(shape, dims) ||
        kfi_layout_strides(c->rules, &c->layout, &t->layout, shape, strides, false, c->fields,
                           &c->strided))
        return true;
    __atomic_fetch_add(&c->op->copies, 1, __ATOMIC_RELAXED);
    c->in[i] = contiguous(c->in[i]);
    return c->in[i] || fail_for_memory(c, t->name);
}

// Computes the sizes from the inputs that determine them.
static bool lay_out(call *c)
{
    const kfs_op *op = c->op;
    const kfi_layout_tensor *tensors[SHAPING];
    const int64_t *shapes[SHAPING];
    int ranks[SHAPING];
    for (int i = 0; i < op->shaping_count; ++i) {
        const int from = op->shaping[i];
        int64_t *shape, dims;
        tensors[i] = &op->tensors[from].layout, shapes[i] = nullptr, ranks[i] = -1;
        if (!c->in[from] && op->tensors[from].absent) continue;
        if (!c->in[from]) return fail(c, "is missing", op->tensors[from].name);
        p_aoti_torch_get_sizes(c->in[from], &shape);
        p_aoti_torch_get_dim(c->in[from], &dims);
        if (dims > DIMS) return fail(c, "has too many dimensions", op->tensors[from].name);
        shapes[i] = shape, ranks[i] = (int)dims;
    }
    kfi_layout_error e;
    bool done = kfi_layout_find(c->rules, op->shaping_count, tensors, shapes, ranks, c->axis,
                                &c->groups, &c->layout, &e);
    const int wrong = done ? op->basis : op->shaping[e.tensor];
    done = done && kfi_layout_divisor(c->rules, &c->layout) < 0 &&
           kfi_layout_zero(c->rules, &c->layout) < 0;
    for (int s = 0; s < c->rules->sizes && done; ++s) done = c->layout.n[s] >= 0;
    return done || fail(c, "has a shape that the op does not support", op->tensors[wrong].name);
}

static bool check_inputs(call *c)
{
    const kfs_op *op = c->op;
    for (int i = 0; i < op->inputs; ++i) {
        const kfs_tensor *t = &op->tensors[i];
        if (!c->in[i] && !t->unread[c->activation] && !t->absent)
            return fail(c, "is missing", t->name);
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
    return t->use == GRADIENT ? c->mask >> i & 1
           : t->use == SAVED  ? c->mask != 0
                              : t->use != PLACE || c->in[t->place];
}

enum { UNALLOCATED = -1, UNSHAPED = -2 };

// Allocates the results; unwanted ones get no elements. Returns the number of wanted results,
// UNALLOCATED without memory, or UNSHAPED after an error.
static int make_outputs(call *c)
{
    const kfs_op *op = c->op;
    int found = 0;
    for (int i = 0; i < op->outputs; ++i) {
        const kfs_tensor *t = &op->tensors[op->inputs + i];
        int64_t shape[KFI_LAYOUT_DIMS], strides[KFI_LAYOUT_DIMS], length = 1;
        shape[0] = 0;
        const int dims =
            wanted(c, i) ? kfi_layout_shape(c->rules, &c->layout, &t->layout, shape) : 1;
        if (dims < 0) return fail(c, "would have a negative dimension", t->name), UNSHAPED;
        for (int d = dims - 1; d >= 0; --d) {
            strides[d] = length;
            length *= shape[d] > 1 ? shape[d] : 1;
        }
        if (p_aoti_torch_empty_strided(dims, shape, strides, types[c->vars[t->var]],
                                       c->backend->type, c->backend->gpu ? c->device : -1,
                                       &c->out[i]))
            return UNALLOCATED;
        found += wanted(c, i);
    }
    return found;
}

typedef struct {
    void *t[2 * TENSORS], *rng;
    size_t bytes; // size of the workspace
} given;

static int run_here(const call *c, int id, const given *g)
{
    alignas(256) char small[4096];
    void *space = g->bytes == 0              ? NULL
                  : g->bytes <= sizeof small ? small
                                             : aligned_alloc(256, g->bytes);
    if (g->bytes && !space) return KFS_NO_MEMORY;
    const int code = c->library->run(id, g->t, c->layout.n, c->strided ? c->fields : NULL,
                                     c->scalars, (const uint64_t *)g->rng, space, g->bytes);
    if (g->bytes > sizeof small) free(space);
    return code;
}

// Launches on PyTorch's current stream. The workspace returns to PyTorch's allocator at once, which
// reuses it in stream order.
static int run_on_gpu(const call *c, int id, const given *g)
{
    handle space = NULL;
    void *at = NULL, *stream = NULL;
    const int64_t size = (int64_t)g->bytes, one = 1;
    if (p_current_stream(c->device, &stream)) return KFS_NO_STREAM;
    if (size && p_aoti_torch_empty_strided(1, &size, &one, types[BYTES], c->backend->type,
                                           c->device, &space))
        return KFS_NO_MEMORY;
    if (space) p_aoti_torch_get_data_ptr(space, &at);
    const int code =
        c->library->run_on(c->device, id, g->t, c->layout.n, c->strided ? c->fields : NULL,
                           c->scalars, (const uint64_t *)g->rng, at, g->bytes, stream);
    if (space) p_aoti_torch_delete_tensor_object(space);
    return code;
}

static bool refused(call *c, int code)
{
    const kfs_library *at = c->library;
    if (code == KFS_NO_MEMORY) return fail_for_memory(c, "its workspace");
    if (code < 0) return fail(c, "the CUDA driver has no stream or no context for its device", "");
    const char *reason = at->reason ? at->reason() : "";
    if (*reason) return fail(c, reason, "");
    snprintf(c->wrong, sizeof c->wrong, "kf.%s: %s: %s", c->op->name, at->error(code),
             at->detail());
    return false;
}

static bool compute(call *c, int id)
{
    const kfs_op *op = c->op;
    given g;
    memset(&g, 0, sizeof g);
    for (int i = 0; i < op->inputs; ++i)
        if (c->in[i] && !op->tensors[i].unread[c->activation])
            p_aoti_torch_get_data_ptr(c->in[i], &g.t[i]);
    for (int i = 0; i < op->outputs; ++i)
        if (wanted(c, i)) p_aoti_torch_get_data_ptr(c->out[i], &g.t[op->inputs + i]);
    if (c->rng) p_aoti_torch_get_data_ptr(c->rng, &g.rng);
    g.bytes = op->workspace ? c->library->space(id, c->layout.n) : 0;
    const int code = c->backend->gpu ? run_on_gpu(c, id, &g) : run_here(c, id, &g);
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
    if (type_of(c->rng) != 5 || dims != 1 || shape[0] != 2 || !on_device(c, c->rng))
        return fail(c, "rng is not two int64", "");
    if (strides[0] != 1) c->rng = contiguous(c->rng);
    return c->rng || fail_for_memory(c, "rng");
}

// Finds the call's function and its library, and opens the library at the first such call. Returns
// the function's index, or -1.
static int find_function(call *c)
{
    const kfs_op *op = c->op;
    const int on_gpu = c->backend->gpu, first = c->vars[T], second = c->vars[U];
    const int at = (c->activation * TYPES + first) * TYPES + second;
    const kfs_library **library = &op->libraries[on_gpu][at];
    if (!__atomic_load_n(library, __ATOMIC_ACQUIRE)) {
        const char *why = open_function((int)(op - ops), on_gpu, at);
        if (why) {
            fail(c, why, "");
            return -1;
        }
    }
    c->library = __atomic_load_n(library, __ATOMIC_ACQUIRE);
    return op->functions[on_gpu][at];
}

static bool execute(call *c, const value *stack)
{
    if (!take_rest(c, stack) || !check_inputs(c) || !check_rng(c)) return false;
    const int id = find_function(c);
    if (id < 0) return false;
    const int found = make_outputs(c);
    if (found == UNSHAPED) return false;
    if (found < 0) return fail_for_memory(c, "its results");
    return found == 0 || compute(c, id);
}

static void boxed(kfs_op *op, const kfs_backend *backend, value *stack)
{
    call c;
    memset(&c, 0, offsetof(call, wrong));
    c.op = op, c.backend = backend, c.device = -1;
    take_inputs(&c, stack);
    const bool done = execute(&c, stack);
    // The kernel owns the inputs, and on failure the results.
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

// Optimising these 2 * MAX_OPS functions would take the compiler more time than all others.
#ifdef __clang__
#define UNOPTIMISED __attribute__((optnone, noinline))
#else
#define UNOPTIMISED __attribute__((optimize("O0")))
#endif
template <int k> UNOPTIMISED static void trampoline(value *stack, uint64_t, uint64_t)
{
    boxed(&ops[k], &cpu, stack);
}
template <int k> UNOPTIMISED static void trampoline_gpu(value *stack, uint64_t, uint64_t)
{
    boxed(&ops[k], &gpu, stack);
}
typedef void (*kernel)(value *, uint64_t, uint64_t);
// All trampolines, on the CPU and on a GPU.
template <int... k> struct trampolines {
    static constexpr kernel of[2][MAX_OPS] = {{trampoline<k>...}, {trampoline_gpu<k>...}};
};
template <int... k> trampolines<k...> each(std::integer_sequence<int, k...>);
static constexpr auto &kernels = decltype(each(std::make_integer_sequence<int, MAX_OPS>()))::of;
static void *torch_cpu; // libtorch_cpu.so

// Registers the kernel of an op of the table under both of its names. Returns the name of a missing
// libtorch function, or NULL.
extern "C" KFP_EXPORT const char *kfs_implement(int op, int on_gpu)
{
    char name[256];
    const int length = snprintf(name, sizeof name, "%s.kernel", ops[op].name);
    const handle implementations = (on_gpu ? gpu : cpu).implementations;
    if (length >= (int)sizeof name ||
        p_aoti_torch_library_impl(implementations, ops[op].name, kernels[on_gpu][op]))
        return ops[op].name;
    return p_aoti_torch_library_impl(implementations, name, kernels[on_gpu][op]) ? ops[op].name
                                                                                 : NULL;
}

static const char *implement(kfs_backend *backend, const char *key, int count)
{
    if (p_aoti_torch_library_init_impl("kf", key, "kf", 0, &backend->implementations))
        return "aoti_torch_library_init_impl";
    for (int i = 0; i < count; ++i)
        if (kfs_implement(i, backend->gpu)) return ops[i].name;
    return NULL;
}

extern "C" KFP_EXPORT int kfs_room(void) { return MAX_OPS; }

// Registers CPU kernels of the first `count` ops of the table, which has kfs_room entries. Returns
// the name of a missing libtorch function, or NULL.
extern "C" KFP_EXPORT const char *kfs_register(const char *libtorch, kfs_op *table, int count,
                                               const char *(*open)(int, int, int))
{
    void *const library = torch_cpu = dlopen(libtorch, RTLD_NOW | RTLD_NOLOAD);
    if (!library || count > MAX_OPS) return library ? "room for so many ops" : "libtorch_cpu.so";
#define LOOK(name, parameters)                                                                     \
    *(void **)&p_##name = dlsym(library, #name);                                                   \
    if (!p_##name) return #name;
    FUNCTIONS(LOOK)
    *(void **)&p_delete_value = dlsym(library, "torch_delete_stable_ivalue");
    look_up_memory(library);
    const char *missing = look_up(library, "aoti_torch_device_type_", "cpu", &cpu.type);
    for (int i = 0; i < TYPES && !missing; ++i)
        missing = look_up(library, "aoti_torch_dtype_", type_names[i], &types[i]);
    if (missing) return missing;
    ops = table, open_function = open;
    return implement(&cpu, "CPU", count);
}

// Registers GPU kernels, after kfs_register. key and type are the dispatch key and the device type:
// CUDA and cuda, except in tests.
extern "C" KFP_EXPORT const char *kfs_register_gpu(const char *libtorch_cuda, const char *key,
                                                   const char *type, int count)
{
    void *library = dlopen(libtorch_cuda, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return "libtorch_cuda.so";
    *(void **)&p_current_stream = dlsym(library, "aoti_torch_get_current_cuda_stream");
    if (!p_current_stream) return "aoti_torch_get_current_cuda_stream";
    const char *missing = look_up(torch_cpu, "aoti_torch_device_type_", type, &gpu.type);
    if (missing) return missing;
    gpu.gpu = true;
    return implement(&gpu, key, count);
}
