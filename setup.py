# SPDX-License-Identifier: Apache-2.0
"""Dynamic parts of the package's build that pyproject.toml cannot express.

- the version, read from include/kf/core/version.h
- kfgen/data: the generator's input files, laid out as in the checkout (gen/kfgen/paths.py)
- generated files of kernel_fusion, such as its C libraries, configured by the variables of
  frontends/python/kernel_fusion/_build.py
"""

import pathlib
import re
import shutil
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

# setuptools before 70.1
try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
DATA = {"templates": "*.j2", "include/kf": "*.*h*"}


def builder():
    """Returns the package's _build module, imported only for a build, since it needs jinja2."""
    sys.path[:0] = [
        path for path in (str(ROOT / "gen"), str(ROOT / "frontends/python")) if path not in sys.path
    ]
    from kernel_fusion import _build

    return _build


class WithData(build_py):
    """Copies the generator's data and builds the generated files."""

    def run(self):
        super().run()
        # An editable install reads the checkout's data.
        if self.editable_mode:
            builder().build(ROOT / "frontends/python/kernel_fusion")
            return
        data = pathlib.Path(self.build_lib) / "kfgen/data"
        shutil.rmtree(data, ignore_errors=True)
        for folder, pattern in DATA.items():
            for source in sorted((ROOT / folder).rglob(pattern)):
                copy = data / source.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        try:
            builder().build(pathlib.Path(self.build_lib) / "kernel_fusion")
        except ValueError as e:  # a wrong KF_WHEEL_ variable; pip would show a traceback
            raise SystemExit(f"kf: {e}") from None


class OfPlatform(bdist_wheel):
    """Tags a wheel with libraries by platform, without a Python version."""

    def get_tag(self):
        libraries = builder().selection() is not None
        return ("py3", "none", builder().platform_tag()) if libraries else super().get_tag()


text = (ROOT / "include/kf/core/version.h").read_text()
setup(
    version=".".join(re.findall(r"KF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)),
    cmdclass={"build_py": WithData, "bdist_wheel": OfPlatform},
)
