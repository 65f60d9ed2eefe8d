/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/map.h: the schedule of the map family on the CPU, the same for every op.

   An op is a function over tiles of 512 elements, whose loop the compiler vectorises. This file walks a tensor, in
   parallel: it gives that function as many whole tiles at a time as it can, copies what is left at an end into scratch
   tiles, repeats row values so that narrow rows fill whole tiles, and adds up reduced gradients. How the work is split
   depends on the op and the shape alone, so results do not depend on the number of threads.

   Callers' threads may have small stacks. What a walk keeps there is KFI_MAX_ROOM bytes, whatever the op: its tiles are smaller
   where it has many operands, and narrow rows are repeated where they fit. */
#ifndef KF_CORE_MAP_H
#define KF_CORE_MAP_H

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
#define KFI_CHUNK 32    /* tiles that a thread takes at a time */
#define KFI_BLOCKS 64   /* parts of a reduced gradient */
#define KFI_PIECE 16    /* elements of a vector, at most */
#define KFI_GROUP 4     /* tiles of other rows but the same columns, whose sums are added up in registers */

typedef struct {
    void *p[KFI_MAX_SLOTS];     /* of the first tile; */
    kf_i64 step[KFI_MAX_SLOTS]; /* the next one's lie so many elements behind */
    int tiles;                  /* any number; of a group KFI_GROUP or 1 */
    int count;                  /* elements of each: whole parts, as many as are computed at a time */
    unsigned stream;            /* bit k: what p[k] points at goes past the caches */
    int stores;                 /* some tensor is written, not sums alone */
    const void *scalars;        /* the op's, then the activation's; float, or double for f64 */
    const uint16_t *keep[KFI_GROUP]; /* dropout: random words of each tile; those from keep_from on are kept */
    uint32_t keep_from;
    double keep_scale;
} kfi_tile;
typedef void (*kfi_tile_fn)(const kfi_tile *t);
/* Whether a tile function streams what slot k points at, by way of a buffer of its own. */
KFI_INLINE int kfi_is_streamed(const kfi_tile *t, int k) { return KFI_STREAMS && (t->stream >> k & 1u); }

/* What stands behind t->p[k]: an operand (its index), or a row value that is derived from row operands. */
enum { KFI_SLOT_LOAD, KFI_SLOT_STORE, KFI_SLOT_ROW, KFI_SLOT_DERIVED, KFI_SLOT_SUM };
typedef struct {
    int kind, operand, half, size;
} kfi_slot;

typedef void (*kfi_row_pass)(void *frame); /* a pass over one row (core/row.h) */
typedef void (*kfi_sum_writer)(void *out, kf_i64 i, const double *v, int count);

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const kfi_row_pass *passes; /* of rows: up to a NULL */
    const kfi_slot *slots;
    int slot_count, sums, acc_size, part;
    kfi_tile_fn tile;
    void (*derive)(const kfi_tile *t, int width); /* derived row values from row values, 16 at a time; NULL: there are none */
    const void *scalars;
    const kf_i64 *integers; /* scalars that are whole numbers */
    const kfi_rng *rng;
    kfi_strides strides; /* of rows */
    void *const *sum_outputs; /* NULL is skipped */
    const kfi_sum_writer *stores; /* of each, in its dtype */
    /* set by the walk */
    kfi_operands operands;
    kf_i64 rows, cols, channels, queries, inner, elements, blocks, per_block;
    kf_i64 piece, parts; /* rows in pieces: elements of one, channels of a group */
    int plane, tile_size;     /* tile_size: elements of a tile */
    unsigned stream; /* bit k: slot k is an output that goes past the caches */
    char *partial;
} kfi_cpu_map;

/* Random words of a group's tiles, at the end of a walk's memory. */
typedef uint16_t kfi_group_words[KFI_TILE + 32];
typedef char kfi_words_fit[KFI_GROUP * sizeof(kfi_group_words) <= KFI_MAX_WORDS ? 1 : -1];

/* A walk's memory: a tile of each slot, and rows with a tile behind them of row values and sums that are repeated. */
typedef struct {
    char *tile[KFI_MAX_SLOTS], *repeated[KFI_MAX_SLOTS];
    KFI_ON_A_LINE char bytes[KFI_MAX_ROOM];
} kfi_room;
/* Its bytes. cols: of a row that is repeated; 0: none is. Row values that are repeated need no tile. */
KFI_HOST kf_i64 kfi_room_bytes(const kfi_cpu_map *m, kf_i64 tile_size, kf_i64 cols)
{
    kf_i64 bytes = 0;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (!cols || s->kind < KFI_SLOT_ROW || s->kind == KFI_SLOT_SUM) bytes += tile_size * s->size;
        if (cols && s->kind >= KFI_SLOT_ROW) bytes += ((cols + tile_size) * s->size + KFI_LINE - 1) / KFI_LINE * KFI_LINE;
    }
    return bytes;
}
/* Whether tiles of so many elements, or of the smaller size that fits, leave room for such rows. least: the smallest that will do. */
KFI_HOST int kfi_size_tiles(kfi_cpu_map *m, kf_i64 cols, int least)
{
    for (m->tile_size = KFI_TILE; m->tile_size >= least; m->tile_size /= 2)
        if (kfi_room_bytes(m, m->tile_size, cols) <= KFI_MAX_ROOM - (m->rng ? KFI_MAX_WORDS : 0)) return 1;
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
        if (cols && row) at += ((cols + m->tile_size) * s->size + KFI_LINE - 1) / KFI_LINE * KFI_LINE;
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
        for (int i = 0; i < m->slot_count; ++i) is_input |= m->slots[i].kind == KFI_SLOT_LOAD && m->operands.of[m->slots[i].operand].ptr == ptr;
        if (!is_input) found |= 1u << k;
    }
    return found;
}

KFI_HOST void kfi_run_tiles(const kfi_cpu_map *m, kfi_tile *t, kfi_room *room, kf_i64 first, kf_i64 step)
{
    kfi_group_words *const words = (kfi_group_words *)(void *)(room->bytes + KFI_MAX_ROOM - KFI_MAX_WORDS);
    for (int u = 0; m->rng && u < t->tiles; ++u) {
        kfi_random_tile(words[u], m->rng, first + u * step);
        t->keep[u] = words[u] + (first + u * step) % 8;
    }
    m->tile(t);
}

/* Whole tiles at the front of `left` elements, as many as a call may have; 1 for what is less than a tile. */
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

KFI_HOST int kfi_is_half(const kfi_cpu_map *m, const kfi_slot *s) { return (m->operands.of[s->operand].flags & KFI_KIND) == KFI_HALF; }

/* Copies `count` elements between a tensor and a scratch tile. A half operand is walked by (row, column) pieces. */
KFI_HOST void kfi_move_elements(const kfi_cpu_map *m, const kfi_slot *s, char *tensor, char *tile, kf_i64 first, int count, int store)
{
    const size_t size = (size_t)s->size;
    if (!kfi_is_half(m, s)) {
        char *at = tensor + first * s->size;
        if (store) memcpy(at, tile, (size_t)count * size);
        else memcpy(tile, at, (size_t)count * size);
        return;
    }
    kf_i64 row = first / m->cols, col = first % m->cols;
    for (int done = 0; done < count;) {
        const kf_i64 room = m->cols - col;
        const int piece = room < count - done ? (int)room : count - done;
        char *at = tensor + (row * 2 * m->cols + s->half * m->cols + col) * s->size;
        if (store) memcpy(at, tile + (size_t)done * size, (size_t)piece * size);
        else memcpy(tile + (size_t)done * size, at, (size_t)piece * size);
        done += piece;
        col = 0;
        ++row;
    }
}

KFI_HOST char *kfi_element(const kfi_cpu_map *m, const kfi_slot *s, kf_i64 i)
{
    const kf_i64 before = kfi_is_half(m, s) ? (i / m->cols + s->half) * m->cols : 0; /* of the other half */
    return (char *)(uintptr_t)m->operands.of[s->operand].ptr + (i + before) * s->size;
}

/* Points loads and stores at `tiles` tiles, the first of elements first .. first + count - 1, the others `step` behind each
   other. Those that are not whole parts, or of halves that reach into the next row, go through scratch, side by side, which `finish`
   writes back: as many as a tile of scratch holds. */
KFI_HOST unsigned kfi_aim(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room, kf_i64 first, int count, int tiles, kf_i64 step)
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
        const int parted = count < t->count || (kfi_is_half(m, s) && first % m->cols + count > m->cols);
        t->step[k] = kfi_is_half(m, s) && step % m->cols == 0 ? 2 * step : step; /* rows of both halves */
        t->stores |= base && s->kind == KFI_SLOT_STORE;
        if (base && !parted) {
            t->p[k] = kfi_element(m, s, first);
            if ((uintptr_t)t->p[k] % KFI_LINE == 0 && step * s->size % KFI_LINE == 0) t->stream |= m->stream & 1u << k;
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
KFI_HOST void kfi_finish(const kfi_cpu_map *m, const kfi_tile *t, unsigned indirect, kf_i64 first, int count, kf_i64 step)
{
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        char *base = (char *)(uintptr_t)m->operands.of[s->operand].ptr;
        for (int u = 0; (indirect >> k & 1u) && s->kind == KFI_SLOT_STORE && u < t->tiles; ++u)
            kfi_move_elements(m, s, base, (char *)t->p[k] + u * t->count * s->size, first + u * step, count, 1);
    }
}

/* Every operand has the result's shape. */
KFI_HOST void kfi_walk_flat(void *context, kf_i64 chunk)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    kf_i64 i = chunk * KFI_CHUNK * KFI_TILE;
    const kf_i64 end = i + KFI_CHUNK * KFI_TILE < m->elements ? i + KFI_CHUNK * KFI_TILE : m->elements;
    kfi_share_room(m, &room, 0);
    for (; i < end; i += (kf_i64)t.tiles * m->tile_size) {
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const unsigned indirect = kfi_aim(m, &t, &room, i, count, kfi_whole(m, end - i), m->tile_size);
        kfi_run_tiles(m, &t, &room, i, m->tile_size);
        if (indirect) kfi_finish(m, &t, indirect, i, count, m->tile_size);
    }
    if (m->stream) kfi_stream_end();
}

/* Adds `count` sums of the accumulator type; the order is the index's. */
KFI_HOST void kfi_add_sums(char *into, const char *from, kf_i64 count, int acc_size)
{
    if (acc_size == 8)
        for (kf_i64 i = 0; i < count; ++i) ((double *)(void *)into)[i] += ((const double *)(const void *)from)[i];
    else
        for (kf_i64 i = 0; i < count; ++i) ((float *)(void *)into)[i] += ((const float *)(const void *)from)[i];
}
KFI_HOST char *kfi_partial(const kfi_cpu_map *m, kf_i64 block, int sum)
{
    const kf_i64 width = m->plane ? m->channels : m->cols;
    return m->partial ? m->partial + ((kf_i64)sum * m->blocks + block) * width * m->acc_size : NULL;
}

/* Row values, repeated until a whole tile fits behind any column, what is derived from them, and sums of nothing. */
KFI_HOST void kfi_repeat_rows(const kfi_cpu_map *m, const kfi_room *room)
{
    const kf_i64 width = m->cols + m->tile_size;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        const char *base = s->kind == KFI_SLOT_ROW ? (const char *)m->operands.of[s->operand].ptr : NULL;
        if (room->repeated[k] && !base) memset(room->repeated[k], 0, (size_t)(width * s->size));
        for (kf_i64 c = 0; base && c < width; c += m->cols)
            memcpy(room->repeated[k] + c * s->size, base, (size_t)((width - c < m->cols ? width - c : m->cols) * s->size));
    }
    if (!m->derive) return;
    kfi_tile r = kfi_make_tile(m);
    for (kf_i64 c = 0; c < width; c += m->tile_size) {
        const kf_i64 from = width - c < m->tile_size ? width - m->tile_size : c; /* the last tile overlaps the one before */
        for (int k = 0; k < m->slot_count; ++k)
            if (m->slots[k].kind == KFI_SLOT_ROW || m->slots[k].kind == KFI_SLOT_DERIVED) r.p[k] = room->repeated[k] + from * m->slots[k].size;
        m->derive(&r, m->tile_size);
    }
}
/* Points row values and sums at those of a column. The sums of a tile that is not whole parts are apart, as some are of elements behind it. */
KFI_HOST void kfi_aim_repeated(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room, kf_i64 col, int count, kf_i64 step)
{
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (!room->repeated[k]) continue;
        t->p[k] = room->repeated[k] + col * s->size;
        t->step[k] = step;
        if (s->kind != KFI_SLOT_SUM || count == t->count) continue;
        t->p[k] = room->tile[k];
        memset(t->p[k], 0, (size_t)(t->count * s->size));
    }
}
KFI_HOST void kfi_take_sums(const kfi_cpu_map *m, const kfi_room *room, kf_i64 col, int count)
{
    for (int k = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind == KFI_SLOT_SUM) kfi_add_sums(room->repeated[k] + col * m->acc_size, room->tile[k], count, m->acc_size);
}
KFI_HOST void kfi_leave_sums(const kfi_cpu_map *m, const kfi_room *room, kf_i64 block)
{
    const kf_i64 width = m->cols + m->tile_size;
    for (int k = 0, n = 0; k < m->slot_count; ++k) {
        if (m->slots[k].kind != KFI_SLOT_SUM) continue;
        char *partial = kfi_partial(m, block, n++);
        if (!partial) continue;
        memset(partial, 0, (size_t)(m->cols * m->acc_size));
        for (kf_i64 c = 0; c < width; c += m->cols)
            kfi_add_sums(partial, room->repeated[k] + c * m->acc_size, width - c < m->cols ? width - c : m->cols, m->acc_size);
    }
}

/* rows x cols with narrow rows: row values are repeated, so that tiles walk over row ends as if the tensor were flat. */
KFI_HOST void kfi_walk_repeat(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    kfi_share_room(m, &room, m->cols);
    kfi_repeat_rows(m, &room);
    kf_i64 i = block * m->per_block * m->cols, col = 0;
    const kf_i64 last = (block + 1) * m->per_block < m->rows ? (block + 1) * m->per_block : m->rows, end = last * m->cols;
    /* Tiles a period apart have the same columns. Groups of them for sums; otherwise neighbours up to the end of the row. */
    kf_i64 period = m->cols, inner = 0;
    while (period % m->tile_size != 0) period *= 2;
    while (i < end) {
        const int group = m->sums && end - i + inner >= KFI_GROUP * period;
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const int tiles = group ? KFI_GROUP : m->sums || end - i < m->cols - col ? 1 : kfi_whole(m, m->cols - col);
        const kf_i64 step = group ? period : m->tile_size;
        const unsigned indirect = kfi_aim(m, &t, &room, i, count, tiles, step);
        kfi_aim_repeated(m, &t, &room, col, count, group ? 0 : m->tile_size);
        kfi_run_tiles(m, &t, &room, i, step);
        if (indirect) kfi_finish(m, &t, indirect, i, count, step);
        if (count < t.count) kfi_take_sums(m, &room, col, count);
        const kf_i64 done = group ? m->tile_size : (kf_i64)tiles * m->tile_size;
        i += done;
        col = (col + done) % m->cols;
        inner = group ? inner + done : 0;
        if (inner == period) {
            i += (KFI_GROUP - 1) * period;
            inner = 0;
        }
    }
    if (m->stream) kfi_stream_end();
    kfi_leave_sums(m, &room, block);
}

/* Tiles that begin at an element of a wide row: those of the rows below for sums and derived row values, its neighbours
   otherwise. first: of its columns in this block. */
KFI_HOST void kfi_walk_tiles(const kfi_cpu_map *m, kfi_tile *t, kfi_room *room, kf_i64 block, kf_i64 row, kf_i64 col, int count, int tiles, int first)
{
    const kf_i64 i = row * m->cols + col, step = m->sums || m->derive ? m->cols : m->tile_size;
    const unsigned indirect = kfi_aim(m, t, room, i, count, tiles, step);
    const int whole = count == t->count;
    for (int k = 0, n = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (s->kind < KFI_SLOT_ROW) continue;
        t->p[k] = room->tile[k];
        t->step[k] = 0;
        if (s->kind == KFI_SLOT_ROW) {
            char *base = (char *)(uintptr_t)m->operands.of[s->operand].ptr;
            if (base && whole) {
                t->p[k] = base + col * s->size;
                t->step[k] = m->sums || m->derive ? 0 : step;
            } else if (!m->derive || first) {
                memset(room->tile[k], 0, (size_t)(t->count * s->size));
            }
            if (base && !whole) memcpy(room->tile[k], base + col * s->size, (size_t)(count * s->size));
        } else if (s->kind == KFI_SLOT_SUM) {
            char *partial = kfi_partial(m, block, n++);
            if (partial && whole) t->p[k] = partial + col * m->acc_size;
            else memset(room->tile[k], 0, (size_t)(t->count * s->size));
        }
    }
    if (m->derive && first) m->derive(t, t->count);
    kfi_run_tiles(m, t, room, i, step);
    if (indirect) kfi_finish(m, t, indirect, i, count, step);
    if (whole) return;
    for (int k = 0, n = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind == KFI_SLOT_SUM) {
            char *partial = kfi_partial(m, block, n++);
            if (partial) kfi_add_sums(partial + col * m->acc_size, room->tile[k], count, m->acc_size);
        }
}

/* The columns of a tile that begins at one: of a row's end as many whole parts as there are, which need no copy, then what is left. */
KFI_HOST int kfi_columns(const kfi_cpu_map *m, kf_i64 col)
{
    const int left = m->cols - col < m->tile_size ? (int)(m->cols - col) : m->tile_size;
    return left < m->part ? left : left / m->part * m->part;
}

/* rows x cols with wide rows: a tile stays in its row, its columns' row values are read in place. */
KFI_HOST void kfi_walk_columns(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    const kf_i64 begin = block * m->per_block, end = begin + m->per_block < m->rows ? begin + m->per_block : m->rows;
    kfi_share_room(m, &room, 0);
    for (int n = 0; n < m->sums; ++n)
        if (m->partial) memset(kfi_partial(m, block, n), 0, (size_t)(m->cols * m->acc_size));
    /* For sums, groups of rows. Derived row values belong to a tile's columns: then the rows are the inner walk, and groups
       cost less calls as well. Otherwise neighbours in a row. */
    const int grouped = m->sums || m->derive;
    for (kf_i64 from = 0, to; from < m->cols; from = to) {
        to = m->derive ? from + kfi_columns(m, from) : m->cols;
        for (kf_i64 row = begin, group; row < end; row += group) {
            group = grouped && end - row >= KFI_GROUP ? KFI_GROUP : 1;
            for (kf_i64 col = from, at = row; col < to;) {
                const int count = kfi_columns(m, col), alone = count < m->part && KFI_GROUP * m->part > m->tile_size;
                const int tiles = grouped ? (alone ? 1 : (int)group) : kfi_whole(m, to - col);
                kfi_walk_tiles(m, &t, &room, block, at, col, count, tiles, at == begin);
                if (grouped && (at += tiles) < row + group) continue;
                at = row;
                col += grouped ? count : (kf_i64)tiles * count;
            }
        }
    }
    if (m->stream) kfi_stream_end();
}

/* The sum of `count` values of the accumulator type: lane l has values l, l + 16, ..., and the lanes are added up in order. */
KFI_HOST double kfi_total(const char *values, int count, int acc_size)
{
    double lane[KFI_PIECE] = {0}, total = 0.0;
    int j = 0;
    for (; j + KFI_PIECE <= count; j += KFI_PIECE)
        if (acc_size == 8)
            for (int l = 0; l < KFI_PIECE; ++l) lane[l] += ((const double *)(const void *)values)[j + l];
        else
            for (int l = 0; l < KFI_PIECE; ++l) lane[l] += (double)((const float *)(const void *)values)[j + l];
    for (int l = 0; l < KFI_PIECE; ++l) total += lane[l];
    for (; j < count; ++j) total += acc_size == 8 ? ((const double *)(const void *)values)[j] : (double)((const float *)(const void *)values)[j];
    return total;
}

/* Adds the tile's sums to the channels that its elements belong to. */
KFI_HOST void kfi_flush_sums(const kfi_cpu_map *m, kfi_tile *t, kf_i64 block, kf_i64 first, int count)
{
    for (int k = 0, n = 0; k < m->slot_count; ++k) {
        if (m->slots[k].kind != KFI_SLOT_SUM) continue;
        char *partial = kfi_partial(m, block, n++), *sum = (char *)t->p[k];
        kf_i64 plane = first / m->inner, at = first % m->inner;
        for (int done = 0; partial && done < count;) {
            const kf_i64 room = m->inner - at;
            const int piece = room < count - done ? (int)room : count - done;
            const double total = kfi_total(sum + (size_t)done * (size_t)m->acc_size, piece, m->acc_size);
            const kf_i64 c = plane % m->channels;
            if (m->acc_size == 8) ((double *)(void *)partial)[c] += total;
            else ((float *)(void *)partial)[c] = (float)((double)((float *)(void *)partial)[c] + total);
            done += piece;
            at = 0;
            ++plane;
        }
        memset(sum, 0, (size_t)(m->tile_size * m->acc_size));
    }
}

/* Row values of a tile that begins at element `at` of a plane; whole: it lies in that plane. */
KFI_HOST void kfi_fill_channels(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room, kf_i64 plane, kf_i64 start, int whole)
{
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (s->kind != KFI_SLOT_ROW) continue;
        const char *base = (const char *)m->operands.of[s->operand].ptr;
        kf_i64 at = start, channel = plane % m->channels;
        for (int done = 0; base && done < m->tile_size;) {
            const kf_i64 left = m->inner - at;
            const int piece = left < m->tile_size - done ? (int)left : m->tile_size - done;
            kfi_fill((unsigned char *)room->tile[k] + done * s->size, base + channel * s->size, piece, s->size);
            done += piece;
            at = 0;
            channel = channel + 1 < m->channels ? channel + 1 : 0;
        }
    }
    if (m->derive) m->derive(t, whole ? KFI_PIECE : m->tile_size);
    for (int k = 0; whole && k < m->slot_count; ++k) /* one channel: all values are the first */
        if (m->slots[k].kind == KFI_SLOT_DERIVED) kfi_fill((unsigned char *)room->tile[k], room->tile[k], m->tile_size, m->slots[k].size);
}

/* outer x channels x inner: flat tiles whose row values are filled in by channel. */
KFI_HOST void kfi_walk_planes(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    kf_i64 i = block * m->per_block * KFI_TILE, filled = -1, summed = -1; /* planes that the row values and sums stand for */
    const kf_i64 end = i + m->per_block * KFI_TILE < m->elements ? i + m->per_block * KFI_TILE : m->elements;
    kfi_share_room(m, &room, 0);
    for (int n = 0; n < m->sums; ++n)
        if (m->partial) memset(kfi_partial(m, block, n), 0, (size_t)(m->channels * m->acc_size));
    for (int k = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind >= KFI_SLOT_ROW) {
            memset(room.tile[k], 0, (size_t)(m->tile_size * m->slots[k].size));
            t.p[k] = room.tile[k];
        }
    for (; i < end; i += (kf_i64)t.tiles * m->tile_size) {
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const kf_i64 plane = i / m->inner, left = (plane + 1) * m->inner - i; /* of the plane */
        const int tiles = kfi_whole(m, left < end - i ? left : end - i);
        const int whole = left >= m->tile_size; /* the tile lies in one plane */
        if (m->sums && summed >= 0 && (!whole || summed != plane)) kfi_flush_sums(m, &t, block, summed * m->inner, m->tile_size);
        summed = whole && count == m->tile_size ? plane : -1;
        if (!whole || filled != plane) {
            kfi_fill_channels(m, &t, &room, plane, i - plane * m->inner, whole);
            filled = whole ? plane : -1;
        }
        const unsigned indirect = kfi_aim(m, &t, &room, i, count, m->sums ? 1 : tiles, m->tile_size); /* groups of neighbours: slower */
        kfi_run_tiles(m, &t, &room, i, m->tile_size);
        if (indirect) kfi_finish(m, &t, indirect, i, count, m->tile_size);
        if (m->sums && summed < 0) kfi_flush_sums(m, &t, block, i, count);
    }
    if (m->sums && summed >= 0) kfi_flush_sums(m, &t, block, summed * m->inner, m->tile_size);
    if (m->stream) kfi_stream_end();
}

KFI_HOST kf_i64 kfi_blocks_of(kf_i64 rows, kf_i64 elements)
{
    const kf_i64 wanted = elements / (4 * KFI_CHUNK * KFI_TILE), most = wanted < KFI_BLOCKS ? wanted : KFI_BLOCKS;
    return most < 1 ? 1 : most > rows ? (rows > 0 ? rows : 1) : most;
}

KFI_HOST size_t kfi_cpu_workspace(kf_i64 rows, kf_i64 channels, kf_i64 cols, int is_channel, int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, is_channel ? channels : 1)) return 0;
    const kf_i64 width = is_channel ? channels : cols, elements = rows * cols * (is_channel ? channels : 1);
    const int plane = is_channel && cols > 1;
    const kf_i64 blocks = kfi_blocks_of(plane ? (elements + KFI_TILE - 1) / KFI_TILE : rows, elements);
    return kfi_workspace((size_t)(blocks * width) * (size_t)(sums * acc_size));
}

KFI_HOST kf_result_t kfi_cpu_flat(kfi_cpu_map *m, kf_i64 n)
{
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = 1;
    shape.channels = 0;
    shape.cols = n;
    shape.parts = 0;
    kf_result_t result = kfi_check_sizes(&m->name, "n", &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    m->elements = n;
    m->stream = kfi_streams(m);
    kfi_size_tiles(m, 0, m->part);
    kfi_parallel((n + KFI_CHUNK * KFI_TILE - 1) / (KFI_CHUNK * KFI_TILE), kfi_walk_flat, m, n >= KF_OMP_MIN);
    return KF_SUCCESS;
}

/* The second stage: adds up a tile of columns' partial sums in the order of the blocks. */
KFI_HOST void kfi_sum_partials(void *context, kf_i64 tile)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    const kf_i64 width = m->plane ? m->channels : m->cols, col = tile * KFI_TILE;
    const int count = width - col < KFI_TILE ? (int)(width - col) : KFI_TILE;
    for (int k = 0; k < m->sums; ++k) {
        double total[KFI_TILE];
        if (!m->sum_outputs[k]) continue;
        memset(total, 0, sizeof total);
        for (kf_i64 b = 0; b < m->blocks; ++b) {
            const char *partial = kfi_partial(m, b, k) + col * m->acc_size;
            if (m->acc_size == 8)
                for (int j = 0; j < count; ++j) total[j] += ((const double *)(const void *)partial)[j];
            else
                for (int j = 0; j < count; ++j) total[j] += (double)((const float *)(const void *)partial)[j];
        }
        m->stores[k](m->sum_outputs[k], col, total, count);
    }
}

/* rows x cols, or outer x channels x inner (channels > 0; sizes are checked by then). */
KFI_HOST kf_result_t kfi_cpu_grid(kfi_cpu_map *m, kf_i64 rows, kf_i64 channels, kf_i64 cols, int is_channel, void *workspace, size_t workspace_bytes)
{
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = rows;
    shape.channels = channels;
    shape.cols = cols;
    shape.parts = 0;
    const kf_i64 width = is_channel ? channels : cols;
    m->elements = is_channel ? rows * channels * cols : rows * cols;
    if (m->sums ? width == 0 : m->elements == 0) return KF_SUCCESS;
    kf_result_t result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    int wanted = 0;
    for (int k = 0; k < m->sums && !wanted; ++k) wanted = m->sum_outputs[k] != NULL;
    const size_t needed = m->sums ? kfi_cpu_workspace(rows, channels, cols, is_channel, m->sums, m->acc_size) : 0;
    result = kfi_check_workspace(&m->name, &m->arguments, &m->operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    m->partial = wanted ? (char *)workspace : NULL;
    m->plane = is_channel && cols > 1;
    m->channels = channels;
    m->inner = cols;
    m->rows = rows;
    m->cols = is_channel && !m->plane ? channels : cols;
    if (m->elements == 0) m->rows = 0;
    m->stream = kfi_streams(m);
    const kf_i64 units = m->plane ? (m->elements + KFI_TILE - 1) / KFI_TILE : m->rows;
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE;
    /* Reduced gradients: as many parts as the workspace was asked for. Otherwise chunks of a fixed size. */
    m->blocks = m->sums ? kfi_blocks_of(m->plane ? (m->elements + KFI_TILE - 1) / KFI_TILE : rows, m->elements) : (m->elements + chunk - 1) / chunk;
    if (m->blocks > units) m->blocks = units > 0 ? units : 1;
    m->per_block = (units + m->blocks - 1) / m->blocks;
    /* Rows of whole parts are as well walked over one by one as repeated on smaller tiles. */
    const int repeat = !m->plane && m->cols <= KFI_REPEAT && kfi_size_tiles(m, m->cols, m->cols % m->part ? m->part : KFI_TILE);
    if (!repeat) kfi_size_tiles(m, 0, m->part);
    kfi_parallel(m->blocks, m->plane ? kfi_walk_planes : repeat ? kfi_walk_repeat : kfi_walk_columns, m, m->elements >= KF_OMP_MIN);
    if (wanted) kfi_parallel((width + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, m, m->blocks * width >= KF_OMP_MIN);
    return KF_SUCCESS;
}

#define KFI_STORE_SUM(name, type, value) \
    KFI_HOST void kfi_store_sum_##name(void *out, kf_i64 i, const double *v, int count) \
    { \
        for (int j = 0; j < count; ++j) ((type *)out)[i + j] = value; \
    }
KFI_STORE_SUM(f32, float, (float)v[j])
KFI_STORE_SUM(f64, double, v[j])
KFI_STORE_SUM(f16, kf_f16, kfi_cpu_cast_f64_f16(v[j]))
KFI_STORE_SUM(bf16, kf_bf16, kfi_cpu_cast_f64_bf16(v[j]))

KFI_INLINE uint32_t kfi_cpu_keep(uint16_t word, uint32_t from) { return 0u - (uint32_t)(word >= from); }
/* A condition per element of 8 bytes from one of 4. */
KFI_INLINE uint64_t kfi_cpu_wide(uint32_t mask) { return (uint64_t)(int64_t)(int32_t)mask; }

KFI_C_END

#endif
