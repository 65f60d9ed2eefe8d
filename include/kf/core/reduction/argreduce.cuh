// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/argreduce.cuh: where an axis has its largest or least element: the first of equal
// ones, and NaN before all numbers, as in PyTorch.
//
// A thread compares what it has in the order of the axis, and remembers which of its vectors has
// the best; what threads and parts have found is joined by value and place, so that the order in
// which that is done does not matter.
#ifndef KF_CORE_REDUCTION_ARGREDUCE_CUH
#define KF_CORE_REDUCTION_ARGREDUCE_CUH

#include "kf/core/reduction/reduction.cuh"

#ifdef KFI_DEVICE_PASS
#define KFI_NOWHERE 0x7fffffffffffffffLL // the place of nothing: behind all others
// The places of a thread's elements. Of no elements at all none.
template <int vec>
KFI_DEVICE void kfi_place_of(kf_i64 (&place)[vec], const int (&turn)[vec], const kfi_reduce &g,
                             const kfi_reduce_at &at)
{
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const bool there = g.flat ? at.counted > 0 || (at.loops > 0 && e < at.last) : at.loops > 0;
        place[e] = !there   ? KFI_NOWHERE
                   : g.flat ? at.column + turn[e] * at.step + e
                            : at.row + ((kf_i64)turn[e] << g.y);
    }
}
#ifndef KFI_PLACE_GROUP
#define KFI_PLACE_GROUP                                                                            \
    2 // vectors of 2-byte elements of which the best is found before it is compared: so many are
      // looked through again
#endif
// Of two pairs of 2-byte elements the better ones, NaN before all numbers.
#if defined(KFI_PTX) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define KFI_PAIR_BEST(dtype, word_of, type)                                                        \
    KFI_DEVICE unsigned kfi_pair_best(int word, kfi_tag<dtype>, unsigned a, unsigned b)            \
    {                                                                                              \
        unsigned r;                                                                                \
        if (word == KFI_MAX)                                                                       \
            asm("max.NaN." #word_of "x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));                  \
        else                                                                                       \
            asm("min.NaN." #word_of "x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));                  \
        return r;                                                                                  \
    }
#else
#define KFI_PAIR_BEST(dtype, word_of, type)                                                        \
    KFI_DEVICE unsigned kfi_pair_best(int word, kfi_tag<dtype>, unsigned a, unsigned b)            \
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
#endif
KFI_PAIR_BEST(KF_F16, f16, kf_f16)
KFI_PAIR_BEST(KF_BF16, bf16, kf_bf16)
#undef KFI_PAIR_BEST
KFI_DEVICE float kfi_pair_one(kfi_tag<KF_BF16>, unsigned pair)
{
    return __uint_as_float(pair << 16);
}
KFI_DEVICE float kfi_pair_one(kfi_tag<KF_F16>, unsigned pair)
{
    float v[1];
    alignas(4) kf_f16 of[2];
    kfi_copy<4>(of, &pair);
    kfi_unpack_f16<1>(v, of);
    return v[0];
}
// The best of KFI_PLACE_GROUP vectors of so many pairs, of which `there` are there, in both halves
// of a word.
template <int pairs, class type>
KFI_DEVICE unsigned kfi_pairs_best(int word, type tag, const void *vectors, int there)
{
    unsigned v[KFI_PLACE_GROUP][pairs];
#pragma unroll
    for (int u = 0; u < KFI_PLACE_GROUP; ++u) {
        kfi_copy<4 * pairs>(v[u], (const char *)vectors + u * (4 * pairs));
#pragma unroll
        for (int by = pairs / 2; by > 0; by /= 2)
#pragma unroll
            for (int i = 0; i < by; ++i) v[u][i] = kfi_pair_best(word, tag, v[u][i], v[u][i + by]);
        if (u > 0 && u < there) v[0][0] = kfi_pair_best(word, tag, v[0][0], v[u][0]);
    }
    return kfi_pair_best(word, tag, v[0][0], v[0][0] >> 16 | v[0][0] << 16);
}
// An element's own bits, of one that has been widened.
KFI_DEVICE unsigned kfi_pair_bits(kfi_tag<KF_BF16>, float v) { return __float_as_uint(v) >> 16; }
KFI_DEVICE unsigned kfi_pair_bits(kfi_tag<KF_F16>, float v)
{
    kf_f16 narrow;
    unsigned short bits;
    kfi_cast(&narrow, v);
    kfi_copy<2>(&bits, &narrow);
    return bits;
}
#define KFI_PLACE_BITS 48 // of a vector's number: no axis has as many
#define KFI_PLACE_ENDS ((1ull << KFI_PLACE_BITS) - 1)
// A number that is the larger the better an element of 2 bytes is, and of equal ones the earlier
// the vectors are that it is in: 0 is that of nothing.
KFI_DEVICE unsigned long long kfi_place_key(int word, unsigned bits, bool is_nan, kf_i64 number)
{
    if ((bits & 0x7fff) == 0) bits = 0; // 0 and -0 are equal
    const unsigned rising = bits & 0x8000 ? 0xffff ^ bits : bits | 0x8000;
    const unsigned order = is_nan ? 0xffff : word == KFI_MAX ? rising : 0xffff ^ rising;
    return (unsigned long long)order << KFI_PLACE_BITS |
           (KFI_PLACE_ENDS - (unsigned long long)number);
}
// The best key of the threads that share a result: all of them get it.
KFI_DEVICE unsigned long long kfi_place_best(unsigned long long key, const kfi_reduce &g)
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
// The place of the first element that is as good as the best key says, and its bits: of the threads
// that have that key each looks through the vectors that it is of. from: a thread's first vector.
template <int vec, class type, class element>
KFI_DEVICE kf_i64 kfi_place_find(int word, type tag, const element *from, unsigned long long own,
                                 unsigned long long best, const kfi_reduce &g,
                                 const kfi_reduce_at &at, unsigned *bits)
{
    __shared__ kf_i64 places[KFI_REDUCE_THREADS / 32];
    __shared__ unsigned of_places[KFI_REDUCE_THREADS / 32];
    const int width = g.x < 5 ? 1 << g.x : 32, lane = (int)threadIdx.x % 32,
              first = lane & ~(width - 1);
    const kf_i64 number = (kf_i64)(KFI_PLACE_ENDS - (best & KFI_PLACE_ENDS));
    kf_i64 place = KFI_NOWHERE;
    int in = KFI_PLACE_GROUP; // which of the vectors: of equal numbers those of all threads come
                              // before the next ones
    for (int u = 0; own == best && own != 0 && u < KFI_PLACE_GROUP && in == KFI_PLACE_GROUP; ++u) {
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
            const float value = kfi_pair_one(tag, of);
            const bool there = i < at.counted || (i < at.loops && e < at.last);
            if (there && (kfi_place_key(word, of, value != value, 0) ^ best) >> KFI_PLACE_BITS == 0)
                in = u, place = at.column + i * at.step + e, *bits = of;
        }
    }
    kf_i64 found = KFI_NOWHERE;
    unsigned theirs = 0;
#pragma unroll
    for (int u = KFI_PLACE_GROUP - 1; u >= 0; --u) {
        const unsigned have =
            __ballot_sync(0xffffffffu, in == u) >> first & (0xffffffffu >> (32 - width));
        const int of = first + (have ? __ffs((int)have) - 1 : 0);
        const kf_i64 their_place = __shfl_sync(0xffffffffu, place, of);
        const unsigned their_bits = __shfl_sync(0xffffffffu, *bits, of);
        if (have) found = their_place, theirs = their_bits;
    }
    if (g.x > 5) {
        const int warp = (int)threadIdx.x / 32, warps = 1 << (g.x - 5), begin = warp & ~(warps - 1);
        if (lane == 0) places[warp] = found, of_places[warp] = theirs;
        __syncthreads();
        for (int w = 0; w < warps; ++w)
            if (places[begin + w] < found) found = places[begin + w], theirs = of_places[begin + w];
    }
    *bits = theirs;
    return found;
}
#define KFI_PARTS_AHEAD(vec)                                                                       \
    (8 / (vec) > 1 ? 8 / (vec) : 1) // parts whose results are on their way at a time
#define KFI_PLACE_WORDS(type)                                                                      \
    /* Whether b, which is further along the axis, takes the place of a. */                        \
    KFI_DEVICE bool kfi_takes(int word, type a, type b)                                            \
    {                                                                                              \
        return a == a && !(word == KFI_MAX ? b <= a : b >= a);                                     \
    }                                                                                              \
    KFI_DEVICE void kfi_place_better(int word, type &a, kf_i64 &place, type b, kf_i64 other)       \
    {                                                                                              \
        const bool same = a == b || (a != a && b != b);                                            \
        if (same ? other < place : kfi_takes(word, a, b)) a = b, place = other;                    \
    }                                                                                              \
    /* What the threads have that share a result: all of them get it. As kfi_reduce_join, but that \
     * a kernel calls it once. */                                                                  \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_place_join(int word, type(&v)[vec], kf_i64(&place)[vec],                   \
                                   const kfi_reduce &g)                                            \
    {                                                                                              \
        __shared__ type values[KFI_REDUCE_THREADS / 32][32][vec];                                  \
        __shared__ kf_i64 places[KFI_REDUCE_THREADS / 32][32][vec];                                \
        const int low = g.flat ? 0 : g.x, high = g.flat ? g.x : g.x + g.y,                         \
                  warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;                      \
        if (g.flat)                                                                                \
            _Pragma("unroll") for (int e = 1; e < vec; ++e)                                        \
                kfi_place_better(word, v[0], place[0], v[e], place[e]);                            \
        for (int by = (high < 5 ? 1 << high : 32) >> 1; by >> low; by >>= 1)                       \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)                 \
                kfi_place_better(word, v[e], place[e], __shfl_xor_sync(0xffffffffu, v[e], by),     \
                                 __shfl_xor_sync(0xffffffffu, place[e], by));                      \
        if (high > 5) {                                                                            \
            const int warps = 1 << (high - 5), first = warp & ~(warps - 1);                        \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)                 \
                values[warp][lane][e] = v[e],                                                      \
                places[warp][lane][e] = place[e];                                                  \
            __syncthreads();                                                                       \
            for (int w = 0; w < warps; ++w)                                                        \
                _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e == 0 || !g.flat)             \
                    kfi_place_better(word, v[e], place[e], values[first + w][lane][e],             \
                                     places[first + w][lane][e]);                                  \
        }                                                                                          \
    }                                                                                              \
    /* Of the parts' results, the places of all ahead of the values of all, a row each. */         \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_place_keep(const type(&v)[vec], const kf_i64(&place)[vec],                 \
                                   const kfi_reduce &g, const kfi_reduce_at &at)                   \
    {                                                                                              \
        kf_i64 *const places = (kf_i64 *)g.partial + at.part * g.results + at.result;              \
        type *const values =                                                                       \
            (type *)((kf_i64 *)g.partial + g.parts * g.results) + at.part * g.results + at.result; \
        if (at.writes)                                                                             \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) if (e < at.results) places[e] =        \
                place[e],                                                                          \
                                                                                values[e] = v[e];  \
    }                                                                                              \
    /* Joined by the threads of a launch for that, whose axis the parts are. */                    \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_place_parts(int word, type(&v)[vec], kf_i64(&place)[vec],                  \
                                    const kfi_reduce &g, const kfi_reduce_at &at)                  \
    {                                                                                              \
        const kf_i64 *const places = (const kf_i64 *)g.partial + at.start;                         \
        const type *const values =                                                                 \
            (const type *)((const kf_i64 *)g.partial + g.axis * g.inner) + at.start;               \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) place[e] = KFI_NOWHERE;                    \
        for (kf_i64 i = 0; i < at.loops; i += KFI_PARTS_AHEAD(vec)) {                              \
            type value[KFI_PARTS_AHEAD(vec)][vec];                                                 \
            kf_i64 other[KFI_PARTS_AHEAD(vec)][vec];                                               \
            _Pragma("unroll") for (int u = 0; u < KFI_PARTS_AHEAD(vec); ++u)                       \
                _Pragma("unroll") for (int e = 0; e < vec; ++e)                                    \
            {                                                                                      \
                const kf_i64 of = i + u < at.loops && e < at.left                                  \
                                      ? (i + u) * at.step + e                                      \
                                      : 0; /* no branch: all are on their way at once */           \
                value[u][e] = values[of];                                                          \
                other[u][e] = places[of];                                                          \
            }                                                                                      \
            _Pragma("unroll") for (int u = 0; u < KFI_PARTS_AHEAD(vec); ++u) _Pragma(              \
                "unroll") for (int e = 0; e < vec; ++e) if (i + u < at.loops && e < at.left)       \
                kfi_place_better(word, v[e], place[e], value[u][e], other[u][e]);                  \
        }                                                                                          \
    }
KFI_PLACE_WORDS(float)
KFI_PLACE_WORDS(double)
#endif

#endif
