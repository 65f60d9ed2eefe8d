/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/list.h: lists of tensors: host arrays of device pointers with a common array of lengths.
 * Checks the arguments of a call, and traverses lists in C in chunks of fixed size.
 *
 * Tensor i of every list has lengths[i] elements. It may be empty, of any size and aligned to its
 * elements only. A tensor that is written overlaps no other tensor of the call. */
#ifndef KF_CORE_LIST_H
#define KF_CORE_LIST_H

#include "kf/core/host.h"

#include "kf/core/check.h"
#include "kf/core/parallel.h"

enum {
    KFI_LIST_WINDOW = 512,  /* tensors that C traverses at a time */
    KFI_LIST_SORTED = 1024, /* tensors that the search for overlaps sorts at a time */
    KFI_LIST_RUNS = 512,    /* ascending runs that it merges */
    KFI_LIST_READ = 0,      /* flags of a list */
    KFI_LIST_WRITTEN = 1,
    KFI_LIST_NULLABLE = 2
};

/* The lists of a call. words: their names. codes: two characters per list, each offset by '0':
 * bytes per element, flags. data: one host array of pointers per list. */
typedef struct {
    const char *words, *codes;
    const void *const *const *data;
    const int64_t *lengths;
    kf_i64 count;
} kfi_lists;

KFI_HOST int kfi_list_count(const kfi_lists *l) { return (int)(strlen(l->codes) / 2); }
KFI_HOST int kfi_list_size(const kfi_lists *l, int list) { return l->codes[2 * list] - '0'; }
KFI_HOST int kfi_list_flags(const kfi_lists *l, int list) { return l->codes[2 * list + 1] - '0'; }

/* Writes the name of a tensor as messages have it, such as "grad[3]". */
KFI_ONCE void kfi_list_word(char *text, size_t size, const char *word, kf_i64 i)
{
    snprintf(text, size, "%.*s[%lld]", (int)strcspn(word, " "), word, (long long)i);
}

KFI_ONCE kf_result_t kfi_list_bad_length(const kfi_name *name, const kfi_lists *l, kf_i64 i)
{
    char word[40];
    kfi_list_word(word, sizeof word, "lengths", i);
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, word, "is %lld, expected %s",
                    (long long)l->lengths[i],
                    l->lengths[i] < 0 ? "0 or more" : "at most 2^58 elements in all");
}
/* Checks count and lengths. total: the sum of the lengths. */
KFI_ONCE kf_result_t kfi_check_lengths(const kfi_name *name, const kfi_lists *l, kf_i64 *total)
{
    const kf_i64 most = (kf_i64)1 << 58;
    *total = 0;
    if (l->count < 0)
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "count", "is %lld, expected 0 or more",
                        (long long)l->count);
    if (l->count > 0 && !l->lengths)
        return kfi_fail(KF_ERROR_NULL_POINTER, name, "lengths",
                        "is NULL, expected an array of %lld numbers", (long long)l->count);
    for (kf_i64 i = 0; i < l->count; ++i) {
        if (l->lengths[i] < 0 || l->lengths[i] > most - *total)
            return kfi_list_bad_length(name, l, i);
        *total += l->lengths[i];
    }
    return KF_SUCCESS;
}

KFI_ONCE kf_result_t kfi_list_bad_pointer(const kfi_name *name, const kfi_lists *l, int list,
                                          kf_i64 i)
{
    const void *const ptr = l->data[list][i];
    char word[80];
    kfi_list_word(word, sizeof word, kfi_word(l->words, list), i);
    if (!ptr)
        return kfi_fail(KF_ERROR_NULL_POINTER, name, word,
                        "is NULL, expected a pointer to %lld element%s", (long long)l->lengths[i],
                        l->lengths[i] == 1 ? "" : "s");
    return kfi_fail(KF_ERROR_MISALIGNED, name, word,
                    "is %p, expected a pointer aligned to its %d-byte elements", ptr,
                    kfi_list_size(l, list));
}
/* Checks that the pointers of tensors with elements are neither NULL nor misaligned. */
KFI_ONCE kf_result_t kfi_check_list(const kfi_name *name, const kfi_lists *l, int list)
{
    const void *const *const data = l->data[list];
    const uintptr_t mask = (uintptr_t)(kfi_list_size(l, list) - 1);
    if (!data && kfi_list_flags(l, list) & KFI_LIST_NULLABLE) return KF_SUCCESS;
    if (!data)
        return kfi_fail(KF_ERROR_NULL_POINTER, name, kfi_word(l->words, list),
                        "is NULL, expected an array of %lld pointers", (long long)l->count);
    for (kf_i64 i = 0; i < l->count; ++i)
        if (l->lengths[i] > 0 && (!data[i] || (uintptr_t)data[i] & mask))
            return kfi_list_bad_pointer(name, l, list, i);
    return KF_SUCCESS;
}

/* ---- overlap
 *
 * A sweep over all tensors by ascending address finds an overlap of any two, if one is written. No
 * memory is allocated. Allocators hand out ascending addresses for long stretches: up to
 * KFI_LIST_RUNS ascending runs of the lists are merged in one pass. More runs take several passes,
 * each of which selects the next KFI_LIST_SORTED tensors with a heap. */

/* Memory of a tensor: the i-th of a list, or of the other tensors, which count as further lists of
 * one tensor each. */
typedef struct {
    uintptr_t begin, end;
    kf_i64 i;
    int list, written;
} kfi_list_range;

/* An ascending run: the memory of its first tensor that the sweep has not reached, and the index
 * behind its last tensor. */
typedef struct {
    kfi_list_range head;
    kf_i64 stop;
} kfi_list_run;

/* The ranges before the sweep that end last: of those that are read, and that are written. */
typedef struct {
    kfi_list_range read, written;
} kfi_list_sweep;

KFI_HOST kfi_list_range kfi_list_range_of(const kfi_lists *l, int list, kf_i64 i)
{
    const uintptr_t begin = (uintptr_t)l->data[list][i];
    const kfi_list_range r = {begin,
                              begin + (uintptr_t)l->lengths[i] * (uintptr_t)kfi_list_size(l, list),
                              i, list, kfi_list_flags(l, list) & KFI_LIST_WRITTEN};
    return r;
}
/* k: index among the other tensors. */
KFI_HOST kfi_list_range kfi_list_other(const kfi_lists *l, const kfi_operands *others, int k)
{
    const kfi_operand *const o = &others->of[k];
    const uintptr_t begin = (uintptr_t)o->ptr;
    const kfi_list_range r = {begin, begin + o->bytes, 0, kfi_list_count(l) + k,
                              (o->flags & KFI_OUT) != 0};
    return r;
}
/* Order of the sweep. */
KFI_HOST int kfi_list_before(const kfi_list_range *a, const kfi_list_range *b)
{
    if (a->begin != b->begin) return a->begin < b->begin;
    return a->list != b->list ? a->list < b->list : a->i < b->i;
}
/* Advances the sweep to r. Returns the range before it that it must not overlap but does, or NULL.
 */
KFI_HOST const kfi_list_range *kfi_list_sweep_to(kfi_list_sweep *s, const kfi_list_range *r)
{
    if (s->written.end > r->begin) return &s->written;
    if (r->written && s->read.end > r->begin) return &s->read;
    kfi_list_range *const kind = r->written ? &s->written : &s->read;
    if (r->end > kind->end) *kind = *r;
    return NULL;
}

/* Restores the heap of runs, whose first element is the first in order, below element i. */
KFI_HOST void kfi_list_sift_run(kfi_list_run *heap, int count, int i)
{
    const kfi_list_run run = heap[i];
    for (int child = 2 * i + 1; child < count; i = child, child = 2 * i + 1) {
        if (child + 1 < count && kfi_list_before(&heap[child + 1].head, &heap[child].head)) ++child;
        if (!kfi_list_before(&heap[child].head, &run.head)) break;
        heap[i] = heap[child];
    }
    heap[i] = run;
}
/* Finds the ascending runs of all tensors. Returns how many; -1 if more than KFI_LIST_RUNS. */
KFI_ONCE int kfi_list_runs(const kfi_lists *l, const kfi_operands *others, kfi_list_run *runs)
{
    int count = 0;
    for (int list = 0; list < kfi_list_count(l); ++list) {
        const void *const *const data = l->data[list];
        uintptr_t last = UINTPTR_MAX;
        for (kf_i64 i = 0; data && i < l->count; ++i) {
            if (l->lengths[i] == 0) continue;
            if ((uintptr_t)data[i] < last || last == UINTPTR_MAX) {
                if (last != UINTPTR_MAX) runs[count - 1].stop = i;
                if (count == KFI_LIST_RUNS) return -1;
                runs[count].head = kfi_list_range_of(l, list, i);
                runs[count++].stop = l->count;
            }
            last = (uintptr_t)data[i];
        }
    }
    for (int k = 0; others && k < others->count; ++k) {
        const kfi_list_range r = kfi_list_other(l, others, k);
        if (r.begin == r.end) continue;
        if (count == KFI_LIST_RUNS) return -1;
        runs[count].head = r;
        runs[count++].stop = 1;
    }
    return count;
}
/* Advances the heap's first run by one tensor. Returns how many runs are left. */
KFI_HOST int kfi_list_step(const kfi_lists *l, kfi_list_run *runs, int count)
{
    kf_i64 i = runs->head.i + 1;
    while (i < runs->stop && l->lengths[i] == 0) ++i;
    if (i < runs->stop)
        runs->head = kfi_list_range_of(l, runs->head.list, i);
    else
        runs[0] = runs[--count];
    if (count > 1) kfi_list_sift_run(runs, count, 0);
    return count;
}

/* Restores the heap of ranges, whose first element is the last in order, below element i. */
KFI_HOST void kfi_list_sift(kfi_list_range *heap, int count, int i)
{
    const kfi_list_range r = heap[i];
    for (int child = 2 * i + 1; child < count; i = child, child = 2 * i + 1) {
        if (child + 1 < count && kfi_list_before(&heap[child], &heap[child + 1])) ++child;
        if (!kfi_list_before(&r, &heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = r;
}
/* Adds a range to the heap of the first KFI_LIST_SORTED ranges. */
KFI_HOST int kfi_list_add(kfi_list_range *heap, int count, const kfi_list_range *r)
{
    if (count < KFI_LIST_SORTED) {
        heap[count++] = *r;
        for (int i = count / 2 - 1; count == KFI_LIST_SORTED && i >= 0; --i)
            kfi_list_sift(heap, count, i);
    } else if (kfi_list_before(r, heap)) {
        heap[0] = *r;
        kfi_list_sift(heap, count, 0);
    }
    return count;
}
/* Sorts a heap of KFI_LIST_SORTED ranges, or as many ranges in any order if they are fewer. */
KFI_HOST void kfi_list_sort(kfi_list_range *found, int count)
{
    for (int i = count / 2 - 1; i >= 0; --i) kfi_list_sift(found, count, i);
    for (int left = count - 1; left > 0; --left) {
        const kfi_list_range r = found[0];
        found[0] = found[left];
        found[left] = r;
        kfi_list_sift(found, left, 0);
    }
}
/* Selects the first tensors after `last` in order, and sorts them. Returns how many. */
KFI_ONCE int kfi_list_next(const kfi_lists *l, const kfi_operands *others,
                           const kfi_list_range *last, kfi_list_range *found)
{
    uintptr_t from = last->begin, to = UINTPTR_MAX; /* addresses that may be selected */
    int count = 0;
    for (int list = 0; list < kfi_list_count(l); ++list) {
        const void *const *const data = l->data[list];
        for (kf_i64 i = 0; data && i < l->count; ++i) {
            const uintptr_t begin = (uintptr_t)data[i];
            if (begin < from || begin > to || l->lengths[i] == 0) continue;
            const kfi_list_range r = kfi_list_range_of(l, list, i);
            if (last->end && !kfi_list_before(last, &r)) continue;
            count = kfi_list_add(found, count, &r);
            if (count == KFI_LIST_SORTED) to = found->begin;
        }
    }
    for (int k = 0; others && k < others->count; ++k) {
        const kfi_list_range r = kfi_list_other(l, others, k);
        if (r.begin == r.end || (last->end && !kfi_list_before(last, &r))) continue;
        count = kfi_list_add(found, count, &r);
    }
    kfi_list_sort(found, count);
    return count;
}

KFI_ONCE void kfi_list_called(char *text, size_t size, const kfi_lists *l, const char *others,
                              const kfi_list_range *r)
{
    const int listed = kfi_list_count(l);
    if (r->list < listed) {
        kfi_list_word(text, size, kfi_word(l->words, r->list), r->i);
        return;
    }
    const char *const word = kfi_word(others, r->list - listed);
    snprintf(text, size, "%.*s", (int)strcspn(word, " "), word);
}
KFI_ONCE kf_result_t kfi_list_overlap(const kfi_name *name, const kfi_lists *l, const char *others,
                                      const kfi_list_range *a, const kfi_list_range *b)
{
    const kfi_list_range *const out = b->written ? b : a, *const other = b->written ? a : b;
    char word[80], with[80];
    kfi_list_called(word, sizeof word, l, others, out);
    kfi_list_called(with, sizeof with, l, others, other);
    return kfi_fail(KF_ERROR_OVERLAP, name, word, "at %p overlaps %s at %p, expected memory apart",
                    (const void *)out->begin, with, (const void *)other->begin);
}
KFI_ONCE kf_result_t kfi_list_apart_in_passes(const kfi_name *name, const kfi_lists *l,
                                              const kfi_operands *others, const char *words)
{
    kfi_list_range found[KFI_LIST_SORTED], last = {0, 0, 0, 0, 0};
    kfi_list_sweep sweep = {last, last};
    for (int count = KFI_LIST_SORTED; count == KFI_LIST_SORTED;) {
        count = kfi_list_next(l, others, &last, found);
        for (int i = 0; i < count; ++i) {
            const kfi_list_range *const met = kfi_list_sweep_to(&sweep, &found[i]);
            if (met) return kfi_list_overlap(name, l, words, met, &found[i]);
        }
        if (count) last = found[count - 1];
    }
    return KF_SUCCESS;
}
KFI_ONCE kf_result_t kfi_check_apart(const kfi_name *name, const kfi_lists *l,
                                     const kfi_operands *others, const char *words)
{
    kfi_list_run runs[KFI_LIST_RUNS];
    const kfi_list_range none = {0, 0, 0, 0, 0};
    kfi_list_sweep sweep = {none, none};
    int count = kfi_list_runs(l, others, runs);
    if (count < 0) return kfi_list_apart_in_passes(name, l, others, words);
    for (int i = count / 2 - 1; i >= 0; --i) kfi_list_sift_run(runs, count, i);
    while (count > 0) {
        const kfi_list_range *const met = kfi_list_sweep_to(&sweep, &runs->head);
        if (met) return kfi_list_overlap(name, l, words, met, &runs->head);
        count = kfi_list_step(l, runs, count);
    }
    return KF_SUCCESS;
}

/* Checks the lists of a call. others: its other tensors, which have been checked, and their names
 * `words`; NULL: none. total: the sum of the lengths; 0: the call does nothing. */
KFI_ONCE kf_result_t kfi_check_lists(const kfi_name *name, const kfi_lists *l,
                                     const kfi_operands *others, const char *words, kf_i64 *total)
{
    kf_result_t result = kfi_check_lengths(name, l, total);
    if (result != KF_SUCCESS || *total == 0) return result;
    for (int list = 0; list < kfi_list_count(l) && result == KF_SUCCESS; ++list)
        result = kfi_check_list(name, l, list);
    return result == KF_SUCCESS ? kfi_check_apart(name, l, others, words) : result;
}

/* ---- traversal in C */

/* Some neighbouring tensors of the lists. first: index of each tensor's first chunk, over all of
 * them. number: tensors with elements before them. */
typedef struct {
    const kfi_lists *lists;
    const void *scalars;
    kf_i64 from, first[KFI_LIST_WINDOW + 1];
    int count, number;
} kfi_list_window;

/* A chunk: elements [from, from + n) of one tensor. */
typedef struct {
    kf_i64 tensor, from, n;
} kfi_list_chunk;

/* Returns the last index whose first chunk is not after `chunk`; tensors without chunks are skipped
 * by that. */
KFI_HOST int kfi_list_search(const kf_i64 *first, int count, kf_i64 chunk)
{
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}
KFI_HOST kfi_list_chunk kfi_list_chunk_of(const kfi_list_window *w, kf_i64 chunk)
{
    const int i = kfi_list_search(w->first, w->count, chunk);
    kfi_list_chunk c = {w->from + i, (chunk - w->first[i]) * KFI_MAX_CHUNK, 0};
    const kf_i64 left = w->lists->lengths[c.tensor] - c.from;
    c.n = left < KFI_MAX_CHUNK ? left : KFI_MAX_CHUNK;
    return c;
}
/* Returns the first element of a chunk in one of the lists; NULL if the list is NULL. size: bytes
 * per element. */
KFI_HOST void *kfi_list_at(const kfi_list_window *w, int list, int size, const kfi_list_chunk *c)
{
    const void *const *const data = w->lists->data[list];
    return data ? (char *)(uintptr_t)data[c->tensor] + c->from * size : NULL;
}

/* Returns the index of a tensor among those with elements. */
KFI_HOST int kfi_list_number(const kfi_list_window *w, kf_i64 tensor)
{
    int number = w->number;
    for (kf_i64 i = 0; i < tensor - w->from; ++i) number += w->first[i + 1] > w->first[i];
    return number;
}

/* Moves a window behind itself, to the next tensors; false if there are none. */
KFI_HOST int kfi_list_advance(kfi_list_window *w)
{
    w->number = kfi_list_number(w, w->from + w->count);
    w->from += w->count;
    const kf_i64 left = w->lists->count - w->from;
    w->count = left < KFI_LIST_WINDOW ? (int)left : (int)KFI_LIST_WINDOW;
    for (int i = 0; i < w->count; ++i)
        w->first[i + 1] =
            w->first[i] + (w->lists->lengths[w->from + i] + KFI_MAX_CHUNK - 1) / KFI_MAX_CHUNK;
    return w->count > 0;
}

/* Calls fn(window, chunk) for every chunk of all tensors, on all threads. total: the sum of the
 * lengths. */
KFI_HOST void kfi_each_chunk(const kfi_lists *l, kf_i64 total, const void *scalars,
                             void (*fn)(void *, kf_i64))
{
    kfi_list_window w = {l, scalars, 0, {0}, 0, 0};
    while (kfi_list_advance(&w)) kfi_parallel(w.first[w.count], fn, &w, total >= KF_OMP_MIN);
}

#endif
