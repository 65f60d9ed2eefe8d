// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/argreduce.cuh: device functions of argmax and argmin over an axis. The result
// is the index of the first of equal elements; NaN precedes all numbers, as in PyTorch.
//
// A thread compares its elements in axis order and keeps the best value and the number of its
// vector. Threads and parts combine by value, then by index, so the order of combination does not
// matter. Packed kernel (contiguous 2-byte elements): compares two elements per instruction,
// combines threads by a 64-bit key, then searches the winning vectors for the index.
// templates/reduction/argreduce.cuh.j2 has the kernels; host.cuh launches them.
#ifndef KF_CORE_REDUCTION_ARGREDUCE_CUH
#define KF_CORE_REDUCTION_ARGREDUCE_CUH

#include "kf/core/reduction/reduction.cuh"

#ifdef KFI_DEVICE_PASS
#define KFI_NO_INDEX 0x7fffffffffffffffLL // no element: greater than every index
// Computes the axis indices of a thread's best elements from the numbers of their vectors.
template <int vec>
KFI_DEVICE void kfi_argreduce_indices(kf_i64 (&index)[vec], const int (&vector)[vec],
                                      const kfi_reduce &g, const kfi_reduce_at &at)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const bool there = g.flat ? at.counted > 0 || (at.loops > 0 && e < at.last) : at.loops > 0;
        index[e] = !there   ? KFI_NO_INDEX
                   : g.flat ? at.column + vector[e] * at.step + e
                            : at.row + ((kf_i64)vector[e] << g.y);
    }
}
#ifndef KFI_ARGREDUCE_GROUP
// Vectors of 2-byte elements that are reduced to their best value before it is compared. The search
// for the index reads as many again.
#define KFI_ARGREDUCE_GROUP 2
#endif
// Returns the better elements of two packed pairs of 2-byte elements; NaN precedes all numbers.
#if KFI_PACKED_MAX
KFI_DEVICE unsigned kfi_packed_best(int word, kfi_tag<KF_F16>, unsigned a, unsigned b)
{
    return word == KFI_MAX ? kfi_max_f16x2(a, b) : kfi_min_f16x2(a, b);
}
KFI_DEVICE unsigned kfi_packed_best(int word, kfi_tag<KF_BF16>, unsigned a, unsigned b)
{
    return word == KFI_MAX ? kfi_max_bf16x2(a, b) : kfi_min_bf16x2(a, b);
}
#else
#define KFI_PACKED_BEST(dtype, word_of, type)                                                      \
    KFI_DEVICE unsigned kfi_packed_best(int word, kfi_tag<dtype>, unsigned a, unsigned b)          \
    {                                                                                              \
        alignas(4) type of[2][2], best[2];                                                         \
        kfi_copy<4>(of[0], &a);                                                                    \
        kfi_copy<4>(of[1], &b);                                                                    \
        for (int e = 0; e < 2; ++e) {                                                              \
            float x[1], y[1];                                                                      \
            kfi_unpack_##word_of<1>(x, of[0] + e);                                                 \
            kfi_unpack_##word_of<1>(y, of[1] + e);                                                 \
            best[e] = of[x[0] == x[0] && !(word == KFI_MAX ? y[0] <= x[0] : y[0] >= x[0])][e];     \
        }                                                                                          \
        unsigned r;                                                                                \
        kfi_copy<4>(&r, best);                                                                     \
        return r;                                                                                  \
    }
KFI_PACKED_BEST(KF_F16, f16, kf_f16)
KFI_PACKED_BEST(KF_BF16, bf16, kf_bf16)
#undef KFI_PACKED_BEST
#endif
KFI_DEVICE float kfi_packed_value(kfi_tag<KF_BF16>, unsigned pair)
{
    return __uint_as_float(pair << 16);
}
KFI_DEVICE float kfi_packed_value(kfi_tag<KF_F16>, unsigned pair)
{
    float v[1];
    alignas(4) kf_f16 of[2];
    kfi_copy<4>(of, &pair);
    kfi_unpack_f16<1>(v, of);
    return v[0];
}
// Returns the best element of KFI_ARGREDUCE_GROUP vectors of `pairs` packed pairs, in both halves
// of a word. Only the first `there` vectors are valid (at least one).
template <int pairs, class type>
KFI_DEVICE unsigned kfi_argreduce_vectors_best(int word, type tag, const void *vectors, int there)
{
    unsigned v[KFI_ARGREDUCE_GROUP][pairs];
#pragma unroll
    for (int u = 0; u < KFI_ARGREDUCE_GROUP; ++u) {
        kfi_copy<4 * pairs>(v[u], (const char *)vectors + u * (4 * pairs));
#pragma unroll
        for (int by = pairs / 2; by > 0; by /= 2)
#pragma unroll
            for (int i = 0; i < by; ++i)
                v[u][i] = kfi_packed_best(word, tag, v[u][i], v[u][i + by]);
        if (u > 0 && u < there) v[0][0] = kfi_packed_best(word, tag, v[0][0], v[u][0]);
    }
    return kfi_packed_best(word, tag, v[0][0], v[0][0] >> 16 | v[0][0] << 16);
}
// Returns the 2-byte bits of an element that was widened to float.
KFI_DEVICE unsigned kfi_packed_bits(kfi_tag<KF_BF16>, float v) { return __float_as_uint(v) >> 16; }
KFI_DEVICE unsigned kfi_packed_bits(kfi_tag<KF_F16>, float v)
{
    kf_f16 narrow;
    unsigned short bits;
    kfi_cast(&narrow, v);
    kfi_copy<2>(&bits, &narrow);
    return bits;
}
#define KFI_ARGREDUCE_BITS 48 // bits of a vector's number: no axis has more vectors
#define KFI_ARGREDUCE_NUMBERS ((1ull << KFI_ARGREDUCE_BITS) - 1)
// Returns a key that increases with the rank of a 2-byte element and, for equal elements, decreases
// with the number of its vector. 0 stands for no element.
KFI_DEVICE unsigned long long kfi_argreduce_key(int word, unsigned bits, bool is_nan, kf_i64 number)
{
    if ((bits & 0x7fff) == 0) bits = 0; // 0 and -0 are equal
    const unsigned rising = bits & 0x8000 ? 0xffff ^ bits : bits | 0x8000;
    const unsigned order = is_nan ? 0xffff : word == KFI_MAX ? rising : 0xffff ^ rising;
    return (unsigned long long)order << KFI_ARGREDUCE_BITS |
           (KFI_ARGREDUCE_NUMBERS - (unsigned long long)number);
}
// Returns the largest key of the threads that share a result, to all of them.
KFI_DEVICE unsigned long long kfi_argreduce_best(unsigned long long key, const kfi_reduce &g)
{
    __shared__ unsigned long long keys[KFI_REDUCE_THREADS / 32];
    for (int by = (g.x < 5 ? 1 << g.x : 32) >> 1; by > 0; by >>= 1) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, by);
        if (other > key) key = other;
    }
    if (g.x > 5) {
        const int warp = (int)threadIdx.x / 32, warps = 1 << (g.x - 5), first = warp & ~(warps - 1);
        if (threadIdx.x % 32 == 0) keys[warp] = key;
        __syncthreads();
        for (int w = 0; w < warps; ++w)
            if (keys[first + w] > key) key = keys[first + w];
    }
    return key;
}
// Returns the index of the first element with the rank of the best key, and its bits. Each thread
// whose own key is the best searches its KFI_ARGREDUCE_GROUP vectors. from: a thread's first
// vector.
template <int vec, class type, class element>
KFI_DEVICE kf_i64 kfi_argreduce_find(int word, type tag, const element *from,
                                     unsigned long long own, unsigned long long best,
                                     const kfi_reduce &g, const kfi_reduce_at &at, unsigned *bits)
{
    __shared__ kf_i64 indices[KFI_REDUCE_THREADS / 32];
    __shared__ unsigned bits_of[KFI_REDUCE_THREADS / 32];
    const int width = g.x < 5 ? 1 << g.x : 32, lane = (int)threadIdx.x % 32,
              first = lane & ~(width - 1);
    const kf_i64 number = (kf_i64)(KFI_ARGREDUCE_NUMBERS - (best & KFI_ARGREDUCE_NUMBERS));
    kf_i64 index = KFI_NO_INDEX;
    // Vector of the group with the element: vector u of every thread precedes vector u + 1 of any.
    int in = KFI_ARGREDUCE_GROUP;
    for (int u = 0; own == best && own != 0 && u < KFI_ARGREDUCE_GROUP && in == KFI_ARGREDUCE_GROUP;
         ++u) {
        const kf_i64 i = number + u;
        alignas(16) element v[vec];
        kfi_row_load<2, vec, 0>(v, from + i * at.step,
                                i < at.counted ? vec
                                : i < at.loops ? at.last
                                               : 0);
#pragma unroll
        for (int e = vec - 1; e >= 0; --e) {
            unsigned short of;
            kfi_copy<2>(&of, v + e);
            const float value = kfi_packed_value(tag, of);
            const bool there = i < at.counted || (i < at.loops && e < at.last);
            if (there &&
                (kfi_argreduce_key(word, of, value != value, 0) ^ best) >> KFI_ARGREDUCE_BITS == 0)
                in = u, index = at.column + i * at.step + e, *bits = of;
        }
    }
    kf_i64 found = KFI_NO_INDEX;
    unsigned theirs = 0;
#pragma unroll
    for (int u = KFI_ARGREDUCE_GROUP - 1; u >= 0; --u) {
        const unsigned have =
            __ballot_sync(0xffffffffu, in == u) >> first & (0xffffffffu >> (32 - width));
        const int of = first + (have ? __ffs((int)have) - 1 : 0);
        const kf_i64 their_index = __shfl_sync(0xffffffffu, index, of);
        const unsigned their_bits = __shfl_sync(0xffffffffu, *bits, of);
        if (have) found = their_index, theirs = their_bits;
    }
    if (g.x > 5) {
        const int warp = (int)threadIdx.x / 32, warps = 1 << (g.x - 5), begin = warp & ~(warps - 1);
        if (lane == 0) indices[warp] = found, bits_of[warp] = theirs;
        __syncthreads();
        for (int w = 0; w < warps; ++w)
            if (indices[begin + w] < found) found = indices[begin + w], theirs = bits_of[begin + w];
    }
    *bits = theirs;
    return found;
}
// Parts whose partial results are loaded at a time.
#define KFI_ARGREDUCE_AHEAD(vec) (8 / (vec) > 1 ? 8 / (vec) : 1)
#define KFI_ARGREDUCE_FUNCTIONS(type)                                                              \
    /* True if b, which is later in the axis, replaces a. */                                       \
    KFI_DEVICE bool kfi_argreduce_replaces(int word, type a, type b)                               \
    {                                                                                              \
        return a == a && !(word == KFI_MAX ? b <= a : b >= a);                                     \
    }                                                                                              \
    KFI_DEVICE void kfi_argreduce_combine(int word, type &a, kf_i64 &index, type b, kf_i64 other)  \
    {                                                                                              \
        const bool same = a == b || (a != a && b != b);                                            \
        if (same ? other < index : kfi_argreduce_replaces(word, a, b)) a = b, index = other;       \
    }                                                                                              \
    /* Combines the threads that share a result; all get it. A kernel calls it once. */            \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_argreduce_join(int word, type(&v)[vec], kf_i64(&index)[vec],               \
                                       const kfi_reduce &g)                                        \
    {                                                                                              \
        __shared__ type values[KFI_REDUCE_THREADS / 32][32][vec];                                  \
        __shared__ kf_i64 indices[KFI_REDUCE_THREADS / 32][32][vec];                               \
        const int low = g.flat ? 0 : g.x, high = g.flat ? g.x : g.x + g.y,                         \
                  warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;                      \
        if (g.flat)                                                                                \
            _Pragma("unroll") for (int e = 1; e < vec; ++e)                                        \
                kfi_argreduce_combine(word, v[0], index[0], v[e], index[e]);                       \
        for (int by = (high < 5 ? 1 << high : 32) >> 1; by >> low; by >>= 1)                       \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)                 \
                kfi_argreduce_combine(word, v[e], index[e],                                        \
                                      __shfl_xor_sync(0xffffffffu, v[e], by),                      \
                                      __shfl_xor_sync(0xffffffffu, index[e], by));                 \
        if (high > 5) {                                                                            \
            const int warps = 1 << (high - 5), first = warp & ~(warps - 1);                        \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)                 \
                values[warp][lane][e] = v[e],                                                      \
                indices[warp][lane][e] = index[e];                                                 \
            __syncthreads();                                                                       \
            for (int w = 0; w < warps; ++w)                                                        \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)             \
                    kfi_argreduce_combine(word, v[e], index[e], values[first + w][lane][e],        \
                                          indices[first + w][lane][e]);                            \
        }                                                                                          \
    }                                                                                              \
    /* Stores partial results: a row of indices per part, then a row of values per part. */        \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_argreduce_store_partial(const type(&v)[vec], const kf_i64(&index)[vec],    \
                                                const kfi_reduce &g, const kfi_reduce_at &at)      \
    {                                                                                              \
        kf_i64 *const indices = (kf_i64 *)g.partial + at.part * g.results + at.result;             \
        type *const values =                                                                       \
            (type *)((kf_i64 *)g.partial + g.parts * g.results) + at.part * g.results + at.result; \
        if (at.writes)                                                                             \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e < at.results) indices[e] =       \
                index[e],                                                                          \
                                                                                values[e] = v[e];  \
    }                                                                                              \
    /* Loads and combines partial results in a launch whose axis is the parts. */                  \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_argreduce_load_partials(int word, type(&v)[vec], kf_i64(&index)[vec],      \
                                                const kfi_reduce &g, const kfi_reduce_at &at)      \
    {                                                                                              \
        const kf_i64 *const indices = (const kf_i64 *)g.partial + at.start;                        \
        const type *const values =                                                                 \
            (const type *)((const kf_i64 *)g.partial + g.axis * g.inner) + at.start;               \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) index[e] = KFI_NO_INDEX;                   \
        for (kf_i64 i = 0; i < at.loops; i += KFI_ARGREDUCE_AHEAD(vec)) {                          \
            type value[KFI_ARGREDUCE_AHEAD(vec)][vec];                                             \
            kf_i64 other[KFI_ARGREDUCE_AHEAD(vec)][vec];                                           \
            _Pragma("unroll") for (int u = 0; u < KFI_ARGREDUCE_AHEAD(vec); ++u)                   \
                _Pragma("unroll") for (int e = 0; e < vec; ++e)                                    \
            {                                                                                      \
                const kf_i64 of = i + u < at.loops && e < at.left                                  \
                                      ? (i + u) * at.step + e                                      \
                                      : 0; /* no branch: all loads are in flight at once */        \
                value[u][e] = values[of];                                                          \
                other[u][e] = indices[of];                                                         \
            }                                                                                      \
            _Pragma("unroll") for (int u = 0; u < KFI_ARGREDUCE_AHEAD(vec); ++u) _Pragma(          \
                "unroll") for (int e = 0; e < vec; ++e) if (i + u < at.loops && e < at.left)       \
                kfi_argreduce_combine(word, v[e], index[e], value[u][e], other[u][e]);             \
        }                                                                                          \
    }
KFI_ARGREDUCE_FUNCTIONS(float)
KFI_ARGREDUCE_FUNCTIONS(double)
#endif

#endif
