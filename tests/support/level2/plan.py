# SPDX-License-Identifier: Apache-2.0
"""Assigns tests to processes: parts of tests/cuda, each on its GPU once its libraries exist, and
parts of the other folders on all cores from the start."""

import collections
import re

# paths, ignored: files and folders. gpus: CUDA_VISIBLE_DEVICES. share: see plugin.py. needs: names
# of libraries.LIBRARIES, and helpers.
Part = collections.namedtuple(
    "Part", "name paths workers gpus nice share needs ignored", defaults=("", (), ())
)

# (files test_NAME.py of tests/cuda that run together, GPUs, workers per GPU if the host has enough
# cores, libraries needed). Number tests spend most time in the NumPy oracle; one test of `large`
# fills the memory.
CUDA = (
    ("hopper", "first", 1, ()),
    ("numbers strided robust", "each", 6, ("default", "nofma", "helpers")),
    (
        "rows/few_rows rows/odd_rows matmul/core",
        "each",
        1,
        ("few", "odd_rows", "gemm", "subnormal"),
    ),
    ("chosen", "each", 2, ("chosen",)),
    ("large", "each", 1, ("default", "helpers")),
    ("devices", "twos", 3, ("default", "helpers")),
    ("loaded", "each", 2, ("products", "loaded", "default", "helpers")),
    ("matmul/wgmma", "each", 1, ("wgmma",)),
    ("sanitizers", "each", 3, ("sanitizers", "sanitizers_wgmma")),
    ("python_ops", "each", 2, ()),
    ("python", "last", 1, ()),
    ("python_samples", "first", 1, ()),
)
# Percent of the cores' seconds at level 2, of 46,000 in all on 32 cores (bench/NOTES.md, "Level 2,
# an eighth time").
FOLDERS = {
    "emu": 34,
    "headers": 30,
    "cpu": 10,
    "families": 13,
    "runtime": 4,
    "build": 2,
    "gen": 2,
    "frontends": 2,
    "docs": 1,
    "errors": 1,
    "fuzz": 1,
}
# Processes per core: tests wait for the compilers' files and for each other's.
MORE = 1.25


def is_cuda(test):
    """True for a test or test file that needs a GPU: tests/cuda, or a family's test_cuda*.py."""
    return bool(re.match(r"tests/(cuda/|families/\w+/test_cuda)", test))


def cuda_files(root):
    """Returns the test files that need a GPU, as paths from the root."""
    found = [p.relative_to(root).as_posix() for p in (root / "tests").glob("**/test_*.py")]
    return sorted(filter(is_cuda, found))


def file_of(word):
    """The path of a file that CUDA names."""
    family, _, name = word.rpartition("/")
    return (
        f"tests/families/{family}/test_cuda_{name}.py" if family else f"tests/cuda/test_{name}.py"
    )


def word_of(file):
    """Returns the name of a file in CUDA."""
    name = file.rpartition("/")[2].removesuffix(".py").removeprefix("test_")
    return f"{file.split('/')[2]}/{name.removeprefix('cuda_')}" if "families/" in file else name


def without_gpu(cores, gpus=0, chosen=(), files=()):
    """Returns parts of the other folders.

    chosen: "emu:26" or "tests/emu/test_a.py:8", with files joined by commas; a folder excludes the
    files that are named separately. Some tests use a GPU: not the first one, on which a test of
    tests/cuda measures the free memory.
    """
    words = list(chosen) or [
        f"{name}:{max(1, round(cores * MORE * share / 100))}" for name, share in FOLDERS.items()
    ]
    found, named = [], []
    for word in words:
        what, _, workers = word.rpartition(":")
        paths = tuple(p if p.startswith("tests/") else f"tests/{p}" for p in what.split(","))
        named.append((paths, int(workers)))
    files = [*(p for paths, _ in named for p in paths if p.endswith(".py")), *files]
    for turn, (paths, workers) in enumerate(named):
        name = "+".join(re.sub(r"^tests/|test_|\.py$", "", p).replace("/", "_") for p in paths)[:60]
        ignored = tuple(
            f for f in files if f not in paths and any(f.startswith(p + "/") for p in paths)
        )
        gpu = "" if not gpus else str(turn % (gpus - 1) + 1 if gpus > 1 else 0)
        found.append(Part(name, paths, workers, gpu, 10, ignored=ignored))
    return found


def devices(where, gpus):
    """Returns [(CUDA_VISIBLE_DEVICES, share)]."""
    if where == "twos":
        twos = max(1, gpus // 2)
        return [
            (",".join(str(g) for g in (2 * k, 2 * k + 1) if g < gpus), f"{k}/{twos}")
            for k in range(twos)
        ]
    return {
        "first": [("0", "")],
        "last": [(str(gpus - 1), "")],
        "each": [(str(g), f"{g}/{gpus}") for g in range(gpus)],
    }[where]


def with_gpu(gpus, cores, files):
    """Returns the parts that need a GPU. files: cuda_files. A file that CUDA does not list builds
    what it needs itself."""
    listed = {file_of(word) for words, *_ in CUDA for word in words.split()}
    others = tuple((word_of(f), "each", 1, ()) for f in files if f not in listed)
    found = []
    for words, where, workers, needs in CUDA + others:
        paths = tuple(f for f in map(file_of, words.split()) if f in files)
        spread = devices(where, gpus) if paths else []
        workers = max(1, min(workers, cores // gpus // 2))
        found += [
            Part(
                words.split()[0].replace("/", "_") + (f".{i}" if len(spread) > 1 else ""),
                paths,
                workers,
                seen,
                0,
                share if len(spread) > 1 else "",
                needs,
            )
            for i, (seen, share) in enumerate(spread)
        ]
    return found


def plan(gpus, cores, files, chosen=(), cuda=True):
    """Returns all parts. Without `chosen` parts it is all of level 2, including tests/cuda without
    a GPU, where each file skips itself."""
    found = with_gpu(gpus, cores, files) if gpus and cuda else []
    of_families = tuple(f for f in files if not f.startswith("tests/cuda/"))
    if not chosen:
        found.append(Part("cuda_without", ("tests/cuda", *of_families), 0, "", 10))
    return found + without_gpu(cores, gpus, chosen, of_families)


def of_list(parts, ids):
    """Returns the parts that contain any of the tests."""
    files = {name.partition("::")[0] for name in ids}
    return [
        p
        for p in parts
        if any(
            f == path or f.startswith(path + "/")
            for path in p.paths
            for f in files - set(p.ignored)
        )
    ]
