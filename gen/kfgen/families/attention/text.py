# SPDX-License-Identifier: Apache-2.0
"""An attention function as statements of NumPy or PyTorch."""

from kfgen.language.formulas import LIBRARIES, Printer
from kfgen.language.primitives import COLUMN, COUNT, QUERIES, QUERY

# Positions in the whole tensors, then scores [batch, heads, queries, keys].
SCORES = """
rows_, group_ = queries, heads // max(kv_heads, 1)
query = {name}.arange(queries{device}).reshape(1, 1, queries, 1) + query_base
column = {name}.arange(keys{device}).reshape(1, 1, 1, keys) + key_base
head = {name}.arange(heads{device}).reshape(1, heads, 1, 1) + head_base
count, queries = keys_total or key_base + keys, queries_total or query_base + queries
k_ = {k}.reshape(batch, keys, kv_heads, 1, dim)
k_ = {name}.broadcast_to(k_, (batch, keys, kv_heads, group_, dim))
v_ = {v}.reshape(batch, keys, kv_heads, 1, dim_v)
v_ = {name}.broadcast_to(v_, (batch, keys, kv_heads, group_, dim_v))
k_ = k_.reshape(batch, keys, heads, dim).swapaxes(1, 2)
v_ = v_.reshape(batch, keys, heads, dim_v).swapaxes(1, 2)
dot = {q}.swapaxes(1, 2) @ k_.swapaxes(2, 3)
"""
# The same of packed sequences, [1, heads, queries, keys]: positions and sizes are a sequence's own.
PACKED = """
rows_, group_ = queries, heads // max(kv_heads, 1)
at_, of_ = {name}.arange(queries{device}), {name}.arange(keys{device})
in_ = (({offsets}[:-1, None] <= at_) & (at_ < {offsets}[1:, None])) * 1
own_ = (({of_keys}[:-1, None] <= of_) & (of_ < {of_keys}[1:, None])) * 1
same_ = {name}.sum(in_[:, :, None] * own_[:, None, :], 0) > 0
sequence_ = {name}.sum(in_ * {name}.arange(batch{device})[:, None], 0)
query = at_ - {name}.sum(in_ * {offsets}[:-1, None], 0)
column = of_ - {name}.sum(own_ * {of_keys}[:-1, None], 0)
count = {name}.sum(in_ * ({of_keys}[1:] - {of_keys}[:-1])[:, None], 0)
queries = {name}.sum(in_ * ({offsets}[1:] - {offsets}[:-1])[:, None], 0)
query = query.reshape(1, 1, rows_, 1)
count = count.reshape(1, 1, rows_, 1)
queries = queries.reshape(1, 1, rows_, 1)
column = column.reshape(1, 1, 1, keys)
head = {name}.arange(heads{device}).reshape(1, heads, 1, 1) + head_base
k_ = {k}.reshape(keys, kv_heads, 1, dim)
k_ = {name}.broadcast_to(k_, (keys, kv_heads, group_, dim)).reshape(keys, heads, dim)
v_ = {v}.reshape(keys, kv_heads, 1, dim_v)
v_ = {name}.broadcast_to(v_, (keys, kv_heads, group_, dim_v)).reshape(keys, heads, dim_v)
v_ = v_.swapaxes(0, 1)[None]
dot = ({q}.swapaxes(0, 1) @ k_.swapaxes(0, 1).swapaxes(1, 2))[None]
batch = 1
"""
# A tensor of the scores' shape by row and key.
GATHER = """
{s} = {s}[sequence_[:, None], :, {first}, {second}]
{s} = {s}.swapaxes(1, 2).swapaxes(0, 1)[None]
"""
NUMPY = """
row_max = np.max(score_, axis=3, initial=-np.inf)
"""
TORCH = """
none_ = torch.broadcast_to(query * 0.0 - float('inf'), (batch, heads, rows_, 1))
row_max = torch.amax(torch.cat((score_, none_), 3), 3)
"""
SINK = """
row_max = {name}.maximum(row_max, sink_)
"""
SOFTMAX = """
least_ = {name}.where(row_max == float('-inf'), 0.0, row_max)
weight_ = {name}.exp(score_ - least_[..., None])
sum_ = {name}.sum(weight_, 3){sink}{long}
log_sum = {name}.log(sum_)
lse = row_max + log_sum
weight_ = weight_ / {name}.where(sum_ == 0, 1.0, sum_)[..., None]
"""
# Values of keys with a weight only: 0 times an infinite value would be NaN. plus_ and minus_ count
# values of inf and -inf, NaN in both.
PRODUCT = """
seen_ = {name}.where(weight_ != 0, 1.0, 0.0)
plus_ = seen_ @ {name}.where(v_ < float('inf'), 0.0, 1.0)
minus_ = seen_ @ {name}.where(v_ > float('-inf'), 0.0, 1.0)
out = weight_ @ {name}.where({name}.abs(v_) < float('inf'), v_, 0.0)
out = {name}.where(plus_ > 0, out + float('inf'), out)
out = {name}.where(minus_ > 0, out - float('inf'), out).swapaxes(1, 2)
"""
PACKED_RESULTS = """
out = out.reshape(rows_, heads, dim_v)
lse = lse.reshape(heads, rows_)
row_max = row_max.reshape(heads, rows_)
log_sum = log_sum.reshape(heads, rows_)
"""
# Sequences longer than the tensor of scores.
LONG = " + {0}.where((queries > max_query) | (count > max_key), float('nan'), 0.0)[..., 0]"


def statements(k, library):
    """Returns the statements of a library."""
    lib, torch = LIBRARIES[library], library == "torch"
    q, key, v = (k.of_kind(kind).name for kind in ("query", "key", "value"))
    words = {
        "name": lib.name,
        "device": lib.device.format(q),
        "sink": f" + {lib.name}.exp(sink_ - least_)" if k.sink else "",
        **{"q": q, "k": key, "v": v},
        "long": LONG.format(lib.name) if k.form == "packed_scores" else "",
    }
    words |= dict(zip(("offsets", "of_keys"), k.bounds_of_sequences))
    heads = [s.name for s in k.score_inputs if s.kind == "head"]
    printer = Printer(lib, None, k.graph, _axes(k), None)
    printer.run(k.roots)
    lines = [
        *_lines(PACKED if k.packed else SCORES, words),
        *_gathered(k, lib),
        *(f"{name} = {name}.reshape(1, heads, 1, 1)" for name in heads),
        *printer.lines,
        f"score_ = {printer.at(k.roots[0])}",
    ]
    own = k.op.own
    seen = [f"({COLUMN} >= {own['first'].text})"] if own["first"] else []
    seen += [f"({COLUMN} <= {own['last'].text})"] if own["last"] else []
    if seen:
        lines.append(f"score_ = {lib.name}.where({' & '.join(seen)}, score_, float('-inf'))")
    if k.packed:
        lines.append(f"score_ = {lib.name}.where(same_, score_, float('-inf'))")
    if k.sink:
        lines.append(f"sink_ = {k.sink.name}.reshape(1, heads, 1)")
    text = (TORCH if torch else NUMPY) + (SINK if k.sink else "") + SOFTMAX + PRODUCT.lstrip()
    return lines + _lines(text + (PACKED_RESULTS.lstrip() if k.packed else ""), words)


def _gathered(k, lib):
    """Statements that gather the tensors of the scores' shape of packed sequences."""
    if k.form != "packed_scores":
        return []
    places = (("query.reshape(rows_, 1)", "max_query"), ("column.reshape(1, keys)", "max_key"))
    first, second = (lib.bounded.format(text, 0, f"{most} - 1") for text, most in places)
    tensors = [s.name for s in k.score_inputs if s.kind == "score"]
    return [
        line for s in tensors for line in _lines(GATHER, {"s": s, "first": first, "second": second})
    ]


def _axes(k):
    """Returns {name: its axes; None: a plain number} of the score's names."""
    tensors = ("dot", QUERY, COLUMN, "head", *(s.name for s in k.score_inputs))
    sizes, numbers = (QUERIES, COUNT), (*k.scalars, *k.integers)
    whole = frozenset((0,)) if k.packed else None
    return (
        dict.fromkeys(numbers)
        | dict.fromkeys(sizes, whole)
        | dict.fromkeys(tensors, whole or frozenset((0,)))
    )


def _lines(text, words):
    return [line.format(**words) for line in text.strip().splitlines()]
