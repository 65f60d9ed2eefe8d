# SPDX-License-Identifier: Apache-2.0
"""A function of the example family as statements of NumPy or PyTorch: the rows of x that each tap
reads, then one contraction. A row of zeros behind x stands for rows outside a sequence.
"""

from kfgen.language.formulas import LIBRARIES

WEIGHT = "{}.reshape(groups, filters // groups, kernel, channels // groups)"
BATCHED = """
rows_ = (length + pad_left + pad_right - dilation * (kernel - 1) - 1) // stride + 1
step_, begin_, end_ = stride, 0, length
"""
PACKED = """
batch, rows_, step_ = 1, length, 1
row_ = {arange}(length{device})
inside_ = ({offsets}[:-1, None] <= row_) & (row_ < {offsets}[1:, None])
begin_ = (inside_ * {least}).sum(0)[:, None]
end_ = (inside_ * {most}).sum(0)[:, None]
"""
TAPS = """
tap_ = {arange}(kernel{device}) * dilation - pad_left
at_ = {arange}(rows_{device})[:, None] * step_ + tap_
at_ = {where}((at_ >= begin_) & (at_ < end_), at_, length).reshape(-1)
"""
READ = """
more_ = {zeros}((batch, 1, channels){like})
taps_ = {join}(({x}.reshape(batch, length, channels), more_), 1)[:, at_]
taps_ = taps_.reshape(batch, rows_, kernel, groups, channels // groups)
"""
FORWARD = """
sum_ = {einsum}("brkgc,gfkc->brgf", taps_, {weight}).reshape(batch, rows_, filters)
"""
BACKWARD = """
dout_ = {dout}.reshape(batch, rows_, groups, filters // groups)
{dweight} = {einsum}("brgf,brkgc->gfkc", dout_, taps_).reshape(filters, kernel, channels // groups)
terms_ = {einsum}("brgf,gfkc->brkgc", dout_, {weight}).reshape(batch, rows_ * kernel, channels)
to_ = {zeros}((batch, length + 1, channels){like})
"""


def statements(k, library):
    lib, torch = LIBRARIES[library], library == "torch"
    x, offsets = k.image.name, k.offsets and k.offsets.name
    words = {
        "x": x,
        "offsets": offsets,
        "arange": f"{lib.name}.arange",
        "where": f"{lib.name}.where",
        "zeros": f"{lib.name}.zeros",
        "einsum": f"{lib.name}.einsum",
        "join": lib.join,
        "device": f", device={x}.device" if torch else "",
        "like": f", dtype={x}.dtype, device={x}.device" if torch else f", {x}.dtype",
        "least": lib.bounded.format(f"{offsets}[:-1, None]", 0, "length"),
        "most": lib.bounded.format(f"{offsets}[1:, None]", 0, "length"),
        "weight": WEIGHT.format(k.filter.name),
    }
    parts = [PACKED if offsets else BATCHED, TAPS, READ]
    if not k.bwd:
        out, sums = k.outputs[0].name, f"sum_ + {k.bias.name}"
        shape = "length, filters" if offsets else "batch, rows_, filters"
        last = [f"{out} = ({sums}).reshape({shape})"]
        if offsets:
            last += [f"{out} = {lib.name}.where(inside_.any(0)[:, None], {out}, float('nan'))"]
        return _lines([*parts, FORWARD], words) + last
    dx, dweight, dbias = (s.name for s in k.outputs)
    words |= {"dout": k.dout.name, "dweight": dweight}
    last = (
        ["to_ = to_.index_add(1, at_, terms_)"]
        if torch
        else ["np.add.at(to_, (slice(None), at_), terms_)"]
    )
    shape = "length, channels" if offsets else "batch, length, channels"
    last += [
        f"{dx} = to_[:, :length].reshape({shape})",
        f"{dbias} = {k.dout.name}.reshape(batch * rows_, filters).sum(0)",
    ]
    return _lines([*parts, BACKWARD], words) + last


def _lines(parts, words):
    return [line.format(**words) for part in parts for line in part.strip().splitlines()]
