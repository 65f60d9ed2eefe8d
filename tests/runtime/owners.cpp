// SPDX-License-Identifier: Apache-2.0
// Objects of kf/runtime.hpp: moved, released, default-constructed. A context in debug mode counts
// the live ones.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "ops.h"
#include <kf/runtime.hpp>

#define CHECK(x)                                                                                   \
    if (!(x))                                                                                      \
    return std::fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, kf_runtime_error_detail()), 1

int main()
{
    const int64_t shape[] = {2, 3}, wide[] = {4, 2, 3}, flat[] = {6};
    const int order[] = {1, 0};
    float values[] = {1, -2, 3, -4, 5, -6}, sums[6] = {};
    const kf_tensor_desc_t desc = {shape, nullptr, 2, KF_DTYPE_FLOAT32, 0, 0};
    const kf_memory_desc_t memory = {values, sizeof values, 0}, of_sums = {sums, sizeof sums, 0};

    kf::Context ctx(-1);
    CHECK(ctx);
    kf::MemoryPool pool(ctx);
    kf_pool_stats_t stats;
    void *const p = pool.allocate(1000);
    CHECK(p && pool.stats(stats) == KF_SUCCESS && stats.in_use >= 1000 &&
          pool.deallocate(p) == KF_SUCCESS && pool.clear() == KF_SUCCESS);
    CHECK(pool.set_cap(64) == KF_SUCCESS && !pool.allocate(1 << 20) &&
          pool.set_cap(0) == KF_SUCCESS);
    {
        kf::Stream stream(ctx, kf_stream_config_t{KF_PRIORITY_HIGH, 0, 0}), plain(ctx);
        kf::Event done(ctx);
        kf::Tensor x(ctx, memory, desc), out(ctx, of_sums, desc), own(ctx, desc);
        CHECK(stream && plain && done && x && out && own);
        CHECK(kf_fused_add_activation(ctx, x, x, out, KF_ACTIVATION_RELU, stream) == KF_SUCCESS &&
              sums[0] == 2 && sums[1] == 0);
        CHECK(kf_event_record(done, stream) == KF_SUCCESS &&
              kf_stream_wait_event(plain, done) == KF_SUCCESS);

        // Views keep the memory alive; release gives up ownership.
        kf::Tensor row = x.slice(0, 1, 2), turned = x.transpose(0, 1), same = x.permute(order, 2),
                   line = x.reshape(flat, 1);
        CHECK(row && turned && same && line && kf_tensor_size(turned, 0) == 3 &&
              kf_tensor_size(row, 0) == 1);
        CHECK(!row.broadcast_to(flat, 1) && x.broadcast_to(wide, 3) &&
              std::strstr(kf_runtime_error_detail(), "kf_tensor_broadcast_to"));
        kf_tensor_t *const handle = x;
        kf::Tensor moved = std::move(x);
        CHECK(!x && moved == handle);
        x = std::move(moved);
        CHECK(!moved && x == handle);
        kf_tensor_t *const released = x.release();
        CHECK(!x && kf_tensor_destroy(released) == KF_SUCCESS &&
              static_cast<float *>(kf_tensor_data(line))[5] == -6);

        // A plan in a container that moves its elements.
        const int dtypes[] = {KF_DTYPE_FLOAT32};
        const kf_tensor_t *const tensors[] = {line, line, line};
        kf_op_arguments_t arguments = {};
        arguments.tensors = tensors;
        std::vector<kf::Plan> plans;
        for (int i = 0; i < 5; ++i)
            plans.emplace_back(ctx, kf_op_lookup("add", KF_ACTIVATION_NONE, dtypes, 1, 0),
                               arguments);
        void *const pointers[] = {values, values, sums};
        for (const kf::Plan &plan : plans)
            CHECK(plan && kf_plan_run(plan, pointers, stream) == KF_SUCCESS && sums[3] == -8);
        kf::Plan none(ctx, nullptr, arguments);
        CHECK(!none && std::strstr(kf_runtime_error_detail(), "kf_plan_create: op is NULL"));
        ctx.reset(); // its objects keep it alive
    }
    kf::Context none(7);
    CHECK(!none);
    std::puts("all right");
    return 0;
}
