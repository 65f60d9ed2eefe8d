# SPDX-License-Identifier: Apache-2.0
"""Products of matrices whose rows have the same bits whatever is beside them: KF_BATCH_INVARIANT."""

import checks
import numpy as np
import storage

# Beyond 64, which is a class of its own without the switch.
ROWS = 130, 65, 64, 17, 3


def cut(array, wanted):
    """The first rows of it: along the axis that is shorter in what is wanted."""
    return array[tuple(slice(n) for n in wanted)]


def same(a, b, dtype):
    """All bits, but those of numbers that are none."""
    x, y = (storage.to_float(v, dtype) for v in (a, b))
    return np.array_equal(
        np.where(np.isnan(x), -1, a.view(f"i{a.itemsize}")),
        np.where(np.isnan(y), -1, b.view(f"i{b.itemsize}")),
    )


def results(lib, memory, f, whole, rows, shift):
    """What the first rows of a call give."""
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


def check(f, ways, cols=24, depth=1032, several=ROWS):
    """cols, depth: of the product that makes rows of a forward, or of a gradient.
    ways: [(what it is, lib, memory, by how many elements tensors are moved, what is called first, multiprocessors)]. Rows have the same bits in all
    of them; of floats in each, as long as alignment allows the same kernels: the leading dimension of a left factor across its depth is the number
    of rows. A vector that is summed over rows (a bias' gradient) has parts by the number of multiprocessors."""
    first = {}
    floats = f["dtypes"][0] in ("f32", "tf32")
    if floats and f["form"][0] == "t" and not f["bwd"]:
        several = [rows + -rows % 4 for rows in several]
    for what, lib, memory, shift, before, multiprocessors in ways:
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
                        f"{f['name']}: {name} of {rows} rows {what}: other bits than of {several[0]}"
                    )
