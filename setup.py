# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the version, from the one place where it is written; what the generator reads, which goes into the package as
kfgen/data, laid out as in the checkout (gen/kfgen/paths.py); and what kernel_fusion has that is generated, its C libraries above all
(frontends/python/kernel_fusion/_build.py says what decides about them)."""

import pathlib
import re
import shutil
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
DATA = {"templates": "*.j2", "gen/spec": "*.toml", "include/kf": "*.*h*"}


def builder():
    """The package's own; imported when something is built, since it needs jinja2."""
    sys.path[:0] = [
        path for path in (str(ROOT / "gen"), str(ROOT / "frontends/python")) if path not in sys.path
    ]
    from kernel_fusion import _build

    return _build


class WithData(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # the checkout's own are read
            builder().build(ROOT / "frontends/python/kernel_fusion")
            return
        data = pathlib.Path(self.build_lib) / "kfgen/data"
        shutil.rmtree(data, ignore_errors=True)
        for folder, pattern in DATA.items():
            for source in sorted((ROOT / folder).rglob(pattern)):
                copy = data / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        builder().build(pathlib.Path(self.build_lib) / "kernel_fusion")


class OfPlatform(bdist_wheel):
    """Libraries are a platform's, but of no Python's version."""

    def get_tag(self):
        libraries = builder().selection() is not None and builder().compiler()[0]
        return ("py3", "none", builder().platform_tag()) if libraries else super().get_tag()


text = (ROOT / "include/kf/core/version.h").read_text()
setup(
    version=".".join(re.findall(r"KF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)),
    cmdclass={"build_py": WithData, "bdist_wheel": OfPlatform},
)
