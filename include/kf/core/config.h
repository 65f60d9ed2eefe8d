/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/config.h: every switch of the library, and the words that differ between compilers.

   KF_BATCH_INVARIANT: affects products of matrices in CUDA. Defined, nothing of a row's results or
   of its gradient depends on how many rows there are, bit for bit: blocks do not share the depth of
   few rows. Of f16 and bf16 all kernels of tensor cores then add up in one order, those of sm_90a
   too; floats do where alignment is the same, which in tn and tt the rows decide
   (docs/families/matmul.md). Default: not defined, up to 64 rows are a class of their own. Cost:
   where few rows have few columns and a long depth, up to 4 times as long.

   KF_OMP_MIN: affects C launchers. Elements below which a call stays on the calling thread.
   Default: 32768. Cost: none.

   KF_ON_LAUNCH: affects CUDA launchers. KF_ON_LAUNCH(function, kernel, config) runs on the calling
   thread before each launch: the function's name, the kernel's address on the host and the
   cudaLaunchConfig_t *, which say what schedule was chosen (examples/06_launches.cu). With
   KF_LOAD_KERNEL: the kernel's name and the CUlaunchConfig *. Default: nothing. Cost: none.

   KF_LIST_BYTES: affects functions over lists of tensors in CUDA. Maximum bytes of a table of
   tensors among a launch's parameters. Default: 32256, which CUDA 12.1 and its drivers launch on
   sm_70 and newer; 3584 for older drivers. Cost of less: more launches of long lists.

   KF_LOAD_KERNEL: affects CUDA headers in files that nvcc does not compile; in others nothing.
   Defined before the first of them, the host's C++ compiler compiles the launchers over CUDA's
   driver API, and a kernel is what KF_LOAD_KERNEL(name, function) finds: a CUresult, and *function,
   a CUfunction of the current context. name is what nvrtcAddNameExpression is asked for. Called
   before each launch, on the calling thread, so it keeps what it has found (docs/nvrtc.md).
   Default: such a file is refused. Cost: one call a launch.

   KF_DRIVER_CALL: affects files with KF_LOAD_KERNEL. KF_DRIVER_CALL(function) is what is called
   for a function of the driver API, by programs that look them up in libcuda themselves. Default:
   the function, which the program is linked with (-lcuda). Cost: none.

   KF_EARLY_WEIGHTS: affects linear layers of up to 64 rows in CUDA, in code for sm_90a. Defined, a
   kernel that is launched while the one before it ends reads its weights at once: for programs in
   which no kernel of the stream that may still run writes them. Default: not defined, the kernel
   waits first. Cost of the default: 1 to 2 us a call.

   KF_EMULATE: affects CUDA headers. The host's C++ compiler compiles kernels and launchers in one
   pass, for an emulation that runs them on the CPU: defined by that of tests/emu, in its
   cuda_runtime.h, which comes before kf's headers; its own core/ptx replaces the one here. Default:
   off.

   KF_PARALLEL_FOR: affects C launchers. KF_PARALLEL_FOR(count, fn, ctx) runs fn(ctx, i) for 0 <= i
   < count in any order, on any threads. Default: OpenMP where it is on, a plain loop otherwise.
   Results do not depend on it.

   KF_NODISCARD: affects all launchers. What tells the compiler to warn where a call's result is
   not looked at: its errors would be lost. Default: [[nodiscard]], or gcc's and clang's attribute
   in C. Defined as nothing, nobody is warned. Cost: none.

   KF_HEAD_DIMS: affects attention in CUDA. The head dimensions for which a file compiles kernels,
   1 + 2 + 4 + 8: 1 up to 64, 2 up to 128, 4 up to 192 with values of up to 128, 8 up to 256. A call
   takes the smallest one that fits; KF_ERROR_UNSUPPORTED where there is none. Default: 15. Cost:
   none; each one left out is two kernels or more less to compile.

   KF_SCHEDULES: affects products of matrices and attention in CUDA. Which kernels a file compiles,
   1 + 2 + 4 + 8: 1 those that read from any address, 2 those of mma.sync and of fused multiply-adds
   that need copies of 16 bytes, 4 those of sm_90a, 8 two more tiles of those for small results (a
   single wave). A call takes what there is; KF_ERROR_UNSUPPORTED where there is nothing: without 1
   for rows that begin anywhere, with 4 alone for all that wgmma does not do. Default: 15. Cost:
   none; each kernel left out is one less to compile.

   KF_STREAM_MIN: affects C launchers compiled for AVX or more. Bytes from which on an output goes
   to memory past the caches, unless it is an input too. Default: 16 MiB; more where the last cache
   is larger and the next function reads the result at once. Results do not depend on it.

   KF_ALLOW_FAST_MATH: affects all launchers. Accepts what gives up NaN, infinities, subnormal
   numbers and the last digits: -ffast-math, and nvcc's --use_fast_math. Not what makes the digits
   wrong: gcc needs -fno-associative-math besides, and x87 arithmetic is refused in any case
   (core/math.h). Default: refused. */
#ifndef KF_CORE_CONFIG_H
#define KF_CORE_CONFIG_H

/* C++14 in the compiler's own dialect suffices for the C headers; it is still clang++'s default. */
#if defined(__cplusplus) && !defined(_MSVC_LANG)
#if __cplusplus < 201402L ||                                                                       \
    (__cplusplus < 201703L && (defined(__STRICT_ANSI__) || defined(__CUDACC__)))
#define KFI_TOO_OLD 1
#endif
#elif defined(_MSVC_LANG) ? _MSVC_LANG < 201703L : !defined(__STDC_VERSION__)
#define KFI_TOO_OLD 1
#elif !defined(__cplusplus) && __STDC_VERSION__ < 201112L
#define KFI_TOO_OLD 1
#endif
#ifdef KFI_TOO_OLD
#error "kf: needs C11 or C++17: compile with -std=c11, -std=c++17 or a later one"
#define KFI_STOP                                                                                   \
    "what follows would be thousands of errors" /* a missing file ends the compilation */
#include KFI_STOP
#endif

/* C++ puts the attribute on the result type: repeated on each launcher it would cost compile time.
 */
#if defined(__cplusplus) &&                                                                        \
    (__cplusplus >= 201703L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201703L))
#ifndef KF_NODISCARD
#define KF_NODISCARD [[nodiscard]]
#endif
#define KFI_RESULT_TYPE KF_NODISCARD
#define KFI_LAUNCHER
#else
#ifndef KF_NODISCARD
#if defined(__GNUC__)
#define KF_NODISCARD __attribute__((warn_unused_result))
#else
#define KF_NODISCARD
#endif
#endif
#define KFI_RESULT_TYPE
#define KFI_LAUNCHER KF_NODISCARD
#endif

#ifndef KF_OMP_MIN
#define KF_OMP_MIN 32768
#endif
#ifndef KF_LIST_BYTES
#define KF_LIST_BYTES 32256
#endif
#ifndef KF_HEAD_DIMS
#define KF_HEAD_DIMS 15
#endif
#ifndef KF_SCHEDULES
#define KF_SCHEDULES 15
#endif
#ifndef KF_STREAM_MIN
#define KF_STREAM_MIN (16 << 20)
#endif

#if defined(KF_LOAD_KERNEL) && !defined(__CUDACC__) && !defined(__CUDACC_RTC__) &&                 \
    !defined(KF_EMULATE)
#define KFI_DRIVER 1 /* kernels are loaded by name */
#endif
#ifndef KF_DRIVER_CALL
#define KF_DRIVER_CALL(function) function
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KFI_DEVICE static __device__ __forceinline__
#define KFI_DEVICE_APART static __device__ __noinline__
#define KFI_BOTH static __host__ __device__ __forceinline__
#elif defined(KF_EMULATE)
#define KFI_DEVICE static inline __attribute__((unused))
#define KFI_DEVICE_APART static __attribute__((unused, noinline))
#define KFI_BOTH KFI_DEVICE
#else
#define KFI_BOTH KFI_INLINE
#endif

#ifndef KFI_INLINE
#if defined(__GNUC__)
#define KFI_INLINE static inline __attribute__((always_inline, unused))
#elif defined(_MSC_VER)
#define KFI_INLINE static __forceinline
#else
#define KFI_INLINE static inline
#endif
#endif

/* KFI_C_BEGIN and KFI_C_END enclose all arithmetic of the C headers. Sums keep the order in which
 * they are written, even if clang may reorder them (-funsafe-math-optimizations, which no macro
 * reports): reordering would undo the rounding by a large constant that is added and subtracted.
 * They also silence clang's warning about loops that it cannot vectorise, those that call libm; it
 * appears even for system headers. clang 14 ignores the order after a minus sign, so the code says
 * `magic - t`, not `-(t - magic)`. On processors other than x86, clang cannot restore the user's
 * flags and keeps the order. */
#if defined(__clang__) && __clang_major__ >= 13 && !defined(__CUDACC__)
#if defined(__x86_64__) || defined(__i386__)
#define KFI_C_FLAGS_BEGIN _Pragma("float_control(push)") _Pragma("clang fp reassociate(off)")
#define KFI_C_FLAGS_END _Pragma("float_control(pop)")
#else
#define KFI_C_FLAGS_BEGIN _Pragma("clang fp reassociate(off)")
#define KFI_C_FLAGS_END
#endif
#define KFI_C_BEGIN                                                                                \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wpass-failed\"")         \
        KFI_C_FLAGS_BEGIN
#define KFI_C_END KFI_C_FLAGS_END _Pragma("clang diagnostic pop")
#else
#define KFI_C_BEGIN
#define KFI_C_END
#endif

/* Host functions of the headers: no cost if unused, and no warning. */
#if defined(__GNUC__)
#define KFI_HOST static inline __attribute__((unused))
#else
#define KFI_HOST static inline
#endif

/* Functions that run once per call, never in a loop: small code that compiles quickly in every file
 * that calls a launcher. */
#if defined(__GNUC__)
#define KFI_SMALL __attribute__((unused, cold))
#else
#define KFI_SMALL
#endif
#define KFI_ONCE static inline KFI_SMALL
/* Keeps a function out of line: its parameters decide how much of an array it reads, and gcc would
 * warn about a caller whose array is shorter. */
#if defined(__GNUC__)
#define KFI_APART __attribute__((noinline))
#else
#define KFI_APART
#endif

/* A function that is compiled only if it is called: nvcc emits every non-template kernel, and warns
 * about every unused static function. Calls inside that name kfi_lazy are not even looked up
 * before: saves 0.15 s per 2,800. */
#define KF_FN template <int kfi_lazy = 0> static inline
/* Separate the passes of nvcc: host passes skip kernel bodies, device passes skip the launchers'
 * checks. This saves a tenth of the compile time of the umbrella header. */
#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__) || defined(KF_EMULATE)
#define KFI_DEVICE_PASS 1
#define KFI_ON_DEVICE(...) (__VA_ARGS__)
#else
#define KFI_ON_DEVICE(...) 0 /* the host sees a device function's name alone */
#endif
#ifdef KFI_DEVICE_PASS
#define KFI_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#else
#define KFI_BOUNDS(...) /* the host compiler would parse several hundred of them for nothing */
#endif
#if !defined(KFI_DEVICE_PASS) || defined(KF_EMULATE)
#define KFI_HOST_PASS 1
#endif
/* nvcc's host pass turns a kernel into a stub that a launch calls. */
#if defined(KFI_HOST_PASS) && !defined(KFI_DEVICE_PASS) && !defined(KFI_DRIVER)
#define KFI_STUBS 1
#endif
/* nvcc's device pass compiles what the program calls; from a launcher it needs only the kernel
 * names. */
#if defined(KFI_DEVICE_PASS) && !defined(KFI_HOST_PASS) && !defined(__CUDACC_RTC__)
#define KFI_LAUNCHER_NAMES 1
#endif
/* An address of any type: a kernel's or a tensor's. Headers have thousands, and a name is shorter
 * to compile than its definition. */
typedef const void *kfi_address;
/* The kernel argument of a launch. KFI_STATE_ADDRESS: for kernels that have kfi_from_state among
 * their template arguments. */
#if defined(KFI_DRIVER)
#define KFI_ADDRESS(...)                                                                           \
    [] {                                                                                           \
        static const kfi_instance found = {#__VA_ARGS__, kfi_act, 0};                              \
        return (const void *)&found;                                                               \
    }()
#define KFI_STATE_ADDRESS(...)                                                                     \
    [] {                                                                                           \
        static const kfi_instance found = {#__VA_ARGS__, kfi_act, kfi_from_state};                 \
        return (const void *)&found;                                                               \
    }()
#elif !defined(KFI_ADDRESS) /* an emulation has its own */
/* Without arguments: there are thousands of uses. */
#define KFI_ADDRESS (kfi_address)
#endif
#ifndef KFI_STATE_ADDRESS
#define KFI_STATE_ADDRESS KFI_ADDRESS
#endif
#ifdef __CUDACC_RTC__
#define KFI_KERNEL __global__ /* NVRTC finds a kernel by name only if it is not static */
#else
#define KFI_KERNEL static __global__
#endif

#endif
