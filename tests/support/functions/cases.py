# SPDX-License-Identifier: Apache-2.0
"""Shapes and values that every function is tested on, and the test level.

KF_LEVEL=1 (the default, for CI) tests some functions on some shapes (selection.gate). KF_LEVEL=2
tests all functions on more shapes and runs the slow tests. KF_LEVEL=3 runs everything.

tests/cpu, tests/emu and tests/cuda call `runs(f)` for each function f, a record of the manifest. A
family with tensor shapes of its own defines SHAPES and MORE in tests/families; the others use the
tables below.
"""

import functools
import importlib.util
import os
import pathlib

LEVEL = int(os.environ.get("KF_LEVEL", "1"))
SHARE = 16  # Level 1 compiles and runs one planted fault in SHARE.


def by_level(gate, whole):
    """Returns `gate` at level 1 and `whole` from level 2 on."""
    return gate if LEVEL == 1 else whole


# Kinds of drawn values (storage.draw): normal; wide, over all exponents; special, edge values such
# as infinities and NaN among normal ones.
VALUES = ("normal", "wide", "special")

# Shape tables. An entry is [sizes, shift]. `sizes` has the order of the manifest's "sizes"; `shift`
# moves each tensor that many elements off its alignment. Level 1 uses X, level 2 adds every fourth
# entry of X_2, level 3 all of X_2 (see `shapes`).
#
# FLAT [n], ROWS [rows, cols], PLANES [outer, channels, inner]. They cover one tile and its
# neighbours, odd rows, rows narrower than a vector, and rows longer than a block of columns. They
# also cover one row, one column, empty tensors and several rows per thread. On the CPU: several
# tiles per row or plane, and groups of four rows. Many narrow planes make one tile of a summed
# gradient span several of them.
# fmt: off
FLAT = [[(1000,), 0], [(1,), 0], [(7,), 1], [(257,), 1], [(0,), 0], [(2048,), 0], [(1003,), 0]]
FLAT_2 = [[(n,), n % 3] for n in (*range(2, 131), 255, 256, 509, 1021, 4093, 16384)]
ROWS = [
    [(3, 5), 0], [(7, 64), 0], [(5, 300), 1], [(5, 2500), 0], [(0, 8), 0], [(6, 0), 0], [(1, 1), 1],
    [(40, 8), 0], [(36, 300), 0], [(9, 1024), 0],
]
ROWS_2 = [
    [(r, c), (r + c) % 3]
    for r in (1, 2, 17, 130)
    for c in (*range(1, 34), 63, 64, 65, 127, 130, 255, 257, 1024, 2047, 2049, 4096)
]
PLANES = [
    [(2, 3, 5), 0], [(4, 7, 1), 1], [(2, 3, 304), 0], [(2, 5, 49), 1], [(0, 3, 4), 0],
    [(2, 3, 0), 0], [(3, 16, 1), 0], [(3, 19, 1), 0], [(1, 1, 1100), 0], [(40, 3, 40), 0],
    [(4, 32, 66), 0], [(9, 32, 67), 1], [(5, 2305, 1), 0],
]
PLANES_2 = [
    [(o, c, i), (o + i) % 2]
    for o in (1, 3, 9)
    for c in (1, 2, 64, 2050)
    for i in (1, 2, 7, 8, 64, 196, 257, 1025)
    if o * c * i < 500000
]
PLANES_2 += [[(o, 32, i), 0] for o in (1, 4, 63, 300) for i in (65, 66, 67, 68)]
# HEADS [batch, heads, queries, keys].
HEADS = [
    [(2, 3, 4, 5), 0], [(1, 2, 3, 64), 0], [(3, 1, 5, 300), 1], [(2, 2, 2, 2500), 0],
    [(0, 2, 3, 4), 0], [(2, 0, 3, 4), 0], [(2, 3, 0, 4), 0], [(2, 3, 4, 0), 0], [(1, 1, 1, 1), 1],
    [(3, 4, 5, 8), 0], [(2, 7, 1, 1024), 0], [(1, 3, 40, 33), 0], [(1, 1, 2, 3008), 0],
]
HEADS_2 = [
    [(*rows, k), k % 3]
    for rows in ((1, 1, 1), (2, 3, 5), (3, 1, 17))
    for k in (*range(1, 34), 63, 64, 65, 127, 255, 257, 1024, 2049)
]
# GROUPS [outer, length, groups, channels, inner]; `channels` counts those of all groups. length 1
# is NCHW: one channel per group, and channels shorter and longer than a vector. inner 1 is NHWC:
# segments of whole vectors and others. The rest: both above 1, a row of one segment, one channel in
# several slices.
GROUPS = [
    [(2, 1, 3, 12, 5), 0], [(2, 5, 3, 12, 1), 0], [(2, 1, 2, 6, 64), 0], [(2, 9, 2, 32, 1), 0],
    [(2, 3, 2, 8, 6), 1], [(0, 2, 3, 12, 5), 0], [(2, 0, 3, 12, 5), 0], [(2, 2, 0, 0, 5), 0],
    [(2, 2, 3, 0, 5), 0], [(2, 2, 3, 12, 0), 0], [(1, 1, 1, 1, 1), 1], [(3, 1, 5, 5, 40), 0],
    [(1, 7, 1, 12, 1), 0], [(2, 1, 2, 8, 196), 0], [(1, 1, 2, 16, 49), 0], [(1, 90, 2, 20, 1), 0],
    [(1, 2, 2, 6, 20), 0], [(1, 1, 1, 2, 2600), 0], [(40, 1, 3, 6, 8), 0], [(1, 700, 2, 16, 1), 0],
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
# Shapes [rows, cols] of every length class of family rows: in registers (2, 4, 8 or 16 vectors per
# thread, by a block or a cluster), staged in shared memory, or reread. Each class has rows of whole
# vectors and others. The emulation (blocks of at most 64 threads, clusters of 2) and a GPU (1,024
# threads, clusters of 8) classify a length differently.
LINES = [
    [(3, 2048), 0], [(2, 8192), 0], [(2, 8200), 0], [(2, 1023), 0], [(3, 2047), 0], [(2, 8193), 1],
    [(2, 128), 1], [(3, 4808), 0], [(2, 5001), 0], [(2, 7001), 0], [(2, 3001), 0], [(2, 3008), 0],
    [(3, 248), 0], [(3, 520), 0],
]
# Rows that only a GPU computes quickly, of the same classes.
LONG = [
    [(3, 12288), 0], [(2, 12289), 0], [(3, 24576), 0], [(2, 24577), 0], [(2, 40000), 0],
    [(2, 40001), 1], [(2, 70000), 0], [(2, 70001), 0], [(1, 262144), 0], [(1, 200001), 0],
    [(1, 530000), 0], [(1, 530001), 0],
]
# REDUCED [outer, axis, inner], for family reduction. An axis is reduced by lanes of a warp, by a
# block, split in parts, or down columns; some columns are no whole vector. In C a strip holds
# several indices of the axis. A part has a few hundred elements in the emulation and 65,536 in C.
# The last two entries: few axes of several chunks, and several warps of a kernel that sweeps twice.
REDUCED = [
    [(5, 7, 3), 0], [(1, 1000, 1), 1], [(3, 70, 64), 0], [(5, 0, 3), 0], [(0, 7, 3), 0],
    [(2, 1, 5), 0], [(40, 8, 1), 0], [(3, 300, 1), 0], [(2, 10000, 1), 0], [(2, 3001, 1), 1],
    [(1, 700, 20), 0], [(2, 0, 1), 0], [(1, 7, 300), 1], [(9, 2, 33), 0], [(1, 5000, 40), 0],
    [(1, 140000, 1), 0], [(3, 2048, 1), 0], [(3, 60, 64), 0],
]
REDUCED_2 = [
    [(o, a, i), (o + a) % 3]
    for o in (1, 5)
    for a in (1, 2, 7, 31, 128, 1000, 5000)
    for i in (1, 2, 3, 8, 63, 64, 65, 260)
]
# Axes that only a GPU reduces quickly.
REDUCED_LONG = [
    [(1, 3000001, 1), 0], [(1, 4000000, 1), 0], [(3, 100000, 1), 0], [(1, 40000, 33), 1],
    [(2, 20000, 256), 0], [(1, 3000, 4100), 0],
]
MANY_ROWS = [[(280, 4096), 0], [(62, 33000), 0]]  # several rows for each persistent block
# BANDS [outer, channels, inner], for functions over channels, at every element size. Planes of
# whole vectors, of partial vectors, and shorter than one vector. Aligned tensors and shifted ones.
# Channels that one block of the emulation holds, and longer ones, also where there are enough
# channel blocks to fill the device. The last four are rows in registers of some lanes, a block, or
# a cluster.
BANDS = [
    [(3, 2, 64), 0], [(3, 2, 64), 1], [(3, 2, 2048), 0], [(3, 2, 2048), 1], [(5, 8, 9), 0],
    [(5, 7, 9), 0], [(60, 8, 9), 0], [(75, 7, 9), 1], [(6, 12, 10), 0], [(40, 16, 1), 0],
    [(40, 13, 1), 0], [(30, 16, 1), 0], [(600, 16, 1), 0], [(600, 13, 1), 1], [(90, 16, 1), 0],
    [(70, 8, 3), 0], [(1, 3, 700), 0], [(2, 1, 1001), 0], [(40, 260, 1), 0], [(7, 5, 3), 0],
    [(2, 3, 320), 1], [(2, 3, 800), 1], [(2, 3, 2000), 1], [(2, 3, 2400), 1],
]
# fmt: on
# Shapes for reduced gradients: enough rows that CUDA's second stage sums several parts, for every
# dtype.
SUMS = {
    "rows": [[(2100, 12), 0]],
    "planes": [[(1300, 2, 9), 0]],
    "groups": [[(700, 1, 2, 4, 9), 0]],
}
# Forms whose shapes are those of another one: [outer, channels, inner], [outer, axis, inner].
LIKE = {"channels": "planes", "axis": "planes"}

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
    """Returns the family's own module in tests/families, or None.

    The module defines shapes, how tensors are drawn, and the reference. None: the family's tensors
    are elementwise or rows.
    """
    found = of_family(f["family"])
    return getattr(found, "FORMS", {}).get(f["form"], found)


def together(f, name):
    """Returns the tensors that are NULL together with one that may be, itself among them."""
    groups = getattr(own(f), "TOGETHER", ())
    return next((group for group in groups if name in group), (name,))


def merged(word):
    """Merges the dictionaries called `word` of all families' own modules."""
    return {key: value for entries in _attributes(word) for key, value in entries.items()}


def listed(word):
    """Concatenates the lists called `word` of all families' own modules."""
    return [entry for entries in _attributes(word) for entry in entries]


def _attributes(word):
    found = [loaded(path) for path in sorted(FAMILIES.glob("*/cases*.py"))]
    return [getattr(own, word) for own in found if hasattr(own, word)]


def like(table, found):
    """Returns a family's own shapes in the format of another form's entries in `table`."""
    sample = next(iter([entry for entry in table.values() if entry]), [])
    shapes_ = [entry for entry in found if all(entry[0])][:5]
    if not isinstance(sample, list):
        return shapes_[0][0]
    if not sample or isinstance(sample[0][0], int):
        return [sizes for sizes, _ in shapes_]
    return [[*entry] if len(sample[0]) < 3 else (entry[0], "normal", entry[1]) for entry in shapes_]


def most_launches(f):
    """Returns the maximum number of kernel launches of one call: two per pass over a split axis,
    and one more over channels, to store the result."""
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
    """Looks up a function's form in a table {form: shapes}. An unknown form is an error, unless a
    default is given."""
    form = LIKE.get(f["form"], f["form"])
    if form not in table and not default and (found := own(f)):
        return like(table, found.SHAPES)
    return table.get(form, *default) if default else table[form]


def whole_table(f):
    """True if the tests must reach every kernel of the launcher's table.

    Family rows needs two activations for this, one whose gradient reads its argument and one whose
    gradient does not. Others repeat the same loops, and a long row costs the oracle twenty times
    the time of all short ones. They follow at level 3.
    """
    return f["family"] == "elementwise" or f["activation"] in ("none", "gelu") or LEVEL > 2


def of_own_accesses(f):
    """False for f16 except casts: f16 kernels are bf16 kernels with another conversion."""
    return f["dtypes"][0] != "f16" or f["op"] == "cast"


def sampled(f):
    """True for none, gelu and a sixth of the other activations, which differ from op to op. At
    level 3 true for all."""
    turn = sum(map(ord, f["op"] + f["activation"] + "".join(f["dtypes"])))
    return f["activation"] in ("none", "gelu") or turn % 6 == f["bwd"] or LEVEL > 2


def planes(f):
    """True if the rows of a function of family rows are the planes of [outer, channels, inner]."""
    return f["layout"] == "planes"


def groups(f):
    """True if the rows are groups of the channels of [outer, length, channels, inner]."""
    return f["layout"] == "groups"


def channels(f):
    """True if the rows are the channels of [outer, channels, inner], reduced over outer and
    inner."""
    return f["layout"] == "channels"


def counted(f):
    """Returns the index of the size that counts the rows. Channels use batch size 1."""
    return int(channels(f))


def of_count(f, count, rest):
    """Returns sizes with `count` rows and the remaining sizes `rest`."""
    return (1,) * counted(f) + (count, *rest)


def persistent(f):
    """True if the kernel's persistent blocks loop over rows and share a sum. Reductions over an
    axis are excluded, and so are planes and groups, which store a value each."""
    return (
        f["scratch"]
        and f["family"] != "reduction"
        and not own(f)
        and not planes(f)
        and not groups(f)
    )


def parts(groups, cols):
    """Returns (groups, channels of all groups, inner) for groups of `cols` elements."""
    return next((groups, groups * n, cols // n) for n in (8, 3, 1) if cols % n == 0)


def rows_of(f, table):
    """Converts shapes [rows, cols] of family rows to the form of f: planes, channels, groups, or
    queries of two heads."""
    # One channel per group or several, in one segment or two.
    if groups(f):
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
    # Two segments, short ones, segments that are no whole vectors, or one segment.
    if channels(f):
        segments = [
            2 if c % 16 == 0 and r % 2 == 0 else c // 8 if c % 8 == 0 else 3 if c % 3 == 0 else 1
            for (r, c), _ in table
        ]
        return [[(n, r, c // n), shift] for ((r, c), shift), n in zip(table, segments)]
    if not planes(f):
        return table
    return [[(2, r // 2, c) if r % 2 == 0 else (1, r, c), shift] for (r, c), shift in table]


def share_of(f, table):
    """Returns a quarter of the table; which one depends on the activation."""
    return table[sum(map(ord, f["activation"])) % 4 :: 4]


def shapes(f, whole=None):
    """Returns the [sizes, shift] entries for f at the current level.

    whole: includes rows of every length class. The default includes them if whole_table(f); other
    functions get a share of them from level 2 on.
    """
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
    """Returns [(sizes, values, shift)] for f.

    The first shape runs with all VALUES, each other shape with one of them. Long sums run with
    normal values, because a few huge terms would hide the others.

    long: adds rows that only a GPU computes quickly. A long axis takes the oracle seconds, so level
    2 uses a third of these shapes, chosen by the function's name.
    """
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
