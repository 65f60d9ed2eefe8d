# SPDX-License-Identifier: Apache-2.0
"""Checks of a CUDA launcher's promises besides its numbers: graphs, streams, no other runtime
calls, reproducible bits.

A check takes a GPU (gpu.py or fakegpu.py), the library, a function of the manifest and a shape. It
compares with a direct call on the default stream, bit by bit; the number tests check that call.
"""

import cases
import checks
import counting
import numpy as np
from checks import Failure

SHAPES = {
    "flat": [((1000,), 0), ((257,), 1)],
    "rows": [((7, 64), 0), ((5, 300), 1)],
    "planes": [((2, 3, 304), 0), ((2, 5, 49), 1), ((4, 8, 1), 0)],
    "heads": [((2, 3, 5, 64), 0), ((3, 2, 5, 300), 1)],
    "groups": [((2, 1, 3, 15, 64), 0), ((2, 19, 3, 24, 1), 0), ((3, 3, 2, 10, 7), 1)],
}
# Many blocks, and several parts of a reduced gradient.
PARTED = [((2, 70001, 1), 0), ((1, 9000, 70), 0)]  # reductions over an axis that is split
LARGE = {
    "flat": [((300007,), 0)],
    "rows": [((600, 403), 0), ((3000, 64), 0)],
    "planes": [((10, 50, 331), 0), ((3000, 70, 1), 0), ((40, 32, 66), 0)],
    "heads": [((3, 4, 50, 403), 0), ((6, 5, 100, 64), 0)],
    "groups": [((10, 1, 20, 100, 203), 0), ((6, 300, 8, 128, 1), 0)],
}


def succeed(lib, f, call, given, stream=0):
    result = lib.call(f, given, stream)
    if result != 0:
        raise Failure(f"{call.where}: returned {result} ({lib.detail})")


def direct(gpu, lib, f, call):
    """Returns the arena after one call on the default stream."""
    gpu.upload(call.image)
    succeed(lib, f, call, call.given(gpu.base))
    gpu.synchronize()
    return gpu.download(call.image.size)


def same(call, back, want, what):
    """Compares two arenas except for the workspace: outputs bit by bit, and no other byte
    written."""
    at = call.offset[":workspace"]
    differ = back != want
    differ[at : at + call.workspace] = False
    first = np.flatnonzero(differ)
    if first.size:
        i = int(first[0])
        name = next(
            (n for n in call.tensors if call.offset[n] <= i < call.offset[n] + call.data[n].nbytes),
            "no tensor",
        )
        item = call.data[name].itemsize if name in call.data else 1
        element = (i - call.offset[name]) // item if name in call.data else i
        raise Failure(
            f"{call.where}: {what}: {first.size} bytes differ, first in {name} at element "
            f"{element}: got byte {back[i]:#04x}, expected {want[i]:#04x}"
        )


def graph(gpu, lib, f, sizes, shift):
    """Checks graph capture: nothing runs during the capture, and replays on other inputs give the
    bits of direct calls."""
    # Some functions give equal results for all ordinary inputs.
    for values, seed in [("normal", 1)] + [("special", s) for s in range(2, 40)]:
        calls = [checks.Layout(lib, f, sizes, values, seed=s, shift=shift) for s in (1, seed + 1)]
        if f["dropout"] and not f["state"]:
            # Arguments by value belong to the graph; a state is read at every replay.
            calls[1].set_philox(*calls[0].philox)
        wants = [direct(gpu, lib, f, c) for c in calls]
        if not all(
            checks.same_bits(a, b)
            for a, b in zip(
                calls[0].outputs(wants[0]).values(), calls[1].outputs(wants[1]).values()
            )
        ):
            break
    else:
        raise Failure(f"{calls[0].where}: two inputs with one result prove nothing")
    gpu.upload(calls[0].image)
    gpu.begin_capture(gpu.side)
    try:
        succeed(lib, f, calls[0], calls[0].given(gpu.base), gpu.side)
    finally:
        captured = gpu.end_capture(gpu.side)
    try:
        gpu.synchronize()
        same(
            calls[0], gpu.download(calls[0].image.size), calls[0].image, "ran while it was captured"
        )
        for replay in (0, 1, 0):
            call = calls[replay]
            gpu.upload(call.image, gpu.side)
            gpu.launch(captured, gpu.side)
            gpu.finish(gpu.side)
            same(
                call,
                gpu.download(call.image.size, gpu.side),
                wants[replay],
                f"replayed with input {replay}",
            )
    finally:
        gpu.destroy(captured)


def streams(gpu, lib, cases):
    """Checks calls [(function, sizes, shift)] on a side stream while the default stream is busy:
    they must neither wait nor run there."""
    calls = [(f, checks.Layout(lib, f, sizes, seed=3, shift=shift)) for f, sizes, shift in cases]
    # Direct calls also load the kernels; loading may wait for the device.
    wants = [direct(gpu, lib, f, call) for f, call in calls]
    with gpu.busy():
        for (f, call), want in zip(calls, wants):
            try:
                result, back = gpu.run_on(
                    gpu.side,
                    call.image,
                    lambda base, f=f, call=call: lib.call(f, call.given(base), gpu.side),
                    10,
                )
            except TimeoutError as e:
                raise Failure(f"{call.where}: waits for the default stream") from e
            if result != 0:
                raise Failure(f"{call.where}: returned {result} ({lib.detail})")
            same(call, back, want, "on a side stream")


def only_launches(gpu, lib, f, sizes, shift):
    """Checks that a call only launches kernels, at most as many as its family states, and that
    refused and empty calls launch none."""
    call = checks.Layout(lib, f, sizes, seed=4, shift=shift)
    gpu.upload(call.image)
    given = call.given(gpu.base)
    for what, changes, launches in (
        ("a call", {}, range(1, max(2, cases.most_launches(f)) + 1)),
        ("an empty call", {s: 0 for s in f["sizes"]}, (0,)),
        ("a refused call", {f["sizes"][0]: -1}, (0,)),
    ):
        counting.take(lib)
        result = lib.call(f, given | changes, gpu.side)
        found = counting.take(lib)
        if (result != 0) != (what == "a refused call"):
            raise Failure(f"{call.where}: {what} returned {result} ({lib.detail})")
        launched = found.pop(counting.LAUNCH, 0)
        if found.get(counting.SETUP, 0) <= launched:
            found.pop(counting.SETUP, 0)
        if found or launched not in launches:
            raise Failure(
                f"{call.where}: {what} made {launched} launches, expected {launches[0]}, and "
                f"called {found or 'nothing else'}"
            )
    gpu.finish(gpu.side)


def repeated(gpu, lib, f, sizes, shift, times=20):
    """Checks that repeated calls give the same bits: at other addresses, over other memory
    contents, and beside another kernel."""
    call = checks.Layout(lib, f, sizes, seed=5, shift=shift)
    room = -(-call.image.size // 4096) * 4096
    gpu.upload(call.image, to=gpu.spare)
    gpu.begin_comparison(gpu.side)
    for i in range(times):
        at = gpu.base + (i % 3) * room
        if at + room > gpu.base + gpu.size:
            raise Failure(f"{call.where}: the arena is too small")
        gpu.copy(at, gpu.spare, call.image.size, gpu.side)
        if call.workspace:
            gpu.fill(at + call.offset[":workspace"], 17 * i % 256, call.workspace, gpu.side)
        if i % 2:  # a concurrent operation
            gpu.fill(gpu.base + 3 * room, i, min(room * (i % 5 + 1), gpu.size - 3 * room))
        succeed(lib, f, call, call.given(at), gpu.side)
        if i == 0:
            gpu.copy(gpu.spare + room, at, call.image.size, gpu.side)
            continue
        for name, a in call.tensors.items():
            if a["role"] != "in":
                gpu.compare(
                    at + call.offset[name],
                    gpu.spare + room + call.offset[name],
                    call.data[name].nbytes,
                    gpu.side,
                )
    count, first = gpu.differences(gpu.side)
    gpu.synchronize()
    if count:
        raise Failure(
            f"{call.where}: {count} bytes differ in {times - 1} repetitions, first at byte {first} "
            "of an output"
        )
    back = gpu.download(call.image.size, start=gpu.spare + room)
    call.untouched(back)
    call.check(call.outputs(back))


def chained(gpu, lib, f, sizes, times=6):
    """Checks calls that each read the previous call's output, without waiting: same bits as with a
    wait after each."""
    for out, source in checks.in_place_pairs(f):
        call = checks.Layout(lib, f, sizes, seed=6, inplace=((out, source),))
        results = []
        for wait in (True, False):
            gpu.upload(call.image, gpu.side)
            for _ in range(times):
                succeed(lib, f, call, call.given(gpu.base), gpu.side)
                if wait:
                    gpu.finish(gpu.side)
            gpu.finish(gpu.side)
            results.append(gpu.download(call.image.size, gpu.side))
        same(call, results[1], results[0], f"{times} calls in a row, {out} in place of {source}")


def changes_again(gpu, lib, f, sizes, pair):
    """True if a second call, in place of the input, changes the result of the first."""
    call = checks.Layout(lib, f, sizes, seed=6, inplace=(pair,))
    gpu.upload(call.image)
    images = []
    for _ in range(2):
        succeed(lib, f, call, call.given(gpu.base), 0)
        gpu.synchronize()
        images.append(gpu.download(call.image.size))
    return not np.array_equal(*images)


def batch_axis(a):
    """True if the tensor has the axis that counts the rows."""
    kinds = (
        "elem",
        "half",
        "per_row",
        "per_plane",
        "per_query",
        "per_group",
        "per_channel",
        "shared",
    )
    return a["kind"] in kinds or a["shape"][0] in ("rows", "batch")


def loaded(gpu, lib, other, f, sizes, shift):
    """Checks that launchers over the CUDA driver with loaded kernels give nvcc's bits."""
    call = checks.Layout(other, f, sizes, seed=8, shift=shift)  # this workspace is the larger one
    same(
        call, direct(gpu, other, f, call), direct(gpu, lib, f, call), "by a kernel that was loaded"
    )


def alone(gpu, lib, f, sizes, shift):
    """Checks that a row (a batch of planes, an element) alone has the bits that it has among
    others.

    This excludes sums over rows, and products: their number of rows decides the order of sums
    (docs/families/gemm.md).
    """
    if getattr(cases.own(f), "ROWS_OF_A_PRODUCT", False):
        return
    if cases.channels(f):
        sizes = (1, sizes[1], sizes[0] * sizes[2])
    # The mask belongs to an element's index.
    call = checks.Layout(lib, f, sizes, seed=7, shift=shift, p=0.0)
    want = direct(gpu, lib, f, call)
    # Bounds of packed sequences are one more than these.
    if any(a["shape"][0] == f"{f['sizes'][cases.counted(f)]} + 1" for a in call.tensors.values()):
        sequences_alone(gpu, lib, f, call, want)
        return
    sums = {a["name"]: None for a in call.tensors.values() if a["role"] == "sum"}
    rows = sizes[cases.counted(f)]
    for row in sorted({0, 1, rows // 2, rows - 1} & set(range(rows))):
        gpu.upload(call.image)
        given = call.given(gpu.base) | {f["sizes"][cases.counted(f)]: 1} | sums
        expected = call.image.copy()
        for name, a in call.tensors.items():
            if batch_axis(a):
                step = call.data[name].nbytes // rows
                given[name] = given[name] and given[name] + row * step
                if a["role"] != "in" and name not in sums:
                    span = slice(
                        call.offset[name] + row * step, call.offset[name] + (row + 1) * step
                    )
                    expected[span] = want[span]
        # Elements of a row in outputs that have no axis of rows.
        got, alone_ = call.outputs(want), call.outputs(expected)
        for name, own in getattr(cases.own(f), "of_row", lambda *_: {})(call, row).items():
            alone_[name][own] = got[name][own]
        succeed(lib, f, call, given)
        gpu.synchronize()
        same(call, gpu.download(call.image.size), expected, f"row {row} alone")


def sequences_alone(gpu, lib, f, call, want):
    """Checks that a packed sequence alone has the bits that it has among others, and that other
    rows have those of a call without sequences."""
    counted = f["sizes"][cases.counted(f)]
    count = call.sizes[cases.counted(f)]

    def run(changes):
        gpu.upload(call.image)
        succeed(lib, f, call, call.given(gpu.base) | changes)
        gpu.synchronize()
        return gpu.download(call.image.size)

    none = run({counted: 0})
    for index in range(count):
        changes, expected = {counted: 1}, none.copy()
        for name, a in call.tensors.items():
            if a["shape"][0].startswith(counted):  # one per sequence, or its bounds
                rows = count if a["shape"][0] == counted else count + 1
                step = call.data[name].nbytes // rows
                changes[name] = gpu.base + call.offset[name] + index * step
        slices = cases.own(f).of_sequence(call, index)
        got, alone_ = call.outputs(want), call.outputs(expected)
        for name, array in alone_.items():
            own = tuple(slices.get(size, slice(None)) for size in call.tensors[name]["shape"])
            array[own] = got[name][own]
        same(call, run(changes), expected, f"sequence {index} alone")


def unaligned(gpu_memory, lib, f):
    """Checks all addresses that the element size allows, equal for all tensors and different,
    against the oracle."""
    sizes = cases.of_form(
        f,
        {
            "flat": (203,),
            "rows": (5, 61),
            "planes": (3, 4, 33),
            "heads": (2, 2, 3, 61),
            "groups": (2, 3, 2, 10, 7),
        },
    )
    least = min(
        np.dtype(checks.STORAGE[a["dtype"]]).itemsize for a in f["arguments"] if "kind" in a
    )
    for shift in range(1, 16 // least):
        checks.run(lib, gpu_memory, f, sizes, seed=shift, shift=shift)
    even = cases.of_form(
        f,
        {
            "flat": (2048,),
            "rows": (6, 64),
            "planes": (2, 4, 64),
            "heads": (2, 2, 3, 64),
            "groups": (2, 2, 3, 12, 16),
        },
    )
    for shift in ((1, 0, 0, 0, 0, 0, 0, 0), (0, 0, 1), (0, 1), (2, 3, 1, 0, 5)):
        checks.run(lib, gpu_memory, f, even, seed=8, shift=shift)
