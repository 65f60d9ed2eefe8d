// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/channel_block.cuh: ops over channels by channel blocks: thread coordinates, vector
// access, and reductions per channel over the threads of a block.
#ifndef KF_CORE_ROWS_CHANNEL_BLOCK_CUH
#define KF_CORE_ROWS_CHANNEL_BLOCK_CUH

#include "kf/core/rows/access.cuh"
#include "kf/core/rows/reduce.cuh"
#include "kf/core/rows/channel_block_args.cuh"

#ifdef KFI_DEVICE_PASS
// Number of channels that a vector may span.
template <int form, int vec> KFI_DEVICE constexpr int kfi_band_slots()
{
    return form == KFI_BAND_ONE ? 1 : form == KFI_BAND_TWO ? 2 : vec;
}
// Value of the channel of element e; elements from `split` on belong to the second channel.
template <int form, class R> KFI_DEVICE R kfi_band_of(const R *v, int e, int split)
{
    return form == KFI_BAND_TWO ? (e < split ? v[0] : v[form == KFI_BAND_TWO])
                                : v[form == KFI_BAND_EACH ? e : 0];
}

// Coordinates of a thread.
template <int slots> struct kfi_band_thread {
    kf_i64 channel, part; // first channel of the channel block; index of the CUDA block within it
    int segs;             // channels of the channel block
    kf_i64 unit, end;     // first unit of the thread; one past the last unit of the block
    kf_i64 row;           // forms TWO and EACH: row of the first unit
    int col, split;       // its column, in vectors; elements of its first channel
    int slot[slots];      // channel indices
};
// Computes the coordinates. Blocks are ordered part-major to stream through memory. back: reverses
// the order, to start with the vectors that the previous kernel left in L2.
template <int form, int vec>
KFI_DEVICE kfi_band_thread<kfi_band_slots<form, vec>()> kfi_band_enter(const kfi_bands &g,
                                                                       bool back)
{
    kfi_band_thread<kfi_band_slots<form, vec>()> at = {};
    const kf_i64 block = back ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    at.part = kfi_divide(block, g.bands);
    const kf_i64 band = block - at.part * (kf_i64)g.bands.d, left = g.channels - band * g.segs;
    at.channel = band * g.segs;
    at.segs = left < g.segs ? (int)left : g.segs;
    const bool idle = (int)threadIdx.x >= g.threads;
    at.unit = at.part * g.share + threadIdx.x;
    at.end = (at.part + 1) * g.share < g.units ? (at.part + 1) * g.share : g.units;
    if (idle) at.end = 0;
    if (form != KFI_BAND_ONE) {
        at.row = kfi_divide(at.unit, g.width);
        at.col = (int)(at.unit - at.row * g.wide);
        const int first = at.col * vec, inner = (int)g.inner;
        at.slot[0] = (int)kfi_divide(first, g.plane);
        at.split = (at.slot[0] + 1) * inner - first;
#pragma unroll
        for (int s = 1; s < kfi_band_slots<form, vec>(); ++s)
            at.slot[s] =
                form == KFI_BAND_TWO ? at.slot[0] + 1 : (int)kfi_divide(first + s, g.plane);
    }
    return at;
}
// Position of a thread's vector s, and its number of valid elements.
struct kfi_band_unit {
    kf_i64 row, first;
    int left;
};
template <int form, int vec, class Thread>
KFI_DEVICE kfi_band_unit kfi_band_at(const kfi_bands &g, const Thread &at, kf_i64 s)
{
    const kf_i64 unit = at.unit + s * g.threads;
    kfi_band_unit u;
    if (form == KFI_BAND_ONE) {
        u.row = kfi_divide(unit, g.width);
        u.first = (unit - u.row * (kf_i64)g.width.d) * vec;
    } else {
        u.row = at.row + s * g.rows;
        u.first = at.col * vec;
    }
    const kf_i64 left = form == KFI_BAND_ONE ? g.inner - u.first : at.segs * g.inner - u.first;
    u.left = unit < at.end && left > 0 ? (left < vec ? (int)left : vec) : 0;
    return u;
}
// Number of valid elements only.
template <int form, int vec, int whole, class Thread>
KFI_DEVICE int kfi_band_left(const kfi_bands &g, const Thread &at, kf_i64 s)
{
    if (whole) return at.unit + s * g.threads < at.end ? vec : 0;
    return kfi_band_at<form, vec>(g, at, s).left;
}
// Channel index clamped to the channel block: the second channel of the last vector may not exist.
template <class Thread> KFI_DEVICE int kfi_band_slot(const Thread &at, int s)
{
    return at.slot[s] < at.segs ? at.slot[s] : at.segs - 1;
}
// Opaque copy of 2-byte values, so that nvcc does not keep their converted floats, which take twice
// the registers.
template <int count> KFI_DEVICE void kfi_band_opaque(void *values, const kfi_bands &g)
{
    const unsigned zero = (unsigned)((unsigned long long)g.cols >> 63);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) kfi_opaque(((unsigned *)values)[i], zero);
}
// Opaque copy of a unit index, so that offsets of vectors are recomputed instead of kept in
// registers.
KFI_DEVICE kf_i64 kfi_band_opaque_unit(kf_i64 unit, const kfi_bands &g)
{
    kfi_opaque(unit, (kf_i64)((unsigned long long)g.cols >> 63));
    return unit;
}
// Offset of a vector's first element, if the channels were contiguous.
KFI_DEVICE kf_i64 kfi_band_offset(const kfi_bands &g, kf_i64 channel, const kfi_band_unit &u,
                                  const kfi_pitch &p)
{
    return channel * p.row + u.row * (p.gap + g.inner) + u.first;
}
template <int size, int vec, int form, int whole, class Thread>
KFI_DEVICE void kfi_band_load(void *dst, const void *src, const kfi_bands &g, const Thread &at,
                              const kfi_band_unit &u, const kfi_pitch &p)
{
    const char (*const from)[size] =
        (const char (*)[size])src + kfi_band_offset(g, at.channel, u, p);
    if (whole || form == KFI_BAND_ONE) {
        kfi_row_load<size, vec, whole>(dst, from, u.left);
    } else {
        const unsigned long long zero = 0;
#pragma unroll
        for (int e = 0; e < vec; ++e)
            kfi_copy<size>((char *)dst + e * size,
                           e < u.left ? (const char *)(from + e +
                                                       kfi_band_of<form>(at.slot, e, at.split) *
                                                           (p.row - g.inner))
                                      : (const char *)&zero);
    }
}
template <int size, int vec, int form, int whole, class Thread>
KFI_DEVICE void kfi_band_store(void *dst, const void *src, const kfi_bands &g, const Thread &at,
                               const kfi_band_unit &u, const kfi_pitch &p)
{
    char (*const to)[size] = (char (*)[size])dst + kfi_band_offset(g, at.channel, u, p);
    if (whole || form == KFI_BAND_ONE) {
        kfi_row_store<size, vec, whole>(to, src, u.left);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < u.left)
                kfi_copy<size>(
                    (char *)(to + e + kfi_band_of<form>(at.slot, e, at.split) * (p.row - g.inner)),
                    (const char *)src + e * size);
    }
}

// Joins a thread's elements channel by channel.
template <int word, int form, int vec, class R>
KFI_DEVICE void kfi_band_fold(R *to, const R *from, int split)
{
    constexpr int slots = kfi_band_slots<form, vec>();
#pragma unroll
    for (int s = 0; s < slots; ++s) kfi_nothing(word, to + s);
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        if (form != KFI_BAND_TWO)
            to[form == KFI_BAND_EACH ? e : 0] =
                kfi_join(word, to[form == KFI_BAND_EACH ? e : 0], from[e]);
        if (form == KFI_BAND_TWO && e < split) to[0] = kfi_join(word, to[0], from[e]);
        if (form == KFI_BAND_TWO && e >= split)
            to[form == KFI_BAND_TWO] = kfi_join(word, to[form == KFI_BAND_TWO], from[e]);
    }
}
// Iterates over the slots in shared memory that hold a channel's values, for one lane of the
// channel's team.
struct kfi_band_cursor {
    int at, col, row, first, width, step;
};
template <int form, int vec>
KFI_DEVICE kfi_band_cursor kfi_band_begin(const kfi_bands &g, int k, int lane)
{
    const int inner = (int)g.inner;
    kfi_band_cursor w;
    w.first = form == KFI_BAND_TWO ? k * inner / vec : k * inner;
    w.width = form == KFI_BAND_TWO ? ((k + 1) * inner - 1) / vec + 1 - w.first : inner;
    w.step = g.team;
    w.row = 0;
    w.col = lane;
    w.at = k;
    while (w.col >= w.width) w.col -= w.width, ++w.row;
    return w;
}
KFI_DEVICE void kfi_band_next(kfi_band_cursor *w)
{
    w->col += w->step;
    while (w->col >= w->width) w->col -= w->width, ++w->row;
}
template <int form, int vec>
KFI_DEVICE int kfi_band_index(const kfi_bands &g, const kfi_band_cursor &w)
{
    const int col = w.first + w.col;
    if (form == KFI_BAND_EACH) return w.row * g.wide * vec + col;
    return (w.row * g.wide + col) * 2 + (col * vec < w.at * (int)g.inner ? 1 : 0);
}

#define KFI_BAND_REDUCE(type)                                                                      \
    template <int word> KFI_DEVICE type kfi_band_team(type v, int lanes)                           \
    {                                                                                              \
        _Pragma("unroll") for (int by = 16; by > 0; by >>= 1) if (by < lanes) v =                  \
            kfi_join(word, v, __shfl_xor_sync(0xffffffffu, v, by));                                \
        return v;                                                                                  \
    }                                                                                              \
    /* number * (sum / number - mean)^2. */                                                        \
    KFI_DEVICE type kfi_band_deviation(type number, type sum, type mean)                           \
    {                                                                                              \
        const type d = number > 0 ? sum / number - mean : (type)0;                                 \
        return number * d * d;                                                                     \
    }                                                                                              \
    /* Reduces each channel over the block: totals[k]. Called by all threads; synchronises at the  \
     * end. */                                                                                     \
    template <int word, int form, int vec, class Thread>                                           \
    KFI_DEVICE void kfi_band_reduce(type *totals, const type *v, type *buffer, const kfi_bands &g, \
                                    const Thread &at)                                              \
    {                                                                                              \
        constexpr int slots = kfi_band_slots<form, vec>();                                         \
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,                      \
                  warps = (int)blockDim.x / 32;                                                    \
        if (form == KFI_BAND_ONE) {                                                                \
            const type all = kfi_band_team<word>(v[0], 32);                                        \
            if (lane == 0) buffer[warp] = all;                                                     \
            __syncthreads();                                                                       \
            type own;                                                                              \
            kfi_nothing(word, &own);                                                               \
            if (lane < warps) own = buffer[lane];                                                  \
            own = kfi_band_team<word>(own, 32);                                                    \
            if (threadIdx.x == 0) totals[0] = own;                                                 \
        } else {                                                                                   \
            _Pragma("unroll") for (int s = 0; s < slots; ++s)                                      \
                buffer[(int)threadIdx.x * slots + s] = v[s];                                       \
            __syncthreads();                                                                       \
            const int teams = (int)blockDim.x / g.team, mine = (int)threadIdx.x / g.team;          \
            for (int turn = 0; turn < at.segs; turn += teams) {                                    \
                type own;                                                                          \
                kfi_nothing(word, &own);                                                           \
                const int k = turn + mine;                                                         \
                if (k < at.segs)                                                                   \
                    for (kfi_band_cursor w =                                                       \
                             kfi_band_begin<form, vec>(g, k, (int)threadIdx.x % g.team);           \
                         w.row < g.rows; kfi_band_next(&w))                                        \
                        own = kfi_join(word, own, buffer[kfi_band_index<form, vec>(g, w)]);        \
                own = kfi_band_team<word>(own, g.team);                                            \
                if (k < at.segs && threadIdx.x % g.team == 0) totals[k] = own;                     \
            }                                                                                      \
        }                                                                                          \
        __syncthreads();                                                                           \
    }                                                                                              \
    /* Combines sums and squared distances from the mean. Each thread has `number` values, their   \
     */                                                                                            \
    /* sum, and squared distances from their own mean; a set moved to the common mean adds */      \
    /* number * (own mean - common mean)^2. totals: [3][segs]: sums, squares, numbers. */          \
    template <int form, int vec, class Thread>                                                     \
    KFI_DEVICE void kfi_band_moments(type *totals, const type *sum, const type *square,            \
                                     const type *number, type *buffer, const kfi_bands &g,         \
                                     const Thread &at)                                             \
    {                                                                                              \
        constexpr int slots = kfi_band_slots<form, vec>();                                         \
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,                      \
                  warps = (int)blockDim.x / 32, all = (int)blockDim.x * slots;                     \
        if (form == KFI_BAND_ONE) {                                                                \
            type S = kfi_band_team<KFI_SUM>(sum[0], 32),                                           \
                 W = kfi_band_team<KFI_SUM>(number[0], 32);                                        \
            type Q = kfi_band_team<KFI_SUM>(                                                       \
                square[0] + kfi_band_deviation(number[0], sum[0], W > 0 ? S / W : (type)0), 32);   \
            if (lane == 0) buffer[warp] = S, buffer[32 + warp] = Q, buffer[64 + warp] = W;         \
            __syncthreads();                                                                       \
            const type s = lane < warps ? buffer[lane] : (type)0,                                  \
                       q = lane < warps ? buffer[32 + lane] : (type)0;                             \
            const type n = lane < warps ? buffer[64 + lane] : (type)0;                             \
            S = kfi_band_team<KFI_SUM>(s, 32), W = kfi_band_team<KFI_SUM>(n, 32);                  \
            Q = kfi_band_team<KFI_SUM>(q + kfi_band_deviation(n, s, W > 0 ? S / W : (type)0), 32); \
            if (threadIdx.x == 0) totals[0] = S, totals[1] = Q, totals[2] = W;                     \
        } else {                                                                                   \
            _Pragma("unroll") for (int s = 0; s < slots; ++s)                                      \
            {                                                                                      \
                const int i = (int)threadIdx.x * slots + s;                                        \
                buffer[i] = sum[s], buffer[all + i] = square[s], buffer[2 * all + i] = number[s];  \
            }                                                                                      \
            __syncthreads();                                                                       \
            const int teams = (int)blockDim.x / g.team, mine = (int)threadIdx.x / g.team;          \
            for (int turn = 0; turn < at.segs; turn += teams) {                                    \
                type S = 0, W = 0, Q = 0;                                                          \
                const int k = turn + mine, from = (int)threadIdx.x % g.team;                       \
                if (k < at.segs)                                                                   \
                    for (kfi_band_cursor w = kfi_band_begin<form, vec>(g, k, from);                \
                         w.row < g.rows; kfi_band_next(&w)) {                                      \
                        const int i = kfi_band_index<form, vec>(g, w);                             \
                        S += buffer[i], W += buffer[2 * all + i];                                  \
                    }                                                                              \
                S = kfi_band_team<KFI_SUM>(S, g.team), W = kfi_band_team<KFI_SUM>(W, g.team);      \
                const type mean = W > 0 ? S / W : (type)0;                                         \
                if (k < at.segs)                                                                   \
                    for (kfi_band_cursor w = kfi_band_begin<form, vec>(g, k, from);                \
                         w.row < g.rows; kfi_band_next(&w)) {                                      \
                        const int i = kfi_band_index<form, vec>(g, w);                             \
                        Q += buffer[all + i] +                                                     \
                             kfi_band_deviation(buffer[2 * all + i], buffer[i], mean);             \
                    }                                                                              \
                Q = kfi_band_team<KFI_SUM>(Q, g.team);                                             \
                if (k < at.segs && from == 0)                                                      \
                    totals[k] = S, totals[g.segs + k] = Q, totals[2 * g.segs + k] = W;             \
            }                                                                                      \
        }                                                                                          \
        __syncthreads();                                                                           \
    }                                                                                              \
    /* Total of value v of a channel over all parts, by a warp; and the same for moments. */       \
    template <int word>                                                                            \
    KFI_DEVICE type kfi_band_total(const type *partial, int v, kf_i64 channel, const kfi_bands &g) \
    {                                                                                              \
        const type *const from = partial + (v * g.channels + channel) * g.parts;                   \
        type own;                                                                                  \
        kfi_nothing(word, &own);                                                                   \
        _Pragma("unroll 4") for (kf_i64 i = (int)threadIdx.x % 32; i < g.parts; i += 32) own =     \
            kfi_join(word, own, from[i]);                                                          \
        return kfi_band_team<word>(own, 32);                                                       \
    }                                                                                              \
    KFI_DEVICE void kfi_band_total_moments(type *sum, type *square, const type *partial,           \
                                           kf_i64 channel, const kfi_bands &g)                     \
    {                                                                                              \
        const kf_i64 stride = g.channels * g.parts;                                                \
        const type *const S = partial + channel * g.parts, *const Q = S + stride,                  \
                          *const W = Q + stride;                                                   \
        *sum = kfi_band_total<KFI_SUM>(partial, 0, channel, g);                                    \
        const type mean = *sum / kfi_band_total<KFI_SUM>(partial, 2, channel, g);                  \
        type own = 0;                                                                              \
        _Pragma("unroll 4") for (kf_i64 i = (int)threadIdx.x % 32; i < g.parts; i += 32) own +=    \
            Q[i] + kfi_band_deviation(W[i], S[i], mean);                                           \
        *square = kfi_band_team<KFI_SUM>(own, 32);                                                 \
    }
KFI_BAND_REDUCE(float)
KFI_BAND_REDUCE(double)
// Stores the first `count` values of a block's totals to the partial sums.
template <class R, class Thread>
KFI_DEVICE void kfi_band_store_partial(const R *totals, int count, const kfi_bands &g,
                                       const Thread &at)
{
    for (int v = 0; v < count; ++v)
        for (int k = (int)threadIdx.x; k < at.segs; k += (int)blockDim.x)
            ((R *)g.partial)[(v * g.channels + at.channel + k) * g.parts + at.part] =
                totals[v * g.segs + k];
}

// Sums of a thread's values per channel, and of their distances from the reference value `from`,
// which avoids cancellation in the squares.
template <int form, int vec, class R> struct kfi_band_gathered {
    R from[kfi_band_slots<form, vec>()];
    R sum[form == KFI_BAND_ONE ? 2 : vec], deviation[form == KFI_BAND_ONE ? 2 : vec],
        square[form == KFI_BAND_ONE ? 2 : vec]; // form ONE: two independent chains
    int number[kfi_band_slots<form, vec>()];
};
template <int form, int vec, class R>
KFI_DEVICE void kfi_band_gather(kfi_band_gathered<form, vec, R> *m, const R *v, int left, int split)
{
    constexpr int slots = kfi_band_slots<form, vec>();
#pragma unroll
    for (int s = 0; s < slots; ++s) { // reference: first value of the channel that the thread has
        const int e = form == KFI_BAND_EACH ? s : 0, more = form == KFI_BAND_ONE    ? left
                                                            : form == KFI_BAND_EACH ? e < left
                                                            : s == 0 ? (left < split ? left : split)
                                                                     : left - split;
        if (m->number[s] == 0 && more > 0) {
            m->from[s] = v[e];
            if (form == KFI_BAND_TWO && s == 1) {
#pragma unroll
                for (int i = 1; i < vec; ++i)
                    if (i == split) m->from[s] = v[i];
            }
        }
        m->number[s] += more > 0 ? more : 0;
    }
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const R d = v[e] - kfi_band_of<form>(m->from, e, split);
        const int i = form == KFI_BAND_ONE ? e % 2 : e;
        if (e < left) m->sum[i] += v[e], m->deviation[i] += d, m->square[i] += d * d;
    }
}
// Number of vectors after which a thread moves the reference from the channel's first value to the
// running mean.
template <int form> KFI_DEVICE constexpr int kfi_band_few()
{
    return form == KFI_BAND_EACH ? 4 : 1;
}
// Moves the reference to approximately the mean of the values so far. If the first value is an
// outlier, the squares of all n distances are large, and subtracting their mean would leave n times
// their rounding error.
template <int form, int vec, class R>
KFI_DEVICE void kfi_band_centre(kfi_band_gathered<form, vec, R> *m, int split)
{
    constexpr int slots = kfi_band_slots<form, vec>(), chains = form == KFI_BAND_ONE ? 2 : vec;
    R deviation[slots], square[slots];
    kfi_band_fold<KFI_SUM, form, chains>(deviation, m->deviation, split);
    kfi_band_fold<KFI_SUM, form, chains>(square, m->square, split);
#pragma unroll
    for (int i = 0; i < chains; ++i) m->deviation[i] = m->square[i] = 0;
#pragma unroll
    for (int s = 0; s < slots; ++s) { // add the sums to one of the channel's chains
        const int i = form == KFI_BAND_EACH ? s : s == 0 ? 0 : chains - 1;
        const R was = m->from[s], number = (R)m->number[s],
                share = m->number[s] > 0 ? (R)kfi_rcp_ftz((float)m->number[s]) : (R)0;
        m->from[s] = was + deviation[s] * share;
        const R by = m->from[s] - was, rest = deviation[s] - number * by,
                left = square[s] - by * (deviation[s] + rest);
        if (m->number[s] > 0) m->deviation[i] = rest, m->square[i] = left < 0 ? (R)0 : left;
    }
}
template <int form, int vec, class R, class Thread>
KFI_DEVICE void kfi_band_finish(R *totals, const kfi_band_gathered<form, vec, R> &m, R *buffer,
                                const kfi_bands &g, const Thread &at)
{
    constexpr int slots = kfi_band_slots<form, vec>();
    R sum[slots], deviation[slots], square[slots], number[slots];
    kfi_band_fold<KFI_SUM, form, (form == KFI_BAND_ONE ? 2 : vec)>(sum, m.sum, at.split);
    kfi_band_fold<KFI_SUM, form, (form == KFI_BAND_ONE ? 2 : vec)>(deviation, m.deviation,
                                                                   at.split);
    kfi_band_fold<KFI_SUM, form, (form == KFI_BAND_ONE ? 2 : vec)>(square, m.square, at.split);
#pragma unroll
    for (int s = 0; s < slots; ++s) {
        number[s] = (R)m.number[s];
        const R over = m.number[s] > 0 ? deviation[s] / number[s] : (R)0;
        square[s] -= over * deviation[s];
        if (square[s] < 0) square[s] = 0; // nearly equal values may round below zero
    }
    kfi_band_moments<form, vec>(totals, sum, square, number, buffer, g, at);
}
#endif

#endif
