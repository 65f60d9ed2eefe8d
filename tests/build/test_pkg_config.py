# SPDX-License-Identifier: Apache-2.0
"""An installed kf, found by pkg-config: from a shell, from Meson and from CMake."""

import shutil

import cases
import kflib
import pytest
import ways
from kfgen.render import package

pytestmark = ways.needs_pkg_config
GCC = "gcc -O3 -march=native"


@pytest.mark.parametrize(
    "compiler", cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17"])
)
def test_compile(home, tmp_path, compiler):
    project = ways.consumer(tmp_path)
    source = "program.c" if "gcc" in compiler else "program.cpp"
    ways.shell(
        ways.snippet(
            "pkg-config", [(GCC, f"{compiler} -O2 {ways.WARNINGS}"), ("program.c", source)]
        ),
        project,
        home,
    )
    assert ways.run(project / "program") == ways.OUTPUT


@pytest.mark.level(2)
@ways.needs_nvcc
def test_compile_cuda(home, tmp_path):
    ways.shell(
        ways.snippet("pkg-config-cuda", [("-O3", ways.NVCC_WARNINGS)]),
        ways.consumer(tmp_path),
        home,
    )
    assert ways.run(tmp_path / "program") == ways.CUDA_OUTPUT


def test_moved(home, tmp_path):
    """The .pc file must find the headers relative to itself, after the prefix has moved, and know
    its version."""
    shutil.copytree(home / ".local", tmp_path / "elsewhere")
    where = tmp_path / "elsewhere/share/pkgconfig"
    output = ways.run("pkg-config", "--cflags", "--libs", "kf", PKG_CONFIG_PATH=where).split()
    assert output[1] == "-isystem" and output[3:] == ["-lm"]
    assert (tmp_path / "elsewhere/include").samefile(output[2]) and output[0] == f"-I{output[2]}"
    assert (
        ways.run("pkg-config", "--variable=nvcc_arch", "kf", PKG_CONFIG_PATH=where).strip()
        == package.NVCC_ARCH
    )
    assert package.NVCC_ARCH in (kflib.ROOT / "meson.build").read_text()
    assert (
        ways.run("pkg-config", "--modversion", "kf", PKG_CONFIG_PATH=where).strip() == ways.VERSION
    )
    assert (tmp_path / "elsewhere").samefile(
        ways.run("pkg-config", "--variable=prefix", "kf", PKG_CONFIG_PATH=where).strip()
    )


@pytest.mark.level(2)
@ways.needs_meson
def test_meson(home, tmp_path):
    """The meson.build of the subproject must work with an installed kf."""
    project = ways.consumer(tmp_path, meson__build=ways.snippet("meson"))
    where = home / ".local/share/pkgconfig"
    ways.run(
        ways.MESON,
        "setup",
        "build",
        "-Dwarning_level=3",
        "-Dwerror=true",
        cwd=project,
        PKG_CONFIG_PATH=where,
    )
    ways.run("ninja", "-C", "build", cwd=project)
    assert ways.run(project / "build/program") == ways.OUTPUT


CMAKE = """
cmake_minimum_required(VERSION 3.14)
project(consumer LANGUAGES C)
find_package(PkgConfig REQUIRED)
pkg_check_modules(kf REQUIRED IMPORTED_TARGET kf>=0.1)
add_executable(program program.c)
target_link_libraries(program PRIVATE PkgConfig::kf)
add_executable(old program.c)
target_include_directories(old SYSTEM PRIVATE ${kf_INCLUDE_DIRS})
target_link_libraries(old PRIVATE ${kf_LIBRARIES})
"""


@pytest.mark.level(2)
@ways.needs_cmake
def test_cmake(home, tmp_path):
    project = ways.consumer(tmp_path, CMakeLists__txt=CMAKE)
    ways.run(
        "cmake",
        "-B",
        "build",
        f"-DCMAKE_C_FLAGS={ways.WARNINGS}",
        cwd=project,
        PKG_CONFIG_PATH=home / ".local/share/pkgconfig",
    )
    ways.run("cmake", "--build", "build", cwd=project)
    assert ways.run(project / "build/program") == ways.OUTPUT
