// SPDX-License-Identifier: Apache-2.0
// kf's functions as functions of tvm_ffi, on the CPU and on a GPU's current stream. A function
// object holds a described call (call.h), whose sizes follow from the tensors of each call. Its
// arguments are those of kernel_fusion.tvm_ffi.arguments.
#include "call.h"

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstring>
#include <mutex>

namespace
{

enum { CPU, GPU };
constexpr size_t ALIGNED = 256; // bytes of a workspace
Resolver resolver;

struct Wrong {
    const char *kind; // name of Python's exception
    std::string text;
};

struct DType {
    const char *word, *name;
    int code, bits;
};
constexpr DType DTYPES[] = {{"f32", "float32", kDLFloat, 32},    {"f16", "float16", kDLFloat, 16},
                            {"bf16", "bfloat16", kDLBfloat, 16}, {"f64", "float64", kDLFloat, 64},
                            {"i32", "int32", kDLInt, 32},        {"i64", "int64", kDLInt, 64},
                            {"u8", "uint8", kDLUInt, 8},         {"u8", "bool", kDLBool, 8}};

std::string name_of(const DLDataType &type)
{
    for (const DType &d : DTYPES)
        if (d.code == type.code && d.bits == type.bits && type.lanes == 1) return d.name;
    return "with DLPack code " + std::to_string(type.code) + " and " + std::to_string(type.bits) +
           " bits";
}
bool has_type(const DLTensor &t, const std::string &word)
{
    for (const DType &d : DTYPES)
        if (word == d.word && d.code == t.dtype.code && d.bits == t.dtype.bits &&
            t.dtype.lanes == 1)
            return true;
    return false;
}
const char *name_of(const std::string &word)
{
    for (const DType &d : DTYPES)
        if (word == d.word) return d.name;
    return "";
}

// The arguments of one call, in order.
class Arguments
{
  public:
    Arguments(const Call &call, const TVMFFIAny *args, int count)
        : call_(call), at_(args), end_(args + count)
    {
    }
    // Returns NULL for None.
    const DLTensor *tensor(const std::string &name)
    {
        const TVMFFIAny *const x = next(name);
        switch (x->type_index) {
        case kTVMFFINone: return nullptr;
        case kTVMFFIDLTensorPtr: return (const DLTensor *)x->v_ptr;
        case kTVMFFITensor: return TVMFFITensorGetDLTensorPtr(x->v_obj);
        default: throw Wrong{"TypeError", text(name, "is no tensor, expected one, or None")};
        }
    }
    int64_t whole(const std::string &name)
    {
        const TVMFFIAny *const x = next(name);
        if (x->type_index != kTVMFFIInt && x->type_index != kTVMFFIBool)
            throw Wrong{"TypeError", text(name, "is no whole number, expected one")};
        return x->v_int64;
    }
    double number(const std::string &name)
    {
        const TVMFFIAny *const x = next(name);
        if (x->type_index == kTVMFFIFloat) return x->v_float64;
        if (x->type_index != kTVMFFIInt)
            throw Wrong{"TypeError", text(name, "is no number, expected one")};
        return (double)x->v_int64;
    }
    std::string text(const std::string &name, const std::string &what) const
    {
        return call_.where + ": " + name + " " + what;
    }

  private:
    const TVMFFIAny *next(const std::string &name)
    {
        if (at_ == end_) throw Wrong{"TypeError", text(name, "is missing")};
        return at_++;
    }
    const Call &call_;
    const TVMFFIAny *at_, *end_;
};

// A function object.
class Entry
{
  public:
    Entry(const char *text, const char *words) : call_(text)
    {
        Reader in(words);
        has_axis_ = in.whole(), has_groups_ = in.whole();
        integers_ = names(&in), scalars_ = names(&in);
    }

    void invoke(const TVMFFIAny *args, int count)
    {
        const int wanted = arguments();
        if (count > wanted)
            throw Wrong{"TypeError", call_.where + ": " + std::to_string(count) +
                                         " arguments are given, expected " +
                                         std::to_string(wanted)};
        Arguments in(call_, args, count);
        std::vector<const DLTensor *> tensors;
        for (const Argument *t : all()) tensors.push_back(in.tensor(t->name));
        Options options;
        for (const std::string &name : integers_) options.integers.push_back(in.whole(name));
        if (has_axis_)
            options.axis = in.whole("dim");
        else
            options.axis = call_.options.axis;
        if (has_groups_) options.groups = in.whole("groups");
        std::vector<double> scalars;
        for (const std::string &name : scalars_) scalars.push_back(in.number(name));
        uint64_t rng[2] = {0, 0};
        if (call_.rng >= 0)
            rng[0] = (uint64_t)in.whole("seed"), rng[1] = (uint64_t)in.whole("offset");
        const DLDevice device = check_devices(tensors);
        kfi_layout layout;
        std::vector<int64_t> fields((size_t)call_.fields + 1);
        const bool strided = check(tensors, options, &layout, fields.data());
        run(tensors, device, layout, strided ? fields.data() : nullptr, scalars, rng);
    }

  private:
    static std::vector<std::string> names(Reader *in)
    {
        std::vector<std::string> found((size_t)in->whole());
        for (std::string &name : found) name = in->word();
        return found;
    }
    int arguments() const
    {
        return (int)(call_.inputs.size() + call_.outputs.size() + integers_.size() +
                     scalars_.size()) +
               has_axis_ + has_groups_ + 2 * (call_.rng >= 0);
    }
    std::vector<const Argument *> all() const
    {
        std::vector<const Argument *> found;
        for (const Argument &t : call_.inputs) found.push_back(&t);
        for (const Argument &t : call_.outputs) found.push_back(&t);
        return found;
    }
    std::string text(size_t i, const std::string &what) const
    {
        return call_.where + ": " + all()[i]->name + " " + what;
    }

    // Checks that all tensors are on one device that kf runs on, and returns it.
    DLDevice check_devices(const std::vector<const DLTensor *> &tensors) const
    {
        DLDevice found = {kDLCPU, 0};
        bool first = true;
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (!tensors[i]) continue;
            const DLDevice own = tensors[i]->device;
            const bool known = own.device_type == kDLCPU || own.device_type == kDLCUDA;
            if (!known)
                throw Wrong{"ValueError",
                            text(i, "is on device type " + std::to_string(own.device_type) +
                                        ", expected the CPU or a CUDA device")};
            if (first) found = own, first = false;
            if (own.device_type != found.device_type || own.device_id != found.device_id)
                throw Wrong{"ValueError", text(i, "is on another device than the first tensor")};
        }
        return found;
    }

    // Checks dtypes, shapes and strides. Returns true if `fields` of strides are set.
    bool check(const std::vector<const DLTensor *> &tensors, const Options &options,
               kfi_layout *layout, int64_t *fields) const
    {
        const std::vector<const Argument *> own = all();
        std::vector<Shape> shapes(tensors.size());
        std::vector<const Shape *> given;
        for (size_t i = 0; i < tensors.size(); ++i) {
            const DLTensor *const t = tensors[i];
            if (t && !has_type(*t, own[i]->dtype))
                throw Wrong{"TypeError", text(i, "has the dtype " + name_of(t->dtype) +
                                                     ", expected " + name_of(own[i]->dtype))};
            if (t) shapes[i] = Shape(t->shape, t->shape + t->ndim);
            if (i < call_.inputs.size()) given.push_back(t ? &shapes[i] : nullptr);
        }
        std::string wrong = call_.lay_out(given, options, layout);
        std::vector<Shape> results;
        if (wrong.empty()) wrong = call_.results(*layout, &results);
        if (!wrong.empty()) throw Wrong{"ValueError", wrong};
        int strided = 0;
        for (size_t i = 0; i < tensors.size(); ++i) {
            const bool is_out = i >= call_.inputs.size();
            if (!tensors[i]) continue;
            if (is_out && shapes[i] != results[i - call_.inputs.size()])
                throw Wrong{"ValueError",
                            text(i, "has the shape " + text_of(shapes[i]) + ", expected " +
                                        text_of(results[i - call_.inputs.size()]))};
            if (!dense(*tensors[i], shapes[i]) &&
                !call_.strides(*layout, *own[i], shapes[i],
                               Shape(tensors[i]->strides, tensors[i]->strides + tensors[i]->ndim),
                               is_out, fields, &strided))
                throw Wrong{"ValueError", text(i, "has strides that the function does not support: "
                                                  "make it contiguous")};
        }
        return strided;
    }
    static bool dense(const DLTensor &t, const Shape &shape)
    {
        for (const int64_t n : shape)
            if (!n) return true;
        return !t.strides || kfi_layout_is_dense(shape.data(), t.strides, 0, t.ndim);
    }

    const Function &function(int backend)
    {
        const std::lock_guard<std::mutex> held(mutex_);
        Function &found = functions_[backend];
        if (!found.run) {
            const char *const why =
                resolver(call_.described.c_str(), call_.name.c_str(), backend, &found);
            if (why) throw Wrong{"RuntimeError", why};
        }
        return found;
    }

    void run(const std::vector<const DLTensor *> &tensors, DLDevice device,
             const kfi_layout &layout, const int64_t *fields, const std::vector<double> &scalars,
             const uint64_t *rng)
    {
        const Function &f = function(device.device_type == kDLCPU ? CPU : GPU);
        std::vector<void *> t;
        for (const DLTensor *x : tensors)
            t.push_back(x ? (char *)x->data + x->byte_offset : nullptr);
        const size_t bytes = call_.has_workspace ? f.space(f.id, layout.n) : 0;
        int code = 0;
        if (device.device_type == kDLCPU) {
            std::vector<char> held(bytes ? bytes + ALIGNED : 0);
            void *const space = bytes ? aligned(held.data()) : nullptr;
            code = f.run(f.id, t.data(), layout.n, fields, scalars.data(), rng, space, bytes);
        } else {
            code = launch(f, t, device.device_id, layout, fields, scalars, rng, bytes);
        }
        if (code) throw Wrong{"ValueError", call_.refused(f, code)};
    }
    static void *aligned(void *at)
    {
        return (void *)(((uintptr_t)at + ALIGNED - 1) / ALIGNED * ALIGNED);
    }

    // Launches on the device's current stream of tvm_ffi, in whose order the workspace is freed.
    int launch(const Function &f, const std::vector<void *> &t, int device,
               const kfi_layout &layout, const int64_t *fields, const std::vector<double> &scalars,
               const uint64_t *rng, size_t bytes) const
    {
        void *const stream = TVMFFIEnvGetStream(kDLCUDA, device);
        const bool drops = call_.rng >= 0;
        void *held = nullptr;
        // Seed and offset come before the workspace.
        const size_t room = bytes + (drops ? ALIGNED : 0);
        if (room && f.allocate(device, room, stream, &held))
            throw Wrong{"RuntimeError", call_.where + ": out of memory on the device"};
        int code = drops ? f.upload(device, held, rng, 2 * sizeof *rng, stream) : 0;
        if (!code)
            code = f.run_on(device, f.id, t.data(), layout.n, fields, scalars.data(),
                            drops ? (const uint64_t *)held : nullptr,
                            bytes ? (char *)held + (drops ? ALIGNED : 0) : nullptr, bytes, stream);
        if (held) f.free(device, held, stream);
        const char *const reason = code && f.reason ? f.reason() : "";
        if (*reason) throw Wrong{"RuntimeError", call_.where + ": " + reason};
        if (code < 0) throw Wrong{"RuntimeError", call_.where + ": the CUDA driver has no context"};
        return code;
    }

    Call call_;
    bool has_axis_ = false, has_groups_ = false;
    std::vector<std::string> integers_, scalars_;
    Function functions_[2] = {};
    std::mutex mutex_;
};

int safe_call(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result)
{
    try {
        ((Entry *)self)->invoke(args, count);
        result->type_index = kTVMFFINone;
        return 0;
    } catch (const Wrong &wrong) {
        TVMFFIErrorSetRaisedFromCStr(wrong.kind, wrong.text.c_str());
    } catch (const std::exception &e) {
        TVMFFIErrorSetRaisedFromCStr("RuntimeError", e.what());
    }
    return -1;
}

void deleter(void *self) { delete (Entry *)self; }

} // namespace

extern "C" KFP_EXPORT void kf_tvm_set_resolver(Resolver given) { resolver = given; }

// Registers a global function of tvm_ffi. `words`: whether it takes dim and groups, then the names
// of its integers and of its scalars. Returns a status of tvm_ffi.
extern "C" KFP_EXPORT int kf_tvm_register(const char *name, const char *text, const char *words)
{
    TVMFFIObjectHandle made = nullptr;
    const TVMFFIByteArray bytes = {name, strlen(name)};
    if (TVMFFIFunctionCreate(new Entry(text, words), safe_call, deleter, &made)) return -1;
    const int status = TVMFFIFunctionSetGlobal(&bytes, made, 1);
    TVMFFIObjectDecRef(made);
    return status;
}
