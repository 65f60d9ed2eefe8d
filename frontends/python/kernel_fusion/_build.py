# SPDX-License-Identifier: Apache-2.0
"""Builds the package's generated parts, and its shared libraries of C functions.

setup.py calls `build`; tests call it for a package beside the checkout. At run time a first call
compiles a library of its own (_first_call.py). Building requires kfgen; libraries require a C
compiler. Environment variables of `build`:

KF_WHEEL_OPS          ops to compile ahead, by pattern or stem, separated by commas; "all": all;
                      default, or "none": nothing, since a first call compiles its function
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
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kfgen import families
from kfgen.entries import spec as specs
from kfgen.interfaces import frontend, manifest, packed, packed_cuda
from kfgen.paths import INCLUDE
from kfgen.render.render import Renderer, Selection, unknown, write_all

from kernel_fusion import _compilers, _compressed, _isa, _progress, _shim_library

OPTIONS = {"ops": "KF_WHEEL_OPS=", "activations": "KF_WHEEL_ACTIVATIONS="}
NATIVE = pathlib.Path(__file__).resolve().parent / "native"
# Activations that common models use. All 19 would double the libraries (bench/NOTES/python.md).
NAMED = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


def _words(name: str, default: str) -> list[str]:
    return [w for w in os.environ.get(name, default).split(",") if w]


def selection() -> Any:
    """Returns the Selection of KF_WHEEL_OPS and KF_WHEEL_ACTIVATIONS, or None for no library.

    Raises:
        ValueError: a word is unknown, or a variable has no effect without KF_WHEEL_OPS.
    """
    ops, acts = _words("KF_WHEEL_OPS", ""), _words("KF_WHEEL_ACTIVATIONS", ",".join(NAMED))
    if ops in ([], ["none"]):
        for name in ("KF_WHEEL_ACTIVATIONS", "KF_WHEEL_ISA"):
            if os.environ.get(name) and not ops:
                raise ValueError(
                    f"{name} is set, and KF_WHEEL_OPS is not: nothing is compiled; set "
                    f"KF_WHEEL_OPS=all or name ops"
                )
        return None
    ops, acts = ([] if words == ["all"] else words for words in (ops, acts))
    return Selection(specs.load(), ops, acts, options=OPTIONS)


def isas() -> list[str]:
    """Returns the instruction sets of KF_WHEEL_ISA."""
    found = _words("KF_WHEEL_ISA", ",".join(_isa.runnable()[:1]))
    for word in found:
        if word not in _isa.known():
            raise unknown("KF_WHEEL_ISA", word, _isa.known())
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def _c_compiler() -> str:
    found = _compilers.c()
    if not found:
        raise RuntimeError(f"kf: CPU kernels need a C compiler: {_compilers.HOW}")
    return found


def library(path: pathlib.Path, chosen: Any, isa: str) -> None:
    """Compiles a selection's C launchers for an instruction set into one shared library."""
    cc = _c_compiler()
    fold = _compilers.FOLD if _compilers.accepts(cc, _compilers.FOLD) else ()
    _compile(
        path,
        chosen,
        (cc, *_compilers.c_flags(cc, _isa.WORDS[isa])),
        packed.sources(packed.functions(manifest.build(chosen))),
        (NATIVE / "pool.c",),
        (*_compilers.LINK, *fold, "-lm", "-lpthread"),
    )


def function_sources(chosen: Any, found: Sequence[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns ({header: text}, {source file: text}) of few functions for `function_library`.

    Each function is a file of its own, so that forward and backward are compiled concurrently.

    Args:
        found: the functions, of the manifest.
    """
    texts = packed.sources(found, many=1)
    texts["packed_table.c"] = '#include "pool.c"\n' + texts["packed_table.c"]
    made = Renderer(chosen, any_activation=False, targets=(".h",)).render()
    return made | families.headers(), texts


def function_library(
    path: pathlib.Path, headers: Mapping[str, str], texts: Mapping[str, str], isa: str
) -> None:
    """Compiles few functions into one shared library, for a first call that waits for it."""
    cc = _c_compiler()
    words = (cc, *_compilers.c_flags(cc, _isa.WORDS[isa]))
    _compile_texts(path, headers, words, texts, (), (*_compilers.LINK, "-lm", "-lpthread"))


def cuda_library(
    path: pathlib.Path,
    chosen: Any,
    dtypes: tuple[str, ...] | None = None,
    names: Collection[str] | None = None,
) -> None:
    """Compiles a selection's CUDA launchers, without kernels, into one library with the C++
    compiler.

    Args:
        chosen: None compiles the loader of kernels alone, without launchers.
        dtypes: the only dtypes to compile; None compiles all.
        names: the only functions to compile; None compiles all.
    """
    found = _compilers.cuda()
    if not found:
        raise RuntimeError(
            "kf: the CUDA launchers need a C++ compiler (apt install g++) and CUDA's headers "
            "(cuda.h; set CUDA_HOME), or "
            "KF_WHEEL_CUDA=0 for a package without them"
        )
    functions = packed_cuda.functions(manifest.build(chosen)) if chosen else []
    texts = packed_cuda.sources(
        [
            (name, f)
            for name, f in functions
            if dtypes in (None, tuple(f["dtypes"])) and (names is None or name in names)
        ]
    )
    own = NATIVE / "loader.cpp", NATIVE / "memory.cpp"
    _compile(
        path,
        chosen,
        (found[0], *_compilers.COMPILE_CUDA, *_compilers.more(), "-isystem", str(found[1])),
        texts,
        own,
        (*_compilers.LINK, "-ldl", "-lpthread"),
    )


def _compile(
    path: pathlib.Path,
    chosen: Any,
    compile_: Sequence[str],
    texts: Mapping[str, str],
    own: Sequence[pathlib.Path],
    link: Sequence[str],
) -> None:
    headers = Renderer(chosen).render() | families.headers() if chosen else {}
    _compile_texts(path, headers, compile_, texts, own, link)


def _compile_texts(
    path: pathlib.Path,
    headers: Mapping[str, str],
    compile_: Sequence[str],
    texts: Mapping[str, str],
    own: Sequence[pathlib.Path],
    link: Sequence[str],
) -> None:
    """Compiles source texts and files concurrently, and links them; many report progress."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_all(headers, folder / "include", [])
        write_all(texts, folder, [])
        include = [f"-I{d}" for d in (NATIVE, folder / "include", INCLUDE)]

        def one(source: pathlib.Path) -> str:
            _run([*compile_, *include, "-c", str(source), "-o", f"{folder / source.name}.o"])
            return f"{folder / source.name}.o"

        jobs = int(os.environ.get("KF_WHEEL_JOBS", 0)) or os.cpu_count()
        # The longest files are compiled first, to balance the load over the cores.
        order = sorted(texts, key=lambda n: -len(texts[n]))
        objects = []
        with (
            concurrent.futures.ThreadPoolExecutor(jobs) as pool,
            _progress.Lines(f"kf: {path.name}", len(texts) + len(own), len(texts) > 24) as lines,
        ):
            for made in pool.map(one, [*(folder / n for n in order), *own]):
                objects.append(made)
                lines.advance()
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
    """Writes the generated files into a package's folder, and the libraries of KF_WHEEL_OPS."""
    chosen = selection()
    found = isas() if chosen else []
    if chosen:
        _c_compiler()
    write_all(frontend.files(Selection(specs.load())), package, [])
    stubs(package)
    for isa in found:
        library(package / "lib" / f"libkf_cpu_{isa}.so", chosen, isa)
    asked = os.environ.get("KF_WHEEL_CUDA")
    if chosen and asked != "0" and (asked or _compilers.cuda()):
        cuda_library(package / "lib" / "libkf_cuda.so", chosen)
    if chosen and _compilers.cxx():
        _shim_library.compile_to(package / "lib" / _shim_library.name())
    for path in sorted((package / "lib").glob("*.so")) if len(found) > 1 else ():
        _compressed.compress(path)


def platform_tag() -> str:
    """Returns the platform tag of a wheel with libraries."""
    return f"linux_{platform.machine()}"
