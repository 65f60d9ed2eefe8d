# SPDX-License-Identifier: Apache-2.0
"""Runs the Python examples of each page as one program and compares the printed lines."""

import importlib.util
import re

import kflib
import kfpython
import pytest

HAS_TORCH = importlib.util.find_spec("torch")
# Pages of one library each.
PAGES = {
    "from_pytorch": "torch",
    "optim": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "tvm_ffi": "tvm_ffi",
}


def runnable(page):
    """Returns the page's sections that need no PyTorch, or all of them if it is installed."""
    return [
        s
        for s in re.split(r"^(?=## )", page, flags=re.M)
        if HAS_TORCH or not s.startswith("## PyTorch")
    ]


@pytest.mark.check
@pytest.mark.parametrize(
    "name", ["python", *(page for page, own in PAGES.items() if importlib.util.find_spec(own))]
)
def test_the_page(name):
    page = (kflib.ROOT / f"docs/{name}.md").read_text()
    program = "".join(
        block
        for section in runnable(page)
        for block in re.findall(r"```python\n(.*?)```", section, re.S)
    )
    printed = re.findall(r"^ *print\(.*\) +# (.*)$", program, re.M)
    assert printed and kfpython.python(program).splitlines() == printed
