# SPDX-License-Identifier: Apache-2.0
"""docs/python.md: its Python is run as one program, and what it says is printed is."""

import contextlib
import importlib.util
import io
import re

import kflib

PAGE = (kflib.ROOT / "docs/python.md").read_text()


def test_the_page(kf):
    """What needs PyTorch is a section of its own, left out where that is not installed."""
    kf._counts.copies.clear()
    sections = [s for s in re.split(r"^(?=## )", PAGE, flags=re.M) if not s.startswith("## PyTorch") or importlib.util.find_spec("torch")]
    blocks = [block for section in sections for block in re.findall(r"```python\n(.*?)```", section, re.S)]
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    assert printed.getvalue().splitlines() == re.findall(r"^ *print\(.*\) +# (.*)$", "".join(blocks), re.M)
