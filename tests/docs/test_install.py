# SPDX-License-Identifier: Apache-2.0
"""Checks that pages on installation compile with optimisation: -O0 takes 100 times as long."""

import re

import pytest
from conftest import ROOT

PAGES = ["docs/install.md", "docs/launchers.md", "docs/nvrtc.md"]
BUILDS = {
    r"^(?!#).*\bcmake -B": "-DCMAKE_BUILD_TYPE=Release",
    r"^(?!#).*meson setup": "buildtype=release",
    r"^(?!#).*\b(gcc|nvcc|g\+\+) ": "-O",
}
HEADERS_ALONE = "meson install"  # a build of kf itself compiles nothing


@pytest.mark.parametrize("page", PAGES)
def test_every_way_to_compile_is_optimised(page):
    found = 0
    for snippet in re.findall(r"```(?:sh|meson)\n(.*?)```", (ROOT / page).read_text(), re.S):
        for line in [] if HEADERS_ALONE in snippet else snippet.splitlines():
            for pattern, flag in BUILDS.items():
                if re.match(pattern, line):
                    found += 1
                    assert flag in line, f"{page}: {line}"
    assert found >= 2
