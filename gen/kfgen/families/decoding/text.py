# SPDX-License-Identifier: Apache-2.0
"""Functions of decoding as statements of NumPy or PyTorch."""

from kfgen.language.formulas import LIBRARIES

# The row of a cache, among all rows, for each row of a sequence; the number of rows if it has no
# memory: caches get a row of NaN there.
TABLE = """
table_ = {name}.arange(batch{device}).reshape(batch, 1) if {table} is None else {table}
table_ = {join}((table_, {minus}), 1)
pages_ = 1 if {table} is None else pages
"""
PLACE = """
page_ = {bounded_page}
block_ = {name}.take_along_axis(table_, page_, 1)
there_ = (at_ >= 0) & (at_ < pages_ * page_size) & (block_ >= 0) & (block_ < blocks)
place_ = {name}.where(there_, block_ * page_size + at_ % max(page_size, 1), blocks * page_size)
"""
KEYS = """
at_ = {name}.arange(pages_ * page_size{device}).reshape(1, pages_ * page_size)
at_ = {name}.broadcast_to(at_, (batch, pages_ * page_size))
"""
DECODE = """
keys_, group_ = pages_ * page_size, heads // max(kv_heads, 1)
k_ = {join}(({k}.reshape(blocks * page_size, kv_heads, dim), {nan_k}), 0)[place_]
v_ = {join}(({v}.reshape(blocks * page_size, kv_heads, dim_v), {nan_v}), 0)[place_]
k_ = k_.reshape(batch, keys_, kv_heads, 1, dim)
k_ = {name}.broadcast_to(k_, (batch, keys_, kv_heads, group_, dim))
v_ = v_.reshape(batch, keys_, kv_heads, 1, dim_v)
v_ = {name}.broadcast_to(v_, (batch, keys_, kv_heads, group_, dim_v))
k_ = k_.reshape(batch, keys_, heads, dim).swapaxes(1, 2)
v_ = v_.reshape(batch, keys_, heads, dim_v).swapaxes(1, 2)
count_ = {count}.reshape(batch, 1, 1, 1)
column_ = {name}.arange(keys_{device}).reshape(1, 1, 1, keys_)
query_ = {name}.arange(queries{device}).reshape(1, 1, queries, 1) + count_ - queries
seen_ = (column_ < count_) & (column_ >= query_ - min(left, 2**40))
seen_ = seen_ & (column_ <= query_ + max(min(right, 2**40), -(2**40)))
score_ = {q}.swapaxes(1, 2) @ k_.swapaxes(2, 3) * scale
score_ = {name}.where(there_.reshape(batch, 1, 1, keys_), score_, float('nan'))
score_ = {name}.where(seen_, score_, float('-inf'))
none_ = {none}
most_ = {most}
least_ = {name}.where(most_ == float('-inf'), 0.0, most_)
weight_ = {name}.exp(score_ - least_[..., None])
sum_ = {name}.sum(weight_, 3)
bad_ = (count_ < 0) | (count_ > keys_)
lse = {name}.where(bad_[..., 0], float('nan'), most_ + {name}.log(sum_))
weight_ = weight_ / {name}.where(sum_ == 0, 1.0, sum_)[..., None]
seen_ = {name}.where(weight_ != 0, 1.0, 0.0)
plus_ = seen_ @ {name}.where(v_ < float('inf'), 0.0, 1.0)
minus_ = seen_ @ {name}.where(v_ > float('-inf'), 0.0, 1.0)
out = weight_ @ {name}.where({name}.abs(v_) < float('inf'), v_, 0.0)
out = {name}.where(plus_ > 0, out + float('inf'), out)
out = {name}.where(minus_ > 0, out - float('inf'), out)
out = {name}.where(bad_, float('nan'), out).swapaxes(1, 2)
"""
NEW = """
new_ = {name}.arange(queries{device}).reshape(1, queries)
at_ = {count}.reshape(batch, 1) + new_
angle_ = at_ if {position} is None else {position}
angle_ = {name}.where((angle_ >= 0) & (angle_ < positions), angle_, positions)
"""
ANGLE = """
{short}_ = {value} if {angle} is None else {join}(({angle}, {nan_angle}), 0)[angle_].reshape(\
batch, queries, 1, pairs)
"""
HALVES = """
a_, b_ = {k}[..., :pairs], {k}[..., pairs : 2 * pairs]
k_ = {join}((a_ * c_ - b_ * s_, b_ * c_ + a_ * s_, {k}[..., 2 * pairs :]), 3)
"""
NEIGHBOURS = """
a_, b_ = {k}[..., 0 : 2 * pairs : 2], {k}[..., 1 : 2 * pairs : 2]
a_, b_ = a_ * c_ - b_ * s_, b_ * c_ + a_ * s_
shape_ = (batch, queries, kv_heads, pairs, 1)
k_ = {join}((a_.reshape(shape_), b_.reshape(shape_)), 4)
k_ = k_.reshape(batch, queries, kv_heads, 2 * pairs)
k_ = {join}((k_, {k}[..., 2 * pairs :]), 3)
"""
# The new row of each row of the caches, or one behind them.
APPEND = """
k_ = {k} if {cosine} is None and {sine} is None else k_
cell_ = {name}.arange(blocks * page_size{device}).reshape(blocks * page_size, 1)
owner_ = {name}.arange(batch * queries{device}).reshape(1, batch * queries) + 1
owner_ = (cell_ == place_.reshape(1, batch * queries)) * owner_
owner_ = {name}.{largest}({join}((cell_ * 0, owner_), 1), 1)
hit_ = owner_.reshape(blocks, page_size, 1, 1) > 0
k_ = {join}(({nan_k}, k_.reshape(batch * queries, kv_heads, dim)), 0)[owner_]
v_ = {join}(({nan_v}, {v}.reshape(batch * queries, kv_heads, dim_v)), 0)[owner_]
{k_cache} = {name}.where(hit_, k_.reshape(blocks, page_size, kv_heads, dim), {k_cache})
{v_cache} = {name}.where(hit_, v_.reshape(blocks, page_size, kv_heads, dim_v), {v_cache})
"""
WEIGHTS = """
most_ = {name}.maximum({la}, {lb})
least_ = {name}.where(most_ == float('-inf'), 0.0, most_)
ea_, eb_ = {name}.exp({la} - least_), {name}.exp({lb} - least_)
sum_ = {name}.where(ea_ + eb_ == 0, 1.0, ea_ + eb_)
wa_ = (ea_ / sum_).swapaxes(1, 2)[..., None]
wb_ = (eb_ / sum_).swapaxes(1, 2)[..., None]
"""
MERGE = """
lse = most_ + {name}.log(sum_)
out = {name}.where(wa_ == 0, 0.0, {a} * wa_) + {name}.where(wb_ == 0, 0.0, {b} * wb_)
"""
MERGE_BWD = """
dlse_ = 0.0 if dlse is None else dlse
both_ = {name}.where((wa_ == 0) | (wb_ == 0), 0.0, dout * ({a} - {b}) * (wa_ * wb_))
both_ = {name}.sum(both_, 3).swapaxes(1, 2)
d{a} = {name}.where(wa_ == 0, 0.0, dout * wa_)
d{b} = {name}.where(wb_ == 0, 0.0, dout * wb_)
d{la} = {name}.where(ea_ == 0, 0.0, dlse_ * (ea_ / sum_) + both_)
d{lb} = {name}.where(eb_ == 0, 0.0, dlse_ * (eb_ / sum_) - both_)
"""


def statements(k, library):
    """Returns the statements of a library."""
    lib, torch = LIBRARIES[library], library == "torch"
    first = k.inputs[0].name

    def full(shape, value, device=True):
        return lib.full.format(shape, value, lib.device.format(first) if device else "")

    words = {
        "name": lib.name,
        "join": lib.join,
        "largest": "amax" if torch else "max",
        "device": lib.device.format(first),
        "minus": full("(batch, 1)", "-1"),
        "bounded_page": lib.bounded.format("at_ // max(page_size, 1)", 0, "pages_"),
        "nan_k": full("(1, kv_heads, dim)", "float('nan')"),
        "nan_v": full("(1, kv_heads, dim_v)", "float('nan')"),
        "nan_angle": full("(1, pairs)", "float('nan')"),
    }
    of = {"decode": _decode, "append": _append, "merge": _merge}[k.form]
    place = PLACE.replace("{name}.take_along_axis", lib.take)
    return of(k, words, torch, place)


def _decode(k, words, torch, place):
    q, key, value, table, count = (s.name for s in k.inputs)
    most = (
        "torch.amax(torch.cat((score_, none_), 3), 3)"
        if torch
        else "np.max(np.concatenate((score_, none_), 3), 3)"
    )
    words |= {"q": q, "k": key, "v": value, "table": table, "count": count, "most": most}
    words["none"] = "{}.broadcast_to(query_ * 0.0 - float('inf'), (batch, heads, queries, 1))"
    words["none"] = words["none"].format(words["name"])
    return _lines(TABLE + KEYS.lstrip() + place.lstrip() + DECODE.lstrip(), words)


def _append(k, words, torch, place):
    named = ("k", "v", "cosine", "sine", "position", "table", "count", "k_cache", "v_cache")
    words |= dict(zip(named, (s.name for s in k.inputs)))
    lines = _lines(TABLE + NEW.lstrip() + place.lstrip(), words)
    for short, angle, value in (("c", words["cosine"], "1.0"), ("s", words["sine"], "0.0")):
        lines += _lines(ANGLE, words | {"short": short, "angle": angle, "value": value})
    return lines + _lines((NEIGHBOURS if k.neighbours else HALVES) + APPEND.lstrip(), words)


def _merge(k, words, torch, place):
    words |= dict(zip(("a", "la", "b", "lb"), (s.name for s in k.operands)))
    return _lines(WEIGHTS + (MERGE_BWD if k.bwd else MERGE).lstrip(), words)


def _lines(text, words):
    return [line.format(**words) for line in text.strip().splitlines()]
