/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/elementwise/tile.h: a tile of an op on the CPU: what its function is given, where its operands
 * are, what is copied at an end. */
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
#define KFI_GROUP                                                                                  \
    4 /* tiles of other rows but the same columns, whose sums are added up in registers */

typedef struct {
    void *p[KFI_MAX_SLOTS];     /* of the first tile; */
    kf_i64 step[KFI_MAX_SLOTS]; /* the next one's lie so many elements behind */
    int tiles;                  /* any number; of a group KFI_GROUP or 1 */
    int count;           /* elements of each: whole parts, as many as are computed at a time */
    unsigned stream;     /* bit k: what p[k] points at goes past the caches */
    int stores;          /* some tensor is written, not sums alone */
    const void *scalars; /* the op's, then the activation's; float, or double for f64 */
    const uint16_t
        *keep[KFI_GROUP]; /* dropout: random words of each tile; those from keep_from on are kept */
    uint32_t keep_from;
    double keep_scale;
} kfi_tile;
typedef void (*kfi_tile_fn)(const kfi_tile *t);
/* Whether a tile function streams what slot k points at, by way of a buffer of its own. */
KFI_INLINE int kfi_is_streamed(const kfi_tile *t, int k)
{
    return KFI_STREAMS && (t->stream >> k & 1u);
}

/* What stands behind t->p[k]: an operand (its index), or a row value that is derived from row
 * operands. */
enum { KFI_SLOT_LOAD, KFI_SLOT_STORE, KFI_SLOT_ROW, KFI_SLOT_DERIVED, KFI_SLOT_SUM };
typedef struct {
    int kind, operand, half, size;
} kfi_slot;

typedef void (*kfi_row_pass)(void *frame); /* a pass over one row (core/rows/rows.h) */
typedef void (*kfi_sum_writer)(void *out, kf_i64 i, const double *v, int count);

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const kfi_row_pass *passes; /* of rows: up to a NULL */
    const kfi_slot *slots;
    int slot_count, sums, acc_size, part;
    kfi_tile_fn tile;
    void (*derive)(
        const kfi_tile *t,
        int width); /* derived row values from row values, 16 at a time; NULL: there are none */
    const void *scalars;
    const kf_i64 *integers; /* scalars that are whole numbers */
    const kfi_rng *rng;
    kfi_strides strides;          /* of rows */
    void *const *sum_outputs;     /* NULL is skipped */
    const kfi_sum_writer *stores; /* of each, in its dtype */
    /* set by the traversal */
    kfi_operands operands;
    kf_i64 rows, cols, channels, queries, inner, elements, blocks, per_block;
    kf_i64 segment, parts; /* rows in segments: elements of one, channels of a group */
    int plane, tile_size;  /* tile_size: elements of a tile */
    unsigned stream;       /* bit k: slot k is an output that goes past the caches */
    char *partial;
} kfi_cpu_map;

/* Random words of a group's tiles, at the end of a traversal's memory. */
typedef uint16_t kfi_group_words[KFI_TILE + 32];
typedef char kfi_words_fit[KFI_GROUP * sizeof(kfi_group_words) <= KFI_MAX_WORDS ? 1 : -1];

/* A traversal's memory: a tile of each slot, and rows with a tile behind them of row values and
 * sums that are repeated. */
typedef struct {
    char *tile[KFI_MAX_SLOTS], *repeated[KFI_MAX_SLOTS];
    KFI_ON_A_LINE char bytes[KFI_MAX_ROOM];
} kfi_room;
/* Its bytes. cols: of a row that is repeated; 0: none is. Row values that are repeated need no
 * tile. */
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
/* Whether tiles of so many elements, or of the smaller size that fits, leave room for such rows.
 * least: the smallest that will do. */
KFI_HOST int kfi_size_tiles(kfi_cpu_map *m, kf_i64 cols, int least)
{
    for (m->tile_size = KFI_TILE; m->tile_size >= least; m->tile_size /= 2)
        if (kfi_room_bytes(m, m->tile_size, cols) <= KFI_MAX_ROOM - (m->rng ? KFI_MAX_WORDS : 0))
            return 1;
    return 0;
}
KFI_HOST void kfi_share_room(const kfi_cpu_map *m, kfi_room *room, kf_i64 cols)
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

/* Large outputs that are no input: such a one's lines are in the cache already. */
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

/* Whole tiles at the front of `left` elements, as many as a call may have; 1 for what is less than
 * a tile. */
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

/* `count` copies of one element, which may be the first. */
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
    return (m->operands.of[s->operand].flags & KFI_KIND) == KFI_HALF;
}

/* Copies `count` elements between a tensor and a scratch tile. A half operand is traversed by (row,
 * column) segments. */
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
    const kf_i64 before =
        kfi_is_half(m, s) ? (i / m->cols + s->half) * m->cols : 0; /* of the other half */
    return (char *)(uintptr_t)m->operands.of[s->operand].ptr + (i + before) * s->size;
}

/* Points loads and stores at `tiles` tiles, the first of elements first .. first + count - 1, the
   others `step` behind each other. Those that are not whole parts, or of halves that reach into the
   next row, go through scratch, side by side, which `finish` writes back: as many as a tile of
   scratch holds. */
KFI_HOST unsigned kfi_aim(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room, kf_i64 first,
                          int count, int tiles, kf_i64 step)
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
            kfi_is_half(m, s) && step % m->cols == 0 ? 2 * step : step; /* rows of both halves */
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
