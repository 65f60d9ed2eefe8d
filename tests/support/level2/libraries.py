# SPDX-License-Identifier: Apache-2.0
"""Compiles the libraries of tests/cuda in parallel on all cores; a file READY/NAME appears when one
is ready.

Built by the tests, each library would wait for the one before, with idle cores at the end of each.
Units that take very long start first, whatever their library: started last, one of them would delay
the last tests. The others follow library by library.

    python tests/support/level2/libraries.py CORES READY NAME...     names of LIBRARIES, helpers
"""

import collections
import concurrent.futures
import functools
import importlib.util
import pathlib
import signal
import sys
import threading
import time
import traceback

if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parents[3]
    sys.path[0:1] = [str(ROOT / d) for d in ("tests", "tests/support", "gen")]
    import folders

    folders.add()

# Relative cost of a unit with run-time activations: each of its kernels has the code of every
# activation.
ANY = 18

# `key` is equal for units that compile to the same object.
Unit = collections.namedtuple("Unit", "library key name text make")


def length(unit):
    """Estimates a unit's compile time."""
    return len(unit.text) * (ANY if unit.name.startswith("any_") else 1)


def order(units, cores):
    """Returns each unit once, in the order of compilation.

    Units that take more than half of the average time per core come first. The rest follow library
    by library, longest first, so that the first library's tests can start early.
    """
    once = {unit.key: unit for unit in reversed(units)}.values()
    place = {name: i for i, name in enumerate(dict.fromkeys(unit.library for unit in units))}
    long = sum(map(length, once)) / cores / 2
    return sorted(
        once, key=lambda unit: (-1 if length(unit) > long else place[unit.library], -length(unit))
    )


class Builder:
    """Compiles units and links libraries.

    units: of all libraries. finish: {library: function that links it}. say: called with (library,
    seconds, error or None).
    """

    def __init__(self, units, finish, say):
        self.finish, self.say, self.began, self.lock = (
            finish,
            say,
            time.monotonic(),
            threading.Lock(),
        )
        self.units = units
        self.waits = {name: {u.key for u in units if u.library == name} for name in finish}
        self.errors, self.seconds = {}, {}

    def run(self, cores):
        with concurrent.futures.ThreadPoolExecutor(cores) as pool:
            for name in [n for n, left in self.waits.items() if not left]:
                pool.submit(self.end, name)
            for unit in order(self.units, cores):
                pool.submit(self.compile, unit)

    def compile(self, unit):
        began, error = time.monotonic(), None
        try:
            unit.make()
        except Exception:  # The tests build it again and show the error.
            error = traceback.format_exc()
        with self.lock:
            self.seconds[unit.name] = time.monotonic() - began
            of = [name for name, left in self.waits.items() if unit.key in left]
            for name in of:
                self.waits[name].discard(unit.key)
                self.errors[name] = self.errors.get(name) or error
            done = [name for name in of if not self.waits[name]]
        for name in done:
            self.end(name)

    def end(self, name):
        error = self.errors.get(name)
        try:
            if not error:
                self.finish[name]()
        except Exception:
            error = traceback.format_exc()
        self.say(name, time.monotonic() - self.began, error)


def module(name):
    """The file of tests that plan.CUDA calls so."""
    import kflib

    from level2 import plan

    spec = importlib.util.spec_from_file_location(
        f"level2_{name.replace('/', '_')}", kflib.ROOT / plan.file_of(name)
    )
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def fixture(name, of):
    """Calls a fixture's function outside pytest and returns its result."""
    made = getattr(module(name), of)
    return getattr(made, "_get_wrapped_function", lambda: made.__wrapped__)()()


def of_numbers(name):
    import counting
    import kflib
    import numeric
    from conftest import BUILD

    kflib.build(
        "cuda",
        list(numeric.CUDA[name]),
        BUILD / "cuda",
        numeric.BUILDS["cuda"][name],
        extra=counting.source(),
        link=counting.LINK,
    )


def subnormal():
    import kflib
    import numeric
    from conftest import BUILD

    gemm = module("matmul/core")
    flags = (
        ["-O3", "-gencode=arch=compute_90a,code=sm_90a"]
        if kflib.capability() == (9, 0)
        else numeric.BUILDS["cuda"]["default"]
    )
    kflib.build("cuda", gemm.SUBNORMAL, BUILD / "cuda", flags)


def wgmma():
    fixture("matmul/wgmma", "lib")
    fixture("matmul/wgmma", "invariant_libs")


# {library: function that makes all kflib.build calls of its tests (plan.CUDA)}. Libraries of the
# slowest tests come first.
LIBRARIES = {
    "default": lambda: of_numbers("default"),
    "nofma": lambda: of_numbers("nofma"),
    "wgmma": wgmma,
    "products": lambda: fixture("loaded", "products"),
    "loaded": lambda: fixture("loaded", "driver"),
    "few": lambda: fixture("rows/few_rows", "lib"),
    "gemm": lambda: [fixture("matmul/core", name) for name in ("narrow", "plain")],
    "subnormal": subnormal,
    "odd_rows": lambda: fixture("rows/odd_rows", "lib"),
    "sanitizers_wgmma": lambda: fixture("sanitizers", "wgmma"),
    "sanitizers": lambda: fixture("sanitizers", "lib"),
    "chosen": lambda: [fixture("chosen", name) for name in ("plain", "contracted")],
}


def recorded(ask):
    """Returns [(arguments, options)] of the kflib.build calls that `ask` makes, without
    compiling."""
    import kflib

    build, calls = kflib.build, []
    kflib.build = lambda *arguments, **options: calls.append((arguments, options))
    try:
        ask()
    finally:
        kflib.build = build
    return calls


def units_of(name, calls):
    """Returns the units of a library's files; kflib.library then finds their objects."""
    import kflib

    found = []
    for arguments, options in calls:
        command, files, include = kflib.compilation(
            *arguments,
            **{k: v for k, v in options.items() if k not in ("link", "objects_", "jobs")},
        )
        for file, text in files.items():
            make = functools.partial(kflib.objects, command, {file: text}, include, 1)
            found.append(Unit(name, (*map(str, command), file, text), file, text, make))
    return found


def main(cores, ready, names):
    import gpu
    import kflib
    from conftest import BUILD

    ready.mkdir(parents=True, exist_ok=True)

    def say(name, seconds, error):
        (ready / name).write_text(error or "")
        print(
            f"{seconds:6.0f} s  {name}: {f'FAILED{chr(10)}{error}' if error else 'ready'}",
            flush=True,
        )

    kflib.rendered()
    units, finish = (
        [],
        {"helpers": lambda: gpu.build_helpers(BUILD / "cuda")} if "helpers" in names else {},
    )
    for name in [n for n in LIBRARIES if n in names]:
        try:
            calls = recorded(LIBRARIES[name])
        # Includes pytest's Skipped: the device or toolkit lacks what these tests need.
        except BaseException:
            say(name, 0, traceback.format_exc())
            continue
        units += units_of(name, calls)
        finish[name] = lambda calls=calls: [
            kflib.library(*arguments, **options) for arguments, options in calls
        ]
    builder = Builder(units, finish, say)
    builder.run(cores)
    for name, seconds in sorted(builder.seconds.items(), key=lambda item: -item[1])[:20]:
        print(f"{seconds:6.0f} s  of {name}")


if __name__ == "__main__":
    # Without Python's handler, which would wait for all queued compilations.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:])
