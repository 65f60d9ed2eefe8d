// SPDX-License-Identifier: Apache-2.0
// kf/core/gemm.cuh under endings written by hand (gemm_kernel.cuh), run by the emulation in every order of threads, against plain loops in
// double: every tile, layout and way to load; sizes of 1 to 300, odd leading dimensions, bases of any alignment, several matrices, split
// depths, no depth at all, NaN in a row. Outputs lie between guards. Prints the first value that is wrong. gemm_words [CASES] [SEED]
// [rings, few, halves or tf32]
#include <cuda_runtime.h>
#include <sanitizer/asan_interface.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "gemm_kernel.cuh"

#include <kf/core/gemm_few_host.cuh>

static std::mt19937 source;
static int below(int n) { return (int)(source() % (unsigned)n); }

template <class T> static double number(T v) { return (double)(float)v; }
template <> double number(double v) { return v; }
// What a product has of an element.
template <int type, class T> static double factor(T v) { return type == KFI_OF_TF32 ? (double)kf_emu_bits<float>(kf_emu_tf32((float)v)) : number(v); }

// What a test is about. splits: of few rows the blocks of a cluster, 1 << splits.
struct problem {
    int rows, cols, depth, matrices, splits;
    bool whole, bias, residual, pre, nan;
};

// A matrix among others' memory: `skip` elements into a buffer, lines `ld` apart. whole: they begin at multiples of 16 bytes.
template <class T> struct matrix {
    std::vector<T> data;
    size_t skip;
    kf_i64 ld, apart;
    int lines, length, matrices;
    bool whole;
    matrix(int lines, int length, int matrices, bool whole) : lines(lines), length(length), matrices(matrices), whole(whole)
    {
        ld = whole ? (length + 7) / 8 * 8 + 8 * below(2) : length + below(4);
        apart = (lines > 0 ? lines : 1) * ld + (whole ? 8 * below(2) : below(3));
        const size_t room = (size_t)(lines > 0 ? lines - 1 : 0) * ld + length;
        skip = whole ? 0 : (size_t)below(9); // what is allocated begins at a multiple of 16 bytes, and ends where the last line does
        data = std::vector<T>(skip + (size_t)apart * (matrices - 1) + room);
        const float fine = sizeof(T) == 4 ? 0x1p-23f : 0.0f; // floats have more bits than a half of one has
        for (T &v : data) v = T((float)(below(17) - 8) / 8.0f + (float)below(1 << 19) * fine);
    }
    ~matrix() { ASAN_UNPOISON_MEMORY_REGION(data.data(), data.size() * sizeof(T)); }
    // From here on AddressSanitizer reports who reads what is between lines: in a workspace nobody writes that. Of lines that begin anywhere, loads
    // of 16 bytes have some of it.
    void guard()
    {
        for (kf_i64 m = 0, line = 0; whole && m < matrices; line = 0, ++m)
            for (; line < lines; ++line) {
                const kf_i64 begin = m * apart + line * ld, next = line + 1 < lines ? begin + ld : m + 1 < matrices ? (m + 1) * apart : begin + length;
                T *const end = at() + begin + length;
                ASAN_POISON_MEMORY_REGION(end, (next - begin - length) * sizeof(T));
            }
    }
    T *at() { return data.data() + skip; }
    T &operator()(kf_i64 m, kf_i64 line, kf_i64 i) { return at()[m * apart + line * ld + i]; }
};

// The launch of a product by wgmma.
struct by_wgmma {
    ending *e;
    kfi_gemm *g;
    kfi_gemm_sizes sizes;
    kfi_gemm_side a, b;
    kf_i64 a_matrices[2], b_matrices[2];
};
template <int type, int layout, int products> static bool run_ring(const by_wgmma &c, kf_i64 splits, kf_result_t *result)
{
    kfi_gemm_maps maps;
    void *args[] = {c.e, c.g, &maps};
    const kfi_name name = {"product", ""};
    if (!kfi_gemm_map(&maps, c.sizes, type, layout, 1, c.a, c.a_matrices, c.b, c.b_matrices)) return false;
    maps.units = (unsigned)(c.g->row_tiles * c.g->col_tiles * c.sizes.matrices * splits);
    *result = kfi_launch(&name, KFI_ADDRESS(ring_product<type, layout, products>), dim3(1 + below(3)), kfi_tile_threads(KFI_TILE_TURNS), args,
                         nullptr, false, kfi_ring_shared(KFI_TILE_TURNS));
    return true;
}
template <int type, int layout, int products> static bool run_few(const by_wgmma &c, int share_bits, kf_result_t *result)
{
    kfi_gemm_maps maps;
    void *args[] = {c.e, c.g, &maps};
    const kfi_name name = {"product", ""};
    const int wide = kfi_few_wide(c.sizes), stages = 2 + below(3);
    if (!kfi_gemm_map(&maps, c.sizes, type, layout, 1, c.a, c.a_matrices, c.b, c.b_matrices, kfi_few_lines(c.sizes), 64)) return false;
    while (share_bits > 0 && c.sizes.depth <= KFI_RING_DEPTH << (share_bits + 1)) --share_bits;
    maps.share_bits = share_bits;
    maps.stages = stages;
    maps.left_bytes = kfi_few_left_bytes(c.sizes, layout);
    const void *const kernel = wide == 16 ? KFI_ADDRESS(few_product<type, layout, products, 16>) : KFI_ADDRESS(few_product<type, layout, products, 64>);
    *result = kfi_launch(&name, kernel, dim3((unsigned)(c.g->tiles.d * c.sizes.matrices) << share_bits), kfi_tile_threads(KFI_TILE_FEW), args,
                         nullptr, false, kfi_few_shared(wide, layout, stages), 1u << share_bits);
    return true;
}

template <int type, int layout, int products> static bool run_halves(const by_wgmma &c, kf_i64 splits, kf_result_t *result)
{
    kfi_gemm_maps maps;
    kfi_gemm_side a = c.a, b = c.b;
    kf_i64 a_matrix = c.a_matrices[0], b_matrix = c.b_matrices[0];
    void *args[] = {&a, &b, &a_matrix, &b_matrix, c.e, c.g, &maps};
    const kfi_name name = {"product", ""};
    if (!kfi_gemm_map(&maps, c.sizes, type, layout, 1, c.a, c.a_matrices, c.b, c.b_matrices)) return false;
    maps.units = (unsigned)(c.g->row_tiles * c.g->col_tiles * c.sizes.matrices * splits);
    *result = kfi_launch(&name, KFI_ADDRESS(halves_product<type, layout, products>), dim3(1 + below(3)), kfi_tile_threads(KFI_TILE_HALVES), args, nullptr, false,
                         kfi_halves_shared());
    return true;
}

template <int type, int tile, int layout, int products, int how> static bool run(const problem &p)
{
    typedef typename of_type<type>::stored stored;
    constexpr bool transposed_a = layout & KFI_A_TRANSPOSED, transposed_b = layout & KFI_B_TRANSPOSED;
    const bool whole = how == KFI_WHOLE;
    const bool whole_a = whole || below(3) == 0, whole_b = whole || below(3) == 0; // products by any loads have factors that are in the workspace
    matrix<stored> a(transposed_a ? p.depth : p.rows, transposed_a ? p.rows : p.depth, p.matrices, whole_a);
    matrix<stored> b(transposed_b ? p.depth : p.cols, transposed_b ? p.cols : p.depth, p.matrices, whole_b);
    matrix<stored> c(transposed_b ? p.depth : p.cols, transposed_b ? p.cols : p.depth, p.matrices, whole_b);
    if (c.apart != b.apart)
        c.skip = b.skip, c.ld = b.ld, c.apart = b.apart, c.data = b.data; // products have a distance between matrices in common
    for (stored &v : c.data) v = stored((float)(below(17) - 8) / 8.0f);
    matrix<stored> bias(1, p.cols, 1, p.whole), residual(p.rows, p.cols, 1, p.whole), out(p.rows, p.cols, p.matrices, p.whole), pre(out);
    for (stored &v : out.data) v = stored(77.0f);
    pre.data = out.data;
    pre.skip = out.skip;
    const int bad = p.nan && p.depth > 0 ? below(p.rows) : -1;
    if (bad >= 0) {
        const int k = below(p.depth);
        const float odd = sizeof(stored) < 4 || below(2) ? NAN : INFINITY; // infinity times a half that is 0 would be NaN
        (transposed_a ? a(p.matrices - 1, k, bad) : a(p.matrices - 1, bad, k)) = stored(odd);
    }
    a.guard(), b.guard(), c.guard();
    const kfi_gemm_sizes sizes = {p.rows, p.cols, p.depth, p.matrices, products, (int)sizeof(stored), true, whole, false};
    const int stage = tile == KFI_TILE_TURNS || tile == KFI_TILE_ROUNDED ? kfi_ring_depth(tile) : tile == KFI_TILE_HALVES ? KFI_HALVES_DEPTH : kfi_tile_depth(tile);
    kfi_gemm_choice choice = {tile, how, 1, p.depth};
    if (p.splits > 1 && p.depth > stage && tile != KFI_TILE_FEW) {
        choice.slice = ((p.depth + p.splits - 1) / p.splits + stage - 1) / stage * stage;
        choice.splits = (p.depth + choice.slice - 1) / choice.slice;
    }
    std::vector<double> parts((size_t)(p.matrices * choice.splits * products * p.rows * ((p.cols + 7) / 8 * 8)), NAN);
    kfi_gemm g;
    if (!kfi_gemm_fill(&g, sizes, choice, p.whole, parts.data())) return false;
    kfi_gemm_side of_a = {{a.at(), nullptr}, {a.ld, 0}}, of_b = {{b.at(), c.at()}, {b.ld, c.ld}};
    kf_i64 a_matrix = a.apart, b_matrix = b.apart;
    ending e = {p.bias ? bias.at() : nullptr,
                p.residual && products == 1 ? residual.at() : nullptr,
                out.at(),
                p.pre ? pre.at() : nullptr,
                residual.ld,
                out.ld,
                out.apart};
    void *args[] = {&of_a, &of_b, &a_matrix, &b_matrix, &e, &g}, *joint_args[] = {&e, &g};
    const kfi_name name = {"product", ""};
    kf_result_t result;
    const by_wgmma call = {&e, &g, sizes, of_a, of_b, {a.apart, 0}, {b.apart, b.apart}};
    if constexpr (tile == KFI_TILE_TURNS || tile == KFI_TILE_ROUNDED) {
        if (!run_ring<type, layout, products>(call, choice.splits, &result)) return false;
    } else if constexpr (tile == KFI_TILE_FEW) {
        if (!run_few<type, layout, products>(call, p.splits - 1, &result)) return false;
    } else if constexpr (tile == KFI_TILE_HALVES) {
        if (!run_halves<type, layout, products>(call, choice.splits, &result)) return false;
    } else {
        const void *kernel = KFI_ADDRESS(product<type, tile, layout, products, how>);
        result = kfi_launch(&name, kernel, dim3((unsigned)(g.row_tiles * g.col_tiles * p.matrices * choice.splits)), kfi_tile_threads(tile),
                            args, nullptr, true, kfi_gemm_shared(tile, sizeof(stored), layout));
    }
    if (result == KF_SUCCESS && choice.splits > 1) {
        const dim3 blocks = kfi_gemm_joint(&g, sizes, vector_of(type));
        result = kfi_launch(&name, KFI_ADDRESS(joint<type, products>), blocks, KFI_JOIN_THREADS, joint_args, nullptr);
    }
    const char *wrong = result == KF_SUCCESS ? nullptr : kf_emu_report();
    const double unit = sizeof(stored) == 8 ? 1e-15 : sizeof(stored) == 4 ? 1e-6 : type == KFI_OF_BF16 ? 0.00391 : 0.00049;
    std::vector<bool> covered(out.data.size());
    int row = 0, col = 0;
    double got = 0, want = 0;
    for (int m = 0; !wrong && m < p.matrices; ++m)
        for (row = 0; !wrong && row < p.rows; ++row)
            for (col = 0; !wrong && col < p.cols; ++col) {
                double sums[2] = {}, size[2] = {};
                for (int k = 0; k < p.depth; ++k) {
                    const double x = factor<type>(transposed_a ? a(m, k, row) : a(m, row, k));
                    for (int i = 0; i < products; ++i) {
                        auto &w = i ? c : b;
                        const double y = factor<type>(transposed_b ? w(m, k, col) : w(m, col, k));
                        sums[i] += x * y;
                        size[i] += std::fabs(x * y);
                    }
                }
                const double before = sums[0] + (p.bias ? number(bias(0, 0, col)) : 0);
                want = products > 1 ? before * sums[1] : (before < 0 ? 0 : before) + (e.residual ? number(residual(0, row, col)) : 0);
                const double about = std::fabs(want) + (products > 1 ? size[0] * size[1] + size[1] * 2 : size[0] + 2);
                got = number(out(m, row, col));
                covered[&out(m, row, col) - out.data.data()] = true;
                if (std::isnan(want) != std::isnan(got)) wrong = "out, NaN";
                if (!std::isnan(want) && !(std::isinf(want) && got == want) &&
                    !(std::fabs(got - want) <= unit * std::fabs(want) + 3e-7 * (sizeof(stored) == 8 ? 1e-8 : 1) * about))
                    wrong = "out";
                if (p.pre && !wrong) {
                    const double saved = number(pre(m, row, col));
                    if (std::isnan(before) || std::isinf(before) ? !(std::isnan(before) ? std::isnan(saved) : saved == before)
                                           : !(std::fabs(saved - before) <= unit * std::fabs(before) + 3e-7 * (size[0] + 2)))
                        wrong = "pre", got = saved, want = before;
                }
            }
    for (size_t i = 0; !wrong && i < covered.size(); ++i)
        if (!covered[i] && (number(out.data[i]) != 77.0 || number(pre.data[i]) != 77.0)) wrong = "something outside of out was written";
    if (!wrong) return true;
    std::printf("type %d, tile %d, layout %d, products %d, how %d: %d x %d x %d, %d matrices, %d splits, order %d, wide %d: "
                "%s at (%d, %d): %g instead of %g\n",
                type, tile, layout, products, how, p.rows, p.cols, p.depth, p.matrices, (int)choice.splits, kf_emu_order, p.whole, wrong,
                row - 1, col - 1, got, want);
    return false;
}

#define ALL_LAYOUTS(type, tile, products, how)                                                                                             \
    run<type, tile, 0, products, how>, run<type, tile, 1, products, how>, run<type, tile, 2, products, how>,                               \
        run<type, tile, 3, products, how>
static bool (*const KERNELS[])(const problem &) = {
    ALL_LAYOUTS(KFI_OF_F16, KFI_TILE_MIDDLE, 1, KFI_WHOLE),  ALL_LAYOUTS(KFI_OF_BF16, KFI_TILE_SMALL, 1, KFI_WHOLE),
    ALL_LAYOUTS(KFI_OF_BF16, KFI_TILE_MIDDLE, 1, KFI_ANY),   ALL_LAYOUTS(KFI_OF_F16, KFI_TILE_SMALL, 1, KFI_ANY),
    ALL_LAYOUTS(KFI_OF_BF16, KFI_TILE_MIDDLE, 2, KFI_WHOLE), ALL_LAYOUTS(KFI_OF_F16, KFI_TILE_SMALL, 2, KFI_ANY),
    ALL_LAYOUTS(KFI_OF_F32, KFI_TILE_WIDE, 1, KFI_WHOLE),    ALL_LAYOUTS(KFI_OF_F32, KFI_TILE_WIDE, 1, KFI_ANY),
    ALL_LAYOUTS(KFI_OF_F32, KFI_TILE_LEAST, 2, KFI_ANY),     ALL_LAYOUTS(KFI_OF_F64, KFI_TILE_LEAST, 1, KFI_WHOLE),
    ALL_LAYOUTS(KFI_OF_F64, KFI_TILE_LEAST, 1, KFI_ANY),     ALL_LAYOUTS(KFI_OF_BF16, KFI_TILE_LEAST, 1, KFI_ANY),
    ALL_LAYOUTS(KFI_OF_F16, KFI_TILE_LEAST, 1, KFI_ANY)};

// By wgmma.
#define ALL_RINGS(type, products)                                                                                                          \
    run<type, KFI_TILE_TURNS, 0, products, KFI_WHOLE>, run<type, KFI_TILE_TURNS, 1, products, KFI_WHOLE>,                                  \
        run<type, KFI_TILE_TURNS, 2, products, KFI_WHOLE>, run<type, KFI_TILE_TURNS, 3, products, KFI_WHOLE>
static bool (*const RINGS[])(const problem &) = {ALL_RINGS(KFI_OF_BF16, 1), ALL_RINGS(KFI_OF_F16, 1), ALL_RINGS(KFI_OF_BF16, 2)};

// By wgmma, few rows.
#define ALL_FEW(type, products)                                                                                                            \
    run<type, KFI_TILE_FEW, 0, products, KFI_WHOLE>, run<type, KFI_TILE_FEW, 1, products, KFI_WHOLE>
static bool (*const FEW[])(const problem &) = {ALL_FEW(KFI_OF_BF16, 1), ALL_FEW(KFI_OF_F16, 1), ALL_FEW(KFI_OF_BF16, 2),
                                               run<KFI_OF_BF16, KFI_TILE_FEW, 2, 1, KFI_WHOLE>, run<KFI_OF_F16, KFI_TILE_FEW, 3, 1, KFI_WHOLE>};

// Floats by wgmma.
static bool (*const HALVES[])(const problem &) = {ALL_LAYOUTS(KFI_OF_F32, KFI_TILE_HALVES, 1, KFI_WHOLE),
                                                  ALL_LAYOUTS(KFI_OF_F32, KFI_TILE_HALVES, 2, KFI_WHOLE)};

// The same of one part.
static bool (*const ROUNDED[])(const problem &) = {run<KFI_OF_TF32, KFI_TILE_ROUNDED, 0, 1, KFI_WHOLE>, run<KFI_OF_TF32, KFI_TILE_HALVES, 1, 1, KFI_WHOLE>,
                                                   run<KFI_OF_TF32, KFI_TILE_HALVES, 2, 1, KFI_WHOLE>,  run<KFI_OF_TF32, KFI_TILE_HALVES, 3, 1, KFI_WHOLE>,
                                                   run<KFI_OF_TF32, KFI_TILE_ROUNDED, 0, 2, KFI_WHOLE>, run<KFI_OF_TF32, KFI_TILE_HALVES, 2, 2, KFI_WHOLE>};

// Choices are right whatever they are; these are what they should be.
static bool picks()
{
    const struct {
        kfi_gemm_sizes s;
        int tile, how;
        bool split;
    } rows[] = {{{4096, 4096, 4096, 1, 1, 2, true, true, false}, KFI_TILE_MIDDLE, KFI_WHOLE, false},
                {{4096, 4096, 4095, 1, 1, 2, true, false, false}, KFI_TILE_MIDDLE, KFI_ANY, false},
                {{100, 100, 100, 1, 1, 2, true, true, false}, KFI_TILE_SMALL, KFI_WHOLE, false},
                {{4096, 4096, 4096, 1, 1, 2, false, true, false}, KFI_TILE_LEAST, KFI_ANY, false},
                {{4096, 4096, 4096, 1, 1, 4, true, true, false}, KFI_TILE_WIDE, KFI_WHOLE, false},
                {{64, 1024, 4096, 1, 1, 2, true, true, false}, KFI_TILE_SMALL, KFI_WHOLE, true},
                {{65, 1024, 4096, 1, 1, 2, true, true, false}, KFI_TILE_SMALL, KFI_WHOLE, false},
                {{768, 768, 16384, 1, 1, 2, true, true, true}, -1, KFI_WHOLE, true}};
    for (const auto &r : rows) {
        const kfi_gemm_choice c = kfi_gemm_pick(r.s);
        if ((r.tile >= 0 && c.tile != r.tile) || c.how != r.how || (c.splits > 1) != r.split || c.splits * c.slice < r.s.depth ||
            (c.splits - 1) * c.slice >= (r.s.depth > 0 ? r.s.depth : 1) || (kfi_gemm_workspace(r.s) > 0) != r.split) {
            std::printf("%lld x %lld x %lld takes tile %d by %d, %lld splits of %lld\n", r.s.rows, r.s.cols, r.s.depth, c.tile, c.how,
                        c.splits, c.slice);
            return false;
        }
    }
    kfi_gemm_choice one = {}, other = {};
    kfi_gemm_split(&one, {1, 1024, 4096, 1, 1, 2, true, true, false});
    kfi_gemm_split(&other, {64, 1024, 4096, 1, 1, 2, true, true, false});
    const kfi_gemm_sizes odd = {64, 1021, 4096, 1, 2, 2, true, true, false}; // rows of partial sums are 1,024 floats
    return one.splits == other.splits && one.slice == other.slice &&
           kfi_gemm_workspace(odd) == (size_t)kfi_gemm_pick(odd).splits * 2 * 64 * 1024 * 4 && kfi_gemm_pick(odd).splits > 1;
}

// Blocks that share a depth of few rows, and how many an SM has: one full wave of them where that can be.
static bool picks_few()
{
    const struct {
        kf_i64 matrices, cols, depth;
        int products, share_bits, blocks;
        bool loose; // up to 16 rows it has one block more
    } rows[] = {{1, 4096, 4096, 1, 1, 1, false}, {1, 14336, 4096, 1, 0, 2, false}, {1, 1536, 7168, 1, 2, 1, true}, {1, 50257, 768, 1, 0, 3, false},
                {1, 8, 64, 1, 0, 1, true},       {1, 2048, 4096, 2, 1, 1, false},  {32, 128, 512, 1, 0, 1, true},   {1, 4096, 1016, 1, 0, 1, true},
                {1, 11008, 4096, 1, 0, 2, true}};
    for (const auto &r : rows)
        for (int m = 1; m <= 64; m += 21) {
            const kfi_few_choice c = kfi_gemm_few_pick({m, r.cols, r.depth, r.matrices, r.products, 2, true, true, false});
            const int stages = kfi_few_stages(kfi_few_wide({m, 1, 1, 1, 1, 2, true, true, false}), 0, c.blocks);
            const int blocks = r.blocks + (r.loose && m <= 16);
            if (c.share_bits == r.share_bits && c.blocks == blocks && stages >= 3) continue;
            std::printf("%lld columns, a depth of %lld: 1 << %d blocks share it, %d an SM, %d stages\n", r.cols, r.depth, c.share_bits, c.blocks,
                        stages);
            return false;
        }
    return true;
}

// Of more rows than 64 their tiles are for grids that are small, whatever the other one's are.
static bool picks_small()
{
    const struct {
        kf_i64 rows, cols, depth, matrices;
        bool few;
    } rows[] = {{512, 512, 512, 1, true},    {1000, 1032, 520, 1, false}, {65, 4096, 4096, 1, true},   {4096, 4096, 4096, 1, false},
                {1024, 1024, 1024, 1, true}, {1024, 1024, 512, 1, false}, {128, 1024, 4096, 1, true}, {2048, 2048, 2048, 1, false},
                {128, 128, 64, 33, true},    {300, 8, 8, 1, true}};
    for (const auto &r : rows) {
        const kfi_gemm_sizes s = {r.rows, r.cols, r.depth, r.matrices, 1, 2, true, true, false};
        if (kfi_gemm_by_few(s, 0) == r.few && (!r.few || kfi_gemm_few_pick(s).share_bits == 0)) continue;
        std::printf("%lld matrices of %lld x %lld, a depth of %lld, take the other tile\n", r.matrices, r.rows, r.cols, r.depth);
        return false;
    }
    return true;
}

// The kernels that a word chooses. A pointer by itself: gcc 12 with -fsanitize=undefined takes element 0 of whatever `c ? A : B` has chosen, where A
// has one element.
typedef bool (*tested)(const problem &);
static int kernels_of(char word, const tested **kernels)
{
#define CHOOSE(letter, table) \
    if (word == letter) return *kernels = table, (int)(sizeof table / sizeof *table)
    CHOOSE('r', RINGS);
    CHOOSE('f', FEW);
    CHOOSE('h', HALVES);
    CHOOSE('t', ROUNDED);
    CHOOSE('\0', KERNELS);
    return 0;
}

int main(int count, char **words)
{
    const char word = count > 3 ? words[3][0] : '\0';
    const bool rings = count > 3;
    const tested *run_kernel = nullptr;
    const int cases = count > 1 ? std::atoi(words[1]) : 64, kernels = kernels_of(word, &run_kernel);
    if (kernels == 0) return 2;
    source.seed(count > 2 ? (unsigned)std::atoi(words[2]) : 1);
    kf_emu_aborts = 0;
    if (!picks() || !picks_few() || !picks_small()) return 1;
    for (int i = 0; i < cases; ++i) {
        kf_emu_order = (i / kernels + i) % 3;
        kf_emu_seed = (unsigned long long)i + 1;
        const bool big = rings || below(4) == 0;
        problem p = {1 + below(big ? 300 : 130),
                     1 + below(big ? 300 : 130),
                     below(9) == 0 ? 0 : 1 + below(big ? 300 : 130),
                     1 + below(5) / 3,
                     1 + below(4),
                     false,
                     false,
                     false,
                     false,
                     false};
        if (rings) { // around the ring twice and more
            p.depth = 1 + below(800);
        }
        p.whole = below(2), p.bias = below(2), p.residual = below(2), p.pre = below(2), p.nan = below(3) == 0;
        if (word == 'f') p.rows = 1 + below(i % 3 == 0 ? 16 : i % 3 == 1 ? 64 : 200), p.splits = 1 + below(3);
        if (!run_kernel[i % kernels](p)) return 1;
    }
    if (kf_emu_conflicts > 0) {
        std::printf("%ld matrices come from banks of which some are the same\n", kf_emu_conflicts);
        return 1;
    }
    std::puts("ok");
    return 0;
}
