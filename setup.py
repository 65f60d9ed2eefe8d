# SPDX-License-Identifier: Apache-2.0
"""The version, from the one place where it is written; everything else is in pyproject.toml."""

import pathlib
import re

from setuptools import setup

text = (pathlib.Path(__file__).parent / "include/kf/core/version.h").read_text()
setup(version=".".join(re.findall(r"KF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)))
