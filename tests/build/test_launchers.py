# SPDX-License-Identifier: Apache-2.0
"""Launchers with C linkage, as users get them: kf_launchers_<dtype>.cu compiled by nvcc and linked
by gcc, as a shared library through ctypes and dlopen, with another ABI version, of a user's spec,
and without nvcc. test_launcher_files.py tests the header and which files exist."""

import ctypes
import os
import pathlib
import re
import shutil
import sys

import cases
import pytest
import toolkit
from conftest import ROOT
from kfgen.cli import main
from launcher_builds import (
    DIALECTS,
    NVCC,
    OWN,
    OWN_PROGRAM,
    PROGRAM,
    STRIDED,
    SUBSET,
    VERSION,
    WARNINGS,
    build,
    check_program,
    cuda,
    fails,
    needs_nvcc,
    of_a_user,
    passes,
    static,
)


@pytest.fixture(scope="module")
def own(once):
    """Include directories of a user's spec, beside headers as `make install` leaves them."""
    return once("launchers of a user", of_a_user)


# ---- the header


def test_header_alone_in_plain_c(include, own, tmp_path):
    """kf_launchers.h must declare the structs of strides itself, since nothing else includes
    them."""
    of_kf = STRIDED.format(
        header="kf_launchers.h", call="kf_softmax_f32(x, out, 2, 3, &strides, stream)"
    )
    for text, folders in (
        (of_kf, include),
        ("#include <kf/kf_my_launchers.h>\nextern int not_empty;\n", own),
    ):
        (tmp_path / "alone.c").write_text(text)
        passes(
            "gcc",
            "-std=c11",
            "-fsyntax-only",
            *WARNINGS,
            *(f"-I{d}" for d in folders),
            tmp_path / "alone.c",
        )


# ---- compiled once, linked with programs that gcc compiled


@pytest.fixture(scope="module")
def built(once):
    """A folder with include/, kf_launchers_f32.o and _f16.o, libkf_launchers.a and .so, of a few
    functions."""
    return once("built launchers", build)


@needs_nvcc
def test_linked_with_gcc(built, tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    passes(*static(built, tmp_path / "program.c"))
    check_program(tmp_path / "program")


@needs_nvcc
@pytest.mark.parametrize("dialect", cases.by_level(["c11"], ["c11", "c++17"]))
def test_linked_with_a_shared_library(built, dialect, tmp_path):
    """The library writes the error's detail and the program's inlined function reads it, so both
    must share one variable."""
    (tmp_path / "program.c").write_text(PROGRAM)
    compiler, *language = DIALECTS[dialect]
    passes(
        compiler,
        *language,
        "-O2",
        *WARNINGS,
        f"-I{built / 'include'}",
        tmp_path / "program.c",
        "-x",
        "none",
        f"-L{built}",
        "-lkf_launchers",
        "-lm",
        "-o",
        tmp_path / "program",
    )
    check_program(tmp_path / "program", env={"LD_LIBRARY_PATH": str(built)})


@needs_nvcc
def test_ctypes(built):
    """Runs in a new process: a foreign-function interface has no header, only symbol names."""
    text = f"""
import ctypes
kf = ctypes.CDLL({str(built / "libkf_launchers.so")!r})
assert kf.kf_launchers_f32_abi_version() == {VERSION}
detail, string = kf.kf_launchers_f32_error_detail, kf.kf_launchers_f32_error_string
detail.restype = string.restype = ctypes.c_char_p
call = kf.kf_add_relu_f32
call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
code = call(None, None, None, 7, None)
print(code, string(code).decode(), "|", detail().decode())
"""
    output = passes(sys.executable, "-c", text)
    assert (
        output == "1 a required pointer is NULL | "
        "kf_add_relu_f32: a is NULL, expected a pointer to 7 elements\n"
    )


STEP = re.compile(r"<!-- (file: (?P<file>\S+)|run|output) -->\n```\w*\n(?P<text>.*?)```\n", re.S)


@pytest.mark.level(2)
@needs_nvcc
def test_the_page_works(tmp_path):
    """docs/launchers.md must work as written, with an installed kf of few functions."""
    shutil.copytree(ROOT / "include/kf/core", tmp_path / "prefix/include/kf/core")
    assert (
        main(
            [
                "render",
                "--out",
                str(tmp_path / "prefix/include"),
                "--ops",
                "bias",
                "--activations",
                "relu",
                "--dtypes",
                "f32",
            ]
        )
        == 0
    )
    path = os.pathsep.join(
        [
            str(pathlib.Path(sys.executable).parent),
            str(ROOT / "gen/bin"),
            os.environ["PATH"],
            str(pathlib.Path(NVCC).parent),
        ]
    )
    output, done = "", []
    for step in STEP.finditer((ROOT / "docs/launchers.md").read_text()):
        done.append(step[1].split(":")[0])
        if step["file"]:
            (tmp_path / step["file"]).write_text(step["text"])
        elif step[1] == "run":
            output = passes(
                "bash",
                "-ec",
                f"cd {tmp_path}\n{step['text']}",
                env={"PATH": path, "CUDA": str(cuda())},
            )
        else:
            assert output == step["text"]
    assert [done.count(what) for what in ("file", "run", "output")] == [2, 5, 2], (
        "the page has lost its marks"
    )


# ---- launchers of another ABI version


@pytest.fixture
def newer(built, tmp_path):
    """The same headers with the next ABI version."""
    shutil.copytree(built / "include", tmp_path / "include")
    path = tmp_path / "include/kf/core/version.h"
    text = path.read_text()
    assert f"KF_ABI_VERSION {VERSION}\n" in text
    path.write_text(text.replace(f"KF_ABI_VERSION {VERSION}\n", f"KF_ABI_VERSION {VERSION + 1}\n"))
    return tmp_path


@needs_nvcc
def test_another_abi_does_not_link(built, newer):
    (newer / "program.c").write_text(PROGRAM)
    command = [
        f"-I{newer / 'include'}" if str(c) == f"-I{built / 'include'}" else c
        for c in static(built, newer / "program.c")
    ]
    assert f"undefined reference to `kf_add_relu_f32_abi{VERSION + 1}'" in fails(*command)


@needs_nvcc
def test_another_abi_does_not_load(built, newer, tmp_path):
    """A program linked with one version of the library and started with another must fail in the
    loader, which names the symbol."""
    (newer / "library.c").write_text(
        f"int kf_add_relu_f32_abi{VERSION + 1}(void) {{ return 0; }}\n"
    )
    (newer / "program.c").write_text(
        "#include <kf/kf_launchers.h>\nint main(void)\n{\n"
        "    return (int)kf_add_relu_f32(NULL, NULL, NULL, 0, NULL);\n}\n"
    )
    passes("gcc", "-shared", "-fPIC", newer / "library.c", "-o", newer / "libkf_launchers.so")
    passes(
        "gcc",
        f"-I{newer / 'include'}",
        newer / "program.c",
        f"-L{newer}",
        "-lkf_launchers",
        "-Wl,-z,now",
        "-o",
        tmp_path / "program",
    )
    passes(tmp_path / "program", env={"LD_LIBRARY_PATH": str(newer)})
    output = fails(tmp_path / "program", env={"LD_LIBRARY_PATH": str(built)})
    assert (
        f"undefined symbol: kf_add_relu_f32_abi{VERSION + 1}" in output and output.count("\n") == 1
    )


def test_check_abi(include, tmp_path):
    """kf_check_abi, for callers of dlopen, must refuse another version with a message that says
    what to rebuild."""
    (tmp_path / "check.c").write_text("""
#include <kf/kf_launchers.h>
#include <stdio.h>
int main(void)
{
    if (kf_check_abi("kf_launchers_f32", KF_ABI_VERSION) != KF_SUCCESS) return 1;
    if (kf_get_last_error_detail()[0]) return 1;
    if (kf_check_abi("kf_launchers_f32", KF_ABI_VERSION + 1) != KF_ERROR_UNSUPPORTED) return 2;
    return puts(kf_get_last_error_detail()) < 0;
}
""")
    passes(
        "gcc",
        "-std=c11",
        *WARNINGS,
        *(f"-I{d}" for d in include),
        tmp_path / "check.c",
        "-o",
        tmp_path / "check",
    )
    assert passes(tmp_path / "check") == (
        f"kf: kf_launchers_f32 was built with ABI {VERSION + 1}, this header is ABI {VERSION}: "
        "rebuild kf_launchers_f32.cu\n"
    )


# ---- a user's own


@pytest.mark.level(2)
@needs_nvcc
def test_a_user_s_own_launchers(tmp_path):
    """A user's launchers must link, and an object of an older spec must not: kf's ABI version does
    not follow a user's signatures, but their hash does."""
    shutil.copytree(ROOT / "include/kf/core", tmp_path / "include/kf/core")
    assert (
        main(["render", "--ops", "add", "--dtypes", "f32", "--out", str(tmp_path / "include")]) == 0
    )
    (tmp_path / "program.c").write_text(OWN_PROGRAM)

    def render_and_compile(text):
        (tmp_path / "my.toml").write_text(text)
        assert (
            main(
                [
                    "render",
                    "--spec",
                    str(tmp_path / "my.toml"),
                    "--ops",
                    "shift",
                    "--activations",
                    "cubed",
                    "--dtypes",
                    "f32",
                    "--out",
                    str(tmp_path / "include"),
                ]
            )
            == 0
        )
        passes(
            "gcc",
            "-std=c11",
            *WARNINGS,
            f"-I{tmp_path / 'include'}",
            "-c",
            tmp_path / "program.c",
            "-o",
            tmp_path / "program.o",
        )

    link = [NVCC, tmp_path / "program.o", tmp_path / "my.o", "-o", tmp_path / "program"]
    render_and_compile(OWN)
    passes(
        NVCC,
        "-O3",
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        f"-I{tmp_path / 'include'}",
        "-c",
        tmp_path / "include/kf/kf_my_launchers_f32.cu",
        "-o",
        tmp_path / "my.o",
    )
    passes(*link)
    assert (
        passes(tmp_path / "program")
        == "kf_shift_cubed_f32: x is NULL, expected a pointer to 6 elements\n"
    )
    swapped = OWN.replace(
        'operands = { x = "elem", shift = "row" }', 'operands = { shift = "row", x = "elem" }'
    )
    assert swapped != OWN
    render_and_compile(swapped)
    assert f"undefined reference to `kf_shift_cubed_f32_abi{VERSION}_" in fails(*link)


# ---- without nvcc


@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_without_nvcc(include, tmp_path):
    """docs/nvrtc.md: a library of launchers without kernels, whose loader is a Python function. The
    fake driver here accepts every device call."""
    assert main(["render", "--out", str(tmp_path), *SUBSET]) == 0
    page = (ROOT / "docs/nvrtc.md").read_text()
    (tmp_path / "loader.h").write_text(
        re.search(r"<!-- file: loader.h -->\n```cpp\n(.*?)```", page, re.S)[1]
    )
    (tmp_path / "loader.cpp").write_text(
        '#include "loader.h"\nCUresult (*my_loader)(const char *, CUfunction *);\n'
    )
    driver = ROOT / "tests/support/gpu/fake_libcuda.cpp"
    passes(
        "g++",
        "-std=c++17",
        "-fPIC",
        "-shared",
        "-isystem",
        toolkit.include(),
        tmp_path / "loader.cpp",
        driver,
        "-o",
        tmp_path / "libdriver.so",
    )
    passes(
        "g++",
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-include",
        tmp_path / "loader.h",
        "-isystem",
        tmp_path,
        "-isystem",
        include[0],
        "-isystem",
        toolkit.include(),
        "-x",
        "c++",
        tmp_path / "kf/kf_launchers_f32.cu",
        "-x",
        "none",
        tmp_path / "libdriver.so",
        "-Wl,-z,defs",
        "-o",
        tmp_path / "libkf_launchers.so",
    )
    # Loaded locally: other tests' libraries bring drivers of their own.
    driver, lib = (
        ctypes.CDLL(str(tmp_path / "libdriver.so")),
        ctypes.CDLL(str(tmp_path / "libkf_launchers.so")),
    )
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def load(name, function):
        asked.append(name.decode())
        return 500

    ctypes.c_void_p.in_dll(driver, "my_loader").value = ctypes.cast(load, ctypes.c_void_p).value
    lib.kf_launchers_f32_error_detail.restype = ctypes.c_char_p
    lib.kf_add_relu_f32.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
    assert lib.kf_add_relu_f32(256, 512, 1024, 4, None) == 7 and asked == ["kfk_add_f32<1, 4, 1>"]
    assert lib.kf_launchers_f32_error_detail() == (
        b"kf_add_relu_f32: kernel kfk_add_f32<1, 4, 1> was not loaded: CUDA error 500 "
        b"(as the test asked for)"
    )


# ---- Meson

MESON = shutil.which(
    "meson", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
)
MESON_FILE = """
project('consumer', 'c', default_options: ['warning_level=3', 'werror=true'])
executable('program', 'program.c', dependencies: dependency('kf_launchers'))
"""


@pytest.mark.level(2)
@needs_nvcc
@pytest.mark.skipif(not MESON, reason="no meson")
def test_meson_static_library(tmp_path):
    """A C project must get the CUDA launchers from kf as a subproject, and recompile them after an
    edit of a header."""
    kf = tmp_path / "subprojects/kf"
    for part in ("gen", "include", "templates"):
        shutil.copytree(ROOT / part, kf / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("meson.build", "meson_options.txt"):
        shutil.copy(ROOT / part, kf / part)
    (tmp_path / "subprojects/kf.wrap").write_text(
        "[wrap-file]\ndirectory = kf\n[provide]\nkf = kf_dep\nkf_launchers = kf_launchers_dep\n"
    )
    (tmp_path / "meson.build").write_text(MESON_FILE)
    (tmp_path / "program.c").write_text(
        "#include <kf/kf_launchers.h>\n#include <stdio.h>\nint main(void)\n{\n"
        "    if (kf_add_relu_f32(NULL, NULL, NULL, 4, NULL) != KF_ERROR_NULL_POINTER) return 1;\n"
        "    return puts(kf_get_last_error_detail()) < 0;\n}\n"
    )
    env = {
        "PATH": os.pathsep.join(
            [
                str(pathlib.Path(sys.executable).parent),
                os.environ["PATH"],
                str(pathlib.Path(NVCC).parent),
            ]
        )
    }
    passes(
        MESON,
        "setup",
        tmp_path / "build",
        tmp_path,
        "-Dkf:ops=add",
        "-Dkf:activations=relu",
        "-Dkf:dtypes=f32",
        "-Dkf:launchers=enabled",
        "-Dkf:nvcc_flags=-O3,-arch=sm_90",
        env=env,
    )
    passes("ninja", "-C", tmp_path / "build", env=env)
    assert (
        passes(tmp_path / "build/program")
        == "kf_add_relu_f32: a is NULL, expected a pointer to 4 elements\n"
    )
    assert "no work to do" in passes("ninja", "-C", tmp_path / "build", env=env)
    (kf / "include/kf/core/launch.cuh").touch()
    assert "kf_launchers_f32.o" in passes("ninja", "-n", "-v", "-C", tmp_path / "build", env=env)
