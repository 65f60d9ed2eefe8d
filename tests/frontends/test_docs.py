# SPDX-License-Identifier: Apache-2.0
"""Runs the Python examples of docs/python.md as one program and compares the printed lines."""

import importlib.util
import re

import kflib
import kfpython
import pytest

PAGE = (kflib.ROOT / "docs/python.md").read_text()


@pytest.mark.check
def test_the_page():
    """The section "PyTorch" is skipped if PyTorch is not installed."""
    sections = [
        s
        for s in re.split(r"^(?=## )", PAGE, flags=re.M)
        if not s.startswith("## PyTorch") or importlib.util.find_spec("torch")
    ]
    program = "".join(
        block for section in sections for block in re.findall(r"```python\n(.*?)```", section, re.S)
    )
    assert kfpython.python(program).splitlines() == re.findall(
        r"^ *print\(.*\) +# (.*)$", program, re.M
    )
