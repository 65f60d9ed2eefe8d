// SPDX-License-Identifier: Apache-2.0
// The TensorFlow op KernelFusionCall: one call of one of kf's C functions. The attribute `call`
// describes it (call.h), so that one op serves all functions, and one kernel each shape.
#include "call.h"

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include <mutex>

namespace
{

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;
using tensorflow::errors::InvalidArgument;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;

Resolver resolver;

// ---- shapes

constexpr int64_t UNKNOWN = -1;

Shape shape_of(const tensorflow::TensorShape &given)
{
    const auto dims = given.dim_sizes();
    return Shape(dims.begin(), dims.end());
}

// Computes the shapes of the results with `filler` in place of unknown dimensions. Returns an error
// text, or an empty one.
std::string filled(const Call &call, std::vector<Shape> shapes, int64_t filler,
                   std::vector<Shape> *results)
{
    for (Shape &shape : shapes)
        for (int64_t &n : shape)
            if (n == UNKNOWN) n = filler;
    std::vector<const Shape *> given;
    for (const Argument &t : call.inputs) given.push_back(t.at < 0 ? nullptr : &shapes[t.at]);
    kfi_layout layout;
    std::string wrong = call.lay_out(given, call.options, &layout);
    if (wrong.empty()) wrong = call.results(layout, results);
    return wrong;
}

// Infers the results' shapes. A dimension that two fillers of the unknown dimensions leave the same
// does not depend on them.
absl::Status infer(InferenceContext *c)
{
    std::string text;
    TF_RETURN_IF_ERROR(c->GetAttr("call", &text));
    const Call call(text);
    std::vector<Shape> shapes, first, second;
    bool ranks = true, whole = true;
    for (int i = 0; i < c->num_inputs(); ++i) {
        Shape shape;
        ranks &= c->RankKnown(c->input(i));
        for (int d = 0; ranks && d < c->Rank(c->input(i)); ++d) {
            const DimensionHandle dim = c->Dim(c->input(i), d);
            shape.push_back(c->ValueKnown(dim) ? c->Value(dim) : UNKNOWN);
            whole &= c->ValueKnown(dim);
        }
        shapes.push_back(shape);
    }
    std::string wrong = "unknown rank";
    // Multiples of the small numbers that extents have as factors.
    if (ranks) wrong = filled(call, shapes, 5040, &first);
    if (ranks && whole && !wrong.empty()) return InvalidArgument(wrong);
    if (wrong.empty()) wrong = filled(call, shapes, 2 * 5040, &second);
    for (int i = 0; i < c->num_outputs(); ++i) {
        std::vector<DimensionHandle> dims;
        if (!wrong.empty()) {
            c->set_output(i, c->UnknownShape());
            continue;
        }
        for (size_t d = 0; d < first[i].size(); ++d)
            dims.push_back(first[i][d] == second[i][d] ? c->MakeDim(first[i][d]) : c->UnknownDim());
        c->set_output(i, c->MakeShape(dims));
    }
    return absl::OkStatus();
}

// ---- kernels

std::string described(tensorflow::OpKernelConstruction *c)
{
    std::string text;
    c->SetStatus(c->GetAttr("call", &text));
    return text;
}

class Kernel : public tensorflow::OpKernel
{
  public:
    explicit Kernel(tensorflow::OpKernelConstruction *c) : OpKernel(c), call_(described(c)) {}

    void Compute(tensorflow::OpKernelContext *c) override
    {
        std::vector<Shape> shapes, results;
        for (int i = 0; i < c->num_inputs(); ++i) shapes.push_back(shape_of(c->input(i).shape()));
        std::vector<const Shape *> given;
        for (const Argument &t : call_.inputs) given.push_back(t.at < 0 ? nullptr : &shapes[t.at]);
        kfi_layout layout;
        std::string wrong = call_.lay_out(given, call_.options, &layout);
        if (wrong.empty()) wrong = call_.results(layout, &results);
        OP_REQUIRES(c, wrong.empty(), InvalidArgument(wrong));
        OP_REQUIRES(c, call_.rng < 0 || shapes[call_.rng] == Shape{2},
                    InvalidArgument(call_.where, ": rng is no tensor of the shape (2,)"));
        wrong = resolve();
        OP_REQUIRES(c, wrong.empty(), tensorflow::errors::FailedPrecondition(wrong));
        std::vector<void *> t;
        for (const Argument &a : call_.inputs)
            t.push_back(a.at >= 0 && a.is_read ? c->input(a.at).data() : nullptr);
        for (const Argument &a : call_.outputs) {
            tensorflow::Tensor *made = nullptr;
            if (a.at >= 0)
                OP_REQUIRES_OK(
                    c, c->allocate_output(a.at, tensorflow::TensorShape(results[a.at]), &made));
            t.push_back(made ? made->data() : nullptr);
        }
        run(c, t, layout);
    }

  private:
    // Finds the function at the first call; returns an error text, or an empty one.
    std::string resolve()
    {
        const std::lock_guard<std::mutex> held(mutex_);
        if (function_.run) return "";
        if (!resolver)
            return call_.where + ": import kernel_fusion_tensorflow before the graph runs";
        const char *const why =
            resolver(call_.described.c_str(), call_.name.c_str(), 0, &function_);
        return why ? why : "";
    }

    void run(tensorflow::OpKernelContext *c, const std::vector<void *> &t, const kfi_layout &layout)
    {
        constexpr size_t aligned = 256;
        const size_t bytes = call_.has_workspace ? function_.space(function_.id, layout.n) : 0;
        tensorflow::Tensor held;
        void *space = nullptr;
        if (bytes) {
            const int64_t room = (int64_t)(bytes + aligned);
            OP_REQUIRES_OK(c, c->allocate_temp(tensorflow::DT_UINT8, {room}, &held));
            const uintptr_t at = (uintptr_t)held.data();
            space = (void *)((at + aligned - 1) / aligned * aligned);
        }
        const uint64_t *rng =
            call_.rng < 0 ? nullptr : (const uint64_t *)c->input(call_.rng).data();
        const int code = function_.run(function_.id, t.data(), layout.n, nullptr,
                                       call_.scalars.data(), rng, space, bytes);
        if (code) c->SetStatus(InvalidArgument(call_.refused(function_, code)));
    }

    const Call call_;
    Function function_ = {};
    std::mutex mutex_;
};

// Refuses a graph's call on a GPU, which would otherwise run on the CPU between two copies.
class Refused : public tensorflow::OpKernel
{
  public:
    explicit Refused(tensorflow::OpKernelConstruction *c) : OpKernel(c)
    {
        c->SetStatus(tensorflow::errors::Unimplemented(
            Call(described(c)).where,
            ": graphs of TensorFlow run kf's functions on the CPU, and this one ",
            "is placed on a GPU: call the function eagerly, or under tf.device(\"CPU\")"));
    }
    void Compute(tensorflow::OpKernelContext *) override {}
};

} // namespace

REGISTER_OP("KernelFusionCall")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("call: string")
    .Attr("Tin: list(type) >= 1")
    .Attr("Tout: list(type) >= 1")
    .SetShapeFn(infer)
    .Doc("Calls a C function of kf, which `call` describes.");
REGISTER_KERNEL_BUILDER(Name("KernelFusionCall").Device(DEVICE_CPU), Kernel);
REGISTER_KERNEL_BUILDER(Name("KernelFusionCall").Device(DEVICE_GPU), Refused);

extern "C" KFP_EXPORT void kf_tf_set_resolver(Resolver given) { resolver = given; }
