// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/wgmma.cuh: one function per instruction of warpgroup products (wgmma, sm_90a): 64 x n
// x 16 of 2-byte elements, or 64 x 128 x 8 of TF32, with float accumulators.
//
// wgmma is asynchronous: operands and accumulators must not be touched between the first product
// and kfi_wgmma_wait. Called by all 128 threads of a warpgroup.
#ifndef KF_CORE_PTX_WGMMA_CUH
#define KF_CORE_PTX_WGMMA_CUH

#include "kf/core/product_types.cuh"
#include "kf/core/ptx/hopper.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// wgmma.fence: needed before the first product, and after writes to registers that a product reads
// or accumulates into.
KFI_DEVICE void kfi_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KFI_DEVICE void kfi_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `most` of the committed groups are pending. branch: 1 in one of two branches
// that both wait; the compiler would merge the two waits and move them before the branch.
template <int most, int branch = 0> KFI_DEVICE void kfi_wgmma_wait()
{
    if constexpr (branch)
        asm volatile("wgmma.wait_group.sync.aligned %0; // in a branch" ::"n"(most) : "memory");
    else
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(most) : "memory");
}
// Makes an accumulator opaque after the wait, so that the compiler moves no use of it up.
KFI_DEVICE void kfi_wgmma_opaque(float &v) { asm volatile("" : "+f"(v)::"memory"); }
// The same for an operand in registers before the fence, so that no conversion sinks below it.
KFI_DEVICE void kfi_wgmma_opaque(unsigned &v) { asm volatile("" : "+r"(v)::"memory"); }

// d = a . b, or d += a . b if add. Thread t holds row 16 (t / 32) + t % 32 / 4, columns 8 j +
// 2 (t % 4) and the next, in d[4 j] and d[4 j + 1]; d[4 j + 2] and d[4 j + 3] hold the row 8 below.
// Operands are descriptors of kfi_wgmma_descriptor; transposed_a and transposed_b mark MN-major
// ones. a in registers has the layout of kfi_mma, 16 rows per warp.
#define KFI_D8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define KFI_D32(i) KFI_D8(i), KFI_D8(i + 8), KFI_D8(i + 16), KFI_D8(i + 24)
#define KFI_NEW8(i)                                                                                \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]),    \
        "=f"(d[i + 6]), "=f"(d[i + 7])
#define KFI_NEW32(i) KFI_NEW8(i), KFI_NEW8(i + 8), KFI_NEW8(i + 16), KFI_NEW8(i + 24)
#define KFI_R0                                                                                     \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "             \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KFI_R32                                                                                    \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, "        \
    "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KFI_R64                                                                                    \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "        \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KFI_R96                                                                                    \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, "                                                                                       \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// PTX statements differ in the number of operands: one per width; p is the instruction with its
// types.
#define KFI_WGMMA_SHARED_16(p)                                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %10, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n16k16.f32." p " {%0, %1, %2, "            \
                 "%3, %4, %5, %6, %7}, %8, %9, add, 1, 1, %11, %12;\n\t}"                          \
                 : KFI_D8(0)                                                                       \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_SHARED_64(p)                                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %34, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32." p " {" KFI_R0                 \
                 "}, %32, %33, add, 1, 1, %35, %36;\n\t}"                                          \
                 : KFI_D32(0)                                                                      \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_SHARED_80(p)                                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %42, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n80k16.f32." p " {" KFI_R0                 \
                 ", %32, %33, %34, %35, %36, %37, %38, %39"                                        \
                 "}, %40, %41, add, 1, 1, %43, %44;\n\t}"                                          \
                 : KFI_D32(0), KFI_D8(32)                                                          \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_SHARED_96(p)                                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %50, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n96k16.f32." p " {" KFI_R0                 \
                 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "   \
                 "%47}, %48, %49, add, 1, 1, %51, %52;\n\t}"                                       \
                 : KFI_D32(0), KFI_D8(32), KFI_D8(40)                                              \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_REGISTERS_64(p)                                                                  \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %37, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32." p " {" KFI_R0                 \
                 "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n\t}"                              \
                 : KFI_D32(0)                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),                   \
                   "n"(transposed_b))
#define KFI_WGMMA_SHARED_128(p)                                                                    \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %66, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 "}, %64, %65, add, 1, 1, %67, %68;\n\t}"                                          \
                 : KFI_D32(0), KFI_D32(32)                                                         \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_FIRST_64(p)                                                                      \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 0, "                                    \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32." p " {" KFI_R0                 \
                 "}, %32, %33, add, 1, 1, %34, %35;\n\t}"                                          \
                 : KFI_NEW32(0)                                                                    \
                 : "l"(a), "l"(b), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_FIRST_128(p)                                                                     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 0, "                                    \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 "}, %64, %65, add, 1, 1, %66, %67;\n\t}"                                          \
                 : KFI_NEW32(0), KFI_NEW32(32)                                                     \
                 : "l"(a), "l"(b), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_SHARED_TF32_128()                                                                \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %66, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" KFI_R0             \
                 ", " KFI_R32 "}, %64, %65, add, 1, 1;\n\t}"                                       \
                 : KFI_D32(0), KFI_D32(32)                                                         \
                 : "l"(a), "l"(b), "r"(add))
#define KFI_WGMMA_REGISTERS_128(p)                                                                 \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %69, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n\t}"                              \
                 : KFI_D32(0), KFI_D32(32)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),                   \
                   "n"(transposed_b))
#define KFI_WGMMA_SHARED_176(p)                                                                    \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %90, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n176k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "   \
                 "%79, %80, %81, %82, %83, %84, %85, %86, %87"                                     \
                 "}, %88, %89, add, 1, 1, %91, %92;\n\t}"                                          \
                 : KFI_D32(0), KFI_D32(32), KFI_D8(64), KFI_D8(72), KFI_D8(80)                     \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_SHARED_192(p)                                                                    \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %98, "                                  \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n192k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 ", " KFI_R64 "}, %96, %97, add, 1, 1, %99, %100;\n\t}"                            \
                 : KFI_D32(0), KFI_D32(32), KFI_D32(64)                                            \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_REGISTERS_192(p)                                                                 \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %101, "                                 \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n192k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 ", " KFI_R64 "}, {%96, %97, %98, %99}, %100, add, 1, 1, %102;\n\t}"               \
                 : KFI_D32(0), KFI_D32(32), KFI_D32(64)                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),                   \
                   "n"(transposed_b))
#define KFI_WGMMA_SHARED_256(p)                                                                    \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, "                                 \
                 "0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32." p " {" KFI_R0 ", " KFI_R32   \
                 ", " KFI_R64 ", " KFI_R96 "}, %128, %129, add, 1, 1, %131, %132;\n\t}"            \
                 : KFI_D32(0), KFI_D32(32), KFI_D32(64), KFI_D32(96)                               \
                 : "l"(a), "l"(b), "r"(add), "n"(transposed_a), "n"(transposed_b))
#define KFI_WGMMA_REGISTERS_256(p)                                                                 \
    asm volatile(                                                                                  \
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %133, "                                          \
        "0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32." p " {" KFI_R0 ", " KFI_R32            \
        ", " KFI_R64 ", " KFI_R96 "}, {%128, %129, %130, %131}, %132, add, 1, 1, %134;\n\t}"       \
        : KFI_D32(0), KFI_D32(32), KFI_D32(64), KFI_D32(96)                                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(transposed_b))

template <int n, int type, int transposed_a = 0, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma(float *d, unsigned long long a, unsigned long long b, int add)
{
    static_assert(n == 16 || n == 64 || n == 80 || n == 96 || n == 128 || n == 176 || n == 192 ||
                      n == 256,
                  "kf: a warpgroup product has 16, 64, 80, 96, 128, 176, 192 or 256 columns");
    static_assert(type != KFI_OF_TF32 || (n == 128 && !transposed_a && !transposed_b),
                  "kf: tf32 operands are K-contiguous and have 128 columns");
    constexpr bool bf16 = type == KFI_OF_BF16;
    constexpr bool f16 = type == KFI_OF_F16;
    if constexpr (type == KFI_OF_TF32) KFI_WGMMA_SHARED_TF32_128();
    if constexpr (n == 16 && bf16) KFI_WGMMA_SHARED_16("bf16.bf16");
    if constexpr (n == 16 && f16) KFI_WGMMA_SHARED_16("f16.f16");
    if constexpr (n == 64 && bf16) KFI_WGMMA_SHARED_64("bf16.bf16");
    if constexpr (n == 80 && bf16) KFI_WGMMA_SHARED_80("bf16.bf16");
    if constexpr (n == 80 && f16) KFI_WGMMA_SHARED_80("f16.f16");
    if constexpr (n == 96 && bf16) KFI_WGMMA_SHARED_96("bf16.bf16");
    if constexpr (n == 96 && f16) KFI_WGMMA_SHARED_96("f16.f16");
    if constexpr (n == 64 && f16) KFI_WGMMA_SHARED_64("f16.f16");
    if constexpr (n == 128 && bf16) KFI_WGMMA_SHARED_128("bf16.bf16");
    if constexpr (n == 128 && f16) KFI_WGMMA_SHARED_128("f16.f16");
    if constexpr (n == 176 && bf16) KFI_WGMMA_SHARED_176("bf16.bf16");
    if constexpr (n == 176 && f16) KFI_WGMMA_SHARED_176("f16.f16");
    if constexpr (n == 192 && bf16) KFI_WGMMA_SHARED_192("bf16.bf16");
    if constexpr (n == 192 && f16) KFI_WGMMA_SHARED_192("f16.f16");
    if constexpr (n == 256 && bf16) KFI_WGMMA_SHARED_256("bf16.bf16");
    if constexpr (n == 256 && f16) KFI_WGMMA_SHARED_256("f16.f16");
}
// d = a . b, for the first product of a sum in a loop. d is an output only: the accumulators of the
// iteration before do not stay live.
template <int n, int type, int transposed_a = 0, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma_first(float *d, unsigned long long a, unsigned long long b)
{
    static_assert(n == 64 || n == 128, "kf: a first warpgroup product has 64 or 128 columns");
    constexpr bool bf16 = type == KFI_OF_BF16;
    if constexpr (n == 64 && bf16) KFI_WGMMA_FIRST_64("bf16.bf16");
    if constexpr (n == 64 && !bf16) KFI_WGMMA_FIRST_64("f16.f16");
    if constexpr (n == 128 && bf16) KFI_WGMMA_FIRST_128("bf16.bf16");
    if constexpr (n == 128 && !bf16) KFI_WGMMA_FIRST_128("f16.f16");
}
template <int n, int type, int transposed_b = 0>
KFI_DEVICE void kfi_wgmma_registers(float *d, const unsigned *a, unsigned long long b, int add)
{
    static_assert(n == 64 || n == 128 || n == 192 || n == 256,
                  "kf: a warpgroup product with A in registers has 64, 128, 192 or 256 columns");
    constexpr bool bf16 = type == KFI_OF_BF16;
    if constexpr (n == 64 && bf16) KFI_WGMMA_REGISTERS_64("bf16.bf16");
    if constexpr (n == 64 && !bf16) KFI_WGMMA_REGISTERS_64("f16.f16");
    if constexpr (n == 128 && bf16) KFI_WGMMA_REGISTERS_128("bf16.bf16");
    if constexpr (n == 128 && !bf16) KFI_WGMMA_REGISTERS_128("f16.f16");
    if constexpr (n == 192 && bf16) KFI_WGMMA_REGISTERS_192("bf16.bf16");
    if constexpr (n == 192 && !bf16) KFI_WGMMA_REGISTERS_192("f16.f16");
    if constexpr (n == 256 && bf16) KFI_WGMMA_REGISTERS_256("bf16.bf16");
    if constexpr (n == 256 && !bf16) KFI_WGMMA_REGISTERS_256("f16.f16");
}
// Rounds to TF32 (11 significant bits); returns the bits of a float.
KFI_DEVICE unsigned kfi_tf32(float x)
{
    unsigned found;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
    return found;
}
// TF32 product with N = 128 and K = 8: d = a . b, or d += a . b if add. a is in registers: a[0] of
// thread t holds row 16 (t / 32) + t % 32 / 4, k = t % 4; a[1] the row 8 below; a[2] and a[3] both
// rows at k = t % 4 + 4. b is K-major.
KFI_DEVICE void kfi_wgmma_tf32(float *d, const unsigned *a, unsigned long long b, int add)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %69, "
                 "0;\n\twgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" KFI_R0 ", " KFI_R32
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1;\n\t}"
                 : KFI_D32(0), KFI_D32(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#undef KFI_WGMMA_SHARED_16
#undef KFI_WGMMA_SHARED_64
#undef KFI_WGMMA_SHARED_80
#undef KFI_WGMMA_SHARED_96
#undef KFI_WGMMA_REGISTERS_64
#undef KFI_WGMMA_SHARED_128
#undef KFI_WGMMA_SHARED_TF32_128
#undef KFI_WGMMA_REGISTERS_128
#undef KFI_WGMMA_SHARED_176
#undef KFI_WGMMA_SHARED_192
#undef KFI_WGMMA_REGISTERS_192
#undef KFI_WGMMA_SHARED_256
#undef KFI_WGMMA_REGISTERS_256
#undef KFI_WGMMA_FIRST_64
#undef KFI_WGMMA_FIRST_128
#undef KFI_NEW8
#undef KFI_NEW32
#undef KFI_D8
#undef KFI_D32
#undef KFI_R0
#undef KFI_R32
#undef KFI_R64
#undef KFI_R96
#endif

#endif
