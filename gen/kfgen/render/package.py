# SPDX-License-Identifier: Apache-2.0
"""Installs kf: its headers, and the files for pkg-config and CMake.

Those files find the headers relative to their own path, so an installed tree may be moved.
"""

import os
import pathlib
import posixpath

from kfgen import paths
from kfgen.render.environment import environment
from kfgen.render.render import Renderer, write

DEFAULTS = {"prefix": "/usr/local", "includedir": "include", "datadir": "share"}
PKG_CONFIG, CMAKE = ("kf.pc",), ("kfConfig.cmake", "kfConfigVersion.cmake")
LIST = "share/kf/installed.txt"
# Default architectures of nvcc: machine code for sm_90a (wgmma needs the `a`), and PTX for all
# other devices from 8.0 on. NVCC_ARCH is for nvcc, ARCHITECTURES for CMake. meson.build repeats it.
NVCC_ARCH = "-gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80"
ARCHITECTURES = "90a-real;80-virtual"


def folders(datadir="share"):
    """Returns {file: directory that it is installed in}."""
    return {
        **{n: f"{datadir}/pkgconfig" for n in PKG_CONFIG},
        **{n: f"{datadir}/cmake/kf" for n in CMAKE},
    }


def template(name, **values):
    values |= {"version": paths.version(), "nvcc_arch": NVCC_ARCH, "architectures": ARCHITECTURES}
    return environment().get_template(f"package/{name}.j2").render(**values)


def flat(prefix=DEFAULTS["prefix"], includedir=DEFAULTS["includedir"], datadir=DEFAULTS["datadir"]):
    """Returns {name: text}. Directories are absolute or relative to the prefix."""
    include = posixpath.normpath(posixpath.join(prefix, includedir))
    relative = not posixpath.isabs(includedir) and not posixpath.isabs(datadir)
    found = {}
    for name, folder in folders(datadir).items():
        up = posixpath.relpath("/", posixpath.join("/", folder)) if relative else prefix
        # Compilers search /usr/include anyway. Naming it as a system path would put it before the
        # directories of C++, whose headers expect it after them.
        values = {
            "up": up,
            "include": includedir if relative else include,
            "relative": relative,
            "searched": include == "/usr/include",
        }
        found[name] = template(name, **values)
    return found


def tree(selection, on_tensors, prefix=DEFAULTS["prefix"], rendered=None):
    """Returns {path below the prefix: text} of all installed files.

    Args:
        on_tensors: {path below include: text} of the headers of functions on tensors.
        rendered: the generated headers, if the caller has them.
    """
    headers = {h: (paths.INCLUDE / h).read_text() for h in paths.own_headers()}
    headers |= (rendered or Renderer(selection).render()) | on_tensors
    found = {f"include/{h}": text for h, text in headers.items()}
    where = folders()
    found |= {f"{where[name]}/{name}": text for name, text in flat(prefix).items()}
    return {**found, LIST: "".join(f"{path}\n" for path in sorted([*found, LIST]))}


def install(selection, on_tensors, prefix, destdir=""):
    """Writes the tree and removes files of an earlier installation that this one lacks."""
    if not prefix:
        raise ValueError("--prefix is empty")
    prefix = os.path.abspath(prefix)
    root = pathlib.Path(destdir + prefix if destdir else prefix)
    files = tree(selection, on_tensors, pathlib.Path(prefix).as_posix())
    before = (root / LIST).read_text().splitlines() if (root / LIST).is_file() else []
    for path in before:
        if path not in files and path.startswith(("include/kf/", "share/")) and ".." not in path:
            (root / path).unlink(missing_ok=True)
    changed = sum(write(root / path, text) for path, text in files.items())
    return f"{len(files)} files in {root}, {changed} changed"
