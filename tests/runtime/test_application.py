# SPDX-License-Identifier: Apache-2.0
"""A program that holds tensors (application.c), compiled as users would: by gcc alone, as C++, with
a file for both devices; under valgrind and the sanitizers; on a GPU if there is one.
"""

import shutil
import subprocess

import emulator
import kflib
import pytest
import runtime_ops
import toolkit

PROGRAM, OWNERS = (kflib.ROOT / "tests/runtime" / name for name in ("application.c", "owners.cpp"))
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Werror".split()
MADE = runtime_ops.choose(["add", "layer_norm"], ["f32"], ["none", "relu", "gelu"])


@pytest.fixture(scope="module")
def include(tmp_path_factory):
    folder = tmp_path_factory.mktemp("application")
    (folder / "definitions.c").write_text(runtime_ops.IMPLEMENTATION)
    return [*runtime_ops.include(folder, MADE), f"-I{kflib.ROOT / 'include'}"]


def build(include, tmp_path, compiler, definitions, *flags, link=()):
    """Compiles the program and the definitions, each in its own file."""
    files = [tmp_path / "application.o", tmp_path / "definitions.o"]
    subprocess.run(
        [*compiler, *WARNINGS, *flags, *include, "-c", PROGRAM, "-o", files[0]], check=True
    )
    subprocess.run(
        [*definitions, *flags, *include, "-c", f"{include[0][2:]}/definitions.c", "-o", files[1]],
        check=True,
    )
    subprocess.run(
        ["g++", *flags, *files, *link, "-lm", "-o", tmp_path / "application"], check=True
    )
    return tmp_path / "application"


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all right\n", "")


C, CPP = ["gcc", "-std=c11"], ["g++", "-std=c++17", "-x", "c++"]


@pytest.mark.parametrize(
    ("compiler", "definitions"), [(C, C), (CPP, CPP), (C, CPP)], ids=["C", "C++", "C to C++"]
)
def test_on_the_cpu(include, tmp_path, compiler, definitions):
    program = build(include, tmp_path, compiler, definitions, "-O1")
    run(program)
    run(program, -1, "debug")


def test_sanitizers(include, tmp_path):
    program = build(
        include,
        tmp_path,
        C,
        C,
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    )
    run(program)
    run(program, -1, "debug")


def test_owners(include, tmp_path):
    """C++ owners destroy their handles; the sanitizers report leaks and double frees."""
    flags = [
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        *WARNINGS,
    ]
    command = [
        "g++",
        "-std=c++17",
        *flags,
        *include,
        OWNERS,
        "-x",
        "c++",
        f"{include[0][2:]}/definitions.c",
        "-lm",
        "-o",
        tmp_path / "owners",
    ]
    subprocess.run(command, check=True)
    run(tmp_path / "owners")


@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind")
def test_valgrind(include, tmp_path):
    run(
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        build(include, tmp_path, C, C, "-O1", "-g"),
    )


@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_emulated(include, tmp_path):
    """Compiled by gcc, with a file for both devices, over the emulation."""
    own = [
        f"-I{emulator.HERE}/include",
        f"-I{emulator.HERE}",
        f"-I{kflib.ROOT}/tests/support/emulation",
        *emulator.flags("plain"),
    ]
    definitions = ["g++", "-std=c++17", "-x", "c++", "-include", "emulated_memory.h", *own]
    link = [
        emulator.runtime(kflib.ROOT / "build/tests/emu", "plain"),
        f"-Wl,-T,{emulator.HERE}/shared.ld",
    ]
    program = build(include, tmp_path, C, definitions, link=link)
    for device in (0, -1):
        run(program, device)
        run(program, device, "debug")


@pytest.mark.skipif(not kflib.has_gpu(), reason="no GPU")
@pytest.mark.parametrize(
    "tool",
    [
        (),
        (
            "compute-sanitizer",
            "--error-exitcode",
            "9",
            "--leak-check",
            "full",
            "--log-file",
            "/dev/null",
        ),
    ],
    ids=["alone", "compute-sanitizer"],
)
def test_on_a_gpu(include, tmp_path, tool):
    program = build(
        include,
        tmp_path,
        C,
        ["nvcc", "-O2", "-arch=native", "-x", "cu"],
        link=["-lcudart", "-L/usr/local/cuda/lib64"],
    )
    run(*tool, program, 0)
    run(*tool, program, 0, "debug")
