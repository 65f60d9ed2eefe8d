# SPDX-License-Identifier: Apache-2.0
"""Compilers as the header tests use them: run one, expect success or a message, write files."""

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
    """clang under its own name, or the newest with a version behind it, as Debian's packages have it."""
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
    """What compiles for the errors and the warnings alone: nvcc's fast way where it has one (a third to a half of the time), else fewer
    optimisations. From level 2 on nothing."""
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
    """{name: text} into a folder; the paths."""
    paths = []
    for name, text in files.items():
        (folder / name).write_text(text)
        paths.append(folder / name)
    return paths


def file_of(header):
    return header.replace("/", "_").replace(".", "_")


# With -G nvcc 13.0 says this of the same source in some of its runs and not in others (of a kernel of group_norm in one run of sixteen; in
# all runs or in none where addresses are not randomised), so it is no word about the source. Wherever it
# stands among blank space: as a line of its own it was once not found.
OF_DEBUGGING = "warning: Function too large, generated debug information may not be accurate."


def compile_cuda(include, tmp_path, files, *extra, arch=ARCH):
    """Objects of CUDA files, no warning allowed."""
    sources = write(tmp_path, files)
    strict = [w for w in NVCC_WARNINGS if "-G" not in extra or w not in ("-Werror", "all-warnings")]
    said = passes(
        [NVCC, "-std=c++17", arch, *strict, *extra, *flags(include), "-c", *sources], cwd=tmp_path
    )
    assert not said.replace(OF_DEBUGGING, "").strip(), said
    return [tmp_path / (p.stem + ".o") for p in sources]


def addresses(functions):
    """CUDA text that names launchers, so that they and their kernels are compiled: templates are only checked where they are
    instantiated."""
    headers = "".join(
        f'#include "{h}.cuh"\n' for h in dict.fromkeys(f["header"] for f in functions)
    )
    lines = "".join(f"    (void *)&{f['name']}<>,\n" for f in functions)
    return f"{headers}void *addresses[] = {{\n{lines}}};\n"


def sample(turn=0, dtypes=("bf16", "f32", "f16", "f64")):
    """One launcher per op and direction, the dtype and the activation another one each time."""
    kinds, found = {}, []
    for f in kflib.on("cuda", FUNCTIONS):
        kinds.setdefault((f["op"], f["bwd"], f["state"]), []).append(f)
    for i, functions in enumerate(kinds.values()):
        dtype = dtypes[(turn + i) % len(dtypes)]
        fitting = [f for f in functions if f["dtypes"][0] == dtype]
        found.append(fitting[(3 * turn + 7 * i) % len(fitting)])
    return found
