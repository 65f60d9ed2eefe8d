# SPDX-License-Identifier: Apache-2.0
"""Checks KF_BATCH_INVARIANT: a row of a product has the same bits for any number of rows in the
call."""

import checks
import numpy as np
import storage

# More than 64 rows, and fewer: without the switch they use different kernels.
ROWS = 130, 65, 64, 17, 3


def cut(array, wanted):
    """Returns the leading part of `array` with the extents `wanted`."""
    return array[tuple(slice(n) for n in wanted)]


def same(a, b, dtype):
    """True if the bits are equal, except for NaNs."""
    x, y = (storage.to_float(v, dtype) for v in (a, b))
    return np.array_equal(
        np.where(np.isnan(x), -1, a.view(f"i{a.itemsize}")),
        np.where(np.isnan(y), -1, b.view(f"i{b.itemsize}")),
    )


def results(lib, memory, f, whole, rows, shift):
    """Calls f on the first `rows` rows of `whole` and returns its outputs."""
    call = checks.Layout(lib, f, (1, rows, *whole.sizes[2:]), shift=shift)
    call.scalars = whole.scalars
    for name in call.data:
        call.put(name, cut(whole.data[name], call.data[name].shape))
    call.set_philox(*whole.philox)
    memory.spans = call.spans()
    result, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    if result != 0:
        raise checks.Failure(f"{call.where}: returned {result} ({lib.detail})")
    call.untouched(back)
    return call.outputs(back)


def check(f, methods, cols=24, depth=1032, several=ROWS):
    """Fails if a row's bits depend on the number of rows, or differ between the entries of
    `methods`.

    methods: [(description, lib, memory, shift, function to call first, multiprocessors)]. cols,
    depth: N and K of the product that computes the rows.

    f32 rows are compared within one entry only, because alignment may choose another kernel. For a
    transposed left factor the row count is its leading dimension, so it is rounded up to 4. Sums
    over rows (a bias gradient) are split by the number of multiprocessors.
    """
    first = {}
    floats = f["dtypes"][0] in ("f32", "tf32")
    if floats and f["form"][0] == "t" and not f["bwd"]:
        several = [rows + -rows % 4 for rows in several]
    for what, lib, memory, shift, before, multiprocessors in methods:
        before()
        first = {} if floats else first
        whole = checks.Layout(
            lib, f, (1, several[0], *((depth, cols) if f["bwd"] else (cols, depth)))
        )
        for rows in several:
            for name, got in results(lib, memory, f, whole, rows, shift).items():
                argument = whole.tensors[name]
                if whole.data[name].shape == got.shape and rows != several[0]:
                    continue  # a sum over rows
                by_parts = argument["role"] == "sum" and argument.get("kind") != "right"
                want = cut(
                    first.setdefault((name, multiprocessors if by_parts else 0), got), got.shape
                )
                if not same(want, got, argument["dtype"]):
                    raise checks.Failure(
                        f"{whole.where}: {name} of {rows} rows {what} has other bits than with "
                        f"{several[0]} rows, {storage.first_difference(got, want)}"
                    )
