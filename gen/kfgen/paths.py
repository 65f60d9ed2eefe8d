# SPDX-License-Identifier: Apache-2.0
"""Paths of the generator's inputs: in a checkout, or in the installed package (setup.py)."""

import hashlib
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
INSTALLED = (HERE / "data").is_dir()  # else this is a checkout, whose files may change
ROOT = HERE / "data" if INSTALLED else HERE.parents[1]
ENTRIES = HERE / "entries"  # kf's activations and aliases; ops are in the folders of the families
FAMILIES = HERE / "families"
TEMPLATES = ROOT / "templates"
INCLUDE = ROOT / "include"
PUBLIC = "rope_table.h", "runtime.h", "runtime.hpp"  # hand-written headers of include/kf itself


def frontend():
    """Returns the folder of kf.nn's sources: in a checkout, or in the installed package."""
    package = ROOT / "frontends/python/kernel_fusion"
    return (package if package.is_dir() else HERE.parent / "kernel_fusion") / "nn"


def called(path):
    """Names a spec file in messages and banners: a built-in file with its folder."""
    return f"{path.parent.name}/{path.name}" if HERE in path.parents else path.name


def stem_of(file):
    """Returns the word in names from a user's spec file: the file's name, or the folder's for the
    ops.toml of a family.
    """
    path = pathlib.Path(file)
    of_family = path.name == "ops.toml" and (path.parent / "family.py").is_file()
    return path.resolve().parent.name if of_family else path.stem


def version():
    text = (INCLUDE / "kf/core/version.h").read_text()
    return ".".join(
        re.search(rf"KF_VERSION_{p} (\d+)", text)[1] for p in ("MAJOR", "MINOR", "PATCH")
    )


def own_headers():
    """Returns the include paths of the hand-written headers: kf/core, kf/runtime and PUBLIC."""
    found = [
        p
        for folder in ("core", "runtime")
        for p in (INCLUDE / "kf" / folder).rglob("*")
        if p.suffix in (".h", ".cuh")
    ]
    return sorted(
        p.relative_to(INCLUDE).as_posix()
        for p in [*found, *(INCLUDE / "kf" / name for name in PUBLIC)]
    )


def digest():
    """Digest of all inputs; it names the folder of cached results."""
    found = hashlib.sha256()
    for folder, pattern in (
        (HERE, "*.py"),
        (HERE, "*.toml"),
        (TEMPLATES, "*.j2"),
        (INCLUDE / "kf", "*.*h*"),
    ):
        for path in sorted(folder.rglob(pattern)):
            found.update(
                f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes()
            )
    return found.hexdigest()[:16]
