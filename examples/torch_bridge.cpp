/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen runtime --ops add --activations none,relu -o functions.h
 * T=$(python -c 'import torch; print(torch.__path__[0])')
 * g++ -O2 -std=c++17 -I. -isystem ~/.local/include -isystem $T/include \
 *     -isystem $T/include/torch/csrc/api/include torch_bridge.cpp -o torch_bridge \
 *     -L$T/lib -Wl,-rpath,$T/lib -ltorch_cpu -lc10
 * For tensors on a GPU add -DBRIDGE_CUDA -ltorch_cuda -lc10_cuda, and link with a second file that
 * nvcc compiles:
 *     #define KF_RUNTIME_IMPLEMENTATION
 *     #include "functions.h" */
// Passes PyTorch tensors to kf's functions without a copy, on PyTorch's current stream.
#ifndef BRIDGE_CUDA
#define KF_RUNTIME_IMPLEMENTATION
#endif
#include "functions.h"
#include <kf/runtime.hpp>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/types.h>
#ifdef BRIDGE_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <cstdio>
#include <map>
#include <mutex>

static int dtype_of(const torch::Tensor &t)
{
    switch (t.scalar_type()) {
    case at::kFloat: return KF_DTYPE_FLOAT32;
    case at::kHalf: return KF_DTYPE_FLOAT16;
    case at::kBFloat16: return KF_DTYPE_BFLOAT16;
    case at::kDouble: return KF_DTYPE_FLOAT64;
    case at::kInt: return KF_DTYPE_INT32;
    case at::kLong: return KF_DTYPE_INT64;
    default: TORCH_CHECK(false, "kf has no dtype ", t.scalar_type());
    }
}
// One context per device for the whole program: its pool caches workspaces.
static kf_context_t *context_of(const torch::Device &device)
{
    static std::map<int, kf::Context> made;
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    const int number = device.is_cuda() ? device.index() : -1;
    kf::Context &found = made[number];
    if (!found) found = kf::Context(number);
    TORCH_CHECK(found, kf_get_last_error_detail());
    return found;
}
// Wraps the tensor's memory, which must outlive the result. Lazy conjugates and negatives need
// resolve_conj() or resolve_neg() before.
static kf::Tensor tensor_from_torch(kf_context_t *ctx, const torch::Tensor &t)
{
    TORCH_CHECK(t.is_cuda() || t.is_cpu(), "kf has no tensors of ", t.device());
    const int type =
        t.is_cuda() ? KF_DEVICE_CUDA : KF_DEVICE_CPU; // refused unless it is the context's device
    const int32_t number = t.is_cuda() ? t.device().index() : 0;
    const kf_tensor_desc_t desc = {t.sizes().data(),
                                   t.strides().data(),
                                   static_cast<int32_t>(t.dim()),
                                   dtype_of(t),
                                   type,
                                   number};
    const kf_memory_desc_t memory = {t.data_ptr(), 0, 0}; // PyTorch keeps its memory
    kf::Tensor made(ctx, memory, desc);
    TORCH_CHECK(made, kf_get_last_error_detail());
    return made;
}
static kf::Stream current_stream(kf_context_t *ctx, const torch::Device &device)
{
#ifdef BRIDGE_CUDA
    if (device.is_cuda())
        return kf::Stream(ctx, at::cuda::getCurrentCUDAStream(device.index()).stream());
#endif
    (void)ctx, (void)device;
    return kf::Stream(); // the context's default stream
}
// relu(a + b) with PyTorch's broadcasting; no autograd (kf_fused_add_activation_bwd computes the
// gradient).
torch::Tensor fused_add_relu(const torch::Tensor &a, const torch::Tensor &b)
{
    kf_context_t *const ctx = context_of(a.device());
    torch::Tensor out = at::empty(at::infer_size(a.sizes(), b.sizes()), a.options());
    const kf::Tensor x = tensor_from_torch(ctx, a), y = tensor_from_torch(ctx, b),
                     z = tensor_from_torch(ctx, out);
    const kf::Stream stream = current_stream(ctx, a.device());
    TORCH_CHECK(kf_fused_add_activation(ctx, x, y, z, KF_ACTIVATION_RELU, stream) == KF_SUCCESS,
                kf_get_last_error_detail());
    return out;
}

int main()
{
    const torch::Tensor a = at::randn({64, 33}), b = at::randn({33, 64}).t(), row = at::randn({33});
    int same = 0;
    for (const torch::Tensor &other : {b, row, a})
        same += at::equal(fused_add_relu(a, other), at::relu(a + other));
    const torch::Tensor low = a.to(at::kBFloat16);
    same += at::equal(fused_add_relu(low, low), at::relu(low + low));
    try {
        fused_add_relu(a, row.to(at::kDouble));
    } catch (const c10::Error &e) {
        std::printf("%s\n", e.what_without_backtrace());
    }
    std::printf("%d of 4 agree with PyTorch\n", same);
    return same != 4;
}
