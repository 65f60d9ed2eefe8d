# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the version, from the one place where it is written, and what the generator reads, which goes
into the package as kfgen/data, laid out as in the checkout (gen/kfgen/paths.py)."""

import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent
DATA = {"templates": "*.j2", "gen/spec": "*.toml", "include/kf/core": "*.*h", "include/kf/runtime": "*.*h", "include/kf": "runtime.h"}


class WithData(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # the checkout's own are read
            return
        data = pathlib.Path(self.build_lib) / "kfgen/data"
        shutil.rmtree(data, ignore_errors=True)
        for folder, pattern in DATA.items():
            for source in sorted((ROOT / folder).rglob(pattern)):
                copy = data / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)


text = (ROOT / "include/kf/core/version.h").read_text()
setup(version=".".join(re.findall(r"KF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)), cmdclass={"build_py": WithData})
