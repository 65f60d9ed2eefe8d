// SPDX-License-Identifier: Apache-2.0
// XLA FFI handlers for kf's functions: one for the CPU and one for GPUs, compiled once per version
// of jaxlib against its headers. Attributes say which function is called, with which numbers, and
// which buffer is which of its tensors. A handler only enqueues: it neither allocates device memory
// nor synchronises, so XLA may record it into a command buffer.
#include "packed.h"

#include "xla/ffi/api/ffi.h"

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ffi = xla::ffi;

namespace
{
typedef ffi::Span<const int64_t> numbers;
typedef ffi::Span<const double> reals;
enum { ALIGNED = 256 }; // bytes: alignment of a workspace

// A function of a library of kf: its index there, and the library's entry points.
struct function {
    int id;
    int (*run)(int, KFP_PARAMETERS);                  // CPU
    int (*run_on)(int, int, KFP_PARAMETERS, void *);  // GPU: launches
    int (*load_on)(int, int, KFP_PARAMETERS, void *); // GPU: loads the kernels of a launch
    const char *(*error)(int);
    const char *(*detail)(void), *(*reason)(void);
};

// Opens a function that this process has not called yet, such as one of a deserialised program.
// Returns NULL, or why it cannot.
const char *(*opener)(const char *name, int on_gpu);
std::mutex lock;
std::unordered_map<std::string, function> opened[2]; // CPU, GPU

bool find(const std::string &name, bool on_gpu, function *found)
{
    const std::lock_guard<std::mutex> guard(lock);
    const auto at = opened[on_gpu].find(name);
    if (at != opened[on_gpu].end()) *found = at->second;
    return at != opened[on_gpu].end();
}

// Arguments of a call, as the attributes give them.
struct request {
    std::string_view name, where; // C function, and its name in messages
    numbers sizes;                // sizes, then integers
    reals scalars;
    // The buffer of each tensor: i for operand i, -2 - i for result i, -1 for none.
    numbers places;
    int64_t rng, space; // operand of seed and offset, result of the workspace; -1: none
};

struct buffers {
    ffi::RemainingArgs operands;
    ffi::RemainingRets results;

    void *at(int64_t place) const
    {
        if (place == -1) return nullptr;
        if (place >= 0) return operands.get<ffi::AnyBuffer>((size_t)place)->untyped_data();
        return (*results.get<ffi::AnyBuffer>((size_t)(-2 - place)))->untyped_data();
    }
    size_t bytes_of_result(int64_t i) const
    {
        return (*results.get<ffi::AnyBuffer>((size_t)i))->size_bytes();
    }
};

// Replaces the C function's name in a launcher's detail by the caller's.
ffi::Error refused(const request &r, const function &f, int code)
{
    const char *reason = f.reason ? f.reason() : "";
    std::string text(r.where);
    if (*reason) return ffi::Error::Internal(text + ": " + reason);
    const std::string detail = f.detail();
    const size_t colon = detail.find(": ");
    text += std::string(": ") + f.error(code);
    if (colon != std::string::npos) text += detail.substr(colon);
    return ffi::Error::InvalidArgument(text);
}

ffi::Error open(const request &r, bool on_gpu, function *f)
{
    const std::string name(r.name);
    if (find(name, on_gpu, f)) return ffi::Error::Success();
    const char *why = opener ? opener(name.c_str(), on_gpu) : "import kernel_fusion.jax first";
    if (!why && find(name, on_gpu, f)) return ffi::Error::Success();
    return ffi::Error::Internal(std::string(r.where) + ": " + (why ? why : "not found"));
}

// Calls `run(tensors, workspace, its bytes)` with the addresses of all buffers.
template <typename Run> int with_addresses(const request &r, const buffers &b, Run run)
{
    std::vector<void *> tensors(r.places.size());
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = b.at(r.places[i]);
    char *space = nullptr;
    size_t bytes = 0;
    if (r.space >= 0) { // has ALIGNED - 1 bytes more than the function asked for
        char *const given = (char *)b.at(-2 - r.space);
        space = (char *)(((uintptr_t)given + ALIGNED - 1) / ALIGNED * ALIGNED);
        bytes = b.bytes_of_result(r.space) - (size_t)(space - given);
    }
    return run(tensors.data(), space, bytes);
}

ffi::Error on_cpu(const request &r, const buffers &b)
{
    function f;
    if (ffi::Error error = open(r, false, &f); error.failure()) return error;
    const uint64_t *seeds = (const uint64_t *)b.at(r.rng);
    const int code = with_addresses(r, b, [&](void **t, void *space, size_t bytes) {
        return f.run(f.id, t, r.sizes.begin(), nullptr, r.scalars.begin(), seeds, space, bytes);
    });
    return code ? refused(r, f, code) : ffi::Error::Success();
}

// only_load: loads kernels, so that a later call may be recorded; errors are left to that call.
ffi::Error on_gpu(const request &r, const buffers &b, int device, void *stream, bool only_load)
{
    function f;
    if (ffi::Error error = open(r, true, &f); error.failure()) return error;
    const uint64_t *seeds = (const uint64_t *)b.at(r.rng);
    const int code = with_addresses(r, b, [&](void **t, void *space, size_t bytes) {
        return (only_load ? f.load_on : f.run_on)(device, f.id, t, r.sizes.begin(), nullptr,
                                                  r.scalars.begin(), seeds, space, bytes, stream);
    });
    if (!code || only_load) return ffi::Error::Success();
    if (code < 0) return ffi::Error::Internal(std::string(r.where) + ": the device has no context");
    return refused(r, f, code);
}

template <typename Binding> auto with_attributes(Binding binding)
{
    return std::move(binding)
        .RemainingArgs()
        .RemainingRets()
        .template Attr<std::string_view>("function")
        .template Attr<std::string_view>("where")
        .template Attr<numbers>("sizes")
        .template Attr<reals>("scalars")
        .template Attr<numbers>("places")
        .template Attr<int64_t>("rng")
        .template Attr<int64_t>("space");
}

ffi::Error call_cpu(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view name,
                    std::string_view where, numbers sizes, reals scalars, numbers places,
                    int64_t rng, int64_t space)
{
    return on_cpu({name, where, sizes, scalars, places, rng, space}, {operands, results});
}

template <bool only_load>
ffi::Error call_gpu(int32_t device, void *stream, ffi::RemainingArgs operands,
                    ffi::RemainingRets results, std::string_view name, std::string_view where,
                    numbers sizes, reals scalars, numbers places, int64_t rng, int64_t space)
{
    return on_gpu({name, where, sizes, scalars, places, rng, space}, {operands, results}, device,
                  stream, only_load);
}

template <ffi::ExecutionStage stage> auto on_stream()
{
    return with_attributes(ffi::Ffi::Bind<stage>()
                               .template Ctx<ffi::DeviceOrdinal>()
                               .template Ctx<ffi::PlatformStream<void *>>());
}
} // namespace

extern "C" {
KFP_EXPORT XLA_FFI_Error *kfj_cpu(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_DEFINE_HANDLER(handler, call_cpu, with_attributes(ffi::Ffi::Bind()));
    return handler(frame);
}

KFP_EXPORT XLA_FFI_Error *kfj_gpu(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_DEFINE_HANDLER(handler, call_gpu<false>, on_stream<ffi::ExecutionStage::kExecute>(),
                           {ffi::Traits::kCmdBufferCompatible});
    return handler(frame);
}

KFP_EXPORT XLA_FFI_Error *kfj_gpu_load(XLA_FFI_CallFrame *frame)
{
    XLA_FFI_DEFINE_HANDLER(handler, call_gpu<true>, on_stream<ffi::ExecutionStage::kInitialize>());
    return handler(frame);
}

KFP_EXPORT void kfj_set_opener(const char *(*by)(const char *, int)) { opener = by; }

// Adds a function of a library; `reason` is NULL on the CPU.
KFP_EXPORT void kfj_add(const char *name, int on_gpu, int id, void *run, void *load, void *error,
                        void *detail, void *reason)
{
    function f = {};
    f.id = id;
    if (on_gpu) {
        f.run_on = (decltype(f.run_on))run, f.load_on = (decltype(f.load_on))load;
    } else {
        f.run = (decltype(f.run))run;
    }
    f.error = (decltype(f.error))error, f.detail = (decltype(f.detail))detail;
    f.reason = (decltype(f.reason))reason;
    const std::lock_guard<std::mutex> guard(lock);
    opened[on_gpu != 0][name] = f;
}
}
