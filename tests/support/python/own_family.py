# SPDX-License-Identifier: Apache-2.0
"""Runs text in a process whose Python package has the ops of a user's own family beside few of
kf's: `python own_family.py FAMILY PACKAGE SCRIPT`. PACKAGE: folder in which the package is made.
"""

import importlib
import os
import pathlib
import runpy
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def package(family, folder):
    """Makes `import kernel_fusion` find a package that has the ops of the family."""
    sys.path[:0] = [str(folder), str(ROOT / "gen")]
    os.environ["CPATH"] = str(family / "include")  # for the compilers of first calls
    from kfgen import families

    families.load(family)
    from kfgen.entries import spec as specs
    from kfgen.interfaces import frontend
    from kfgen.render.render import Selection, write_all

    spec = specs.load([family / "ops.toml"])
    shutil.copytree(ROOT / "frontends/python/kernel_fusion", folder / "kernel_fusion")
    write_all(frontend.files(Selection(spec, ["bias"])), folder / "kernel_fusion", [])
    importlib.invalidate_caches()
    from kernel_fusion import _first_call

    _first_call.spec = lambda: spec


if __name__ == "__main__":
    package(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    runpy.run_path(sys.argv[3], run_name="__main__")
