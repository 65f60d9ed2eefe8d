# SPDX-License-Identifier: Apache-2.0
"""Compilers and helpers of the header tests: run a command, expect success or failure, write
files."""

import functools
import glob
import pathlib
import shutil
import subprocess

import cases
import kflib
import toolkit

NVCC = toolkit.nvcc()
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
NVCC_WARNINGS = (
    "-Werror",
    "all-warnings",
    "-Xcompiler",
    "-Wall,-Wextra,-Wshadow,-Wconversion,-Werror",
)
ARCH = "-arch=sm_90"
GCC = {
    "c11": ("gcc", "-std=c11", "-x", "c"),
    "c++17": ("g++", "-std=c++17", "-x", "c++"),
    "c++20": ("g++", "-std=c++20", "-x", "c++"),
}


def _clang():
    """Finds clang under its plain name, or the newest versioned one of Debian's packages."""
    found = sorted(glob.glob("/usr/bin/clang-[0-9]*"), key=lambda p: int(p.rsplit("-", 1)[1]))
    return shutil.which("clang") or (found[-1] if found else None)


CLANG = _clang()
# -x c++ is all that clang++ adds to a compilation.
DIALECTS = GCC | (
    {f"clang-{name}": (CLANG, *words) for name, (_, *words) in GCC.items()} if CLANG else {}
)
FUNCTIONS = kflib.manifest()["functions"]
STEMS = sorted({pathlib.Path(f["header"]).name for f in FUNCTIONS})
CORE = kflib.ROOT / "include/kf/core"
CORE_C = sorted(f"kf/core/{p.relative_to(CORE)}" for p in CORE.rglob("*.h"))
CORE_CUDA = sorted(f"kf/core/{p.relative_to(CORE)}" for p in CORE.rglob("*.cuh"))
ALL_C = [
    *CORE_C,
    "kf/ops/activations.h",
    *(f"kf/ops/{s}.h" for s in STEMS),
    "kf/any/activations.h",
    *sorted({f"{f['header']}.h" for f in kflib.manifest()["any"]}),
    "kf/kf.h",
]


def execute(command, cwd=None):
    command = [str(c) for c in command]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, errors="replace"
    ), " ".join(command)


def passes(command, cwd=None):
    done, line = execute(command, cwd)
    assert done.returncode == 0, f"{line}\n{(done.stderr + done.stdout)[:6000]}"
    return done.stdout + done.stderr


def fails(command, cwd=None):
    done, line = execute(command, cwd)
    assert done.returncode != 0, f"compiled, and should not have: {line}"
    return done.stderr + done.stdout


@functools.cache
def quick():
    """Returns nvcc flags for compilations that only look for errors and warnings.

    They select nvcc's fast mode, which takes a third to a half of the time, or fewer optimisations.
    From level 2 on there are none.
    """
    if cases.LEVEL > 1:
        return ()
    return (
        ("-Ofc=max",)
        if "--Ofast-compile" in execute([NVCC, "--help"])[0].stdout
        else ("-Xcicc=-O1", "-Xptxas=-O1")
    )


def flags(include):
    return [f"-I{d}" for d in include]


def write(folder, files):
    """Writes {name: text} into a folder and returns the paths."""
    paths = []
    for name, text in files.items():
        (folder / name).write_text(text)
        paths.append(folder / name)
    return paths


def file_of(header):
    return header.replace("/", "_").replace(".", "_")


# With -G, nvcc 13.0 prints this for the same source in some runs only: for a group_norm kernel in
# one of sixteen. Without address randomisation it prints it always or never, so it says nothing
# about the source. It may share a line with blanks, so the test removes the text, not a line.
OF_DEBUGGING = "warning: Function too large, generated debug information may not be accurate."


def compile_cuda(include, tmp_path, files, *extra, arch=ARCH):
    """Compiles CUDA files to objects; any warning fails."""
    sources = write(tmp_path, files)
    strict = [w for w in NVCC_WARNINGS if "-G" not in extra or w not in ("-Werror", "all-warnings")]
    output = passes(
        [NVCC, "-std=c++17", arch, *strict, *extra, *flags(include), "-c", *sources], cwd=tmp_path
    )
    assert not output.replace(OF_DEBUGGING, "").strip(), output
    return [tmp_path / (p.stem + ".o") for p in sources]


def addresses(functions):
    """Returns CUDA code that takes the launchers' addresses. This instantiates their templates and
    kernels, and only instantiated templates are fully checked."""
    headers = "".join(
        f'#include "{h}.cuh"\n' for h in dict.fromkeys(f["header"] for f in functions)
    )
    lines = "".join(f"    (void *)&{f['name']}<>,\n" for f in functions)
    return f"{headers}void *addresses[] = {{\n{lines}}};\n"


def sample(turn=0, dtypes=("bf16", "f32", "f16", "f64")):
    """Returns one launcher per op and direction; dtype and activation rotate."""
    kinds, found = {}, []
    for f in kflib.on("cuda", FUNCTIONS):
        kinds.setdefault((f["op"], f["bwd"], f["state"]), []).append(f)
    for i, functions in enumerate(kinds.values()):
        dtype = dtypes[(turn + i) % len(dtypes)]
        fitting = [f for f in functions if f["dtypes"][0] == dtype] or functions
        found.append(fitting[(3 * turn + 7 * i) % len(fitting)])
    return found
