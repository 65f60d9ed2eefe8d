# SPDX-License-Identifier: Apache-2.0
"""An attention function as statements of NumPy or PyTorch."""

from kfgen.families.attention.scores import DOT, DSCORE, PRODUCTS
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
k_ = k_.swapaxes(0, 1)[None]
v_ = {v}.reshape(keys, kv_heads, 1, dim_v)
v_ = {name}.broadcast_to(v_, (keys, kv_heads, group_, dim_v)).reshape(keys, heads, dim_v)
v_ = v_.swapaxes(0, 1)[None]
dot = {q}.swapaxes(0, 1)[None] @ k_.swapaxes(2, 3)
sequences_, batch = batch, 1
"""
# A tensor of the scores' shape by row and key.
GATHER = """
{s} = {s}[sequence_[:, None], :, {first}, {second}]
{s} = {s}.swapaxes(1, 2).swapaxes(0, 1)[None]
"""
# Lists of blocks of keys as seen_ [batch, heads, queries, keys]. Mask 0 of bits_ shows all keys.
LISTED = """
at_ = {name}.arange(listed_blocks{device})
number_ = {name}.arange((keys + block_size - 1) // block_size{device})
in_ = (({offsets}[:, :, :-1, None] <= at_) & (at_ < {offsets}[:, :, 1:, None])) * 1
own_ = in_[:, :, :, :, None] * (({blocks}[:, 0, None] == number_) * 1)
mask_ = {name}.sum(own_ * ({blocks}[:, 1, None] + 1), 3)
bits_ = ({masks}[:, :, :, None] >> {name}.arange(32{device})) & 1
all_ = {name}.arange(block_size * block_size{device})
all_ = all_.reshape(1, block_size, block_size) >= 0
bits_ = {join}((all_, bits_.reshape(-1, block_size, block_size) > 0))
seen_ = bits_[mask_] & ({name}.sum(own_, 3) > 0)[:, :, :, :, None, None]
below_, across_ = (rows_ + block_size - 1) // block_size, (keys + block_size - 1) // block_size
seen_ = seen_.swapaxes(3, 4)
seen_ = seen_.reshape(batch, heads, below_ * block_size, across_ * block_size)
score_ = {name}.where(seen_[:, :, :rows_, :keys], score_, float('-inf'))
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
# Weights of a backward with a sink, which lse includes.
GIVEN = """
weight_ = {name}.where(score_ == float('-inf'), 0.0, {name}.exp(score_ - {lse}[..., None]))
"""
SOFTMAX = """
least_ = {name}.where(row_max == float('-inf'), 0.0, row_max)
weight_ = {name}.exp(score_ - least_[..., None])
sum_ = {name}.sum(weight_, 3){sink}{long}
log_sum = {name}.log(sum_)
lse = row_max + log_sum
weight_ = weight_ / {name}.where(sum_ == 0, 1.0, sum_)[..., None]
"""
# Dropout: the call's part of the mask. Weights of a row that has NaN stay NaN.
DROPPED = """
weight_ = {name}.where({keep}, weight_ * keep_scale, (sum_ * 0.0)[..., None])
"""
KEEP_OF = "keep[:, head_base:head_base + heads, query_base:query_base + rows_, \
key_base:key_base + keys]"
KEEP_OF_PACKED = "keep[None, head_base:head_base + heads]"
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
# Gradients, from weight_. Pairs of weight 0 have none. `dscore` is the gradient of the scores.
GRADIENTS = """
dout_ = {dout}
dots_ = {name}.where({seen}, dout_ @ v_.swapaxes(2, 3){keep_scale}, 0.0)
delta_ = {name}.sum(weight_ * dots_, 3) - dlse
dscore = {name}.where(weight_ == 0, 0.0, weight_ * (dots_ - delta_[..., None]))
"""
KEPT = """
weight_ = {name}.where({keep}, weight_ * keep_scale, 0.0)
"""
SUMS = {
    "query": "ddot_ @ {name}.where({name}.abs(k_) < float('inf'), k_, 0.0)",
    "key": "ddot_.swapaxes(2, 3) @ {name}.where({name}.abs(q_) < float('inf'), q_, 0.0)",
    "value": "weight_.swapaxes(2, 3) @ dout_",
}
WIDE = {"query": "dim", "key": "dim", "value": "dim_v"}
# Sums over the heads that share a key head.
SHARED = """
{to} = {name}.sum({sum}.reshape(batch, kv_heads, group_, keys, {wide}), 2).swapaxes(1, 2)
"""
OWN = """
{to} = {sum}.swapaxes(1, 2)
"""
# The gradient of an operand with one number per head.
BY_HEAD = """
{to} = {name}.sum({text}, (0, 2, 3))
"""
# The gradient of a score without a value, whose weight is the sink's.
OF_SINK = """
sink_ = {s}.reshape(1, heads, 1)
sink_ = {name}.where(sink_ == float('-inf'), 0.0, {name}.exp(sink_ - {lse}))
{to} = -{name}.sum({name}.where(sink_ == 0, 0.0, sink_ * delta_), (0, 2))
"""
# A gradient of the scores' shape of packed sequences.
SCATTER = """
{to}_ = {text}
{to} = {name}.zeros((sequences_, heads, max_query, max_key){type}{device})
at_, of_ = {name}.where(same_)
{to}[sequence_[at_], :, {first}, {second}] = {to}_[0][:, at_, of_].swapaxes(0, 1)
"""
# Sequences longer than the tensor of scores.
LONG = " + {0}.where((queries > max_query) | (count > max_key), float('nan'), 0.0)[..., 0]"


def statements(k, library):
    """Returns the statements of a library."""
    lib, torch = LIBRARIES[library], library == "torch"
    q, key, v = (k.of_kind(kind).name for kind in PRODUCTS)
    words = {
        "name": lib.name,
        "device": lib.device.format(q),
        "sink": f" + {lib.name}.exp(sink_ - least_)" if k.sink else "",
        **{"q": q, "k": key, "v": v},
        "long": LONG.format(lib.name) if k.form == "packed_scores" else "",
        "keep": KEEP_OF_PACKED if k.packed else KEEP_OF,
        "lse": "lse[None]" if k.packed else "lse",
    }
    words |= dict(zip(("offsets", "of_keys"), k.bounds_of_sequences))
    words |= dict(zip(("offsets", "blocks", "masks"), k.names_of_lists))
    words["join"] = "torch.cat" if torch else "np.concatenate"
    heads = [s.name for s in k.score_inputs if s.kind == "head"]
    printer = Printer(lib, None, k.graph, _axes(k), None)
    printer.run(k.roots[:1])
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
    if k.sparse:
        lines += _lines(LISTED, words)
    if k.sink and not k.bwd:
        lines.append(f"sink_ = {k.sink.name}.reshape(1, heads, 1)")
    text = (TORCH if torch else NUMPY) + (SINK if k.sink else "") + SOFTMAX
    if k.bwd:
        text = GIVEN if k.sink else text
        return lines + _lines(text, words) + _gradients(k, lib, printer, words)
    text += (DROPPED.lstrip() if k.keeps else "") + PRODUCT.lstrip()
    text += PACKED_RESULTS.lstrip() if k.packed else ""
    return lines + _lines(text, words)


def _gradients(k, lib, printer, words):
    """Statements of the gradients."""
    first = "swapaxes(0, 1)[None]" if k.packed else "swapaxes(1, 2)"
    lines = [f"weight_ = {lib.name}.where(same_, weight_, 0.0)"] if k.packed else []
    seen = f"(weight_ != 0) & {words['keep']}" if k.keeps else "weight_ != 0"
    own = {"seen": seen, "keep_scale": " * keep_scale" if k.keeps else ""}
    lines += _lines(GRADIENTS + KEPT * k.keeps, words | own | {"dout": f"dout.{first}"})
    done = len(printer.lines)
    printer.run(k.roots[1:])
    texts = [_whole(printer, root) for root in k.roots[1:]]
    lines += [*printer.lines[done:], f"q_ = {words['q']}.{first}", f"ddot_ = {texts[0]}"]
    scores = {s.name: text for (_, s), text in zip(k.tensor_gradients, texts[1:])}
    for s in k.outputs:
        if s is k.sink_gradient:
            lines += _lines(OF_SINK, words | {"to": s.name, "s": k.sink.name})
        elif s.kind == "head":
            lines += _lines(BY_HEAD, words | {"to": s.name, "text": scores[s.name]})
        elif s.name not in scores:
            kind = s.kind
            text = SUMS[kind].format(**words)
            own = words | {"to": s.name, "sum": f"({text})", "wide": WIDE[kind]}
            lines += _lines(OWN if kind == "query" else SHARED, own)
            lines += [f"{s.name} = {s.name}[0]"] if k.packed else []
        elif k.packed:
            own = _places(lib, "query.reshape(rows_)[at_]", "column.reshape(keys)[of_]")
            more = {"type": ", dtype=dscore.dtype", "text": scores[s.name], "to": s.name}
            lines += _lines(SCATTER, words | own | more)
        else:
            lines.append(f"{s.name} = {scores[s.name]}")
    return lines


def _whole(printer, root):
    """Text of a gradient of the scores' shape."""
    text = printer.at(root)
    return f"dscore * {text}" if printer.along[root] is None else text


def _places(lib, query, column):
    """Bounded indices of tensors of the scores' shape of packed sequences."""
    places = (("first", query, "max_query"), ("second", column, "max_key"))
    return {word: lib.bounded.format(text, 0, f"{most} - 1") for word, text, most in places}


def _gathered(k, lib):
    """Statements that gather the tensors of the scores' shape of packed sequences."""
    if k.form != "packed_scores":
        return []
    places = _places(lib, "query.reshape(rows_, 1)", "column.reshape(1, keys)")
    tensors = [s.name for s in k.score_inputs if s.kind == "score"]
    return [line for s in tensors for line in _lines(GATHER, places | {"s": s})]


def _axes(k):
    """Returns {name: its axes; None: a plain number} of the score's names."""
    tensors = (DOT, DSCORE, QUERY, COLUMN, "head", *(s.name for s in k.score_inputs))
    sizes, numbers = (QUERIES, COUNT), (*k.scalars, *k.integers)
    whole = frozenset((0,)) if k.packed else None
    return (
        dict.fromkeys(numbers)
        | dict.fromkeys(sizes, whole)
        | dict.fromkeys(tensors, whole or frozenset((0,)))
    )


def _lines(text, words):
    return [line.format(**words) for line in text.strip().splitlines()]
