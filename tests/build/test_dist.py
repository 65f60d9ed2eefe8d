# SPDX-License-Identifier: Apache-2.0
"""The release archive: the same bytes from the same commit, and its uses without Python and
Meson."""

import hashlib
import os
import pathlib
import tarfile
import zlib

import cases
import kflib
import pytest
import ways
from kfgen.interfaces import runtime

GCC = "gcc -O3 -march=native"
HERE = f"tar xzf kf-{ways.VERSION}.tar.gz"


@pytest.fixture
def no_python(tmp_path):
    """Environment whose Python and Meson fail when called."""
    folder = tmp_path / "no python"
    folder.mkdir()
    for name in (
        "python",
        "python3",
        "python3.11",
        "python3.12",
        "python3.13",
        "python3.14",
        "meson",
        "kfgen",
    ):
        (folder / name).write_text("#!/bin/sh\necho there is no Python here >&2; exit 1\n")
        (folder / name).chmod(0o755)
    return {
        "PATH": os.pathsep.join(
            [
                str(folder),
                os.environ["PATH"],
                *([str(pathlib.Path(ways.NVCC).parent)] if ways.NVCC else []),
            ]
        )
    }


def beside(archive, project):
    ways.consumer(project)
    (project / archive.name).symlink_to(archive)
    return project


@pytest.mark.parametrize(
    "compiler", cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17"])
)
def test_compile(archive, tmp_path, no_python, compiler):
    project = beside(archive, tmp_path)
    source = "program.c" if "gcc" in compiler else "program.cpp"
    ways.shell(
        ways.snippet("archive", [(GCC, f"{compiler} -O2 {ways.WARNINGS}"), ("program.c", source)]),
        project,
        **no_python,
    )
    assert ways.run(project / "program") == ways.OUTPUT


@pytest.mark.level(2)
@ways.needs_nvcc
def test_compile_cuda(archive, tmp_path, no_python):
    project = beside(archive, tmp_path)
    ways.shell(ways.snippet("archive-cuda", [("-O3", ways.NVCC_WARNINGS)]), project, **no_python)
    assert ways.run(project / "program") == ways.CUDA_OUTPUT


def files(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


@pytest.mark.level(2)
def test_install(archive, clone, home, tmp_path, no_python):
    """`make install` from a checkout and from the archive must install the same files, below $HOME
    and below /usr."""
    project = beside(archive, tmp_path / "project")
    ways.shell(ways.snippet("archive-install"), project, tmp_path, **no_python)
    assert files(tmp_path / ".local") == files(home / ".local")
    unpacked = project / f"kf-{ways.VERSION}"
    ways.run("make", "-C", unpacked, "uninstall", f"PREFIX={tmp_path / '.local'}", **no_python)
    assert files(tmp_path / ".local") == {}
    ways.run(
        "make",
        "-C",
        unpacked,
        "install",
        "PREFIX=/usr",
        f"DESTDIR={tmp_path / 'root'}",
        **no_python,
    )
    ways.run("make", "-C", clone, "install", "PREFIX=/usr", f"DESTDIR={tmp_path / 'theirs'}")
    assert files(tmp_path / "root") == files(tmp_path / "theirs")


@pytest.mark.level(2)
@ways.needs_cmake
@pytest.mark.parametrize("language", ["C", "CXX", pytest.param("CUDA", marks=ways.needs_nvcc)])
def test_fetch_content(archive, tmp_path, no_python, language):
    source = {"C": "program.c", "CXX": "program.cpp", "CUDA": "program.cu"}[language]
    sum_ = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = ways.snippet(
        "fetch-content",
        [
            ("https://example.org/", f"file://{archive.parent}/"),
            ("SUM", sum_),
            ("LANGUAGES C)", f"LANGUAGES {language})"),
            ("program.c)", f"{source})"),
        ],
    )
    text += ways.snippet("cmake-cuda") if language == "CUDA" else ""
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=text)
    warnings = ways.NVCC_WARNINGS if language == "CUDA" else ways.WARNINGS
    cuda = [f"-DCMAKE_CUDA_COMPILER={ways.NVCC}"] if language == "CUDA" else []
    output = ways.run(
        "cmake",
        "-B",
        "build",
        f"-DCMAKE_{language}_FLAGS={warnings}",
        *cuda,
        cwd=project,
        **no_python,
    )
    assert "Warning" not in output
    ways.run("cmake", "--build", "build", cwd=project, **no_python)
    assert ways.run(project / "build/program") == (
        ways.CUDA_OUTPUT if language == "CUDA" else ways.OUTPUT
    )


@pytest.mark.level(2)
@ways.needs_meson
def test_meson(archive, tmp_path, no_python):
    """Without jinja2 a Meson wrap has all of kf and no generator. Options that need the generator
    must be refused with the packages to install."""
    sum_ = hashlib.sha256(archive.read_bytes()).hexdigest()
    wrap = ways.snippet(
        "wrap", [("https://example.org/", f"file://{archive.parent}/"), ("SUM", sum_)]
    )
    project = ways.consumer(
        tmp_path / "project", meson__build=ways.snippet("meson"), **{"subprojects/kf__wrap": wrap}
    )
    output = ways.run(
        ways.MESON, "setup", "build", "-Dkf:dtypes=f32", cwd=project, fails=True, **no_python
    )
    assert "apt install python3 python3-jinja2" in output
    ways.run(
        ways.MESON,
        "setup",
        "--wipe",
        "build",
        "-Dwarning_level=3",
        "-Dwerror=true",
        "-Dkf:dtypes=",
        cwd=project,
        **no_python,
    )
    ways.run("ninja", "-C", "build", cwd=project, **no_python)
    assert ways.run(project / "build/program") == ways.OUTPUT


@pytest.mark.level(2)
@ways.needs_cmake
def test_as_a_prefix(archive, tmp_path, no_python):
    """find_package and pkg-config must work in the unpacked archive, without an installation."""
    project = beside(archive, tmp_path)
    ways.shell(HERE, project)
    (project / "CMakeLists.txt").write_text(ways.snippet("cmake"))
    ways.run(
        "cmake",
        "-B",
        "build",
        f"-DCMAKE_PREFIX_PATH={project / HERE.split()[-1][:-7]}",
        cwd=project,
        **no_python,
    )
    ways.run("cmake", "--build", "build", cwd=project, **no_python)
    assert ways.run(project / "build/program") == ways.OUTPUT
    if ways.PKG_CONFIG:
        output = ways.run(
            "pkg-config",
            "--cflags",
            "kf",
            PKG_CONFIG_PATH=project / f"kf-{ways.VERSION}/share/pkgconfig",
        ).split()
        assert (project / f"kf-{ways.VERSION}/include").samefile(output[-1])


def test_the_same_bytes(archive, tmp_path):
    """The archive must have the same bytes from another directory, date, umask, time zone and order
    of files."""
    again = tmp_path / "another name"
    ways.run("git", "clone", "-q", archive.parents[2], again)
    other = {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    ways.shell("umask 077; touch -d 2001-02-03 gen/kfgen/*; make dist", again, **other)
    assert (again / f"build/dist/{archive.name}").read_bytes() == archive.read_bytes()
    for name in ("kf_single.h", "kf_single.cuh"):
        assert (again / "build/dist" / name).read_bytes() == (archive.parent / name).read_bytes()


def test_contents(archive, tmp_path):
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        top = f"kf-{ways.VERSION}"
        found = {m.name.removeprefix(f"{top}/"): tar.extractfile(m).read() for m in members}
    assert [m.name for m in members] == sorted(m.name for m in members) and all(
        m.name.startswith(f"{top}/") for m in members
    )
    assert {(m.uid, m.gid, m.uname, m.gname, m.isreg()) for m in members} == {(0, 0, "", "", True)}
    assert len({m.mtime for m in members}) == 1 and {m.mode for m in members} == {0o644, 0o755}
    tracked = set(files(ways.copy(tmp_path)))
    programs = {f for f in tracked if os.access(tmp_path / f, os.X_OK)}
    assert {m.name for m in members if m.mode == 0o755} == {f"{top}/{f}" for f in programs}
    assert {"gen/bin/kfgen", ".ci/run"} <= programs
    assert tracked <= set(found), tracked - set(found)
    made = set(found) - tracked
    assert {
        "include/kf/kf.h",
        "include/kf/runtime/add.h",
        "include/kf/runtime/all.h",
        "include/kf/kf.cuh",
        "single/kf_single.h",
        "single/kf_single.cuh",
        "share/kf/installed.txt",
        "share/pkgconfig/kf.pc",
    } <= made
    assert not [p for p in made if p.endswith((".pyc", ".o", ".stamp")) or "egg-info" in p]
    assert found["single/kf_single.h"] == (archive.parent / "kf_single.h").read_bytes()
    # Compressed bytes. Tracked files grow with tests and measurements, not with functions. Headers
    # and single files: 3,360 per kernel, whose text all activations share. Headers of functions on
    # tensors: 1,200 per op and direction, which describe its arguments, and 72 per launcher.
    on_tensors = {p for p in made if p.startswith("include/kf/runtime/")}
    functions, ops = kflib.manifest()["functions"], runtime.functions(kflib.manifest())
    kernels = {(f["op"], *f["dtypes"], f["bwd"], f["state"], *f["variant"]) for f in functions}
    for name, chosen, limit in (
        ("headers", made - on_tensors, 3420 * len(kernels)),
        ("runtime", on_tensors, 1250 * len(ops) + 75 * sum(len(f.members) for f in ops)),
    ):
        size = sum(len(zlib.compress(found[p])) for p in chosen)
        assert 0 < size < limit, (name, size, len(kernels), len(functions))


@pytest.mark.level(2)
def test_changes_are_named(archive, tmp_path):
    """Uncommitted changes go into the archive, and `make dist` must say so."""
    again = tmp_path / "kf"
    ways.run("git", "clone", "-q", archive.parents[2], again)
    (again / "LICENSE").write_text("mine\n")
    assert "kf: 1 files differ from the commit" in ways.run("make", "dist", cwd=again)
    with tarfile.open(again / "build/dist" / archive.name) as tar:
        assert tar.extractfile(f"kf-{ways.VERSION}/LICENSE").read() == b"mine\n"
