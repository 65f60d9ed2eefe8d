// SPDX-License-Identifier: Apache-2.0
// Implements the CUDA calls of kf's runtime without a GPU: two devices over malloc, and streams
// that execute only when a call waits for them, which reveals missing order. A stream fills memory
// with 0xDD before it frees it; copies from and to freed memory abort the process.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

struct CUstream_st {
    std::deque<std::function<void()>> work;
    unsigned flags;
    int priority, device;
};
struct CUevent_st {
    long recorded, done; // counts
    CUstream_st *of;
};
struct CUmemPoolHandle_st {
    size_t used, reserved;
    int device;
};
struct block {
    size_t bytes;
    CUmemPoolHandle_st *pool;
};

static int current, pools, failing, capturing;
static cudaError_t last; // only errors of an event that does not exist yet are kept
static std::string log_;
static std::map<char *, block> living;
static CUstream_st defaults[2] = {{{}, 0, 0, 0}, {{}, 0, 0, 1}};
static std::vector<CUstream_st *> streams;

extern "C" {
// Controls of the test: number of live pools, number of calls, and the call that must fail (counted
// from now, 0: none).
int fake_pools() { return pools; }
size_t fake_living() { return living.size(); } // allocations
int fake_current() { return current; }
const char *fake_log() { return log_.c_str(); }
void fake_clear() { log_.clear(); }
void fake_fail(int at) { failing = at; }
void fake_capture(int is) { capturing = is; }
}
static cudaError_t called(const char *name)
{
    log_ += std::string(name) + " ";
    return failing && --failing == 0 ? cudaErrorUnknown : cudaSuccess;
}
#define CALLED                                                                                     \
    if (const cudaError_t status = called(__func__)) return status
static CUstream_st *of(cudaStream_t s) { return s ? s : &defaults[current]; }
static void run(CUstream_st *s)
{
    while (!s->work.empty()) {
        const auto one = s->work.front();
        s->work.pop_front();
        one();
    }
}
static void check(const void *p, size_t bytes, const char *what)
{
    for (auto &[at, b] : living)
        if ((const char *)p >= at && (const char *)p < at + b.bytes) {
            if ((const char *)p + bytes <= at + b.bytes) return;
            std::fprintf(stderr, "%s beyond an allocation\n", what), std::abort();
        }
    for (const char *c = (const char *)p; c < (const char *)p + bytes; ++c)
        if ((unsigned char)*c != 0xDD) return; // host memory
    std::fprintf(stderr, "%s of memory that was freed\n", what), std::abort();
}

cudaError_t cudaGetDeviceCount(int *n)
{
    CALLED;
    return *n = 2, cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) { return *d = current, cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return current = d, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr, int)
{
    CALLED;
    return *v = 1, cudaSuccess;
}
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    CALLED;
    std::memset(p, 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "a GPU, number %d", d);
    p->totalGlobalMem = 1u << 30, p->multiProcessorCount = 7, p->major = 9;
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t) { return "as the test asked for"; }

cudaError_t cudaMemPoolCreate(cudaMemPool_t *p, const cudaMemPoolProps *props)
{
    CALLED;
    ++pools;
    return *p = new CUmemPoolHandle_st{0, 0, props->location.id}, cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t)
{
    --pools; // like CUDA's, it lives until a stream has freed its last allocation
    CALLED;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    CALLED;
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, cudaMemPoolAttr, void *v)
{
    CALLED;
    return *(uint64_t *)v = p->reserved, cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t p, size_t)
{
    CALLED;
    return p->reserved = p->used, cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void **p, size_t bytes, cudaMemPool_t pool, cudaStream_t)
{
    CALLED;
    if (bytes > (1u << 30)) return cudaErrorMemoryAllocation;
    char *const made = (char *)std::aligned_alloc(256, bytes);
    living[made] = {bytes, pool};
    pool->used += bytes;
    if (pool->used > pool->reserved) pool->reserved = pool->used;
    return *p = made, cudaSuccess;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s)
{
    CALLED;
    of(s)->work.push_back([p] {
        const auto found = living.find((char *)p);
        if (found == living.end()) std::fprintf(stderr, "freed twice\n"), std::abort();
        std::memset(p, 0xDD,
                    found->second.bytes); // not freed, so it stays readable
        found->second.pool->used -= found->second.bytes;
        living.erase(found);
    });
    return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
    CALLED;
    return std::free(p), cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CALLED;
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
    CALLED;
    log_ += "(" + std::to_string(flags) + " " + std::to_string(priority) + " on " +
            std::to_string(current) + ") ";
    streams.push_back(*s = new CUstream_st{{}, flags, priority, current});
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t)
{
    CALLED;
    return cudaSuccess;
} // its queued work continues, so it is never freed
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    CALLED;
    return run(of(s)), cudaSuccess;
}
cudaError_t cudaDeviceSynchronize()
{
    CALLED;
    for (CUstream_st *s : streams)
        if (s->device == current) run(s);
    return run(&defaults[current]), cudaSuccess;
}

#undef cudaEventCreate
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    CALLED;
    return *e = new CUevent_st{0, 0, nullptr}, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t)
{
    CALLED;
    return cudaSuccess;
} // like in CUDA, streams may still wait for it
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    CALLED;
    const long number = ++e->recorded;
    e->of = of(s);
    e->of->work.push_back([e, number] { e->done = number; });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    CALLED;
    const long number = e->recorded;
    CUstream_st *const other = e->of;
    if (other)
        of(s)->work.push_back([e, number, other] {
            if (e->done < number) run(other);
        });
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status)
{
    CALLED;
    return *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone,
           cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    CALLED;
    return e->done == e->recorded ? cudaSuccess : last = cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    CALLED;
    return run(e->of), cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    CALLED;
    return a->done != a->recorded || b->done != b->recorded ? last = cudaErrorNotReady
                                                            : (*ms = 2.5f, cudaSuccess);
}
cudaError_t cudaGetLastError()
{
    const cudaError_t found = last;
    return last = cudaSuccess, found;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t rows, cudaMemcpyKind, cudaStream_t s)
{
    CALLED;
    if (to_pitch < width || from_pitch < width) return cudaErrorInvalidPitchValue;
    of(s)->work.push_back([=] {
        for (size_t i = 0; i < rows; ++i) {
            char *const d = (char *)to + i * to_pitch;
            const char *const c = (const char *)from + i * from_pitch;
            check(d, width, "a write"), check(c, width, "a read");
            std::memcpy(d, c, width);
        }
    });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t s)
{
    CALLED;
    of(s)->work.push_back([=] {
        check(to, bytes, "a write"), check(from, bytes, "a read"), std::memcpy(to, from, bytes);
    });
    return cudaSuccess;
}
