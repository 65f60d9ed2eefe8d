# SPDX-License-Identifier: Apache-2.0
"""docs/python.md: its Python is run as one program, and what it says is printed is."""

import contextlib
import io
import re

import kflib

PAGE = (kflib.ROOT / "docs/python.md").read_text()


def test_the_page(kf):
    kf._counts.copies.clear()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    assert printed.getvalue().splitlines() == re.findall(r"^ *print\(.*\) +# (.*)$", "".join(blocks), re.M)
