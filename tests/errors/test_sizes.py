# SPDX-License-Identifier: Apache-2.0
"""Sizes of every function: negative sizes and overflowing products are refused; zero is success."""

import cases
from refusals import (
    INVALID_SIZE,
    MOST,
    Call,
    count,
    extents,
    outputs,
    shape_fields,
    sums,
    tensors_of,
)

OVERFLOWS = {
    "flat": [(2**62,), (2**63 - 1,)],
    "rows": [(2**32, 2**32), (2**62, 4), (3, 2**62), (2**63 - 1, 2**63 - 1), (2**31, 2**31)],
    "planes": [
        (2**22, 2**22, 2**22),
        (2**62, 1, 4),
        (2**32, 1, 2**32),
        (1, 2**62, 2**62),
        (2**63 - 1, 2, 1),
    ],
    "heads": [
        (2**20, 2**20, 2**20, 2**20),
        (2**62, 1, 1, 4),
        (1, 2**32, 1, 2**32),
        (2, 1, 2**62, 1),
        (2**63 - 1, 2, 1, 1),
    ],
    "groups": [
        (2**20, 2**20, 2**20, 2**20, 2**20),
        (2**62, 1, 1, 1, 4),
        (1, 1, 2**32, 2**32, 2**32),
        (2, 1, 1, 2**62, 1),
        (2**63 - 1, 2, 1, 1, 1),
    ],
}


def names_of(f):
    return [a["name"] for a in tensors_of(f)]


def test_negative_sizes(lib, functions):
    for f in functions:
        first, last = f["sizes"][0], f["sizes"][-1]
        expected = "0 to 2^58" if shape_fields(f) else "0 or more"
        for size in f["sizes"]:
            for value in (-1, -(2**40), -(2**63)):
                Call(lib, f).set(**{size: value}).refuses(
                    INVALID_SIZE, size, f"{size} is {value}, expected {expected}"
                )
        # Sizes are checked before pointers, and negative sizes before zero ones.
        Call(lib, f).set_all(names_of(f), None).set(**{last: -3}).refuses(INVALID_SIZE, last)
        if first != last:
            Call(lib, f).set(**{first: 0, last: -3}).refuses(INVALID_SIZE, last)
            Call(lib, f).set(**{first: -3, last: 0}).refuses(INVALID_SIZE, first)


def test_products_that_overflow(lib, functions):
    """The message names the first size that makes the product too large."""
    for f in functions:
        own = cases.own(f)
        for sizes, wrong in (
            own.OVERFLOWS if own else [(sizes, None) for sizes in cases.of_form(f, OVERFLOWS)]
        ):
            room = MOST
            for name, size in zip(f["sizes"], () if own else sizes):
                size = 1 if name == "groups" else size  # `channels` counts those of all groups
                wrong, room = wrong or (name if size > room else None), room // max(size, 1)
            call = Call(lib, f).set(**dict(zip(f["sizes"], sizes)))
            if shape_fields(f):  # several sizes make a tensor: the message names the tensor
                call.refuses(
                    INVALID_SIZE,
                    "shape",
                    f"shape gives {wrong} no shape, expected dimensions of at least 0 and at most "
                    "2^58 elements",
                )
                continue
            call.refuses(
                INVALID_SIZE,
                wrong,
                f"{wrong} is {sizes[f['sizes'].index(wrong)]}, "
                "expected a tensor of at most 2^58 elements",
            )


def test_channels_that_make_no_groups(lib, functions):
    """Channels that do not divide into groups are refused: the message names both, before a zero
    extent succeeds and before any pointer check. The workspace query returns 0.
    """
    for f in [f for f in functions if "groups" in f["sizes"]]:
        for groups, channels in ((2, 3), (4, 2), (0, 4), (3, 2**40)):
            call = (
                Call(lib, f)
                .set_all(names_of(f), None)
                .set(groups=groups, channels=channels, outer=0)
            )
            call.refuses(
                INVALID_SIZE,
                "channels",
                f"channels is {channels}, expected a multiple of groups, {groups}",
            )
            assert lib.workspace_bytes(f, [2, 3, groups, channels, 5]) == 0
        Call(lib, f).set(groups=-2).refuses(
            INVALID_SIZE, "groups", "groups is -2, expected 0 or more"
        )


def test_zero_extents(lib, functions):
    """Succeeds without pointers; sums over nothing are zero."""
    for f in functions:
        sizes, defaults = extents(f), {a["name"]: a["default"] for a in shape_fields(f)}
        for i, size in enumerate(f["sizes"]):
            given, default = dict(zip(f["sizes"], sizes)), defaults.get(size)
            if default in given or isinstance(default, int):  # another size, or a number
                call = Call(lib, f, tuple((given | {size: given.get(default, default)}).values()))
                call.set(**{size: 0}).accepts(f"{size} = 0, its default", outputs(f))
                continue
            empty = tuple(
                0 if i == j or (size, other) == ("groups", "channels") else s
                for j, (other, s) in enumerate(zip(f["sizes"], sizes))
            )
            call = Call(lib, f, empty)
            if size == "axis" and f["empty"] == "error" and not f["bwd"]:
                call.refuses(INVALID_SIZE, "axis", "is 0, expected 1 or more")
                continue
            idle = size in getattr(cases.own(f), "IDLE", ())
            written = [
                a["name"]
                for a in tensors_of(f)
                if a["role"] != "in" and count(f, a, empty) and not idle
            ]
            call.set_all([a["name"] for a in tensors_of(f) if count(f, a, empty) == 0], None)
            call.accepts(f"{size} = 0", written)
            over = [
                a["name"]
                for a in tensors_of(f)
                if a["role"] == "sum" and size in a["summed_over"] and a["name"] in written
            ]
            for name in over if lib.backend == "cpu" else ():
                assert not call.span(name).any(), f"{call.name}: {name} over {size} = 0 is not zero"
            if not written and not idle:  # nothing to write: pointers are not checked
                call = (
                    Call(lib, f, empty)
                    .set_all(names_of(f), None)
                    .set(workspace=None, workspace_bytes=0)
                )
                call.accepts(f"{size} = 0, all NULL")
                call.set_all(names_of(f), 1).accepts(f"{size} = 0, pointers of no meaning")
                assert call._call()[2] == 0, f"{call.name} launches something for {size} = 0"
        call = (
            Call(lib, f)
            .set_all(f["sizes"], 0)
            .set_all(names_of(f), None)
            .set(workspace=None, workspace_bytes=0)
        )
        call.accepts("all sizes 0")
        assert call._call()[2] == 0, f"{call.name} launches something for nothing"


def test_sums_over_nothing_may_be_unwanted(lib, functions):
    for f in functions:
        if sums(f):
            call = Call(lib, f, (0,) + extents(f)[1:]).set_all(sums(f), None)
            nothing = cases.planes(f) or cases.groups(f) or f["sizes"][0] == "batch"
            call.accepts(
                "no rows and no sum", [] if nothing else [n for n in outputs(f) if n not in sums(f)]
            )
