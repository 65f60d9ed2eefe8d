# SPDX-License-Identifier: Apache-2.0
"""CMake's find_package(kf) with an installed kf."""

import shutil

import cases
import pytest
import ways
from kfgen.render import package

pytestmark = ways.needs_cmake
LANGUAGES = {"C": "program.c", "CXX": "program.cpp", "CUDA": "program.cu"}
FLAGS = {
    "C": f"-std=c11 {ways.WARNINGS}",
    "CXX": f"-std=c++17 {ways.WARNINGS}",
    "CUDA": f"-std=c++17 {ways.NVCC_WARNINGS}",
}


CHECKED = f"""
if(NOT KF_CUDA_ARCHITECTURES STREQUAL "{package.ARCHITECTURES}")
  message(FATAL_ERROR "KF_CUDA_ARCHITECTURES: ${{KF_CUDA_ARCHITECTURES}}")
endif()
"""


def build(project, language, home, before=""):
    """Builds the project in `language` with the commands of docs/install.md; returns the program's
    output."""
    flags = f"-DCMAKE_{language}_FLAGS='{FLAGS[language]}'"
    if language == "CUDA":
        flags += f" -DCMAKE_CUDA_COMPILER='{ways.NVCC}'"
    ways.shell(
        ways.snippet("cmake-run", [("cmake -B build", f"cmake -B build {flags}")]), project, home
    )
    return ways.run(project / "build/program")


@pytest.mark.parametrize(
    "language", cases.by_level(["C"], ["C", "CXX", pytest.param("CUDA", marks=ways.needs_nvcc)])
)
def test_find_package(home, tmp_path, language):
    changes = [
        ("LANGUAGES C)", f"LANGUAGES {language})"),
        ("program.c)", f"{LANGUAGES[language]})"),
    ]
    text = ways.snippet("cmake", changes) + (
        ways.snippet("cmake-cuda") if language == "CUDA" else CHECKED
    )
    project = ways.consumer(tmp_path, CMakeLists__txt=text)
    assert build(project, language, home) == (
        ways.CUDA_OUTPUT if language == "CUDA" else ways.OUTPUT
    )


@pytest.mark.level(2)
def test_moved(home, tmp_path):
    shutil.copytree(home / ".local", tmp_path / "new home/.local")
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=ways.snippet("cmake"))
    ways.shell(
        ways.snippet("cmake-run", [("=$HOME/.local", '="$HOME/.local"')]),
        project,
        tmp_path / "new home",
    )
    assert ways.run(project / "build/program") == ways.OUTPUT
    commands = (project / "build/CMakeFiles/program.dir/flags.make").read_text()
    assert "new\\ home" in commands or '"' in commands
    assert str(home) not in commands


def test_wrong_version(home, tmp_path):
    project = ways.consumer(
        tmp_path,
        CMakeLists__txt=ways.snippet("cmake", [("find_package(kf 0.1 ", "find_package(kf 7.1 ")]),
    )
    output = ways.run(
        "cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={home}/.local", cwd=project, fails=True
    )
    assert (
        'compatible with requested version "7.1"' in " ".join(output.split())
        and f"version: {ways.VERSION}" in output
    )


VERSIONS = """
function(ask has asked exact)
  set(PACKAGE_FIND_VERSION ${asked})
  if(asked MATCHES "^(.*)\\\\.\\\\.\\\\.(<?)(.*)$")
    set(PACKAGE_FIND_VERSION_RANGE ${asked})
    set(PACKAGE_FIND_VERSION ${CMAKE_MATCH_1})
    set(PACKAGE_FIND_VERSION_MIN ${CMAKE_MATCH_1})
    set(PACKAGE_FIND_VERSION_MAX ${CMAKE_MATCH_3})
    set(PACKAGE_FIND_VERSION_RANGE_MAX INCLUDE)
    if(CMAKE_MATCH_2)
      set(PACKAGE_FIND_VERSION_RANGE_MAX EXCLUDE)
    endif()
  endif()
  string(REPLACE "." ";" parts ${PACKAGE_FIND_VERSION})
  list(APPEND parts 0 0)
  list(GET parts 0 PACKAGE_FIND_VERSION_MAJOR)
  list(GET parts 1 PACKAGE_FIND_VERSION_MINOR)
  include("${FOLDER}/${has}.cmake")
  message("${has} ${asked} ${PACKAGE_VERSION_COMPATIBLE} ${PACKAGE_VERSION_EXACT}")
endfunction()
"""
# (installed version, requested version, compatible, exact)
ASKED = [
    ("0.1.0", "0.1", True, True),
    ("0.1.0", "0.1.0", True, True),
    ("0.1.3", "0.1.2", True, False),
    ("0.1.3", "0.1.4", False, False),
    ("0.2.0", "0.1", False, False),
    ("0.10.0", "0.1", False, False),
    ("1.0.0", "0.9", False, False),
    ("1.4.2", "1.0", True, False),
    ("1.4.2", "1.5", False, False),
    ("2.0.0", "1.9", False, False),
    ("10.0.0", "1.0", False, False),
    ("12.1.0", "12.0", True, False),
    ("0.2.0", "0.1...0.3", True, False),
    ("0.3.0", "0.1...0.3", True, False),
    ("0.3.0", "0.1...<0.3", False, False),
    ("0.0.9", "0.1...0.3", False, False),
]


def test_versions(home, tmp_path):
    """Version requests must be met or refused correctly, by this version's file and by those of
    later versions."""
    text = (home / ".local/share/cmake/kf/kfConfigVersion.cmake").read_text()
    assert text.count(f'"{ways.VERSION}"') == 1
    for has, *_ in ASKED:
        (tmp_path / f"{has}.cmake").write_text(text.replace(f'"{ways.VERSION}"', f'"{has}"'))
    script = tmp_path / "ask.cmake"
    script.write_text(
        f'cmake_minimum_required(VERSION 3.14)\nset(FOLDER "{tmp_path}")'
        + VERSIONS
        + "".join(f'ask({has} "{asked}" "")\n' for has, asked, *_ in ASKED)
    )
    output = ways.run("cmake", "-P", script).split("\n")
    assert [line for line in output if line] == [
        f"{h} {a} {str(c).upper()} {'TRUE' if e else ''}" for h, a, c, e in ASKED
    ]


@pytest.mark.check
def test_fetch_content_of_a_checkout(tmp_path):
    """The checkout generates a selection when the parent is configured."""
    kf = ways.copy(tmp_path / "kf")
    ways.commit(kf)
    commit = ways.run("git", "rev-parse", "HEAD", cwd=kf).strip()
    changes = [("https://example.org/kf.git", f"file://{kf}"), ("v0.1.0", commit)]
    text = ways.snippet("fetch-checkout", changes)
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=text)
    ways.run("cmake", "-B", "build", f"-DCMAKE_C_FLAGS={FLAGS['C']}", cwd=project)
    ways.run("cmake", "--build", "build", cwd=project)
    assert ways.run(project / "build/program") == ways.OUTPUT
    made = project / "build/_deps/kf-build/include/kf/ops"
    assert {p.name for p in made.glob("*.h")} == {"activations.h", *ways.headers("add", "bias")}


SUBDIRECTORY = """
cmake_minimum_required(VERSION 3.14)
project(consumer LANGUAGES C)
set(KF_OPS add CACHE STRING "")
set(KF_DTYPES f32 CACHE STRING "")
add_subdirectory(kf)
add_executable(program program.c)
target_link_libraries(program PRIVATE kf::kf)
"""


@pytest.mark.check
def test_add_subdirectory(tmp_path):
    """An edited entry configures again; the parent's installation has nothing of kf."""
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=SUBDIRECTORY)
    entries = ways.copy(project / "kf") / "gen/kfgen/families/elementwise/ops.toml"
    ways.run("cmake", "-B", "build", f"-DCMAKE_C_FLAGS={FLAGS['C']}", cwd=project)
    ways.run("cmake", "--build", "build", cwd=project)
    assert ways.run(project / "build/program") == ways.OUTPUT
    ways.edit(entries, 'expr = "act(a + b)"', 'expr = "act(a + 2 * b)"')
    ways.run("cmake", "--build", "build", cwd=project)
    assert ways.run(project / "build/program") == "3 0 0\n"
    ways.run("cmake", "--install", "build", "--prefix", tmp_path / "prefix", cwd=project)
    assert not (tmp_path / "prefix/include").exists()
    output = ways.run("cmake", "-B", "build", "-DKF_OPS=adds", cwd=project, fails=True)
    assert "kfgen: error:" in output and "did you mean `add`?" in " ".join(output.split())


@pytest.mark.check
def test_install_of_a_checkout(clone, tmp_path):
    """The checkout alone installs for find_package."""
    ways.shell(
        ways.snippet("cmake-install", [("-B build", f"-S '{clone}' -B build")]), tmp_path, tmp_path
    )
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=ways.snippet("cmake"))
    assert build(project, "C", tmp_path) == ways.OUTPUT
    made = tmp_path / ".local/include/kf"
    assert {p.name for p in (made / "ops").glob("*.h")} == {"activations.h", *ways.headers("add")}
    assert (made / "runtime/add.h").is_file()
