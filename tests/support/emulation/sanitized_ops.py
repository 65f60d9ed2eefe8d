# SPDX-License-Identifier: Apache-2.0
"""Runs the C functions of a user's spec in a process with AddressSanitizer preloaded.

Usage: python sanitized_ops.py LIBRARY SPEC DTYPES ACTIVATIONS. It prints the number of functions,
or the first failed check; the sanitizers report their own findings.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import folders  # noqa: E402

folders.add()

import cases  # noqa: E402
import checks  # noqa: E402
import kflib  # noqa: E402
import user_ops  # noqa: E402

SIZES = {
    "flat": [(1000,), (67,)],
    "rows": [(5, 131), (40, 8), (3, 600)],
    "planes": [(3, 5, 49), (2, 3, 304), (7, 9, 1)],
}


def run(lib, memory, functions, path):
    """Checks every function on every shape of its form. Values are finite: a random expression of
    infinities has no unique result."""
    for f in functions:
        for k, sizes in enumerate(cases.of_form(f, SIZES)):
            checks.run(lib, memory, f, sizes, shift=k % 2, files=(path,))


def own(path, dtypes, activations):
    return [
        f
        for f in user_ops.functions(path, activations)
        if f["dtypes"][0] in dtypes and f["activation"] in activations
    ]


def main():
    library, path, dtypes, activations = sys.argv[1:]
    functions = own(pathlib.Path(path), dtypes.split(","), activations.split(","))
    try:
        run(kflib.Lib("cpu", library), checks.CpuMemory(1 << 24), functions, pathlib.Path(path))
    except checks.Failure as failure:
        print(failure)
        return 1
    print(f"{len(functions)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
