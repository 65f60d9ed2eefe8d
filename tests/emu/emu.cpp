/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a launch: its blocks one after the other, a block's threads as fibers that change places at barriers and warp words. The
   blocks of a cluster run at the same time: their threads all change places with each other.

   In what order they run is kf_emu_order's choice, and no result may depend on it. A block ends when all its threads have
   returned. When no thread can go on before that, some barrier or warp word was not reached by all that it waits for: the
   report lists the threads and where they are. A barrier waits for every thread of the block, returned ones too, which is
   stricter than the hardware and what the language promises. A cluster's barrier waits for those alone that have not returned,
   as PTX has it.

   This file is compiled without sanitizers; KF_EMU_ASAN and KF_EMU_TSAN tell it to announce its fibers to theirs. For
   ThreadSanitizer every thread of every block is a fiber of its own, ordered with others by the launch and by barriers alone. */
#include "cuda_runtime.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(KF_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)1 << 18)
#else
#define STACK_BYTES ((size_t)1 << 16)
#endif
#if defined(KF_EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#define MOST_THREADS 1024
#define MOST_BLOCKS 8 /* of a cluster */
#define USUAL_DYNAMIC (48 << 10) /* of a kernel that nobody asked more for */
#define MOST_DYNAMIC (227 << 10)
#define WARP 32

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" {
int kf_emu_order, kf_emu_sms = 132, kf_emu_fill = 1056, kf_emu_failure, kf_emu_aborts = 1;
unsigned long long kf_emu_seed = 1;
long kf_emu_launches;
}

/* ---- fibers */

/* Saves what a call must keep, on the stack that is left, and goes on with the other. */
extern "C" void kf_emu_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl kf_emu_switch\n.hidden kf_emu_switch\n.type kf_emu_switch,@function\nkf_emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size kf_emu_switch,.-kf_emu_switch\n");
#else
#error "the emulation switches stacks in assembler, written for x86-64"
#endif

enum { NEW, READY, AT_BARRIER, AT_WARP, AT_CLUSTER, WRONG, DONE };
static const char *const STATES[] = {"has not begun", "can go on", "waits at", "waits at", "waits at", "is at", "has returned"};

struct fiber {
    void *sp;
    char *stack;
    fiber *next; /* of those that are free */
    void *fake;  /* AddressSanitizer's */
    void *tsan;  /* ThreadSanitizer's */
};

struct thread {
    int state, line;
    fiber *on;
    const char *word, *file; /* what it waits at, in `line` */
    int kind, predicate;     /* of a barrier */
    int phase, warp_phase;   /* barriers so far; meetings of the whole warp */
    unsigned mask;
    int source;
    int arrivals, waits; /* at the cluster's barrier so far */
    uint64_t value, result;
};

struct block {
    uint3 index;
    int begun, waiting, done; /* threads */
    char *dynamic;
};

static struct {
    void *main_sp, *main_fake, *main_tsan;
    const void *main_stack;
    size_t main_bytes;
    fiber *free_fibers, *used_fibers; /* used: not to be taken again in this launch */
    int fibers;
    block blocks[MOST_BLOCKS];
    int count, size;          /* threads of a block, blocks of a cluster */
    int current;              /* thread */
    int done, arrived, phase; /* of the cluster: threads that returned; of its barrier, those that came and how often it was */
    size_t dynamic_bytes;
    const char *fault; /* what the current thread is WRONG for: takes its number and another one */
    unsigned fault_number;
    const void *function;
    kf_emu_call call;
    void *const *args;
    const char *name;
    bool failed;
    unsigned long long random;
    char launch_mark, done_mark; /* what ThreadSanitizer orders by, and mark_of() */
    unsigned blocks_run;
    char report[4096];
    thread threads[MOST_BLOCKS * MOST_THREADS]; /* those of a cluster's next block begin MOST_THREADS further on */
} emu;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static block *block_of(int t) { return &emu.blocks[(unsigned)t / MOST_THREADS]; }

static void to_main()
{
    fiber *f = emu.threads[emu.current].on;
#if defined(KF_EMU_TSAN)
    __tsan_switch_to_fiber(emu.main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KF_EMU_ASAN)
    __sanitizer_start_switch_fiber(&f->fake, emu.main_stack, emu.main_bytes);
#endif
    kf_emu_switch(&f->sp, emu.main_sp);
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(f->fake, &emu.main_stack, &emu.main_bytes);
#endif
}

static void end_thread(int t)
{
    block *const b = block_of(t);
    emu.threads[t].state = DONE;
    ++emu.done;
    ++b->done;
    if (emu.threads[t].arrivals == emu.phase) ++emu.arrived;
#if defined(KF_EMU_ASAN) /* other blocks may have its address still, and nobody the memory */
    if (b->dynamic && b->done == emu.count) __asan_poison_memory_region(b->dynamic, emu.dynamic_bytes);
#endif
}

static void fiber_main()
{
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &emu.main_stack, &emu.main_bytes);
#endif
    for (;;) { /* one thread after the other */
        const int t = emu.current;
#if defined(KF_EMU_TSAN)
        __tsan_acquire(&emu.launch_mark);
#endif
        emu.call(emu.function, emu.args);
#if defined(KF_EMU_TSAN)
        __tsan_release(&emu.done_mark);
#endif
        end_thread(t);
        to_main();
    }
}

static fiber *take_fiber()
{
    fiber *f = emu.free_fibers;
    if (f) {
        emu.free_fibers = f->next;
        return f;
    }
    f = (fiber *)calloc(1, sizeof *f);
    const size_t page = 4096;
    f->stack = (char *)mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, page, PROT_NONE) != 0) {
        perror("kf_emu: no memory for a thread's stack");
        abort();
    }
    f->stack += page;
    void **top = (void **)(f->stack + STACK_BYTES);
    *--top = nullptr; /* a call leaves the stack 8 bytes off 16 */
    *--top = (void *)fiber_main;
    f->sp = top - 6; /* the registers that a switch pops */
    ++emu.fibers;
#if defined(KF_EMU_TSAN)
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

static void end_fiber(fiber *f)
{
#if defined(KF_EMU_ASAN)
    __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
#if defined(KF_EMU_TSAN)
    __tsan_destroy_fiber(f->tsan);
#endif
    munmap(f->stack - 4096, STACK_BYTES + 4096);
    free(f);
    --emu.fibers;
}

static void give_fiber(fiber *f)
{
#if defined(KF_EMU_TSAN)
    fiber **list = &emu.used_fibers;            /* two threads of a launch that are one to ThreadSanitizer would hide a race */
    if (emu.fibers > 3000) return end_fiber(f); /* it has room for 8,000 */
#else
    fiber **list = &emu.free_fibers;
#endif
    f->next = *list;
    *list = f;
}

static void run_thread(int t)
{
    thread *self = &emu.threads[t];
    const unsigned number = (unsigned)t % MOST_THREADS;
    emu.current = t;
    if (emu.size > 1) blockIdx = block_of(t)->index;
    threadIdx.x = number % blockDim.x;
    threadIdx.y = number / blockDim.x % blockDim.y;
    threadIdx.z = number / blockDim.x / blockDim.y;
    if (self->state == NEW) {
        self->on = take_fiber();
        ++block_of(t)->begun;
    }
    self->state = READY;
#if defined(KF_EMU_TSAN)
    __tsan_switch_to_fiber(self->on->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(KF_EMU_ASAN)
    __sanitizer_start_switch_fiber(&emu.main_fake, self->on->stack, STACK_BYTES);
#endif
    kf_emu_switch(&emu.main_sp, self->on->sp);
#if defined(KF_EMU_ASAN)
    __sanitizer_finish_switch_fiber(emu.main_fake, nullptr, nullptr);
#endif
    if (self->state == DONE) give_fiber(self->on);
}

/* ---- faults */

static void say(const char *format, ...)
{
    const size_t used = strlen(emu.report);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(emu.report + used, sizeof emu.report - used, format, arguments);
    va_end(arguments);
}

static void begin_report(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    emu.report[0] = 0;
    say("%s, block (%u, %u, %u) of (%u, %u, %u)", emu.name, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
    if (emu.size > 1) say(" in a cluster of %d", emu.size);
    say(": %s\n", text);
    emu.failed = true;
}

static bool same_place(const thread *a, const thread *b)
{
    if (a->state != b->state) return false;
    if (a->state == NEW || a->state == READY || a->state == DONE) return true;
    return a->line == b->line && a->mask == b->mask && (a->word == b->word || strcmp(a->word, b->word) == 0) &&
           (a->file == b->file || strcmp(a->file, b->file) == 0);
}

/* The threads, those at one place together: "  0-31, 64: wait at __syncthreads, file:line". */
static void list_threads(int first, int count)
{
    bool told[MOST_THREADS] = {};
    for (int t = first; t < first + count; ++t) {
        if (told[t - first]) continue;
        const thread *a = &emu.threads[t];
        const char *between = "  threads ";
        for (int i = t; i < first + count; ++i) {
            if (told[i - first] || !same_place(a, &emu.threads[i])) continue;
            int last = i;
            while (last + 1 < first + count && same_place(a, &emu.threads[last + 1])) ++last;
            for (int k = i; k <= last; ++k) told[k - first] = true;
            say(last > i ? "%s%d-%d" : "%s%d", between, i % MOST_THREADS, last % MOST_THREADS);
            between = ", ";
            i = last;
        }
        say(": %s", STATES[a->state]);
        if (a->state == AT_BARRIER || a->state == AT_CLUSTER || a->state == WRONG) say(" %s, %s:%d", a->word, a->file, a->line);
        if (a->state == AT_WARP) say(" %s of lanes %08x, %s:%d", a->word, a->mask, a->file, a->line);
        say("\n");
    }
}

static void list_cluster()
{
    for (int b = 0; b < emu.size; ++b) {
        const uint3 i = emu.blocks[b].index;
        if (emu.size > 1) say("  of block (%u, %u, %u):\n", i.x, i.y, i.z);
        list_threads(b * MOST_THREADS, emu.count);
    }
}

#if defined(KF_EMU_TSAN)
/* What those who meet are ordered by: place 0 is the block's barrier, 1 + w its warp w, 33 its cluster's barrier (the mark of the
   first block). Another mark every other phase, since one who is late must not see what others did after the meeting, and for
   the next block. */
static char *mark_of(int place, int phase)
{
    static char marks[1 << 16];
    const unsigned block = emu.blocks_run + (place == 33 ? 0 : (unsigned)emu.current / MOST_THREADS);
    return &marks[((block * 34 + (unsigned)place) * 2 + (unsigned)phase % 2) % sizeof marks];
}
#endif

/* ---- barriers and warps. A thread that waits goes back to main, which goes on with it when its state is READY again. */

static thread *come_to(int state, unsigned mask, const char *word, const char *file, int line)
{
    thread *self = &emu.threads[emu.current];
    self->state = state;
    self->mask = mask;
    self->word = word;
    self->file = file;
    self->line = line;
    return self;
}

int kf_emu_barrier(int kind, int predicate, const char *file, int line)
{
    const char *const words[] = {"__syncthreads", "__syncthreads_and", "__syncthreads_or", "__syncthreads_count"};
    thread *self = come_to(AT_BARRIER, 0, words[kind], file, line);
    self->kind = kind;
    self->predicate = predicate != 0;
    ++block_of(emu.current)->waiting;
#if defined(KF_EMU_TSAN)
    char *const mark = mark_of(0, self->phase++);
    __tsan_release(mark);
#endif
    to_main();
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
    return (int)self->result;
}

/* All threads of a block are at a barrier. */
static void end_barrier(block *b)
{
    thread *const threads = &emu.threads[(b - emu.blocks) * MOST_THREADS];
    int sum = 0;
    b->waiting = 0;
    for (int t = 0; t < emu.count; ++t) {
        if (!same_place(&threads[t], &threads[0])) {
            begin_report("threads meet at different barriers");
            list_threads((int)(threads - emu.threads), emu.count);
            return;
        }
        sum += threads[t].predicate;
    }
    for (int t = 0; t < emu.count; ++t) {
        thread *a = &threads[t];
        a->result = (uint64_t)(a->kind == KF_EMU_AND ? sum == emu.count : a->kind == KF_EMU_OR ? sum > 0 : sum);
        a->state = READY;
    }
}

unsigned kf_emu_lane() { return (unsigned)emu.current % WARP; }

uint64_t kf_emu_exchange(const char *word, unsigned mask, uint64_t value, int source, const char *file, int line)
{
    thread *self = come_to(AT_WARP, mask, word, file, line);
    self->value = value;
    self->source = source;
    to_main();
    return self->result;
}

void kf_emu_syncwarp(unsigned mask, const char *file, int line)
{
#if defined(KF_EMU_TSAN)
    thread *self = &emu.threads[emu.current];
    char *const mark = mark_of(1 + emu.current % MOST_THREADS / WARP, mask == 0xffffffffu ? self->warp_phase++ : 0);
    __tsan_release(mark);
#endif
    kf_emu_exchange("__syncwarp", mask, 0, -1, file, line);
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark);
#endif
}

/* Thread t has come to a warp word: when all lanes of its mask have, each gets its result. */
static void meet_lanes(int t)
{
    const thread *self = &emu.threads[t];
    const int first = t / WARP * WARP;
    uint64_t bits = 0;
    if (!(self->mask >> (t - first) & 1)) {
        begin_report("thread %d is not in the mask that it gives", t % MOST_THREADS);
        list_threads(t, 1);
        return;
    }
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(self->mask >> lane & 1)) continue;
        if (first % MOST_THREADS + lane >= emu.count || !same_place(&emu.threads[first + lane], self)) return;
        bits |= (emu.threads[first + lane].value & 1) << lane;
    }
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(self->mask >> lane & 1)) continue;
        thread *a = &emu.threads[first + lane];
        /* A lane outside of the mask has no value to give: all ones, a NaN. */
        a->result = a->source < 0 ? bits : self->mask >> a->source & 1 ? emu.threads[first + a->source].value : ~(uint64_t)0;
    }
    for (int lane = 0; lane < WARP; ++lane)
        if (self->mask >> lane & 1) emu.threads[first + lane].state = READY;
}

/* ---- clusters */

unsigned kf_emu_cluster_rank() { return (unsigned)emu.current / MOST_THREADS; }
unsigned kf_emu_cluster_size() { return (unsigned)emu.size; }

/* The thread that runs ends the launch; main writes the report. */
[[noreturn]] static void stop(const char *fault, unsigned number)
{
    emu.threads[emu.current].state = WRONG;
    emu.fault = fault;
    emu.fault_number = number;
    to_main();
    abort();
}

void kf_emu_cluster_arrive(const char *file, int line)
{
    thread *self = come_to(READY, 0, "barrier.cluster.arrive", file, line);
    if (self->arrivals > self->waits) stop("thread %u comes to the cluster's barrier twice without a wait between", 0);
#if defined(KF_EMU_TSAN)
    __tsan_release(mark_of(33, self->arrivals));
#endif
    ++self->arrivals;
    ++emu.arrived;
}

void kf_emu_cluster_wait(const char *file, int line)
{
    thread *self = come_to(READY, 0, "barrier.cluster.wait", file, line);
    if (self->arrivals == self->waits) stop("thread %u waits at the cluster's barrier without having come to it", 0);
    if (++self->waits > emu.phase) {
        self->state = AT_CLUSTER;
        to_main();
    }
#if defined(KF_EMU_TSAN)
    __tsan_acquire(mark_of(33, self->waits - 1));
#endif
}

/* All threads have come, or returned: those do for all later phases too. That orders nothing of what they wrote since they came
   last: ThreadSanitizer is not told. */
static void end_cluster_barrier()
{
    ++emu.phase;
    emu.arrived = emu.done;
    for (int b = 0; b < emu.size; ++b)
        for (thread *a = &emu.threads[b * MOST_THREADS], *end = a + emu.count; a < end; ++a)
            if (a->state == AT_CLUSTER) a->state = READY;
}

char *kf_emu_dynamic() { return block_of(emu.current)->dynamic; }

void *kf_emu_remote_bytes(const void *p, size_t bytes, unsigned rank, const char *file, int line)
{
    const block *const own = block_of(emu.current), *const other = &emu.blocks[rank % MOST_BLOCKS];
    const size_t at = (uintptr_t)p - (uintptr_t)own->dynamic;
    come_to(READY, 0, "mapa", file, line);
    if (!own->dynamic || at > emu.dynamic_bytes || bytes > emu.dynamic_bytes - at)
        stop("thread %u has an address outside of its block's dynamic memory", 0);
    if (rank >= (unsigned)emu.size) stop("thread %u wants memory of block %u of the cluster, which is smaller", rank);
    if (other->begun == 0)
        stop("thread %u wants memory of block %u of the cluster, which need not have begun: no barrier came before", rank);
    if (other->done == emu.count) stop("thread %u wants memory of block %u of the cluster, which has ended", rank);
    return other->dynamic + at;
}

/* ---- shared memory: full of NaN. Dynamic memory is a block of the heap, so that AddressSanitizer sees its end. ThreadSanitizer
   would take it for a race that main frees or fills again what threads used; it forgets what it saw where memory is mapped anew. */

static char *take_dynamic()
{
    void *p = nullptr;
    if (emu.dynamic_bytes == 0) return nullptr;
#if defined(KF_EMU_TSAN)
    p = mmap(nullptr, MOST_DYNAMIC, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool good = p != MAP_FAILED;
#else
    const bool good = posix_memalign(&p, 16, emu.dynamic_bytes) == 0;
#endif
    if (!good) {
        perror("kf_emu: no memory for a block");
        abort();
    }
    return (char *)memset(p, 0xff, emu.dynamic_bytes);
}

static void give_dynamic(char *p)
{
#if defined(KF_EMU_TSAN)
    if (p) munmap(p, MOST_DYNAMIC);
#else
    free(p);
#endif
}

/* Static memory is filled by mapping a file again whose bytes are all ones. What a block has not touched costs nothing then. */

extern "C" char kf_emu_shared_begin[] __attribute__((visibility("hidden")));
extern "C" char kf_emu_shared_end[] __attribute__((visibility("hidden")));

static void poison_shared()
{
    static int file = -1;
    const size_t bytes = (size_t)(kf_emu_shared_end - kf_emu_shared_begin);
    if (bytes == 0) return;
    if (file < 0) {
        char block[4096];
        memset(block, 0xff, sizeof block);
        file = memfd_create("kf_emu_shared", MFD_CLOEXEC);
        bool good = file >= 0;
        for (size_t at = 0; good && at < bytes; at += sizeof block) good = write(file, block, sizeof block) == (ssize_t)sizeof block;
        if (!good) {
            perror("kf_emu: shared memory cannot be mapped");
            abort();
        }
    } else {
#if !defined(KF_EMU_TSAN) /* which forgets what it saw of the block before where memory is mapped anew */
        if (madvise(kf_emu_shared_begin, bytes, MADV_DONTNEED) == 0) return; /* as in the file again */
#endif
    }
    if (mmap(kf_emu_shared_begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) != kf_emu_shared_begin) abort();
}

/* Whether anybody wrote to static memory since: a page of it is no longer the file's (Linux: admin-guide/mm/pagemap). */
static bool wrote_shared()
{
    const size_t page = 4096, most = 512, pages = (size_t)(kf_emu_shared_end - kf_emu_shared_begin) / page;
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t entries[most] = {};
    bool wrote = false;
    for (size_t at = 0; file >= 0 && at < pages && !wrote; at += most) {
        const size_t n = pages - at < most ? pages - at : most;
        const off_t place = (off_t)(((uintptr_t)kf_emu_shared_begin / page + at) * sizeof *entries);
        if (pread(file, entries, n * sizeof *entries, place) != (ssize_t)(n * sizeof *entries)) break;
        for (size_t i = 0; i < n; ++i) wrote |= entries[i] >> 62 != 0 && (entries[i] >> 61 & 1) == 0;
    }
    if (file >= 0) close(file);
    return wrote;
}

/* ---- a launch */

static unsigned random_below(unsigned n)
{
    emu.random ^= emu.random << 13;
    emu.random ^= emu.random >> 7;
    emu.random ^= emu.random << 17;
    return (unsigned)(emu.random % n);
}

/* 0 .. n - 1 as the order says. */
static void put_in_order(unsigned *list, unsigned n)
{
    for (unsigned i = 0; i < n; ++i) list[i] = kf_emu_order == 1 ? n - 1 - i : i;
    for (unsigned i = n; kf_emu_order == 2 && i > 1; --i) {
        const unsigned j = random_below(i), other = list[j];
        list[j] = list[i - 1];
        list[i - 1] = other;
    }
}

/* The blocks of a cluster, or one block: those from number `first` of the grid on. */
static void run_cluster(unsigned first)
{
    unsigned order[MOST_BLOCKS * MOST_THREADS];
    const int count = emu.size * emu.count;
    emu.done = emu.arrived = emu.phase = 0;
    for (int i = 0; i < emu.size; ++i) {
        block *b = &emu.blocks[i];
        const unsigned number = first + (unsigned)i;
        *b = block{};
        b->index.x = number % gridDim.x;
        b->index.y = number / gridDim.x % gridDim.y;
        b->index.z = number / gridDim.x / gridDim.y;
        b->dynamic = take_dynamic();
        for (int t = 0; t < emu.count; ++t) emu.threads[i * MOST_THREADS + t] = thread{};
    }
    blockIdx = emu.blocks[0].index;
    if (emu.size == 1) poison_shared();
#if defined(KF_EMU_TSAN)
    __tsan_release(&emu.launch_mark);
#endif
    while (emu.done < count && !emu.failed) {
        bool moved = false;
        put_in_order(order, (unsigned)count);
        for (int i = 0; i < count && !emu.failed; ++i) {
            int t = (int)order[i];
            if (emu.size > 1) t = t / emu.count * MOST_THREADS + t % emu.count;
            if (emu.threads[t].state != NEW && emu.threads[t].state != READY) continue;
            moved = true;
            run_thread(t);
            if (block_of(t)->waiting == emu.count) end_barrier(block_of(t));
            if (emu.arrived == count && emu.done < count) end_cluster_barrier();
            if (emu.threads[t].state == AT_WARP) meet_lanes(t);
            if (emu.threads[t].state == WRONG) {
                begin_report(emu.fault, (unsigned)t % MOST_THREADS, emu.fault_number);
                list_cluster();
            }
        }
        if (!moved) {
            begin_report("no thread can go on: a barrier or a warp's word was not reached by all that it waits for");
            list_cluster();
        }
    }
    for (int i = 0; i < emu.size; ++i) give_dynamic(emu.blocks[i].dynamic);
    emu.blocks_run += (unsigned)emu.size;
}

/* Threads that never return leave their stacks as they are. */
static void drop_threads()
{
    for (int i = 0; i < emu.size * emu.count; ++i) {
        thread *a = &emu.threads[i / emu.count * MOST_THREADS + i % emu.count];
        if (a->state != NEW && a->state != DONE) end_fiber(a->on);
    }
}

static void run_grid()
{
    const unsigned clusters = gridDim.x * gridDim.y * gridDim.z / (unsigned)emu.size;
    unsigned *order = (unsigned *)malloc(clusters * sizeof *order);
    emu.random = kf_emu_seed * 0x9E3779B97F4A7C15ull | 1;
    put_in_order(order, clusters);
    if (emu.size > 1) poison_shared();
#if defined(KF_EMU_TSAN)
    emu.main_tsan = __tsan_get_current_fiber();
#endif
    for (unsigned i = 0; i < clusters && !emu.failed; ++i) run_cluster(order[i] * (unsigned)emu.size);
    if (emu.size > 1 && !emu.failed && wrote_shared())
        begin_report("a kernel wrote to static shared memory, of which the blocks of a cluster have one copy here: take kf_emu_dynamic()");
    free(order);
#if defined(KF_EMU_TSAN)
    __tsan_acquire(&emu.done_mark);
    while (emu.used_fibers) {
        fiber *f = emu.used_fibers;
        emu.used_fibers = f->next;
        f->next = emu.free_fibers;
        emu.free_fibers = f;
    }
#endif
}

/* Entries by their function's address. */
struct entry {
    const void *function;
    kf_emu_call call;
    const char *name;
    bool offered, launched;
    size_t dynamic_bytes; /* that a launch may have */
    entry *next;
};
static entry *entries[1 << 14];

const void *kf_emu_enter(const void *function, kf_emu_call call, const char *name)
{
    pthread_mutex_lock(&lock);
    entry **list = &entries[((uintptr_t)function >> 4) % (sizeof entries / sizeof *entries)];
    entry *e = *list;
    while (e && e->function != function) e = e->next;
    if (!e) {
        e = (entry *)calloc(1, sizeof *e);
        *e = entry{function, call, name, false, false, USUAL_DYNAMIC, *list};
        *list = e;
    }
    e->offered = true;
    pthread_mutex_unlock(&lock);
    return e;
}

static entry *find_entry(const void *p)
{
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next)
            if (e == p) return e;
    return nullptr;
}

/* Gives the blocks of a cluster, 1 if the launch does not ask for any. Error codes as an H100 returns them. */
static cudaError_t cluster_of(const cudaLaunchConfig_t *config, unsigned *size)
{
    *size = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const auto &d = config->attrs[i].val.clusterDim;
        if (config->attrs[i].id != cudaLaunchAttributeClusterDimension || (d.x == 0 && d.y == 0 && d.z == 0)) continue;
        if (d.x == 0 || d.y == 0 || d.z == 0 || d.x > MOST_BLOCKS || config->gridDim.x % d.x != 0) return cudaErrorInvalidClusterSize;
        if (d.y != 1 || d.z != 1) return cudaErrorNotSupported; /* here */
        *size = d.x;
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    const dim3 g = config->gridDim, b = config->blockDim;
    const unsigned long long threads = (unsigned long long)b.x * b.y * b.z;
    pthread_mutex_lock(&lock);
    cudaError_t result = (cudaError_t)kf_emu_failure;
    kf_emu_failure = 0;
    entry *const e = (entry *)kernel;
    if (result == cudaSuccess && !(e && find_entry(e))) result = cudaErrorInvalidDeviceFunction;
    if (result == cudaSuccess && (threads == 0 || threads > MOST_THREADS || b.z > 64 || (unsigned long long)g.x * g.y * g.z == 0 ||
                                  g.x > 0x7fffffff || g.y > 65535 || g.z > 65535))
        result = cudaErrorInvalidConfiguration;
    if (result == cudaSuccess && config->dynamicSmemBytes > e->dynamic_bytes) result = cudaErrorInvalidValue;
    unsigned size = 1;
    if (result == cudaSuccess) result = cluster_of(config, &size);
#if defined(KF_EMU_TSAN) /* which has no room for more fibers */
    if (result == cudaSuccess && size * threads > 4096) result = cudaErrorNotSupported;
#endif
    if (result == cudaSuccess) {
        e->launched = true;
        ++kf_emu_launches;
        emu.function = e->function;
        emu.call = e->call;
        emu.name = e->name;
        emu.args = args;
        emu.count = (int)threads;
        emu.size = (int)size;
        emu.dynamic_bytes = config->dynamicSmemBytes;
        emu.failed = false;
        gridDim = g;
        blockDim = b;
        run_grid();
        if (emu.failed) {
            if (kf_emu_aborts) {
                fprintf(stderr, "kf_emu: %s", emu.report);
                abort();
            }
            drop_threads();
            result = cudaErrorLaunchFailure;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* What a kernel's launches may have of dynamic memory from now on: up to what an H100's block may have, 227 KiB. */
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute what, int value)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > MOST_DYNAMIC) return cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    entry *const e = find_entry(kernel);
    if (e) e->dynamic_bytes = (size_t)value;
    pthread_mutex_unlock(&lock);
    return e ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidClusterSize: return "cluster misconfiguration";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorLaunchFailure: return emu.report;
    default: return "an error";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int *device)
{
    return cudaGetDevice(device);
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* A device of capability 7.5: what kf's portable kernels are for. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = kf_emu_sms; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = 7; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 5; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = WARP; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = MOST_THREADS; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 1024; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = USUAL_DYNAMIC; return cudaSuccess;
    default: return cudaErrorInvalidValue;
    }
}

const char *kf_emu_report(void) { return emu.report; }

const char *kf_emu_missing(void)
{
    static char text[1 << 16];
    size_t used = 0;
    text[0] = 0;
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next)
            if (e->offered && !e->launched && used + strlen(e->name) + 2 < sizeof text)
                used += (size_t)sprintf(text + used, "%s\n", e->name);
    return text;
}

void kf_emu_forget(void)
{
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next) e->offered = e->launched = false;
}
