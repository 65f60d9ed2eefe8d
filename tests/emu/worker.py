# SPDX-License-Identifier: Apache-2.0
"""Runs functions in the emulator under a sanitizer, in a process of its own.

Usage: python worker.py LIBRARY SAMPLE [--every] [NAME ...]. The sanitizer reports to stderr. Prints
the number of functions, or the first check that failed.
"""

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
    """Poisons the memory between and after the tensors, so that even reads are reported. (In front
    of a tensor AddressSanitizer sees only whole words of 8 bytes.)"""

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
            for pair in samples.in_place(f):  # the pair's reads and writes overlap
                checks.run(lib, memory, f, samples.SAMPLES[sample].cases(f)[0][0], inplace=(pair,))
    except checks.Failure as failure:
        print(failure)
        return 1
    print(f"{len(functions)} functions, {memory.emulator.launches} launches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
