# SPDX-License-Identifier: Apache-2.0
"""The shapes and values that every function is run on. KF_LEVEL: 1 for CI, some functions (selection.gate); 2 all of them on more
shapes, and what else CI has no time for; 3 everything."""

import functools
import importlib.util
import os
import pathlib

LEVEL = int(os.environ.get("KF_LEVEL", "1"))
SHARE = 16  # of planted faults level 1 compiles and runs one in so many


def by_level(gate, whole):
    """What a test takes at level 1, and from level 2 on."""
    return gate if LEVEL == 1 else whole


VALUES = ("normal", "wide", "special")

# (sizes, elements that every pointer is moved off its alignment). Reasons: one tile and its neighbours, odd rows, rows
# narrower than a vector, rows longer than a block of columns, one row, one column, nothing at all, several rows a thread.
# C: several tiles of a row or plane at a time, and groups of four rows. Planes: many narrow ones, of which a tile of a
# summed gradient touches several.
FLAT = [[(1000,), 0], [(1,), 0], [(7,), 1], [(257,), 1], [(0,), 0], [(2048,), 0], [(1003,), 0]]
FLAT_2 = [[(n,), n % 3] for n in (*range(2, 131), 255, 256, 509, 1021, 4093, 16384)]
ROWS = [
    [(3, 5), 0],
    [(7, 64), 0],
    [(5, 300), 1],
    [(5, 2500), 0],
    [(0, 8), 0],
    [(6, 0), 0],
    [(1, 1), 1],
    [(40, 8), 0],
    [(36, 300), 0],
    [(9, 1024), 0],
]
ROWS_2 = [
    [(r, c), (r + c) % 3]
    for r in (1, 2, 17, 130)
    for c in (*range(1, 34), 63, 64, 65, 127, 130, 255, 257, 1024, 2047, 2049, 4096)
]
PLANES = [
    [(2, 3, 5), 0],
    [(4, 7, 1), 1],
    [(2, 3, 304), 0],
    [(2, 5, 49), 1],
    [(0, 3, 4), 0],
    [(2, 3, 0), 0],
    [(3, 16, 1), 0],
    [(3, 19, 1), 0],
    [(1, 1, 1100), 0],
    [(40, 3, 40), 0],
    [(4, 32, 66), 0],
    [(9, 32, 67), 1],
    [(5, 2305, 1), 0],
]
PLANES_2 = [
    [(o, c, i), (o + i) % 2]
    for o in (1, 3, 9)
    for c in (1, 2, 64, 2050)
    for i in (1, 2, 7, 8, 64, 196, 257, 1025)
    if o * c * i < 500000
]
PLANES_2 += [[(o, 32, i), 0] for o in (1, 4, 63, 300) for i in (65, 66, 67, 68)]
# Of [batch, heads, queries, keys].
HEADS = [
    [(2, 3, 4, 5), 0],
    [(1, 2, 3, 64), 0],
    [(3, 1, 5, 300), 1],
    [(2, 2, 2, 2500), 0],
    [(0, 2, 3, 4), 0],
    [(2, 0, 3, 4), 0],
    [(2, 3, 0, 4), 0],
    [(2, 3, 4, 0), 0],
    [(1, 1, 1, 1), 1],
    [(3, 4, 5, 8), 0],
    [(2, 7, 1, 1024), 0],
    [(1, 3, 40, 33), 0],
    [(1, 1, 2, 3008), 0],
]
HEADS_2 = [
    [(*rows, k), k % 3]
    for rows in ((1, 1, 1), (2, 3, 5), (3, 1, 17))
    for k in (*range(1, 34), 63, 64, 65, 127, 255, 257, 1024, 2049)
]
# The sizes outer, length, groups, channels, inner: NCHW, of one channel a group, of channels shorter and longer than a vector; NHWC, of segments
# that are whole vectors or not; both; a row that is a segment; one channel in several slices.
GROUPS = [
    [(2, 1, 3, 12, 5), 0],
    [(2, 5, 3, 12, 1), 0],
    [(2, 1, 2, 6, 64), 0],
    [(2, 9, 2, 32, 1), 0],
    [(2, 3, 2, 8, 6), 1],
    [(0, 2, 3, 12, 5), 0],
    [(2, 0, 3, 12, 5), 0],
    [(2, 2, 0, 0, 5), 0],
    [(2, 2, 3, 0, 5), 0],
    [(2, 2, 3, 12, 0), 0],
    [(1, 1, 1, 1, 1), 1],
    [(3, 1, 5, 5, 40), 0],
    [(1, 7, 1, 12, 1), 0],
    [(2, 1, 2, 8, 196), 0],
    [(1, 1, 2, 16, 49), 0],
    [(1, 90, 2, 20, 1), 0],
    [(1, 2, 2, 6, 20), 0],
    [(1, 1, 1, 2, 2600), 0],
    [(40, 1, 3, 6, 8), 0],
    [(1, 700, 2, 16, 1), 0],
    [(2, 1, 3, 120, 2), 0],
]
GROUPS_2 = [
    [(o, s, g, g * c, i), (o + c) % 2]
    for o in (1, 3)
    for s in (1, 2, 33)
    for g in (1, 4)
    for c in (1, 3, 8, 20)
    for i in (1, 2, 7, 16, 65, 196)
]
# Rows of every length class of the row family: in the registers of a thread, in 2, 4, 8 or 16 vectors, by a block, by a cluster, in shared memory
# or read again, whole vectors or not, as the emulation (64 threads of a block at most, two blocks) and a GPU (1,024 and eight) class them.
LINES = [
    [(3, 2048), 0],
    [(2, 8192), 0],
    [(2, 8200), 0],
    [(2, 1023), 0],
    [(3, 2047), 0],
    [(2, 8193), 1],
    [(2, 128), 1],
    [(3, 4808), 0],
    [(2, 5001), 0],
    [(2, 7001), 0],
    [(2, 3001), 0],
    [(2, 3008), 0],
    [(3, 248), 0],
    [(3, 520), 0],
]
LONG = [
    [(3, 12288), 0],
    [(2, 12289), 0],
    [(3, 24576), 0],
    [(2, 24577), 0],
    [(2, 40000), 0],
    [(2, 40001), 1],
    [(2, 70000), 0],
    [(2, 70001), 0],
    [(1, 262144), 0],
    [(1, 200001), 0],
    [(1, 530000), 0],
    [(1, 530001), 0],
]
# Over an axis: by lanes of a warp, by a block, in parts, down columns, of which some are no whole vector; in C strips that hold several
# places of the axis; parts of a few hundred elements in the emulation, of 65,536 in C.
REDUCED = [
    [(5, 7, 3), 0],
    [(1, 1000, 1), 1],
    [(3, 70, 64), 0],
    [(5, 0, 3), 0],
    [(0, 7, 3), 0],
    [(2, 1, 5), 0],
    [(40, 8, 1), 0],
    [(3, 300, 1), 0],
    [(2, 10000, 1), 0],
    [(2, 3001, 1), 1],
    [(1, 700, 20), 0],
    [(2, 0, 1), 0],
    [(1, 7, 300), 1],
    [(9, 2, 33), 0],
    [(1, 5000, 40), 0],
    [(1, 140000, 1), 0],
    [(3, 2048, 1), 0],
    [(3, 60, 64), 0],
]  # few axes of several chunks; several warps of one kernel that sweeps twice
REDUCED_2 = [
    [(o, a, i), (o + a) % 3]
    for o in (1, 5)
    for a in (1, 2, 7, 31, 128, 1000, 5000)
    for i in (1, 2, 3, 8, 63, 64, 65, 260)
]
REDUCED_LONG = [
    [(1, 3000001, 1), 0],
    [(1, 4000000, 1), 0],
    [(3, 100000, 1), 0],
    [(1, 40000, 33), 1],
    [(2, 20000, 256), 0],
    [(1, 3000, 4100), 0],
]
MANY_ROWS = [[(280, 4096), 0], [(62, 33000), 0]]  # several rows for each persistent block
# For reduced gradients: so many rows that CUDA's second stage adds up several parts, for every dtype.
SUMS = {
    "rows": [[(2100, 12), 0]],
    "planes": [[(1300, 2, 9), 0]],
    "groups": [[(700, 1, 2, 4, 9), 0]],
}


LIKE = {"channels": "planes", "axis": "planes"}  # [outer, channels, inner], [outer, axis, inner]


FAMILIES = pathlib.Path(__file__).parents[2] / "families"


@functools.cache
def of_family(name):
    """The module tests/families/<name>/cases.py, or None."""
    path = FAMILIES / name / "cases.py"
    return loaded(path) if path.is_file() else None


@functools.cache
def loaded(path):
    """The module in tests/families/<family>/cases*.py."""
    name = "_".join([path.parent.name, path.stem])
    found = importlib.util.spec_from_file_location(f"kft_family_{name}", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def own(f):
    """What a family has of its own (tests/families): shapes, how its tensors are drawn, and what they should be. None: it is one of those that
    lie as elements or rows."""
    found = of_family(f["family"])
    return getattr(found, "FORMS", {}).get(f["form"], found)


def said(word):
    """What all families' own files have as `word`, a dictionary in each: nobody lists those files."""
    return {key: value for entries in _said(word) for key, value in entries.items()}


def listed(word):
    """The same of what is a list in each."""
    return [entry for entries in _said(word) for entry in entries]


def _said(word):
    found = [loaded(path) for path in sorted(FAMILIES.glob("*/cases*.py"))]
    return [getattr(own, word) for own in found if hasattr(own, word)]


def like(table, found):
    """A family's own shapes as a table of other ones has them."""
    sample = next(iter([entry for entry in table.values() if entry]), [])
    shapes_ = [entry for entry in found if all(entry[0])][:5]
    if not isinstance(sample, list):
        return shapes_[0][0]
    if not sample or isinstance(sample[0][0], int):
        return [sizes for sizes, _ in shapes_]
    return [[*entry] if len(sample[0]) < 3 else (entry[0], "normal", entry[1]) for entry in shapes_]


def most_launches(f):
    """Of a call: two for each pass over an axis that is shared out, or over channels, of which one stores what is computed."""
    return (
        getattr(own(f), "LAUNCHES", 2)
        if own(f)
        else 7
        if f["family"] == "reduction"
        else 3
        if channels(f)
        else 2
    )


def of_form(f, table, *default):
    """What a table {how the tensors of a function lie: shapes} has for a function. A form that it does not know is an error."""
    form = LIKE.get(f["form"], f["form"])
    if form not in table and not default and (found := own(f)):
        return like(table, found.SHAPES)
    return table.get(form, *default) if default else table[form]


def whole_table(f):
    """Whether every kernel of a launcher's table must be reached: of the row family, whose long rows take long to emulate, by two
    activations, one whose gradient reads its argument and one whose does not. Below level 3 no further ones: they are other words
    in the same loops, and a long row takes the oracle twenty times as long as all short ones."""
    return f["family"] == "elementwise" or f["activation"] in ("none", "gelu") or LEVEL > 2


def of_own_accesses(f):
    """f16's kernels are bf16's with another conversion. Casts are conversions."""
    return f["dtypes"][0] != "f16" or f["op"] == "cast"


def sampled(f):
    """Of every op none, gelu and a few further activations, each activation in some ops. At level 3 all of them."""
    turn = sum(map(ord, f["op"] + f["activation"] + "".join(f["dtypes"])))
    return f["activation"] in ("none", "gelu") or turn % 6 == f["bwd"] or LEVEL > 2


def planes(f):
    """Whether the rows of a function of the row family are the planes of [outer, channels, inner]."""
    return f["layout"] == "planes"


def groups(f):
    """Whether they are groups of the channels of [outer, length, channels, inner]."""
    return f["layout"] == "groups"


def channels(f):
    """Whether they are the channels of [outer, channels, inner], over outer and inner."""
    return f["layout"] == "channels"


def counted(f):
    """The place of the size that rows are counted along: where they are channels, of one batch."""
    return int(channels(f))


def of_count(f, count, rest):
    """The sizes for so many of them."""
    return (1,) * counted(f) + (count, *rest)


def persistent(f):
    """Whether its blocks are persistent, loop over the rows and share out a sum: not over an axis, nor where each plane leaves a value."""
    return (
        f["scratch"]
        and f["family"] != "reduction"
        and not own(f)
        and not planes(f)
        and not groups(f)
    )


def parts(groups, cols):
    """(groups, the channels of all, elements of each) of groups of so many elements."""
    return next((groups, groups * n, cols // n) for n in (8, 3, 1) if cols % n == 0)


def rows_of(f, table):
    """A table of [rows, cols] for the family row: so many planes, or queries of two heads, where those are its rows."""
    if groups(f):  # of one channel or several, in one segment or in two
        return [
            [
                (2, 1, *parts(r // 2, c))
                if r % 2 == 0
                else (1, 2, r, r * (c // 4), 2)
                if c % 8 == 0
                else (1, 1, r, r * c, 1),
                shift,
            ]
            for (r, c), shift in table
        ]
    if f["form"] == "heads":
        return [
            [(1, 2, r // 2, c) if r % 2 == 0 else (r, 1, 1, c), shift] for (r, c), shift in table
        ]
    if channels(
        f
    ):  # in two segments, in short ones, in segments that are no whole vectors, in one segment
        segments = [
            2 if c % 16 == 0 and r % 2 == 0 else c // 8 if c % 8 == 0 else 3 if c % 3 == 0 else 1
            for (r, c), _ in table
        ]
        return [[(n, r, c // n), shift] for ((r, c), shift), n in zip(table, segments)]
    if not planes(f):
        return table
    return [[(2, r // 2, c) if r % 2 == 0 else (1, r, c), shift] for (r, c), shift in table]


# Of the channels of [outer, channels, inner], at every size of element: planes of whole vectors, of none, shorter than one; whole tensors and
# odd ones; what a block of an emulation holds, and more; more than a block holds where there are bands enough for every block. The last ones are
# rows in registers, of some lanes, a block, a cluster.
BANDS = [
    [(3, 2, 64), 0],
    [(3, 2, 64), 1],
    [(3, 2, 2048), 0],
    [(3, 2, 2048), 1],
    [(5, 8, 9), 0],
    [(5, 7, 9), 0],
    [(60, 8, 9), 0],
    [(75, 7, 9), 1],
    [(6, 12, 10), 0],
    [(40, 16, 1), 0],
    [(40, 13, 1), 0],
    [(30, 16, 1), 0],
    [(600, 16, 1), 0],
    [(600, 13, 1), 1],
    [(90, 16, 1), 0],
    [(70, 8, 3), 0],
    [(1, 3, 700), 0],
    [(2, 1, 1001), 0],
    [(40, 260, 1), 0],
    [(7, 5, 3), 0],
    [(2, 3, 320), 1],
    [(2, 3, 800), 1],
    [(2, 3, 2000), 1],
    [(2, 3, 2400), 1],
]


def share_of(f, table):
    """A quarter of it, from activation to activation another one."""
    return table[sum(map(ord, f["activation"])) % 4 :: 4]


def shapes(f, whole=None):
    """whole: with rows of every length class; otherwise those that have them have them (whole_table), the others a share from level 2 on."""
    if found := own(f):
        return (
            found.SHAPES
            if LEVEL == 1
            else found.SHAPES + found.MORE[::4]
            if LEVEL == 2
            else found.SHAPES + found.MORE
        )
    tables = {
        "flat": (FLAT, FLAT_2),
        "rows": (ROWS, ROWS_2),
        "planes": (PLANES, PLANES_2),
        "heads": (HEADS, HEADS_2),
        "groups": (GROUPS, GROUPS_2),
    }
    base, more = of_form(f, tables)
    if f["family"] == "reduction":
        base, more = (
            [s for s in found if s[0][1] or f["empty"] == "value" or f["bwd"]]
            for found in (REDUCED, REDUCED_2)
        )
    elif f["scratch"]:
        base = base + of_form(f, SUMS)
    if channels(f):
        base = base + BANDS
    if f["family"] == "rows":
        base = base + rows_of(
            f,
            LINES
            if (whole_table(f) if whole is None else whole)
            else share_of(f, LINES)
            if LEVEL > 1
            else [],
        )
    return base if LEVEL == 1 else base + more[::4] if LEVEL == 2 else base + more


def runs(f, long=False, whole=None):
    """(sizes, values, shift) of one function: the first shape on all values, the others on one kind each (long sums on normal
    ones, since a few huge terms would hide the others). long: rows that only a GPU is quick with, too; of a long axis, for which the oracle takes
    seconds, level 2 has a third, from function to function another one."""
    lengthy = {
        "elementwise": [],
        "rows": rows_of(f, LONG + MANY_ROWS if whole_table(f) else share_of(f, LONG))
        if f["family"] == "rows"
        else [],
        "reduction": REDUCED_LONG[sum(map(ord, f["name"])) % 3 :: 3]
        if LEVEL == 2
        else REDUCED_LONG,
    }
    found, more = [], lengthy.get(f["family"], []) if long else []
    for i, (sizes, shift) in enumerate(shapes(f, whole) + more):
        one = (VALUES[0 if [sizes, shift] in of_form(f, SUMS, []) else i % 3],)
        for values in VALUES if i == 0 or LEVEL > 2 else one:
            found.append((sizes, values, shift))
    return found
