# SPDX-License-Identifier: Apache-2.0
"""Where the generator's inputs are: in the checkout or, installed by pip, in the package itself (setup.py puts them there)."""

import hashlib
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "data" if (HERE / "data").is_dir() else HERE.parents[1]
ENTRIES = HERE / "entries"  # kf's activations and aliases; the ops are beside their families
FAMILIES = HERE / "families"
TEMPLATES = ROOT / "templates"
INCLUDE = ROOT / "include"
PUBLIC = "rope_table.h", "runtime.h", "runtime.hpp"  # hand-written headers of include/kf itself


def called(path):
    """How messages and banners name a spec file: a built-in one with its folder, since several have one name."""
    return f"{path.parent.name}/{path.name}" if HERE in path.parents else path.name


def version():
    text = (INCLUDE / "kf/core/version.h").read_text()
    return ".".join(
        re.search(rf"KF_VERSION_{p} (\d+)", text)[1] for p in ("MAJOR", "MINOR", "PATCH")
    )


def own_headers():
    """The hand-written headers, as they are included: kf/core/..., kf/runtime/... and those of kf/ itself."""
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
    """Of all that decides what is generated: names the folder of files that were made from it."""
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
