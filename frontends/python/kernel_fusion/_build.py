# SPDX-License-Identifier: Apache-2.0
"""Builds the package's generated parts: op table, type stubs, shared libraries of C kernels.

setup.py calls `build`; tests call it for a package beside the checkout. Building requires kfgen
and a C compiler, which the installed package does not. Environment variables:

KF_WHEEL_OPS          ops of the libraries, by pattern or stem, separated by commas; "none": no
                      library; default: all
KF_WHEEL_ACTIVATIONS  activations; "all": all; default: NAMED below
KF_WHEEL_ISA          instruction sets out of v2, v3, v4; default: the best of this processor.
                      Libraries of several sets are compressed (_compressed.py).
KF_WHEEL_CUDA         "0": no library of CUDA launchers; default: one, if a C++ compiler and
                      CUDA's headers are found
KF_WHEEL_CFLAGS       further flags for both compilers, after kf's own, such as -march=native
KF_WHEEL_JOBS         number of concurrent compilers; default: one per core
"""

import concurrent.futures
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kfgen.entries import spec as specs
from kfgen.interfaces import frontend, manifest, packed, packed_cuda
from kfgen.paths import INCLUDE
from kfgen.render.render import Renderer, Selection, unknown, write_all

from kernel_fusion import _compressed, _isa, _nvrtc

OPTIONS = {"ops": "KF_WHEEL_OPS=", "activations": "KF_WHEEL_ACTIVATIONS="}
NATIVE = pathlib.Path(__file__).resolve().parent / "native"
# Activations that common models use. All 19 would double the libraries (bench/NOTES/python.md).
NAMED = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
COMPILE = (
    "-std=c11",
    "-O2",
    "-ftree-vectorize",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-asynchronous-unwind-tables",
)
LINK = ("-shared", "-s", "-Wl,--gc-sections", "-Wl,-O1", "-Wl,--hash-style=gnu")
# Flags used only if the compiler accepts them: gcc's vectoriser and identical code folding.
OPTIONAL = (("-fvect-cost-model=dynamic",), ("-fuse-ld=gold", "-Wl,--icf=all"))


def _words(name: str, default: str) -> list[str]:
    return [w for w in os.environ.get(name, default).split(",") if w]


def _more() -> list[str]:
    return os.environ.get("KF_WHEEL_CFLAGS", "").split()


def selection() -> Any:
    """Returns the Selection of KF_WHEEL_OPS and KF_WHEEL_ACTIVATIONS, or None for no library."""
    ops, acts = _words("KF_WHEEL_OPS", ""), _words("KF_WHEEL_ACTIVATIONS", ",".join(NAMED))
    if ops == ["none"]:
        return None
    return Selection(specs.load(), ops, [] if acts == ["all"] else acts, options=OPTIONS)


def isas() -> list[str]:
    """Returns the instruction sets of KF_WHEEL_ISA."""
    found = _words("KF_WHEEL_ISA", ",".join(_isa.runnable()[:1]))
    for word in found:
        if word not in _isa.known():
            raise unknown("KF_WHEEL_ISA", word, _isa.known())
    return found


def compiler() -> tuple[str | None, tuple[str, ...]]:
    """Returns the C compiler and the optional flags it accepts, or (None, ()) without one."""
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if not found:
        return None, ()
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe.c"
        probe.write_text("int kfp_probe(void) { return 0; }\n")

        def takes(words: Sequence[str]) -> bool:
            command = [
                found,
                "-Werror",
                "-shared",
                "-fPIC",
                *words,
                str(probe),
                "-o",
                str(probe.with_suffix(".so")),
            ]
            return subprocess.run(command, capture_output=True).returncode == 0

        if not takes(()):
            return None, ()
        return found, tuple(w for words in OPTIONAL if takes(words) for w in words)


COMPILE_CUDA = (
    "-DKFP_CUDA",
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-asynchronous-unwind-tables",
)


def cuda_compiler() -> tuple[str, pathlib.Path] | None:
    """Returns the C++ compiler and the CUDA include directory, or None if either is missing."""
    found, headers = (
        shutil.which(os.environ.get("CXX", "c++"))
        or shutil.which("g++")
        or shutil.which("clang++"),
        _nvrtc.include("cuda.h"),
    )
    return (found, headers) if found and headers and (headers / "vector_types.h").exists() else None


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def library(
    path: pathlib.Path,
    chosen: Any,
    isa: str,
    flags: Sequence[str] = (),
    dtypes: tuple[str, ...] | None = None,
) -> None:
    """Compiles a selection's C launchers for an instruction set into one shared library.

    Args:
        flags: further compiler flags.
        dtypes: the only dtypes to compile; None compiles all.
    """
    cc, optional = compiler()
    if not cc:
        raise RuntimeError(
            "kf: the CPU kernels need a C compiler (apt install gcc libc6-dev), or "
            "KF_WHEEL_OPS=none for a package without them"
        )
    link = tuple(w for w in optional if w.startswith(("-fuse-ld", "-Wl,")))
    words = (*COMPILE, *(w for w in optional if w not in link), *_isa.WORDS[isa], *flags, *_more())
    texts = packed.sources(
        [
            f
            for f in packed.functions(manifest.build(chosen))
            if dtypes in (None, tuple(f["dtypes"]))
        ]
    )
    _compile(
        path,
        chosen,
        (cc, *words),
        texts,
        (NATIVE / "pool.c",),
        (*LINK, *link, *flags, "-lm", "-lpthread"),
    )


def cuda_library(
    path: pathlib.Path,
    chosen: Any,
    dtypes: tuple[str, ...] | None = None,
    names: Collection[str] | None = None,
) -> None:
    """Compiles a selection's CUDA launchers, without kernels, into one library with the C++
    compiler.

    Args:
        dtypes: the only dtypes to compile; None compiles all.
        names: the only functions to compile; None compiles all.
    """
    found = cuda_compiler()
    if not found:
        raise RuntimeError(
            "kf: the CUDA launchers need a C++ compiler (apt install g++) and CUDA's headers "
            "(cuda.h; set CUDA_HOME), or "
            "KF_WHEEL_CUDA=0 for a package without them"
        )
    texts = packed_cuda.sources(
        [
            (name, f)
            for name, f in packed_cuda.functions(manifest.build(chosen))
            if dtypes in (None, tuple(f["dtypes"])) and (names is None or name in names)
        ]
    )
    own = NATIVE / "loader.cpp", NATIVE / "memory.cpp"
    _compile(
        path,
        chosen,
        (found[0], *COMPILE_CUDA, *_more(), "-isystem", str(found[1])),
        texts,
        own,
        (*LINK, "-ldl", "-lpthread"),
    )


def _compile(
    path: pathlib.Path,
    chosen: Any,
    compile_: Sequence[str],
    texts: Mapping[str, str],
    own: Sequence[pathlib.Path],
    link: Sequence[str],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_all(Renderer(chosen).render(), folder / "include", [])
        write_all(texts, folder, [])
        include = [f"-I{d}" for d in (NATIVE, folder / "include", INCLUDE)]

        def one(source: pathlib.Path) -> str:
            _run([*compile_, *include, "-c", str(source), "-o", f"{folder / source.name}.o"])
            return f"{folder / source.name}.o"

        jobs = int(os.environ.get("KF_WHEEL_JOBS", 0)) or os.cpu_count()
        # The longest files are compiled first, to balance the load over the cores.
        order = sorted(texts, key=lambda n: -len(texts[n]))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            objects = [*pool.map(one, [*(folder / n for n in order), *own])]
        path.parent.mkdir(parents=True, exist_ok=True)
        _run([compile_[0], *objects, *link, "-o", str(path)])


def stubs(package: pathlib.Path) -> None:
    """Generates type stubs in a subprocess that imports the package of this folder."""
    path = os.pathsep.join([str(package.parent), *sys.path])
    subprocess.run(
        [sys.executable, "-m", "kernel_fusion._stubs", str(package)],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def build(package: pathlib.Path) -> None:
    """Writes the generated files into a package's folder."""
    chosen = selection()
    found = isas() if chosen else []
    write_all(frontend.files(Selection(specs.load())), package, [])
    stubs(package)
    if chosen and not compiler()[0] and "KF_WHEEL_OPS" not in os.environ:
        print("kf: no C compiler: the package is made without CPU kernels", file=sys.stderr)
        return
    for isa in found:
        library(package / "lib" / f"libkf_cpu_{isa}.so", chosen, isa)
    asked = os.environ.get("KF_WHEEL_CUDA")
    if chosen and asked != "0" and (asked or cuda_compiler()):
        cuda_library(package / "lib" / "libkf_cuda.so", chosen)
    for path in sorted((package / "lib").glob("*.so")) if len(found) > 1 else ():
        _compressed.compress(path)


def platform_tag() -> str:
    """Returns the platform tag of a wheel with libraries."""
    return f"linux_{platform.machine()}"
