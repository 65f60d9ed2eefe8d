/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/elementwise/traverse.h: traversals of an elementwise op on the CPU (flat, repeated narrow
 * rows, tiles of wide rows, planes) and the reduced gradients of a block. */
#ifndef KF_CORE_ELEMENTWISE_TRAVERSE_H
#define KF_CORE_ELEMENTWISE_TRAVERSE_H

#include "kf/core/host.h"

#include "kf/core/elementwise/tile.h"

KFI_C_BEGIN

/* Traverses tensors that all have the result's shape. */
KFI_HOST void kfi_traverse_flat(void *context, kf_i64 chunk)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    kf_i64 i = chunk * KFI_CHUNK * KFI_TILE;
    const kf_i64 end =
        i + KFI_CHUNK * KFI_TILE < m->elements ? i + KFI_CHUNK * KFI_TILE : m->elements;
    kfi_assign_room(m, &room, 0);
    for (; i < end; i += (kf_i64)t.tiles * m->tile_size) {
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const unsigned indirect =
            kfi_point_tile(m, &t, &room, i, count, kfi_whole(m, end - i), m->tile_size);
        kfi_run_tiles(m, &t, &room, i, m->tile_size);
        if (indirect) kfi_finish(m, &t, indirect, i, count, m->tile_size);
    }
    if (m->stream) kfi_stream_end();
}

/* Adds `count` sums of the accumulator type in index order. */
KFI_HOST void kfi_add_sums(char *into, const char *from, kf_i64 count, int acc_size)
{
    if (acc_size == 8)
        for (kf_i64 i = 0; i < count; ++i)
            ((double *)(void *)into)[i] += ((const double *)(const void *)from)[i];
    else
        for (kf_i64 i = 0; i < count; ++i)
            ((float *)(void *)into)[i] += ((const float *)(const void *)from)[i];
}
KFI_HOST char *kfi_partial(const kfi_cpu_map *m, kf_i64 block, int sum)
{
    const kf_i64 width = m->plane ? m->channels : m->cols;
    return m->partial ? m->partial + ((kf_i64)sum * m->blocks + block) * width * m->acc_size : NULL;
}

/* Repeats row values until a whole tile fits behind any column, derives values from them and clears
 * the sums. */
KFI_HOST void kfi_repeat_rows(const kfi_cpu_map *m, const kfi_room *room)
{
    const kf_i64 width = m->cols + m->tile_size;
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        const char *base =
            s->kind == KFI_SLOT_ROW ? (const char *)m->operands.of[s->operand].ptr : NULL;
        if (room->repeated[k] && !base) memset(room->repeated[k], 0, (size_t)(width * s->size));
        for (kf_i64 c = 0; base && c < width; c += m->cols)
            memcpy(room->repeated[k] + c * s->size, base,
                   (size_t)((width - c < m->cols ? width - c : m->cols) * s->size));
    }
    if (!m->derive) return;
    kfi_tile r = kfi_make_tile(m);
    for (kf_i64 c = 0; c < width; c += m->tile_size) {
        /* The last tile overlaps the previous one. */
        const kf_i64 from = width - c < m->tile_size ? width - m->tile_size : c;
        for (int k = 0; k < m->slot_count; ++k)
            if (m->slots[k].kind == KFI_SLOT_ROW || m->slots[k].kind == KFI_SLOT_DERIVED)
                r.p[k] = room->repeated[k] + from * m->slots[k].size;
        m->derive(&r, m->tile_size);
    }
}
/* Points row values and sums at a column. A tile that is not whole parts has separate sums, since
 * some of its elements lie past the end. */
KFI_HOST void kfi_point_repeated(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room,
                                 kf_i64 col, int count, kf_i64 step)
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
KFI_HOST void kfi_add_tile_sums(const kfi_cpu_map *m, const kfi_room *room, kf_i64 col, int count)
{
    for (int k = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind == KFI_SLOT_SUM)
            kfi_add_sums(room->repeated[k] + col * m->acc_size, room->tile[k], count, m->acc_size);
}
KFI_HOST void kfi_store_partial_sums(const kfi_cpu_map *m, const kfi_room *room, kf_i64 block)
{
    const kf_i64 width = m->cols + m->tile_size;
    for (int k = 0, n = 0; k < m->slot_count; ++k) {
        if (m->slots[k].kind != KFI_SLOT_SUM) continue;
        char *partial = kfi_partial(m, block, n++);
        if (!partial) continue;
        memset(partial, 0, (size_t)(m->cols * m->acc_size));
        for (kf_i64 c = 0; c < width; c += m->cols)
            kfi_add_sums(partial, room->repeated[k] + c * m->acc_size,
                         width - c < m->cols ? width - c : m->cols, m->acc_size);
    }
}

/* Traverses rows x cols with narrow rows. Row values are repeated, so that tiles cross row ends as
 * if the tensor were flat. */
KFI_HOST void kfi_traverse_repeated(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    kfi_assign_room(m, &room, m->cols);
    kfi_repeat_rows(m, &room);
    kf_i64 i = block * m->per_block * m->cols, col = 0;
    const kf_i64 last = (block + 1) * m->per_block < m->rows ? (block + 1) * m->per_block : m->rows,
                 end = last * m->cols;
    /* Tiles one period apart have the same columns. Sums use groups of these; other ops use
     * neighbouring tiles up to the end of the row. */
    kf_i64 period = m->cols, inner = 0;
    while (period % m->tile_size != 0) period *= 2;
    while (i < end) {
        const int group = m->sums && end - i + inner >= KFI_GROUP * period;
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const int tiles = group                                ? KFI_GROUP
                          : m->sums || end - i < m->cols - col ? 1
                                                               : kfi_whole(m, m->cols - col);
        const kf_i64 step = group ? period : m->tile_size;
        const unsigned indirect = kfi_point_tile(m, &t, &room, i, count, tiles, step);
        kfi_point_repeated(m, &t, &room, col, count, group ? 0 : m->tile_size);
        kfi_run_tiles(m, &t, &room, i, step);
        if (indirect) kfi_finish(m, &t, indirect, i, count, step);
        if (count < t.count) kfi_add_tile_sums(m, &room, col, count);
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
    kfi_store_partial_sums(m, &room, block);
}

/* Runs the tiles that begin at an element of a wide row: tiles of the rows below for sums and
   derived row values, neighbouring tiles otherwise. first: the block's first tile of these columns.
 */
KFI_HOST void kfi_traverse_tiles(const kfi_cpu_map *m, kfi_tile *t, kfi_room *room, kf_i64 block,
                                 kf_i64 row, kf_i64 col, int count, int tiles, int first)
{
    const kf_i64 i = row * m->cols + col, step = m->sums || m->derive ? m->cols : m->tile_size;
    const unsigned indirect = kfi_point_tile(m, t, room, i, count, tiles, step);
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
            if (base && !whole)
                memcpy(room->tile[k], base + col * s->size, (size_t)(count * s->size));
        } else if (s->kind == KFI_SLOT_SUM) {
            char *partial = kfi_partial(m, block, n++);
            if (partial && whole)
                t->p[k] = partial + col * m->acc_size;
            else
                memset(room->tile[k], 0, (size_t)(t->count * s->size));
        }
    }
    if (m->derive && first) m->derive(t, t->count);
    kfi_run_tiles(m, t, room, i, step);
    if (indirect) kfi_finish(m, t, indirect, i, count, step);
    if (whole) return;
    for (int k = 0, n = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind == KFI_SLOT_SUM) {
            char *partial = kfi_partial(m, block, n++);
            if (partial)
                kfi_add_sums(partial + col * m->acc_size, room->tile[k], count, m->acc_size);
        }
}

/* Returns the columns of a tile that begins at `col`. A row's end gives whole parts first, which
 * need no copy, then the rest. */
KFI_HOST int kfi_columns(const kfi_cpu_map *m, kf_i64 col)
{
    const int left = m->cols - col < m->tile_size ? (int)(m->cols - col) : m->tile_size;
    return left < m->part ? left : left / m->part * m->part;
}

/* Traverses rows x cols with wide rows. A tile stays in its row; row values are read in place. */
KFI_HOST void kfi_traverse_columns(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    const kf_i64 begin = block * m->per_block,
                 end = begin + m->per_block < m->rows ? begin + m->per_block : m->rows;
    kfi_assign_room(m, &room, 0);
    for (int n = 0; n < m->sums; ++n)
        if (m->partial) memset(kfi_partial(m, block, n), 0, (size_t)(m->cols * m->acc_size));
    /* Sums use groups of rows. Derived row values belong to a tile's columns, so rows are the inner
       loop and groups save calls. Other ops use neighbouring tiles of a row. */
    const int grouped = m->sums || m->derive;
    for (kf_i64 from = 0, to; from < m->cols; from = to) {
        to = m->derive ? from + kfi_columns(m, from) : m->cols;
        for (kf_i64 row = begin, group; row < end; row += group) {
            group = grouped && end - row >= KFI_GROUP ? KFI_GROUP : 1;
            for (kf_i64 col = from, at = row; col < to;) {
                const int count = kfi_columns(m, col),
                          alone = count < m->part && KFI_GROUP * m->part > m->tile_size;
                const int tiles = grouped ? (alone ? 1 : (int)group) : kfi_whole(m, to - col);
                kfi_traverse_tiles(m, &t, &room, block, at, col, count, tiles, at == begin);
                if (grouped && (at += tiles) < row + group) continue;
                at = row;
                col += grouped ? count : (kf_i64)tiles * count;
            }
        }
    }
    if (m->stream) kfi_stream_end();
}

/* Sums `count` values of the accumulator type. Lane l adds values l, l + 16, ...; then the lanes
 * are added in order. */
KFI_HOST double kfi_total(const char *values, int count, int acc_size)
{
    double lane[KFI_SIMD] = {0}, total = 0.0;
    int j = 0;
    for (; j + KFI_SIMD <= count; j += KFI_SIMD)
        if (acc_size == 8)
            for (int l = 0; l < KFI_SIMD; ++l)
                lane[l] += ((const double *)(const void *)values)[j + l];
        else
            for (int l = 0; l < KFI_SIMD; ++l)
                lane[l] += (double)((const float *)(const void *)values)[j + l];
    for (int l = 0; l < KFI_SIMD; ++l) total += lane[l];
    for (; j < count; ++j)
        total += acc_size == 8 ? ((const double *)(const void *)values)[j]
                               : (double)((const float *)(const void *)values)[j];
    return total;
}

/* Adds the tile's sums to the channels that its elements belong to. */
KFI_HOST void kfi_flush_sums(const kfi_cpu_map *m, kfi_tile *t, kf_i64 block, kf_i64 first,
                             int count)
{
    for (int k = 0, n = 0; k < m->slot_count; ++k) {
        if (m->slots[k].kind != KFI_SLOT_SUM) continue;
        char *partial = kfi_partial(m, block, n++), *sum = (char *)t->p[k];
        kf_i64 plane = first / m->inner, at = first % m->inner;
        for (int done = 0; partial && done < count;) {
            const kf_i64 room = m->inner - at;
            const int segment = room < count - done ? (int)room : count - done;
            const double total =
                kfi_total(sum + (size_t)done * (size_t)m->acc_size, segment, m->acc_size);
            const kf_i64 c = plane % m->channels;
            if (m->acc_size == 8)
                ((double *)(void *)partial)[c] += total;
            else
                ((float *)(void *)partial)[c] =
                    (float)((double)((float *)(void *)partial)[c] + total);
            done += segment;
            at = 0;
            ++plane;
        }
        memset(sum, 0, (size_t)(m->tile_size * m->acc_size));
    }
}

/* Fills the row values of a tile that begins at element `start` of a plane. whole: the tile does
 * not leave the plane. */
KFI_HOST void kfi_fill_channels(const kfi_cpu_map *m, kfi_tile *t, const kfi_room *room,
                                kf_i64 plane, kf_i64 start, int whole)
{
    for (int k = 0; k < m->slot_count; ++k) {
        const kfi_slot *s = &m->slots[k];
        if (s->kind != KFI_SLOT_ROW) continue;
        const char *base = (const char *)m->operands.of[s->operand].ptr;
        kf_i64 at = start, channel = plane % m->channels;
        for (int done = 0; base && done < m->tile_size;) {
            const kf_i64 left = m->inner - at;
            const int segment = left < m->tile_size - done ? (int)left : m->tile_size - done;
            kfi_fill((unsigned char *)room->tile[k] + done * s->size, base + channel * s->size,
                     segment, s->size);
            done += segment;
            at = 0;
            channel = channel + 1 < m->channels ? channel + 1 : 0;
        }
    }
    if (m->derive) m->derive(t, whole ? KFI_SIMD : m->tile_size);
    for (int k = 0; whole && k < m->slot_count; ++k) /* one channel: all values are equal */
        if (m->slots[k].kind == KFI_SLOT_DERIVED)
            kfi_fill((unsigned char *)room->tile[k], room->tile[k], m->tile_size, m->slots[k].size);
}

/* Traverses outer x channels x inner in flat tiles; row values are filled in by channel. */
KFI_HOST void kfi_traverse_planes(void *context, kf_i64 block)
{
    const kfi_cpu_map *m = (const kfi_cpu_map *)context;
    kfi_room room;
    kfi_tile t = kfi_make_tile(m);
    /* Planes of the current row values (filled) and of the current sums (summed). */
    kf_i64 i = block * m->per_block * KFI_TILE, filled = -1, summed = -1;
    const kf_i64 end =
        i + m->per_block * KFI_TILE < m->elements ? i + m->per_block * KFI_TILE : m->elements;
    kfi_assign_room(m, &room, 0);
    for (int n = 0; n < m->sums; ++n)
        if (m->partial) memset(kfi_partial(m, block, n), 0, (size_t)(m->channels * m->acc_size));
    for (int k = 0; k < m->slot_count; ++k)
        if (m->slots[k].kind >= KFI_SLOT_ROW) {
            memset(room.tile[k], 0, (size_t)(m->tile_size * m->slots[k].size));
            t.p[k] = room.tile[k];
        }
    for (; i < end; i += (kf_i64)t.tiles * m->tile_size) {
        const int count = end - i < m->tile_size ? (int)(end - i) : m->tile_size;
        const kf_i64 plane = i / m->inner, left = (plane + 1) * m->inner - i;
        const int tiles = kfi_whole(m, left < end - i ? left : end - i);
        const int whole = left >= m->tile_size; /* the tile stays in one plane */
        if (m->sums && summed >= 0 && (!whole || summed != plane))
            kfi_flush_sums(m, &t, block, summed * m->inner, m->tile_size);
        summed = whole && count == m->tile_size ? plane : -1;
        if (!whole || filled != plane) {
            kfi_fill_channels(m, &t, &room, plane, i - plane * m->inner, whole);
            filled = whole ? plane : -1;
        }
        /* Sums take one tile at a time: groups of neighbours were slower. */
        const unsigned indirect =
            kfi_point_tile(m, &t, &room, i, count, m->sums ? 1 : tiles, m->tile_size);
        kfi_run_tiles(m, &t, &room, i, m->tile_size);
        if (indirect) kfi_finish(m, &t, indirect, i, count, m->tile_size);
        if (m->sums && summed < 0) kfi_flush_sums(m, &t, block, i, count);
    }
    if (m->sums && summed >= 0) kfi_flush_sums(m, &t, block, summed * m->inner, m->tile_size);
    if (m->stream) kfi_stream_end();
}

KFI_C_END

#endif
