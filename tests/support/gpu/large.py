# SPDX-License-Identifier: Apache-2.0
"""Checks one call on tensors of more than 2^31 elements.

The inputs are periodic: up to element 2^31 they repeat one small piece, after it another, so a
truncated index reads other data. The two pieces run in a small call that is compared with the
oracle. Then every element of the large outputs must have the bits of the small outputs, because a
result depends on its own row alone. Sums are compared with the oracle's, weighted. No period
divides a power of two.
"""

import math

import cases
import checks
import numpy as np
import robust
from checks import Failure

BOUNDARY = 2**31
SHARE = 4  # behind the boundary: a quarter of the elements in front of it
# Repetitions of the small call with dropout: each element is kept in some and dropped in some.
TILES = 32
GUARD = 64


def shapes(f):
    """Returns [(sizes without the first, rows of a piece)]."""
    if cases.channels(f):
        return [((1032,), 11), ((1031,), 11)]
    return cases.of_form(
        f,
        {
            "flat": [((), 10007)],
            "rows": [((1032,), 11), ((1031,), 11)],
            "planes": [((32, 68), 5), ((1032, 1), 11)],
            "heads": [((2, 3, 172), 11), ((3, 1, 345), 5)],
            "groups": [((1, 4, 8, 129), 11), ((43, 3, 24, 1), 11)],
        },
    )


def small_call(gpu, lib, f, rest, rows, drop, p, tiles):
    """Runs both pieces, one after the other, `tiles` times, and compares with the oracle."""
    call = checks.Layout(lib, f, cases.of_count(f, 2 * rows * tiles, rest), seed=9, drop=drop, p=p)
    for name, a in call.tensors.items():
        if robust.batch_axis(a) and a["role"] == "in":
            one = call.data[name].reshape(2 * rows * tiles, -1)[: 2 * rows]
            call.put(name, np.tile(one, (tiles, 1)).reshape(call.data[name].shape))
    gpu.upload(call.image)
    result = lib.call(f, call.given(gpu.base))
    if result != 0:
        raise Failure(f"{call.where}: returned {result} ({lib.detail})")
    gpu.synchronize()
    outputs = call.outputs(gpu.download(call.image.size))
    call.check(outputs)
    return call, outputs


def tables(call, out, tiles, threshold):
    """Returns (bits of kept elements, bits of dropped elements or None) of an output on both
    pieces."""
    bits = out.reshape(tiles, -1).view(f"u{out.itemsize}")
    if threshold is None:
        return bits[0], None
    keep = (checks.philox(*call.philox, bits.size) >= threshold).reshape(bits.shape)
    both = []
    for mask in (keep, ~keep):
        if not mask.any(axis=0).all():
            raise Failure(f"{call.where}: {TILES} tiles are too few for this seed")
        one = bits[mask.argmax(axis=0), np.arange(bits.shape[1])]
        if ((bits != one) & mask).any():
            raise Failure(f"{call.where}: an element's bits depend on its place")
        both.append(one)
    return both


def large(gpu, lib, f, rest, rows, boundary=BOUNDARY):
    """Checks f on sizes (boundary / rest and a quarter more, *rest): every written element."""
    # First with a mask and without sums, then with sums, for which the oracle needs no mask. The
    # gradient of a row depends on the mask of the whole row, so no table holds it. The forward
    # shows that elements behind the boundary have masks of their own.
    if f["dropout"] and not (f["family"] == "rows" and f["bwd"]):
        sums = tuple(a["name"] for a in f["arguments"] if a["role"] == "sum")
        _large(gpu, lib, f, rest, rows, boundary, sums, 0.5)
    _large(gpu, lib, f, rest, rows, boundary, (), 0.0)


def _large(gpu, lib, f, rest, rows, boundary, drop, p):
    masked = f["dropout"] and p > 0
    tiles, threshold = (TILES, round(65536 * p)) if masked else (1, None)
    call, outputs = small_call(gpu, lib, f, rest, rows, drop, p, tiles)
    row = int(np.prod(rest, dtype=np.int64))  # elements of one row
    first = -(-boundary // row)  # rows in front of the boundary
    behind = first // SHARE + 3
    sizes = cases.of_count(f, first + behind, rest)
    where = f"{f['name']} sizes={sizes} p={p}"
    given, owned, elements = call.given(gpu.base), [], {}
    given |= dict(zip(f["sizes"], sizes))
    try:
        for name, a in call.tensors.items():
            if not robust.batch_axis(a) or given[name] is None:
                continue
            item, width = (
                call.data[name].itemsize,
                math.prod(checks.shape_of(f, cases.of_count(f, 1, rest), a)),
            )
            count = (first + behind) * width
            at = gpu.malloc(count * item + GUARD)
            owned.append(at)
            elements[name] = (item, width, count)
            source, given[name] = given[name], at
            gpu.fill(at, 0xFF, count * item + GUARD)
            if a["role"] == "in":
                piece = rows * width
                gpu.repeat(at, source, first * width, piece, item)
                gpu.repeat(
                    at + first * width * item, source + piece * item, behind * width, piece, item
                )
        need = lib.workspace_bytes(f, list(sizes))
        if need:
            given |= {"workspace": gpu.malloc(need), "workspace_bytes": need}
            owned.append(given["workspace"])
        result = lib.call(f, given)
        if result != 0:
            raise Failure(f"{where}: returned {result} ({lib.detail})")
        gpu.synchronize()
        if cases.channels(f):
            outputs = {
                name: pieces(gpu, out, given[name], rows, first) if name in elements else out
                for name, out in outputs.items()
            }
            call.check(outputs)
        for name, (item, width, count) in elements.items():
            guard = gpu.download(GUARD, start=given[name] + count * item)
            if (guard != 0xFF).any():
                raise Failure(f"{where}: wrote behind the end of {name}")
            # Known values of the two pieces: outputs, or the input, which must not change.
            known = outputs[name] if name in outputs else call.data[name]
            masks = (
                threshold
                if name in outputs and call.tensors[name]["kind"] in ("elem", "half")
                else None
            )
            compare(
                gpu,
                call,
                f"{where}: {name}",
                given[name],
                known,
                tiles,
                masks,
                (first, behind),
                rows * width,
                width,
            )
        sums = [
            a["name"] for a in call.tensors.values() if a["role"] == "sum" and a["name"] not in drop
        ]
        if sums:
            got = dict(outputs)
            for name in sums:
                raw = gpu.download(call.data[name].nbytes, start=given[name])
                got[name] = raw.view(call.data[name].dtype).reshape(call.data[name].shape)
            index = np.arange(rows)
            call.check(
                got,
                np.concatenate([n // rows + (index < n % rows) for n in (first, behind)]).astype(
                    float
                ),
            )
    finally:
        for at in owned:
            gpu.free(at)


def pieces(gpu, out, at, rows, first):
    """Returns both pieces from the large call. For channels, their number decides how threads share
    the work, so the small call may have other bits. The large call's first periods are compared
    with the oracle, all others with them."""
    bytes_of_one = out.nbytes // 2
    found = [
        gpu.download(bytes_of_one, start=at + begin * (bytes_of_one // rows))
        for begin in (0, first)
    ]
    return np.concatenate(found).view(out.dtype).reshape(out.shape)


def compare(gpu, call, where, at, known, tiles, threshold, lengths, piece, width):
    kept, dropped = tables(call, known, tiles, threshold)
    tables_at = gpu.malloc(2 * kept.nbytes)
    try:
        gpu.upload(kept.view(np.uint8), to=tables_at)
        if dropped is not None:
            gpu.upload(dropped.view(np.uint8), to=tables_at + kept.nbytes)
        begin = 0
        for part, length in enumerate(lengths):
            table = tables_at + part * piece * kept.itemsize
            gpu.begin_comparison()
            other = None if dropped is None else table + kept.nbytes
            gpu.compare_periodic(
                at + begin * kept.itemsize,
                table,
                other,
                length * width,
                piece,
                begin,
                call.philox,
                threshold or 0,
                kept.itemsize,
            )
            count, first = gpu.differences()
            if count:
                raise Failure(f"{where}: {count} elements wrong, first at {begin + first}")
            begin += length * width
    finally:
        gpu.free(tables_at)
