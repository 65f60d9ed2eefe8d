/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/elementwise/tile.h: tiles of an elementwise op on the CPU: arguments of a tile function,
 * scratch memory of a traversal, and copies of partial tiles. */
#ifndef KF_CORE_ELEMENTWISE_TILE_H
#define KF_CORE_ELEMENTWISE_TILE_H

#include "kf/core/host.h"

#include "kf/core/check.h"
#include "kf/core/limits.h"
#include "kf/core/math.h"
#include "kf/core/parallel.h"
#include "kf/core/philox_tile.h"
#include "kf/core/stream.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

#define KFI_REPEAT 2048 /* rows up to this many columns are repeated into a buffer */
#define KFI_BLOCKS 64   /* parts of a reduced gradient */
/* Tiles of the same columns in consecutive rows whose sums are accumulated in registers. */
#define KFI_GROUP 4

typedef struct {
    void *p[KFI_MAX_SLOTS];     /* pointer of each slot, first tile */
    kf_i64 step[KFI_MAX_SLOTS]; /* elements from one tile to the next */
    int tiles;                  /* any number; groups: KFI_GROUP or 1 */
    int count;                  /* elements per tile: a multiple of the op's part */
    unsigned stream;            /* bit k: writes to p[k] bypass the caches */
    int stores;                 /* some tensor is written, not only sums */
    const void *scalars;        /* the op's, then the activation's: float, or double for f64 */
    /* Dropout: random words of each tile. Words >= keep_from keep their element. */
    const uint16_t *keep[KFI_GROUP];
    uint32_t keep_from;
    double keep_scale;
} kfi_tile;
typedef void (*kfi_tile_fn)(const kfi_tile *t);
/* True if a tile function writes slot k with streaming stores, through a buffer of its own. */
KFI_INLINE int kfi_is_streamed(const kfi_tile *t, int k)
{
    return KFI_STREAMS && (t->stream >> k & 1u);
}

/* Slot k of a tile function (t->p[k]): a load or store of an operand, a row operand, a value
 * derived from row operands, or a sum. */
enum { KFI_SLOT_LOAD, KFI_SLOT_STORE, KFI_SLOT_ROW, KFI_SLOT_DERIVED, KFI_SLOT_SUM };
typedef struct {
    int kind, operand, half, size;
} kfi_slot;

typedef void (*kfi_row_pass)(void *frame); /* a pass over one row (core/rows/rows.h) */
typedef void (*kfi_sum_writer)(void *out, kf_i64 i, const double *v, int count);

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const kfi_row_pass *passes; /* ops over rows: terminated by NULL */
    const kfi_slot *slots;
    int slot_count, sums, acc_size, part;
    kfi_tile_fn tile;
    /* Computes derived row values from row values, 16 at a time. NULL: none. */
    void (*derive)(const kfi_tile *t, int width);
    const void *scalars;
    const kf_i64 *integers; /* integer scalars */
    const kfi_rng *rng;
    kfi_strides strides;          /* strides of rows */
    void *const *sum_outputs;     /* NULL is skipped */
    const kfi_sum_writer *stores; /* writer of each sum, in its dtype */
    /* Set by the traversal. */
    kfi_operands operands;
    kf_i64 rows, cols, channels, queries, inner, elements, blocks, per_block;
    kf_i64 segment, parts; /* segmented rows: elements per segment, channels per group */
    int plane, tile_size;  /* tile_size: elements per tile */
    unsigned stream;       /* bit k: slot k is an output that bypasses the caches */
    char *partial;
} kfi_cpu_map;

/* Random words of a group's tiles, at the end of a traversal's scratch memory. */
typedef uint16_t kfi_group_words[KFI_TILE + 32];
typedef char kfi_words_fit[KFI_GROUP * sizeof(kfi_group_words) <= KFI_MAX_WORDS ? 1 : -1];

/* Scratch memory of a traversal: a tile per slot; for repeated row values and sums, a row followed
 * by a tile. */
typedef struct {
    char *tile[KFI_MAX_SLOTS], *repeated[KFI_MAX_SLOTS];
    KFI_ON_A_LINE char bytes[KFI_MAX_ROOM];
} kfi_room;
/* Returns the bytes of scratch memory. cols: length of a repeated row, 0 for none. Repeated row
 * values need no tile. */
KFI_HOST kf_i64 kfi_room_bytes(const kfi_cpu_map *m, kf_i64 tile_size, kf_i64 cols)
{
    kf_i64 bytes = 0;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (!cols || s->kind < KFI_SLOT_ROW || s->kind == KFI_SLOT_SUM)
            bytes += tile_size * s->size;
        if (cols && s->kind >= KFI_SLOT_ROW)
            bytes += ((cols + tile_size) * s->size + KFI_LINE - 1) / KFI_LINE * KFI_LINE;
    }
    return bytes;
}
/* Sets the largest tile size, KFI_TILE or a fraction of at least `least`, whose scratch memory
 * fits. Returns 0 if none does. */
KFI_HOST int kfi_size_tiles(kfi_cpu_map *m, kf_i64 cols, int least)
{
    for (m->tile_size = KFI_TILE; m->tile_size >= least; m->tile_size /= 2)
        if (kfi_room_bytes(m, m->tile_size, cols) <= KFI_MAX_ROOM - (m->rng ? KFI_MAX_WORDS : 0))
            return 1;
    return 0;
}
/* Assigns the scratch memory to the slots. */
KFI_HOST void kfi_assign_room(const kfi_cpu_map *m, kfi_room *room, kf_i64 cols)
{
    char *at = room->bytes;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        const int row = s->kind >= KFI_SLOT_ROW;
        room->tile[k] = at;
        if (!cols || !row || s->kind == KFI_SLOT_SUM) at += m->tile_size * s->size;
        room->repeated[k] = cols && row ? at : NULL;
        if (cols && row)
            at += ((cols + m->tile_size) * s->size + KFI_LINE - 1) / KFI_LINE * KFI_LINE;
    }
}

/* Returns the slots of large outputs that are not also inputs, whose lines the cache holds. */
KFI_HOST unsigned kfi_streams(const kfi_cpu_map *m)
{
    unsigned found = 0;
    for (int k = 0; KFI_STREAMS && k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        const void *ptr = m->operands.of[s->operand].ptr;
        int is_input = 0;
        if (s->kind != KFI_SLOT_STORE || !ptr || m->elements < KF_STREAM_MIN / s->size) continue;
        for (int i = 0; i < m->slot_count; ++i)
            is_input |=
                m->slots[i].kind == KFI_SLOT_LOAD && m->operands.of[m->slots[i].operand].ptr == ptr;
        if (!is_input) found |= 1u << k;
    }
    return found;
}

KFI_HOST void kfi_run_tiles(const kfi_cpu_map *m, kfi_tile *t, kfi_room *room, kf_i64 first,
                            kf_i64 step)
{
    kfi_group_words *const words =
        (kfi_group_words *)(void *)(room->bytes + KFI_MAX_ROOM - KFI_MAX_WORDS);
    for (int u = 0; m->rng && u < t->tiles; ++u) {
        kfi_random_tile(words[u], m->rng, first + u * step);
        t->keep[u] = words[u] + (first + u * step) % 8;
    }
    m->tile(t);
}

/* Returns the number of whole tiles among `left` elements, limited to one call; 1 for a partial
 * tile.
 */
KFI_HOST int kfi_whole(const kfi_cpu_map *m, kf_i64 left)
{
    const kf_i64 tiles = left / m->tile_size, most = m->rng ? KFI_GROUP : KFI_CHUNK;
    return tiles < 1 ? 1 : (int)(tiles < most ? tiles : most);
}

KFI_HOST kfi_tile kfi_make_tile(const kfi_cpu_map *m)
{
    kfi_tile t;
    memset(&t, 0, sizeof t);
    t.scalars = m->scalars;
    t.keep_from = m->rng ? m->rng->threshold : 0;
    t.keep_scale = m->rng ? m->rng->scale_f64 : 1.0;
    return t;
}

/* Writes `count` copies of one element, which may be the destination's first. */
KFI_HOST void kfi_fill(unsigned char *to, const char *value, int count, int size)
{
    if (size == 2) {
        uint16_t v;
        memcpy(&v, value, 2);
        for (int j = 0; j < count; ++j) memcpy(to + 2 * j, &v, 2);
    } else if (size == 4) {
        uint32_t v;
        memcpy(&v, value, 4);
        for (int j = 0; j < count; ++j) memcpy(to + 4 * j, &v, 4);
    } else {
        uint64_t v;
        memcpy(&v, value, 8);
        for (int j = 0; j < count; ++j) memcpy(to + 8 * j, &v, 8);
    }
}

KFI_HOST int kfi_is_half(const kfi_cpu_map *m, const kfi_slot *s)
{
    return m->operands.of[s->operand].elements == KFI_EXTENT_HALVES;
}

/* Copies `count` elements between a tensor and a scratch tile. A half operand is copied row segment
 * by row segment. */
KFI_HOST void kfi_move_elements(const kfi_cpu_map *m, const kfi_slot *s, char *tensor, char *tile,
                                kf_i64 first, int count, int store)
{
    const size_t size = (size_t)s->size;
    if (!kfi_is_half(m, s)) {
        char *at = tensor + first * s->size;
        if (store)
            memcpy(at, tile, (size_t)count * size);
        else
            memcpy(tile, at, (size_t)count * size);
        return;
    }
    kf_i64 row = first / m->cols, col = first % m->cols;
    for (int done = 0; done < count;) {
        const kf_i64 room = m->cols - col;
        const int segment = room < count - done ? (int)room : count - done;
        char *at = tensor + (row * 2 * m->cols + s->half * m->cols + col) * s->size;
        if (store)
            memcpy(at, tile + (size_t)done * size, (size_t)segment * size);
        else
            memcpy(tile + (size_t)done * size, at, (size_t)segment * size);
        done += segment;
        col = 0;
        ++row;
    }
}

KFI_HOST char *kfi_element(const kfi_cpu_map *m, const kfi_slot *s, kf_i64 i)
{
    /* Elements of the other half before element i. */
    const kf_i64 before = kfi_is_half(m, s) ? (i / m->cols + s->half) * m->cols : 0;
    return (char *)(uintptr_t)m->operands.of[s->operand].ptr + (i + before) * s->size;
}

/* Points loads and stores at `tiles` tiles of `count` elements, the first at element `first`,
   `step` apart. Tiles that are not whole parts, and halves that cross a row end, use consecutive
   scratch tiles, which kfi_finish writes back. Returns the slots that use scratch. */
KFI_HOST unsigned kfi_point_tile(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room,
                                 kf_i64 first, int count, int tiles, kf_i64 step)
{
    unsigned indirect = 0;
    t->tiles = tiles;
    t->count = (count + m->part - 1) / m->part * m->part;
    t->stores = 0;
    t->stream = 0;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (s->kind != KFI_SLOT_LOAD && s->kind != KFI_SLOT_STORE) continue;
        char *base = (char *)(uintptr_t)m->operands.of[s->operand].ptr;
        const int parted =
            count < t->count || (kfi_is_half(m, s) && first % m->cols + count > m->cols);
        t->step[k] =
            kfi_is_half(m, s) && step % m->cols == 0 ? 2 * step : step; /* rows hold both halves */
        t->stores |= base && s->kind == KFI_SLOT_STORE;
        if (base && !parted) {
            t->p[k] = kfi_element(m, s, first);
            if ((uintptr_t)t->p[k] % KFI_LINE == 0 && step * s->size % KFI_LINE == 0)
                t->stream |= m->stream & 1u << k;
            continue;
        }
        t->p[k] = room->tile[k];
        t->step[k] = base ? t->count : 0;
        if (!base) continue;
        indirect |= 1u << k;
        for (int u = 0; s->kind == KFI_SLOT_LOAD && u < tiles; ++u) {
            char *tile = room->tile[k] + u * t->count * s->size;
            memset(tile + count * s->size, 0, (size_t)((t->count - count) * s->size));
            kfi_move_elements(m, s, base, tile, first + u * step, count, 0);
        }
    }
    return indirect;
}
/* Writes scratch tiles of stores back to their tensors. */
KFI_HOST void kfi_finish(const kfi_cpu_map *m, const kfi_tile *t, unsigned indirect, kf_i64 first,
                         int count, kf_i64 step)
{
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        char *base = (char *)(uintptr_t)m->operands.of[s->operand].ptr;
        for (int u = 0; (indirect >> k & 1u) && s->kind == KFI_SLOT_STORE && u < t->tiles; ++u)
            kfi_move_elements(m, s, base, (char *)t->p[k] + u * t->count * s->size,
                              first + u * step, count, 1);
    }
}

KFI_C_END

#endif
