# SPDX-License-Identifier: Apache-2.0
"""Shared by tests/build: a copy of the repository, programs that use kf, and the snippets of
docs/install.md, which the tests run as a user would."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import cases
import kflib
import pytest
from kfgen.paths import version
from kfgen.render import render

ROOT = kflib.ROOT
PAGE = ROOT / "docs/install.md"
VERSION = version()


def tool(name, *places):
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"], *places])
    return shutil.which(name, path=path)


MESON, CMAKE, PKG_CONFIG, NVCC = (
    tool("meson"),
    tool("cmake"),
    tool("pkg-config"),
    tool("nvcc", "/usr/local/cuda/bin"),
)
needs_meson = pytest.mark.skipif(not MESON, reason="no meson")
needs_cmake = pytest.mark.skipif(not CMAKE, reason="no cmake")
needs_pkg_config = pytest.mark.skipif(not PKG_CONFIG, reason="no pkg-config")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")

# Includes follow globals with the names of kf's arguments: -Wshadow would warn about kf's headers
# if they were not system headers. g++ does not find <cstdlib> if /usr/include is a system path.
GLOBALS = "extern int n, x, out, rows;\nint n, x, out, rows;\n"
# All of kf takes gcc 2 seconds and g++ 5, for each of many tests.
HEADER = cases.by_level("kf/ops/add", "kf/kf")
PROGRAM = (
    GLOBALS
    + f"#include <{HEADER}.h>\n"
    + """
#ifdef __cplusplus
#include <cstdlib>
#endif
#include <stdio.h>
int main(void)
{
    const float a[] = {1, -2, 3}, b[] = {1, 1, -5};
    float sum[3] = {9, 9, 9};
    if (kf_cpu_add_relu_f32(a, b, sum, 3) != KF_SUCCESS) return 1;
    printf("%g %g %g\\n", (double)sum[0], (double)sum[1], (double)sum[2]);
    return 0;
}
"""
)
OUTPUT = "2 0 0\n"

# Calls that are refused before a launch; they need no GPU.
CUDA_PROGRAM = (
    GLOBALS
    + f"#include <{HEADER}.cuh>\n"
    + """
#include <cstdlib>
#include <cstdio>
int main()
{
    if (kf_add_relu_f32(nullptr, nullptr, nullptr, 0, nullptr) != KF_SUCCESS) return 1;
    if (kf_add_relu_f32(nullptr, nullptr, nullptr, -1, nullptr) != KF_ERROR_INVALID_SIZE) return 2;
    return std::puts(kf_get_last_error_detail()) < 0;
}
"""
)
CUDA_OUTPUT = "kf_add_relu_f32: n is -1, expected 0 or more\n"
WARNINGS = "-Wall -Wextra -Wshadow -Wconversion -Werror"
NVCC_WARNINGS = f"-Werror all-warnings -Xcompiler {WARNINGS.replace(' ', ',')}"


def snippets():
    """Returns {name: text} of the page's snippets."""
    return dict(re.findall(r"<!-- snippet: (\S+) -->\n```\w+\n(.*?)```\n", PAGE.read_text(), re.S))


def snippet(name, replace=()):
    """Returns a snippet with each (old, new) replaced, as a user would edit it."""
    text = snippets()[name]
    for old, new in replace:
        assert old in text, f"docs/install.md: snippet {name} has no `{old}`"
        text = text.replace(old, str(new))
    return text


def environment(home=None, **more):
    found = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PKG_CONFIG", "CMAKE", "DESTDIR", "PREFIX"))
    }
    # Set by the `make test` that may run this process.
    for inherited in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        found.pop(inherited, None)
    places = [str(pathlib.Path(sys.executable).parent), str(ROOT / "gen/bin"), found["PATH"]]
    found["PATH"] = os.pathsep.join(places + ([str(pathlib.Path(NVCC).parent)] if NVCC else []))
    if home:
        found["HOME"] = str(home)
    return {**found, **{k: str(v) for k, v in more.items()}}


def run(*command, cwd=None, fails=False, home=None, **more):
    """Runs a command and returns its output."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(home, **more),
    )
    assert (done.returncode != 0) == fails, (
        f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout + done.stderr


def shell(text, cwd, home=None, **kwargs):
    return run("bash", "-euo", "pipefail", "-c", text, cwd=cwd, home=home, **kwargs)


def copy(to):
    """Copies the repository's files as a clone has them, without generated ones."""
    try:
        listed = subprocess.check_output(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        files = [f for f in listed.decode().split("\0") if f and (ROOT / f).is_file()]
    # Not a clone: all files except those of a build.
    except (FileNotFoundError, subprocess.CalledProcessError):
        skip = re.compile(r"(^|/)(build[^/]*|__pycache__|\.[a-z_]+cache|\.venv[^/]*|.*\.egg-info)/")
        files = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file()]
        files = [f for f in files if not skip.search(f)]
    for file in files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, to / file)
    return to


def commit(folder):
    """Makes the folder a git repository with one commit, independent of the user's settings and the
    date."""
    date = "2026-01-02T03:04:05Z"
    git = [
        "git",
        "-c",
        "user.name=kf",
        "-c",
        "user.email=kf@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.autocrlf=false",
    ]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        run(*git, *arguments, cwd=folder, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)


def tree(folder):
    """Returns {path: bytes} of the files below a folder."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def headers(*ops):
    """Returns the files of the ops' C headers."""
    return {part for op in ops for part in render.parts(f"{op}.h")}


def consumer(folder, **files):
    """Writes a project with these files; `name__ext` is name.ext."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "program.c": PROGRAM,
        "program.cpp": PROGRAM,
        "program.cu": CUDA_PROGRAM,
        **files,
    }.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
