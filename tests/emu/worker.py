# SPDX-License-Identifier: Apache-2.0
"""Runs functions in the emulation, in a process of its own that a sanitizer was loaded into: python worker.py LIBRARY
SAMPLE [--every] [NAME ...]. The sanitizer says on stderr what it finds. Prints how many functions ran, or the first check that failed."""

import ctypes
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen"), str(pathlib.Path(__file__).parent)]

import folders  # noqa: E402

folders.add()

import checks  # noqa: E402
import emulator  # noqa: E402
import kflib  # noqa: E402
import samples  # noqa: E402


class Poisoned(emulator.Memory):
    """The arena between and behind the tensors may not even be read (in front of them AddressSanitizer sees whole words of 8
    bytes alone)."""

    def run(self, image, call):
        process = ctypes.CDLL(None)
        poison, unpoison = (
            getattr(process, f"__asan_{word}_memory_region") for word in ("poison", "unpoison")
        )
        for function in (poison, unpoison):
            function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

        def watched(base):
            poison(base, image.size)
            for begin, end in self.spans:
                unpoison(base + begin, end - begin)
            try:
                return call(base)
            finally:
                unpoison(base, image.size)

        return super().run(image, watched)


def main():
    library, sample, *names = sys.argv[1:]
    every = names[:1] == ["--every"]
    names = names[every:]
    variant = samples.SAMPLES[sample].variant
    lib = kflib.Lib("emu", library)
    memory = (Poisoned if variant == "asan" else emulator.Memory)(
        emulator.Emulator(lib), samples.SAMPLES[sample].runs, samples.ARENA
    )
    functions = (
        [f for f in samples.MANIFEST if f["name"] in names] if names else samples.functions(sample)
    )
    try:
        for f in functions:
            for i, (sizes, values, shift) in enumerate(samples.SAMPLES[sample].cases(f, every)):
                memory.runs = samples.SAMPLES[sample].orders(i)
                checks.run(lib, memory, f, sizes, values, shift=shift)
            for pair in samples.in_place(f):  # whose reads and writes meet
                checks.run(lib, memory, f, samples.SAMPLES[sample].cases(f)[0][0], inplace=(pair,))
    except checks.Failure as failure:
        print(failure)
        return 1
    print(f"{len(functions)} functions, {memory.emulator.launches} launches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
