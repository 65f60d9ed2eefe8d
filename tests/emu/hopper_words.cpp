// SPDX-License-Identifier: Apache-2.0
// Tests every instruction of kf/core/ptx/hopper.cuh and wgmma.cuh (hopper_kernels.cuh) against
// plain loops. The emulator runs them in every thread order and must report misuses; compiled by
// nvcc, the program runs on a GPU. Prints what is wrong. Usage: hopper_words [SEEDS]
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include <kf/core/launch.cuh>

#include "hopper_kernels.cuh"

static std::mt19937 source(1);
static const kfi_name NAME = {"instruction", ""};
static int below(int n) { return (int)(source() % (unsigned)n); }

// Allocates memory for the host and kernels, filled with ones, aligned to 128 bytes.
template <class T> static T *allocate(size_t count)
{
    void *p = nullptr;
#ifdef KF_EMULATE
    if (posix_memalign(&p, 128, count * sizeof(T)) != 0) std::abort();
#else
    if (cudaMallocManaged(&p, count * sizeof(T)) != cudaSuccess) std::abort();
#endif
    std::memset(p, 0xff, count * sizeof(T));
    return (T *)p;
}
static void release(void *p)
{
#ifdef KF_EMULATE
    std::free(p);
#else
    cudaFree(p);
#endif
}

// Encodes the map of a contiguous tensor of 2-byte elements; dims[0] is the innermost size.
static kfi_tensor_map map_of(unsigned short *p, int rank, const int *dims, const int *boxes,
                             bool swizzle)
{
    typedef int (*encode_t)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *,
                            const unsigned *, const unsigned *, int, int, int, int);
    static encode_t encode = nullptr;
#ifdef KF_EMULATE
    encode = kf_emu_encode;
#else
    cudaDriverEntryPointQueryResult found;
    void *entry = nullptr;
    if (!encode && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                    cudaEnableDefault, &found) == cudaSuccess)
        encode = (encode_t)entry;
#endif
    kfi_tensor_map map;
    uint64_t dim[3], stride[3], bytes = 2;
    unsigned size[3];
    const unsigned ones[3] = {1, 1, 1};
    for (int i = 0; i < rank; ++i) {
        dim[i] = (uint64_t)dims[i];
        size[i] = (unsigned)boxes[i];
        stride[i] = bytes *= (uint64_t)dims[i];
    }
    if (!encode || encode(&map, 9, (unsigned)rank, p, dim, stride, size, ones, 0, swizzle ? 3 : 0,
                          0, 0) != 0) {
        std::printf("no tensor map\n");
        std::exit(1);
    }
    return map;
}

template <class K>
static bool run(const void *kernel, K args, unsigned blocks, unsigned threads, unsigned shared,
                unsigned cluster_size = 1)
{
    if (kfi_launch(&NAME, kernel, dim3(blocks), threads, args, nullptr, false, shared,
                   cluster_size) != KF_SUCCESS)
        return false;
#ifndef KF_EMULATE
    return cudaDeviceSynchronize() == cudaSuccess;
#else
    return true;
#endif
}

static double number(unsigned short v, bool bf16)
{
    const int wide = bf16 ? 7 : 10, bias = bf16 ? 127 : 15,
              exponent = v >> wide & (bf16 ? 255 : 31), fraction = v & ((1 << wide) - 1);
    const double size = exponent ? std::ldexp(1.0 + std::ldexp(fraction, -wide), exponent - bias)
                                 : std::ldexp(fraction, 1 - bias - wide);
    return v >> 15 ? -size : size;
}
static unsigned short random_number(bool bf16) // magnitude between 1/4 and 1
{
    return (unsigned short)((below(2) << 15) | (bf16 ? 0x3e80 + below(256) : 0x3400 + below(2048)));
}

static bool bulks()
{
    float *const in = allocate<float>(1024), *const out = allocate<float>(1024);
    for (int i = 0; i < 1024; ++i) in[i] = (float)i;
    int bytes = 4080;
    void *args[] = {(void *)&in, (void *)&out, &bytes};
    bool good = run(KFI_ADDRESS(bulk), args, 1, 64, 32768);
    for (int i = 0; good && i < 1024; ++i)
        good = i < 1020 ? out[i] == (float)i + 1 : std::isnan(out[i]);
    release(in);
    release(out);
    return good;
}

// Copies a box from coordinates `from` of one tensor to coordinates `to` of another.
static bool boxes(bool deep, bool swizzle, const int *from, const int *to)
{
    const int dims[] = {72, 11, 3}, size[] = {64, 4, deep ? 2 : 1}, rank = deep ? 3 : 2,
              all = 72 * 11 * 3, inside = size[0] * size[1] * size[2];
    unsigned short *const x = allocate<unsigned short>(all),
                          *const y = allocate<unsigned short>(all),
                          *const seen = allocate<unsigned short>(inside);
    int *const where = allocate<int>(6), bytes = 2 * inside, is_deep = deep;
    for (int i = 0; i < all; ++i) x[i] = (unsigned short)(1 + i);
    for (int i = 0; i < 3; ++i) {
        where[i] = from[i];
        where[3 + i] = to[i];
    }
    kfi_tensor_map of_x = map_of(x, rank, dims, size, swizzle),
                   of_y = map_of(y, rank, dims, size, swizzle);
    void *args[] = {&of_x, &of_y, (void *)&where, (void *)&bytes, &is_deep, (void *)&seen};
    bool good = run(KFI_ADDRESS(box), args, 1, 64, 32768);
    /* Element (a, b, c) of the box. */
    const auto value = [&](int a, int b, int c) {
        const int i = a + from[0], j = b + from[1], k = c + (deep ? from[2] : 0);
        const bool in = i >= 0 && i < dims[0] && j >= 0 && j < dims[1] && k >= 0 && k < dims[2];
        return in ? x[(k * dims[1] + j) * dims[0] + i] : (unsigned short)0;
    };
    for (int i = 0; good && i < inside; ++i) {
        const int line = i / 64, chunk = i % 64 / 8 ^ (swizzle ? line % 8 : 0);
        good = seen[line * 64 + chunk * 8 + i % 8] == value(i % 64, line % 4, line / 4);
    }
    for (int i = 0; good && i < all; ++i) {
        const int a = i % 72 - to[0], b = i / 72 % 11 - to[1], c = i / 72 / 11 - (deep ? to[2] : 0);
        const bool in = a >= 0 && a < size[0] && b >= 0 && b < size[1] && c >= 0 && c < size[2];
        good = y[i] == (in ? value(a, b, c) : 0xffff);
    }
    for (void *p : {(void *)x, (void *)y, (void *)seen, (void *)where}) release(p);
    return good;
}

template <int n, int type, int transposed_a, int transposed_b, int registers> static bool products()
{
    const bool bf16 = type == KFI_OF_BF16;
    unsigned short *const a = allocate<unsigned short>(4096),
                          *const b = allocate<unsigned short>(64 * n),
                          *const plain = allocate<unsigned short>(4096);
    float *const d = allocate<float>(64 * n);
    int add = below(2);
    for (int i = 0; i < 4096; ++i) plain[i] = random_number(bf16);
    for (int i = 0; i < 4096; ++i) a[i] = transposed_a ? plain[i % 64 * 64 + i / 64] : plain[i];
    for (int i = 0; i < 64 * n; ++i) b[i] = random_number(bf16);
    const int dims_a[] = {64, 64}, dims_b[] = {transposed_b ? n : 64, transposed_b ? 64 : n},
              size[] = {64, 64};
    kfi_tensor_map of_a = map_of(a, 2, dims_a, size, true), of_b = map_of(b, 2, dims_b, size, true);
    void *args[] = {&of_a, &of_b, (void *)&plain, (void *)&d, &add};
    bool good = run(KFI_ADDRESS(product<n, type, transposed_a, transposed_b, registers>), args, 1,
                    128, 65536);
    for (int i = 0; good && i < 64 * n; ++i) {
        double sum = add ? 1 : 0;
        for (int k = 0; k < 64; ++k)
            sum += number(plain[i / n * 64 + k], bf16) *
                   number(transposed_b ? b[k * n + i % n] : b[i % n * 64 + k], bf16);
        good = std::fabs(sum - d[i]) < 1e-4;
    }
    for (void *p : {(void *)a, (void *)b, (void *)plain, (void *)d}) release(p);
    return good;
}

template <int in, int back> static bool matrix()
{
    unsigned short *const from = allocate<unsigned short>(256), *const to =
                                                                    allocate<unsigned short>(256);
    for (int i = 0; i < 256; ++i) from[i] = (unsigned short)i;
    void *args[] = {(void *)&from, (void *)&to};
    bool good = run(KFI_ADDRESS(matrices<in, back>), args, 1, 32, 4096);
    for (int i = 0; good && i < 256; ++i)
        good = to[i] == (in == back ? i : i / 64 * 64 + i % 8 * 8 + i % 64 / 8);
    release(from);
    release(to);
    return good;
}

static bool clusters(int blocks)
{
    unsigned short *const x = allocate<unsigned short>(512 * blocks);
    float *const out = allocate<float>(64 * 2 * blocks);
    double all = 0;
    for (int i = 0; i < 512 * blocks; ++i) all += x[i] = (unsigned short)below(100);
    const int dims[] = {64, 8 * blocks}, size[] = {64, 8};
    kfi_tensor_map map = map_of(x, 2, dims, size, true);
    void *args[] = {&map, (void *)&out, &blocks};
    bool good = run(KFI_ADDRESS(cluster), args, (unsigned)blocks, 64, 32768, (unsigned)blocks);
    for (int rank = 0; good && rank < blocks; ++rank) {
        double sum = 0;
        for (int t = 0; t < 64; ++t) {
            sum += out[(rank * 64 + t) * 2];
            good = good && out[(rank * 64 + t) * 2 + 1] == (t < blocks ? 10 * t + rank : 0);
        }
        good = good && sum == all;
    }
    release(x);
    release(out);
    return good;
}

static bool role(int count)
{
    unsigned *const in = allocate<unsigned>(256 * count), *const out = allocate<unsigned>(256);
    for (int i = 0; i < 256 * count; ++i) in[i] = source();
    void *args[] = {(void *)&in, (void *)&out, &count};
    bool good = run(KFI_ADDRESS(roles), args, 1, 384, 32768);
    for (int t = 0; good && t < 256; ++t) {
        unsigned sum = 0;
        for (int i = t / 128; i < count; i += 2)
            sum += (i + 1) * (in[256 * i + t % 128] + in[256 * i + 128 + t % 128]);
        good = sum == out[t];
    }
    release(in);
    release(out);
    return good;
}

static bool right(const char *what, bool good)
{
#ifdef KF_EMULATE
    if (!good)
        std::printf("%s, order %d, seed %llu: %s\n", what, kf_emu_order, kf_emu_seed,
                    kf_emu_report());
#else
    if (!good) std::printf("%s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
#endif
    return good;
}
#define RIGHT(...) right(#__VA_ARGS__, __VA_ARGS__)

static bool instructions()
{
    const int inside[] = {8, 3, 1}, before[] = {-8, -2, -1}, behind[] = {56, 9, 2},
              nowhere[] = {80, 20, 5}, first[] = {0, 0, 0};
    bool good =
        RIGHT(bulks()) && RIGHT(boxes(false, true, inside, first)) &&
        RIGHT(boxes(false, false, before, behind)) && RIGHT(boxes(true, true, before, inside)) &&
        RIGHT(boxes(true, false, behind, behind)) && RIGHT(boxes(true, true, nowhere, nowhere));
    good =
        good && RIGHT(products<64, KFI_OF_BF16, 0, 0, 0>()) &&
        RIGHT(products<80, KFI_OF_BF16, 0, 0, 0>()) &&
        RIGHT(products<176, KFI_OF_F16, 0, 0, 0>()) &&
        RIGHT(products<128, KFI_OF_F16, 0, 0, 0>()) &&
        RIGHT(products<192, KFI_OF_BF16, 0, 0, 0>()) &&
        RIGHT(products<256, KFI_OF_BF16, 0, 0, 0>()) &&
        RIGHT(products<64, KFI_OF_F16, 1, 0, 0>()) &&
        RIGHT(products<128, KFI_OF_BF16, 0, 1, 0>()) &&
        RIGHT(products<256, KFI_OF_F16, 1, 1, 0>()) && RIGHT(products<64, KFI_OF_F16, 0, 1, 1>()) &&
        RIGHT(products<128, KFI_OF_BF16, 0, 0, 1>()) &&
        RIGHT(products<192, KFI_OF_F16, 0, 1, 1>()) && RIGHT(products<256, KFI_OF_BF16, 0, 1, 1>());
    good = good && RIGHT(matrix<0, 0>()) && RIGHT(matrix<0, 1>()) && RIGHT(matrix<1, 0>()) &&
           RIGHT(matrix<1, 1>());
    return good && RIGHT(clusters(1)) && RIGHT(clusters(2)) && RIGHT(clusters(4)) &&
           RIGHT(role(9)) && RIGHT(role(2));
}

#ifdef KF_EMULATE
// Tests that the emulator reports each misuse.
static bool misuses()
{
    static const struct {
        int how;
        const char *says, *or_says;
    } list[] = {{LEFT_LOAD, "nobody waited", "has ended"},
                {TWICE, "let through twice", nullptr},
                {NOT_COMMITTED, "not committed", nullptr},
                {HALF_A_BARRIER, "no thread can go on", nullptr},
                {ODD_BYTES, "no multiple of 16", nullptr},
                {TOO_FEW_BYTES, "too few", "more than expected"},
                {NO_BARRIER, "no mbarrier", nullptr},
                {NO_BLOCK, "no block", nullptr},
                {NOT_READ, "no wait_group.read", nullptr},
                {NO_WGMMA_FENCE, "without wgmma.fence", nullptr},
                {SUMS_TOO_SOON, "accumulators were written", nullptr},
                {NOT_MADE, "without fence.mbarrier_init", nullptr},
                {NEGATIVE, "illegal instruction", nullptr},
                {ODD_PLACE, "no multiple of 16 bytes", nullptr},
                {NO_REGISTERS, "no thread can go on", nullptr},
                {NO_ASYNC_FENCE, "without fence.proxy.async", nullptr},
                {TOO_MANY, "nobody waited", "more arrivals"},
                {NOT_WAITED, "without waiting for its wgmma", nullptr},
                {STAGE_TOO_SOON, "may still be reading", nullptr}};
    static_assert(sizeof list / sizeof *list == MISUSES, "each is tried");
    unsigned short *const x = allocate<unsigned short>(72 * 8);
    float *out = allocate<float>(256);
    const int dims[] = {72, 8}, size[] = {64, 4};
    kfi_tensor_map map = map_of(x, 2, dims, size, true);
    bool good = true;
    for (const auto &m : list) {
        int how = m.how;
        void *args[] = {&map, (void *)&out, &how};
        const bool noticed =
            !run(KFI_ADDRESS(misuse), args, 1, how == NO_REGISTERS ? 384 : 128, 32768);
        const char *const report = kf_emu_report();
        if (noticed &&
            (std::strstr(report, m.says) || (m.or_says && std::strstr(report, m.or_says))))
            continue;
        std::printf("order %d: misuse %d is not reported as `%s`: %s\n", kf_emu_order, m.how,
                    m.says, noticed ? report : "it ran");
        good = false;
    }
    release(x);
    release(out);
    return good;
}
#endif

int main(int count, char **arguments)
{
    const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
#ifdef KF_EMULATE
    kf_emu_aborts = 0;
    for (kf_emu_order = 0; kf_emu_order < 3; ++kf_emu_order)
        for (int seed = 1; seed <= (kf_emu_order == 2 ? seeds : 1); ++seed) {
            kf_emu_seed = (unsigned long long)seed;
            if (!instructions() || !misuses()) return 1;
        }
#else
    for (int seed = 1; seed <= seeds; ++seed)
        if (!instructions()) return 1;
#endif
    std::puts("ok");
    return 0;
}
