/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime.hpp: C++17 owners of the handles of kf/runtime.h (docs/runtime.md). Each destroys its
 * handle, moves but does not copy, and converts to the handle in calls of C. Nothing throws: a
 * failed constructor yields an object that is false, and kf_get_last_error_detail() describes the
 * error. */
#ifndef KF_RUNTIME_HPP
#define KF_RUNTIME_HPP

#include "kf/runtime.h"

namespace kf
{

template <class handle, kf_result_t (*destroy)(handle *)> class Owner
{
  public:
    Owner() : of_(nullptr) {}
    explicit Owner(handle *made) : of_(made) {} // takes ownership
    Owner(Owner &&other) noexcept : of_(other.release()) {}
    Owner &operator=(Owner &&other) noexcept
    {
        if (this != &other) reset(other.release());
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() { reset(); }
    operator handle *() const { return of_; } // null if construction failed
    handle *get() const { return of_; }
    handle *release() // passes ownership to the caller
    {
        handle *const found = of_;
        of_ = nullptr;
        return found;
    }
    void reset(handle *next = nullptr)
    {
        if (of_) (void)destroy(of_);
        of_ = next;
    }

  private:
    handle *of_;
};

class Context : public Owner<kf_context_t, kf_context_destroy>
{
  public:
    using Owner::Owner;
    explicit Context(int device) : Owner(kf_context_create(device)) {} // -1: the CPU
};

class Tensor : public Owner<kf_tensor_t, kf_tensor_destroy>
{
  public:
    using Owner::Owner;
    Tensor(kf_context_t *ctx, const kf_tensor_desc_t &desc) : Owner(kf_tensor_create(ctx, &desc)) {}
    Tensor(kf_context_t *ctx, const kf_memory_desc_t &memory, const kf_tensor_desc_t &desc)
        : Owner(kf_tensor_create_from_memory(ctx, &memory, &desc))
    {
    }
    // Views share the memory of this tensor.
    Tensor slice(int dim, int64_t start, int64_t stop, int64_t step = 1) const
    {
        return Tensor(kf_tensor_slice(get(), dim, start, stop, step));
    }
    Tensor transpose(int dim0, int dim1) const
    {
        return Tensor(kf_tensor_transpose(get(), dim0, dim1));
    }
    Tensor permute(const int *dims, int count) const
    {
        return Tensor(kf_tensor_permute(get(), dims, count));
    }
    Tensor reshape(const int64_t *shape, int ndim) const
    {
        return Tensor(kf_tensor_reshape(get(), shape, ndim));
    }
    Tensor broadcast_to(const int64_t *shape, int ndim) const
    {
        return Tensor(kf_tensor_broadcast_to(get(), shape, ndim));
    }
};

class Stream : public Owner<kf_stream_t, kf_stream_destroy>
{
  public:
    using Owner::Owner;
    explicit Stream(kf_context_t *ctx) : Owner(kf_stream_create(ctx, nullptr)) {}
    Stream(kf_context_t *ctx, const kf_stream_config_t &config)
        : Owner(kf_stream_create(ctx, &config))
    {
    }
    Stream(kf_context_t *ctx, struct CUstream_st *native) : Owner(kf_stream_wrap(ctx, native)) {}
};

class Event : public Owner<kf_event_t, kf_event_destroy>
{
  public:
    using Owner::Owner;
    explicit Event(kf_context_t *ctx) : Owner(kf_event_create(ctx)) {}
};

class Plan : public Owner<kf_plan_t, kf_plan_destroy>
{
  public:
    using Owner::Owner;
    Plan(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t &arguments)
        : Owner(kf_plan_create(ctx, op, &arguments))
    {
    }
};

// The pool of a context, which must outlive it.
class MemoryPool
{
  public:
    explicit MemoryPool(kf_context_t *ctx) : ctx_(ctx) {}
    void *allocate(size_t bytes, kf_stream_t *stream = nullptr)
    {
        return kf_pool_allocate(ctx_, bytes, stream);
    }
    kf_result_t deallocate(void *ptr, kf_stream_t *stream = nullptr)
    {
        return kf_pool_deallocate(ctx_, ptr, stream);
    }
    kf_result_t clear() { return kf_pool_clear(ctx_); }
    kf_result_t set_cap(size_t bytes) { return kf_pool_set_cap(ctx_, bytes); }
    kf_result_t stats(kf_pool_stats_t &found) { return kf_pool_get_stats(ctx_, &found); }

  private:
    kf_context_t *ctx_;
};

} // namespace kf

#endif
