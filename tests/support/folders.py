# SPDX-License-Identifier: Apache-2.0
"""Puts the folders of the tests' modules on sys.path, so that each module is imported by its bare
name: tests/support and its folders, then tests/families/<family>.

A script puts tests/support on sys.path itself, then calls `add`.
"""

import pathlib
import sys

SUPPORT = pathlib.Path(__file__).resolve().parent


def folders(parent):
    """The folders of modules. Packages are imported by their own name from the parent."""
    return [
        p
        for p in sorted(parent.iterdir())
        if p.is_dir() and not (p / "__init__.py").exists() and not p.name.startswith(("_", "."))
    ]


PATHS = [str(p) for p in (SUPPORT, *folders(SUPPORT), *folders(SUPPORT.parent / "families"))]


def add():
    sys.path += [path for path in PATHS if path not in sys.path]
